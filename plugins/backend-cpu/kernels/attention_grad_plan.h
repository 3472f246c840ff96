/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a thread's workspace for the gradients of attention. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_GRAD_PLAN_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_GRAD_PLAN_H_

#include "table.h"

enum { GRAD_ROWS = 48 }; /* query rows a block */

typedef struct attention_grad_plan {
  float *keys;    /* K^T: [padded / 64][qk_dim][64] */
  float *values;  /* V^T: [padded / 64][v_dim][64] */
  float *k_rows;  /* K: [ceil(qk_dim / 64)][padded][64] */
  float *dk, *dv; /* [ceil(dim / 64)][padded][64] */
  float *p, *ds;  /* [GRAD_ROWS][padded] */
  float *turned;  /* [padded][GRAD_ROWS] */
  float *rows;    /* a block of Q or dY: [ceil(dim / 64)][GRAD_ROWS][64] */
  int64_t padded;
} attention_grad_plan;

static inline int64_t grad_padded(int64_t n) {
  return (n + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
}

/* Floats of all parts; with `plan`, where they begin in `workspace`. Sizes are below 2^31. */
static inline uint64_t attention_grad_divide(float *workspace, int64_t kv_rows, int64_t qk_dim,
                                             int64_t v_dim, attention_grad_plan *plan) {
  const uint64_t padded = (uint64_t)grad_padded(kv_rows);
  const uint64_t qk = (uint64_t)grad_padded(qk_dim);
  const uint64_t v = (uint64_t)grad_padded(v_dim);
  const uint64_t sizes[9] = {padded * (uint64_t)qk_dim,
                             padded * (uint64_t)v_dim,
                             padded * qk,
                             padded * qk,
                             padded * v,
                             padded * GRAD_ROWS,
                             padded * GRAD_ROWS,
                             padded * GRAD_ROWS,
                             (qk > v ? qk : v) * GRAD_ROWS};
  uint64_t at = 0;
  for (int i = 0; i < 9; ++i) {
    if (plan != NULL) {
      float **parts[9] = {&plan->keys, &plan->values, &plan->k_rows, &plan->dk,  &plan->dv,
                          &plan->p,    &plan->ds,     &plan->turned, &plan->rows};
      *parts[i] = workspace + at;
      plan->padded = (int64_t)padded;
    }
    at += (sizes[i] + 15) / 16 * 16;
  }
  return at;
}

#endif
