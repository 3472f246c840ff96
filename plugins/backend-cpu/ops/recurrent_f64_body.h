/* SPDX-License-Identifier: Apache-2.0 */
/* fp64 for recurrent layers, which is also the reference of fp32: plain products.
 */
#define REAL double
#define REC(name) name##_f64

#include "recurrent_factors_body.h"

static uint64_t REC(packed_bytes)(int64_t k, int64_t n) {
  return cpu_align_up((uint64_t)k * (uint64_t)n * sizeof(REAL), CPU_ALIGN_BYTES);
}

static void REC(pack)(const cpu_exec *x, const REAL *from, int64_t k, int64_t n, int64_t k_stride,
                      int64_t n_stride, void *to) {
  (void)x;
  for (int64_t i = 0; i < k * n; ++i)
    ((REAL *)to)[i] = from[i / n * k_stride + i % n * n_stride];
}

static void REC(product)(const cpu_exec *x, const REC(factors) * f) {
  const REAL *b = f->packed;
  (void)x;
  for (int64_t i = 0; i < f->m; ++i) {
    REAL *c = f->c + i * f->c_stride;
    for (int64_t j = 0; j < f->n; ++j)
      c[j] = f->plus != NULL ? f->plus[i * f->plus_stride + j] : 0;
    for (int64_t k = 0; k < f->k; ++k) {
      const REAL a = f->a[i * f->a_stride + k];
      for (int64_t j = 0; j < f->n; ++j)
        c[j] += a * b[k * f->n + j];
    }
  }
}

/* x[i] = f(x[i]) */
static void REC(activate)(const cpu_gate *f, const cpu_exec *alone, int64_t n, REAL *x) {
  (void)alone;
  for (int64_t i = 0; i < n; ++i)
    x[i] = cpu_gate_value(f, x[i]);
}

#include "recurrent_gates_body.h"
