/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, reads, writes and describes plans: what abi/api calls. */
#ifndef OPI_MAKE_H
#define OPI_MAKE_H

#include <opipe/host.h>

#include "partition/file/file.h"
#include "partition/plan/env.h"
#include "partition/program/bind.h"
#include "partition/schedule/events.h"

/* Chooses (or takes) the cut, asks the schedule, proves, predicts. params as in host.h; of a
 * cluster, which is not read here, are devices, descriptions and link. */
opipe_status opi_plan_make(const opi_plan_env *env, const opipe_plan_params *params,
                           opi_plan **out_plan, opipe_error *err);
/* The same for training: `spec` is copied into the plan. The model must have been bound with
 * OPI_BIND_KEEP_PARAMETERS. params->n_microbatches counts those of the whole mini-batch over all
 * replicas. */
opipe_status opi_plan_make_training(const opi_plan_env *env, const opipe_plan_params *params,
                                    const opi_train_spec *spec, opi_plan **out_plan,
                                    opipe_error *err);
/* env->bind gives the evaluator and logger only; dims, pins and flags are the plan's. */
opipe_status opi_plan_read(const opi_plan_env *env, const void *json, uint64_t n_bytes,
                           opi_plan **out_plan, opipe_error *err);
/* For people: stages, ranks, bytes per category, predicted times, gap to the bound. */
opipe_status opi_plan_describe(const opi_plan *plan, opipe_write_fn write, void *ctx,
                               opipe_error *err);

/* Shared by make and read: from stage_of_node and actions (actions NULL: asks the schedule) to a
 * proven, predicted plan. The shape classes' graphs are bound anew. Bytes are those of the devices
 * (plan->facts), of a plan that was read its own. */
opipe_status opi_plan_finish(const opi_plan_env *env, opi_plan *plan, const opi_bound *bound,
                             opipe_error *err);

/* recount.c. Before a plan runs here: do the backends take its nodes, and does every rank fit its
 * cap, counted on its device? Nothing to do for one that was made for the devices of this process.
 * The plan stays as it is. Errors: NOTFOUND, a backend that is not here; UNSUPPORTED, by rank and
 * node; LIMIT, by rank with all numbers. */
opipe_status opi_plan_recount(const opi_plan_env *env, const opi_plan *plan, opipe_error *err);
/* The same for every plan, with what it counts (out_memory [n_ranks], or NULL). visitor: NULL:
 * none. */
opipe_status opi_plan_count_memory(const opi_plan_env *env, const opi_plan *plan,
                                   const opi_program_visitor *visitor, opi_memory *out_memory,
                                   opipe_error *err);

/* What kernels are measured by, and on which device. */
typedef struct opi_tuning {
  const char *kind; /* id of a backend, or with a uuid behind: index is not read */
  uint32_t index;
  uint32_t n_candidates, n_runs;                           /* 0: the backend's choice */
  void (*measured)(void *ctx, const opipe_kernel *kernel); /* one at a time; NULL: nobody asks */
  void *ctx;
} opi_tuning;
/* tune.c. Measures every kernel that the plan's programs on devices of that kind have a choice for,
 * writes the table into the plan (kernels.h), and counts its memory with it. Nothing else may run
 * on the device. Errors: INVALID, no rank has that kind; UNSUPPORTED, a backend that measures
 * nothing, nothing to choose for; LIMIT, the plan does not fit any more; the backend's. */
opipe_status opi_plan_tune(const opi_plan_env *env, opi_plan *plan, const opi_tuning *asked,
                           opipe_error *err);

#endif /* OPI_MAKE_H */
