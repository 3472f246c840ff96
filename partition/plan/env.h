/* SPDX-License-Identifier: Apache-2.0 */
/* What making a plan asks, and whom: plugins by id, the model and how it is bound, devices and
 * links that are at hand or described. */
#ifndef OPI_PLAN_ENV_H
#define OPI_PLAN_ENV_H

#include <opipe/host.h>

#include "partition/plan/plan.h"

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

#define OPI_PLAN_FORMAT "onnx-pipe plan 3" /* of plan files */

typedef struct opi_plan_env {
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const opi_plugins *plugins;
  const opi_model *model;
  const opi_bind_options *bind;  /* how the model was bound: pins, flags, evaluator; dims are the
                                    request's (all of them) */
  const opi_bound *bound;        /* what the model was bound to by `bind`; NULL: not at hand */
  const struct opi_costs *costs; /* of the stages in ms (partition/schedule/events.h); NULL: by
                                    their nodes. params->costs is not read */
  /* [n_stages - 1] the last node of every stage but the last (opi_cut_behind): the cut. NULL: it is
   * given or searched */
  const char *const *stage_ends;
  const opi_program_visitor *visitor; /* of programs, when a plan is finished; NULL: none */
  /* for better orders (partition/schedule/order_search.h); NULL: this build has none */
  const struct opi_order_search *search;
  uint64_t (*now_ns)(void);
} opi_plan_env;

/* A transport as plans spell it, "id" or "id:key=value,...": the id in `out_id` (64 bytes), the
 * options as a pointer into `spec`, NULL without. */
opipe_status opi_transport_split(const char *spec, char out_id[64], const char **out_options,
                                 opipe_error *err);

/* Asks the plan's transport, fills decided.link. Errors: NOTFOUND; UNSUPPORTED, what the plan's
 * ranks cannot use (opi_plan_check_link); those of the transport about its options; ABI, numbers
 * out of range. */
opipe_status opi_plan_find_link(const opi_plan_env *env, opi_decision *plan, opipe_error *err);
/* Is the transport that is here the one that the plan was made for? Times may differ. Errors: those
 * of finding it; UNSUPPORTED names what differs, with both values. */
opipe_status opi_plan_compare_link(const opi_plan_env *env, const opi_decision *plan,
                                   opipe_error *err);
/* Can the plan's ranks use its link? Errors: UNSUPPORTED, too few ranks, one thread for all, a rule
 * of matching beyond tag and stream. */
opipe_status opi_plan_check_link(const opi_decision *plan, opipe_error *err);

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

#endif /* OPI_PLAN_ENV_H */
