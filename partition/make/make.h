/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, reads, writes and describes plans: the interface for abi/api and runtime. */
#ifndef OPI_MAKE_H
#define OPI_MAKE_H

#include <opipe/host.h>

#include "partition/file/file.h"
#include "partition/plan/env.h"
#include "partition/program/bind.h"
#include "partition/schedule/events.h"

/* Chooses the cut (or takes the given one), asks the schedule, proves, predicts. params as in
 * host.h; the cluster itself is not read here, only devices, descriptions and link. */
opipe_status opi_plan_make(const opi_plan_env *env, const opipe_plan_params *params,
                           opi_plan **out_plan, opipe_error *err);
/* The same for training; `spec` is copied into the plan. The model must have been bound with
 * OPI_BIND_KEEP_PARAMETERS. params->n_microbatches counts the whole mini-batch, over all replicas.
 */
opipe_status opi_plan_make_training(const opi_plan_env *env, const opipe_plan_params *params,
                                    const opi_train_spec *spec, opi_plan **out_plan,
                                    opipe_error *err);
/* Uses only the evaluator and logger of env->bind; dims, pins and flags are the plan's. */
opipe_status opi_plan_read(const opi_plan_env *env, const void *json, uint64_t n_bytes,
                           opi_plan **out_plan, opipe_error *err);
/* Writes a description for people: stages, ranks, bytes per category, predicted times, gap to the
 * bound. */
opipe_status opi_plan_describe(const opi_plan *plan, opipe_write_fn write, void *ctx,
                               opipe_error *err);

/* Completes a plan from stage_of_node and actions: proven and predicted. Binds the graphs of the
 * shape classes again. facts [n_ranks]: devices whose bytes are to be predicted; NULL: the plan was
 * read and has the bytes of its file. */
opipe_status opi_plan_finish(const opi_plan_env *env, opi_plan *plan, const opi_device_facts *facts,
                             const opi_bound *bound, opipe_error *err);

/* recount.c. Checks, before a plan runs here, that the backends support its nodes and that every
 * rank, counted on its device, fits its cap. Plans made for the devices of this process pass at
 * once. With env->local only the ranks here are asked and held to caps. The plan is not changed.
 * Errors: NOTFOUND, a missing backend; UNSUPPORTED, by rank and node; LIMIT, by rank with all
 * numbers. */
opipe_status opi_plan_recount(const opi_plan_env *env, const opi_plan *plan, opipe_error *err);
/* The same for every plan, with the counted bytes: out_memory [n_ranks], or NULL. visitor: NULL:
 * none. */
opipe_status opi_plan_count_memory(const opi_plan_env *env, const opi_plan *plan,
                                   const opi_program_visitor *visitor, opi_memory *out_memory,
                                   opipe_error *err);

/* Parameters of kernel tuning, and its device. */
typedef struct opi_tuning {
  const char *kind; /* a backend's id; with ":uuid" appended, index is not read */
  uint32_t index;
  uint32_t n_candidates, n_runs;                           /* 0: the backend chooses */
  void (*measured)(void *ctx, const opipe_kernel *kernel); /* called after each; or NULL */
  void *ctx;
} opi_tuning;
/* tune.c. Measures every kernel for which the plan's programs on such a device have a choice,
 * writes the table into the plan (kernels.h) and counts the plan's memory with it. Nothing else may
 * run on the device. Errors: INVALID, no rank has a device of that kind; UNSUPPORTED, the backend
 * does not tune, or there is nothing to choose; LIMIT, the plan no longer fits; the backend's. */
opipe_status opi_plan_tune(const opi_plan_env *env, opi_plan *plan, const opi_tuning *asked,
                           opipe_error *err);

#endif /* OPI_MAKE_H */
