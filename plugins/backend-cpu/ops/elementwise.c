/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic, element by element: Add Sub Mul Div Mod Pow Min Max Sum Mean, functions of one
 * element, Clip.
 *
 * Integers wrap; division truncates, and a division by zero gives 0 (the standard leaves it open).
 */
#include <tgmath.h>

#include "map.h"

/* ---- one element ---- */

CPU_MAP1(neg, -x)
CPU_MAP1(magnitude, fabs(x))
CPU_MAP1(square_root, sqrt(x))
CPU_MAP1(reciprocal, (real)1 / x)
CPU_MAP1(exponential, exp(x))
CPU_MAP1(logarithm, log(x))
CPU_MAP1(round_down, floor(x))
CPU_MAP1(round_up, ceil(x))
CPU_MAP1(round_even, nearbyint(x))
CPU_MAP1(sign, x > 0 ? (real)1 : x < 0 ? (real)-1 : x)
CPU_MAP1(sine, sin(x))
CPU_MAP1(cosine, cos(x))
CPU_MAP1(tangent, tan(x))
CPU_MAP1(arc_sine, asin(x))
CPU_MAP1(arc_cosine, acos(x))
CPU_MAP1(arc_tangent, atan(x))
CPU_MAP1(sine_h, sinh(x))
CPU_MAP1(cosine_h, cosh(x))
CPU_MAP1(arc_sine_h, asinh(x))
CPU_MAP1(arc_cosine_h, acosh(x))
CPU_MAP1(arc_tangent_h, atanh(x))
CPU_MAP1(error_function, erf(x))

CPU_MAP1_TYPE(neg_u64, uint64_t, (uint64_t)0 - x)
CPU_MAP1_TYPE(magnitude_i64, int64_t, x < 0 ? (int64_t)((uint64_t)0 - (uint64_t)x) : x)
CPU_MAP1_TYPE(same_u64, uint64_t, x)
CPU_MAP1_TYPE(sign_i64, int64_t, (x > 0) - (x < 0))
CPU_MAP1_TYPE(sign_u64, uint64_t, x > 0)

enum {
  NEG,
  ABS,
  SQRT,
  RECIPROCAL,
  EXP,
  LOG,
  FLOOR,
  CEIL,
  ROUND,
  SIGN,
  SIN,
  COS,
  TAN,
  ASIN,
  ACOS,
  ATAN,
  SINH,
  COSH,
  ASINH,
  ACOSH,
  ATANH,
  ERF
};

#define FLOATS(NAME) NAME##_f32, NAME##_f64
#define PLAIN(NAME) \
  { {FLOATS(NAME), NULL, NULL}, {NULL, NULL}, {0, 0}, CPU_NO_FAST }
#define FAST(NAME, CODE) \
  { {FLOATS(NAME), NULL, NULL}, {NULL, NULL}, {0, 0}, CODE }

static const cpu_map unary[] = {
    [NEG] = {{FLOATS(neg), neg_u64, neg_u64}, {NULL, NULL}, {0, 0}, CPU_UNARY_NEG},
    [ABS] = {{FLOATS(magnitude), magnitude_i64, same_u64}, {NULL, NULL}, {0, 0}, CPU_UNARY_ABS},
    [SQRT] = FAST(square_root, CPU_UNARY_SQRT),
    [RECIPROCAL] = FAST(reciprocal, CPU_UNARY_RECIPROCAL),
    [EXP] = FAST(exponential, CPU_UNARY_EXP),
    [LOG] = FAST(logarithm, CPU_UNARY_LOG),
    [FLOOR] = PLAIN(round_down),
    [CEIL] = PLAIN(round_up),
    [ROUND] = PLAIN(round_even),
    [SIGN] = {{FLOATS(sign), sign_i64, sign_u64}, {NULL, NULL}, {0, 0}, CPU_NO_FAST},
    [SIN] = PLAIN(sine),
    [COS] = PLAIN(cosine),
    [TAN] = PLAIN(tangent),
    [ASIN] = PLAIN(arc_sine),
    [ACOS] = PLAIN(arc_cosine),
    [ATAN] = PLAIN(arc_tangent),
    [SINH] = PLAIN(sine_h),
    [COSH] = PLAIN(cosine_h),
    [ASINH] = PLAIN(arc_sine_h),
    [ACOSH] = PLAIN(arc_cosine_h),
    [ATANH] = PLAIN(arc_tangent_h),
    [ERF] = FAST(error_function, CPU_UNARY_ERF),
};

