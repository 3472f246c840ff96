/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft GroupQueryAttention: causal attention of a decoder with rotary embedding, cache and
 * local window in one node.
 *
 * Inputs: query (or packed QKV), key?, value?, past_key?, past_value?, seqlens_k [B],
 * total_sequence_length, cos?, sin?, position_ids?, attention_bias?. Outputs: output, present_key?,
 * present_value?. A prompt (total = S) is plain causal attention. Later, sequence b has past[b] =
 * seqlens_k[b] + 1 - S keys; when those numbers are known and equal to the cache's length the new
 * keys simply follow, otherwise opipe.Append writes every sequence's keys to where they belong and
 * the attention is told their numbers; devices without these (builder.h) gather the keys and mask.
 * A cache that holds a window of the keys alone is read row by row, with the positions of its rows
 * (contrib_gqa_window.c). With causal 0 all rows of a sequence see its seqlens_k[b] + 1 keys. Such
 * a number must lie in S - 1 .. total_sequence_length - 1: known ones are checked here, others by
 * the run. Nothing is indexed by a prompt's (0 .. S - 1). Rows of a prompt beyond a sequence's own
 * length are padding: what they give is not specified (ONNX Runtime hides later padding keys from
 * them, here causality alone decides).
 */
#include <math.h>

#include "loader/ops/contrib_gqa.h"

static opipe_status check_layout(const opi_builder *b, const opi_node *node, opi_gqa *g,
                                 opipe_error *err) {
  OPI_TRY(opi_need_int(b, node, "num_heads", 1, INT32_MAX, &g->heads, err));
  OPI_TRY(opi_need_int(b, node, "kv_num_heads", 1, INT32_MAX, &g->kv_heads, err));
  OPI_TRY(opi_need(b, node, OPI_GQA_Q, "query", OPI_T_FLOAT, 3, 3, err));
  const opi_value *q = opi_input(b, node, OPI_GQA_Q);
  g->batch = q->shape[0];
  g->length = q->shape[1];
  g->dtype = q->dtype;
  g->packed = opi_node_in(node, OPI_GQA_K) == OPIPE_NONE;
  const int64_t parts = g->packed ? g->heads + 2 * g->kv_heads : g->heads;
  if (g->heads % g->kv_heads != 0 || q->shape[2] % parts != 0 || q->shape[2] == 0) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' has hidden size %lld, which %lld heads and %lld key heads do not divide",
        q->name, (long long)q->shape[2], (long long)g->heads, (long long)g->kv_heads);
  }
  g->head = q->shape[2] / parts;
  if (g->packed) {
    if (opi_node_in(node, OPI_GQA_V) == OPIPE_NONE)
      return OPIPE_OK;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (value) must be absent when the key is: '%s' holds all three",
                         opi_input(b, node, OPI_GQA_V)->name, q->name);
  }
  const int64_t want[3] = {g->batch, g->length, g->kv_heads * g->head};
  for (uint32_t i = OPI_GQA_K; i <= OPI_GQA_V; ++i) {
    OPI_TRY(opi_need(b, node, i, i == OPI_GQA_K ? "key" : "value", OPI_T_FLOAT, 3, 3, err));
    OPI_TRY(opi_need_same_type(b, node, OPI_GQA_Q, i, err));
    OPI_TRY(opi_need_shape(b, node, i, want, 3, err));
  }
  return OPIPE_OK;
}

static opipe_status check_cache(const opi_builder *b, const opi_node *node, opi_gqa *g,
                                opipe_error *err) {
  const opi_value *k = opi_input(b, node, OPI_GQA_PAST_K);
  if (k == NULL && opi_node_in(node, OPI_GQA_PAST_V) == OPIPE_NONE)
    return OPIPE_OK;
  for (uint32_t i = OPI_GQA_PAST_K; i <= OPI_GQA_PAST_V; ++i) {
    OPI_TRY(opi_need(b, node, i, i == OPI_GQA_PAST_K ? "past_key" : "past_value", OPI_T_FLOAT, 4, 4,
                     err));
    OPI_TRY(opi_need_same_type(b, node, OPI_GQA_Q, i, err));
    const int64_t want[4] = {g->batch, g->kv_heads, k->shape[2], g->head};
    OPI_TRY(opi_need_shape(b, node, i, want, 4, err));
  }
  g->cache = k->shape[2];
  return OPIPE_OK;
}

