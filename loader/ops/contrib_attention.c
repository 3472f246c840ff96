/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft Attention: one packed projection of the input, then attention, with the past as one
 * tensor [2, B, N, P, H].
 *
 * Becomes MatMul (+ Add), three Slices and the canonical Attention in its 3-D form. Inputs: input,
 * weights, bias?, mask_index?, past?, attention_bias?, past_sequence_length? (shared buffers: not
 * known). Outputs: output, present?.
 */
#include <math.h>

#include "loader/ops/common.h"
#include "loader/ops/contrib.h"

enum { IN_X, IN_W, IN_BIAS, IN_MASK, IN_PAST, IN_ATTENTION_BIAS, IN_PAST_LENGTH };

typedef struct packed {
  int64_t batch, length, heads, past, total;
  int64_t hidden[3]; /* of Q, K, V */
} packed;

static opipe_status hidden_sizes(const opi_builder *b, const opi_node *node, packed *p,
                                 opipe_error *err) {
  uint32_t n = 0;
  const int64_t *given = opi_attr_ints(node, "qkv_hidden_sizes", &n);
  const opi_value *w = opi_input(b, node, IN_W);
  if (given == NULL) {
    if (w->shape[1] % 3 != 0) {
      return opi_node_fail(
          b, node, err, OPIPE_E_INVALID,
          "input '%s' (weights) has %lld columns, no multiple of 3, and qkv_hidden_sizes is absent",
          w->name, (long long)w->shape[1]);
    }
    for (uint32_t i = 0; i < 3; ++i)
      p->hidden[i] = w->shape[1] / 3;
  } else {
    if (n != 3) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "attribute qkv_hidden_sizes has %u numbers, 3 are needed", n);
    }
    memcpy(p->hidden, given, sizeof(p->hidden));
  }
  for (uint32_t i = 0; i < 3; ++i) {
    if (p->hidden[i] > 0 && p->hidden[i] % p->heads == 0)
      continue;
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "hidden size %lld of input '%s' (weights) is not a multiple of num_heads %lld",
        (long long)p->hidden[i], w->name, (long long)p->heads);
  }
  int64_t sum;
  if (p->hidden[0] != p->hidden[1] ||
      __builtin_add_overflow(p->hidden[0] + p->hidden[1], p->hidden[2], &sum) ||
      sum != w->shape[1]) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "attribute qkv_hidden_sizes [%lld, %lld, %lld] does not fit input '%s' with %lld columns",
        (long long)p->hidden[0], (long long)p->hidden[1], (long long)p->hidden[2], w->name,
        (long long)w->shape[1]);
  }
  return OPIPE_OK;
}

static opipe_status check(const opi_builder *b, const opi_node *node, packed *p, opipe_error *err) {
  *p = (packed){0};
  OPI_TRY(opi_need(b, node, IN_X, "input", OPI_T_FLOAT, 3, 3, err));
  OPI_TRY(opi_need(b, node, IN_W, "weights", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_may(b, node, IN_BIAS, "bias", OPI_T_FLOAT, 1, 1, err));
  for (uint32_t i = IN_W; i <= IN_BIAS; ++i)
    OPI_TRY(opi_need_same_type(b, node, IN_X, i, err));
  const opi_value *x = opi_input(b, node, IN_X);
  p->batch = x->shape[0];
  p->length = x->shape[1];
  OPI_TRY(opi_need_int(b, node, "num_heads", 1, INT32_MAX, &p->heads, err));
  OPI_TRY(opi_need_dim(b, node, IN_W, 0, x->shape[2], "the hidden size of the input", err));
  OPI_TRY(hidden_sizes(b, node, p, err));
  OPI_TRY(opi_need_dim(b, node, IN_BIAS, 0, opi_input(b, node, IN_W)->shape[1],
                       "the columns of the weights", err));
  OPI_TRY(opi_ms_only(b, node, "do_rotary", 0, err));
  OPI_TRY(opi_ms_only(b, node, "past_present_share_buffer", 0, err));
  if (opi_node_in(node, IN_PAST_LENGTH) != OPIPE_NONE) {
    return opi_node_fail(
        b, node, err, OPIPE_E_UNSUPPORTED,
        "input '%s' (past_sequence_length) means shared buffers, which are not supported",
        opi_input(b, node, IN_PAST_LENGTH)->name);
  }
  OPI_TRY(opi_may(b, node, IN_PAST, "past", OPI_T_FLOAT, 5, 5, err));
  const opi_value *past = opi_input(b, node, IN_PAST);
  if (past != NULL) {
    const int64_t want[5] = {2, p->batch, p->heads, past->shape[3], p->hidden[1] / p->heads};
    OPI_TRY(opi_need_same_type(b, node, IN_X, IN_PAST, err));
    OPI_TRY(opi_need_shape(b, node, IN_PAST, want, 5, err));
    if (p->hidden[2] != p->hidden[1]) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' (past) needs V of the size of K: %lld, not %lld", past->name,
                           (long long)p->hidden[1], (long long)p->hidden[2]);
    }
    p->past = past->shape[3];
  }
  if (__builtin_add_overflow(p->past, p->length, &p->total))
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "past and new keys overflow");
  return OPIPE_OK;
}

