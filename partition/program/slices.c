/* SPDX-License-Identifier: Apache-2.0 */
/* Token slices: their tokens and their graphs. */
#include <string.h>

#include "partition/program/batch.h"
#include "partition/program/model.h"

/* ---- the tokens ---- */

/* The free dimension 1 of the first input that has one other than the batch. */
static uint32_t find_dim(const opi_decision *plan, const opi_model *file) {
  char buffer[160];
  for (uint32_t i = 0; i < file->graph->n_inputs; ++i) {
    const opi_value *value = &file->graph->values[file->graph->inputs[i]];
    if (value->rank < 2 || value->shape[1] >= 0)
      continue;
    const char *key = opi_batch_dim_key(value, 1, buffer, sizeof buffer);
    if (plan->binding.batch_dim != NULL && opi_is_batch_dim(plan->binding.batch_dim, key))
      continue;
    for (uint32_t d = 0; d < plan->binding.n_dims; ++d) {
      if (strcmp(plan->binding.dims[d].name, key) == 0)
        return d;
    }
  }
  return OPIPE_NONE;
}

static opipe_status place_slices(const opi_decision *plan, int64_t n_tokens,
                                 opi_variant_slice *slices, opipe_error *err) {
  const int64_t n = plan->n_slices;
  const uint32_t width = opi_plan_width(plan);
  int64_t at = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t length = plan->slice_lengths != NULL ? (int64_t)plan->slice_lengths[k]
                                                       : n_tokens / n + (k < n_tokens % n);
    for (uint32_t i = 0; i < width; ++i) {
      slices[k * width + i].first = at;
      slices[k * width + i].length = length;
    }
    at += length;
    if (length < 1) {
      return opi_fail(err, OPIPE_E_INVALID, "schedule '%s': %lld slices of %lld tokens",
                      plan->schedule.name, (long long)n, (long long)n_tokens);
    }
  }
  if (at == n_tokens)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "schedule '%s': the slices have %lld tokens, the model's sequences %lld",
                  plan->schedule.name, (long long)at, (long long)n_tokens);
}

/* Scales given lengths, made for another number of tokens, in the same proportions; some may become
 * 0. */
static opipe_status scale_lengths(opi_decision *plan, uint64_t n_tokens, opi_arena *arena,
                                  opipe_error *err) {
  uint64_t whole = 0, at = 0, before = 0;
  for (uint32_t k = 0; plan->slice_lengths != NULL && k < plan->n_slices; ++k)
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

/* Keeps the slices that have tokens. No gradient needs the others. */
static opipe_status drop_empty(opi_decision *plan, uint64_t n_tokens, opi_arena *arena,
                               const uint32_t **out_left, opipe_error *err) {
  uint32_t *left = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_slices), n = 0;
  if (left == NULL)
    return opi_fail_nomem(err, plan->n_slices * sizeof *left, "token slices");
  for (uint32_t k = 0; k < plan->n_slices; ++k) {
    const bool has = plan->slice_lengths == NULL ? k < n_tokens : plan->slice_lengths[k] != 0;
    left[k] = has ? n : OPIPE_NONE;
    if (has && plan->slice_lengths != NULL)
      plan->slice_lengths[n] = plan->slice_lengths[k];
    n += has;
  }
  if (n == plan->n_slices || n == 0)
    return OPIPE_OK;
  plan->n_slices = n;
  *out_left = left;
  return OPIPE_OK;
}

opipe_status opi_slices_scale(const opi_model *file, opi_decision *plan, opi_arena *arena,
                              const uint32_t **out_left, opipe_error *err) {
  const uint32_t dim = plan->n_slices <= 1 ? OPIPE_NONE : find_dim(plan, file);
  *out_left = NULL;
  if (dim == OPIPE_NONE || plan->binding.dims[dim].value < 0)
    return OPIPE_OK;
  const uint64_t n_tokens = (uint64_t)plan->binding.dims[dim].value;
  const uint32_t *given = plan->slice_lengths;
  OPI_TRY(scale_lengths(plan, n_tokens, arena, err));
  const bool fewer =
      plan->slice_lengths == NULL ? n_tokens < plan->n_slices : plan->slice_lengths != given;
  return !opi_plan_trains(plan) && fewer ? drop_empty(plan, n_tokens, arena, out_left, err)
                                         : OPIPE_OK;
}

static const char *output_name(const opi_decision *plan, const opi_bound *bound) {
  const opi_graph *g = bound->graph;
  if (plan->train->loss.output != NULL)
    return plan->train->loss.output;
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    if (opi_dtype_is_float(g->values[g->outputs[o]].dtype))
      return g->values[g->outputs[o]].name;
  }
  return "";
}

