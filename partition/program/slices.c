/* SPDX-License-Identifier: Apache-2.0 */
/* Token slices of a training plan: which tokens each has, and its graph. */
#include <string.h>

#include "partition/cut/batch.h"
#include "partition/program/model.h"

/* ---- the tokens ---- */

/* The free dimension 1 of the first input that has one which is not the batch. */
static uint32_t find_dim(const opi_plan *plan, const opi_model *file) {
  char buffer[160];
  for (uint32_t i = 0; i < file->graph->n_inputs; ++i) {
    const opi_value *value = &file->graph->values[file->graph->inputs[i]];
    if (value->rank < 2 || value->shape[1] >= 0)
      continue;
    const char *key = opi_batch_dim_key(value, 1, buffer, sizeof buffer);
    if (plan->batch_dim != NULL && opi_is_batch_dim(plan->batch_dim, key))
      continue;
    for (uint32_t d = 0; d < plan->n_dims; ++d) {
      if (strcmp(plan->dims[d].name, key) == 0)
        return d;
    }
  }
  return OPIPE_NONE;
}

static opipe_status place_slices(const opi_plan *plan, int64_t n_tokens, opi_variant_slice *slices,
                                 opipe_error *err) {
  const int64_t n = plan->n_slices;
  int64_t at = 0;
  for (int64_t k = 0; k < n; ++k) {
    slices[k].first = at;
    slices[k].length = plan->slice_lengths != NULL ? (int64_t)plan->slice_lengths[k]
                                                   : n_tokens / n + (k < n_tokens % n);
    at += slices[k].length;
    if (slices[k].length < 1) {
      return opi_fail(err, OPIPE_E_INVALID, "schedule '%s': %lld slices of %lld tokens",
                      plan->schedule, (long long)n, (long long)n_tokens);
    }
  }
  if (at == n_tokens)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "schedule '%s': the slices have %lld tokens, the model's sequences %lld",
                  plan->schedule, (long long)at, (long long)n_tokens);
}

opipe_status opi_slices_scale(const opi_model *file, opi_plan *plan, opi_arena *arena,
                              opipe_error *err) {
  const uint32_t dim = plan->slice_lengths == NULL ? OPIPE_NONE : find_dim(plan, file);
  uint64_t whole = 0, at = 0, before = 0;
  if (dim == OPIPE_NONE || plan->dims[dim].value < 0)
    return OPIPE_OK;
  const uint64_t n_tokens = (uint64_t)plan->dims[dim].value;
  for (uint32_t k = 0; k < plan->n_slices; ++k)
    whole += plan->slice_lengths[k];
  if (whole == n_tokens || whole == 0 || n_tokens > UINT32_MAX)
    return OPIPE_OK;
  uint32_t *lengths = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_slices);
  if (lengths == NULL)
    return opi_fail_nomem(err, plan->n_slices * sizeof *lengths, "token slices");
  for (uint32_t k = 0; k < plan->n_slices; ++k) {
    at += plan->slice_lengths[k];
    const uint64_t end = (2 * at * n_tokens + whole) / (2 * whole);
    lengths[k] = (uint32_t)(end - before);
    before = end;
  }
  plan->slice_lengths = lengths;
  return OPIPE_OK;
}

static const char *output_name(const opi_plan *plan, const opi_bound *bound) {
  const opi_graph *g = bound->graph;
  if (plan->train->loss.output != NULL)
    return plan->train->loss.output;
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    if (opi_dtype_is_float(g->values[g->outputs[o]].dtype))
      return g->values[g->outputs[o]].name;
  }
  return "";
}

/* Exporters name the tokens of each input apart: further dimensions behind the first, of the same
 * length and no batch. */
static bool is_twin(const opi_plan *plan, const opi_model *file, uint32_t dim, uint32_t other) {
  char buffer[160];
  bool behind = false;
  if (other == dim || plan->dims[other].value != plan->dims[dim].value ||
      (plan->batch_dim != NULL && opi_is_batch_dim(plan->batch_dim, plan->dims[other].name)))
    return false;
  for (uint32_t i = 0; i < file->graph->n_inputs; ++i) {
    const opi_value *value = &file->graph->values[file->graph->inputs[i]];
    for (int32_t a = 0; a < value->rank; ++a) {
      if (value->shape[a] >= 0 ||
          strcmp(opi_batch_dim_key(value, (uint32_t)a, buffer, sizeof buffer),
                 plan->dims[other].name) != 0)
        continue;
      if (a == 0)
        return false;
      behind = true;
    }
  }
  return behind;
}

/* Where the values of `whole` have their tokens: dimension `dim` of the plan, with its twins or
 * without, told by a second graph with one token less. */
