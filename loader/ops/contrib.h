/* SPDX-License-Identifier: Apache-2.0 */
/* Lift rules of com.microsoft operators in files of their own, and shared functions. The table is
 * in contrib.c. */
#ifndef OPI_CONTRIB_H
#define OPI_CONTRIB_H

#include "loader/ops/attention.h"

#define OPI_MS "com.microsoft"

opipe_status opi_ms_attention_lift(opi_builder *b, const opi_node *node,
                                   opipe_error *err); /* contrib_attention.c */
opipe_status opi_ms_mha_lift(opi_builder *b, const opi_node *node,
                             opipe_error *err); /* contrib_mha.c */
opipe_status opi_ms_gqa_lift(opi_builder *b, const opi_node *node,
                             opipe_error *err); /* contrib_gqa.c */
opipe_status opi_ms_rotary_lift(opi_builder *b, const opi_node *node,
                                opipe_error *err); /* contrib_rotary.c */
opipe_status opi_ms_embed_lift(opi_builder *b, const opi_node *node,
                               opipe_error *err); /* contrib_norm.c */
/* contrib_bits.c */
opipe_status opi_ms_bits_lift(opi_builder *b, const opi_node *node, opipe_error *err);
/* contrib_blocks.c */
opipe_status opi_ms_gather_blocks_lift(opi_builder *b, const opi_node *node, opipe_error *err);
opipe_status opi_ms_skip_lift(opi_builder *b, const opi_node *node,
                              opipe_error *err); /* contrib_norm.c */
/* contrib_fused.c */
opipe_status opi_ms_gemm_lift(opi_builder *b, const opi_node *node, opipe_error *err);
opipe_status opi_ms_conv_lift(opi_builder *b, const opi_node *node, opipe_error *err);

/* Attributes unknown to a lift rule must be absent or equal the default `value`. */
opipe_status opi_ms_only(const opi_builder *b, const opi_node *node, const char *name,
                         int64_t value, opipe_error *err);

/* Padding of keys as ORT's CPU kernels interpret it, as an added mask. */
typedef struct opi_padding {
  uint32_t input; /* index of the mask input of the node */
  int64_t batch, q_len, total;
  double filter;  /* mask_filter_value */
  uint32_t dtype; /* of the queries */
  bool one_mark;  /* a mask of [B or 1, 1] is none, however many keys there are (Attention): all
                   * keys of a row get the same number */
} opi_padding;
/* The added mask for `heads` heads: padding, if the node has it, plus attention_bias (input
 * `bias`); OPIPE_NONE if there is neither. Errors name the input. */
opipe_status opi_ms_mask(opi_builder *b, const opi_node *node, const opi_padding *how,
                         uint32_t bias, int64_t heads, uint32_t *out, opipe_error *err);
/* attention_bias (input i, [B or 1, N or 1, S, T]) plus `mask` (OPIPE_NONE: none); OPIPE_NONE if
 * there is neither. */
opipe_status opi_ms_add_bias(opi_builder *b, const opi_node *node, uint32_t i, const int64_t *full,
                             uint32_t mask, uint32_t *out, opipe_error *err);
/* x [..., a + b + c] -> three parts along the last axis. */
opipe_status opi_ms_split(opi_builder *b, uint32_t x, const int64_t *sizes, uint32_t n,
                          uint32_t *out, opipe_error *err);
/* int64 0, 1 .. n - 1 as [1, n]. */
opipe_status opi_ms_range(opi_builder *b, int64_t n, uint32_t *out, opipe_error *err);

#endif /* OPI_CONTRIB_H */
