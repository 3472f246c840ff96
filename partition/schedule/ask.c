/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a schedule through a plan that holds only the question. Times are the costs in millionths.
 */
#include "partition/schedule/order_search.h"

#include <string.h>

#include "partition/schedule/compute_order.h"

static const double NS_PER_UNIT = 1e6;
enum { STASH_BYTES = 1 << 20 }; /* the same for every stage */

static opipe_status set_costs(opi_plan *plan, const opi_question *q, opipe_error *err) {
  const opi_costs *costs = q->costs;
  const uint32_t n = plan->decided.n_stages;
  OPI_TRY(opi_costs_check(costs, n, err));
  plan->predicted.times.stage_ns = OPI_ARENA_ARRAY(&plan->arena, double, n);
  plan->predicted.times.input_ns = OPI_ARENA_ARRAY(&plan->arena, double, n);
  plan->predicted.times.weight_ns = OPI_ARENA_ARRAY(&plan->arena, double, n);
  plan->predicted.stage_stash_bytes = OPI_ARENA_ARRAY(&plan->arena, uint64_t, n);
  if (plan->predicted.times.stage_ns == NULL || plan->predicted.times.input_ns == NULL ||
      plan->predicted.times.weight_ns == NULL || plan->predicted.stage_stash_bytes == NULL)
    return opi_fail_nomem(err, n * sizeof(double), "costs");
  for (uint32_t s = 0; s < n; ++s) {
    plan->predicted.times.stage_ns[s] =
        NS_PER_UNIT * (costs->stage_forward == NULL ? costs->forward : costs->stage_forward[s]);
    plan->predicted.times.input_ns[s] =
        NS_PER_UNIT * (costs->stage_input == NULL ? costs->input : costs->stage_input[s]);
    plan->predicted.times.weight_ns[s] =
        NS_PER_UNIT * (costs->stage_weight == NULL ? costs->weight : costs->stage_weight[s]);
    plan->predicted.stage_stash_bytes[s] = q->stash_bytes == NULL ? STASH_BYTES : q->stash_bytes[s];
  }
  return OPIPE_OK;
}

static opipe_status order_of_plan(const opi_problem *problem, const opi_decision *plan,
                                  const opipe_allocator *allocator, opi_order **out_order,
                                  opipe_error *err) {
  opi_do_list *list = NULL;
  OPI_TRY(opi_do_list_from_records(problem, plan->actions, plan->n_actions, allocator, &list, err));
  const opipe_status status = opi_pass_check(problem, list, allocator, err);
  if (status == OPIPE_OK)
    return opi_order_make(problem, list, allocator, out_order, err);
  opi_do_list_free(list);
  return status;
}

/* Makes a chain of the laid-out stages, if it has few enough actions. */
static opipe_status chain_of_plan(opi_plan *plan, opi_problem *out, opipe_error *err) {
  opi_stage_edge *edges = OPI_ARENA_ARRAY(&plan->arena, opi_stage_edge, plan->decided.n_stages);
  if (edges == NULL)
    return opi_fail_nomem(err, plan->decided.n_stages * sizeof(*edges), "edges");
  opi_edges_chain(edges, plan->decided.n_stages);
  *out = opi_plan_problem(&plan->decided);
  out->edges = edges;
  out->n_edges = plan->decided.n_stages - 1;
  return opi_lower_limit(out, err);
}