/* past [2, B, N, P, H] -> its halves [B, N, P, H]. */
static opipe_status unpack_past(opi_builder *b, const opi_node *node, uint32_t *in,
                                opipe_error *err) {
  if (opi_node_in(node, IN_PAST) == OPIPE_NONE)
    return OPIPE_OK;
  const opi_value past = *opi_input(b, node, IN_PAST);
  for (uint32_t i = 0; i < 2; ++i) {
    uint32_t half;
    OPI_TRY(opi_k_slice(b, node->in[IN_PAST], 0, i, i + 1, &half, err));
    OPI_TRY(opi_k_reshape(b, half, past.shape + 1, 4, &in[OPI_ATT_PAST_K + i], err));
  }
  return OPIPE_OK;
}

static opipe_status pack_present(opi_builder *b, const opi_node *node, const packed *p,
                                 const uint32_t *out, opipe_error *err) {
  const int64_t shape[5] = {1, p->batch, p->heads, p->total, p->hidden[1] / p->heads};
  static const int64_t kept[4] = {1, 2, 3, 4}; /* a batch of 1 cannot be told from the new axis */
  uint32_t halves[2], present;
  for (uint32_t i = 0; i < 2; ++i)
    OPI_TRY(opi_emit_reshape(b, out[OPI_ATT_PRESENT_K + i], shape, 5, kept, &halves[i], err));
  OPI_TRY(opi_k_concat(b, halves, 2, 0, &present, err));
  return opi_b_result(b, node, 1, present, err);
}

opipe_status opi_ms_attention_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[OPI_ATT_INPUTS], out[OPI_ATT_OUTPUTS], x;
  packed p;
  OPI_TRY(check(b, node, &p, err));
  const bool causal = opi_attr_int(node, "unidirectional", 0) != 0;
  const double scale = opi_attr_float(node, "scale", 0.0);
  const opi_padding padding = {.input = IN_MASK,
                               .batch = p.batch,
                               .q_len = p.length,
                               .total = p.total,
                               .filter = opi_attr_float(node, "mask_filter_value", -10000.0),
                               .dtype = opi_input(b, node, IN_X)->dtype,
                               .one_mark = true};
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = OPIPE_NONE;
  OPI_TRY(opi_ms_mask(b, node, &padding, IN_ATTENTION_BIAS, p.heads, &in[OPI_ATT_MASK], err));
  OPI_TRY(unpack_past(b, node, in, err));
  OPI_TRY(opi_b_op2(b, "MatMul", node->in[IN_X], node->in[IN_W], &x, err));
  if (opi_node_in(node, IN_BIAS) != OPIPE_NONE)
    OPI_TRY(opi_b_op2(b, "Add", x, node->in[IN_BIAS], &x, err));
  OPI_TRY(opi_ms_split(b, x, p.hidden, 3, in, err));
  const opi_attention how = {
      .q_heads = p.heads,
      .kv_heads = p.heads,
      .scale = scale != 0 ? scale : 1.0 / sqrt((double)(p.hidden[0] / p.heads)),
      .causal = causal,
      .precision = OPIPE_FLOAT};
  OPI_TRY(opi_attention_emit(b, &how, in, opi_wants(node, 1) ? 7 : 1, OPI_PATTERN_NONE, out, err));
  OPI_TRY(opi_b_result(b, node, 0, out[OPI_ATT_Y], err));
  return opi_wants(node, 1) ? pack_present(b, node, &p, out, err) : OPIPE_OK;
}
