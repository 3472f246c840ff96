/* SPDX-License-Identifier: Apache-2.0 */
/* GroupQueryAttention's cache of C rows that holds a window of the keys (sliding_window_cache).
 *
 * After T tokens of a sequence its first L(T) rows hold the keys of positions T - L(T) .. T - 1 in
 * this order; the rows behind them hold nothing. With the window W = local_window_size, W <= C:
 *
 *   G = C - W + 1       L(T) = T - G * max(0, ceil((T - C) / G))
 *
 * So the whole window is always there, and G rows are given up at a time. L depends on T alone,
 * however the tokens were split into steps.
 */
#include "loader/ops/contrib_gqa.h"

static opipe_status fail_bias(const opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                       "input '%s' (attention_bias) is not supported with sliding_window_cache 1",
                       opi_input(b, node, OPI_GQA_BIAS)->name);
}

opipe_status opi_gqa_window_check(const opi_builder *b, const opi_node *node, const opi_gqa *g,
                                  opipe_error *err) {
  if (!g->causal || g->window < 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute sliding_window_cache is 1 beside local_window_size %lld and "
                         "causal %d, these must be at least 1 and 1",
                         (long long)opi_attr_int(node, "local_window_size", -1), g->causal);
  }
  if (opi_node_in(node, OPI_GQA_BIAS) != OPIPE_NONE)
    return fail_bias(b, node, err);
  if (opi_node_in(node, OPI_GQA_PAST_K) == OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute sliding_window_cache is 1 without input %d (past_key)",
                         OPI_GQA_PAST_K);
  }
  if (g->cache > g->window)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' holds %lld keys, it must hold at least local_window_size, %lld",
                       opi_input(b, node, OPI_GQA_PAST_K)->name, (long long)g->cache,
                       (long long)g->window + 1);
}

static opipe_status number(opi_builder *b, int64_t n, uint32_t *out, opipe_error *err) {
  return opi_k_const(*out = opi_b_const_scalar(b, OPIPE_INT64, (double)n), err);
}

/* L(tokens), int64 [B, 1]. */
static opipe_status resident(opi_builder *b, const opi_gqa *g, uint32_t tokens, uint32_t *out,
                             opipe_error *err) {
  const int64_t step = g->cache - g->window; /* G: window is W - 1 */
  uint32_t shift, zero, by, gone;
  OPI_TRY(number(b, g->cache - step + 1, &shift, err));
  OPI_TRY(number(b, 0, &zero, err));
  OPI_TRY(number(b, step, &by, err));
  OPI_TRY(opi_b_op2(b, "Sub", tokens, shift, &gone, err));
  OPI_TRY(opi_b_op2(b, "Max", gone, zero, &gone, err));
  OPI_TRY(opi_b_op2(b, "Div", gone, by, &gone, err));
  OPI_TRY(opi_b_op2(b, "Mul", gone, by, &gone, err));
  return opi_b_op2(b, "Sub", tokens, gone, out, err);
}

/* Tokens of each sequence after this call, int64 [B, 1]. */
static opipe_status tokens_after(opi_builder *b, const opi_node *node, const opi_gqa *g,
                                 uint32_t *out, opipe_error *err) {
  const int64_t column[2] = {g->batch, 1};
  uint32_t n;
  if (!g->prompt) {
    OPI_TRY(number(b, g->length, &n, err));
    return opi_b_op2(b, "Add", g->past, n, out, err);
  }
  OPI_TRY(number(b, 1, &n, err));
  OPI_TRY(opi_k_cast(b, node->in[OPI_GQA_LENGTHS], OPIPE_INT64, out, err));
  OPI_TRY(opi_k_reshape(b, *out, column, 2, out, err));
  return opi_b_op2(b, "Add", *out, n, out, err);
}

/* Rows of [cache; new] that the rows of present come from, int64 [B, C]. Rows that hold nothing
 * stay what they are. */
