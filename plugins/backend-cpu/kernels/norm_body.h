/* SPDX-License-Identifier: Apache-2.0 */
/* Normalisation and rotary embedding, included once per instruction set after rowwise_body.h. A row
 * of a normalisation is read two or three times, from the first-level cache after the first. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_NORM_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_NORM_BODY_H_

#include "rowwise_body.h"

/* z = in + skip + skip_bias into `out`. */
CPU_INLINE void norm_add(const cpu_norm_args *g, const float *in, int64_t row, float *out) {
  const float *skip = g->skip == NULL ? NULL : g->skip + row * g->skip_row;
  for (int64_t c = 0; c < g->columns; c += 16) {
    int64_t n = g->columns - c;
    v16 v = v16_load_part_or(in + c, n, 0.0f);
    if (skip != NULL)
      v = v16_add(v, v16_load_part_or(skip + c, n, 0.0f));
    if (g->skip_bias != NULL)
      v = v16_add(v, v16_load_part_or(g->skip_bias + c, n, 0.0f));
    store_row(out + c, n, v);
  }
}

CPU_INLINE float row_total(const float *z, int64_t columns) {
  row_sum s = row_sum_start(0.0f);
  CPU_ROW_LOOP(columns, { s.part[q] = v16_add(s.part[q], v16_load_part_or(z + c, n, 0.0f)); });
  return row_sum_total(&s);
}

/* Sum of (z - mean)^2; the lanes beyond the row count as mean. */
CPU_INLINE float row_squares(const float *z, int64_t columns, float mean) {
  row_sum s = row_sum_start(0.0f);
  const v16 m = v16_set(mean);
  CPU_ROW_LOOP(columns, {
    v16 d = v16_sub(v16_load_part_or(z + c, n, mean), m);
    s.part[q] = v16_fma(d, d, s.part[q]);
  });
  return row_sum_total(&s);
}

CPU_INLINE void norm_apply(const cpu_norm_args *g, const float *z, float mean, float inv_std,
                           float *out) {
  const v16 m = v16_set(mean);
  const v16 s = v16_set(inv_std);
  for (int64_t c = 0; c < g->columns; c += 16) {
    int64_t n = g->columns - c;
    v16 v = v16_mul(v16_sub(v16_load_part_or(z + c, n, 0.0f), m), s);
    if (g->scale != NULL && g->bias != NULL) {
      v = v16_fma(v, v16_load_part_or(g->scale + c, n, 0.0f),
                  v16_load_part_or(g->bias + c, n, 0.0f));
    } else if (g->scale != NULL) {
      v = v16_mul(v, v16_load_part_or(g->scale + c, n, 0.0f));
    } else if (g->bias != NULL) {
      v = v16_add(v, v16_load_part_or(g->bias + c, n, 0.0f));
    }
    store_row(out + c, n, v);
  }
}

CPU_STATIC void norm_share(const cpu_norm_args *g, cpu_range rows) {
  const float inverse = 1.0f / (float)g->columns;
  const int adds = g->skip != NULL || g->skip_bias != NULL || g->sum != NULL;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *z = g->in + r * g->in_row;
    float *out = g->out + r * g->out_row;
    if (adds) {
      float *sum = g->sum == NULL ? out : g->sum + r * g->sum_row;
      norm_add(g, z, r, sum);
      z = sum;
    }
    const float mean = g->rms ? 0.0f : row_total(z, g->columns) * inverse;
    const float variance = row_squares(z, g->columns, mean) * inverse;
    const float inv_std = 1.0f / sqrtf(variance + g->epsilon);
    norm_apply(g, z, mean, inv_std, out);
    if (g->mean != NULL)
      g->mean[r] = mean;
    if (g->inv_std != NULL)
      g->inv_std[r] = inv_std;
  }
}

/* ---- rotary embedding ---- */

CPU_INLINE void rotate_halves(int64_t half, const float *in, const float *cosine, const float *sine,
                              float *out) {
  for (int64_t i = 0; i < half; i += 16) {
    int64_t n = half - i;
    v16 a = v16_load_part_or(in + i, n, 0.0f);
    v16 b = v16_load_part_or(in + half + i, n, 0.0f);
    v16 c = v16_load_part_or(cosine + i, n, 0.0f);
    v16 s = v16_load_part_or(sine + i, n, 0.0f);
    store_row(out + i, n, v16_sub(v16_mul(a, c), v16_mul(b, s)));
    store_row(out + half + i, n, v16_add(v16_mul(b, c), v16_mul(a, s)));
  }
}

CPU_INLINE void rotate_pairs(int64_t half, const float *in, const float *cosine, const float *sine,
                             float *out) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = in[2 * i];
    const float b = in[2 * i + 1];
    out[2 * i] = a * cosine[i] - b * sine[i];
    out[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

CPU_STATIC void rotary_share(const cpu_rotary_args *g, cpu_range rows) {
  const int64_t half = g->rotary_dim / 2;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const int64_t row = i % g->rows;
    const int64_t head = i / g->rows % g->heads;
    const int64_t batch = i / g->rows / g->heads;
    const float *in =
        g->in + batch * g->in_stride[0] + head * g->in_stride[1] + row * g->in_stride[2];
    float *out =
        g->out + batch * g->out_stride[0] + head * g->out_stride[1] + row * g->out_stride[2];
    int64_t at = batch * g->table_batch + row * g->table_row;
    if (g->positions != NULL)
      at = g->positions[batch * g->position_batch + row] * g->table_row;
    if (g->interleaved)
      rotate_pairs(half, in, g->cos + at, g->sin + at, out);
    else
      rotate_halves(half, in, g->cos + at, g->sin + at, out);
    if (in != out && g->dim > g->rotary_dim) {
      memcpy(out + g->rotary_dim, in + g->rotary_dim,
             (size_t)(g->dim - g->rotary_dim) * sizeof(float));
    }
  }
}

#endif
