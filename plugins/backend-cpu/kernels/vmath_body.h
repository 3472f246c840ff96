/* SPDX-License-Identifier: Apache-2.0 */
/* Math functions on sixteen lanes, included once per instruction set after vec.h.
 *
 * Polynomials are fitted by fit_vmath.py; errors stand at each function (units in the last place of
 * the result over the range where it is a normal number, as found by the tests). Every function
 * maps NaN to NaN and treats infinities as its limit says. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_VMATH_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_VMATH_BODY_H_

#include <math.h>

#include "kernels.h"
#include "vec.h"

/* c[0] + c[1] x + ... by Horner's rule; n is a constant. */
CPU_INLINE v16 v16_polynomial(v16 x, const float *c, const int n) {
  v16 p = v16_set(c[n - 1]);
  CPU_UNROLL(16)
  for (int i = n - 2; i >= 0; i--) {
    p = v16_fma(p, x, v16_set(c[i]));
  }
  return p;
}

/* The parts of exp(x) = y 2^n: x = n ln 2 + r, y = 1 + r + r^2 P(r). n comes as the low bits of a
 * float, where adding 1.5 2^23 has rounded it to an integer. */
typedef struct exp_parts {
  v16 y;
  i16 bits; /* n + EXP_MAGIC_BITS */
} exp_parts;

#define EXP_MAGIC 0x1.8p23f
#define EXP_MAGIC_BITS 0x4b400000
#define EXP_LOG2E 0x1.715476p0f
#define EXP_LN2_HIGH 0x1.62e4p-1f /* 16 bits, so that its products with n are exact */
#define EXP_LN2_LOW 0x1.7f7d1cp-20f

CPU_INLINE v16 exp_fraction(v16 r) {
  static const float c[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558aep-5f, 0x1.12398p-7f,
                            0x1.6a4f28p-10f};
  v16 e = v16_fma(v16_polynomial(r, c, 5), v16_mul(r, r), r);
  return v16_add(v16_set(1.0f), e);
}

CPU_INLINE exp_parts exp_split(v16 x) {
  v16 t = v16_fma(x, v16_set(EXP_LOG2E), v16_set(EXP_MAGIC));
  v16 n = v16_sub(t, v16_set(EXP_MAGIC));
  v16 r = v16_fma(n, v16_set(-EXP_LN2_HIGH), x);
  r = v16_fma(n, v16_set(-EXP_LN2_LOW), r);
  return (exp_parts){exp_fraction(r), i16_from_bits(t)};
}

/* y 2^n for -126 <= n <= 128, where 2^128 stands for infinity; the magic's bits are shifted out. */
CPU_INLINE v16 exp_join(exp_parts e) {
  return v16_mul(e.y, i16_as_float(i16_to_exponent(i16_add(e.bits, i16_set(127)))));
}

/* Over the whole range: the result may be subnormal, 0 or infinite, and is scaled in two steps so
 * that it is rounded once. 1.1 units. */
CPU_INLINE v16 v16_exp(v16 x) {
  exp_parts e = exp_split(v16_min(v16_set(89.0f), v16_max(v16_set(-104.0f), x)));
  i16 n = i16_sub(e.bits, i16_set(EXP_MAGIC_BITS));
  i16 first = i16_shift(n, 1);
  i16 second = i16_sub(n, first);
  v16 y = v16_mul(e.y, i16_as_float(i16_to_exponent(i16_add(first, i16_set(127)))));
  return v16_mul(y, i16_as_float(i16_to_exponent(i16_add(second, i16_set(127)))));
}

/* For 1 + exp(x): below -87 the result stays at exp(-87), above 88.4 it is infinite. */
CPU_INLINE v16 v16_exp_bounded(v16 x) {
  return exp_join(exp_split(v16_min(v16_set(89.0f), v16_max(v16_set(-87.0f), x))));
}

