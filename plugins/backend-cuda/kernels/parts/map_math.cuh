/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one and two elements, in float or double. Formulas and corners are the CPU
 * backend's. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_MAP_MATH_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_MAP_MATH_CUH_

#include "../device.cuh"

CUDA_FN float exp_of(float x) {
  return expf(x);
}
CUDA_FN double exp_of(double x) {
  return exp(x);
}
CUDA_FN float log_of(float x) {
  return logf(x);
}
CUDA_FN double log_of(double x) {
  return log(x);
}
CUDA_FN float tanh_of(float x) {
  return tanhf(x);
}
CUDA_FN double tanh_of(double x) {
  return tanh(x);
}
CUDA_FN float erf_of(float x) {
  return erff(x);
}
CUDA_FN double erf_of(double x) {
  return erf(x);
}
CUDA_FN float root_of(float x) {
  return sqrtf(x);
}
CUDA_FN double root_of(double x) {
  return sqrt(x);
}

template <class R>
CUDA_FN R sigmoid(R x) {
  return (R)1 / ((R)1 + exp_of(-x));
}
template <class R>
CUDA_FN R softplus(R x) {
  return x > 0 ? x + (R)log1p(exp_of(-x)) : (R)log1p(exp_of(x));
}
template <class R>
CUDA_FN R unit(R x) {
  return x < 0 ? (R)0 : x > 1 ? (R)1 : x;
}
template <class R>
CUDA_FN R gelu(R x) {
  return (R)0.5 * x * ((R)1 + erf_of(x * (R)0.70710678118654752440));
}
template <class R>
CUDA_FN R gelu_tanh_of(R x) {
  return tanh_of((R)0.79788456080286535588 * (x + (R)0.044715 * x * x * x));
}
template <class R>
CUDA_FN R gelu_tanh(R x) {
  return (R)0.5 * x * ((R)1 + gelu_tanh_of(x));
}
template <class R>
CUDA_FN R gelu_slope(R x) {
  return (R)0.5 * ((R)1 + erf_of(x * (R)0.70710678118654752440)) +
         x * (R)0.39894228040143267794 * exp_of((R)-0.5 * x * x);
}
template <class R>
CUDA_FN R gelu_tanh_slope(R x) {
  const R t = gelu_tanh_of(x);
  return (R)0.5 * ((R)1 + t) +
         (R)0.5 * x * ((R)1 - t * t) * (R)0.79788456080286535588 * ((R)1 + (R)0.134145 * x * x);
}
template <class R>
CUDA_FN R swish_slope(R x, R p) {
  const R s = sigmoid(p * x);
  return s * ((R)1 + p * x * ((R)1 - s));
}
template <class R>
CUDA_FN R mish_slope(R x) {
  const R t = tanh_of(softplus(x));
  return t + x * sigmoid(x) * ((R)1 - t * t);
}

/* p, q: the two parameters. */
template <class R>
CUDA_FN R activation(uint32_t op, R x, R p, R q) {
  switch (op) {
    case CUDA_MAP_RELU:
      return x > 0 || x != x ? x : (R)0;
    case CUDA_MAP_SIGMOID:
      return sigmoid(x);
    case CUDA_MAP_TANH:
      return tanh_of(x);
    case CUDA_MAP_ERF:
      return erf_of(x);
    case CUDA_MAP_SOFTPLUS:
      return softplus(x);
    case CUDA_MAP_SOFTSIGN:
      return x / ((R)1 + (x < 0 ? -x : x));
    case CUDA_MAP_MISH:
      return x * tanh_of(softplus(x));
    case CUDA_MAP_HARDSWISH:
      return x * unit(x * ((R)1 / (R)6) + (R)0.5);
    case CUDA_MAP_GELU:
      return gelu(x);
    case CUDA_MAP_GELU_TANH:
      return gelu_tanh(x);
    case CUDA_MAP_SWISH:
      return x * sigmoid(p * x);
    case CUDA_MAP_ELU:
      return x > 0 ? x : p * (R)expm1(x);
    case CUDA_MAP_LEAKYRELU:
      return x < 0 ? p * x : x;
    case CUDA_MAP_THRESHOLDEDRELU:
      return x > p ? x : (R)0;
    case CUDA_MAP_CELU:
      return (x > 0 ? x : (R)0) + (x < 0 ? p * (R)expm1(x / p) : (R)0);
    case CUDA_MAP_SELU:
      return q * (x > 0 ? x : p * (R)expm1(x));
    default: /* HARDSIGMOID */
      return unit(p * x + q);
  }
}