/* Exporters name each input's tokens apart: other dimensions after the first, of the same length,
 * that are not the batch. */
static bool is_twin(const opi_decision *plan, const opi_model *file, uint32_t dim, uint32_t other) {
  char buffer[160];
  bool behind = false;
  if (other == dim || plan->binding.dims[other].value != plan->binding.dims[dim].value ||
      (plan->binding.batch_dim != NULL &&
       opi_is_batch_dim(plan->binding.batch_dim, plan->binding.dims[other].name)))
    return false;
  for (uint32_t i = 0; i < file->graph->n_inputs; ++i) {
    const opi_value *value = &file->graph->values[file->graph->inputs[i]];
    for (int32_t a = 0; a < value->rank; ++a) {
      if (value->shape[a] >= 0 ||
          strcmp(opi_batch_dim_key(value, (uint32_t)a, buffer, sizeof buffer),
                 plan->binding.dims[other].name) != 0)
        continue;
      if (a == 0)
        return false;
      behind = true;
    }
  }
  return behind;
}

/* Key masks are as long as the earlier tokens and the current ones together. */
static bool is_total(const opi_decision *plan, uint32_t dim, uint32_t other) {
  const int64_t before = plan->binding.dims[other].value - plan->binding.dims[dim].value;
  bool found = false;
  if (other == dim || before <= 0 ||
      (plan->binding.batch_dim != NULL &&
       opi_is_batch_dim(plan->binding.batch_dim, plan->binding.dims[other].name)))
    return false;
  for (uint32_t d = 0; d < plan->binding.n_dims; ++d)
    found = found || (d != dim && d != other && plan->binding.dims[d].value == before);
  return found;
}

/* The plan's token dimension, whether others follow it, and the second graph's extra tokens. */
typedef struct comparison {
  uint32_t dim;
  bool others;
  int64_t more;
} comparison;

static bool follows(const opi_decision *plan, const opi_model *file, uint32_t dim, uint32_t other) {
  return is_twin(plan, file, dim, other) || is_total(plan, dim, other);
}

/* Finds the token axis of the values of `whole` by a second graph with one token fewer or more. */
static opipe_status compare_lengths(const opi_decision *plan, const opi_model *file,
                                    const opi_bind_options *base, const opi_bound *whole,
                                    int64_t rows, const comparison *by, opi_tokens **out_tokens,
                                    opipe_error *err) {
  const int64_t n = plan->binding.dims[by->dim].value;
  const size_t n_bytes = plan->binding.n_dims * sizeof *plan->binding.dims;
  opi_decision changed = *plan;
  opi_bound *other = NULL;
  changed.binding.dims = opi_alloc_zero(plan->allocator, 1, n_bytes);
  if (changed.binding.dims == NULL)
    return opi_fail_nomem(err, n_bytes, "token slices");
  memcpy(changed.binding.dims, plan->binding.dims, n_bytes);
  for (uint32_t d = 0; d < plan->binding.n_dims; ++d) {
    if (d == by->dim || (by->others && follows(plan, file, by->dim, d)))
      changed.binding.dims[d].value += by->more;
  }
  opipe_status status = opi_plan_bind(&changed, file, base, rows, &other, err);
  if (status == OPIPE_OK)
    status = opi_tokens_find(whole, n, other, n + by->more, plan->allocator, out_tokens, err);
  opi_bound_free(other);
  opi_free(plan->allocator, changed.binding.dims, n_bytes);
  return status;
}

/* First with the dimensions that may follow; if one of them has that length by chance, without
 * them. With one token fewer, then one more: a length that happens to equal another extent makes
 * another graph. */
static opipe_status find_tokens(const opi_decision *plan, const opi_model *file,
                                const opi_bind_options *base, const opi_bound *whole, int64_t rows,
                                uint32_t dim, opi_tokens **out_tokens, opipe_error *err) {
  const comparison plain = {dim, false, -1};
  bool others = false;
  for (uint32_t d = 0; d < plan->binding.n_dims; ++d)
    others = others || follows(plan, file, dim, d);
  for (int64_t more = -1; more <= 1; more += 2) {
    for (uint32_t with = others ? 0 : 1; with < 2; ++with) {
      const comparison by = {dim, with == 0, more};
      if (compare_lengths(plan, file, base, whole, rows, &by, out_tokens, NULL) >= 0)
        return OPIPE_OK;
    }
  }
  return compare_lengths(plan, file, base, whole, rows, &plain, out_tokens, err);
}

