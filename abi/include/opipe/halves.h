/* SPDX-License-Identifier: Apache-2.0 */
/* For plugin writers: one value of a 16-bit floating type from and to float32. Rounding is to
 * nearest even, subnormals are kept, overflow gives infinity, and a NaN becomes quiet with the
 * upper bits of its payload: what the conversion instructions of processors do. Header only;
 * nothing here is part of the ABI.
 */
#ifndef OPIPE_HALVES_H
#define OPIPE_HALVES_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline float opipe_bf16_to_f32(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint16_t opipe_f32_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000))
    return (uint16_t)((bits | UINT32_C(0x400000)) >> 16);
  return (uint16_t)((bits + UINT32_C(0x7fff) + ((bits >> 16) & 1u)) >> 16);
}

static inline float opipe_f16_to_f32(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  uint32_t exponent = (half >> 10) & 0x1fu;
  uint32_t fraction = half & 0x3ffu;
  uint32_t bits;
  float value;
  if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact */
    value = (float)fraction * 5.9604644775390625e-8f;
    memcpy(&bits, &value, sizeof bits);
    bits |= sign;
  } else if (exponent == 31) {
    bits = sign | UINT32_C(0x7f800000) | (fraction << 13);
    bits |= fraction != 0 ? UINT32_C(0x400000) : 0;
  } else {
    bits = sign | ((exponent + 112u) << 23) | (fraction << 13);
  }
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint16_t opipe_f32_to_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & UINT32_C(0x7fffffff);
  if (magnitude > UINT32_C(0x7f800000)) /* NaN */
    return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= UINT32_C(0x477ff000)) /* rounds to 65536 or more */
    return (uint16_t)(sign | 0x7c00u);
  if (magnitude <
      UINT32_C(0x38800000)) { /* below 2^-14: in units of 2^-24, rounded by adding 2^23 */
    float scaled;
    memcpy(&scaled, &magnitude, sizeof scaled);
    scaled = scaled * 16777216.0f + 8388608.0f;
    uint32_t units;
    memcpy(&units, &scaled, sizeof units);
    return (uint16_t)(sign | (units - UINT32_C(0x4b000000)));
  }
  uint32_t rounded = magnitude + UINT32_C(0xfff) + ((magnitude >> 13) & 1u);
  return (uint16_t)(sign | ((rounded - (UINT32_C(112) << 23)) >> 13));
}

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_HALVES_H */
