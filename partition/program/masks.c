/* SPDX-License-Identifier: Apache-2.0 */
/* Follows samples and tokens to the masks of Dropout, so that no cut changes a mask; and makes
 * graphs of inference with such masks. */
#include <string.h>

#include "partition/program/batch.h"
#include "partition/program/model.h"

/* The first dimension that is a multiple of `rows`; 0: none. */
static int32_t divided_by(const opi_value *value, int64_t rows) {
  for (int32_t d = 0; rows > 0 && d < value->rank; ++d) {
    if (value->shape[d] % rows == 0)
      return d;
  }
  return 0;
}

void opi_place_batch(const opi_decision *plan, const opi_model *model, const opi_graph *g,
                     opi_carry *in) {
  const int32_t earlier = -2;
  int64_t rows = 0;
  opi_batch_inputs(plan, model, g, earlier, in);
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const opi_value *value = &g->values[g->inputs[i]];
    if (in[i].axis >= 0 && rows == 0)
      rows = value->shape[in[i].axis];
    if (in[i].axis != earlier)
      continue;
    in[i].axis = divided_by(value, rows);
    if (rows > 0 && value->rank > 0 && value->shape[in[i].axis] % rows == 0)
      in[i].inner = value->shape[in[i].axis] / rows;
  }
}

opipe_status opi_token_carry_of(const opi_token_axes *axes, const opi_graph *g, opi_arena *scratch,
                                opi_carry **out_carry, opipe_error *err) {
  *out_carry = NULL;
  if (axes == NULL || axes->n == 0)
    return OPIPE_OK;
  opi_carry *all = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_values);
  if (all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the token axis");
  for (uint32_t v = 0; v < g->n_values; ++v)
    all[v] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const bool drops = opi_op_of(&g->nodes[n])->kind == OPI_KIND_RANDOM;
    for (uint32_t i = 0; drops && i < axes->n; ++i) {
      if (strcmp(axes->list[i].node, g->nodes[n].name) == 0)
        all[g->nodes[n].in[0]].axis = axes->list[i].axis;
    }
  }
  *out_carry = all;
  return OPIPE_OK;
}

opipe_status opi_member_carry(const opi_train_member *member, opi_arena *scratch,
                              opi_carry **io_carry, opipe_error *err) {
  if (member == NULL || member->of->n_rows == 0 || *io_carry == NULL)
    return OPIPE_OK;
  const uint32_t n = member->of->bound->graph->n_values;
  opi_carry *own = OPI_ARENA_ARRAY(scratch, opi_carry, n);
  if (own == NULL)
    return opi_fail_nomem(err, n * sizeof *own, "an axis in a member's graph");
  OPI_TRY(opi_shard_carry(member->whole->graph, member->of, *io_carry, own, err));
  *io_carry = own;
  return OPIPE_OK;
}

/* ---- inference ---- */

typedef struct binding {
  const opi_decision *plan;
  const opi_model *model;
  const opi_bind_options *base;
} binding;

static opipe_status bind_rows(void *ctx, int64_t rows, opi_bound **out_bound, opipe_error *err) {
  const binding *b = ctx;
  return opi_plan_bind(b->plan, b->model, b->base, rows, out_bound, err);
}

/* Follows samples through the values of `bound`. The result does not depend on whether the plan
 * cuts rows: all plans have the same masks. */
static opipe_status follow_samples(const binding *b, const opi_bound *bound,
                                   const opi_known_axis *known, opi_arena *scratch,
                                   opi_carry **out_carry, opipe_error *err) {
  const opi_graph *g = bound->graph;
  opi_carry *in = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_inputs);
  opi_carry *all = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_values);
  *out_carry = NULL;
  if (in == NULL || all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  opi_place_batch(b->plan, b->model, g, in);
  const opipe_status status = opi_carry_axis(g, known, in, all, err);
  if (status == OPIPE_OK)
    *out_carry = all;
  return status;
}

/* *out_carry NULL: samples do not run through `whole`. Then no plan cuts rows, and masks count
 * across all of them. */
static opipe_status samples_of(const binding *b, const opi_bound *whole, const opi_bound *bound,
                               opi_arena *scratch, opi_carry **out_carry, opipe_error *err) {
  const opi_known_axis *known = b->plan->binding.batch;
  *out_carry = NULL;
  if (b->plan->binding.batch_dim == NULL)
    return OPIPE_OK;
  if (known == NULL && opi_batch_learn(b->plan, b->model, whole->graph, bind_rows, (void *)b,
                                       scratch, &known, NULL) == OPIPE_E_NOMEM)
    return opi_fail_nomem(err, sizeof *b, "the batch axis");
  const opipe_status status = follow_samples(b, whole, known, scratch, out_carry, NULL);
  if (status == OPIPE_E_NOMEM)
    return opi_fail_nomem(err, sizeof *b, "the batch axis");
  return status < 0 || bound == whole ? OPIPE_OK
                                      : follow_samples(b, bound, known, scratch, out_carry, err);
}

static bool draws(const opi_graph *g) {
  uint32_t n = 0;
  while (n < g->n_nodes && !opi_node_draws(&g->nodes[n]))
    ++n;
  return n < g->n_nodes;
}

opipe_status opi_forward_draws(const opi_decision *plan, const opi_model *model,
                               const opi_bind_options *base, const opi_bound *whole,
                               const opi_bound *bound, const opi_token_axes *axes,
                               const opi_train_member *member, opi_arena *arena,
                               opi_variant_slice *io_slice, opipe_error *err) {
  const binding b = {plan, model, base};
  const bool rows = member != NULL && member->of->n_rows != 0;
  const opi_bound *to = rows ? member->whole : bound;
  const opi_bound *from = rows && io_slice->tokens == NULL ? to : whole;
  opi_arena scratch;
  opi_carry *samples = NULL, *tokens = NULL;
  if (!draws(bound->graph))
    return OPIPE_OK;
  uint32_t *scalars = OPI_ARENA_ARRAY(arena, uint32_t, OPI_SCALAR_TABLE);
  if (scalars == NULL)
    return opi_fail_nomem(err, OPI_SCALAR_TABLE * sizeof *scalars, "scalars of the run");
  memset(scalars, 0xff, OPI_SCALAR_TABLE * sizeof *scalars);
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = samples_of(&b, from, to, &scratch, &samples, err);
  if (status == OPIPE_OK)
    status = opi_token_carry_of(axes, to->graph, &scratch, &tokens, err);
  if (status == OPIPE_OK)
    status = opi_member_carry(member, &scratch, &samples, err);
  if (status == OPIPE_OK)
    status = opi_member_carry(member, &scratch, &tokens, err);
  if (status == OPIPE_OK)
    status = opi_graph_draws(bound->graph, samples, tokens, arena, &io_slice->graph, scalars, err);
  io_slice->scalars = scalars;
  opi_arena_release(&scratch);
  return status;
}
