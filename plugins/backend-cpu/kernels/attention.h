/* SPDX-License-Identifier: Apache-2.0 */
/* Fused attention.
 *
 * One block of query rows at a time: scores = Q K^T into a buffer of the block, scale, cap, mask,
 * softmax, times V. Nothing of the size of the whole score matrix exists. K and V are strided
 * views, so both [batch, sequence, head, dim] and [batch, head, sequence, dim] work in place, as do
 * a slice of a packed QKV tensor and a cache of past keys that is longer than what is valid.
 *
 * With few query rows, as in decoding, all heads that share a kv head go together: each of its keys
 * and values is read once, where it lies.
 *
 * Order: a score is a product as in matmul.h; the row sum adds 64 partial sums as in rowwise.h; P V
 * adds chains over 256 keys. A row's bits depend on its own query, keys and mask alone (provided V
 * is finite where the row is masked). */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* The result of a row whose every key is masked out. (A mask of large finite negative numbers masks
 * nothing out in this sense: it gives the softmax of the sums, as the unfused operators do.) */
typedef enum cpu_masked_row {
  CPU_MASKED_ROW_ZERO = 0,
  CPU_MASKED_ROW_NAN = 1 /* the softmax of minus infinities, as unfused */
} cpu_masked_row;

/* Strides in elements; the last axis (dim) is contiguous. A stride of 0 broadcasts. */
typedef struct cpu_attention_strides {
  int64_t batch, head, row;
} cpu_attention_strides;

typedef struct cpu_attention_args {
  int64_t batch, heads,
      kv_heads; /* heads is a multiple of kv_heads; head h reads kv head h / (heads / kv_heads) */
  int64_t q_rows, kv_rows;
  int64_t qk_dim, v_dim;
  const float *q, *k, *v;
  cpu_attention_strides q_stride, k_stride, v_stride;
  float *out; /* [batch, heads, q_rows, v_dim] */
  cpu_attention_strides out_stride;

  float scale;         /* of the scores */
  float softcap;       /* c tanh(s / c) on the scaled score; 0: none */
  bool cap_after_mask; /* false: cap, then add the mask (ONNX Attention 24); true: the mask first */

  bool causal;             /* query row i sees keys j <= i + causal_offset */
  int64_t causal_offset;   /* rows already in the past: kv_rows - q_rows for a cache, 0 for ONNX
                              without one */
  const int64_t *offsets;  /* [batch] in place of causal_offset; NULL: that of all */
  int64_t window;          /* > 0: keys j > i + causal_offset - window only; 0: no window */
  const int64_t *kv_valid; /* [batch] keys that count, 0 .. kv_rows; NULL: all */

  const float *mask_add;    /* added to the score; NULL: none */
  const uint8_t *mask_keep; /* 0: masked out; NULL: none. At most one of the two masks */
  int64_t mask_stride[4];   /* of the mask given: batch, head, query row, key */
  uint32_t mask_bits;       /* of mask_add's own type where that is narrower than fp32: 11 (fp16) or
                               8 (bf16) significant bits, 0: fp32. Scores that it makes very low are
                               rounded to them: a row that is masked everywhere comes out as of the
                               unfused operators, which lose the products beside the mask */
  cpu_masked_row masked_row;

  void *workspace; /* cpu_attention_workspace */
} cpu_attention_args;

/* Workspace on `threads`: of `args`, only the sizes are read. It grows with kv_rows, not with the
 * product of q_rows and kv_rows. */
bool cpu_attention_workspace(int32_t threads, const cpu_attention_args *args, uint64_t *out_bytes);

/* Splits over (batch, head), and over row blocks where there are few heads; few query rows over
 * (batch, kv head). */
void cpu_attention(const cpu_exec *x, const cpu_attention_args *args);

#endif