opipe_status opi_order_lay_out(const opi_plugins *plugins, const opi_question *q, opi_plan *plan,
                               opi_schedule_ref *out_schedule, opipe_error *err) {
  const opi_train_spec spec = {.replicas = q->replicas,
                               .n_rank_replicas = q->n_rank_replicas,
                               .rank_replicas = q->rank_replicas};
  const char *name = NULL;
  if (q->n_microbatches == 0 || (q->n_ranks == 0 && q->n_stages == 0)) {
    return opi_fail(err, OPIPE_E_INVALID, "%u ranks, %u stages, %u micro-batches", q->n_ranks,
                    q->n_stages, q->n_microbatches);
  }
  OPI_TRY(opi_schedule_split(q->schedule, &plan->arena, &name, &plan->decided.schedule.settings,
                             &plan->decided.schedule.n_settings, err));
  plan->decided.schedule.name = name;
  plan->decided.n_microbatches = q->n_microbatches;
  plan->decided.train = NULL;
  if (q->mode != OPIPE_MODE_FORWARD) {
    plan->decided.train = opi_arena_copy(&plan->arena, &spec, sizeof spec);
    if (plan->decided.train == NULL)
      return opi_fail_nomem(err, sizeof spec, "a question");
  } else {
    plan->decided.copies = q->n_rank_replicas != 0 ? 0 : q->replicas;
  }
  OPI_TRY(plugins->schedule(plugins->ctx, name, out_schedule, err));
  OPI_TRY(opi_schedule_check_settings(out_schedule, plan->decided.schedule.settings,
                                      plan->decided.schedule.n_settings, err));
  const opi_layout_wish wish = {.n_ranks = q->n_ranks,
                                .n_stages = q->n_stages,
                                .n_rank_replicas = q->n_rank_replicas,
                                .rank_replicas = q->rank_replicas};
  return opi_schedule_layout(out_schedule, &wish, &plan->decided, &plan->arena, err);
}

static opipe_status ask(const opi_plugins *plugins, const opi_question *q, bool cells,
                        opi_plan *plan, const opipe_allocator *allocator, opi_order **out_order,
                        opipe_error *err) {
  opi_schedule_ref schedule;
  opi_problem problem;
  OPI_TRY(opi_order_lay_out(plugins, q, plan, &schedule, err));
  OPI_TRY(chain_of_plan(plan, &problem, err));
  OPI_TRY(set_costs(plan, q, err));
  const double transfer = q->costs->comm * NS_PER_UNIT;
  const opi_order_wish wish = {
      .transfer_ns = transfer > 0 && transfer < 1e18 ? (uint64_t)transfer : 0,
      .free_bytes = q->free_bytes,
      .cells = cells};
  OPI_TRY(opi_schedule_order(&schedule, &wish, plan, err));
  const opipe_status status = order_of_plan(&problem, &plan->decided, allocator, out_order, err);
  if (status < 0)
    (void)opi_error_prefix(err, "schedule '%s': ", plan->decided.schedule.name);
  return status;
}

/* cells: asks for the cells of the schedule's table. Errors then also: UNSUPPORTED, it has no
 * table. */
static opipe_status ask_cells(const opi_plugins *plugins, const opi_question *question, bool cells,
                              const opipe_allocator *allocator, opi_order **out_order,
                              opipe_error *err) {
  opi_plan *plan = NULL;
  OPI_TRY(opi_plan_new(allocator, &plan, err));
  const opipe_status status = ask(plugins, question, cells, plan, allocator, out_order, err);
  opi_plan_free(plan);
  return status;
}

opipe_status opi_order_ask(const opi_plugins *plugins, const opi_question *question,
                           const opipe_allocator *allocator, opi_order **out_order,
                           opipe_error *err) {
  return ask_cells(plugins, question, false, allocator, out_order, err);
}

opipe_status opi_order_ask_aligned(const opi_plugins *plugins, const opi_question *question,
                                   const opipe_allocator *allocator, opi_order **out_order,
                                   opipe_error *err) {
  opi_order *order = NULL;
  if (question->mode == OPIPE_MODE_TRAIN) {
    const opipe_status status = ask_cells(plugins, question, true, allocator, out_order, err);
    if (status != OPIPE_E_UNSUPPORTED)
      return status;
  }
  OPI_TRY(opi_order_ask(plugins, question, allocator, &order, err));
  const opipe_status status = opi_order_align(order, allocator, out_order, err);
  opi_order_free(order);
  if (status < 0) {
    (void)opi_error_prefix(err, "schedule '%.*s': ", (int)strcspn(question->schedule, ":"),
                           question->schedule);
  }
  return status;
}

/* ---- names that belong to no plugin ---- */

bool opi_is_search(const char *spec) {
  return spec != NULL && strncmp(spec, "search", 6) == 0 && (spec[6] == '\0' || spec[6] == ':');
}

bool opi_is_baseline(const char *schedule) {
  return schedule != NULL && (strcmp(schedule, "gems") == 0 || strcmp(schedule, "pipedream") == 0);
}
