/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft MatMulNBits: Y = A W^T with W of 2, 4 or 8 bits in blocks along K.
 *
 * Inputs: A [.., K], B uint8 [N, blocks, block bytes], scales [N * blocks], zero_points? (uint8,
 * packed as B, or numbers), g_idx? (not known), bias? [N]. Becomes opipe.DequantizeNBits (W in
 * fp32) and FusedMatMul in fp32, rounded once to A's type: as ONNX Runtime computes it.
 */
#include "loader/ops/contrib.h"
#include "loader/ops/quantize.h"

enum { IN_A, IN_B, IN_SCALES, IN_ZERO, IN_GROUPS, IN_BIAS };

static opipe_status check(const opi_builder *b, const opi_node *node, opi_nbits *n,
                          opipe_error *err) {
  OPI_TRY(opi_nbits_of(b, node, n, err));
  OPI_TRY(opi_need(b, node, IN_A, "A", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  const opi_value *a = opi_input(b, node, IN_A);
  OPI_TRY(opi_need_dim(b, node, IN_A, (uint32_t)a->rank - 1, n->k, "K", err));
  OPI_TRY(opi_nbits_check(b, node, n, IN_B, err));
  OPI_TRY(opi_need_same_type(b, node, IN_A, IN_SCALES, err));
  if (opi_node_in(node, IN_GROUPS) != OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input '%s' (g_idx) is not supported",
                         opi_input(b, node, IN_GROUPS)->name);
  }
  OPI_TRY(opi_may(b, node, IN_BIAS, "bias", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(opi_need_same_type(b, node, IN_A, IN_BIAS, err));
  return opi_need_dim(b, node, IN_BIAS, 0, n->n, "N", err);
}

opipe_status opi_ms_bits_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs form = {.n = 0}, product = {.n = 0};
  uint32_t in[2], bias = opi_node_in(node, IN_BIAS), y;
  opi_nbits n;
  OPI_TRY(check(b, node, &n, err));
  const uint32_t dtype = opi_input(b, node, IN_A)->dtype;
  const uint32_t packed[3] = {node->in[IN_B], node->in[IN_SCALES], opi_node_in(node, IN_ZERO)};
  opi_attrs_int(&form, "K", n.k);
  opi_attrs_int(&form, "N", n.n);
  opi_attrs_int(&form, "bits", n.bits);
  opi_attrs_int(&form, "block_size", n.block);
  opi_attrs_int(&form, "accuracy_level", opi_attr_int(node, "accuracy_level", 0));
  OPI_TRY(opi_k_node(b, "DequantizeNBits", "opipe", 1, packed, packed[2] == OPIPE_NONE ? 2 : 3, 1,
                     &form, &in[1], err));
  OPI_TRY(opi_k_cast(b, node->in[IN_A], OPIPE_FLOAT, &in[0], err));
  opi_attrs_float(&product, "alpha", 1.0);
  opi_attrs_int(&product, "transA", 0);
  opi_attrs_int(&product, "transB", 1);
  OPI_TRY(opi_k_node(b, "FusedMatMul", OPI_MS, 1, in, 2, 1, &product, &y, err));
  if (bias != OPIPE_NONE) {
    OPI_TRY(opi_k_cast(b, bias, OPIPE_FLOAT, &bias, err));
    OPI_TRY(opi_b_op2(b, "Add", y, bias, &y, err));
  }
  OPI_TRY(opi_k_cast(b, y, dtype, &y, err));
  return opi_b_result(b, node, 0, y, err);
}
