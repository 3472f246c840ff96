/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft MultiHeadAttention: queries, keys and values come projected, in separate, packed or
 * split-by-head layouts.
 *
 * Inputs: query, key?, value?, bias?, key_padding_mask?, attention_bias?, past_key?, past_value?,
 * past_sequence_length?, cache_indirection? (the last two: shared buffers, not known). Outputs:
 * output, present_key?, present_value?, qk?. Layouts: query [B, S, N*H] with key [B, L, N*H] and
 * value [B, L, N*Hv]; packed query [B, S, N, 3, H]; packed key [B, L, N, 2, H]; key and value [B,
 * N, L, H] of a cross attention. All become the canonical Attention.
 */
#include <math.h>

#include "loader/ops/contrib.h"

enum {
  IN_Q,
  IN_K,
  IN_V,
  IN_BIAS,
  IN_MASK,
  IN_ATTENTION_BIAS,
  IN_PAST_K,
  IN_PAST_V,
  IN_PAST_LENGTH,
  IN_INDIRECTION
};

typedef struct layout {
  int64_t batch, heads, q_len, kv_len, head, v_head, past, total;
  bool packed_qkv, packed_kv, by_head; /* by_head: key and value are [B, N, L, H] */
} layout;

static opipe_status check_heads(const opi_builder *b, const opi_node *node, uint32_t i,
                                int64_t heads, int64_t *out_size, opipe_error *err) {
  const opi_value *x = opi_input(b, node, i);
  if (x->shape[2] % heads == 0) {
    *out_size = x->shape[2] / heads;
    return OPIPE_OK;
  }
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' has hidden size %lld, no multiple of num_heads %lld", x->name,
                       (long long)x->shape[2], (long long)heads);
}

static opipe_status check_packed_qkv(const opi_builder *b, const opi_node *node, layout *l,
                                     opipe_error *err) {
  const opi_value *q = opi_input(b, node, IN_Q);
  for (uint32_t i = IN_K; i <= IN_V; ++i) {
    if (opi_node_in(node, i) != OPIPE_NONE) {
      return opi_node_fail(
          b, node, err, OPIPE_E_INVALID,
          "input '%s' must be absent: '%s' of rank 5 holds queries, keys and values",
          opi_input(b, node, i)->name, q->name);
    }
  }
  OPI_TRY(opi_need_dim(b, node, IN_Q, 2, l->heads, "num_heads", err));
  OPI_TRY(opi_need_dim(b, node, IN_Q, 3, 3, "Q, K and V", err));
  l->packed_qkv = true;
  l->kv_len = q->shape[1];
  l->head = l->v_head = q->shape[4];
  return OPIPE_OK;
}

static opipe_status check_packed_kv(const opi_builder *b, const opi_node *node, layout *l,
                                    opipe_error *err) {
  const opi_value *k = opi_input(b, node, IN_K);
  if (opi_node_in(node, IN_V) != OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (value) must be absent: '%s' of rank 5 holds keys and values",
                         opi_input(b, node, IN_V)->name, k->name);
  }
  OPI_TRY(opi_need_dim(b, node, IN_K, 2, l->heads, "num_heads", err));
  OPI_TRY(opi_need_dim(b, node, IN_K, 3, 2, "K and V", err));
  OPI_TRY(opi_need_dim(b, node, IN_K, 4, l->head, "the head size of the query", err));
  l->packed_kv = true;
  l->kv_len = k->shape[1];
  l->v_head = l->head;
  return OPIPE_OK;
}

/* Keys and values of rank 3 or 4. */
static opipe_status check_plain(const opi_builder *b, const opi_node *node, layout *l,
                                opipe_error *err) {
  const opi_value *k = opi_input(b, node, IN_K);
  OPI_TRY(opi_need(b, node, IN_V, "value", OPI_T_FLOAT, k->rank, k->rank, err));
  OPI_TRY(opi_need_same_type(b, node, IN_Q, IN_V, err));
  const opi_value *v = opi_input(b, node, IN_V);
  OPI_TRY(opi_need_dim(b, node, IN_V, 0, l->batch, "the batch of the query", err));
  if (k->rank == 3) {
    OPI_TRY(
        opi_need_dim(b, node, IN_K, 2, l->heads * l->head, "the hidden size of the query", err));
    OPI_TRY(check_heads(b, node, IN_V, l->heads, &l->v_head, err));
    l->kv_len = k->shape[1];
    return opi_need_dim(b, node, IN_V, 1, l->kv_len, "the length of the key", err);
  }
  l->by_head = true;
  l->kv_len = k->shape[2];
  l->v_head = v->shape[3];
  OPI_TRY(opi_need_dim(b, node, IN_K, 1, l->heads, "num_heads", err));
  OPI_TRY(opi_need_dim(b, node, IN_K, 3, l->head, "the head size of the query", err));
  OPI_TRY(opi_need_dim(b, node, IN_V, 1, l->heads, "num_heads", err));
  return opi_need_dim(b, node, IN_V, 2, l->kv_len, "the length of the key", err);
}