static opipe_status check_options(const opi_builder *b, const opi_node *node, opi_gqa *g,
                                  opipe_error *err) {
  /* -1 is the default that ONNX Runtime writes down: none. */
  if (opi_attr_int(node, "smooth_softmax", 0) != -1)
    OPI_TRY(opi_ms_only(b, node, "smooth_softmax", 0, err));
  OPI_TRY(opi_ms_only(b, node, "qk_output", 0, err));
  if (opi_node_in(node, OPI_GQA_SINK) != OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "input '%s' (head_sink) is not supported",
                         opi_input(b, node, OPI_GQA_SINK)->name);
  }
  if (opi_wants(node, 3)) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "output 3 (output_qk) is not supported");
  }
  const int64_t window = opi_attr_int(node, "local_window_size", -1);
  g->causal = opi_attr_int(node, "causal", 1) != 0;
  if (!g->causal && window != -1) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute local_window_size is %lld beside causal 0, it must be -1",
                         (long long)window);
  }
  if (window != -1 && (window < 1 || window > INT32_MAX)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute local_window_size is %lld, it must be -1 or at least 1",
                         (long long)window);
  }
  g->window = window < 0 ? -1 : window - 1; /* the file's number counts the row's own key too */
  g->slides = opi_attr_int(node, "sliding_window_cache", 0) != 0;
  return g->slides ? opi_gqa_window_check(b, node, g, err) : OPIPE_OK;
}

/* Keys before this call [B, 1] = seqlens_k + 1 - S, by way of a table of total_sequence_length
 * rows: an index outside is an error of the run. Gather counts negative indices from the end, so
 * what is below S - 1 is moved below the table first. */
static opipe_status past_of(opi_builder *b, const opi_node *node, opi_gqa *g, opipe_error *err) {
  const int64_t column[2] = {g->batch, 1};
  uint32_t in[2], first, below, down, shift;
  opi_attrs attrs = {.n = 0};
  OPI_TRY(opi_ms_range(b, g->total, &in[0], err));
  OPI_TRY(opi_k_reshape(b, in[0], &g->total, 1, &in[0], err));
  OPI_TRY(opi_k_cast(b, node->in[OPI_GQA_LENGTHS], OPIPE_INT64, &in[1], err));
  OPI_TRY(opi_k_reshape(b, in[1], column, 2, &in[1], err));
  OPI_TRY(opi_k_const(first = opi_b_const_scalar(b, OPIPE_INT64, (double)(g->length - 1)), err));
  OPI_TRY(opi_k_const(
      shift = opi_b_const_scalar(b, OPIPE_INT64, (double)(g->total + g->length - 1)), err));
  OPI_TRY(opi_b_op2(b, "Less", in[1], first, &below, err));
  OPI_TRY(opi_b_op2(b, "Sub", in[1], shift, &down, err)); /* S - 2 becomes -total - 1 */
  OPI_TRY(opi_k_where(b, below, down, in[1], &in[1], err));
  opi_attrs_int(&attrs, "axis", 0);
  OPI_TRY(opi_k_one(b, "Gather", 0, in, 2, &attrs, &g->past, err));
  return opi_b_op2(b, "Sub", g->past, first, &g->past, err);
}

/* Known seqlens_k [n], or NULL. */
static opipe_status check_known(const opi_builder *b, const opi_node *node, const opi_gqa *g,
                                const int64_t *lengths, uint32_t n, opipe_error *err) {
  const int64_t least = g->prompt ? 0 : g->length - 1;
  for (uint32_t i = 0; lengths != NULL && i < n; ++i) {
    if (lengths[i] >= least && lengths[i] < g->total)
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (seqlens_k) is %lld for sequence %u, it must be %lld to %lld",
                         opi_input(b, node, OPI_GQA_LENGTHS)->name, (long long)lengths[i], i,
                         (long long)least, (long long)g->total - 1);
  }
  return OPIPE_OK;
}

