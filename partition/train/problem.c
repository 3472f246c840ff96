/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule's records as the action language sees them (partition/schedule/actions.h): the
 * problem with the model's own edges between stages, where its passes put reductions, and when the
 * simulator has a double-buffered body run.
 */
#include <string.h>

#include "partition/simulate/events.h"
#include "partition/train/model.h"

/* Pairs of stages that exchange activations, pieces put together. */
static opipe_status find_edges(const opi_plan *plan, const opi_train_model *model, opi_arena *arena,
                               opi_problem *problem, opipe_error *err) {
  const opi_cut *cut = model->variants[0].slices[0].cut;
  const size_t n = (size_t)plan->n_stages * plan->n_stages;
  bool *seen = OPI_ARENA_ARRAY(arena, bool, n);
  opi_stage_edge *edges = OPI_ARENA_ARRAY(arena, opi_stage_edge, cut->n_routes);
  if (seen == NULL || edges == NULL)
    return opi_fail_nomem(err, n, "a schedule's edges");
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    const uint32_t src = cut->routes[r].src_stage, dst = cut->routes[r].dst_stage;
    if (src >= dst || seen[src * plan->n_stages + dst])
      continue;
    seen[src * plan->n_stages + dst] = true;
    edges[problem->n_edges++] = (opi_stage_edge){.src = src, .dst = dst};
  }
  problem->edges = edges;
  return OPIPE_OK;
}

opipe_status opi_train_problem(const opi_plan *plan, const opi_train_model *model, opi_arena *arena,
                               opi_problem *out_problem, opipe_error *err) {
  *out_problem = (opi_problem){.n_ranks = plan->n_ranks,
                               .n_stages = plan->n_stages,
                               .n_replicas = plan->n_replicas,
                               .n_microbatches = plan->n_microbatches,
                               .n_slices = plan->n_slices == 0 ? 1 : plan->n_slices,
                               .n_parts = plan->n_parts == 0 ? 1 : plan->n_parts,
                               .mode = OPIPE_MODE_TRAIN,
                               .versions = plan->versions,
                               .sync = plan->sync,
                               .instance_rank = plan->instance_rank,
                               .stage_shares = plan->shares};
  return find_edges(plan, model, arena, out_problem, err);
}

/* ---- reductions ---- */

/* Both lists have the plan's records in the same order. */
static void read_reductions(const opi_plan *plan, const opi_do_list *list, uint32_t *out_after) {
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    uint32_t next = plan->rank_first[rank];
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &list->items[i];
      if (opi_do_is_compute(a->kind))
        ++next;
      else if (a->kind == OPI_DO_REDUCE && next > plan->rank_first[rank])
        out_after[a->stage * plan->n_replicas + a->replica] = next - 1;
    }
  }
}

static opipe_status reduce(const opi_plan *plan, const opi_train_model *model, opi_arena *scratch,
                           uint32_t *out_after, opipe_error *err) {
  const opipe_allocator *allocator = scratch->allocator;
  opi_problem problem;
  opi_do_list *order = NULL, *reduced = NULL;
  OPI_TRY(opi_train_problem(plan, model, scratch, &problem, err));
  opipe_status status =
      opi_do_list_from_records(&problem, plan->actions, plan->n_actions, allocator, &order, err);
  if (status == OPIPE_OK)
    status = opi_pass_check(&problem, order, allocator, err);
  if (status == OPIPE_OK)
    status = opi_pass_reduce(&problem, order, false, allocator, &reduced, err);
  if (status == OPIPE_OK)
    read_reductions(plan, reduced, out_after);
  opi_do_list_free(reduced);
  opi_do_list_free(order);
  return status < 0 ? opi_error_prefix(err, "schedule '%s': ", plan->schedule) : OPIPE_OK;
}

opipe_status opi_train_reductions(const opi_plan *plan, opi_train_model *model, opipe_error *err) {
  const size_t n = (size_t)plan->n_stages * plan->n_replicas;
  opi_arena scratch;
  model->reduce_after = OPI_ARENA_ARRAY(&model->arena, uint32_t, n);
  if (model->reduce_after == NULL)
    return opi_fail_nomem(err, n * sizeof(uint32_t), "reductions");
  memset(model->reduce_after, 0xff, n * sizeof(uint32_t));
  if (plan->actions == NULL || plan->sync == OPIPE_SYNC_END ||
      plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED)
    return OPIPE_OK;
  opi_arena_init(&scratch, plan->allocator, 0);
  const opipe_status status = reduce(plan, model, &scratch, model->reduce_after, err);
  opi_arena_release(&scratch);
  return status;
}

/* ---- times of a body ---- */

opipe_status opi_train_timeline(const opi_plan *plan, const opi_train_model *model,
                                opi_arena *arena, double *out_start_ns, double *out_end_ns,
                                opipe_error *err) {
  const opi_cut *cut = model->variants[0].slices[0].cut;
  opi_problem problem;
  opi_timeline line;
  opi_do_list *list = NULL;
  opi_costs costs = {.forward = 1,
                     .input = 1,
                     .weight = 1,
                     .stage_forward = plan->stage_ns,
                     .stage_input = plan->input_ns,
                     .stage_weight = plan->weight_ns};
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    const double ns = (double)opi_link_ns(&plan->link, cut->routes[r].n_bytes);
    costs.comm = ns > costs.comm ? ns : costs.comm;
  }
  OPI_TRY(opi_train_problem(plan, model, arena, &problem, err));
  OPI_TRY(opi_do_list_from_records(&problem, plan->actions, plan->n_actions, arena->allocator,
                                   &list, err));
  const opipe_status status = opi_timeline_build(&problem, list, &costs, arena, &line, err);
  double first = line.makespan;
  for (uint32_t a = 0; status == OPIPE_OK && a < plan->n_actions; ++a)
    first = line.start[a] < first ? line.start[a] : first;
  for (uint32_t a = 0; status == OPIPE_OK && a < plan->n_actions; ++a) {
    out_start_ns[a] = line.start[a] - first;
    out_end_ns[a] = line.end[a] - first;
  }
  opi_do_list_free(list);
  return status;
}
