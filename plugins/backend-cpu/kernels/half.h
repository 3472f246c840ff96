/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar conversions between fp32 and the 16-bit types, for remainders of a few elements and for
 * the portable kernels. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_HALF_H_
#define OPIPE_BACKEND_CPU_KERNELS_HALF_H_

#include <opipe/halves.h>

static inline float cpu_bf16_to_f32(uint16_t half) {
  return opipe_bf16_to_f32(half);
}

static inline uint16_t cpu_f32_to_bf16(float value) {
  return opipe_f32_to_bf16(value);
}

static inline float cpu_f16_to_f32(uint16_t half) {
  return opipe_f16_to_f32(half);
}

static inline uint16_t cpu_f32_to_f16(float value) {
  return opipe_f32_to_f16(value);
}

#endif