/* Reads total_sequence_length and seqlens_k as far as they are known. */
static opipe_status check_lengths(opi_builder *b, const opi_node *node, opi_gqa *g,
                                  opipe_error *err) {
  const int64_t *known;
  uint32_t n = 0;
  OPI_TRY(opi_need(b, node, OPI_GQA_LENGTHS, "seqlens_k", OPI_T_WIDE, 0, 2, err));
  OPI_TRY(opi_need(b, node, OPI_GQA_TOTAL, "total_sequence_length", OPI_T_WIDE, 0, 2, err));
  if (opi_k_elems(opi_input(b, node, OPI_GQA_LENGTHS)) != (double)g->batch) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (seqlens_k) has %.0f elements for a batch of %lld",
                         opi_input(b, node, OPI_GQA_LENGTHS)->name,
                         opi_k_elems(opi_input(b, node, OPI_GQA_LENGTHS)), (long long)g->batch);
  }
  OPI_TRY(opi_known_ints(b, node, OPI_GQA_TOTAL, &known, &n, err));
  if (n != 1 || known[0] < g->length || known[0] > INT32_MAX) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' (total_sequence_length) is %lld, at least the %lld new tokens are needed",
        opi_input(b, node, OPI_GQA_TOTAL)->name, n > 0 ? (long long)known[0] : 0LL,
        (long long)g->length);
  }
  g->total = known[0];
  g->prompt = g->total == g->length;
  const int64_t *lengths = opi_b_ints(b, node->in[OPI_GQA_LENGTHS], &n);
  OPI_TRY(check_known(b, node, g, lengths, n, err));
  if (g->prompt)
    return OPIPE_OK;
  if (!g->slides && g->total - g->length > g->cache) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' is %lld, but %lld new tokens and a cache of %lld make only %lld",
        opi_input(b, node, OPI_GQA_TOTAL)->name, (long long)g->total, (long long)g->length,
        (long long)g->cache, (long long)(g->length + g->cache));
  }
  g->aligned = !g->slides && lengths != NULL && g->total == g->cache + g->length;
  for (uint32_t i = 0; g->aligned && i < n; ++i)
    g->aligned = lengths[i] + 1 == g->total;
  return past_of(b, node, g, err);
}

/* Q and K turned by position. A prompt's positions are 0 .. S-1, so a slice of the caches does. */
static opipe_status rotate(opi_builder *b, const opi_node *node, const opi_gqa *g, uint32_t *qkv,
                           opipe_error *err) {
  uint32_t in[4] = {0, opi_node_in(node, OPI_GQA_COS), opi_node_in(node, OPI_GQA_SIN),
                    opi_node_in(node, OPI_GQA_POSITIONS)};
  if (opi_attr_int(node, "do_rotary", 0) == 0)
    return OPIPE_OK;
  OPI_TRY(opi_need(b, node, OPI_GQA_COS, "cos_cache", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need(b, node, OPI_GQA_SIN, "sin_cache", OPI_T_FLOAT, 2, 2, err));
  const opi_value cos = *opi_input(b, node, OPI_GQA_COS);
  if (cos.shape[1] > g->head / 2 || cos.shape[0] < (g->prompt ? g->length : 1)) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' (cos_cache) is [%lld, %lld] for %lld positions and head size %lld", cos.name,
        (long long)cos.shape[0], (long long)cos.shape[1], (long long)g->total, (long long)g->head);
  }
  OPI_TRY(opi_need_shape(b, node, OPI_GQA_SIN, cos.shape, 2, err));
  if (in[3] != OPIPE_NONE) {
    const int64_t ids[2] = {g->batch, g->length};
    OPI_TRY(opi_need(b, node, OPI_GQA_POSITIONS, "position_ids", OPI_T_WIDE, 2, 2, err));
    OPI_TRY(opi_need_shape(b, node, OPI_GQA_POSITIONS, ids, 2, err));
    OPI_TRY(opi_k_cast(b, in[3], OPIPE_INT64, &in[3], err));
  } else if (g->prompt) {
    const int64_t shape[3] = {1, g->length, cos.shape[1]};
    for (uint32_t i = 1; i < 3; ++i) {
      OPI_TRY(opi_k_slice(b, in[i], 0, 0, g->length, &in[i], err));
      OPI_TRY(opi_k_reshape(b, in[i], shape, 3, &in[i], err));
    }
  } else {
    OPI_TRY(opi_ms_range(b, g->length, &in[3], err));
    OPI_TRY(opi_b_op2(b, "Add", g->past, in[3], &in[3], err));
  }
  for (uint32_t i = 0; i < 2; ++i) {
    opi_attrs attrs = {.n = 0};
    opi_attrs_int(&attrs, "interleaved", opi_attr_int(node, "rotary_interleaved", 0) != 0);
    opi_attrs_int(&attrs, "num_heads", i == 0 ? g->heads : g->kv_heads);
    opi_attrs_int(&attrs, "rotary_embedding_dim", 2 * cos.shape[1]);
    in[0] = qkv[i];
    OPI_TRY(opi_k_one(b, "RotaryEmbedding", 23, in, 4, &attrs, &qkv[i], err));
  }
  return OPIPE_OK;
}

