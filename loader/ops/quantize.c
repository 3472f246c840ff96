/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of few bits: DequantizeLinear, QuantizeLinear, DynamicQuantizeLinear, and
 * opipe.DequantizeNBits, which MatMulNBits becomes. The variants of com.microsoft, for types that
 * the standard added later, are the same.
 *
 * Canonical DequantizeLinear and QuantizeLinear: attributes axis and block_size (and output_dtype)
 * are there. A scale of one element
 * stands for the whole tensor (axis 0, block_size 0); with block_size 0 scales are [D], D the
 * extent of the axis; else of X's rank, ceil(D / block_size) long there.
 *
 * Both are unpacked where they are read, in registers where that is a product: matrices are never
 * folded, so that weights stay as small as the file has them (emit.c).
 */
#include "loader/ops/quantize.h"

#include "loader/ops/common.h"
#include "loader/ops/contrib.h"

enum { IN_X, IN_SCALE, IN_ZERO };

/* Along an axis, in blocks of it, or as a whole. */
typedef struct spread {
  uint32_t axis;
  int64_t block;
} spread;

static opipe_status spread_fail(opi_builder *b, const opi_node *node, const spread *s,
                                opipe_error *err) {
  const opi_value *x = opi_input(b, node, IN_X), *scale = opi_input(b, node, IN_SCALE);
  char has[128], of[128];
  opi_shape_text(has, sizeof(has), scale->shape, (uint32_t)scale->rank);
  opi_shape_text(of, sizeof(of), x->shape, (uint32_t)x->rank);
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' (scale) has shape %s, which does not fit '%s' %s along axis %u "
                       "in blocks of %lld (0: one)",
                       scale->name, has, x->name, of, s->axis, (long long)s->block);
}

/* Shapes of X, scale and zero point; where the scales lie. */
static opipe_status check_spread(opi_builder *b, const opi_node *node, spread *out,
                                 opipe_error *err) {
  OPI_TRY(opi_need(b, node, IN_SCALE, "scale", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value *x = opi_input(b, node, IN_X), *scale = opi_input(b, node, IN_SCALE);
  const opi_value *zero = opi_input(b, node, IN_ZERO);
  *out = (spread){0, 0};
  if (scale->dtype == OPIPE_DOUBLE) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input '%s' (scale) is of type double",
                         scale->name);
  }
  if (zero != NULL && opi_k_elems(zero) != opi_k_elems(scale)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (zero point) has %.0f elements, '%s' (scale) %.0f", zero->name,
                         opi_k_elems(zero), scale->name, opi_k_elems(scale));
  }
  if (opi_k_elems(scale) == 1)
    return OPIPE_OK;
  OPI_TRY(opi_axis_attr(b, node, "axis", 1, (uint32_t)x->rank, &out->axis, err));
  OPI_TRY(opi_int_attr(b, node, "block_size", 0, &out->block, err));
  if (out->block < 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute block_size is %lld",
                         (long long)out->block);
  }
  bool fits = out->block == 0 ? scale->rank == 1 : scale->rank == x->rank;
  if (out->block == 0 && fits)
    fits = scale->shape[0] == x->shape[out->axis];
  for (uint32_t a = 0; out->block != 0 && fits && a < (uint32_t)x->rank; ++a) {
    const int64_t whole = x->shape[a] / out->block + (x->shape[a] % out->block != 0);
    fits = scale->shape[a] == (a == out->axis ? whole : x->shape[a]);
  }
  return fits ? OPIPE_OK : spread_fail(b, node, out, err);
}

/* Integers of 2 to 32 bits. */
static bool is_code(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return (row->elements == OPIPE_ELEM_INT || row->elements == OPIPE_ELEM_UINT) && row->bits <= 32 &&
         dtype != OPIPE_UINT32;
}

static opipe_status dequantize_spread(opi_builder *b, const opi_node *node, spread *out,
                                      opipe_error *err) {
  const opi_value *x;
  OPI_TRY(opi_in(b, node, IN_X, &x, err));
  if (!is_code(x->dtype)) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "input '%s' (x) is of type %s, not an integer of 2 to 32 bits", x->name,
                         opi_dtype_name(x->dtype));
  }
  OPI_TRY(opi_need_same_type(b, node, IN_X, IN_ZERO, err));
  return check_spread(b, node, out, err);
}

