/* SPDX-License-Identifier: Apache-2.0 */
/* A plan while it is made: of this folder alone. What a finished plan does not keep stands here.
 *
 * 1. make.c and read.c fill `facts` before the cut; NULL says that the plan was read from a file
 *    that knows its bytes, so no device is asked.
 * 2. opi_making_finish turns a cut into a whole plan. It may be called again for another cut, for
 *    another order (`plan->decided.actions` NULL: the schedule is asked), or under other caps: it
 *    replaces all that it wrote before, and only the arena of the plan grows.
 * 3. What the search for a cut under caps asks of the schedule, and hears, is in `told`.
 */
#ifndef OPI_MAKING_H
#define OPI_MAKING_H

#include "partition/make/make.h"
#include "partition/search/capped.h"

typedef struct opi_making {
  const opi_plan_env *env;
  opi_plan *plan;
  const opi_device_facts *facts; /* [n_ranks] of the scratch memory of whoever makes the plan */
  opi_told_caps told;            /* written by search/capped.c and finish.c */
} opi_making;

/* From stage_of_node and actions to a proven, predicted plan: opi_plan_finish for one whose
 * schedule may be told less than the caps. */
opipe_status opi_making_finish(opi_making *making, const opi_bound *bound, opipe_error *err);

#endif /* OPI_MAKING_H */