/* For softmax, x <= 0: below -87 the result is 0. */
CPU_INLINE v16 v16_exp_negative(v16 x) {
  v16 y = exp_join(exp_split(v16_max(v16_set(-87.0f), x)));
  return v16_select(v16_less(x, v16_set(-87.0f)), v16_zero(), y);
}

/* log(0) is minus infinity, of negative numbers NaN. 0.9 units. */
CPU_INLINE v16 v16_log(v16 x) {
  static const float c[] = {0x1.555554p-2f, -0x1.000226p-2f, 0x1.99a01cp-3f, -0x1.54728ap-3f,
                            0x1.22d93p-3f,  -0x1.0d8246p-3f, 0x1.055eaep-3f, -0x1.38c974p-4f};
  m16 tiny = v16_less(x, v16_set(0x1p-126f));
  v16 scaled = v16_select(tiny, v16_mul(x, v16_set(0x1p23f)), x);
  i16 bits = i16_from_bits(scaled);
  i16 e = i16_shift(i16_sub(bits, i16_set(0x3f3504f3)), 23); /* mantissa from sqrt(1/2) up */
  v16 f = v16_sub(i16_as_float(i16_sub(bits, i16_to_exponent(e))), v16_set(1.0f));
  v16 n = i16_to_float(e);
  n = v16_sub(n, v16_select(tiny, v16_set(23.0f), v16_zero()));
  v16 square = v16_mul(f, f);
  v16 p = v16_mul(v16_polynomial(f, c, 8), v16_mul(square, f));
  p = v16_fma(n, v16_set(0x1.7f7d1cp-20f), p);
  p = v16_fma(square, v16_set(-0.5f), p);
  v16 y = v16_fma(n, v16_set(0x1.62e4p-1f), v16_add(f, p));
  y = v16_select(v16_less(x, v16_set(INFINITY)), y, x);
  v16 special = v16_select(v16_less(x, v16_zero()), v16_set(NAN), v16_set(-INFINITY));
  special = v16_select(v16_is_nan(x), x, special);
  return v16_select(v16_less(v16_zero(), x), y, special);
}

CPU_INLINE v16 v16_sigmoid(v16 x) { /* 2.5 units */
  return v16_div(v16_set(1.0f), v16_add(v16_set(1.0f), v16_exp_bounded(v16_neg(x))));
}

CPU_INLINE v16 v16_silu(v16 x) {
  return v16_div(x, v16_add(v16_set(1.0f), v16_exp_bounded(v16_neg(x))));
}

CPU_INLINE v16 v16_tanh(v16 x) { /* 1.4 units */
  static const float c[] = {-0x1.55553p-2f, 0x1.110688p-3f, -0x1.b826fep-5f, 0x1.519718p-6f,
                            -0x1.734ee8p-8f};
  v16 size = v16_abs(x);
  v16 square = v16_mul(x, x);
  v16 small = v16_fma(v16_mul(v16_polynomial(square, c, 5), square), x, x);
  v16 e = v16_exp_bounded(v16_add(size, size));
  v16 large = v16_sub(v16_set(1.0f), v16_div(v16_set(2.0f), v16_add(e, v16_set(1.0f))));
  large = v16_or(large, v16_and_bits(x, UINT32_C(0x80000000)));
  return v16_select(v16_less(size, v16_set(0.625f)), small, large);
}

/* Phi(-t), the normal distribution's tail, for 0 <= t <= 13: exp(-t^2/2) u Q(u), u = 1/(1 + 0.35
 * t). The remainder of t^2/2 by ln 2 is formed by fused multiply-add, so that the square's rounding
 * error does not count. 6 units. */
