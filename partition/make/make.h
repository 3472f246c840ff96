/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, reads, writes and describes plans: what abi/api calls. */
#ifndef OPI_MAKE_H
#define OPI_MAKE_H

#include <opipe/host.h>

#include "partition/plan/plan.h"
#include "partition/program/bind.h"
#include "partition/schedule/events.h"

/* Finds opened plugins by id; errors name the id and what to change. */
typedef struct opi_plugins {
  void *ctx;
  opipe_status (*backend)(void *ctx, const char *id, opi_backend_ref *out_ref, opipe_error *err);
  opipe_status (*schedule)(void *ctx, const char *id, opi_schedule_ref *out_ref, opipe_error *err);
  opipe_status (*transport)(void *ctx, const char *id, opi_transport_ref *out_ref,
                            opipe_error *err);
  /* Ids of all schedules that can be used, [*out_n] in `arena`. NULL: they are not known. */
  opipe_status (*schedules)(void *ctx, opi_arena *arena, const char *const **out_ids,
                            uint32_t *out_n, opipe_error *err);
} opi_plugins;

typedef struct opi_plan_env {
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const opi_plugins *plugins;
  const opi_model *model;
  const opi_bind_options *bind; /* how the model was bound: pins, flags, evaluator; dims are the
                                   request's (all of them) */
  const opi_bound *bound;       /* what the model was bound to by `bind`; NULL: not at hand */
  const opi_costs *costs; /* of the stages in ms; NULL: by their nodes. params->costs is not read */
  /* [n_stages - 1] the last node of every stage but the last (opi_cut_behind): the cut. NULL: it is
   * given or searched */
  const char *const *stage_ends;
  const opi_program_visitor *visitor; /* of programs, when a plan is finished; NULL: none */
  uint64_t (*now_ns)(void);
} opi_plan_env;

/* A transport as plans spell it, "id" or "id:key=value,...": the id in `out_id` (64 bytes), the
 * options as a pointer into `spec`, NULL without. */
opipe_status opi_transport_split(const char *spec, char out_id[64], const char **out_options,
                                 opipe_error *err);

/* Asks the plan's transport, fills plan->link. Errors: NOTFOUND; UNSUPPORTED, what the plan's ranks
 * cannot use (opi_plan_check_link); those of the transport about its options; ABI, numbers out of
 * range. */
opipe_status opi_plan_find_link(const opi_plan_env *env, opi_plan *plan, opipe_error *err);
/* Is the transport that is here the one that the plan was made for? Times may differ. Errors: those
 * of finding it; UNSUPPORTED names what differs, with both values. */
opipe_status opi_plan_compare_link(const opi_plan_env *env, const opi_plan *plan, opipe_error *err);
/* Can the plan's ranks use its link? Errors: UNSUPPORTED, too few ranks, one thread for all, a rule
 * of matching beyond tag and stream. */
opipe_status opi_plan_check_link(const opi_plan *plan, opipe_error *err);

/* describe_device.c. Checks a description; fills what opi_device_look fills (NULL: nothing). what
 * begins messages. Errors: INVALID names the field and its value. */
opipe_status opi_device_describe(const opipe_device_description *description, const char *what,
                                 opi_device_spec *io_spec, opi_device_facts *out_facts,
                                 opipe_error *err);
opipe_status opi_link_describe(const opipe_link_description *description, const char *what,
                               opi_link *out_link, opipe_error *err);
/* device.c. Asks the backend of `io_spec`: its alignment, flags and domain, and the facts. Errors:
 * NOTFOUND; the backend's; INVALID, numbers out of range. */
opipe_status opi_device_look(const opi_plan_env *env, opi_device_spec *io_spec,
                             opi_device_facts *out_facts, opipe_error *err);

/* Errors: NOTFOUND; the backend's. */
opipe_status opi_device_open(const opi_plan_env *env, const opi_device_spec *spec,
                             opi_backend_ref *out_backend, opipe_device **out_device,
                             opipe_error *err);

opipe_status opi_plan_new(const opipe_allocator *allocator, opi_plan **out_plan, opipe_error *err);
void opi_model_fingerprint(const opi_model *model, uint64_t out_fingerprint[2]);

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
/* Without its model: for playing it (partition/study/simulate/plan_play.h) and for people alone.
 * What follows from the graph is as the file predicts it; its nodes are not checked. Errors: as
 * opi_plan_read; NOTFOUND, a file that was written without what its lists take. */
opipe_status opi_plan_read_alone(const opipe_allocator *allocator, const void *json,
                                 uint64_t n_bytes, opi_plan **out_plan, opipe_error *err);
#define OPI_PLAN_FORMAT "onnx-pipe plan 3"
opipe_status opi_plan_write(const opi_plan *plan, opipe_write_fn write, void *ctx,
                            opipe_error *err);
/* The decisions alone, as opi_plan_write has them: what is hashed. */
opipe_status opi_plan_write_decisions(const opi_plan *plan, opipe_write_fn write, void *ctx,
                                      opipe_error *err);
/* Fills plan->hash: the last act of making and reading. */
opipe_status opi_plan_hash(opi_plan *plan, opipe_error *err);
/* For people: stages, ranks, bytes per category, predicted times, gap to the bound. */
opipe_status opi_plan_describe(const opi_plan *plan, opipe_write_fn write, void *ctx,
                               opipe_error *err);

/* bind.c. The bound graph of a micro-batch with `rows` rows, where env->bound is not that already:
 * *out_own is NULL if it is, else *out_bound and the caller's to free, on failure too. */
opipe_status opi_plan_bound(const opi_plan_env *env, const opi_plan *plan, int64_t rows,
                            const opi_bound **out_bound, opi_bound **out_own, opipe_error *err);
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
