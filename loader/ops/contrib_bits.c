/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft MatMulNBits: Y = A W^T with W of 4 or 8 bits in blocks along K.
 *
 * Inputs: A [.., K], B uint8 [N, blocks, block bytes], scales [N * blocks], zero_points? (uint8,
 * packed as B, or numbers), g_idx? (not known), bias? [N]. Becomes the unpacking in integers, (q -
 * zero) * scale, and FusedMatMul: weights of known files that are small enough are unpacked when
 * the graph is bound, others at every run.
 */
#include "loader/ops/contrib.h"

enum { IN_A, IN_B, IN_SCALES, IN_ZERO, IN_GROUPS, IN_BIAS };

typedef struct packing {
  int64_t k, n, bits, block, blocks;
  uint32_t dtype;
} packing;

static opipe_status check_sizes(const opi_builder *b, const opi_node *node, packing *p,
                                opipe_error *err) {
  OPI_TRY(opi_need_int(b, node, "K", 1, INT32_MAX, &p->k, err));
  OPI_TRY(opi_need_int(b, node, "N", 1, INT32_MAX, &p->n, err));
  OPI_TRY(opi_need_int(b, node, "block_size", 16, 1 << 20, &p->block, err));
  p->bits = opi_attr_int(node, "bits", 4);
  if (p->bits != 4 && p->bits != 8) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "attribute bits is %lld, only 4 and 8 are supported for input '%s'", (long long)p->bits,
        opi_node_in(node, IN_B) != OPIPE_NONE ? opi_input(b, node, IN_B)->name : "B");
  }
  if ((p->block & (p->block - 1)) != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute block_size is %lld, no power of two", (long long)p->block);
  }
  p->blocks = (p->k + p->block - 1) / p->block;
  return OPIPE_OK;
}

static opipe_status check(const opi_builder *b, const opi_node *node, packing *p,
                          opipe_error *err) {
  OPI_TRY(check_sizes(b, node, p, err));
  const int64_t packed[3] = {p->n, p->blocks, p->block * p->bits / 8};
  OPI_TRY(opi_need(b, node, IN_A, "A", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  const opi_value *a = opi_input(b, node, IN_A);
  p->dtype = a->dtype;
  OPI_TRY(opi_need_dim(b, node, IN_A, (uint32_t)a->rank - 1, p->k, "K", err));
  OPI_TRY(opi_need(b, node, IN_B, "B", OPI_T_USMALL, 3, 3, err));
  OPI_TRY(opi_need_shape(b, node, IN_B, packed, 3, err));
  OPI_TRY(opi_need(b, node, IN_SCALES, "scales", OPI_T_FLOAT, 1, 2, err));
  OPI_TRY(opi_need_same_type(b, node, IN_A, IN_SCALES, err));
  if (opi_k_elems(opi_input(b, node, IN_SCALES)) != (double)p->n * (double)p->blocks) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (scales) has %.0f elements, %lld x %lld are needed",
                         opi_input(b, node, IN_SCALES)->name,
                         opi_k_elems(opi_input(b, node, IN_SCALES)), (long long)p->n,
                         (long long)p->blocks);
  }
  if (opi_node_in(node, IN_GROUPS) != OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input '%s' (g_idx) is not supported",
                         opi_input(b, node, IN_GROUPS)->name);
  }
  OPI_TRY(opi_may(b, node, IN_BIAS, "bias", OPI_T_FLOAT, 1, 1, err));
  return opi_need_dim(b, node, IN_BIAS, 0, p->n, "N", err);
}

