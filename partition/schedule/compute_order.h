/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a schedule plugin for its layout and its compute order; checks every answer. */
#ifndef OPI_COMPUTE_ORDER_H
#define OPI_COMPUTE_ORDER_H

#include "partition/plan/plan.h"
#include "partition/schedule/actions.h"

/* The plugin that a schedule's name refers to; "file" is the plugin of texts. */
const char *opi_schedule_plugin(const char *name);
/* "name:key=value,key=value" -> name and settings in `arena`; keys and values are checked against
 * the plugin's options. "file:PATH" is the schedule `csv` with the file's order, as CSV, in its
 * setting `text`. */
opipe_status opi_schedule_split(const char *spec, opi_arena *arena, const char **out_name,
                                opipe_schedule_setting **out_settings, uint32_t *out_n,
                                opipe_error *err);
/* The options that the schedule lists, each with its key. */
opipe_status opi_schedule_options(const opi_schedule_ref *schedule,
                                  const opipe_schedule_option **out_options, uint32_t *out_n,
                                  opipe_error *err);
opipe_status opi_schedule_check_settings(const opi_schedule_ref *schedule,
                                         const opipe_schedule_setting *settings, uint32_t n,
                                         opipe_error *err);

/* Data parallel copies of the whole layout: copy k has ranks and replicas of its own. */
static inline uint32_t opi_plan_copies(const opi_decision *plan) {
  const opi_train_spec *spec = plan->train;
  if (spec == NULL)
    return plan->copies == 0 ? 1 : plan->copies;
  return spec->replicas == 0 || spec->n_rank_replicas != 0 ? 1 : spec->replicas;
}
/* Micro-batches of copy k. Shares differ by at most one, the larger ones first. */
static inline uint32_t opi_plan_copy_share(const opi_decision *plan, uint32_t k) {
  const uint32_t n = opi_plan_copies(plan);
  if (plan->in_turn)
    return k == 0 ? plan->n_microbatches : 0;
  return plan->n_microbatches / n + (k < plan->n_microbatches % n);
}

/* The problem of the plan's records in the action language; without edges. */
opi_problem opi_plan_problem(const opi_decision *plan);

/* The question for a layout. Borrowed. */
typedef struct opi_layout_wish {
  uint32_t n_ranks, n_stages; /* either may be 0; both only if replicas are listed. A tensor group
                                 counts as one rank */
  uint32_t n_rank_replicas;
  const uint32_t *rank_replicas; /* [n_rank_replicas] replicas of every rank (or every stage) of the
                                    schedule, which share each micro-batch; none: the plan's copies
                                    apply */
} opi_layout_wish;
/* layout.c. Calls layout() and sets n_ranks, n_stages, n_replicas, instance_rank, shares, in_flight
 * and so on; arrays lie in `arena`. Forward mode: one slice, one part. */
opipe_status opi_schedule_layout(const opi_schedule_ref *schedule, const opi_layout_wish *wish,
                                 opi_decision *plan, opi_arena *arena, opipe_error *err);

/* LIMIT if no order of the plan's micro-batches can be listed; checked before one is made. */
opipe_status opi_schedule_limit(const opi_decision *plan, opipe_error *err);
/* The question for an order. Borrowed. */
typedef struct opi_order_wish {
  uint64_t transfer_ns;       /* modelled time of a message between ranks */
  const uint64_t *free_bytes; /* [n_ranks of one copy] room for stashes; NULL: no limit */
  bool cells;                 /* with the idle cells of the schedule's table */
} opi_order_wish;
/* Calls plan() with the predicted times and stashes of the stages and sets the decision's actions
 * and rank_first. Errors: INVALID, a record out of range, by name; UNSUPPORTED, cells asked of a
 * schedule without a table; errors of the schedule. */
opipe_status opi_schedule_order(const opi_schedule_ref *schedule, const opi_order_wish *wish,
                                opi_plan *plan, opipe_error *err);

#endif /* OPI_COMPUTE_ORDER_H */
