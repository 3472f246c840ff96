/* SPDX-License-Identifier: Apache-2.0 */
/* Types that are only stored: float8, float4, float8e8m0, and integers of 4 and 2 bits.
 */
#ifndef OPIPE_BACKEND_CPU_OPS_SMALL_TYPES_H_
#define OPIPE_BACKEND_CPU_OPS_SMALL_TYPES_H_

#include <stdbool.h>
#include <stdint.h>

typedef enum cpu_round { CPU_ROUND_UP = 0, CPU_ROUND_DOWN = 1, CPU_ROUND_NEAREST = 2 } cpu_round;

/* True for float8, float4 and float8e8m0. */
bool cpu_is_small_float(uint32_t dtype);
/* Value of a code of such a type. */
double cpu_small_decode(uint32_t dtype, uint8_t code);
/* Nearest code (ties to even). saturate: what is too large becomes the largest value, else NaN or
 * infinity. `round` is for float8e8m0 alone. */
uint8_t cpu_small_encode(uint32_t dtype, double value, bool saturate, cpu_round round);

/* Element i of packed codes of `bits` (2 or 4), first element in the lowest bits. */
static inline uint8_t cpu_packed_get(const uint8_t *data, uint32_t bits, int64_t i) {
  const int64_t per_byte = 8 / (int64_t)bits;
  const int shift = (int)(i % per_byte) * (int)bits;
  return (uint8_t)(((unsigned)data[i / per_byte] >> shift) & ((1u << bits) - 1u));
}

static inline void cpu_packed_set(uint8_t *data, uint32_t bits, int64_t i, uint8_t code) {
  const int64_t per_byte = 8 / (int64_t)bits;
  const int shift = (int)(i % per_byte) * (int)bits;
  const unsigned mask = (1u << bits) - 1u;
  const unsigned rest = i % per_byte == 0 ? 0u : data[i / per_byte] & ~(mask << shift);
  data[i / per_byte] = (uint8_t)(rest | ((code & mask) << shift));
}

#endif
