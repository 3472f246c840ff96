/* SPDX-License-Identifier: Apache-2.0 */
/* A plan in the making, with everything that the finished plan does not keep. Private to this
 * folder.
 *
 * 1. make.c and read.c fill `facts` before the cut. NULL means that the plan was read from a file
 *    that knows its bytes, so no device is asked.
 * 2. opi_making_finish turns a cut into a whole plan. It may be called again for another cut, for
 *    another order (`plan->decided.actions` NULL: the schedule is asked), or under other caps. It
 *    replaces everything that it wrote before; only the plan's arena grows.
 * 3. `told` holds the caps that the cut search passes to the schedule, and the schedule's verdict.
 */
#ifndef OPI_MAKING_H
#define OPI_MAKING_H

#include "partition/make/make.h"
#include "partition/search/capped.h"

typedef struct opi_making {
  const opi_plan_env *env;
  opi_plan *plan;
  const opi_device_facts *facts; /* [n_ranks] in the maker's scratch memory */
  opi_told_caps told;            /* written by search/capped.c and finish.c */
  const char *offload;           /* glob of stashes to offload; NULL: the plan's own */
  bool offload_least;            /* of those that match, only as many as caps demand */
  uint64_t offload_bytes;        /* most host memory of a rank for it; 0: no limit */
  bool specs;                    /* the file's sharding specs must say what is divided how */
} opi_making;

/* How stashes are offloaded. */
typedef struct opi_offloading {
  const char *glob; /* NULL: not at all */
  bool least;       /* as few as caps demand */
} opi_offloading;

/* make.c: makes a plan with so many stashes offloaded. spec: NULL: a forward plan. */
opipe_status opi_plan_make_so(const opi_plan_env *env, const opipe_plan_params *params,
                              const opi_train_spec *spec, const opi_offloading *offload,
                              opi_plan **out_plan, opipe_error *err);

/* Completes a plan from stage_of_node and actions, like opi_plan_finish, but the schedule may be
 * told lower caps. */
opipe_status opi_making_finish(opi_making *making, const opi_bound *bound, opipe_error *err);

#endif /* OPI_MAKING_H */
