/* SPDX-License-Identifier: Apache-2.0 */
/* Packing into panels and transposing, included once per instruction set after vec.h. Both only
 * move and convert values, exactly. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_PACK_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_PACK_BODY_H_

#include "half.h"
#include "table.h"
#include "vec.h"

/* A source may lie at any address: weights in a mapped file do. */
CPU_INLINE float source_value(const void *data, cpu_dtype dtype, int64_t at) {
  uint16_t half;
  float value;
  if (dtype == CPU_F32) {
    memcpy(&value, (const char *)data + at * (int64_t)sizeof value, sizeof value);
    return value;
  }
  memcpy(&half, (const char *)data + at * (int64_t)sizeof half, sizeof half);
  return dtype == CPU_F16 ? cpu_f16_to_f32(half) : cpu_bf16_to_f32(half);
}

CPU_INLINE v16 source_vector(const void *data, cpu_dtype dtype, int64_t at) {
  switch (dtype) {
    case CPU_F16:
      return v16_load_f16((const uint16_t *)data + at);
    case CPU_BF16:
      return v16_load_bf16((const uint16_t *)data + at);
    default:
      return v16_load((const float *)data + at);
  }
}

/* Rows of the source are rows of the panel. */
CPU_STATIC void pack_row_major(const cpu_pack_source *s, int64_t column, int64_t columns,
                               float *out) {
  for (int64_t k = 0; k < s->k; ++k, out += CPU_PANEL) {
    int64_t at = k * s->k_stride + column;
    int64_t u = 0;
    for (; u + 16 <= columns; u += 16)
      v16_store(out + u, source_vector(s->data, s->dtype, at + u));
    for (; u < columns; ++u)
      out[u] = source_value(s->data, s->dtype, at + u);
    for (; u < CPU_PANEL; ++u)
      out[u] = 0.0f;
  }
}

/* One element at a time, for the rest of a transposed source and for odd strides; 0 beyond n. */
CPU_STATIC void pack_elements(const cpu_pack_source *s, int64_t column, cpu_range columns,
                              cpu_range depth, float *out) {
  int64_t end = columns.end < s->n - column ? columns.end : s->n - column;
  end = end < columns.begin ? columns.begin : end;
  for (int64_t k = depth.begin; k < depth.end; ++k) {
    const int64_t at = k * s->k_stride + column * s->n_stride;
    float *row = out + k * CPU_PANEL;
    if (s->dtype == CPU_F32) {
      for (int64_t u = columns.begin; u < end; ++u)
        row[u] = source_value(s->data, CPU_F32, at + u * s->n_stride);
    } else {
      for (int64_t u = columns.begin; u < end; ++u)
        row[u] = source_value(s->data, s->dtype, at + u * s->n_stride);
    }
    for (int64_t u = end; u < columns.end; ++u)
      row[u] = 0.0f;
  }
}

/* Columns of the panel are rows of the source: transposed 16 by 16. */
CPU_STATIC void pack_transposed(const cpu_pack_source *s, int64_t column, int64_t columns,
                                float *out) {
  const int64_t whole = columns - columns % 16;
  const int64_t depth = s->k - s->k % 16;
  for (int64_t u = 0; u < whole; u += 16) {
    for (int64_t k = 0; k < depth; k += 16) {
      int64_t at = (column + u) * s->n_stride + k;
      if (s->dtype == CPU_F32) {
        v16_transpose((const float *)s->data + at, s->n_stride, out + k * CPU_PANEL + u, CPU_PANEL);
        continue;
      }
      float block[16 * 16];
      for (int64_t i = 0; i < 16; ++i)
        v16_store(block + 16 * i, source_vector(s->data, s->dtype, at + i * s->n_stride));
      v16_transpose(block, 16, out + k * CPU_PANEL + u, CPU_PANEL);
    }
  }
  pack_elements(s, column, (cpu_range){0, whole}, (cpu_range){depth, s->k}, out);
  pack_elements(s, column, (cpu_range){whole, CPU_PANEL}, (cpu_range){0, s->k}, out);
}

CPU_STATIC void pack_panel(const cpu_pack_source *s, int64_t panel, float *out) {
  const int64_t column = panel * CPU_PANEL;
  const int64_t columns = s->n - column < CPU_PANEL ? s->n - column : CPU_PANEL;
  if (s->n_stride == 1)
    pack_row_major(s, column, columns, out);
  else if (s->k_stride == 1)
    pack_transposed(s, column, columns, out);
  else
    pack_elements(s, column, (cpu_range){0, CPU_PANEL}, (cpu_range){0, s->k}, out);
}

/* out[16][2]: those of `first` before those of `second`. */
CPU_INLINE void interleave_16(const uint16_t *first, const uint16_t *second, uint16_t *out) {
#if defined(CPU_VEC_AVX512)
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)first));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)second));
  _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
  for (int i = 0; i < 16; ++i) {
    out[2 * i] = first[i];
    out[2 * i + 1] = second[i];
  }
#endif
}

/* out[rows][64], two rows side by side, from fp32. */
CPU_STATIC void pack_pairs(const float *in, int64_t rows, uint16_t *out) {
  for (int64_t i = 0; i < rows; i += 2) {
    for (int64_t u = 0; u < CPU_PANEL; u += 16) {
      uint16_t two[2][16];
      v16_store_bf16(two[0], v16_load(in + i * CPU_PANEL + u));
      if (i + 1 == rows) {
        memcpy(out + i * CPU_PANEL + u, two[0], sizeof two[0]);
        continue;
      }
      v16_store_bf16(two[1], v16_load(in + (i + 1) * CPU_PANEL + u));
      interleave_16(two[0], two[1], out + i * CPU_PANEL + 2 * u);
    }
  }
}

/* Sixteen rows at a time by way of fp32, which is exact; a NaN comes out quiet, as it would there.
 */
CPU_STATIC void pack_half_panel(const cpu_pack_source *s, int64_t panel, uint16_t *out) {
  float rows[16 * CPU_PANEL];
  for (int64_t k = 0; k < s->k; k += 16) {
    cpu_pack_source part = *s;
    part.data = (const char *)s->data + k * s->k_stride * (int64_t)sizeof(uint16_t);
    part.k = s->k - k < 16 ? s->k - k : 16;
    pack_panel(&part, panel, rows);
    if (s->dtype == CPU_BF16)
      pack_pairs(rows, part.k, out + k * CPU_PANEL);
    for (int64_t i = 0; i < part.k * CPU_PANEL && s->dtype == CPU_F16; i += 16)
      v16_store_f16(out + k * CPU_PANEL + i, v16_load(rows + i));
  }
}

CPU_STATIC void transpose_share(const float *in, int64_t in_stride, int64_t rows, int64_t columns,
                                float *out, int64_t out_stride) {
  const int64_t whole_rows = rows - rows % 16;
  const int64_t whole_columns = columns - columns % 16;
  for (int64_t i = 0; i < whole_rows; i += 16) {
    for (int64_t j = 0; j < whole_columns; j += 16)
      v16_transpose(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      out[j * out_stride + i] = in[i * in_stride + j];
  }
}

#endif