static opipe_status dequantize_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  spread s;
  uint32_t y;
  int64_t wanted = 0;
  OPI_TRY(dequantize_spread(b, node, &s, err));
  OPI_TRY(opi_int_attr(b, node, "output_dtype", 0, &wanted, err));
  if (wanted != 0 && wanted != OPIPE_FLOAT && wanted != OPIPE_FLOAT16 && wanted != OPIPE_BFLOAT16) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute output_dtype is %lld",
                         (long long)wanted);
  }
  opi_attrs_int(&attrs, "axis", s.axis);
  opi_attrs_int(&attrs, "block_size", s.block);
  OPI_TRY(opi_k_one(b, "DequantizeLinear", 25, node->in, node->n_in, &attrs, &y, err));
  if (wanted != 0)
    OPI_TRY(opi_k_cast(b, y, (uint32_t)wanted, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status dequantize_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  spread s;
  OPI_TRY(dequantize_spread(b, node, &s, err));
  const opi_value x = *opi_input(b, node, IN_X);
  return opi_b_set(b, node, 0, opi_input(b, node, IN_SCALE)->dtype, x.shape, (uint32_t)x.rank, err);
}

/* Y carries what X does; scales that follow the carried axis would have to be split with it. */
static opipe_status spread_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const opi_value *scale = &graph->values[node->in[IN_SCALE]];
  OPI_TRY(opi_carry_first(graph, node, in, out, err));
  const bool along = in[IN_X].axis == (int32_t)opi_attr_int(node, "axis", 0) ||
                     opi_attr_int(node, "block_size", 0) != 0;
  if (in[IN_X].axis >= 0 && along && opi_k_elems(scale) != 1)
    return opi_carry_refuse(graph, node, IN_X, "its scales follow that axis", err);
  return OPIPE_OK;
}

static void spread_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 2.0, out_work);
}

/* -- QuantizeLinear and DynamicQuantizeLinear -------------------------------------------------- */

/* The type that comes out: the zero point's, the attribute's, or uint8. */
static opipe_status quantized_type(opi_builder *b, const opi_node *node, uint32_t *out,
                                   opipe_error *err) {
  const opi_value *zero = opi_input(b, node, IN_ZERO);
  int64_t wanted;
  OPI_TRY(opi_int_attr(b, node, "output_dtype", 0, &wanted, err));
  *out = zero != NULL ? zero->dtype : wanted != 0 ? (uint32_t)wanted : OPIPE_UINT8;
  if (is_code(*out) && opi_dtype_bits(*out) <= 16 && (wanted == 0 || wanted == (int64_t)*out))
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                       "makes %s, output_dtype %lld: integers of 2 to 16 bits are supported",
                       opi_dtype_name(*out), (long long)wanted);
}

static opipe_status quantize_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  spread s;
  uint32_t dtype;
  OPI_TRY(opi_need(b, node, IN_X, "x", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(check_spread(b, node, &s, err));
  OPI_TRY(quantized_type(b, node, &dtype, err));
  opi_attrs_int(&attrs, "axis", s.axis);
  opi_attrs_int(&attrs, "block_size", s.block);
  opi_attrs_int(&attrs, "output_dtype", (int64_t)dtype);
  return opi_k_lift(b, node, "QuantizeLinear", NULL, 25, &attrs, err);
}

static opipe_status quantize_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  spread s;
  uint32_t dtype;
  OPI_TRY(opi_need(b, node, IN_X, "x", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(check_spread(b, node, &s, err));
  OPI_TRY(quantized_type(b, node, &dtype, err));
  const opi_value x = *opi_input(b, node, IN_X);
  return opi_b_set(b, node, 0, dtype, x.shape, (uint32_t)x.rank, err);
}

/* The range is that of the whole tensor: no axis of it can be split. */
static opipe_status dynamic_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_need(b, node, IN_X, "x", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value x = *opi_input(b, node, IN_X);
  if (x.dtype != OPIPE_FLOAT) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' (x) is of type %s, not float32",
                         x.name, opi_dtype_name(x.dtype));
  }
  OPI_TRY(opi_b_set(b, node, 0, OPIPE_UINT8, x.shape, (uint32_t)x.rank, err));
  OPI_TRY(opi_b_set(b, node, 1, OPIPE_FLOAT, NULL, 0, err));
  return opi_b_set(b, node, 2, OPIPE_UINT8, NULL, 0, err);
}

/* -- opipe.DequantizeNBits --------------------------------------------------------------------- */

opipe_status opi_nbits_of(const opi_builder *b, const opi_node *node, opi_nbits *out,
                          opipe_error *err) {
  opi_nbits n = {.bits = opi_attr_int(node, "bits", 4)};
  OPI_TRY(opi_need_int(b, node, "K", 1, INT32_MAX, &n.k, err));
  OPI_TRY(opi_need_int(b, node, "N", 1, INT32_MAX, &n.n, err));
  OPI_TRY(opi_need_int(b, node, "block_size", 16, 1 << 20, &n.block, err));
  if (n.bits != 2 && n.bits != 4 && n.bits != 8) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute bits is %lld, not 2, 4 or 8",
                         (long long)n.bits);
  }
  if ((n.block & (n.block - 1)) != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute block_size is %lld, no power of two", (long long)n.block);
  }
  n.blocks = (n.k + n.block - 1) / n.block;
  n.zero_bytes = (n.blocks * n.bits + 7) / 8;
  *out = n;
  return OPIPE_OK;
}

static opipe_status need_elements(const opi_builder *b, const opi_node *node, uint32_t i,
                                  const char *what, int64_t rows, int64_t each, opipe_error *err) {
  const opi_value *x = opi_input(b, node, i);
  if (opi_k_elems(x) == (double)rows * (double)each)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' (%s) has %.0f elements, %lld x %lld are needed", x->name, what,
                       opi_k_elems(x), (long long)rows, (long long)each);
}