/* uint8 [rows, bytes] -> int32 [rows, numbers], low half first. */
static opipe_status unpack(opi_builder *b, uint32_t x, int64_t rows, int64_t bytes, int64_t bits,
                           uint32_t *out, opipe_error *err) {
  const int64_t column[3] = {rows, bytes, 1}, flat[2] = {rows, bits == 4 ? 2 * bytes : bytes};
  uint32_t halves[2], sixteen, high;
  OPI_TRY(opi_k_cast(b, x, OPIPE_INT32, &x, err));
  OPI_TRY(opi_k_reshape(b, x, column, 3, &x, err));
  if (bits == 4) {
    OPI_TRY(opi_k_const(sixteen = opi_b_const_scalar(b, OPIPE_INT32, 16), err));
    OPI_TRY(opi_b_op2(b, "Div", x, sixteen, &halves[1], err));
    OPI_TRY(opi_b_op2(b, "Mul", halves[1], sixteen, &high, err));
    OPI_TRY(opi_b_op2(b, "Sub", x, high, &halves[0], err));
    OPI_TRY(opi_k_concat(b, halves, 2, 2, &x, err));
  }
  return opi_k_reshape(b, x, flat, 2, out, err);
}

/* The zero of every block, [N, blocks, 1] of A's type; half of the range without the input. */
static opipe_status zeros_of(opi_builder *b, const opi_node *node, const packing *p, uint32_t *out,
                             opipe_error *err) {
  const int64_t shape[3] = {p->n, p->blocks, 1};
  const int64_t bytes = p->bits == 4 ? (p->blocks + 1) / 2 : p->blocks;
  if (opi_node_in(node, IN_ZERO) == OPIPE_NONE)
    return opi_k_const(*out = opi_b_const_scalar(b, p->dtype, p->bits == 4 ? 8 : 128), err);
  OPI_TRY(opi_need(b, node, IN_ZERO, "zero_points", OPI_T_FLOAT | OPI_T_USMALL, 1, 2, err));
  const opi_value z = *opi_input(b, node, IN_ZERO);
  const bool numbers = opi_dtype_is_float(z.dtype);
  const int64_t wanted = p->n * (numbers ? p->blocks : bytes);
  if (opi_k_elems(&z) != (double)wanted) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (zero_points) has %.0f elements, %lld are needed", z.name,
                         opi_k_elems(&z), (long long)wanted);
  }
  *out = node->in[IN_ZERO];
  if (!numbers) {
    OPI_TRY(unpack(b, *out, p->n, bytes, p->bits, out, err));
    OPI_TRY(opi_k_slice(b, *out, 1, 0, p->blocks, out, err));
  }
  OPI_TRY(opi_k_cast(b, *out, p->dtype, out, err));
  return opi_k_reshape(b, *out, shape, 3, out, err);
}

opipe_status opi_ms_bits_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t w, zero, scale, y;
  packing p;
  OPI_TRY(check(b, node, &p, err));
  const int64_t blocked[3] = {p.n, p.blocks, p.block}, flat[2] = {p.n, p.blocks * p.block},
                ones[3] = {p.n, p.blocks, 1};
  OPI_TRY(unpack(b, node->in[IN_B], p.n, p.blocks * p.block * p.bits / 8, p.bits, &w, err));
  OPI_TRY(opi_k_reshape(b, w, blocked, 3, &w, err));
  OPI_TRY(opi_k_cast(b, w, p.dtype, &w, err));
  OPI_TRY(zeros_of(b, node, &p, &zero, err));
  OPI_TRY(opi_k_reshape(b, node->in[IN_SCALES], ones, 3, &scale, err));
  OPI_TRY(opi_b_op2(b, "Sub", w, zero, &w, err));
  OPI_TRY(opi_b_op2(b, "Mul", w, scale, &w, err));
  OPI_TRY(opi_k_reshape(b, w, flat, 2, &w, err));
  OPI_TRY(opi_k_slice(b, w, 1, 0, p.k, &w, err));
  const uint32_t in[2] = {node->in[IN_A], w};
  opi_attrs_float(&attrs, "alpha", 1.0);
  opi_attrs_int(&attrs, "transA", 0);
  opi_attrs_int(&attrs, "transB", 1);
  OPI_TRY(opi_k_node(b, "FusedMatMul", OPI_MS, 1, in, 2, 1, &attrs, &y, err));
  if (opi_node_in(node, IN_BIAS) != OPIPE_NONE)
    OPI_TRY(opi_b_op2(b, "Add", y, node->in[IN_BIAS], &y, err));
  return opi_b_result(b, node, 0, y, err);
}
