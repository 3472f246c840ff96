/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to integers of 8 bits and back. One IEEE operation a step: the same bits on every
 * instruction set.
 */
#ifndef OPIPE_BACKEND_CPU_KERNELS_QUANTIZE_H_
#define OPIPE_BACKEND_CPU_KERNELS_QUANTIZE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* y[i] = round(x[i] / scale) to even, plus zero, kept within low and high; a NaN gives low. y:
 * int8 or uint8, as low and high say. */
typedef struct cpu_quantize_args {
  const float *x;
  int64_t n;
  float scale, zero, low, high; /* zero, low, high: integers of at most 8 bits */
  uint8_t *y;
} cpu_quantize_args;

void cpu_quantize(const cpu_exec *x, const cpu_quantize_args *args);

/* y[i] = (float)(x[i] - zero) * scale */
typedef struct cpu_dequantize_args {
  const void *x; /* int8 or uint8 */
  bool is_signed;
  int32_t zero;
  float scale;
  int64_t n;
  float *y;
} cpu_dequantize_args;

void cpu_dequantize(const cpu_exec *x, const cpu_dequantize_args *args);

/* The least and the greatest of 0 and all numbers; NaNs are left out. */
void cpu_range_f32(const cpu_exec *x, const float *in, int64_t n, float *out_least,
                   float *out_greatest);

#endif
