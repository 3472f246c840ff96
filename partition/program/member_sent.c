/* SPDX-License-Identifier: Apache-2.0 */
/* Between which stages the members of tensor groups send parts of whole values: each sends its own
 * to its opposite, and the receiving members gather (loader/shard/sent.c). A property of the link:
 * not where a tensor is produced in the receiver's memory, nor where both stages are on one rank.
 */
#include "partition/program/batch.h"
#include "partition/program/model.h"

/* Whether any message from one stage to the other, of any replica and member, is over the link. A
 * stage has one graph for all of them. */
static bool is_linked(const opi_decision *plan, uint32_t from, uint32_t to) {
  for (uint32_t i = 0; i < plan->n_replicas; ++i) {
    const uint32_t a = opi_plan_rank(plan, from, i), b = opi_plan_rank(plan, to, i);
    if (a == OPIPE_NONE || b == OPIPE_NONE || a == b)
      continue;
    for (uint32_t k = 0; k < opi_plan_width(plan); ++k) {
      if (!opi_plan_edge_is_direct(plan, a + k, b + k))
        return true;
    }
  }
  return false;
}

opipe_status opi_members_scatter(const opi_decision *plan, opi_cut_model *model, opipe_error *err) {
  const uint32_t n = plan->n_stages;
  bool any = false;
  if (!plan->division.scattered || model->n_members == 1)
    return OPIPE_OK;
  bool *list = OPI_ARENA_ARRAY(&model->arena, bool, (size_t)n *n);
  if (list == NULL)
    return opi_fail_nomem(err, (size_t)n * n, "what members send");
  for (uint32_t from = 0; from < n; ++from) {
    for (uint32_t to = from + 1; to < n; ++to) {
      list[from * n + to] = is_linked(plan, from, to);
      any = any || list[from * n + to];
    }
  }
  model->scatters = any ? list : NULL;
  return OPIPE_OK;
}

opipe_status opi_members_samples(const opi_decision *plan, const opi_model *file,
                                 const opi_graph *g, opi_arena *arena, const opi_carry **out,
                                 opipe_error *err) {
  *out = NULL;
  if (plan->binding.batch_dim == NULL)
    return OPIPE_OK;
  opi_carry *in = OPI_ARENA_ARRAY(arena, opi_carry, (size_t)g->n_inputs + 1);
  opi_carry *all = OPI_ARENA_ARRAY(arena, opi_carry, (size_t)g->n_values + 1);
  bool *mixed = OPI_ARENA_ARRAY(arena, bool, (size_t)g->n_values + 1);
  if (in == NULL || all == NULL || mixed == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  opi_batch_inputs(plan, file, g, -1, in);
  *out = all;
  return opi_carry_follow(g, plan->binding.batch, in, all, mixed, err);
}
