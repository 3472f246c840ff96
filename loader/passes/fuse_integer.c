/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantized tensors as products of integers.
 *
 *   MatMul, FusedMatMul, Gemm (DequantizeLinear(x), DequantizeLinear(W))
 *     Cast(MatMulInteger(x, W, zero points)) * (scale of x * scales of W) [+ C]
 *   Conv of one group, or of one channel by one
 *     the same with ConvInteger
 *
 * x: 8 bits, one scale. W: known, 8 bits, one scale or one for each column or output channel; a
 * transposed W stays a Transpose of codes, which backends pack. The sums are exact, so that the
 * result is what the numbers give but for the rounding of their sums. Later nodes (bias,
 * activation, QuantizeLinear) stay as they are: backends fuse them.
 *
 * Not in training, which wants the gradient of the numbers.
 */
#include <math.h>

#include "loader/passes/fuse.h"

enum { MOST_SUMMED = INT32_MAX / (255 * 255) }; /* products of differences of bytes in an int32 */

/* (codes - zero) * scale */
typedef struct quantized {
  uint32_t codes, scale, zero; /* zero OPIPE_NONE: 0 */
  uint32_t axis;               /* along which scales lie where they are several */
  bool one;                    /* scale */
  bool turned;                 /* codes are a matrix that was transposed after unpacking */
} quantized;

static bool is_byte(const opi_value *v) {
  return v->dtype == OPIPE_INT8 || v->dtype == OPIPE_UINT8;
}

/* Codes and scales of a form that integers can be multiplied in. */
static bool usable(const opi_fuse *f, quantized *q) {
  const opi_value *scale = opi_f_value(f, q->scale);
  q->one = opi_k_elems(scale) == 1;
  if (!is_byte(opi_f_value(f, q->codes)) || scale->dtype != OPIPE_FLOAT)
    return false;
  return q->one || scale->rank == 1;
}

/* Finds the codes that `v` was unpacked from, even if that was folded. */
static bool read_quantized(const opi_fuse *f, uint32_t v, quantized *out) {
  const opi_node *node = opi_f_made(f, v, "DequantizeLinear");
  *out = (quantized){.codes = OPIPE_NONE};
  if (node != NULL && opi_attr_int(node, "block_size", 0) == 0) {
    *out = (quantized){.codes = node->in[0],
                       .scale = node->in[1],
                       .zero = opi_node_in(node, 2),
                       .axis = (uint32_t)opi_attr_int(node, "axis", 0)};
    return usable(f, out);
  }
  for (uint32_t i = f->b->unpacked.n; i-- > 0;) {
    const opi_unpacked *u = &f->b->unpacked.list[i];
    if (u->value != v || u->blocks != 0)
      continue;
    *out = (quantized){.codes = u->codes, .scale = u->scale, .zero = u->zero, .axis = u->axis};
    return usable(f, out);
  }
  return false;
}

/* A known matrix of codes, perhaps transposed once it was unpacked. */
static bool read_matrix(const opi_fuse *f, uint32_t v, quantized *out) {
  const opi_node *turn = opi_f_made(f, v, "Transpose");
  const bool turned = turn != NULL && opi_f_swaps_last(turn) && opi_f_value(f, v)->rank == 2;
  if (!read_quantized(f, turned ? turn->in[0] : v, out))
    return false;
  const opi_value *codes = opi_f_value(f, out->codes);
  out->turned = turned;
  return opi_value_known(codes) && codes->rank == 2;
}

/* Scales of both, times alpha. */
static opipe_status scales_of(opi_fuse *f, const quantized *x, const quantized *w, double alpha,
                              uint32_t *out, opipe_error *err) {
  uint32_t a = x->scale, b = w->scale, number;
  OPI_TRY(opi_k_reshape(f->b, a, NULL, 0, &a, err));
  if (w->one)
    OPI_TRY(opi_k_reshape(f->b, b, NULL, 0, &b, err));
  OPI_TRY(opi_b_op2(f->b, "Mul", a, b, out, err));
  if (alpha == 1.0)
    return OPIPE_OK;
  OPI_TRY(opi_k_const(number = opi_b_const_scalar(f->b, OPIPE_FLOAT, alpha), err));
  return opi_b_op2(f->b, "Mul", *out, number, out, err);
}

/* -- products ---------------------------------------------------------------------------------- */

typedef struct product {
  quantized x, w;
  bool turned; /* W is [N,K] */
  double alpha, beta;
  uint32_t c; /* of Gemm; OPIPE_NONE */
} product;

static bool read_product(const opi_fuse *f, const opi_node *node, product *p) {
  const bool gemm = opi_f_is(node, "Gemm");
  if (!gemm && !opi_f_is(node, "MatMul") && strcmp(node->op, "FusedMatMul") != 0)
    return false;
  if (opi_attr_int(node, "transA", 0) != 0 || !read_quantized(f, node->in[0], &p->x) ||
      !read_matrix(f, node->in[1], &p->w) || !p->x.one || opi_f_value(f, p->x.codes)->rank < 2 ||
      opi_f_value(f, node->out[0])->dtype != OPIPE_FLOAT)
    return false;
  p->turned = p->w.turned != (opi_attr_int(node, "transB", 0) != 0);
  p->alpha = opi_attr_float(node, "alpha", 1.0);
  p->beta = opi_attr_float(node, "beta", 1.0);
  p->c = gemm ? opi_node_in(node, 2) : OPIPE_NONE;
  const opi_value *codes = opi_f_value(f, p->w.codes);
  return codes->shape[p->turned ? 1 : 0] <= MOST_SUMMED &&
         (p->w.one || p->w.axis == (p->turned ? 0u : 1u));
}

