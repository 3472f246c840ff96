/* SPDX-License-Identifier: Apache-2.0 */
/* The cut of a plan under its ranks' caps.
 *
 * The search for the fastest cut uses estimates of a stage's memory; the finished plan is exact.
 * The best cut without caps is tried first. If some rank is too large, or its schedule must keep
 * less than it would, cuts between blocks are judged by exact bytes (fit.h). The result is the
 * fastest plan that fits, or a report on the cut that comes closest.
 */
#ifndef OPI_CAPPED_H
#define OPI_CAPPED_H

#include "partition/plan/env.h"
#include "partition/search/dp.h"

/* Caps passed to a schedule while a plan is finished, and the outcome. */
typedef struct opi_told_caps {
  const uint64_t *bytes; /* in: [n_ranks], UINT64_MAX: none; NULL: the devices' caps */
  bool bounded;          /* out: the schedule was given a bound on stashes */
  bool refused;          /* out: the schedule found no order within it */
} opi_told_caps;

/* All borrowed. */
typedef struct opi_capped {
  const opi_plan_env *env;
  opi_plan *plan;                /* complete but for the cut */
  const opi_device_facts *facts; /* [n_ranks] */
  const opi_bound *bound;
  const opi_cut_problem *problem;
  const uint32_t *same_device; /* [n_ranks] the first rank with an equal device */
  opi_told_caps *told;         /* used and filled by `finish` */
  /* Makes the plan of the stages in stage_of_node. */
  opipe_status (*finish)(void *ctx, const opi_cut_problem *problem, opipe_error *err);
  void *ctx;
} opi_capped;

/* Errors: those of finishing; LIMIT, no cut was found that fits, with the numbers of the first rank
 * over its cap in the closest cut, and the smallest caps found to suffice. */
opipe_status opi_cut_capped(const opi_capped *capped, opipe_error *err);

#endif /* OPI_CAPPED_H */
