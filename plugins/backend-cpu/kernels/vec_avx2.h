/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of vec.h in two AVX2 registers: lo holds lanes 0 to 7, hi lanes 8 to 15. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_VEC_AVX2_H_
#define OPIPE_BACKEND_CPU_KERNELS_VEC_AVX2_H_

#include <immintrin.h>

#define CPU_TILE_VECTORS 1
#define CPU_VECTOR_PANELS 1

typedef struct v16 {
  __m256 lo, hi;
} v16;

typedef struct i16 {
  __m256i lo, hi;
} i16;

typedef v16 m16; /* all bits of a lane, or none */

/* Applies a two-operand intrinsic to both halves. */
#define CPU_BOTH(type, f, a, b) ((type){f((a).lo, (b).lo), f((a).hi, (b).hi)})

CPU_INLINE v16 v16_load(const float *p) {
  return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

CPU_INLINE void v16_store(float *p, v16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}

CPU_INLINE m16 v16_first(int64_t n) {
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256i count = _mm256_set1_epi32((int32_t)n);
  __m256i rest = _mm256_set1_epi32((int32_t)n - 8);
  return (m16){_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
               _mm256_castsi256_ps(_mm256_cmpgt_epi32(rest, lane))};
}

CPU_INLINE v16 v16_held(v16 a) {
  __asm__("" : "+x"(a.lo), "+x"(a.hi));
  return a;
}

CPU_INLINE v16 v16_load_part(const float *p, int64_t n) {
  m16 m = v16_first(n);
  return (v16){_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
               _mm256_maskload_ps(p + (n > 8 ? 8 : 0), _mm256_castps_si256(m.hi))};
}

CPU_INLINE void v16_store_part(float *p, int64_t n, v16 a) {
  m16 m = v16_first(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + (n > 8 ? 8 : 0), _mm256_castps_si256(m.hi), a.hi);
}

CPU_INLINE v16 v16_set(float a) {
  return (v16){_mm256_set1_ps(a), _mm256_set1_ps(a)};
}

CPU_INLINE v16 v16_add(v16 a, v16 b) {
  return CPU_BOTH(v16, _mm256_add_ps, a, b);
}

CPU_INLINE v16 v16_sub(v16 a, v16 b) {
  return CPU_BOTH(v16, _mm256_sub_ps, a, b);
}

CPU_INLINE v16 v16_mul(v16 a, v16 b) {
  return CPU_BOTH(v16, _mm256_mul_ps, a, b);
}

CPU_INLINE v16 v16_div(v16 a, v16 b) {
  return CPU_BOTH(v16, _mm256_div_ps, a, b);
}

CPU_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
  return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

CPU_INLINE v16 v16_sqrt(v16 a) {
  return (v16){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}

CPU_INLINE v16 v16_min(v16 a, v16 b) {
  return CPU_BOTH(v16, _mm256_min_ps, a, b);
}

CPU_INLINE v16 v16_max(v16 a, v16 b) {
  return CPU_BOTH(v16, _mm256_max_ps, a, b);
}

CPU_INLINE m16 v16_less(v16 a, v16 b) {
  return (m16){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}

CPU_INLINE m16 v16_is_nan(v16 a) {
  return (m16){_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}

CPU_INLINE v16 v16_select(m16 m, v16 yes, v16 no) {
  return (v16){_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

CPU_INLINE v16 v16_and_bits(v16 a, uint32_t bits) {
  __m256 b = _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)bits));
  return (v16){_mm256_and_ps(a.lo, b), _mm256_and_ps(a.hi, b)};
}

CPU_INLINE v16 v16_or(v16 a, v16 b) {
  return CPU_BOTH(v16, _mm256_or_ps, a, b);
}

CPU_INLINE v16 v16_xor_bits(v16 a, uint32_t bits) {
  __m256 b = _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)bits));
  return (v16){_mm256_xor_ps(a.lo, b), _mm256_xor_ps(a.hi, b)};
}

CPU_INLINE i16 i16_from_bits(v16 a) {
  return (i16){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}

CPU_INLINE v16 i16_as_float(i16 a) {
  return (v16){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}

CPU_INLINE i16 i16_set(int32_t a) {
  return (i16){_mm256_set1_epi32(a), _mm256_set1_epi32(a)};
}

CPU_INLINE i16 i16_add(i16 a, i16 b) {
  return CPU_BOTH(i16, _mm256_add_epi32, a, b);
}

CPU_INLINE i16 i16_sub(i16 a, i16 b) {
  return CPU_BOTH(i16, _mm256_sub_epi32, a, b);
}

CPU_INLINE i16 i16_mul(i16 a, i16 b) { /* modulo 2^32 */
  return CPU_BOTH(i16, _mm256_mullo_epi32, a, b);
}

CPU_INLINE i16 i16_shift(i16 a, const int n) { /* n places down, the sign kept */
  return (i16){_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}

CPU_INLINE i16 i16_to_exponent(i16 a) {
  return (i16){_mm256_slli_epi32(a.lo, 23), _mm256_slli_epi32(a.hi, 23)};
}

CPU_INLINE v16 i16_to_float(i16 a) {
  return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

CPU_INLINE v16 v16_shift_bits(v16 a, const int n) { /* the bits of every lane, n places down */
  return (v16){_mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(a.lo), n)),
               _mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(a.hi), n))};
}

