/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft operators: the table, and the small ones (the GELU family, biases in front of
 * softmax and dropout).
 *
 * All of them are lifted to canonical operators: none reaches a backend. Hence their shape rules
 * only say so.
 */
#include "loader/ops/contrib.h"
#include "loader/ops/dropout.h"

/* -- the GELU family --------------------------------------------------------------------------- */

static opipe_status emit_gelu(opi_builder *b, const opi_node *node, uint32_t x,
                              const char *approximate, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t y;
  opi_attrs_string(&attrs, "approximate", approximate);
  OPI_TRY(opi_k_one(b, "Gelu", 20, &x, 1, &attrs, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* x + bias along the last axes; without a bias x itself. */
static opipe_status add_bias(opi_builder *b, const opi_node *node, uint32_t i, uint32_t *out,
                             opipe_error *err) {
  *out = node->in[0];
  if (opi_node_in(node, i) == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_need(b, node, 0, "A", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, i, "bias", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_same_type(b, node, 0, i, err));
  const opi_value *x = opi_input(b, node, 0), *bias = opi_input(b, node, i);
  if (bias->rank > x->rank)
    return opi_need(b, node, i, "bias", OPI_T_FLOAT, 1, x->rank, err);
  for (int32_t a = 0; a < bias->rank; ++a) {
    OPI_TRY(opi_need_dim(b, node, i, (uint32_t)a, x->shape[x->rank - bias->rank + a],
                         "as the last axes of the input", err));
  }
  return opi_b_op2(b, "Add", node->in[0], node->in[i], out, err);
}

static opipe_status gelu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  return emit_gelu(b, node, node->in[0], "none", err);
}

static opipe_status bias_gelu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t x;
  OPI_TRY(opi_need(b, node, 1, "B", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(add_bias(b, node, 1, &x, err));
  return emit_gelu(b, node, x, "none", err);
}

static opipe_status fast_gelu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t x;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(add_bias(b, node, 1, &x, err));
  return emit_gelu(b, node, x, "tanh", err);
}

static opipe_status quick_gelu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", (double)1.702f));
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  return opi_k_lift(b, node, "Swish", NULL, 24, &attrs, err);
}

/* (x + bias) in two halves: left * gelu(right). */
static opipe_status bias_split_gelu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t x, halves[2], y;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 3, 3, err));
  OPI_TRY(opi_need(b, node, 1, "bias", OPI_T_FLOAT, 1, 1, err));
  const int64_t n = opi_input(b, node, 0)->shape[2];
  if (n % 2 != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' has %lld along axis 2, an even number is needed",
                         opi_input(b, node, 0)->name, (long long)n);
  }
  OPI_TRY(add_bias(b, node, 1, &x, err));
  const int64_t sizes[2] = {n / 2, n / 2};
  OPI_TRY(opi_ms_split(b, x, sizes, 2, halves, err));
  opi_attrs_string(&attrs, "approximate", "none");
  OPI_TRY(opi_k_one(b, "Gelu", 20, &halves[1], 1, &attrs, &y, err));
  OPI_TRY(opi_b_op2(b, "Mul", halves[0], y, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* -- softmax and dropout with a bias ----------------------------------------------------------- */

/* data + bias, softmax over everything from `axis` on. */
static opipe_status bias_softmax_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  int64_t flat[2] = {1, 1};
  uint32_t axis, x;
  OPI_TRY(opi_need(b, node, 0, "data", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "bias", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_axis(b, node, 1, &axis, err));
  const opi_value data = *opi_input(b, node, 0);
  OPI_TRY(opi_b_op2(b, "Add", node->in[0], node->in[1], &x, err));
  const opi_value *sum = opi_b_value(b, x);
  if (sum->rank != data.rank ||
      memcmp(sum->shape, data.shape, (size_t)data.rank * sizeof(*data.shape)) != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (bias) does not broadcast to the shape of '%s'",
                         opi_input(b, node, 1)->name, data.name);
  }
  for (uint32_t a = 0; a < (uint32_t)data.rank; ++a)
    flat[a < axis ? 0 : 1] *= data.shape[a];
  OPI_TRY(opi_k_reshape(b, x, flat, 2, &x, err));
  opi_attrs_int(&attrs, "axis", 1);
  OPI_TRY(opi_k_one(b, "Softmax", 13, &x, 1, &attrs, &x, err));
  OPI_TRY(opi_k_reshape(b, x, data.shape, (uint32_t)data.rank, &x, err));
  return opi_b_result(b, node, 0, x, err);
}

/* Inputs: data, bias, residual?, ratio?, training_mode?. Outputs: dropout(data + bias) + residual,
 * mask?. */
static opipe_status bias_dropout_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t x, mask;
  OPI_TRY(opi_need(b, node, 0, "data", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "bias", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_may(b, node, 2, "residual", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_b_op2(b, "Add", node->in[0], node->in[1], &x, err));
  OPI_TRY(opi_dropout(b, node, x, 3, opi_wants(node, 1), &x, &mask, err));
  if (opi_node_in(node, 2) != OPIPE_NONE)
    OPI_TRY(opi_b_op2(b, "Add", x, node->in[2], &x, err));
  OPI_TRY(opi_b_result(b, node, 0, x, err));
  return opi_wants(node, 1) ? opi_b_result(b, node, 1, mask, err) : OPIPE_OK;
}

/* min_out 0: files hold such nodes without any output; what is wrong with their inputs is told all
 * the same. */
#define MS(name_, min_in_, max_in_, max_out_, lift_) \
  { OPI_OP(name_, OPI_MS, 1, 1, min_in_, max_in_, 0, max_out_), .lift = lift_ }

static const opi_op ops[] = {
    MS("Gelu", 1, 1, 1, gelu_lift),
    MS("BiasGelu", 2, 2, 1, bias_gelu_lift),
    MS("FastGelu", 1, 2, 1, fast_gelu_lift),
    MS("QuickGelu", 1, 1, 1, quick_gelu_lift),
    MS("BiasSplitGelu", 2, 2, 1, bias_split_gelu_lift),
    MS("BiasSoftmax", 2, 2, 1, bias_softmax_lift),
    MS("BiasDropout", 2, 5, 2, bias_dropout_lift),
    MS("FusedGemm", 2, 3, 1, opi_ms_gemm_lift),
    MS("FusedConv", 2, 4, 1, opi_ms_conv_lift),
    MS("SkipLayerNormalization", 3, 5, 4, opi_ms_skip_lift),
    MS("SkipSimplifiedLayerNormalization", 3, 4, 4, opi_ms_skip_lift),
    MS("EmbedLayerNormalization", 7, 9, 3, opi_ms_embed_lift),
    MS("Attention", 2, 7, 2, opi_ms_attention_lift),
    MS("MultiHeadAttention", 1, 10, 4, opi_ms_mha_lift),
    MS("GroupQueryAttention", 7, 14, 4, opi_ms_gqa_lift),
    MS("RotaryEmbedding", 4, 4, 1, opi_ms_rotary_lift),
    MS("MatMulNBits", 3, 6, 1, opi_ms_bits_lift),
    MS("GatherBlockQuantized", 3, 4, 1, opi_ms_gather_blocks_lift),
};

const opi_op_family opi_ops_contrib = {ops, OPI_COUNT(ops)};
