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
#define MS(name_, min_in_, max_in_, max_out_, lift_, attrs_) \
  { OPI_OP(name_, OPI_MS, 1, 1, min_in_, max_in_, 0, max_out_), attrs_, .lift = lift_ }

static const opi_op ops[] = {
    MS("Gelu", 1, 1, 1, gelu_lift, OPI_NO_ATTRS(1)),
    MS("BiasGelu", 2, 2, 1, bias_gelu_lift, OPI_NO_ATTRS(1)),
    MS("FastGelu", 1, 2, 1, fast_gelu_lift, OPI_NO_ATTRS(1)),
    MS("QuickGelu", 1, 1, 1, quick_gelu_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "alpha", OPI_PRESET(1.702)))),
    MS("BiasSplitGelu", 2, 2, 1, bias_split_gelu_lift, OPI_NO_ATTRS(1)),
    MS("BiasSoftmax", 2, 2, 1, bias_softmax_lift,
       OPI_ATTRS(1, OPI_A(INT, "is_inner_broadcast", OPI_NO_EFFECT),
                 OPI_A(INT, "axis", OPI_PRESET(1)))),
    MS("BiasDropout", 2, 5, 2, bias_dropout_lift, OPI_ATTRS(1, OPI_A(INT, "seed"))),
    MS("FusedGemm", 2, 3, 1, opi_ms_gemm_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "activation_beta"), OPI_A(FLOAT, "activation_alpha"),
                 OPI_A(STRING, "activation"), OPI_A(FLOAT, "activation_gamma"),
                 OPI_A(FLOAT, "beta", OPI_PRESET(1)), OPI_A(INT, "transB", OPI_PRESET(0)),
                 OPI_A(FLOAT, "alpha", OPI_PRESET(1)), OPI_A(INT, "transA", OPI_PRESET(0)))),
    MS("FusedConv", 2, 4, 1, opi_ms_conv_lift,
       OPI_ATTRS(1, OPI_A(STRING, "activation"), OPI_A(INT, "group", OPI_PRESET(1)),
                 OPI_A(FLOATS, "activation_params"), OPI_A(INTS, "pads"), OPI_A(INTS, "strides"),
                 OPI_A(INTS, "dilations"), OPI_A(INTS, "kernel_shape"),
                 OPI_A(STRING, "auto_pad", OPI_TEXTS("NOTSET SAME_UPPER SAME_LOWER VALID")))),
    MS("SkipLayerNormalization", 3, 5, 4, opi_ms_skip_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-12)))),
    MS("SkipSimplifiedLayerNormalization", 3, 4, 4, opi_ms_skip_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-12)))),
    MS("EmbedLayerNormalization", 7, 9, 3, opi_ms_embed_lift,
       OPI_ATTRS(1, OPI_A(INT, "mask_index_type"), OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-12)))),
    MS("Attention", 2, 7, 2, opi_ms_attention_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "scale"), OPI_A(FLOAT, "mask_filter_value"),
                 OPI_A(INT, "do_rotary", OPI_ONLY(0)),
                 OPI_A(INT, "past_present_share_buffer", OPI_ONLY(0)),
                 OPI_A(INTS, "qkv_hidden_sizes"), OPI_A(INT, "unidirectional", OPI_PRESET(0)),
                 OPI_A(INT, "rotary_embedding_dim", OPI_NO_EFFECT), OPI_A(INT, "num_heads"))),
    MS("MultiHeadAttention", 1, 10, 4, opi_ms_mha_lift,
       OPI_ATTRS(1, OPI_A(INT, "unidirectional", OPI_PRESET(0)), OPI_A(FLOAT, "scale"),
                 OPI_A(FLOAT, "mask_filter_value"), OPI_A(INT, "num_heads"))),
    MS("GroupQueryAttention", 7, 14, 4, opi_ms_gqa_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "k_norm_epsilon", OPI_NO_EFFECT),
                 OPI_A(FLOAT, "q_norm_epsilon", OPI_NO_EFFECT),
                 OPI_A(INT, "kv_cache_bit_width", OPI_NO_EFFECT), OPI_A(INT, "num_heads"),
                 OPI_A(FLOAT, "softcap"), OPI_A(INT, "kv_num_heads"),
                 OPI_A(INT, "sliding_window_cache", OPI_RANGE(0, 1)), OPI_A(INT, "do_rotary"),
                 OPI_A(INT, "causal", OPI_RANGE(0, 1), OPI_PRESET(1)), OPI_A(FLOAT, "scale"),
                 OPI_A(INT, "local_window_size", OPI_PRESET(-1)), OPI_A(INT, "rotary_interleaved"),
                 OPI_A(INT, "qk_output", OPI_ONLY(0)),
                 OPI_A(FLOAT, "qk_norm_epsilon", OPI_NO_EFFECT),
                 OPI_A(STRING, "v_quant_type", OPI_TEXTS("NONE")),
                 OPI_A(INT, "smooth_softmax", OPI_RANGE(-1, 0), OPI_PRESET(-1)),
                 OPI_A(STRING, "k_quant_type", OPI_TEXTS("NONE")))),
    MS("RotaryEmbedding", 4, 4, 1, opi_ms_rotary_lift,
       OPI_ATTRS(1, OPI_A(INT, "num_heads"), OPI_A(INT, "rotary_embedding_dim"),
                 OPI_A(INT, "interleaved"), OPI_A(INT, "is_packed_batching", OPI_ONLY(0)),
                 OPI_A(FLOAT, "scale", OPI_ONLY(1)))),
    MS("MatMulNBits", 3, 6, 1, opi_ms_bits_lift,
       OPI_ATTRS(1, OPI_A(INT, "weight_prepacked", OPI_ONLY(0)),
                 OPI_A(INT, "accuracy_level", OPI_PRESET(0)), OPI_A(INT, "block_size"),
                 OPI_A(INT, "bits", OPI_PRESET(4)), OPI_A(INT, "N"), OPI_A(INT, "K"))),
    MS("GatherBlockQuantized", 3, 4, 1, opi_ms_gather_blocks_lift,
       OPI_ATTRS(1, OPI_A(INT, "gather_axis", OPI_PRESET(0)),
                 OPI_A(INT, "quantize_axis", OPI_PRESET(1)),
                 OPI_A(INT, "block_size", OPI_PRESET(128)), OPI_A(INT, "bits", OPI_PRESET(4)))),
};

const opi_op_family opi_ops_contrib = {ops, OPI_COUNT(ops)};