opipe_status opi_gqa_by_head(opi_builder *b, const opi_gqa *g, uint32_t x, uint32_t *out,
                             opipe_error *err) {
  static const int64_t perm[4] = {0, 2, 1, 3};
  const int64_t shape[4] = {g->batch, g->length, g->kv_heads, g->head};
  OPI_TRY(opi_k_reshape(b, x, shape, 4, &x, err));
  return opi_k_transpose(b, x, perm, 4, out, err);
}

/* Where present's row t of sequence b lies in [cache; new]: t before the past's end, then the new
 * rows, then the cache again. */
static opipe_status source_rows(opi_builder *b, const opi_gqa *g, int64_t rows, uint32_t *out,
                                opipe_error *err) {
  const int64_t column[4] = {g->batch, 1, rows, 1},
                full[4] = {g->batch, g->kv_heads, rows, g->head};
  uint32_t t, in_new, shift, is_old, is_after, fresh, n, cap;
  OPI_TRY(opi_ms_range(b, rows, &t, err));
  OPI_TRY(opi_k_const(n = opi_b_const_scalar(b, OPIPE_INT64, (double)g->length), err));
  OPI_TRY(opi_k_const(shift = opi_b_const_scalar(b, OPIPE_INT64, (double)g->cache), err));
  OPI_TRY(opi_b_op2(b, "Sub", t, g->past, &in_new, err)); /* [B, rows] */
  OPI_TRY(opi_b_op2(b, "Less", t, g->past, &is_old, err));
  OPI_TRY(opi_b_op2(b, "GreaterOrEqual", in_new, n, &is_after, err));
  OPI_TRY(opi_b_op2(b, "Or", is_old, is_after, &is_old, err));
  OPI_TRY(opi_b_op2(b, "Add", in_new, shift, &fresh, err));
  OPI_TRY(opi_k_const(cap = opi_b_const_scalar(b, OPIPE_INT64, (double)(g->cache + g->length - 1)),
                      err));
  OPI_TRY(opi_b_op2(b, "Min", t, cap, &t, err));
  OPI_TRY(opi_k_where(b, is_old, t, fresh, out, err));
  OPI_TRY(opi_k_reshape(b, *out, column, 4, out, err));
  return opi_k_expand(b, *out, full, 4, out, err);
}

/* bool [B, 1, rows, 1]: rows of present that hold a key. */
static opipe_status filled_rows(opi_builder *b, const opi_gqa *g, int64_t rows, uint32_t *out,
                                opipe_error *err) {
  const int64_t column[4] = {g->batch, 1, rows, 1};
  uint32_t t, n, end;
  OPI_TRY(opi_ms_range(b, rows, &t, err));
  OPI_TRY(opi_k_const(n = opi_b_const_scalar(b, OPIPE_INT64, (double)g->length), err));
  OPI_TRY(opi_b_op2(b, "Add", g->past, n, &end, err));
  OPI_TRY(opi_b_op2(b, "Less", t, end, out, err));
  return opi_k_reshape(b, *out, column, 4, out, err);
}