/* W as [K,N]: a transposition of the file's codes, made once for all who read it. */
static opipe_status turn(opi_fuse *f, uint32_t codes, uint32_t *out, opipe_error *err) {
  static const int64_t perm[2] = {1, 0};
  const opipe_attr attr = OPI_ATTR_N("perm", perm, 2);
  const opi_emit emit = {
      .op = "Transpose", .in = &codes, .n_in = 1, .n_out = 1, .attrs = &attr, .n_attrs = 1};
  *out = opi_f_recall(f, OPI_MEMO_TURNED, codes, (uint32_t)f->stage);
  if (*out != OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_b_emit_kept(f->b, &emit, out, err));
  return opi_f_remember(f, OPI_MEMO_TURNED, codes, (uint32_t)f->stage, *out, err);
}

static opipe_status fuse_product(opi_fuse *f, const product *p, uint32_t result, opipe_error *err) {
  uint32_t in[4] = {p->x.codes, p->w.codes, p->x.zero, p->w.zero}, scale, y, c = p->c, number;
  if (p->turned)
    OPI_TRY(turn(f, p->w.codes, &in[1], err));
  OPI_TRY(scales_of(f, &p->x, &p->w, p->alpha, &scale, err));
  OPI_TRY(opi_k_one(f->b, "MatMulInteger", 10, in, 4, NULL, &y, err));
  OPI_TRY(opi_k_cast(f->b, y, OPIPE_FLOAT, &y, err));
  OPI_TRY(opi_b_op2(f->b, "Mul", y, scale, &y, err));
  if (c != OPIPE_NONE && p->beta != 1.0) {
    OPI_TRY(opi_k_const(number = opi_b_const_scalar(f->b, OPIPE_FLOAT, p->beta), err));
    OPI_TRY(opi_b_op2(f->b, "Mul", c, number, &c, err));
  }
  if (c != OPIPE_NONE)
    OPI_TRY(opi_b_op2(f->b, "Add", y, c, &y, err));
  return opi_f_replace(f, result, y, OPI_PATTERN_MATMUL, err);
}

/* -- convolutions ------------------------------------------------------------------------------ */

/* One number for each channel, along axis 1 of [N, C, spatial...]. */
static opipe_status along_channels(opi_fuse *f, uint32_t v, int32_t rank, uint32_t *out,
                                   opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK] = {opi_f_value(f, v)->rank == 0 ? 1 : opi_f_value(f, v)->shape[0]};
  for (int32_t a = 1; a + 1 < rank; ++a)
    shape[a] = 1;
  return opi_k_reshape(f->b, v, shape, (uint32_t)rank - 1, out, err);
}

/* One group, or one channel by one: what backends have integer kernels for; with exact sums. */
static bool is_plain_conv(const opi_fuse *f, const opi_node *node, const quantized *w) {
  const opi_value *codes = opi_f_value(f, w->codes);
  const int64_t group = opi_attr_int(node, "group", 1);
  const bool depthwise = group == codes->shape[0] && codes->shape[1] == 1;
  if ((group != 1 && !depthwise) || codes->shape[0] == 0)
    return false;
  return opi_k_elems(codes) / (double)codes->shape[0] <= MOST_SUMMED;
}

static opipe_status fuse_conv(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node node = *opi_f_node(f, n);
  const uint32_t result = node.out[0];
  quantized x, w;
  uint32_t scale, bias = opi_node_in(&node, 2), y;
  if (!read_quantized(f, node.in[0], &x) || !x.one || !read_quantized(f, node.in[1], &w) ||
      !opi_value_known(opi_f_value(f, w.codes)) || !is_plain_conv(f, &node, &w) ||
      (!w.one && w.axis != 0) || opi_f_value(f, result)->dtype != OPIPE_FLOAT)
    return OPIPE_OK;
  const opi_value codes = *opi_f_value(f, w.codes);
  const uint32_t in[4] = {x.codes, w.codes, x.zero, w.zero};
  const opi_emit emit = {.op = "ConvInteger",
                         .in = in,
                         .n_in = 4,
                         .n_out = 1,
                         .attrs = node.attrs,
                         .n_attrs = node.n_attrs,
                         .version = 10};
  OPI_TRY(scales_of(f, &x, &w, 1.0, &scale, err));
  if (!w.one)
    OPI_TRY(along_channels(f, scale, codes.rank, &scale, err));
  OPI_TRY(opi_b_emit(f->b, &emit, &y, err));
  OPI_TRY(opi_k_cast(f->b, y, OPIPE_FLOAT, &y, err));
  OPI_TRY(opi_b_op2(f->b, "Mul", y, scale, &y, err));
  if (bias != OPIPE_NONE) {
    OPI_TRY(along_channels(f, bias, codes.rank, &bias, err));
    OPI_TRY(opi_b_op2(f->b, "Add", y, bias, &y, err));
  }
  return opi_f_replace(f, result, y, OPI_PATTERN_NONE, err);
}

opipe_status opi_fuse_integer(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  product p = {.c = OPIPE_NONE};
  if (f->b->keep_parameters)
    return OPIPE_OK;
  if (opi_f_is(node, "Conv"))
    return fuse_conv(f, n, err);
  return read_product(f, node, &p) ? fuse_product(f, &p, node->out[0], err) : OPIPE_OK;
}
