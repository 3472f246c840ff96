/* SPDX-License-Identifier: Apache-2.0 */
/* The fp64 product on a panel of 32 columns, included once per instruction set after vec.h. Order
 * of additions as in matmul.h. Models in fp64 are rare: this is plain, not tuned. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_MATMUL_F64_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_MATMUL_F64_BODY_H_

#include "table.h"
#include "vec.h"

/* Eight fp64 lanes, held as vec.h holds sixteen of fp32. */
#if defined(CPU_VEC_AVX512)

typedef __m512d v8d;

CPU_INLINE v8d v8d_load(const double *p) {
  return _mm512_loadu_pd(p);
}

CPU_INLINE void v8d_store(double *p, v8d a) {
  _mm512_storeu_pd(p, a);
}

CPU_INLINE v8d v8d_set(double a) {
  return _mm512_set1_pd(a);
}

CPU_INLINE v8d v8d_add(v8d a, v8d b) {
  return _mm512_add_pd(a, b);
}

CPU_INLINE v8d v8d_fma(v8d a, v8d b, v8d c) {
  return _mm512_fmadd_pd(a, b, c);
}

#elif defined(CPU_VEC_AVX2)

typedef struct v8d {
  __m256d lo, hi;
} v8d;

CPU_INLINE v8d v8d_load(const double *p) {
  return (v8d){_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)};
}

CPU_INLINE void v8d_store(double *p, v8d a) {
  _mm256_storeu_pd(p, a.lo);
  _mm256_storeu_pd(p + 4, a.hi);
}

CPU_INLINE v8d v8d_set(double a) {
  return (v8d){_mm256_set1_pd(a), _mm256_set1_pd(a)};
}

CPU_INLINE v8d v8d_add(v8d a, v8d b) {
  return (v8d){_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)};
}

CPU_INLINE v8d v8d_fma(v8d a, v8d b, v8d c) {
  return (v8d){_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)};
}

#else

typedef struct v8d {
  double lane[8];
} v8d;

CPU_INLINE v8d v8d_load(const double *p) {
  v8d r;
  memcpy(r.lane, p, sizeof r.lane);
  return r;
}

CPU_INLINE void v8d_store(double *p, v8d a) {
  memcpy(p, a.lane, sizeof a.lane);
}

CPU_INLINE v8d v8d_set(double a) {
  v8d r;
  for (int l = 0; l < 8; ++l)
    r.lane[l] = a;
  return r;
}

CPU_INLINE v8d v8d_add(v8d a, v8d b) {
  for (int l = 0; l < 8; ++l)
    a.lane[l] += b.lane[l];
  return a;
}

CPU_INLINE v8d v8d_fma(v8d a, v8d b, v8d c) {
  for (int l = 0; l < 8; ++l)
    c.lane[l] = fma(a.lane[l], b.lane[l], c.lane[l]);
  return c;
}

#endif

enum { F64_ROWS = 4, F64_COLUMNS = 32 };

/* out[rows][32] (+)= one chain; rows is a constant. */
CPU_INLINE void chain_f64(const int rows, const double *a, int64_t a_stride, const double *b,
                          int64_t steps, double *out, int add) {
  for (int u = 0; u < F64_COLUMNS; u += 8 * CPU_TILE_VECTORS) {
    v8d sum[F64_ROWS][CPU_TILE_VECTORS];
    CPU_UNROLL(4)
    for (int r = 0; r < rows; r++) {
      CPU_UNROLL(4)
      for (int v = 0; v < CPU_TILE_VECTORS; v++) {
        sum[r][v] = v8d_set(0.0);
      }
    }
    for (int64_t k = 0; k < steps; k++) {
      CPU_UNROLL(4)
      for (int v = 0; v < CPU_TILE_VECTORS; v++) {
        v8d w = v8d_load(b + k * F64_COLUMNS + u + 8 * v);
        CPU_UNROLL(4)
        for (int r = 0; r < rows; r++) {
          sum[r][v] = v8d_fma(v8d_set(a[r * a_stride + k]), w, sum[r][v]);
        }
      }
    }
    CPU_UNROLL(4)
    for (int r = 0; r < rows; r++) {
      CPU_UNROLL(4)
      for (int v = 0; v < CPU_TILE_VECTORS; v++) {
        double *o = out + r * F64_COLUMNS + u + 8 * v;
        v8d_store(o, add ? v8d_add(v8d_load(o), sum[r][v]) : sum[r][v]);
      }
    }
  }
}

CPU_STATIC void product_f64_share(const cpu_matmul_f64_args *g, const double *a,
                                  const double *panel, int64_t columns, double *c, cpu_range rows) {
  for (int64_t i = rows.begin; i < rows.end; i += F64_ROWS) {
    double sums[F64_ROWS * F64_COLUMNS] = {0};
    const int64_t height = rows.end - i < F64_ROWS ? rows.end - i : F64_ROWS;
    for (int64_t k = 0; k < g->k; k += CPU_CHAIN) {
      const double *ap = a + i * g->a_stride + k;
      const double *bp = panel + k * F64_COLUMNS;
      const int64_t steps = g->k - k < CPU_CHAIN ? g->k - k : CPU_CHAIN;
      if (height == F64_ROWS) {
        chain_f64(F64_ROWS, ap, g->a_stride, bp, steps, sums, k > 0);
      } else {
        for (int64_t r = 0; r < height; ++r)
          chain_f64(1, ap + r * g->a_stride, 0, bp, steps, sums + r * F64_COLUMNS, k > 0);
      }
    }
    for (int64_t r = 0; r < height; ++r) {
      for (int64_t u = 0; u < columns; ++u)
        c[(i + r) * g->c_stride + u] = g->alpha * sums[r * F64_COLUMNS + u];
    }
  }
}

#endif