/* Cache and new rows [B, K, cache + S, H] of key (i = 1) or value (2). */
static opipe_status join(opi_builder *b, const opi_node *node, const opi_gqa *g, uint32_t i,
                         uint32_t fresh, uint32_t *out, opipe_error *err) {
  uint32_t both[2] = {node->in[OPI_GQA_PAST_K + i - 1], OPIPE_NONE};
  OPI_TRY(opi_gqa_by_head(b, g, fresh, &both[1], err));
  return opi_k_concat(b, both, 2, 2, out, err);
}

/* The rows that a cache that slides and the new keys have, in qkv[1], qkv[2]; present as well. */
static opipe_status slide(opi_builder *b, const opi_node *node, const opi_gqa *g, uint32_t *qkv,
                          opipe_error *err) {
  for (uint32_t i = 1; i < 3; ++i) {
    OPI_TRY(join(b, node, g, i, qkv[i], &qkv[i], err));
    OPI_TRY(opi_gqa_window_present(b, node, g, i, qkv[i], err));
  }
  return OPIPE_OK;
}

/* present_key and present_value [B, K, max(cache, total), H] in in[1], in[2]; the keys of each
 * sequence, its new ones included, in in[OPI_ATT_SEQLEN]. */
static opipe_status append(opi_builder *b, const opi_node *node, const opi_gqa *g, uint32_t *in,
                           opipe_error *err) {
  uint32_t before, n;
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", 2);
  opi_attrs_int(&attrs, "rows", g->cache > g->total ? g->cache : g->total);
  OPI_TRY(opi_k_const(n = opi_b_const_scalar(b, OPIPE_INT64, (double)g->length), err));
  OPI_TRY(opi_k_reshape(b, g->past, &g->batch, 1, &before, err));
  OPI_TRY(opi_b_op2(b, "Add", before, n, &in[OPI_ATT_SEQLEN], err));
  for (uint32_t i = 1; i < 3; ++i) {
    uint32_t all[3] = {node->in[OPI_GQA_PAST_K + i - 1], OPIPE_NONE, before};
    OPI_TRY(opi_gqa_by_head(b, g, in[i], &all[1], err));
    OPI_TRY(opi_k_node(b, "Append", "opipe", 1, all, 3, 1, &attrs, &in[i], err));
    if (opi_wants(node, i))
      OPI_TRY(opi_b_result(b, node, i, in[i], err));
  }
  return OPIPE_OK;
}

/* The same by canonical operators of the standard, for devices without Append, cut to total rows.
 */
static opipe_status gather_present(opi_builder *b, const opi_node *node, const opi_gqa *g,
                                   uint32_t *qkv, opipe_error *err) {
  const int64_t rows = g->cache > g->total ? g->cache : g->total;
  uint32_t index, filled = OPIPE_NONE, zero;
  if (g->slides)
    return slide(b, node, g, qkv, err);
  OPI_TRY(source_rows(b, g, rows, &index, err));
  OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, g->dtype, 0), err));
  if (rows > g->cache)
    OPI_TRY(filled_rows(b, g, rows, &filled, err)); /* a growing cache */
  for (uint32_t i = 1; i < 3; ++i) {
    uint32_t joined;
    opi_attrs attrs = {.n = 0};
    OPI_TRY(join(b, node, g, i, qkv[i], &joined, err));
    const uint32_t in[2] = {joined, index};
    opi_attrs_int(&attrs, "axis", 2);
    OPI_TRY(opi_k_one(b, "GatherElements", 0, in, 2, &attrs, &qkv[i], err));
    if (filled != OPIPE_NONE)
      OPI_TRY(opi_k_where(b, filled, qkv[i], zero, &qkv[i], err));
    if (opi_wants(node, i))
      OPI_TRY(opi_b_result(b, node, i, qkv[i], err));
    if (rows > g->total)
      OPI_TRY(opi_k_slice(b, qkv[i], 2, 0, g->total, &qkv[i], err));
  }
  return OPIPE_OK;
}

