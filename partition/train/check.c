/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule's records under the action language: the order checked, lowered with the model's own
 * edges between stages, and proven. The executor's lists (lists.c) are made from the same records
 * and matched by number, which is what is proven here.
 */
#include <string.h>

#include "partition/schedule/actions.h"
#include "partition/train/model.h"

/* Pairs of stages that exchange activations, pieces put together. */
static opipe_status find_edges(const opi_plan *plan, const opi_train_model *model,
                               opi_arena *scratch, opi_problem *problem, opipe_error *err) {
  const opi_train_cut *cut = model->variants[0].slices[0].cut;
  const size_t n = (size_t)plan->n_stages * plan->n_stages;
  bool *seen = OPI_ARENA_ARRAY(scratch, bool, n);
  opi_stage_edge *edges = OPI_ARENA_ARRAY(scratch, opi_stage_edge, cut->n_routes);
  if (seen == NULL || edges == NULL)
    return opi_fail_nomem(err, n, "a proof");
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

static opipe_status prove(const opi_plan *plan, const opi_problem *problem, opipe_error *err) {
  const opi_lowering how = {.receive_depth = 0};
  opi_do_list *order = NULL, *lowered = NULL;
  opi_proof proof = {.peak_stash = NULL};
  opipe_status status = opi_do_list_from_records(problem, plan->actions, plan->n_actions,
                                                 plan->allocator, &order, err);
  if (status == OPIPE_OK)
    status = opi_lower_order(problem, order, &how, plan->allocator, &lowered, err);
  if (status == OPIPE_OK)
    status = opi_proof_check(problem, lowered, OPI_RULE_TAG, plan->allocator, &proof, err);
  opi_do_list_free(lowered);
  opi_do_list_free(order);
  return status < 0 ? opi_error_prefix(err, "schedule '%s': ", plan->schedule) : OPIPE_OK;
}

opipe_status opi_train_check(const opi_plan *plan, const opi_train_model *model, opipe_error *err) {
  opi_problem problem = {.n_ranks = plan->n_ranks,
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
  opi_arena scratch;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = find_edges(plan, model, &scratch, &problem, err);
  if (status == OPIPE_OK)
    status = prove(plan, &problem, err);
  opi_arena_release(&scratch);
  return status;
}
