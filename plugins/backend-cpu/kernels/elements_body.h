/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, squares and optimizer updates, included once per instruction set after rowwise_body.h. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ELEMENTS_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_ELEMENTS_BODY_H_

#include <math.h>
#include <opipe/optimizers.h>

#include "rowwise_body.h"

CPU_STATIC void add_share(const float *from, float *to, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t left = n - i;
    const v16 a = v16_load_part_or(to + i, left, 0.0f);
    store_row(to + i, left, v16_add(a, v16_load_part_or(from + i, left, 0.0f)));
  }
}

/* Sixteen partial sums in fp64, added up in order. */
CPU_STATIC double sum_squares_share(const float *in, int64_t n) {
  double part[16] = {0};
  double sum = 0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int u = 0; u < 16; ++u)
      part[u] += (double)in[i + u] * (double)in[i + u];
  }
  for (int u = 0; i < n; ++i, ++u)
    part[u] += (double)in[i] * (double)in[i];
  for (int u = 0; u < 16; ++u)
    sum += part[u];
  return sum;
}

/* sums[r][f] += rows r of a by rows f of b, n elements each: sixteen partial sums and their tree.
 * Behind the n elements of a row of a there is room up to whole vectors, of numbers that count
 * nothing. */
CPU_STATIC void row_sums_share(const cpu_row_sums_args *g) {
  enum { ROWS = 4 }; /* of a at once: their sums do not wait for each other */
  for (int64_t r = 0; r < g->a_rows; r += ROWS) {
    const int64_t count = g->a_rows - r < ROWS ? g->a_rows - r : ROWS;
    const float *a[ROWS];
    for (int64_t i = 0; i < ROWS; ++i)
      a[i] = g->a + (r + (i < count ? i : 0)) * g->a_stride;
    for (int64_t f = 0; f < g->b_rows; ++f) {
      const float *b = g->b + f * g->b_stride;
      v16 sum[ROWS];
      CPU_UNROLL(4)
      for (int i = 0; i < ROWS; i++) {
        sum[i] = v16_zero();
      }
      for (int64_t k = 0; k < g->n; k += 16) {
        const v16 x = v16_load_part_or(b + k, g->n - k, 0.0f);
        CPU_UNROLL(4)
        for (int i = 0; i < ROWS; i++) {
          sum[i] = v16_fma(v16_load(a[i] + k), x, sum[i]);
        }
      }
      CPU_UNROLL(4)
      for (int i = 0; i < ROWS; i++) {
        if (i < count)
          g->sums[(r + i) * g->b_rows + f] += v16_sum(sum[i]);
      }
    }
  }
}

CPU_INLINE void adam_run(const cpu_update_args *g, int64_t i, int64_t n) {
  const v16 w = v16_load_part_or(g->weight + i, n, 0.0f);
  v16 d = v16_mul(v16_load_part_or(g->gradient + i, n, 0.0f), v16_set(g->gradient_scale));
  d = v16_fma(v16_set(g->l2), w, d);
  v16 m = v16_load_part_or(g->first + i, n, 0.0f);
  v16 v = v16_load_part_or(g->second + i, n, 0.0f);
  m = v16_fma(v16_set(g->beta1), m, v16_mul(v16_set(g->rest1), d));
  v = v16_fma(v16_set(g->beta2), v, v16_mul(v16_mul(v16_set(g->rest2), d), d));
  const v16 below = v16_fma(v16_sqrt(v), v16_set(g->root), v16_set(g->epsilon));
  v16 step = v16_div(v16_mul(v16_set(g->step), m), below);
  const m16 none = v16_less(v16_abs(below), v16_set(0x1p-149f)); /* 0 */
  step = v16_select(none, v16_zero(), step);
  store_row(g->first + i, n, m);
  store_row(g->second + i, n, v);
  store_row(g->weight + i, n, v16_sub(v16_mul(w, v16_set(g->keep)), step));
}

CPU_INLINE void sgd_run(const cpu_update_args *g, int64_t i, int64_t n) {
  const v16 w = v16_load_part_or(g->weight + i, n, 0.0f);
  v16 d = v16_mul(v16_load_part_or(g->gradient + i, n, 0.0f), v16_set(g->gradient_scale));
  d = v16_fma(v16_set(g->l2), w, d);
  v16 step = d;
  if (g->first != NULL) {
    const v16 m = v16_fma(v16_set(g->momentum), v16_load_part_or(g->first + i, n, 0.0f), d);
    step = g->nesterov ? v16_fma(v16_set(g->momentum), m, d) : m;
    store_row(g->first + i, n, m);
  }
  store_row(g->weight + i, n, v16_sub(w, v16_mul(v16_set(g->step), step)));
}

#define UPDATE_ALL(run, g, share)                               \
  do {                                                          \
    for (int64_t i = (share).begin; i < (share).end; i += 16) { \
      const int64_t n = (share).end - i;                        \
      run((g), i, n);                                           \
      if ((g)->clear) {                                         \
        store_row((g)->gradient + i, n, v16_zero());            \
      }                                                         \
    }                                                           \
  } while (0)

CPU_STATIC void sgd_share(const cpu_update_args *g, cpu_range share) {
  UPDATE_ALL(sgd_run, g, share);
}

CPU_STATIC void adam_share(const cpu_update_args *g, cpu_range share) {
  const double root = sqrt(g->correction2);
  cpu_update_args own = *g;
  own.step = (float)(g->inner ? g->lr * root / g->correction1 : g->lr / g->correction1);
  own.root = g->inner ? 1.0f : (float)(1.0 / root);
  UPDATE_ALL(adam_run, &own, share);
}

CPU_STATIC void update_share(const cpu_update_args *g, cpu_range share) {
  static void (*const kinds[])(const cpu_update_args *, cpu_range) = {
      [OPIPE_UPDATE_SGD] = sgd_share,
      [OPIPE_UPDATE_ADAM] = adam_share,
      [OPIPE_UPDATE_ADAMW] = adam_share};
  _Static_assert(sizeof kinds / sizeof kinds[0] == OPIPE_N_OPTIMIZERS, "an update of each kind");
  kinds[g->kind](g, share);
}

#endif