/* bool [B, 1, S, T]: key j counts for row i of sequence b if past[b] + i - window <= j <= past[b] +
 * i. With a sliding cache [B, 1, S, cache + S]: the same test on the keys' positions. */
static opipe_status ragged_mask(opi_builder *b, const opi_gqa *g, uint32_t *out, opipe_error *err) {
  const int64_t rows[4] = {g->batch, 1, g->length, 1},
                keys[4] = {g->batch, 1, 1, g->cache + g->length};
  uint32_t t, at, low, width;
  OPI_TRY(opi_ms_range(b, g->length, &t, err));
  OPI_TRY(opi_b_op2(b, "Add", g->past, t, &at, err));
  OPI_TRY(opi_k_reshape(b, at, rows, 4, &at, err));
  if (g->slides) {
    OPI_TRY(opi_gqa_window_positions(b, g, &t, err));
    OPI_TRY(opi_k_reshape(b, t, keys, 4, &t, err));
  } else {
    OPI_TRY(opi_ms_range(b, g->total, &t, err));
  }
  OPI_TRY(opi_b_op2(b, "LessOrEqual", t, at, out, err));
  if (g->window < 0)
    return OPIPE_OK;
  OPI_TRY(opi_k_const(width = opi_b_const_scalar(b, OPIPE_INT64, (double)g->window), err));
  OPI_TRY(opi_b_op2(b, "Sub", at, width, &low, err));
  OPI_TRY(opi_b_op2(b, "GreaterOrEqual", t, low, &low, err));
  return opi_b_op2(b, "And", *out, low, out, err);
}

/* bool [B, 1, 1, T]: the keys of each sequence, seqlens_k + 1 of them. */
static opipe_status length_mask(opi_builder *b, const opi_node *node, const opi_gqa *g,
                                uint32_t *out, opipe_error *err) {
  const int64_t column[4] = {g->batch, 1, 1, 1};
  uint32_t last, key;
  OPI_TRY(opi_k_cast(b, node->in[OPI_GQA_LENGTHS], OPIPE_INT64, &last, err));
  OPI_TRY(opi_k_reshape(b, last, column, 4, &last, err));
  OPI_TRY(opi_ms_range(b, g->total, &key, err));
  return opi_b_op2(b, "LessOrEqual", key, last, out, err);
}

/* Mask and bias in one; out OPIPE_NONE: none. lengths: the attention knows each sequence's. */
static opipe_status make_mask(opi_builder *b, const opi_node *node, const opi_gqa *g, bool ragged,
                              bool lengths, bool *out_causal, uint32_t *out, opipe_error *err) {
  const int64_t full[4] = {g->batch, g->heads, g->length, g->total};
  uint32_t zero, low, mask = OPIPE_NONE;
  const bool biased = opi_node_in(node, OPI_GQA_BIAS) != OPIPE_NONE;
  *out_causal = g->causal && (lengths || (!ragged && g->window < 0));
  if (lengths)
    mask = OPIPE_NONE;
  else if (!g->causal)
    OPI_TRY(length_mask(b, node, g, &mask, err));
  else if (ragged)
    OPI_TRY(ragged_mask(b, g, &mask, err));
  else if (g->window >= 0)
    OPI_TRY(opi_k_band(b, g->length, g->total, g->total - g->length, -g->window, 0, &mask, err));
  *out = mask;
  if (!biased)
    return OPIPE_OK;
  if (mask != OPIPE_NONE) {
    OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, g->dtype, 0), err));
    OPI_TRY(opi_k_const(low = opi_b_const_scalar(b, g->dtype, -INFINITY), err));
    OPI_TRY(opi_k_where(b, mask, zero, low, &mask, err));
  }
  return opi_ms_add_bias(b, node, OPI_GQA_BIAS, full, mask, out, err);
}