template <class R>
CUDA_FN R function(uint32_t op, R x) {
  switch (op) {
    case CUDA_MAP_ABS:
      return (R)fabs(x);
    case CUDA_MAP_NEG:
      return -x;
    case CUDA_MAP_SIGN:
      return x > 0 ? (R)1 : x < 0 ? (R)-1 : x;
    case CUDA_MAP_SQRT:
      return root_of(x);
    case CUDA_MAP_RECIPROCAL:
      return (R)1 / x;
    case CUDA_MAP_EXP:
      return exp_of(x);
    case CUDA_MAP_LOG:
      return log_of(x);
    case CUDA_MAP_FLOOR:
      return (R)floor(x);
    case CUDA_MAP_CEIL:
      return (R)ceil(x);
    case CUDA_MAP_ROUND:
      return (R)rint(x);
    case CUDA_MAP_SIN:
      return (R)sin(x);
    case CUDA_MAP_COS:
      return (R)cos(x);
    case CUDA_MAP_TAN:
      return (R)tan(x);
    case CUDA_MAP_ASIN:
      return (R)asin(x);
    case CUDA_MAP_ACOS:
      return (R)acos(x);
    case CUDA_MAP_ATAN:
      return (R)atan(x);
    case CUDA_MAP_SINH:
      return (R)sinh(x);
    case CUDA_MAP_COSH:
      return (R)cosh(x);
    case CUDA_MAP_ASINH:
      return (R)asinh(x);
    case CUDA_MAP_ACOSH:
      return (R)acosh(x);
    default: /* ATANH */
      return (R)atanh(x);
  }
}

/* Remainder with the sign of the divisor. */
template <class R>
CUDA_FN R modulo(R a, R b) {
  const R rest = (R)fmod(a, b);
  return rest + (rest != 0 && (rest < 0) != (b < 0) ? b : (R)0);
}

template <class R>
CUDA_FN R binary(uint32_t op, R a, R b) {
  switch (op) {
    case CUDA_MAP_ADD:
      return a + b;
    case CUDA_MAP_SUB:
      return a - b;
    case CUDA_MAP_MUL:
      return a * b;
    case CUDA_MAP_DIV:
      return a / b;
    case CUDA_MAP_MOD:
      return modulo(a, b);
    case CUDA_MAP_FMOD:
      return (R)fmod(a, b);
    case CUDA_MAP_POW:
      return (R)pow(a, b);
    case CUDA_MAP_MAX:
      return a != a ? a : b != b ? b : a > b ? a : b;
    case CUDA_MAP_MIN:
      return a != a ? a : b != b ? b : a < b ? a : b;
    default: /* PRELU */
      return a < 0 ? a * b : a;
  }
}

/* d: gradient of the result, x: the input. At a corner the derivative is that of the side PyTorch
 * takes. */
template <class R>
CUDA_FN R slope_times(uint32_t op, R d, R x, R p, R q) {
  switch (op) {
    case CUDA_MAP_GRAD_RELU:
      return x > 0 ? d : x != x ? x : (R)0;
    case CUDA_MAP_GRAD_SIGMOID:
      return d * sigmoid(x) * ((R)1 - sigmoid(x));
    case CUDA_MAP_GRAD_TANH:
      return d * ((R)1 - tanh_of(x) * tanh_of(x));
    case CUDA_MAP_GRAD_GELU:
      return d * gelu_slope(x);
    case CUDA_MAP_GRAD_GELUTANH:
      return d * gelu_tanh_slope(x);
    case CUDA_MAP_GRAD_QUICKGELU:
    case CUDA_MAP_GRAD_SWISH:
      return d * swish_slope(x, p);
    case CUDA_MAP_GRAD_ERF:
      return d * (R)1.12837916709551257390 * exp_of(-x * x);
    case CUDA_MAP_GRAD_ELU:
      return x > 0 ? d : d * p * exp_of(x);
    case CUDA_MAP_GRAD_CELU:
      return x > 0 ? d : d * exp_of(x / p);
    case CUDA_MAP_GRAD_SELU:
      return d * q * (x > 0 ? (R)1 : p * exp_of(x));
    case CUDA_MAP_GRAD_LEAKYRELU:
      return x < 0 ? p * d : d;
    case CUDA_MAP_GRAD_THRESHOLDEDRELU:
      return x > p ? d : (R)0;
    case CUDA_MAP_GRAD_MISH:
      return d * mish_slope(x);
    case CUDA_MAP_GRAD_HARDSWISH:
      return x <= -3 ? (R)0 : x >= 3 ? d : d * (x / (R)3 + (R)0.5);
    case CUDA_MAP_GRAD_HARDSIGMOID:
      return p * x + q > 0 && p * x + q < 1 ? p * d : (R)0;
    case CUDA_MAP_GRAD_SOFTPLUS:
      return d * sigmoid(x);
    default: /* GRAD_SOFTSIGN */
      return d / (((R)1 + (R)fabs(x)) * ((R)1 + (R)fabs(x)));
  }
}

#endif