CPU_INLINE v16 v16_normal_tail(v16 t) {
  static const float c[] = {0x1.1df1cp-3f,   0x1.1e712cp-3f,  0x1.eac4p-4f,
                            0x1.b06d9cp-4f,  -0x1.7d1664p-6f, 0x1.466c4cp-3f,
                            -0x1.060974p-2f, 0x1.270796p-3f,  -0x1.ddcf4ep-6f};
  v16 u = v16_div(v16_set(1.0f), v16_fma(t, v16_set(0x1.666666p-2f), v16_set(1.0f)));
  v16 half = v16_mul(t, v16_set(-0.5f));
  v16 rounded = v16_fma(v16_mul(t, half), v16_set(EXP_LOG2E), v16_set(EXP_MAGIC));
  v16 n = v16_sub(rounded, v16_set(EXP_MAGIC));
  v16 r = v16_fma(t, half, v16_mul(n, v16_set(-EXP_LN2_HIGH)));
  r = v16_fma(n, v16_set(-EXP_LN2_LOW), r);
  v16 e = exp_join((exp_parts){exp_fraction(r), i16_from_bits(rounded)});
  return v16_mul(e, v16_mul(u, v16_polynomial(u, c, 9)));
}

CPU_INLINE v16 v16_erf(v16 x) { /* 2.4 units */
  static const float c[] = {0x1.06eba8p-3f,  -0x1.81273ap-2f, 0x1.ce2acp-4f,
                            -0x1.b7a562p-6f, 0x1.4f0274p-8f,  -0x1.60a2e2p-11f};
  v16 size = v16_min(v16_set(9.0f), v16_abs(x));
  v16 small = v16_fma(v16_polynomial(v16_mul(x, x), c, 6), x, x);
  v16 tail = v16_normal_tail(v16_mul(size, v16_set(0x1.6a09e6p0f)));
  v16 large = v16_fma(tail, v16_set(-2.0f), v16_set(1.0f));
  large = v16_or(large, v16_and_bits(x, UINT32_C(0x80000000)));
  return v16_select(v16_less(size, v16_set(0.75f)), small, large);
}

/* x Phi(x) = max(x, 0) - |x| Phi(-|x|), which keeps its relative accuracy in the left tail, down to
 * -13; further out the result stays at what it is there, -8e-38. */
CPU_INLINE v16 v16_gelu_erf(v16 x) {
  v16 t = v16_min(v16_set(13.0f), v16_abs(x));
  return v16_fma(v16_neg(t), v16_normal_tail(t), v16_max(v16_zero(), x));
}

/* x sigmoid(x (c0 + c1 x^2)), c0 = 2 sqrt(2/pi), c1 = 0.044715 c0 */
CPU_INLINE v16 v16_gelu_tanh(v16 x) {
  v16 u = v16_fma(v16_mul(x, x), v16_set(-0.0713548162726f), v16_set(-1.5957691216057308f));
  return v16_div(x, v16_add(v16_set(1.0f), v16_exp_bounded(v16_mul(x, u))));
}

CPU_INLINE v16 v16_gelu_quick(v16 x) {
  return v16_div(x, v16_add(v16_set(1.0f), v16_exp_bounded(v16_mul(x, v16_set(-1.702f)))));
}

/* A NaN stays one. */
CPU_INLINE v16 v16_hard_swish(v16 x) {
  const v16 part = v16_fma(x, v16_set(1.0f / 6.0f), v16_set(0.5f));
  return v16_mul(x, v16_min(v16_set(1.0f), v16_max(v16_zero(), part)));
}

CPU_INLINE v16 v16_activate(cpu_activation activation, v16 x) {
  switch (activation) {
    case CPU_ACT_RELU:
      return v16_max(v16_zero(), x);
    case CPU_ACT_GELU_ERF:
      return v16_gelu_erf(x);
    case CPU_ACT_GELU_TANH:
      return v16_gelu_tanh(x);
    case CPU_ACT_GELU_QUICK:
      return v16_gelu_quick(x);
    case CPU_ACT_SILU:
      return v16_silu(x);
    case CPU_ACT_TANH:
      return v16_tanh(x);
    case CPU_ACT_SIGMOID:
      return v16_sigmoid(x);
    case CPU_ACT_HARD_SWISH:
      return v16_hard_swish(x);
    default:
      return x;
  }
}

#endif
