/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of fused attention.
 *
 * Blocks of query rows of one (batch, key head) at a time: probabilities P and dP = dY V^T are made
 * again, dS = P (dP - sum(P dP)) scale; dQ = dS K; dV += P^T dY and dK += dS^T Q go on as one chain
 * over the rows and the heads that share the keys. A row that sees no key gives nothing. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_GRAD_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_GRAD_H_

#include "attention.h"

/* forward: as it was called, without softcap; its out and workspace are not used, masked_row is
 * ZERO. dq, dk and dv: NULL where not wanted; dk and dv have kv_rows rows. */
typedef struct cpu_attention_grad_args {
  cpu_attention_args forward;
  const float *dy; /* [batch, heads, q_rows, v_dim] */
  cpu_attention_strides dy_stride;
  float *dq, *dk, *dv;
  cpu_attention_strides dq_stride, dk_stride, dv_stride;
  float *dscores;  /* gradient of the masked scores, [batch, heads, q_rows, kv_rows], zeroed by the
                      caller; NULL: not wanted */
  void *workspace; /* cpu_attention_grad_workspace */
} cpu_attention_grad_args;

bool cpu_attention_grad_workspace(int32_t threads, int64_t kv_rows, int64_t qk_dim, int64_t v_dim,
                                  uint64_t *out_bytes);

/* Splits over (batch, key head). */
void cpu_attention_grad(const cpu_exec *x, const cpu_attention_grad_args *args);

#endif
