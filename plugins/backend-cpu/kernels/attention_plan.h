/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernels of attention and the code that divides their work: the height of a row
 * block, which keys a row sees, and the parts of a thread's workspace. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_PLAN_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_PLAN_H_

#include "table.h"

enum {
  ATTENTION_ROWS = 24,
  ATTENTION_FEW = 16,     /* query rows of a head up to which its keys are read where they lie */
  ATTENTION_FEW_ROWS = 48 /* of all heads that go together */
};

typedef struct attention_plan {
  float *keys;   /* [padded_keys / 64][qk_dim][64] */
  float *values; /* [ceil(v_dim / 64)][kv_rows][64] */
  float *scores; /* [ATTENTION_ROWS][padded_keys] */
  int64_t padded_keys;
} attention_plan;

/* Keys that query row `row` may see, of `keys` that count; begin = end = 0 when there are none. */
static inline cpu_range attention_keys_seen(const cpu_attention_args *g, int64_t keys,
                                            int64_t row) {
  cpu_range seen = {0, keys};
  int64_t last = row + g->causal_offset;
  if (g->causal && last + 1 < seen.end)
    seen.end = last + 1 > 0 ? last + 1 : 0;
  if (g->window > 0 && last - g->window + 1 > 0)
    seen.begin = last - g->window + 1;
  return seen;
}

/* Whether attention_few.h computes it: values are read by whole vectors. */
static inline bool attention_is_few(const cpu_attention_args *g) {
  return g->q_rows <= ATTENTION_FEW && g->v_dim % 16 == 0;
}

/* Heads of one kv head that go together. */
static inline int64_t attention_heads_together(const cpu_attention_args *g) {
  const int64_t group = g->heads / g->kv_heads;
  const int64_t most = g->q_rows > 0 ? ATTENTION_FEW_ROWS / g->q_rows : group;
  return group < most ? group : most;
}

/* A thread's workspace with few query rows; `rows` of all heads that go together. */
typedef struct attention_few_plan {
  float *panel;  /* [qk_dim][64] keys, turned */
  float *q;      /* [rows][qk_dim] */
  float *result; /* [rows][v_dim] */
  float *scores; /* [rows][padded_keys] */
  int64_t padded_keys;
} attention_few_plan;

static inline void attention_divide_few(void *workspace, const cpu_attention_args *g, int64_t rows,
                                        attention_few_plan *out_plan) {
  out_plan->padded_keys = (g->kv_rows + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
  out_plan->panel = workspace;
  out_plan->q = out_plan->panel + g->qk_dim * CPU_PANEL;
  out_plan->result = out_plan->q + (rows * g->qk_dim + 15) / 16 * 16;
  out_plan->scores = out_plan->result + rows * g->v_dim;
}

static inline void attention_divide_workspace(void *workspace, int64_t kv_rows, int64_t qk_dim,
                                              int64_t v_dim, attention_plan *out_plan) {
  int64_t padded = (kv_rows + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
  int64_t columns = (v_dim + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
  out_plan->padded_keys = padded;
  out_plan->keys = workspace;
  out_plan->values = out_plan->keys + padded * qk_dim;
  out_plan->scores = out_plan->values + columns * kv_rows;
}

#endif
