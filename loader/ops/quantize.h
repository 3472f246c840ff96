/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights of MatMulNBits and opipe.DequantizeNBits. */
#ifndef OPI_OPS_QUANTIZE_H
#define OPI_OPS_QUANTIZE_H

#include "loader/ops/kit.h"

/* W[n,k]: each row has `blocks` of `block` codes of `bits` bits. */
typedef struct opi_nbits {
  int64_t k, n, bits, block, blocks;
  int64_t zero_bytes; /* packed integer zero points of a row */
} opi_nbits;

/* Reads attributes K, N, bits, block_size. Errors: INVALID, the attribute and its number. */
opipe_status opi_nbits_of(const opi_builder *b, const opi_node *node, opi_nbits *out,
                          opipe_error *err);
/* Checks inputs codes, codes + 1 (scales) and codes + 2 (zero points, optional). Errors: INVALID,
 * or UNSUPPORTED for fp64 scales; names the input. */
opipe_status opi_nbits_check(const opi_builder *b, const opi_node *node, const opi_nbits *n,
                             uint32_t codes, opipe_error *err);

#endif /* OPI_OPS_QUANTIZE_H */
