/* SPDX-License-Identifier: Apache-2.0 */
/* The form of weights of MatMulNBits and opipe.DequantizeNBits. */
#ifndef OPI_OPS_QUANTIZE_H
#define OPI_OPS_QUANTIZE_H

#include "loader/ops/kit.h"

/* W[n,k]: `blocks` of `block` codes a row, of `bits` each. */
typedef struct opi_nbits {
  int64_t k, n, bits, block, blocks;
  int64_t zero_bytes; /* a row's integer zero points, packed */
} opi_nbits;

/* From attributes K, N, bits, block_size. Errors: INVALID, the attribute and its number. */
opipe_status opi_nbits_of(const opi_builder *b, const opi_node *node, opi_nbits *out,
                          opipe_error *err);
/* Inputs codes, codes + 1 (scales) and codes + 2 (zero points, may be absent). Errors: INVALID,
 * UNSUPPORTED for scales of fp64; they name the input. */
opipe_status opi_nbits_check(const opi_builder *b, const opi_node *node, const opi_nbits *n,
                             uint32_t codes, opipe_error *err);

#endif /* OPI_OPS_QUANTIZE_H */