static opipe_status check_past(const opi_builder *b, const opi_node *node, layout *l,
                               opipe_error *err) {
  const opi_value *k = opi_input(b, node, IN_PAST_K);
  const opi_value *v = opi_input(b, node, IN_PAST_V);
  for (uint32_t i = IN_PAST_LENGTH; i <= IN_INDIRECTION; ++i) {
    if (opi_node_in(node, i) == OPIPE_NONE)
      continue;
    OPI_TRY(opi_need(b, node, i, i == IN_PAST_LENGTH ? "past_sequence_length" : "cache_indirection",
                     OPI_T_WIDE, 0, 3, err));
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "input '%s' means shared buffers, which are not supported",
                         opi_input(b, node, i)->name);
  }
  if ((k == NULL) != (v == NULL)) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' is given without its partner: past_key and past_value go together",
        (k != NULL ? k : v)->name);
  }
  if (k != NULL) {
    OPI_TRY(opi_need(b, node, IN_PAST_K, "past_key", OPI_T_FLOAT, 4, 4, err));
    OPI_TRY(opi_need(b, node, IN_PAST_V, "past_value", OPI_T_FLOAT, 4, 4, err));
    l->past = k->shape[2];
    const int64_t key[4] = {l->batch, l->heads, l->past, l->head},
                  value[4] = {l->batch, l->heads, l->past, l->v_head};
    OPI_TRY(opi_need_shape(b, node, IN_PAST_K, key, 4, err));
    OPI_TRY(opi_need_shape(b, node, IN_PAST_V, value, 4, err));
  }
  if (__builtin_add_overflow(l->past, l->kv_len, &l->total))
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "past and new keys overflow");
  return OPIPE_OK;
}

static opipe_status check(const opi_builder *b, const opi_node *node, layout *l, opipe_error *err) {
  *l = (layout){0};
  OPI_TRY(opi_need_int(b, node, "num_heads", 1, INT32_MAX, &l->heads, err));
  OPI_TRY(opi_need(b, node, IN_Q, "query", OPI_T_FLOAT, 3, 5, err));
  const opi_value *q = opi_input(b, node, IN_Q);
  if (q->rank == 4)
    return opi_need(b, node, IN_Q, "query", OPI_T_FLOAT, 3, 3, err);
  l->batch = q->shape[0];
  l->q_len = q->shape[1];
  if (q->rank == 5) {
    OPI_TRY(check_packed_qkv(b, node, l, err));
  } else {
    OPI_TRY(check_heads(b, node, IN_Q, l->heads, &l->head, err));
    OPI_TRY(opi_need(b, node, IN_K, "key", OPI_T_FLOAT, 3, 5, err));
    OPI_TRY(opi_need_same_type(b, node, IN_Q, IN_K, err));
    OPI_TRY(opi_need_dim(b, node, IN_K, 0, l->batch, "the batch of the query", err));
    OPI_TRY(opi_input(b, node, IN_K)->rank == 5 ? check_packed_kv(b, node, l, err)
                                                : check_plain(b, node, l, err));
  }
  if (l->head < 1 || l->head > INT32_MAX || l->v_head > INT32_MAX) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT,
                         "head sizes %lld and %lld of input '%s' are out of range",
                         (long long)l->head, (long long)l->v_head, q->name);
  }
  if (opi_node_in(node, IN_BIAS) != OPIPE_NONE) {
    OPI_TRY(opi_need(b, node, IN_BIAS, "bias", OPI_T_FLOAT, 1, 1, err));
    OPI_TRY(opi_need_same_type(b, node, IN_Q, IN_BIAS, err));
    OPI_TRY(opi_need_dim(b, node, IN_BIAS, 0, l->heads * (2 * l->head + l->v_head),
                         "the hidden sizes of Q, K and V", err));
  }
  return check_past(b, node, l, err);
}

