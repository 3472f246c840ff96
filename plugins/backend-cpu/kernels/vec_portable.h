/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of vec.h in an array: plain C11, for machines without AVX2 and as the second opinion in
 * tests. Comparisons are written so that they treat NaN as the instructions of the others do. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_VEC_PORTABLE_H_
#define OPIPE_BACKEND_CPU_KERNELS_VEC_PORTABLE_H_

#include <math.h>

#include "half.h"

#define CPU_TILE_VECTORS 1
#define CPU_VECTOR_PANELS 1

typedef struct v16 {
  float lane[16];
} v16;

typedef struct i16 {
  int32_t lane[16];
} i16;

typedef struct m16 {
  int32_t lane[16]; /* 0 or 1 */
} m16;

/* One lane-wise expression of l. */
#define CPU_LANES(type, expression) \
  type r;                           \
  for (int l = 0; l < 16; l++) {    \
    r.lane[l] = (expression);       \
  }                                 \
  return r

CPU_INLINE uint32_t cpu_bits(float a) {
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  return bits;
}

CPU_INLINE float cpu_from_bits(uint32_t bits) {
  float a;
  memcpy(&a, &bits, sizeof a);
  return a;
}

/* fmaf(a, b, c). Where that is a library call it is done in double: the product is exact there, and
 * the sum is rounded to odd (its last bit says that something was lost), after which rounding to
 * fp32 is the only rounding that counts. */
CPU_INLINE float cpu_fma(float a, float b, float c) {
#if defined(FP_FAST_FMAF)
  return fmaf(a, b, c);
#else
  double product = (double)a * (double)b;
  double sum = product + (double)c;
  double part = sum - product;
  double lost = (product - (sum - part)) + ((double)c - part);
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  uint64_t step = ((lost > 0.0) == (sum > 0.0)) ? UINT64_C(1) : ~UINT64_C(0);
  uint64_t inexact = (uint64_t)((lost > 0.0) | (lost < 0.0));
  bits += step & (UINT64_C(0) - (inexact & ~bits & UINT64_C(1)));
  memcpy(&sum, &bits, sizeof sum);
  return (float)sum;
#endif
}

CPU_INLINE v16 v16_load(const float *p) {
  v16 r;
  memcpy(r.lane, p, sizeof r.lane);
  return r;
}

CPU_INLINE void v16_store(float *p, v16 a) {
  memcpy(p, a.lane, sizeof a.lane);
}

CPU_INLINE m16 v16_first(int64_t n) {
  CPU_LANES(m16, l < n);
}

CPU_INLINE v16 v16_held(v16 a) {
  return a;
}

CPU_INLINE v16 v16_load_part(const float *p, int64_t n) {
  CPU_LANES(v16, l < n ? p[l] : 0.0f);
}

CPU_INLINE void v16_store_part(float *p, int64_t n, v16 a) {
  memcpy(p, a.lane, (size_t)n * sizeof(float));
}

CPU_INLINE v16 v16_set(float a) {
  CPU_LANES(v16, a);
}

CPU_INLINE v16 v16_add(v16 a, v16 b) {
  CPU_LANES(v16, a.lane[l] + b.lane[l]);
}

CPU_INLINE v16 v16_sub(v16 a, v16 b) {
  CPU_LANES(v16, a.lane[l] - b.lane[l]);
}

CPU_INLINE v16 v16_mul(v16 a, v16 b) {
  CPU_LANES(v16, a.lane[l] * b.lane[l]);
}

CPU_INLINE v16 v16_div(v16 a, v16 b) {
  CPU_LANES(v16, a.lane[l] / b.lane[l]);
}

CPU_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
  CPU_LANES(v16, cpu_fma(a.lane[l], b.lane[l], c.lane[l]));
}

CPU_INLINE v16 v16_sqrt(v16 a) {
  CPU_LANES(v16, sqrtf(a.lane[l]));
}

CPU_INLINE v16 v16_min(v16 a, v16 b) {
  CPU_LANES(v16, a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l]);
}

CPU_INLINE v16 v16_max(v16 a, v16 b) {
  CPU_LANES(v16, a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l]);
}

CPU_INLINE m16 v16_less(v16 a, v16 b) {
  CPU_LANES(m16, a.lane[l] < b.lane[l]);
}

CPU_INLINE m16 v16_is_nan(v16 a) {
  CPU_LANES(m16, !(a.lane[l] <= a.lane[l]));
}

CPU_INLINE v16 v16_select(m16 m, v16 yes, v16 no) {
  CPU_LANES(v16, m.lane[l] ? yes.lane[l] : no.lane[l]);
}

CPU_INLINE v16 v16_and_bits(v16 a, uint32_t bits) {
  CPU_LANES(v16, cpu_from_bits(cpu_bits(a.lane[l]) & bits));
}

CPU_INLINE v16 v16_or(v16 a, v16 b) {
  CPU_LANES(v16, cpu_from_bits(cpu_bits(a.lane[l]) | cpu_bits(b.lane[l])));
}

CPU_INLINE v16 v16_xor_bits(v16 a, uint32_t bits) {
  CPU_LANES(v16, cpu_from_bits(cpu_bits(a.lane[l]) ^ bits));
}