/* A prompt with a cache of fixed size: the rest of the cache stays behind the new keys. */
static opipe_status keep_cache_tail(opi_builder *b, const opi_node *node, const opi_gqa *g,
                                    uint32_t *out, opipe_error *err) {
  if (!g->prompt || g->cache <= g->length)
    return OPIPE_OK;
  for (uint32_t i = 1; i < 3; ++i) {
    uint32_t both[2] = {out[i], OPIPE_NONE};
    if (!opi_wants(node, i))
      continue;
    OPI_TRY(
        opi_k_slice(b, node->in[OPI_GQA_PAST_K + i - 1], 2, g->length, g->cache, &both[1], err));
    OPI_TRY(opi_k_concat(b, both, 2, 2, &out[i], err));
  }
  return OPIPE_OK;
}

static opipe_status attend(opi_builder *b, const opi_node *node, const opi_gqa *g, uint32_t *qkv,
                           opipe_error *err) {
  static const int64_t perm[4] = {0, 2, 1, 3};
  const double scale = opi_attr_float(node, "scale", 0.0);
  const bool ragged = !g->prompt && !g->aligned;
  const bool appends = ragged && b->appends && !g->slides;
  uint32_t in[OPI_ATT_INPUTS], out[OPI_ATT_OUTPUTS], want = 1, y;
  opi_attention how = {.q_heads = g->heads,
                       .kv_heads = g->kv_heads,
                       .scale = scale != 0 ? scale : 1.0 / sqrt((double)g->head),
                       .softcap = opi_attr_float(node, "softcap", 0.0),
                       .precision = OPIPE_FLOAT};
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = i < 3 ? qkv[i] : OPIPE_NONE;
  if (ragged) {
    const int64_t shape[4] = {g->batch, g->length, g->heads, g->head};
    OPI_TRY(appends ? append(b, node, g, in, err) : gather_present(b, node, g, in, err));
    how.window = appends ? g->window + 1 : 0;
    OPI_TRY(opi_k_reshape(b, qkv[0], shape, 4, &in[0], err));
    OPI_TRY(opi_k_transpose(b, in[0], perm, 4, &in[0], err));
  } else {
    for (uint32_t i = 0; i < 2 && g->aligned; ++i)
      in[OPI_ATT_PAST_K + i] = node->in[OPI_GQA_PAST_K + i];
    for (uint32_t o = 1; o < 3 && !g->slides; ++o)
      want |= opi_wants(node, o) ? 1u << o : 0u;
  }
  OPI_TRY(make_mask(b, node, g, ragged, appends, &how.causal, &in[OPI_ATT_MASK], err));
  OPI_TRY(opi_attention_emit(b, &how, in, want, OPI_PATTERN_NONE, out, err));
  if (!ragged) {
    OPI_TRY(g->slides ? slide(b, node, g, qkv, err) : keep_cache_tail(b, node, g, out, err));
    for (uint32_t o = 1; o < 3 && !g->slides; ++o) {
      if (opi_wants(node, o))
        OPI_TRY(opi_b_result(b, node, o, out[o], err));
    }
    return opi_b_result(b, node, 0, out[0], err);
  }
  const int64_t flat[3] = {g->batch, g->length, g->heads * g->head};
  OPI_TRY(opi_k_transpose(b, out[0], perm, 4, &y, err));
  OPI_TRY(opi_k_reshape(b, y, flat, 3, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

opipe_status opi_ms_gqa_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t qkv[3] = {opi_node_in(node, OPI_GQA_Q), opi_node_in(node, OPI_GQA_K),
                     opi_node_in(node, OPI_GQA_V)};
  opi_gqa g = {.past = OPIPE_NONE};
  OPI_TRY(check_layout(b, node, &g, err));
  OPI_TRY(check_cache(b, node, &g, err));
  OPI_TRY(check_options(b, node, &g, err));
  OPI_TRY(check_lengths(b, node, &g, err));
  if (g.packed) {
    const int64_t sizes[3] = {g.heads * g.head, g.kv_heads * g.head, g.kv_heads * g.head};
    OPI_TRY(opi_ms_split(b, node->in[OPI_GQA_Q], sizes, 3, qkv, err));
  }
  OPI_TRY(rotate(b, node, &g, qkv, err));
  return attend(b, node, &g, qkv, err);
}