/* The outputs that slices must give: the values that the loss judges, or all outputs. */
static opipe_status list_outputs(const opi_decision *plan, const opi_bound *bound, opi_arena *arena,
                                 opi_token_wish *out_wish, opipe_error *err) {
  const opi_graph *g = bound->graph;
  const char **names = OPI_ARENA_ARRAY(arena, const char *, (size_t)g->n_outputs + 1);
  if (names == NULL)
    return opi_fail_nomem(err, g->n_outputs * sizeof *names, "token slices");
  for (uint32_t o = 0; o < g->n_outputs; ++o)
    names[o] = g->values[g->outputs[o]].name;
  if (opi_plan_trains(plan))
    names[0] = output_name(plan, bound);
  *out_wish =
      (opi_token_wish){.outputs = names, .n_outputs = opi_plan_trains(plan) ? 1 : g->n_outputs};
  return OPIPE_OK;
}

/* Packed types are not joined along tokens. */
static opipe_status check_types(const opi_token_slice *slice, opipe_error *err) {
  const opi_graph *g = slice->bound->graph;
  for (uint32_t o = 0; o < slice->n_outputs; ++o) {
    const opi_value *value = &g->values[slice->outputs[o].value];
    if (slice->outputs[o].carry.axis >= 0 && opi_dtype_bits(value->dtype) < 8) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "output '%s' of type %s cannot be put together from slices", value->name,
                      opi_dtype_name(value->dtype));
    }
  }
  return OPIPE_OK;
}

static opipe_status cut_tokens(const opi_decision *plan, const opi_bind_options *base,
                               const opi_tokens *tokens, uint32_t n_slices, opi_variant *variant,
                               opipe_error *err) {
  opi_token_wish wish;
  opi_arena scratch;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = list_outputs(plan, variant->bound, &scratch, &wish, err);
  for (uint32_t k = 0; k < n_slices && status == OPIPE_OK; ++k) {
    const opi_variant_slice *slice = &variant->slices[k * opi_plan_width(plan)];
    wish.first = slice->first;
    wish.length = slice->length;
    status =
        opi_slice_tokens(tokens, &wish, base->evaluator, plan->allocator, &variant->tokens[k], err);
    if (status == OPIPE_OK)
      status = check_types(variant->tokens[k], err);
  }
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_slices_cut(const opi_decision *plan, const opi_model *file,
                            const opi_bind_options *base, opi_variant *variant,
                            opi_cut_model *model, opipe_error *err) {
  const uint32_t dim = find_dim(plan, file);
  opi_tokens *tokens = NULL;
  const bool inside = opi_plan_trains(plan) && plan->train->loss.kind == OPI_LOSS_OUTPUT;
  if (dim == OPIPE_NONE || inside) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "schedule '%s' slices tokens: %s",
                    plan->schedule.name,
                    dim == OPIPE_NONE ? "no input has a free token dimension (its second)"
                                      : "a loss inside the graph judges whole sequences");
  }
  model->n_tokens = plan->binding.dims[dim].value;
  OPI_TRY(place_slices(plan, model->n_tokens, variant->slices, err));
  opipe_status status =
      find_tokens(plan, file, base, variant->bound, variant->rows, dim, &tokens, err);
  if (status == OPIPE_OK)
    status = cut_tokens(plan, base, tokens, model->n_slices, variant, err);
  opi_tokens_free(tokens);
  return status < 0 ? opi_error_prefix(err, "schedule '%s' slices tokens: ", plan->schedule.name)
                    : OPIPE_OK;
}

static bool drops(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_RANDOM;
}

opipe_status opi_token_axes_find(const opi_decision *plan, const opi_model *file,
                                 const opi_bind_options *base, int64_t rows, const opi_bound *whole,
                                 opi_cut_model *model, opipe_error *err) {
  const opi_graph *g = whole->graph;
  opi_token_axes *axes = &model->token_axes;
  opi_tokens *tokens = NULL;
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->n_nodes; ++i)
    n += drops(&g->nodes[i]);
  const uint32_t dim = n == 0 ? OPIPE_NONE : find_dim(plan, file);
  if (dim == OPIPE_NONE || plan->binding.dims[dim].value < 2)
    return OPIPE_OK;
  axes->list = OPI_ARENA_ARRAY(&model->arena, opi_token_axis, n);
  if (axes->list == NULL)
    return opi_fail_nomem(err, n * sizeof *axes->list, "token axes");
  /* If the graph depends on the number of tokens, it cannot be sliced, and masks need no token. */
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