/* Sums of products of bytes, for p16_fold: 16 bits of every two, 32 of every four. */
typedef i16 p16;

#if defined(__AVXVNNI__)
enum { P16_IS_WHOLE = 1 }; /* 32 bits at once */
#else
enum { P16_IS_WHOLE = 0 };
#endif
enum { P16_VECTORS = 1 };

CPU_INLINE p16 p16_zero(void) {
  return (p16){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

/* a + the products of a lane's four bytes, unsigned, with `four`, signed; the caller sees to it
 * that no sum of two leaves 16 bits. */
CPU_INLINE p16 p16_dot(p16 a, v16 bytes, int32_t four) {
  const __m256i x = _mm256_set1_epi32(four);
#if defined(__AVXVNNI__)
  a.lo = _mm256_dpbusd_avx_epi32(a.lo, _mm256_castps_si256(bytes.lo), x);
  a.hi = _mm256_dpbusd_avx_epi32(a.hi, _mm256_castps_si256(bytes.hi), x);
#else
  a.lo = _mm256_add_epi16(a.lo, _mm256_maddubs_epi16(_mm256_castps_si256(bytes.lo), x));
  a.hi = _mm256_add_epi16(a.hi, _mm256_maddubs_epi16(_mm256_castps_si256(bytes.hi), x));
#endif
  /* Sums stay in the order in which they are written: regrouped, they would not fit the
   * registers. */
  __asm__("" : "+x"(a.lo), "+x"(a.hi));
  return a;
}

/* The sum of every lane, times `weight`. */
CPU_INLINE i16 p16_fold(p16 a, const int weight) {
#if defined(__AVXVNNI__)
  const __m256i w = _mm256_set1_epi32(weight);
  return (i16){_mm256_mullo_epi32(a.lo, w), _mm256_mullo_epi32(a.hi, w)};
#else
  const __m256i w = _mm256_set1_epi16((int16_t)weight);
  return (i16){_mm256_madd_epi16(a.lo, w), _mm256_madd_epi16(a.hi, w)};
#endif
}

CPU_INLINE float v16_sum(v16 a) {
  __m256 b = _mm256_add_ps(a.lo, a.hi);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

CPU_INLINE float v16_largest(v16 a) {
  __m256 b = _mm256_max_ps(a.lo, a.hi);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

CPU_INLINE v16 v16_load_u8(const uint8_t *p) {
  __m128i a = _mm_loadu_si128((const __m128i *)(const void *)p);
  return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(a)),
               _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(a, 8)))};
}

CPU_INLINE v16 v16_load_f16(const uint16_t *p) {
  return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
               _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}

CPU_INLINE void v16_store_f16(uint16_t *p, v16 a) {
  _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

CPU_INLINE __m256 cpu_half_from_bf16(const uint16_t *p) {
  __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
}

CPU_INLINE v16 v16_load_bf16(const uint16_t *p) {
  return (v16){cpu_half_from_bf16(p), cpu_half_from_bf16(p + 8)};
}

CPU_INLINE __m256i cpu_half_to_bf16(__m256 a) { /* in the low 16 bits of every lane */
  __m256i bits = _mm256_castps_si256(a);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

CPU_INLINE v16 v16_low_bf16(v16 pairs) { /* of two bf16 in each lane the lower */
  return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.lo), 16)),
               _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.hi), 16))};
}

CPU_INLINE void v16_store_bf16(uint16_t *p, v16 a) {
  __m256i both = _mm256_packus_epi32(cpu_half_to_bf16(a.lo), cpu_half_to_bf16(a.hi));
  _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(both, 0xd8));
}

/* The low 8 bits of whole numbers. */
CPU_INLINE void v16_store_bytes(uint8_t *p, v16 a) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i both = _mm256_packus_epi32(_mm256_and_si256(_mm256_cvtps_epi32(a.lo), low),
                                           _mm256_and_si256(_mm256_cvtps_epi32(a.hi), low));
  const __m256i words = _mm256_permute4x64_epi64(both, 0xd8);
  _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                          _mm256_extracti128_si256(words, 1)));
}

CPU_INLINE void v16_prefetch_l1(const void *p) {
  _mm_prefetch((const char *)p, _MM_HINT_T0);
}

CPU_INLINE void v16_prefetch_l2(const void *p) {
  _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* out[j][i] = in[i][j], 8 by 8. */
CPU_INLINE void cpu_transpose_8(const float *in, int64_t in_stride, float *out,
                                int64_t out_stride) {
  __m256 a[8];
  __m256 b[8];
  CPU_UNROLL(8)
  for (int i = 0; i < 8; i++) {
    a[i] = _mm256_loadu_ps(in + i * in_stride);
  }
  CPU_UNROLL(4)
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  CPU_UNROLL(2)
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  CPU_UNROLL(4)
  for (int c = 0; c < 4; c++) {
    _mm256_storeu_ps(out + c * out_stride, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
    _mm256_storeu_ps(out + (c + 4) * out_stride, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
  }
}

CPU_INLINE void v16_transpose(const float *in, int64_t in_stride, float *out, int64_t out_stride) {
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 16; j += 8)
      cpu_transpose_8(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
  }
}

#endif
