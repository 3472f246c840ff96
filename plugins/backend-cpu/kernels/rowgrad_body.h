/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the row-wise operations, included once per instruction set after norm_body.h. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ROWGRAD_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_ROWGRAD_BODY_H_

#include "norm_body.h"

/* ---- normalisation ---- */

CPU_INLINE void row_statistics(const float *x, int64_t columns, bool rms, float epsilon,
                               float *out_mean, float *out_inv_std) {
  const float inverse = 1.0f / (float)columns;
  *out_mean = rms ? 0.0f : row_total(x, columns) * inverse;
  *out_inv_std = 1.0f / sqrtf(row_squares(x, columns, *out_mean) * inverse + epsilon);
}

CPU_STATIC void norm_grad_share(const cpu_norm_grad_args *g, cpu_range rows) {
  const float inverse = 1.0f / (float)g->columns;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *dy = g->dy + r * g->columns;
    const float *x = g->x + r * g->columns;
    float *dx = g->dx + r * g->columns;
    float mean = 0;
    float inv_std = 0;
    row_statistics(x, g->columns, g->rms, g->epsilon, &mean, &inv_std);
    const v16 m = v16_set(mean);
    const v16 s = v16_set(inv_std);
    row_sum sum = row_sum_start(0.0f);
    row_sum dot = row_sum_start(0.0f);
    CPU_ROW_LOOP(g->columns, {
      const v16 d =
          v16_mul(v16_load_part_or(dy + c, n, 0.0f), v16_load_part_or(g->scale + c, n, 0.0f));
      const v16 h = v16_mul(v16_sub(v16_load_part_or(x + c, n, mean), m), s);
      sum.part[q] = v16_add(sum.part[q], d);
      dot.part[q] = v16_fma(d, h, dot.part[q]);
    });
    const v16 mean_d = v16_set(g->rms ? 0.0f : row_sum_total(&sum) * inverse);
    const v16 mean_dh = v16_set(row_sum_total(&dot) * inverse);
    for (int64_t c = 0; c < g->columns; c += 16) {
      const int64_t n = g->columns - c;
      const v16 d =
          v16_mul(v16_load_part_or(dy + c, n, 0.0f), v16_load_part_or(g->scale + c, n, 0.0f));
      const v16 h = v16_mul(v16_sub(v16_load_part_or(x + c, n, 0.0f), m), s);
      const v16 rest = v16_fma(v16_neg(h), mean_dh, v16_sub(d, mean_d));
      store_row(dx + c, n, v16_mul(rest, s));
    }
  }
}

CPU_STATIC void norm_statistics_share(const cpu_norm_grad_scale_args *g, cpu_range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    row_statistics(g->x + r * g->columns, g->columns, g->rms, g->epsilon, &g->workspace[2 * r],
                   &g->workspace[2 * r + 1]);
  }
}

/* Columns [begin, end), begin a multiple of 16, over all rows in order. */
CPU_STATIC void norm_grad_scale_share(const cpu_norm_grad_scale_args *g, cpu_range columns) {
  for (int64_t r = 0; r < g->rows; ++r) {
    const float *dy = g->dy + r * g->columns;
    const float *x = g->x + r * g->columns;
    const v16 m = v16_set(g->workspace[2 * r]);
    const v16 s = v16_set(g->workspace[2 * r + 1]);
    for (int64_t c = columns.begin; c < columns.end; c += 16) {
      const int64_t n = columns.end - c;
      const v16 d = v16_load_part_or(dy + c, n, 0.0f);
      if (g->dscale != NULL) {
        const v16 h = v16_mul(v16_sub(v16_load_part_or(x + c, n, 0.0f), m), s);
        store_row(g->dscale + c, n, v16_fma(d, h, v16_load_part_or(g->dscale + c, n, 0.0f)));
      }
      if (g->dbias != NULL)
        store_row(g->dbias + c, n, v16_add(v16_load_part_or(g->dbias + c, n, 0.0f), d));
    }
  }
}

/* ---- softmax ---- */

CPU_STATIC void softmax_grad_share(bool log, int64_t columns, const float *dy, const float *y,
                                   float *dx, cpu_range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = r * columns;
    row_sum sum = row_sum_start(0.0f);
    CPU_ROW_LOOP(columns, {
      const v16 d = v16_load_part_or(dy + at + c, n, 0.0f);
      const v16 p = v16_load_part_or(y + at + c, n, 0.0f);
      /* NaN is not less than anything: it counts as 0 */
      const v16 part = v16_select(v16_less(v16_zero(), p), v16_mul(d, p), v16_zero());
      sum.part[q] = v16_add(sum.part[q], log ? d : part);
    });
    const v16 total = v16_set(row_sum_total(&sum));
    for (int64_t c = 0; c < columns; c += 16) {
      const int64_t n = columns - c;
      const v16 d = v16_load_part_or(dy + at + c, n, 0.0f);
      const v16 p = v16_load_part_or(y + at + c, n, 0.0f);
      const v16 soft =
          v16_select(v16_less(v16_zero(), p), v16_mul(p, v16_sub(d, total)), v16_zero());
      store_row(dx + at + c, n, log ? v16_fma(v16_neg(v16_exp(p)), total, d) : soft);
    }
  }
}

