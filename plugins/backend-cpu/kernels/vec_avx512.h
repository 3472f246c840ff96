/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of vec.h in one AVX-512 register. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_VEC_AVX512_H_
#define OPIPE_BACKEND_CPU_KERNELS_VEC_AVX512_H_

#include <immintrin.h>

/* How many v16 a row of the product's register tile has, and of the single-row product. */
#define CPU_TILE_VECTORS 4
#define CPU_VECTOR_PANELS 4

typedef __m512 v16;
typedef __m512i i16;
typedef __mmask16 m16;

CPU_INLINE v16 v16_load(const float *p) {
  return _mm512_loadu_ps(p);
}

CPU_INLINE void v16_store(float *p, v16 a) {
  _mm512_storeu_ps(p, a);
}

CPU_INLINE m16 v16_first(int64_t n) {
  return (m16)((1u << (unsigned)n) - 1u);
}

/* A vector that is used several times: it stays in a register, and is not loaded for each use. */
CPU_INLINE v16 v16_held(v16 a) {
  __asm__("" : "+v"(a));
  return a;
}

CPU_INLINE v16 v16_load_part(const float *p, int64_t n) {
  return _mm512_maskz_loadu_ps(v16_first(n), p);
}

CPU_INLINE void v16_store_part(float *p, int64_t n, v16 a) {
  _mm512_mask_storeu_ps(p, v16_first(n), a);
}

CPU_INLINE v16 v16_set(float a) {
  return _mm512_set1_ps(a);
}

CPU_INLINE v16 v16_add(v16 a, v16 b) {
  return _mm512_add_ps(a, b);
}

CPU_INLINE v16 v16_sub(v16 a, v16 b) {
  return _mm512_sub_ps(a, b);
}

CPU_INLINE v16 v16_mul(v16 a, v16 b) {
  return _mm512_mul_ps(a, b);
}

CPU_INLINE v16 v16_div(v16 a, v16 b) {
  return _mm512_div_ps(a, b);
}

CPU_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
  return _mm512_fmadd_ps(a, b, c);
}

CPU_INLINE v16 v16_sqrt(v16 a) {
  return _mm512_sqrt_ps(a);
}

CPU_INLINE v16 v16_min(v16 a, v16 b) {
  return _mm512_min_ps(a, b);
}

CPU_INLINE v16 v16_max(v16 a, v16 b) {
  return _mm512_max_ps(a, b);
}

CPU_INLINE m16 v16_less(v16 a, v16 b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

CPU_INLINE m16 v16_is_nan(v16 a) {
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

/* yes where the lane of m is set, else no */
CPU_INLINE v16 v16_select(m16 m, v16 yes, v16 no) {
  return _mm512_mask_blend_ps(m, no, yes);
}

CPU_INLINE v16 v16_and_bits(v16 a, uint32_t bits) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int32_t)bits)));
}

CPU_INLINE v16 v16_or(v16 a, v16 b) {
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

CPU_INLINE v16 v16_xor_bits(v16 a, uint32_t bits) {
  return _mm512_castsi512_ps(
      _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int32_t)bits)));
}

CPU_INLINE i16 i16_from_bits(v16 a) {
  return _mm512_castps_si512(a);
}

CPU_INLINE v16 i16_as_float(i16 a) {
  return _mm512_castsi512_ps(a);
}

CPU_INLINE i16 i16_set(int32_t a) {
  return _mm512_set1_epi32(a);
}

CPU_INLINE i16 i16_add(i16 a, i16 b) {
  return _mm512_add_epi32(a, b);
}

CPU_INLINE i16 i16_sub(i16 a, i16 b) {
  return _mm512_sub_epi32(a, b);
}

CPU_INLINE i16 i16_mul(i16 a, i16 b) { /* modulo 2^32 */
  return _mm512_mullo_epi32(a, b);
}

CPU_INLINE i16 i16_shift(i16 a, const int n) { /* n places down, the sign kept */
  return _mm512_srai_epi32(a, (unsigned)n);
}

CPU_INLINE i16 i16_to_exponent(i16 a) { /* a << 23 */
  return _mm512_slli_epi32(a, 23);
}

CPU_INLINE v16 i16_to_float(i16 a) {
  return _mm512_cvtepi32_ps(a);
}

