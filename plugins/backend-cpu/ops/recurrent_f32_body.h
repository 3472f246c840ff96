/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 for recurrent layers: packed products, and functions on runs where the kernels have them.
 */
#define REAL float
#define REC(name) name##_f32

#include "recurrent_factors_body.h"

static uint64_t REC(packed_bytes)(int64_t k, int64_t n) {
  uint64_t bytes = 0;
  return cpu_pack_bytes(CPU_PACK_F32_PANEL, k, n, &bytes) ? bytes : UINT64_MAX / 64;
}

static void REC(pack)(const cpu_exec *x, const REAL *from, int64_t k, int64_t n, int64_t k_stride,
                      int64_t n_stride, void *to) {
  const cpu_pack_source source = {from, CPU_F32, k, n, k_stride, n_stride, 0};
  cpu_pack(x, CPU_PACK_F32_PANEL, &source, to);
}

static void REC(product)(const cpu_exec *x, const REC(factors) * f) {
  const cpu_epilogue epilogue = {
      .alpha = 1.0f, .residual = f->plus, .residual_stride = f->plus_stride};
  const cpu_matmul_args args = {.m = f->m,
                                .a = f->a,
                                .a_stride = f->a_stride,
                                .b = {CPU_PACK_F32_PANEL, f->k, f->n, f->packed},
                                .c = f->c,
                                .c_stride = f->c_stride,
                                .epilogue = &epilogue};
  cpu_matmul(x, &args);
}

/* x[i] = f(x[i]) */
static void REC(activate)(const cpu_gate *f, const cpu_exec *alone, int64_t n, REAL *x) {
  if (f->kind == CPU_GATE_SIGMOID) {
    cpu_unary_f32(alone, (cpu_unary)CPU_ACT_SIGMOID, x, x, n);
  } else if (f->kind == CPU_GATE_TANH) {
    cpu_unary_f32(alone, (cpu_unary)CPU_ACT_TANH, x, x, n);
  } else {
    for (int64_t i = 0; i < n; ++i)
      x[i] = (REAL)cpu_gate_value(f, (double)x[i]);
  }
}

#include "recurrent_gates_body.h"