/* ---- activations ---- */

/* s + x s (1 - s) slope, s = sigmoid(u): the derivative of x sigmoid(u(x)) with u' = slope. */
CPU_INLINE v16 gate_slope(v16 x, v16 u, v16 slope) {
  const v16 s = v16_sigmoid(u);
  const v16 bend = v16_mul(v16_mul(x, s), v16_sub(v16_set(1.0f), s));
  return v16_fma(bend, slope, s);
}

CPU_INLINE v16 activation_slope(const cpu_activation activation, v16 x) {
  /* beyond 30 every derivative is 0 or 1 */
  const v16 t = v16_min(v16_set(30.0f), v16_max(v16_set(-30.0f), x));
  const v16 one = v16_set(1.0f);
  switch (activation) {
    case CPU_ACT_RELU:
      return v16_select(v16_less(v16_zero(), x), one, v16_zero());
    case CPU_ACT_GELU_ERF: {
      const v16 size = v16_min(v16_set(13.0f), v16_abs(x));
      const v16 tail = v16_normal_tail(size);
      const v16 phi = v16_select(v16_less(x, v16_zero()), tail, v16_sub(one, tail));
      const v16 bell = v16_exp(v16_mul(v16_mul(t, t), v16_set(-0.5f)));
      return v16_fma(v16_mul(t, v16_set(0.3989422804f)), bell, phi);
    }
    case CPU_ACT_GELU_TANH: {
      const v16 square = v16_mul(t, t);
      const v16 u = v16_fma(square, v16_set(0.0713548162726f), v16_set(1.5957691216057308f));
      const v16 slope = v16_fma(square, v16_set(0.2140644488178f), v16_set(1.5957691216057308f));
      return gate_slope(t, v16_mul(t, u), slope);
    }
    case CPU_ACT_GELU_QUICK:
      return gate_slope(t, v16_mul(t, v16_set(1.702f)), v16_set(1.702f));
    case CPU_ACT_SILU:
      return gate_slope(t, t, one);
    case CPU_ACT_TANH: {
      const v16 y = v16_tanh(x);
      return v16_fma(v16_neg(y), y, one);
    }
    case CPU_ACT_SIGMOID: {
      const v16 s = v16_sigmoid(x);
      return v16_mul(s, v16_sub(one, s));
    }
    default:
      return one;
  }
}

CPU_INLINE void activation_grad_loop(const cpu_activation activation, const float *dy,
                                     const float *x, float *dx, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t left = n - i;
    const v16 slope = activation_slope(activation, v16_load_part_or(x + i, left, 0.0f));
    store_row(dx + i, left, v16_mul(v16_load_part_or(dy + i, left, 0.0f), slope));
  }
}

#define CPU_SLOPE_CASE(activation)                  \
  case activation:                                  \
    activation_grad_loop(activation, dy, x, dx, n); \
    break

CPU_STATIC void activation_grad_share(cpu_activation activation, const float *dy, const float *x,
                                      float *dx, int64_t n) {
  switch (activation) {
    CPU_SLOPE_CASE(CPU_ACT_RELU);
    CPU_SLOPE_CASE(CPU_ACT_GELU_ERF);
    CPU_SLOPE_CASE(CPU_ACT_GELU_TANH);
    CPU_SLOPE_CASE(CPU_ACT_GELU_QUICK);
    CPU_SLOPE_CASE(CPU_ACT_SILU);
    CPU_SLOPE_CASE(CPU_ACT_TANH);
    CPU_SLOPE_CASE(CPU_ACT_SIGMOID);
    default:
      break;
  }
}

/* ---- cross entropy ---- */

CPU_STATIC void loss_grad_share(const cpu_loss_grad_args *g, cpu_range rows) {
  const float each = g->smoothing / (float)g->columns;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *x = g->x + r * g->columns;
    float *dx = g->dx + r * g->columns;
    const float dl = g->dl[g->dl_rows ? r : 0];
    if (g->label[r] < 0) {
      memset(dx, 0, (size_t)g->columns * sizeof(float));
      continue;
    }
    const float max = row_max(x, g->columns);
    const float sum = row_exp(x, g->columns, max, dx);
    const v16 scale = v16_set(dl / sum);
    const v16 shift = v16_set(dl * each);
    for (int64_t c = 0; c < g->columns; c += 16) {
      const int64_t n = g->columns - c;
      store_row(dx + c, n, v16_sub(v16_mul(v16_load_part_or(dx + c, n, 0.0f), scale), shift));
    }
    dx[g->label[r]] -= dl * (1.0f - g->smoothing);
  }
}

#endif