opipe_status opi_nbits_check(const opi_builder *b, const opi_node *node, const opi_nbits *n,
                             uint32_t codes, opipe_error *err) {
  const int64_t packed[3] = {n->n, n->blocks, n->block * n->bits / 8};
  const uint32_t scales = codes + 1, zeros = codes + 2;
  OPI_TRY(opi_need(b, node, codes, "B", OPI_T_USMALL, 3, 3, err));
  OPI_TRY(opi_need_shape(b, node, codes, packed, 3, err));
  OPI_TRY(opi_need(b, node, scales, "scales", OPI_T_FLOAT, 1, 3, err));
  OPI_TRY(need_elements(b, node, scales, "scales", n->n, n->blocks, err));
  OPI_TRY(opi_may(b, node, zeros, "zero_points", OPI_T_FLOAT | OPI_T_USMALL, 1, 3, err));
  const opi_value *x = opi_input(b, node, codes), *z = opi_input(b, node, zeros);
  const bool numbers = z != NULL && opi_dtype_is_float(z->dtype);
  if (x->dtype != OPIPE_UINT8 || (z != NULL && !numbers && z->dtype != OPIPE_UINT8)) {
    const opi_value *wrong = x->dtype != OPIPE_UINT8 ? x : z;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' is of type %s, not uint8",
                         wrong->name, opi_dtype_name(wrong->dtype));
  }
  if (numbers)
    OPI_TRY(opi_need_same_type(b, node, scales, zeros, err));
  if (opi_input(b, node, scales)->dtype == OPIPE_DOUBLE) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input '%s' (scales) is of type double",
                         opi_input(b, node, scales)->name);
  }
  return z == NULL ? OPIPE_OK
                   : need_elements(b, node, zeros, "zero_points", n->n,
                                   numbers ? n->blocks : n->zero_bytes, err);
}

static opipe_status nbits_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_nbits n;
  OPI_TRY(opi_nbits_of(b, node, &n, err));
  OPI_TRY(opi_nbits_check(b, node, &n, 0, err));
  const int64_t shape[2] = {n.n, n.k};
  return opi_b_set(b, node, 0, OPIPE_FLOAT, shape, 2, err);
}

static const opi_op ops[] = {
    {OPI_OP("DequantizeLinear", "", 10, OPI_NEWEST_ONNX, 2, 3, 1, 1),
     OPI_ATTRS(28, OPI_A(INT, "axis", .since = 13, OPI_PRESET(1)),
               OPI_A(INT, "block_size", .since = 21, OPI_PRESET(0)),
               OPI_A(INT, "output_dtype", .since = 23, OPI_PRESET(0))),
     .lift = dequantize_lift, .infer = dequantize_infer, .work = spread_work, .carry = spread_carry,
     .stops_gradient = ~UINT64_C(0), OPI_COLUMNS(NONE, AS_IS, OTHER, ANY, NONE, UNPACK, NEVER)},
    {OPI_OP("QuantizeLinear", "", 10, OPI_NEWEST_ONNX, 2, 3, 1, 1),
     OPI_ATTRS(28, OPI_A(INT, "axis", .since = 13, OPI_PRESET(1)),
               OPI_A(INT, "saturate", .since = 19, OPI_ONLY(1)),
               OPI_A(INT, "output_dtype", .since = 21, OPI_PRESET(0)),
               OPI_A(INT, "block_size", .since = 21, OPI_PRESET(0)),
               OPI_A(INT, "precision", .since = 23, OPI_ONLY(0))),
     .lift = quantize_lift, .infer = quantize_infer, .work = spread_work, .carry = spread_carry,
     .stops_gradient = ~UINT64_C(0), OPI_COLUMNS(NONE, AS_IS, OTHER, ANY, NONE, PACK, NEVER)},
    {OPI_OP("DequantizeLinear", OPI_MS, 1, 1, 2, 3, 1, 1), OPI_ATTRS(1, OPI_A(INT, "axis")),
     .lift = dequantize_lift},
    {OPI_OP("QuantizeLinear", OPI_MS, 1, 1, 2, 3, 1, 1), OPI_ATTRS(1, OPI_A(INT, "axis")),
     .lift = quantize_lift},
    {OPI_OP("DynamicQuantizeLinear", "", 11, OPI_NEWEST_ONNX, 1, 1, 3, 3), OPI_NO_ATTRS(11),
     .infer = dynamic_infer, .work = spread_work, .stops_gradient = ~UINT64_C(0),
     OPI_COLUMNS(NONE, AS_IS, OTHER, ANY, NONE, PACK, NEVER)},
    {OPI_OP("DequantizeNBits", "opipe", 1, 1, 2, 3, 1, 1), .infer = nbits_infer,
     .work = spread_work, .stops_gradient = ~UINT64_C(0),
     OPI_COLUMNS(NONE, AS_IS, OTHER, ANY, NONE, UNPACK, NEVER)},
};

const opi_op_family opi_ops_quantize = {ops, OPI_COUNT(ops)};