/* Element `k` of axis 3 of x [B, S, N, n, H] -> [B, S, N*H]. */
static opipe_status take(opi_builder *b, uint32_t x, int64_t k, uint32_t *out, opipe_error *err) {
  const int64_t *s = opi_b_value(b, x)->shape;
  const int64_t flat[3] = {s[0], s[1], s[2] * s[4]};
  OPI_TRY(opi_k_slice(b, x, 3, k, k + 1, &x, err));
  return opi_k_reshape(b, x, flat, 3, out, err);
}

/* [B, N, L, H] -> [B, L, N*H] */
static opipe_status merge_heads(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err) {
  static const int64_t perm[4] = {0, 2, 1, 3};
  const int64_t *s = opi_b_value(b, x)->shape;
  const int64_t flat[3] = {s[0], s[2], s[1] * s[3]};
  OPI_TRY(opi_k_transpose(b, x, perm, 4, &x, err));
  return opi_k_reshape(b, x, flat, 3, out, err);
}

/* Queries, keys and values in the 3-D form, biased. */
static opipe_status unify(opi_builder *b, const opi_node *node, const layout *l, uint32_t *in,
                          opipe_error *err) {
  const int64_t sizes[3] = {l->heads * l->head, l->heads * l->head, l->heads * l->v_head};
  uint32_t bias[3];
  for (uint32_t i = 0; i < 3; ++i) {
    in[i] = opi_node_in(node, i);
    if (l->packed_qkv)
      OPI_TRY(take(b, node->in[IN_Q], i, &in[i], err));
    if (l->packed_kv && i > 0)
      OPI_TRY(take(b, node->in[IN_K], (int64_t)i - 1, &in[i], err));
    if (l->by_head && i > 0)
      OPI_TRY(merge_heads(b, node->in[i], &in[i], err));
  }
  if (opi_node_in(node, IN_BIAS) == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_ms_split(b, node->in[IN_BIAS], sizes, 3, bias, err));
  for (uint32_t i = 0; i < (l->by_head ? 1u : 3u); ++i)
    OPI_TRY(opi_b_op2(b, "Add", in[i], bias[i], &in[i], err));
  return OPIPE_OK;
}

opipe_status opi_ms_mha_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[OPI_ATT_INPUTS], out[OPI_ATT_OUTPUTS], want = 0;
  layout l;
  OPI_TRY(check(b, node, &l, err));
  const bool causal = opi_attr_int(node, "unidirectional", 0) != 0;
  const double scale = opi_attr_float(node, "scale", 0.0);
  const opi_padding padding = {.input = IN_MASK,
                               .batch = l.batch,
                               .q_len = l.q_len,
                               .total = l.total,
                               .filter = opi_attr_float(node, "mask_filter_value", -10000.0),
                               .dtype = opi_input(b, node, IN_Q)->dtype};
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = OPIPE_NONE;
  OPI_TRY(opi_ms_mask(b, node, &padding, IN_ATTENTION_BIAS, l.heads, &in[OPI_ATT_MASK], err));
  OPI_TRY(unify(b, node, &l, in, err));
  in[OPI_ATT_PAST_K] = opi_node_in(node, IN_PAST_K);
  in[OPI_ATT_PAST_V] = opi_node_in(node, IN_PAST_V);
  const opi_attention how = {.q_heads = l.heads,
                             .kv_heads = l.heads,
                             .scale = scale != 0 ? scale : 1.0 / sqrt((double)l.head),
                             .causal = causal,
                             .precision = OPIPE_FLOAT};
  for (uint32_t o = 0; o < OPI_ATT_OUTPUTS; ++o)
    want |= opi_wants(node, o) ? 1u << o : 0u;
  if (want >> OPI_ATT_QK & 1u)
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "output 3 (qk) is not supported");
  OPI_TRY(opi_attention_emit(b, &how, in, want, OPI_PATTERN_NONE, out, err));
  for (uint32_t o = 0; o < OPI_ATT_QK; ++o) {
    if ((want >> o & 1u) != 0)
      OPI_TRY(opi_b_result(b, node, o, out[o], err));
  }
  return OPIPE_OK;
}
