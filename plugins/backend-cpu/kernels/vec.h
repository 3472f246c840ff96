/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen fp32 lanes, the unit in which all kernels are written.
 *
 * The file that includes this one has defined CPU_VEC_AVX512, CPU_VEC_AVX2 or CPU_VEC_PORTABLE. The
 * three forms differ in how the lanes are held (one register, two, an array) and in nothing else:
 * every operation is one IEEE operation a lane, or a fixed tree over the lanes, so that a kernel
 * gives the same bits on all of them. For the same reason there are no approximate reciprocals.
 *
 *   v16    lanes      m16  one bool per lane, from comparisons      i16  32-bit integers
 *   v16_min(a, b) is a < b ? a : b and v16_max(a, b) is a > b ? a : b: when either is NaN, b. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_VEC_H_
#define OPIPE_BACKEND_CPU_KERNELS_VEC_H_

#include <stdint.h>
#include <string.h>

/* The portable form leaves inlining to the compiler: its lanes are in memory whatever it does. */
#if defined(CPU_VEC_PORTABLE)
#define CPU_INLINE static inline __attribute__((unused))
#else
#define CPU_INLINE static inline __attribute__((always_inline, unused))
#endif
#define CPU_STATIC static __attribute__((unused))

/* Loops over accumulators must be unrolled, or the accumulators live in memory; in the portable
 * form they do so anyway. */
#define CPU_UNROLL_PRAGMA(n) _Pragma(#n)
#if defined(CPU_VEC_PORTABLE)
#define CPU_UNROLL(n)
#else
#define CPU_UNROLL(n) CPU_UNROLL_PRAGMA(GCC unroll n)
#endif

/* Hides from the compiler how a pointer was computed, so that it gets a register of its own. */
#define CPU_APART(pointer) __asm__("" : "+r"(pointer))

#if defined(CPU_VEC_AVX512)
#include "vec_avx512.h"
#elif defined(CPU_VEC_AVX2)
#include "vec_avx2.h"
#elif defined(CPU_VEC_PORTABLE)
#include "vec_portable.h"
#else
#error "define the vector form before including vec.h"
#endif

/* ---- functions made of the above ---- */

CPU_INLINE v16 v16_zero(void) {
  return v16_set(0.0f);
}

CPU_INLINE v16 v16_neg(v16 a) {
  return v16_xor_bits(a, UINT32_C(0x80000000));
}

CPU_INLINE v16 v16_abs(v16 a) {
  return v16_and_bits(a, UINT32_C(0x7fffffff));
}

/* The first n lanes of p, the others `rest`; 0 <= n <= 16. Reads nothing beyond them. */
CPU_INLINE v16 v16_load_part_or(const float *p, int64_t n, float rest) {
  return n >= 16 ? v16_load(p) : v16_select(v16_first(n), v16_load_part(p, n), v16_set(rest));
}

/* NaN where a lane of `a` or `b` is NaN, else the smaller / larger. */
CPU_INLINE v16 v16_min_nan(v16 a, v16 b) {
  return v16_select(v16_is_nan(a), a, v16_min(a, b));
}

CPU_INLINE v16 v16_max_nan(v16 a, v16 b) {
  return v16_select(v16_is_nan(a), a, v16_max(a, b));
}

#endif