static opipe_status prepare_unary(cpu_prep *p) {
  return cpu_prepare_map(p, &unary[p->op->code], 0);
}

/* ---- two elements ---- */

#define MAP2_FLOAT(NAME, EXPR)                  \
  CPU_MAP2_TYPE(NAME##_f32, float, float, EXPR) \
  CPU_MAP2_TYPE(NAME##_f64, double, double, EXPR)
#define MAP2(NAME, EXPR) MAP2_FLOAT(NAME, EXPR) CPU_MAP2_TYPE(NAME##_u64, uint64_t, uint64_t, EXPR)

static uint64_t power_u64(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    result = (exponent & 1) != 0 ? result * base : result;
    base *= base;
  }
  return result;
}

/* A negative exponent leaves a fraction: 0 but for bases 1 and -1. */
static int64_t power_i64(int64_t base, int64_t exponent) {
  if (exponent >= 0)
    return (int64_t)power_u64((uint64_t)base, (uint64_t)exponent);
  return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
}

/* Quotient and remainder that do not trap on INT64_MIN / -1, which wraps around, or on x / 0, which
 * is refused before (CPU_MAP_DIVIDES). */
static int64_t quotient_i64(int64_t a, int64_t b) {
  return b == 0 ? 0 : b == -1 ? (int64_t)((uint64_t)0 - (uint64_t)a) : a / b;
}

static int64_t remainder_i64(int64_t a, int64_t b) {
  return b == 0 || b == -1 ? 0 : a % b;
}

/* The remainder with the sign of the divisor. */
static int64_t modulo_i64(int64_t a, int64_t b) {
  const int64_t rest = remainder_i64(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

MAP2(add, a + b)
MAP2(subtract, a - b)
MAP2(multiply, a *b)
MAP2_FLOAT(divide, a / b)
CPU_MAP2_TYPE(divide_i64, int64_t, int64_t, quotient_i64(a, b))
CPU_MAP2_TYPE(divide_u64, uint64_t, uint64_t, b == 0 ? 0 : a / b)
MAP2_FLOAT(smaller, a != a ? a : b != b ? b : a < b ? a : b)
MAP2_FLOAT(larger, a != a ? a : b != b ? b : a > b ? a : b)
CPU_MAP2_TYPE(smaller_i64, int64_t, int64_t, a < b ? a : b)
CPU_MAP2_TYPE(larger_i64, int64_t, int64_t, a > b ? a : b)
CPU_MAP2_TYPE(smaller_u64, uint64_t, uint64_t, a < b ? a : b)
CPU_MAP2_TYPE(larger_u64, uint64_t, uint64_t, a > b ? a : b)
MAP2_FLOAT(c_remainder, fmod(a, b))
CPU_MAP2_TYPE(c_remainder_i64, int64_t, int64_t, remainder_i64(a, b))
CPU_MAP2_TYPE(modulo_run_i64, int64_t, int64_t, modulo_i64(a, b))
CPU_MAP2_TYPE(modulo_u64, uint64_t, uint64_t, b == 0 ? 0 : a % b)
MAP2_FLOAT(power, pow(a, b))
CPU_MAP2_TYPE(power_run_i64, int64_t, int64_t, power_i64(a, b))
CPU_MAP2_TYPE(power_run_u64, uint64_t, uint64_t, power_u64(a, b))

/* The remainder of floats with the sign of the divisor. */
MAP2_FLOAT(modulo, fmod(a, b) + (fmod(a, b) != 0 && (fmod(a, b) < 0) != (b < 0) ? b : (real)0))

enum { ADD, SUB, MUL, DIV, MIN, MAX, FMOD, MOD, SUM, MEAN };

static const cpu_map binary[] = {
    [ADD] = {{FLOATS(add), add_u64, add_u64}, {NULL, NULL}, {0, 0}, CPU_BINARY_ADD},
    [SUB] = {{FLOATS(subtract), subtract_u64, subtract_u64}, {NULL, NULL}, {0, 0}, CPU_BINARY_SUB},
    [MUL] = {{FLOATS(multiply), multiply_u64, multiply_u64}, {NULL, NULL}, {0, 0}, CPU_BINARY_MUL},
    [DIV] = {{FLOATS(divide), divide_i64, divide_u64}, {NULL, NULL}, {0, 0}, CPU_BINARY_DIV},
    [MIN] = {{FLOATS(smaller), smaller_i64, smaller_u64}, {NULL, NULL}, {0, 0}, CPU_BINARY_MIN},
    [MAX] = {{FLOATS(larger), larger_i64, larger_u64}, {NULL, NULL}, {0, 0}, CPU_BINARY_MAX},
    [FMOD] = {{FLOATS(c_remainder), c_remainder_i64, modulo_u64},
              {NULL, NULL},
              {0, 0},
              CPU_NO_FAST},
    [MOD] = {{FLOATS(modulo), modulo_run_i64, modulo_u64}, {NULL, NULL}, {0, 0}, CPU_NO_FAST},
    [SUM] = {{FLOATS(add), NULL, NULL}, {NULL, NULL}, {0, 0}, CPU_NO_FAST},
    [MEAN] = {{FLOATS(add), NULL, NULL}, {NULL, NULL}, {0, 0}, CPU_NO_FAST},
};

static opipe_status prepare_binary(cpu_prep *p) {
  return cpu_prepare_map(p, &binary[p->op->code], p->op->code == DIV ? CPU_MAP_DIVIDES : 0);
}

/* Min, Max, Sum, Mean of any number of inputs; two of them are a plain binary operator. */
static opipe_status prepare_fold(cpu_prep *p) {
  const bool mean = p->op->code == MEAN;
  const bool pair = p->step->n_in == 2 && !mean;
  const uint32_t code = pair && p->op->code == SUM ? (uint32_t)ADD : p->op->code;
  return cpu_prepare_map(p, &binary[code], pair ? 0 : CPU_MAP_FOLD | (mean ? CPU_MAP_MEAN : 0u));
}

static opipe_status prepare_mod(cpu_prep *p) {
  return cpu_prepare_map(p, &binary[opipe_attr_int(p->node, "fmod", 0) != 0 ? FMOD : MOD],
                         CPU_MAP_DIVIDES);
}

/* Pow: the exponent may be of another type; the result has the base's. Integers to a power of
 * floats are computed in fp64. */
static void power_i64_f64(int64_t n, const void *const *in, void *out, const double *param) {
  const int64_t *a = in[0];
  const double *b = in[1];
  int64_t *y = out;
  (void)param;
  for (int64_t k = 0; k < n; ++k) {
    const double v = pow((double)a[k], b[k]);
    y[k] = v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN;
  }
}

CPU_MAP1(square, x *x)

/* x^2, as norms are often written: true when the exponent is a constant 2 of x's shape or a scalar.
 */
static bool is_square(const cpu_prep *p) {
  const opipe_value *base = cpu_in(p, 0);
  const opipe_value *exponent = cpu_in(p, 1);
  if (!cpu_is_float(base->dtype) || exponent->role != OPIPE_VALUE_CONSTANT ||
      exponent->rank > base->rank || cpu_elems(exponent) != 1)
    return false;
  const cpu_tensor tensor = {(void *)(uintptr_t)exponent->data,
                             exponent->shape,
                             1,
                             exponent->n_bytes,
                             exponent->dtype,
                             exponent->rank};
  return cpu_number(&tensor, 0) == 2.0;
}

static opipe_status prepare_square(cpu_prep *p) {
  static const cpu_map map = {
      {square_f32, square_f64, NULL, NULL}, {NULL, NULL}, {0, 0}, CPU_UNARY_SQUARE};
  CPU_TRY(cpu_expect_like(p, 0, cpu_in(p, 0)));
  p->step->n_in = 1;
  return cpu_prepare_map(p, &map, 0);
}

static opipe_status prepare_pow(cpu_prep *p) {
  static const cpu_run_fn same[4] = {power_f32, power_f64, power_run_i64, power_run_u64};
  const opipe_value *base = cpu_in(p, 0);
  const opipe_value *exponent = cpu_in(p, 1);
  cpu_map_plan *plan = CPU_PLAN(p, cpu_map_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  const cpu_class kind = cpu_class_of(base->dtype);
  const bool numbers = (cpu_is_float(base->dtype) || cpu_is_int(base->dtype)) &&
                       (cpu_is_float(exponent->dtype) || cpu_is_int(exponent->dtype));
  if (!numbers) {
    return cpu_refuse(p, "does not take %s to the power of %s", opipe_dtype_name(base->dtype),
                      opipe_dtype_name(exponent->dtype));
  }
  if (cpu_out(p, 0)->dtype != base->dtype)
    return cpu_invalid(p, "its output is not %s", opipe_dtype_name(base->dtype));
  if (p->fast && is_square(p))
    return prepare_square(p);
  const bool mixed = cpu_is_int(base->dtype) && cpu_is_float(exponent->dtype);
  plan->n_in = 2;
  plan->class_in[0] = kind;
  plan->class_in[1] = mixed ? CPU_CLASS_F64 : kind;
  plan->class_out = kind;
  plan->fn = mixed ? power_i64_f64 : same[kind];
  return cpu_map_init(p, plan);
}

/* ---- Clip ---- */

#define CLIP(NAME, T)                                                                  \
  static void NAME(int64_t n, const void *const *in, void *out, const double *param) { \
    const T *a = in[0];                                                                \
    const T *low = in[1];                                                              \
    const T *high = in[2];                                                             \
    T *y = out;                                                                        \
    (void)param;                                                                       \
    for (int64_t k = 0; k < n; ++k) {                                                  \
      T v = a[k];                                                                      \
      v = low != NULL && v < low[k] ? low[k] : v;                                      \
      v = high != NULL && v > high[k] ? high[k] : v;                                   \
      y[k] = v;                                                                        \
    }                                                                                  \
  }
CLIP(clip_f32, float)
CLIP(clip_f64, double)
CLIP(clip_i64, int64_t)
CLIP(clip_u64, uint64_t)

static opipe_status prepare_clip(cpu_prep *p) {
  static const cpu_run_fn fn[4] = {clip_f32, clip_f64, clip_i64, clip_u64};
  const opipe_value *in = cpu_in(p, 0);
  cpu_map_plan *plan = CPU_PLAN(p, cpu_map_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(in->dtype) && !cpu_is_int(in->dtype))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  CPU_TRY(cpu_expect_like(p, 0, in));
  plan->n_in = p->step->n_in;
  for (uint32_t i = 0; i < plan->n_in; ++i) {
    const opipe_value *limit = cpu_in(p, i);
    if (limit != NULL && (limit->dtype != in->dtype || (i > 0 && cpu_elems(limit) != 1))) {
      return cpu_invalid(p, "limit '%.80s' is not one %s", limit->name,
                         opipe_dtype_name(in->dtype));
    }
    plan->class_in[i] = cpu_class_of(in->dtype);
  }
  plan->class_out = cpu_class_of(in->dtype);
  plan->fn = fn[plan->class_out];
  return cpu_map_init(p, plan);
}

#define UNARY(NAME, CODE) \
  { NAME, NULL, prepare_unary, 1, 1, 1, 0, CODE }
#define BINARY(NAME, CODE) \
  { NAME, NULL, prepare_binary, 2, 2, 1, 0, CODE }
#define FOLD(NAME, CODE) \
  { NAME, NULL, prepare_fold, 1, 255, 1, 0, CODE }

static const cpu_op ops[] = {
    UNARY("Neg", NEG),
    UNARY("Abs", ABS),
    UNARY("Sqrt", SQRT),
    UNARY("Reciprocal", RECIPROCAL),
    UNARY("Exp", EXP),
    UNARY("Log", LOG),
    UNARY("Floor", FLOOR),
    UNARY("Ceil", CEIL),
    UNARY("Round", ROUND),
    UNARY("Sign", SIGN),
    UNARY("Sin", SIN),
    UNARY("Cos", COS),
    UNARY("Tan", TAN),
    UNARY("Asin", ASIN),
    UNARY("Acos", ACOS),
    UNARY("Atan", ATAN),
    UNARY("Sinh", SINH),
    UNARY("Cosh", COSH),
    UNARY("Asinh", ASINH),
    UNARY("Acosh", ACOSH),
    UNARY("Atanh", ATANH),
    UNARY("Erf", ERF),
    BINARY("Add", ADD),
    BINARY("Sub", SUB),
    BINARY("Mul", MUL),
    BINARY("Div", DIV),
    FOLD("Min", MIN),
    FOLD("Max", MAX),
    FOLD("Sum", SUM),
    FOLD("Mean", MEAN),
    {"Mod", NULL, prepare_mod, 2, 2, 1, 0, 0},
    {"Pow", NULL, prepare_pow, 2, 2, 1, 0, 0},
    {"Clip", NULL, prepare_clip, 1, 3, 1, 0, 0},
};

const cpu_op_family cpu_family_elementwise = {ops, CPU_COUNT_OF(ops)};
