/* SPDX-License-Identifier: Apache-2.0 */
/* IEEE half and bfloat16, as bits, from and to float32. Conversion to a half type rounds to nearest
 * even; NaN stays NaN, numbers beyond the largest become infinity. */
#ifndef OPI_HALVES_H
#define OPI_HALVES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float opi_half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h >> 15) << 31;
  const uint32_t exponent = (h >> 10) & 31u, fraction = h & 1023u;
  uint32_t bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  float f;
  if (exponent == 31)
    bits = sign | 0x7f800000u | (fraction << 13);
  memcpy(&f, &bits, sizeof f);
  if (exponent == 0) {
    f = (float)fraction * 0x1p-24F;
    f = sign != 0 ? -f : f;
  }
  return f;
}

static inline float opi_bfloat_to_float(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint16_t opi_half_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  if (isnan(value))
    return (uint16_t)(sign | 0x7e00u);
  const double magnitude = fabs((double)value);
  if (magnitude >= 65520.0)
    return (uint16_t)(sign | 0x7c00u);
  if (magnitude < 0x1p-14)
    return (uint16_t)(sign | (uint16_t)nearbyint(magnitude * 0x1p24));
  int exponent = 0;
  const double fraction = frexp(magnitude, &exponent);              /* [0.5, 1) */
  const uint32_t mantissa = (uint32_t)nearbyint(fraction * 2048.0); /* [1024, 2048] */
  return (uint16_t)(sign + ((uint32_t)(exponent + 13) << 10) + mantissa);
}

static inline uint16_t opi_bfloat_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  if (isnan(value))
    return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif /* OPI_HALVES_H */