CPU_INLINE i16 i16_from_bits(v16 a) {
  i16 r;
  memcpy(r.lane, a.lane, sizeof r.lane);
  return r;
}

CPU_INLINE v16 i16_as_float(i16 a) {
  v16 r;
  memcpy(r.lane, a.lane, sizeof r.lane);
  return r;
}

CPU_INLINE i16 i16_set(int32_t a) {
  CPU_LANES(i16, a);
}

/* Integers wrap, as the instructions do. */
CPU_INLINE i16 i16_add(i16 a, i16 b) {
  CPU_LANES(i16, (int32_t)((uint32_t)a.lane[l] + (uint32_t)b.lane[l]));
}

CPU_INLINE i16 i16_sub(i16 a, i16 b) {
  CPU_LANES(i16, (int32_t)((uint32_t)a.lane[l] - (uint32_t)b.lane[l]));
}

CPU_INLINE i16 i16_mul(i16 a, i16 b) { /* modulo 2^32 */
  CPU_LANES(i16, (int32_t)((uint32_t)a.lane[l] * (uint32_t)b.lane[l]));
}

CPU_INLINE i16 i16_shift(i16 a, const int n) { /* n places down, the sign kept */
  CPU_LANES(i16, a.lane[l] >> n);
}

CPU_INLINE i16 i16_to_exponent(i16 a) {
  CPU_LANES(i16, (int32_t)((uint32_t)a.lane[l] << 23));
}

CPU_INLINE v16 i16_to_float(i16 a) {
  CPU_LANES(v16, (float)a.lane[l]);
}

CPU_INLINE v16 v16_shift_bits(v16 a, const int n) { /* the bits of every lane, n places down */
  CPU_LANES(v16, cpu_from_bits(cpu_bits(a.lane[l]) >> n));
}

/* Sums of products of bytes. */
typedef i16 p16;

enum { P16_IS_WHOLE = 0, P16_VECTORS = 1 }; /* see vec_avx512.h */

CPU_INLINE p16 p16_zero(void) {
  CPU_LANES(p16, 0);
}

/* The products of a lane's four bytes, unsigned, with those of `four`, signed. */
CPU_INLINE int32_t cpu_dot_bytes(uint32_t bytes, uint32_t four) {
  int32_t sum = 0;
  for (int b = 0; b < 4; ++b) {
    const int32_t x = (int32_t)((four >> (8 * b) & 0xffu) ^ 0x80u) - 0x80;
    sum += (int32_t)(bytes >> (8 * b) & 0xffu) * x;
  }
  return sum;
}

CPU_INLINE p16 p16_dot(p16 a, v16 bytes, int32_t four) {
  CPU_LANES(p16, a.lane[l] + cpu_dot_bytes(cpu_bits(bytes.lane[l]), (uint32_t)four));
}

/* The sum of every lane, times `weight`. */
CPU_INLINE i16 p16_fold(p16 a, const int weight) {
  CPU_LANES(i16, a.lane[l] * weight);
}

CPU_INLINE float v16_sum(v16 a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int l = 0; l < step; ++l)
      a.lane[l] = a.lane[l] + a.lane[l + step];
  }
  return a.lane[0];
}

CPU_INLINE float v16_largest(v16 a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int l = 0; l < step; ++l)
      a.lane[l] = a.lane[l] > a.lane[l + step] ? a.lane[l] : a.lane[l + step];
  }
  return a.lane[0];
}

CPU_INLINE v16 v16_load_u8(const uint8_t *p) {
  CPU_LANES(v16, (float)p[l]);
}

CPU_INLINE v16 v16_load_f16(const uint16_t *p) {
  uint16_t half[16];
  memcpy(half, p, sizeof half);
  CPU_LANES(v16, cpu_f16_to_f32(half[l]));
}

CPU_INLINE void v16_store_f16(uint16_t *p, v16 a) {
  for (int l = 0; l < 16; ++l)
    p[l] = cpu_f32_to_f16(a.lane[l]);
}

CPU_INLINE v16 v16_load_bf16(const uint16_t *p) {
  uint16_t half[16];
  memcpy(half, p, sizeof half);
  CPU_LANES(v16, cpu_bf16_to_f32(half[l]));
}

CPU_INLINE v16 v16_low_bf16(v16 pairs) { /* of two bf16 in each lane the lower */
  CPU_LANES(v16, cpu_from_bits(cpu_bits(pairs.lane[l]) << 16));
}

CPU_INLINE void v16_store_bf16(uint16_t *p, v16 a) {
  for (int l = 0; l < 16; ++l)
    p[l] = cpu_f32_to_bf16(a.lane[l]);
}

/* The low 8 bits of whole numbers. */
CPU_INLINE void v16_store_bytes(uint8_t *p, v16 a) {
  for (int l = 0; l < 16; ++l)
    p[l] = (uint8_t)(int32_t)a.lane[l];
}

CPU_INLINE void v16_prefetch_l1(const void *p) {
  __builtin_prefetch(p, 0, 3);
}

CPU_INLINE void v16_prefetch_l2(const void *p) {
  __builtin_prefetch(p, 0, 2);
}

CPU_INLINE void v16_transpose(const float *in, int64_t in_stride, float *out, int64_t out_stride) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j)
      out[j * out_stride + i] = in[i * in_stride + j];
  }
}

#endif
