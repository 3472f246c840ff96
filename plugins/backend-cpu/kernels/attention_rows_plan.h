/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernel of attention of token rows and the code that divides its work. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_ROWS_PLAN_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_ROWS_PLAN_H_

#include "attention_rows.h"
#include "table.h"

enum { ATTENTION_UNIT_ROWS = 24 }; /* rows times heads that go together */

/* A thread's workspace. */
typedef struct attention_rows_plan {
  float *q;      /* [unit rows][qk_dim] */
  float *result; /* [unit rows][v_width] */
  float *chain;  /* the same, of one chain */
  float *values; /* [64][v_width], where rows of values are no whole vectors */
  float *bias;   /* [padded_keys] */
  float *scores; /* [unit rows][padded_keys] */
  int64_t padded_keys, v_width;
} attention_rows_plan;

static inline int64_t attention_rows_floats(int64_t n) {
  return (n + 15) / 16 * 16;
}

static inline void attention_rows_divide(void *workspace, const cpu_row_attention_args *g,
                                         attention_rows_plan *out_plan) {
  out_plan->padded_keys = g->pages * g->page;
  out_plan->v_width = attention_rows_floats(g->v_dim);
  out_plan->q = workspace;
  out_plan->result = out_plan->q + attention_rows_floats(ATTENTION_UNIT_ROWS * g->qk_dim);
  out_plan->chain = out_plan->result + ATTENTION_UNIT_ROWS * out_plan->v_width;
  out_plan->values = out_plan->chain + ATTENTION_UNIT_ROWS * out_plan->v_width;
  out_plan->bias = out_plan->values + CPU_PANEL * out_plan->v_width;
  out_plan->scores = out_plan->bias + out_plan->padded_keys;
}

/* Keys that a row at `position` sees. */
static inline cpu_range attention_rows_seen(const cpu_row_attention_args *g, int64_t position) {
  cpu_range seen = {0, position + 1};
  if (g->window > 0 && seen.end > g->window)
    seen.begin = seen.end - g->window;
  return seen;
}

#endif
