/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: sizes and strides, read once at compile.
 */
#ifndef OPIPE_BACKEND_CPU_OPS_ATTENTION_H_
#define OPIPE_BACKEND_CPU_OPS_ATTENTION_H_

#include "loop.h"

typedef struct cpu_attention_plan {
  uint32_t base; /* index of Q among the node's inputs; K, V, mask ... follow */
  int64_t batch, heads, kv_heads;
  int64_t rows;        /* queries */
  int64_t past, fresh; /* keys before, keys given */
  int64_t keys;        /* past + fresh */
  int64_t dim, v_dim;
  int64_t q[3], out[3]; /* strides: batch, head, row */
  int64_t k[3], v[3];   /* of the K and V inputs */
  int64_t first[3];     /* element of Q, K and V at which each begins */
  int64_t mask[4];      /* batch, head, row, key; 0 where it repeats */
  int64_t mask_keys;    /* keys that the mask covers */
  uint32_t mask_bits;   /* cpu_attention_args' */
  int64_t window;       /* > 0: keys that a row sees, its own the last; 0: no window */
  double scale, softcap;
  bool causal, has_mask, bool_mask, has_nonpad;
  int mode;    /* qk_matmul_output_mode */
  bool joined; /* past and fresh keys are joined: to the present outputs or the workspace */
  uint64_t join_k, join_v; /* offsets in the workspace, UINT64_MAX: the present outputs */
  uint64_t valid_at;       /* int64 [2][batch]: keys that count; place of the first row */
  uint64_t scratch_at;
} cpu_attention_plan;

/* Joins past and fresh keys and values where the plan says so; afterwards K and V lie at *out_k and
 * *out_v with these strides. Fills the table of valid keys. */
typedef struct cpu_attention_view {
  const void *k, *v;
  int64_t k_stride[3], v_stride[3];
  const int64_t *valid;
  const int64_t *places; /* of a sequence's first row among its keys */
} cpu_attention_view;
void cpu_attention_join(const cpu_call *call, cpu_attention_view *out_view);

/* Fills in all but the outputs and the workspace, from the inputs that begin at plan->base. */
opipe_status cpu_attention_read(cpu_prep *p, cpu_attention_plan *plan);
/* Takes workspace for joined keys and values and the table of valid keys; *io_at: offset of what is
 * free. join: also K and V when there is no present output to join into. */
void cpu_attention_plan_join(cpu_prep *p, cpu_attention_plan *plan, bool to_outputs,
                             uint64_t *io_at);
/* Scores of one query row (at: batch, head, row) into s [keys], as probabilities; slope [keys],
 * NULL when not wanted: derivative of the soft cap. qk: output for scores, NULL. In fp64. Returns
 * the logarithm of the sum of their exponentials; of a row that sees nothing, infinity. */
double cpu_attention_row(const cpu_call *call, const cpu_attention_view *view, const int64_t *at,
                         double *s, double *slope, const cpu_tensor *qk);

opipe_status cpu_attention_reference(const cpu_call *call, opipe_error *err);
opipe_status cpu_attention_fast(const cpu_call *call, opipe_error *err);

#endif