/* Lane 0 of the sums, or maxima, over pairs l and l+8, then l+4, l+2, l+1. */
CPU_INLINE v16 v16_shift_bits(v16 a, const int n) { /* the bits of every lane, n places down */
  return _mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512(a), (unsigned)n));
}

/* Sums of products of bytes, for p16_fold: 16 bits of every two, 32 of every four. */
typedef __m512i p16;

#if defined(__AVX512VNNI__)
enum { P16_IS_WHOLE = 1 }; /* 32 bits at once */
#else
enum { P16_IS_WHOLE = 0 };
#endif
enum { P16_VECTORS = 4 }; /* of columns that one row takes at once: there are registers for it */

CPU_INLINE p16 p16_zero(void) {
  return _mm512_setzero_si512();
}

/* a + the products of a lane's four bytes, unsigned, with `four`, signed; the caller sees to it
 * that no sum of two leaves 16 bits. */
CPU_INLINE p16 p16_dot(p16 a, v16 bytes, int32_t four) {
#if defined(__AVX512VNNI__)
  a = _mm512_dpbusd_epi32(a, _mm512_castps_si512(bytes), _mm512_set1_epi32(four));
  __asm__("" : "+v"(a)); /* gcc 12 would keep copies of a loop's sums in memory */
#else
  const __m512i x = _mm512_set1_epi32(four);
  a = _mm512_add_epi16(a, _mm512_maddubs_epi16(_mm512_castps_si512(bytes), x));
  __asm__("" : "+v"(a)); /* see vec_avx2.h */
#endif
  return a;
}

/* The sum of every lane, times `weight`. */
CPU_INLINE i16 p16_fold(p16 a, const int weight) {
#if defined(__AVX512VNNI__)
  return _mm512_mullo_epi32(a, _mm512_set1_epi32(weight));
#else
  return _mm512_madd_epi16(a, _mm512_set1_epi16((int16_t)weight));
#endif
}

CPU_INLINE float v16_sum(v16 a) {
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

CPU_INLINE float v16_largest(v16 a) {
  __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

CPU_INLINE v16 v16_load_u8(const uint8_t *p) {
  __m128i a = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(a));
}

CPU_INLINE v16 v16_load_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

CPU_INLINE void v16_store_f16(uint16_t *p, v16 a) {
  _mm256_storeu_si256((__m256i *)(void *)p,
                      _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

CPU_INLINE v16 v16_load_bf16(const uint16_t *p) {
  __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
}

CPU_INLINE v16 v16_low_bf16(v16 pairs) { /* of two bf16 in each lane the lower */
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}

CPU_INLINE void v16_store_bf16(uint16_t *p, v16 a) {
  __m512i bits = _mm512_castps_si512(a);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  rounded = _mm512_mask_mov_epi32(rounded, v16_is_nan(a), quiet);
  _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

/* The low 8 bits of whole numbers. */
CPU_INLINE void v16_store_bytes(uint8_t *p, v16 a) {
  _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

CPU_INLINE void v16_prefetch_l1(const void *p) {
  _mm_prefetch((const char *)p, _MM_HINT_T0);
}

CPU_INLINE void v16_prefetch_l2(const void *p) {
  _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* out[j][i] = in[i][j], 16 by 16. */
CPU_INLINE void v16_transpose(const float *in, int64_t in_stride, float *out, int64_t out_stride) {
  __m512 a[16];
  __m512 b[16];
  CPU_UNROLL(16)
  for (int i = 0; i < 16; i++) {
    a[i] = _mm512_loadu_ps(in + i * in_stride);
  }
  CPU_UNROLL(8)
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  CPU_UNROLL(4)
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  /* a[4 g + c]: columns c, c+4, c+8, c+12 of rows 4 g .. 4 g + 3, one in each 128-bit part */
  CPU_UNROLL(4)
  for (int c = 0; c < 4; c++) {
    __m512 even = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
    __m512 odd = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
    __m512 even2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
    __m512 odd2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_storeu_ps(out + c * out_stride, _mm512_shuffle_f32x4(even, even2, 0x88));
    _mm512_storeu_ps(out + (c + 4) * out_stride, _mm512_shuffle_f32x4(odd, odd2, 0x88));
    _mm512_storeu_ps(out + (c + 8) * out_stride, _mm512_shuffle_f32x4(even, even2, 0xdd));
    _mm512_storeu_ps(out + (c + 12) * out_stride, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
  }
}

#endif
