/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a schedule plugin for its layout and its compute order, checking every answer. */
#ifndef OPI_COMPUTE_ORDER_H
#define OPI_COMPUTE_ORDER_H

#include "partition/plan/plan.h"
#include "partition/schedule/actions.h"

/* The plugin that a schedule's name means: "file" is that of texts. */
const char *opi_schedule_plugin(const char *name);
/* "name:key=value,key=value" -> name and settings in `arena`; keys and values are checked against
 * the plugin's options. "file:PATH" is the schedule `csv` with the file's order, as CSV, in its
 * setting `text`. */
opipe_status opi_schedule_split(const char *spec, opi_arena *arena, const char **out_name,
                                opipe_schedule_setting **out_settings, uint32_t *out_n,
                                opipe_error *err);
/* The options that the schedule lists, each with a key. */
opipe_status opi_schedule_options(const opi_schedule_ref *schedule,
                                  const opipe_schedule_option **out_options, uint32_t *out_n,
                                  opipe_error *err);
opipe_status opi_schedule_check_settings(const opi_schedule_ref *schedule,
                                         const opipe_schedule_setting *settings, uint32_t n,
                                         opipe_error *err);

/* Data parallel copies of the whole layout: copy k has ranks and replicas of its own. */
static inline uint32_t opi_plan_copies(const opi_plan *plan) {
  const opi_train_spec *spec = plan->train;
  if (spec == NULL)
    return plan->copies == 0 ? 1 : plan->copies;
  return spec->replicas == 0 || spec->n_rank_replicas != 0 ? 1 : spec->replicas;
}
/* Micro-batches of copy k: they differ by at most one, the larger shares first. */
static inline uint32_t opi_plan_copy_share(const opi_plan *plan, uint32_t k) {
  const uint32_t n = opi_plan_copies(plan);
  if (plan->in_turn)
    return k == 0 ? plan->n_microbatches : 0;
  return plan->n_microbatches / n + (k < plan->n_microbatches % n);
}

/* What the plan's records are about, in the action language; without edges. */
opi_problem opi_plan_problem(const opi_plan *plan);

/* layout.c. Calls layout(): sets plan->n_ranks, n_stages, n_replicas, instance_rank, shares,
 * in_flight and the like. n_ranks or n_stages may be 0 (not both, unless the spec lists replicas).
 * Forward mode: one slice, one part. */
opipe_status opi_schedule_layout(const opi_schedule_ref *schedule, uint32_t n_ranks,
                                 uint32_t n_stages, opi_plan *plan, opipe_error *err);

/* LIMIT where no order of the plan's micro-batches can be listed; before one is made. */
opipe_status opi_schedule_limit(const opi_plan *plan, opipe_error *err);
/* Calls plan() with the plan's stage_ns: sets plan->actions and rank_first. A record out of range
 * is an error naming it. */
opipe_status opi_schedule_order(const opi_schedule_ref *schedule, opi_plan *plan, opipe_error *err);
/* The same with a modelled time of messages between ranks; `cells`: with the idle cells of the
 * schedule's table. Errors then also: UNSUPPORTED, it has none. */
opipe_status opi_schedule_order_over(const opi_schedule_ref *schedule, opi_plan *plan,
                                     uint64_t transfer_ns, bool cells, opipe_error *err);

#endif /* OPI_COMPUTE_ORDER_H */
