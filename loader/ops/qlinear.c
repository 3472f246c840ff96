/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on quantized tensors, as ONNX Runtime's quantizers and its optimiser write them:
 * QLinear* and their kin. Each becomes DequantizeLinear of what it reads, the operator on numbers,
 * and QuantizeLinear of the result: the form that files with QDQ pairs have, of which
 * passes/fuse_integer.c makes products of integers.
 *
 * A tensor is three inputs: codes, scale, zero point (may be absent). The operator on numbers is
 * lifted by its own rule, so attributes mean what they mean there. int32 biases have the scale of
 * the product and no zero point.
 */
#include "loader/ops/contrib.h"

enum { NO_AXIS = -1 };

/* -- codes to numbers and back ----------------------------------------------------------------- */

/* Scale and zero point of one number of elements: the smaller is repeated. */
static opipe_status match_elements(opi_builder *b, uint32_t *io_scale, uint32_t *io_zero,
                                   opipe_error *err) {
  uint32_t *few = io_scale;
  if (*io_scale == OPIPE_NONE || *io_zero == OPIPE_NONE)
    return OPIPE_OK;
  const opi_value scale = *opi_b_value(b, *io_scale), zero = *opi_b_value(b, *io_zero);
  if (opi_k_elems(&scale) == opi_k_elems(&zero))
    return OPIPE_OK;
  const opi_value *many = opi_k_elems(&scale) == 1 ? &zero : &scale;
  if (many == &scale)
    few = io_zero;
  if (opi_k_elems(opi_b_value(b, *few)) != 1)
    return OPIPE_OK; /* refused by DequantizeLinear */
  OPI_TRY(opi_k_reshape(b, *few, NULL, 0, few, err));
  return opi_k_expand(b, *few, many->shape, (uint32_t)many->rank, few, err);
}

/* Inputs i, i + 1 (scale), i + 2 (zero point) as numbers; scales that are several lie along `axis`,
 * counted from the end where it is negative. */
static opipe_status numbers_of(opi_builder *b, const opi_node *node, uint32_t i, uint32_t scale,
                               uint32_t zero, int64_t axis, uint32_t *out, opipe_error *err) {
  uint32_t in[3] = {opi_node_in(node, i), opi_node_in(node, scale), opi_node_in(node, zero)};
  opi_attrs attrs = {.n = 0};
  if (in[0] == OPIPE_NONE || in[1] == OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input %u is absent",
                         in[0] == OPIPE_NONE ? i : scale);
  }
  OPI_TRY(match_elements(b, &in[1], &in[2], err));
  const int64_t rank = opi_b_value(b, in[0])->rank;
  const bool one = opi_k_elems(opi_b_value(b, in[1])) == 1;
  opi_attrs_int(&attrs, "axis", one ? 0 : axis < 0 ? axis + rank : axis);
  opi_attrs_int(&attrs, "block_size", 0);
  return opi_k_one(b, "DequantizeLinear", 25, in, in[2] == OPIPE_NONE ? 2 : 3, &attrs, out, err);
}

static opipe_status tensor_of(opi_builder *b, const opi_node *node, uint32_t i, int64_t axis,
                              uint32_t *out, opipe_error *err) {
  return numbers_of(b, node, i, i + 1, i + 2, axis, out, err);
}

/* `x` by scale and zero point in inputs i and i + 1; without a zero point of type `dtype`. */
static opipe_status result_of(opi_builder *b, const opi_node *node, uint32_t x, uint32_t i,
                              uint32_t dtype, int64_t axis, uint32_t *out, opipe_error *err) {
  uint32_t in[3] = {x, opi_node_in(node, i), opi_node_in(node, i + 1)};
  opi_attrs attrs = {.n = 0};
  if (in[1] == OPIPE_NONE)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input %u is absent", i);
  OPI_TRY(match_elements(b, &in[1], &in[2], err));
  const bool one = opi_k_elems(opi_b_value(b, in[1])) == 1;
  const int64_t rank = opi_b_value(b, x)->rank;
  opi_attrs_int(&attrs, "axis", one ? 0 : axis < 0 ? axis + rank : axis);
  opi_attrs_int(&attrs, "block_size", 0);
  opi_attrs_int(&attrs, "output_dtype", in[2] == OPIPE_NONE ? dtype : opi_b_value(b, in[2])->dtype);
  return opi_k_one(b, "QuantizeLinear", 25, in, in[2] == OPIPE_NONE ? 2 : 3, &attrs, out, err);
}

