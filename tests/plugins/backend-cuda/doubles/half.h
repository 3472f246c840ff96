/* SPDX-License-Identifier: Apache-2.0 */
/* fp16 as bits, for the doubles. */
#ifndef CUDA_DOUBLE_HALF_H
#define CUDA_DOUBLE_HALF_H

#include <stdint.h>
#include <string.h>

static inline double half_to_double(uint16_t bits) {
  const uint32_t single = (uint32_t)(bits & 0x7fff) << 13;
  float size;
  memcpy(&size, &single, sizeof size); /* in units of 2^-112 */
  const double value = (bits & 0x7c00) != 0x7c00 ? (double)size * 0x1p112
                       : (bits & 1023) != 0      ? __builtin_nan("")
                                                 : __builtin_inf();
  return (bits >> 15) != 0 ? -value : value;
}

/* To the nearest, ties to even: by trying the two neighbours of the cut value. */
static inline uint16_t to_half(double value) {
  uint16_t best = 0x7e00;
  double least = __builtin_inf();
  if (__builtin_isnan(value))
    return best;
  if (__builtin_fabs(value) >= 65520.0)
    return value < 0 ? 0xfc00 : 0x7c00;
  int exponent = 0;
  (void)__builtin_frexp(value, &exponent);
  const int unit = exponent < -13 ? -24 : exponent - 11;
  const double scaled = __builtin_ldexp(__builtin_fabs(value), -unit);
  const double down = __builtin_floor(scaled);
  for (int up = 0; up < 2; ++up) {
    const double near = down + up;
    const double off = __builtin_fabs(scaled - near);
    if (off < least || (off == least && (uint64_t)near % 2 == 0)) {
      const double rounded = __builtin_ldexp(near, unit);
      int e = 0;
      const double f = __builtin_frexp(rounded, &e);
      const uint32_t field = rounded == 0 || e < -13 ? (uint32_t)__builtin_ldexp(rounded, 24)
                                                     : (uint32_t)((e + 14) * 1024) +
                                                           (uint32_t)__builtin_ldexp(f, 11) - 1024;
      least = off;
      best = (uint16_t)field;
    }
  }
  return (uint16_t)(best | (value < 0 || (value == 0 && __builtin_signbit(value)) ? 0x8000 : 0));
}

#endif /* CUDA_DOUBLE_HALF_H */