static opipe_status source_rows(opi_builder *b, const opi_node *node, const opi_gqa *g,
                                uint32_t *out, opipe_error *err) {
  uint32_t at, kept, row, last, zero, cache, fresh = OPIPE_NONE, holds;
  OPI_TRY(tokens_after(b, node, g, &at, err));
  OPI_TRY(resident(b, g, at, &kept, err));
  OPI_TRY(opi_ms_range(b, g->cache, &row, err));
  OPI_TRY(number(b, g->cache, &cache, err));
  OPI_TRY(opi_b_op2(b, "Less", row, kept, &holds, err));
  OPI_TRY(opi_b_op2(b, "Sub", at, kept, &at, err));
  OPI_TRY(opi_b_op2(b, "Add", at, row, &at, err)); /* positions */
  if (g->prompt) {
    OPI_TRY(opi_b_op2(b, "Add", at, cache, &fresh, err));
  } else {
    uint32_t old, is_old;
    OPI_TRY(resident(b, g, g->past, &kept, err));
    OPI_TRY(opi_b_op2(b, "Less", at, g->past, &is_old, err));
    OPI_TRY(opi_b_op2(b, "Sub", at, g->past, &at, err));
    OPI_TRY(opi_b_op2(b, "Add", at, kept, &old, err));
    OPI_TRY(opi_b_op2(b, "Add", at, cache, &fresh, err));
    OPI_TRY(opi_k_where(b, is_old, old, fresh, &fresh, err));
  }
  OPI_TRY(opi_k_where(b, holds, fresh, row, out, err));
  OPI_TRY(number(b, 0, &zero, err)); /* lengths of a prompt are nowhere checked */
  OPI_TRY(number(b, g->cache + g->length - 1, &last, err));
  OPI_TRY(opi_b_op2(b, "Max", *out, zero, out, err));
  return opi_b_op2(b, "Min", *out, last, out, err);
}

opipe_status opi_gqa_window_present(opi_builder *b, const opi_node *node, const opi_gqa *g,
                                    uint32_t i, uint32_t joined, opipe_error *err) {
  const int64_t column[4] = {g->batch, 1, g->cache, 1},
                full[4] = {g->batch, g->kv_heads, g->cache, g->head};
  uint32_t index, rows;
  opi_attrs attrs = {.n = 0};
  if (!opi_wants(node, i))
    return OPIPE_OK;
  OPI_TRY(source_rows(b, node, g, &index, err));
  OPI_TRY(opi_k_reshape(b, index, column, 4, &index, err));
  OPI_TRY(opi_k_expand(b, index, full, 4, &index, err));
  const uint32_t in[2] = {joined, index};
  opi_attrs_int(&attrs, "axis", 2);
  OPI_TRY(opi_k_one(b, "GatherElements", 0, in, 2, &attrs, &rows, err));
  return opi_b_result(b, node, i, rows, err);
}

opipe_status opi_gqa_window_positions(opi_builder *b, const opi_gqa *g, uint32_t *out,
                                      opipe_error *err) {
  uint32_t row, cache, kept, is_old, holds, shift, none;
  OPI_TRY(opi_ms_range(b, g->cache + g->length, &row, err));
  OPI_TRY(number(b, g->cache, &cache, err));
  OPI_TRY(number(b, g->total, &none, err));
  OPI_TRY(resident(b, g, g->past, &kept, err));
  OPI_TRY(opi_b_op2(b, "Less", row, cache, &is_old, err));
  OPI_TRY(opi_k_where(b, is_old, kept, cache, &shift, err)); /* [B, C + S] */
  OPI_TRY(opi_b_op2(b, "Less", row, shift, &holds, err));
  OPI_TRY(opi_b_op1(b, "Not", is_old, &is_old, err));
  OPI_TRY(opi_b_op2(b, "Or", holds, is_old, &holds, err));
  OPI_TRY(opi_b_op2(b, "Add", g->past, row, out, err));
  OPI_TRY(opi_b_op2(b, "Sub", *out, shift, out, err));
  return opi_k_where(b, holds, *out, none, out, err);
}
