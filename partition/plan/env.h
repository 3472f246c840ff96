/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of plan making: plugins by id, the model and its binding, devices and links,
 * present or described. */
#ifndef OPI_PLAN_ENV_H
#define OPI_PLAN_ENV_H

#include <opipe/host.h>

#include "partition/plan/plan.h"

/* Finds opened plugins by id. Errors name the id and the remedy. */
typedef struct opi_plugins {
  void *ctx;
  opipe_status (*backend)(void *ctx, const char *id, opi_backend_ref *out_ref, opipe_error *err);
  opipe_status (*schedule)(void *ctx, const char *id, opi_schedule_ref *out_ref, opipe_error *err);
  opipe_status (*transport)(void *ctx, const char *id, opi_transport_ref *out_ref,
                            opipe_error *err);
  /* Ids of all usable schedules, [*out_n] in `arena`. NULL: unknown. */
  opipe_status (*schedules)(void *ctx, opi_arena *arena, const char *const **out_ids,
                            uint32_t *out_n, opipe_error *err);
} opi_plugins;

#define OPI_PLAN_FORMAT "onnx-pipe plan 3" /* first line of plan files */

/* Devices of ranks that may be in other processes, as their processes tell of them. */
typedef struct opi_devices_told {
  const void *ctx;
  /* The device of rank `rank` of n_ranks, which has entry `entry` of the caller's list: the choice,
   * and what the device answers. All strings live as long as ctx. Errors: INVALID: the ranks do
   * not fit the processes; the owner's own, about the device. */
  opipe_status (*find)(const void *ctx, uint32_t rank, uint32_t n_ranks, uint32_t entry,
                       opipe_device_choice *out_choice, opipe_device_info *out_info,
                       opipe_error *err);
} opi_devices_told;

typedef struct opi_plan_env {
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const opi_plugins *plugins;
  const opi_model *model;
  const opi_bind_options
      *bind; /* how the model was bound: pins, flags, evaluator; all dims are the request's */
  const opi_bound *bound;        /* the model bound with `bind`; NULL: not at hand */
  const struct opi_costs *costs; /* of stages, in ms (partition/schedule/events.h); NULL: sums over
                                    their nodes. params->costs is not read */
  /* [n_stages - 1] the last node of every stage but the last (opi_cut_behind): fixes the cut. NULL:
   * the cut is given otherwise, or searched */
  const char *const *stage_ends;
  const opi_devices_told *told; /* who tells of the ranks' devices; NULL: backends here do */
  const bool *local;            /* [n_ranks] recount.c: ranks whose devices are here; NULL: all */
  const opi_program_visitor *visitor; /* sees the programs when a plan is finished; NULL: none */
  /* search for better orders (partition/schedule/order_search.h); NULL: built without */
  const struct opi_order_search *search;
  uint64_t (*now_ns)(void);
} opi_plan_env;

/* Splits a transport as plans spell it, "id" or "id:key=value,...". The id goes to `out_id` (64
 * bytes); *out_options points into `spec`, NULL if it has none. */
opipe_status opi_transport_split(const char *spec, char out_id[64], const char **out_options,
                                 opipe_error *err);

/* Asks the plan's transport and fills decided.link. Errors: NOTFOUND; UNSUPPORTED, a link that the
 * plan's ranks cannot use (opi_plan_check_link); the transport's own about its options; ABI,
 * numbers out of range. */
opipe_status opi_plan_find_link(const opi_plan_env *env, opi_decision *plan, opipe_error *err);
/* Checks that the transport at hand is the one that the plan was made for; times may differ.
 * Errors: those of finding it; UNSUPPORTED names what differs, with both values. */
opipe_status opi_plan_compare_link(const opi_plan_env *env, const opi_decision *plan,
                                   opipe_error *err);
/* Checks that the plan's ranks, one thread each in one process, can use its link. Errors:
 * UNSUPPORTED, too few ranks, or one thread for all calls. */
opipe_status opi_plan_check_link(const opi_decision *plan, opipe_error *err);

/* describe_device.c. Checks a description and fills the same outputs as opi_device_look (NULL:
 * none). Messages begin with `what`. Errors: INVALID names the field and its value. */
opipe_status opi_device_describe(const opipe_device_description *description, const char *what,
                                 opi_device_spec *io_spec, opi_device_facts *out_facts,
                                 opipe_error *err);
/* device.c. The same for a device of another process that gave this answer. Where the device with
 * that number here is of the same make, backends are asked about it, so that bytes are exact. */
opipe_status opi_device_take(const opi_plan_env *env, const opipe_device_info *told,
                             opi_device_spec *io_spec, opi_device_facts *out_facts,
                             opipe_error *err);
opipe_status opi_link_describe(const opipe_link_description *description, const char *what,
                               opi_link *out_link, opipe_error *err);
/* device.c. Asks the backend of `io_spec`, whose kind may be "kind:uuid", which becomes kind and
 * index. Errors: NOTFOUND; the backend's; INVALID, numbers out of range. */
opipe_status opi_device_answer(const opi_plan_env *env, opi_device_spec *io_spec,
                               opipe_device_info *out_info, opipe_error *err);
/* device.c. Asks the backend of `io_spec` for alignment, flags, domain and facts. Errors: NOTFOUND;
 * the backend's; INVALID, numbers out of range. */
opipe_status opi_device_look(const opi_plan_env *env, opi_device_spec *io_spec,
                             opi_device_facts *out_facts, opipe_error *err);

/* Errors: NOTFOUND; the backend's. */
opipe_status opi_device_open(const opi_plan_env *env, const opi_device_spec *spec,
                             opi_backend_ref *out_backend, opipe_device **out_device,
                             opipe_error *err);

#endif /* OPI_PLAN_ENV_H */
