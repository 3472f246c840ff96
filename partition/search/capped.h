/* SPDX-License-Identifier: Apache-2.0 */
/* The cut of a plan under its ranks' caps.
 *
 * The search for the fastest cut works on estimates of a stage's memory; the finished plan is
 * exact. The best cut without caps is tried first; where a rank turns out too large, or its
 * schedule has to keep less than it would, cuts between blocks are judged by exact bytes (fit.h).
 * The fastest plan that fits is the answer, or a report of the cut that comes closest.
 */
#ifndef OPI_CAPPED_H
#define OPI_CAPPED_H

#include "partition/plan/env.h"
#include "partition/search/dp.h"

/* All borrowed. */
typedef struct opi_capped {
  const opi_plan_env *env;
  opi_plan *plan; /* with all but a cut */
  const opi_bound *bound;
  const opi_cut_problem *problem;
  const uint32_t *same_device; /* [n_ranks] the first rank whose device is the same */
  /* Makes the plan of the stages in plan->stage_of_node. */
  opipe_status (*finish)(void *ctx, const opi_cut_problem *problem, opipe_error *err);
  void *ctx;
} opi_capped;

/* Errors: those of finishing; LIMIT, no cut that was found fits: with the numbers of the rank that
 * is first over its cap in the cut that comes closest, and the smallest caps that were found to be
 * enough. */
opipe_status opi_cut_capped(const opi_capped *capped, opipe_error *err);

#endif /* OPI_CAPPED_H */