static opipe_status finish(opi_builder *b, const opi_node *node, uint32_t x, uint32_t i,
                           opipe_error *err) {
  uint32_t y;
  OPI_TRY(result_of(b, node, x, i, opi_input(b, node, 0)->dtype, NO_AXIS, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* An int32 bias times the scales of what is multiplied, and `alpha`. */
static opipe_status bias_of(opi_builder *b, const opi_node *node, uint32_t i, uint32_t a_scale,
                            uint32_t b_scale, double alpha, uint32_t *out, opipe_error *err) {
  uint32_t scale = node->in[a_scale], one, number;
  *out = opi_node_in(node, i);
  if (*out == OPIPE_NONE)
    return OPIPE_OK;
  const opi_value *bias = opi_input(b, node, i);
  if (bias->dtype != OPIPE_INT32 || opi_k_elems(opi_input(b, node, a_scale)) != 1) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' is of type %s, '%s' (scale) has %.0f elements: int32 and one "
                         "are needed",
                         bias->name, opi_dtype_name(bias->dtype), opi_input(b, node, a_scale)->name,
                         opi_k_elems(opi_input(b, node, a_scale)));
  }
  OPI_TRY(opi_k_reshape(b, scale, NULL, 0, &scale, err));
  OPI_TRY(opi_b_op2(b, "Mul", scale, node->in[b_scale], &scale, err));
  if (alpha != 1.0) {
    OPI_TRY(opi_k_const(one = opi_b_const_scalar(b, OPIPE_FLOAT, alpha), err));
    OPI_TRY(opi_b_op2(b, "Mul", scale, one, &scale, err));
  }
  OPI_TRY(opi_k_cast(b, *out, OPIPE_FLOAT, &number, err));
  return opi_b_op2(b, "Mul", number, scale, out, err);
}

/* -- the operator on numbers ------------------------------------------------------------------- */

/* Attributes of `node` that `op` has too, by name; NULL ends the list. */
static opi_node inner_of(const opi_node *node, const char *op, const char *domain, uint32_t version,
                         uint32_t *in, uint32_t n_in, uint32_t *out, opipe_attr *attrs,
                         const char *const *names) {
  opi_node inner = {.name = node->name,
                    .op = op,
                    .domain = domain,
                    .in = in,
                    .n_in = n_in,
                    .out = out,
                    .n_out = 1,
                    .version = version,
                    .source = node->source,
                    .stage = node->stage,
                    .attrs = attrs};
  for (uint32_t i = 0; names != NULL && names[i] != NULL; ++i) {
    const opipe_attr *attr = opi_attr_find(node, names[i]);
    if (attr != NULL)
      attrs[inner.n_attrs++] = *attr;
  }
  return inner;
}

enum { MOST_ATTRS = 8 };

/* Lifts `op` on numbers; one output. */
static opipe_status apply(opi_builder *b, const opi_node *node, const char *op, uint32_t version,
                          uint32_t *in, uint32_t n_in, const char *const *names, uint32_t *out,
                          opipe_error *err) {
  opipe_attr attrs[MOST_ATTRS];
  uint32_t first = 0;
  const opi_node inner = inner_of(node, op, "", version, in, n_in, &first, attrs, names);
  return opi_b_lift_within(b, &inner, out, err);
}

/* Channels last to first, or back, where attribute channels_last says so. */
static opipe_status turn_channels(opi_builder *b, const opi_node *node, bool to_first, uint32_t *io,
                                  opipe_error *err) {
  int64_t perm[OPIPE_MAX_RANK];
  const int64_t rank = opi_b_value(b, *io)->rank;
  if (opi_attr_int(node, "channels_last", 0) == 0 || rank < 3)
    return OPIPE_OK;
  for (int64_t a = 1; to_first && a < rank; ++a)
    perm[a] = a == 1 ? rank - 1 : a - 1;
  for (int64_t a = 1; !to_first && a < rank; ++a)
    perm[a] = a == rank - 1 ? 1 : a + 1;
  perm[0] = 0;
  return opi_k_transpose(b, *io, perm, (uint32_t)rank, io, err);
}

/* -- products ---------------------------------------------------------------------------------- */

/* a, b: scales a row of a (axis -2), a column of b (-1). */
static opipe_status matmul_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[2], y;
  OPI_TRY(tensor_of(b, node, 0, -2, &in[0], err));
  OPI_TRY(tensor_of(b, node, 3, -1, &in[1], err));
  OPI_TRY(apply(b, node, "MatMul", 13, in, 2, NULL, &y, err));
  OPI_TRY(result_of(b, node, y, 6, opi_input(b, node, 0)->dtype, -2, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status conv_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const char *const names[] = {"auto_pad", "dilations", "group", "kernel_shape",
                                      "pads",     "strides",   NULL};
  uint32_t in[3], y;
  OPI_TRY(tensor_of(b, node, 0, NO_AXIS, &in[0], err));
  OPI_TRY(turn_channels(b, node, true, &in[0], err));
  OPI_TRY(tensor_of(b, node, 3, 0, &in[1], err));
  OPI_TRY(bias_of(b, node, 8, 1, 4, 1.0, &in[2], err));
  OPI_TRY(apply(b, node, "Conv", 22, in, 3, names, &y, err));
  OPI_TRY(turn_channels(b, node, false, &y, err));
  return finish(b, node, y, 6, err);
}

static opipe_status gemm_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const char *const names[] = {"alpha", "transA", "transB", NULL};
  uint32_t in[3], y;
  OPI_TRY(tensor_of(b, node, 0, NO_AXIS, &in[0], err));
  OPI_TRY(tensor_of(b, node, 3, opi_attr_int(node, "transB", 0) != 0 ? 0 : 1, &in[1], err));
  OPI_TRY(bias_of(b, node, 6, 1, 4, opi_attr_float(node, "alpha", 1.0), &in[2], err));
  OPI_TRY(apply(b, node, "Gemm", 13, in, 3, names, &y, err));
  return opi_node_in(node, 7) == OPIPE_NONE ? opi_b_result(b, node, 0, y, err)
                                            : finish(b, node, y, 7, err);
}

/* y + bias (input i) as output 0. */
static opipe_status with_bias(opi_builder *b, const opi_node *node, uint32_t y, uint32_t i,
                              opipe_error *err) {
  if (opi_node_in(node, i) != OPIPE_NONE)
    OPI_TRY(opi_b_op2(b, "Add", y, node->in[i], &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* A, B, a_scale, b_scale, a_zero_point?, b_zero_point?, bias? */
static opipe_status to_float_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[2], y;
  OPI_TRY(numbers_of(b, node, 0, 2, 4, -2, &in[0], err));
  OPI_TRY(numbers_of(b, node, 1, 3, 5, -1, &in[1], err));
  OPI_TRY(apply(b, node, "MatMul", 13, in, 2, NULL, &y, err));
  return with_bias(b, node, y, 6, err);
}

/* A (numbers), B, b_scale, b_zero_point?, bias? */
static opipe_status dynamic_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t made[3], in[2], y;
  opi_attrs attrs = {.n = 0};
  OPI_TRY(opi_need(b, node, 0, "A", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_k_node(b, "DynamicQuantizeLinear", NULL, 11, node->in, 1, 7, NULL, made, err));
  opi_attrs_int(&attrs, "axis", 0);
  opi_attrs_int(&attrs, "block_size", 0);
  OPI_TRY(opi_k_one(b, "DequantizeLinear", 25, made, 3, &attrs, &in[0], err));
  OPI_TRY(numbers_of(b, node, 1, 2, 3, -1, &in[1], err));
  OPI_TRY(apply(b, node, "MatMul", 13, in, 2, NULL, &y, err));
  return with_bias(b, node, y, 4, err);
}

/* -- element by element, pools, joins ---------------------------------------------------------- */

static opipe_status binary_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[2], y;
  OPI_TRY(tensor_of(b, node, 0, NO_AXIS, &in[0], err));
  OPI_TRY(tensor_of(b, node, 3, NO_AXIS, &in[1], err));
  OPI_TRY(apply(b, node, node->op + sizeof "QLinear" - 1, 14, in, 2, NULL, &y, err));
  return finish(b, node, y, 6, err);
}

/* Lifts an operator on one tensor, named after QLinear. Channels are last if the operator has such
 * an attribute. */
static opipe_status unary_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const char *const names[] = {"alpha",    "auto_pad", "axes",    "axis", "ceil_mode",
                                      "keepdims", "pads",     "strides", NULL};
  static const char *const pool[] = {
      "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides", NULL};
  const char *op = node->op + sizeof "QLinear" - 1;
  const bool pools = strcmp(op, "AveragePool") == 0;
  const bool softmax = strcmp(op, "Softmax") == 0;
  uint32_t x, y;
  int64_t version = 13; /* axes of ReduceMean are an attribute */
  if (softmax)
    OPI_TRY(opi_need_int(b, node, "opset", 1, 1000, &version, err));
  OPI_TRY(tensor_of(b, node, 0, NO_AXIS, &x, err));
  OPI_TRY(turn_channels(b, node, true, &x, err));
  OPI_TRY(apply(b, node, op, (uint32_t)version, &x, 1, pools ? pool : names, &y, err));
  OPI_TRY(turn_channels(b, node, false, &y, err));
  return finish(b, node, y, 3, err);
}

static opipe_status where_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[3] = {node->in[0]}, y;
  OPI_TRY(tensor_of(b, node, 1, NO_AXIS, &in[1], err));
  OPI_TRY(tensor_of(b, node, 4, NO_AXIS, &in[2], err));
  OPI_TRY(apply(b, node, "Where", 16, in, 3, NULL, &y, err));
  OPI_TRY(result_of(b, node, y, 7, opi_input(b, node, 1)->dtype, NO_AXIS, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* Y's scale and zero point, then three inputs for each tensor. */
static opipe_status concat_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const char *const names[] = {"axis", NULL};
  const uint32_t n = (node->n_in - 2) / 3;
  uint32_t y;
  uint32_t *in = OPI_ARENA_ARRAY(b->scratch, uint32_t, n == 0 ? 1 : n);
  if (in == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 4, "the inputs of a node");
  if (n == 0 || (node->n_in - 2) % 3 != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "has %u inputs: two, and three for each tensor, are needed", node->n_in);
  }
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(tensor_of(b, node, 2 + 3 * i, NO_AXIS, &in[i], err));
  OPI_TRY(apply(b, node, "Concat", 13, in, n, names, &y, err));
  OPI_TRY(result_of(b, node, y, 0, opi_input(b, node, 2)->dtype, NO_AXIS, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* -- operators of transformers -- */

/* The operator of com.microsoft without its Q, all attributes as they are, and its outputs. */
static opipe_status apply_fused(opi_builder *b, const opi_node *node, uint32_t *in, uint32_t n_in,
                                opipe_error *err) {
  uint32_t out[2] = {opi_node_out(node, 0), opi_node_out(node, 1)}, made[2];
  const opi_node inner = {.name = node->name,
                          .op = node->op + 1,
                          .domain = OPI_MS,
                          .in = in,
                          .n_in = n_in,
                          .out = out,
                          .n_out = 2,
                          .version = 1,
                          .source = node->source,
                          .stage = node->stage,
                          .attrs = node->attrs,
                          .n_attrs = node->n_attrs};
  OPI_TRY(opi_b_lift_within(b, &inner, made, err));
  for (uint32_t o = 0; o < 2; ++o) {
    if (opi_wants(node, o))
      OPI_TRY(opi_b_result(b, node, o, made[o], err));
  }
  return OPIPE_OK;
}

/* input, weight, bias, scales of both, mask_index?, zero points of both?, past? */
static opipe_status attention_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[5] = {OPIPE_NONE, OPIPE_NONE, node->in[2], opi_node_in(node, 5),
                    opi_node_in(node, 8)};
  OPI_TRY(numbers_of(b, node, 0, 3, 6, NO_AXIS, &in[0], err));
  OPI_TRY(numbers_of(b, node, 1, 4, 7, -1, &in[1], err));
  return apply_fused(b, node, in, 5, err);
}

/* input_ids, segment_ids?, five tables (the third may be absent) with mask? behind them, then their
 * scales and their zero points. */
static opipe_status embed_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  enum { TABLES = 5, FIRST = 2, MASK = 7, SCALES = 8, ZEROS = 13 };
  uint32_t in[8] = {node->in[0], opi_node_in(node, 1)};
  for (uint32_t t = 0; t < TABLES; ++t) {
    in[2 + t] = OPIPE_NONE;
    if (opi_node_in(node, FIRST + t) != OPIPE_NONE)
      OPI_TRY(numbers_of(b, node, FIRST + t, SCALES + t, ZEROS + t, NO_AXIS, &in[2 + t], err));
  }
  in[7] = opi_node_in(node, MASK);
  return apply_fused(b, node, in, 8, err);
}

/* -- the table --------------------------------------------------------------------------------- */

#define MS(name_, min_in_, max_in_, max_out_, lift_, attrs_) \
  { OPI_OP(name_, OPI_MS, 1, 1, min_in_, max_in_, 1, max_out_), attrs_, .lift = lift_ }
#define A_PADDING OPI_A(STRING, "auto_pad", OPI_TEXTS("NOTSET SAME_UPPER SAME_LOWER VALID"))
#define A_CONV                                                             \
  A_PADDING, OPI_A(INTS, "dilations"), OPI_A(INT, "group", OPI_PRESET(1)), \
      OPI_A(INTS, "kernel_shape"), OPI_A(INTS, "pads"), OPI_A(INTS, "strides")
#define A_CHANNELS OPI_A(INT, "channels_last", OPI_PRESET(0))

static const opi_op ops[] = {
    {OPI_OP("QLinearMatMul", "", 10, OPI_NEWEST_ONNX, 8, 8, 1, 1), OPI_NO_ATTRS(21),
     .lift = matmul_lift},
    {OPI_OP("QLinearConv", "", 10, OPI_NEWEST_ONNX, 8, 9, 1, 1), OPI_ATTRS(10, A_CONV),
     .lift = conv_lift},
    MS("QLinearConv", 8, 9, 1, conv_lift, OPI_ATTRS(1, A_CONV, A_CHANNELS)),
    MS("QGemm", 6, 9, 1, gemm_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "alpha", OPI_PRESET(1)), OPI_A(INT, "transA", OPI_PRESET(0)),
                 OPI_A(INT, "transB", OPI_PRESET(0)))),
    MS("MatMulIntegerToFloat", 4, 7, 1, to_float_lift, OPI_NO_ATTRS(1)),
    MS("DynamicQuantizeMatMul", 3, 5, 1, dynamic_lift, OPI_NO_ATTRS(1)),
    MS("QLinearAdd", 7, 8, 1, binary_lift, OPI_NO_ATTRS(1)),
    MS("QLinearMul", 7, 8, 1, binary_lift, OPI_NO_ATTRS(1)),
    MS("QLinearSigmoid", 4, 5, 1, unary_lift, OPI_NO_ATTRS(1)),
    MS("QLinearLeakyRelu", 4, 5, 1, unary_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "alpha", OPI_PRESET(0.01)))),
    MS("QLinearSoftmax", 5, 5, 1, unary_lift,
       OPI_ATTRS(1, OPI_A(INT, "axis", OPI_PRESET(-1)), OPI_A(INT, "opset"))),
    MS("QLinearReduceMean", 4, 5, 1, unary_lift,
       OPI_ATTRS(1, OPI_A(INTS, "axes"), OPI_A(INT, "keepdims"))),
    MS("QLinearAveragePool", 4, 5, 1, unary_lift,
       OPI_ATTRS(1, A_PADDING, OPI_A(INT, "ceil_mode", OPI_PRESET(0)), A_CHANNELS,
                 OPI_A(INT, "count_include_pad", OPI_PRESET(0)), OPI_A(INTS, "kernel_shape"),
                 OPI_A(INTS, "pads"), OPI_A(INTS, "strides"))),
    MS("QLinearGlobalAveragePool", 5, 5, 1, unary_lift, OPI_ATTRS(1, A_CHANNELS)),
    MS("QLinearWhere", 9, 9, 1, where_lift, OPI_NO_ATTRS(1)),
    MS("QLinearConcat", 5, 255, 1, concat_lift, OPI_ATTRS(1, OPI_A(INT, "axis"))),
    MS("QAttention", 5, 9, 2, attention_lift,
       OPI_ATTRS(1, OPI_A(INT, "do_rotary", OPI_ONLY(0)), OPI_A(FLOAT, "mask_filter_value"),
                 OPI_A(INT, "num_heads"), OPI_A(INT, "past_present_share_buffer", OPI_ONLY(0)),
                 OPI_A(FLOAT, "scale"), OPI_A(INT, "unidirectional", OPI_PRESET(0)))),
    MS("QEmbedLayerNormalization", 13, 18, 2, embed_lift,
       OPI_ATTRS(1, OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-12)))),
};

const opi_op_family opi_ops_qlinear = {ops, OPI_COUNT(ops)};