static opipe_status compare_lengths(const opi_plan *plan, const opi_model *file,
                                    const opi_bind_options *base, const opi_bound *whole,
                                    int64_t rows, uint32_t dim, bool twins, opi_tokens **out_tokens,
                                    opipe_error *err) {
  const int64_t n = plan->dims[dim].value;
  const size_t n_bytes = plan->n_dims * sizeof *plan->dims;
  opi_plan shorter = *plan;
  opi_bound *other = NULL;
  shorter.dims = opi_alloc_zero(plan->allocator, 1, n_bytes);
  if (shorter.dims == NULL)
    return opi_fail_nomem(err, n_bytes, "token slices");
  memcpy(shorter.dims, plan->dims, n_bytes);
  for (uint32_t d = 0; d < plan->n_dims; ++d)
    shorter.dims[d].value -= d == dim || (twins && is_twin(plan, file, dim, d));
  opipe_status status = opi_plan_bind(&shorter, file, base, rows, &other, err);
  if (status == OPIPE_OK)
    status = opi_tokens_find(whole, n, other, n - 1, plan->allocator, out_tokens, err);
  opi_bound_free(other);
  opi_free(plan->allocator, shorter.dims, n_bytes);
  return status;
}

/* With the twins first: where they are another length by chance, without. */
static opipe_status find_tokens(const opi_plan *plan, const opi_model *file,
                                const opi_bind_options *base, const opi_bound *whole, int64_t rows,
                                uint32_t dim, opi_tokens **out_tokens, opipe_error *err) {
  bool twins = false;
  for (uint32_t d = 0; d < plan->n_dims; ++d)
    twins = twins || is_twin(plan, file, dim, d);
  if (twins && compare_lengths(plan, file, base, whole, rows, dim, true, out_tokens, NULL) >= 0)
    return OPIPE_OK;
  return compare_lengths(plan, file, base, whole, rows, dim, false, out_tokens, err);
}

static opipe_status cut_tokens(const opi_plan *plan, const opi_bind_options *base,
                               const opi_tokens *tokens, uint32_t n_slices, opi_variant *variant,
                               opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t k = 0; k < n_slices && status == OPIPE_OK; ++k) {
    opi_variant_slice *slice = &variant->slices[k];
    status = opi_slice_tokens(tokens, output_name(plan, variant->bound), slice->first,
                              slice->length, base->evaluator, plan->allocator, &slice->tokens, err);
  }
  return status;
}

opipe_status opi_slices_cut(const opi_plan *plan, const opi_model *file,
                            const opi_bind_options *base, opi_variant *variant,
                            opi_cut_model *model, opipe_error *err) {
  const uint32_t dim = find_dim(plan, file);
  opi_tokens *tokens = NULL;
  if (dim == OPIPE_NONE || plan->train->loss.kind == OPI_LOSS_OUTPUT) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "schedule '%s' slices tokens: %s", plan->schedule,
                    dim == OPIPE_NONE ? "no input has a free token dimension (its second)"
                                      : "a loss inside the graph judges whole sequences");
  }
  model->n_tokens = plan->dims[dim].value;
  OPI_TRY(place_slices(plan, model->n_tokens, variant->slices, err));
  opipe_status status =
      find_tokens(plan, file, base, variant->bound, variant->rows, dim, &tokens, err);
  if (status == OPIPE_OK)
    status = cut_tokens(plan, base, tokens, model->n_slices, variant, err);
  opi_tokens_free(tokens);
  return status < 0 ? opi_error_prefix(err, "schedule '%s' slices tokens: ", plan->schedule)
                    : OPIPE_OK;
}

static bool drops(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_RANDOM;
}

opipe_status opi_token_axes_find(const opi_plan *plan, const opi_model *file,
                                 const opi_bind_options *base, int64_t rows, const opi_bound *whole,
                                 opi_cut_model *model, opipe_error *err) {
  const opi_graph *g = whole->graph;
  opi_token_axes *axes = &model->token_axes;
  opi_tokens *tokens = NULL;
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->n_nodes; ++i)
    n += drops(&g->nodes[i]);
  const uint32_t dim = n == 0 ? OPIPE_NONE : find_dim(plan, file);
  if (dim == OPIPE_NONE || plan->dims[dim].value < 2)
    return OPIPE_OK;
  axes->list = OPI_ARENA_ARRAY(&model->arena, opi_token_axis, n);
  if (axes->list == NULL)
    return opi_fail_nomem(err, n * sizeof *axes->list, "token axes");
  /* A model whose graph depends on the number of tokens cannot be sliced: its masks need no token.
   */
  const opipe_status status = find_tokens(plan, file, base, whole, rows, dim, &tokens, err);
  for (uint32_t i = 0; i < g->n_nodes && status == OPIPE_OK; ++i) {
    if (!drops(&g->nodes[i]))
      continue;
    const int8_t *d = tokens->dims[g->nodes[i].in[0]];
    if (d[0] >= 0 && d[1] < 0)
      axes->list[axes->n++] = (opi_token_axis){g->nodes[i].name, d[0]};
  }
  opi_tokens_free(tokens);
  return status == OPIPE_E_NOMEM ? status : OPIPE_OK;
}
