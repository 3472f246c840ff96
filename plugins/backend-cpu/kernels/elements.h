/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise work of an optimizer step on long arrays of fp32: sums, norms, updates.
 *
 * Arrays are aligned to CPU_ALIGN_BYTES. Every element is computed by itself, a sum of squares in
 * blocks whose number and length depend on n alone. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ELEMENTS_H_
#define OPIPE_BACKEND_CPU_KERNELS_ELEMENTS_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* to[i] += from[i] */
void cpu_add_f32(const cpu_exec *x, const float *from, float *to, int64_t n);

/* Sum of squares in fp64. */
double cpu_sum_squares_f32(const cpu_exec *x, const float *in, int64_t n);

/* One optimizer update, formulas in opipe/backend.h. With g = gradient_scale gradient + l2 weight:
 *   sgd    m = momentum m + g (without m: g), weight -= step (nesterov ? g + momentum m : m)
 *   adam   m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g g,
 *          weight = keep weight - step m / (root sqrt(v) + epsilon), nothing where that is 0;
 *          step and root as lr, the corrections and `inner` have them */
typedef struct cpu_update_args {
  uint32_t kind; /* OPIPE_UPDATE_* */
  bool nesterov, inner, clear;
  int64_t n;
  float *weight, *gradient, *first, *second; /* first, second: NULL where there is none */
  double lr, correction1, correction2;
  float gradient_scale, l2, momentum, beta1, beta2, keep, step, root, epsilon;
  float rest1, rest2; /* 1 - beta1, 1 - beta2, rounded once */
} cpu_update_args;

void cpu_update_f32(const cpu_exec *x, const cpu_update_args *args);

#endif
