/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 always */
/* Element-wise kernels: every function and type, dense, repeated and strided operands, against
 * double or 64-bit integers. */
#include "kit.h"

static double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}
static double softplus(double x) {
  return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static double unit(double x) {
  return x < 0 ? 0 : x > 1 ? 1 : x;
}
static double gelu_tanh(double x) {
  return tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
}

/* p: alpha, q: beta or gamma */
static double of_one(uint32_t op, double x, double p, double q) {
  switch (op) {
    case CUDA_MAP_ABS:
      return fabs(x);
    case CUDA_MAP_NEG:
      return -x;
    case CUDA_MAP_SIGN:
      return (x > 0) - (x < 0);
    case CUDA_MAP_SQRT:
      return sqrt(x);
    case CUDA_MAP_RECIPROCAL:
      return 1 / x;
    case CUDA_MAP_EXP:
      return exp(x);
    case CUDA_MAP_LOG:
      return log(x);
    case CUDA_MAP_FLOOR:
      return floor(x);
    case CUDA_MAP_CEIL:
      return ceil(x);
    case CUDA_MAP_ROUND:
      return nearbyint(x);
    case CUDA_MAP_SIN:
      return sin(x);
    case CUDA_MAP_COS:
      return cos(x);
    case CUDA_MAP_TAN:
      return tan(x);
    case CUDA_MAP_ASIN:
      return asin(x);
    case CUDA_MAP_ACOS:
      return acos(x);
    case CUDA_MAP_ATAN:
      return atan(x);
    case CUDA_MAP_SINH:
      return sinh(x);
    case CUDA_MAP_COSH:
      return cosh(x);
    case CUDA_MAP_ASINH:
      return asinh(x);
    case CUDA_MAP_ACOSH:
      return acosh(x);
    case CUDA_MAP_ATANH:
      return atanh(x);
    case CUDA_MAP_RELU:
      return x > 0 ? x : 0;
    case CUDA_MAP_SIGMOID:
      return sigmoid(x);
    case CUDA_MAP_TANH:
      return tanh(x);
    case CUDA_MAP_ERF:
      return erf(x);
    case CUDA_MAP_SOFTPLUS:
      return softplus(x);
    case CUDA_MAP_SOFTSIGN:
      return x / (1 + fabs(x));
    case CUDA_MAP_MISH:
      return x * tanh(softplus(x));
    case CUDA_MAP_HARDSWISH:
      return x * unit(x / 6 + 0.5);
    case CUDA_MAP_GELU:
      return 0.5 * x * (1 + erf(x / sqrt(2)));
    case CUDA_MAP_GELU_TANH:
      return 0.5 * x * (1 + gelu_tanh(x));
    case CUDA_MAP_SWISH:
      return x * sigmoid(p * x);
    case CUDA_MAP_ELU:
      return x > 0 ? x : p * expm1(x);
    case CUDA_MAP_LEAKYRELU:
      return x < 0 ? p * x : x;
    case CUDA_MAP_THRESHOLDEDRELU:
      return x > p ? x : 0;
    case CUDA_MAP_CELU:
      return x > 0 ? x : p * expm1(x / p);
    case CUDA_MAP_SELU:
      return q * (x > 0 ? x : p * expm1(x));
    default:
      return unit(p * x + q); /* HARDSIGMOID */
  }
}

/* d f'(x) by the quotient of differences in double, but at corners: x is never one. */
static double slope_times(uint32_t op, double d, double x, double p, double q) {
  static const uint32_t forward[] = {CUDA_MAP_RELU,
                                     CUDA_MAP_SIGMOID,
                                     CUDA_MAP_TANH,
                                     CUDA_MAP_GELU,
                                     CUDA_MAP_GELU_TANH,
                                     CUDA_MAP_SWISH,
                                     CUDA_MAP_SWISH,
                                     CUDA_MAP_ERF,
                                     CUDA_MAP_ELU,
                                     CUDA_MAP_CELU,
                                     CUDA_MAP_SELU,
                                     CUDA_MAP_LEAKYRELU,
                                     CUDA_MAP_THRESHOLDEDRELU,
                                     CUDA_MAP_MISH,
                                     CUDA_MAP_HARDSWISH,
                                     CUDA_MAP_HARDSIGMOID,
                                     CUDA_MAP_SOFTPLUS,
                                     CUDA_MAP_SOFTSIGN};
  const uint32_t f = forward[op - CUDA_MAP_GRAD_RELU];
  const double h = 1e-4; /* fourth order: error of about h^4 and 1e-16 / h */
  return d *
         (8 * (of_one(f, x + h, p, q) - of_one(f, x - h, p, q)) - of_one(f, x + 2 * h, p, q) +
          of_one(f, x - 2 * h, p, q)) /
         (12 * h);
}

static double of_two(uint32_t op, double a, double b, double p, double q) {
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
      return a - floor(a / b) * b;
    case CUDA_MAP_FMOD:
      return fmod(a, b);
    case CUDA_MAP_POW:
      return pow(a, b);
    case CUDA_MAP_MAX:
      return a > b ? a : b;
    case CUDA_MAP_MIN:
      return a < b ? a : b;
    case CUDA_MAP_PRELU:
      return a < 0 ? a * b : a;
    default:
      return slope_times(op, a, b, p, q);
  }
}

static double low_of(uint32_t op) {
  return op == CUDA_MAP_SQRT || op == CUDA_MAP_LOG || op == CUDA_MAP_RECIPROCAL ||
                 op == CUDA_MAP_POW
             ? 0.1
         : op == CUDA_MAP_ACOSH ? 1.0
         : op == CUDA_MAP_ASIN || op == CUDA_MAP_ACOS || op == CUDA_MAP_ATANH || op == CUDA_MAP_TAN
             ? -0.9
             : -4.0;
}
static double high_of(uint32_t op) {
  return low_of(op) == -0.9 ? 0.9 : 4.0;
}

static bool is_unary(uint32_t op) {
  return (op >= CUDA_MAP_ABS && op <= CUDA_MAP_ATANH) ||
         (op >= CUDA_MAP_RELU && op <= CUDA_MAP_HARDSIGMOID);
}
static bool is_binary(uint32_t op) {
  return (op >= CUDA_MAP_ADD && op <= CUDA_MAP_PRELU) ||
         (op >= CUDA_MAP_GRAD_RELU && op < CUDA_MAP_COUNT);
}

/* Strides of an operand of shape [a, b, c]: 0 dense, 1 scalar, 2 the last axis, 3 the first axis,
 * 4 transposed; and how many elements it has. */
static int64_t strides_of(int form, const int64_t *shape, int64_t *stride) {
  const int64_t dense[3] = {shape[1] * shape[2], shape[2], 1},
                turned[3] = {1, shape[0], shape[0] * shape[1]};
  for (int k = 0; k < 3; ++k) {
    stride[k] = form == 0   ? dense[k]
                : form == 2 ? (k == 2 ? 1 : 0)
                : form == 3 ? (k == 0 ? 1 : 0)
                : form == 4 ? turned[k]
                            : 0;
  }
  return form == 1   ? 1
         : form == 2 ? shape[2]
         : form == 3 ? shape[0]
                     : shape[0] * shape[1] * shape[2];
}

static void float_case(uint32_t op, uint32_t dtype, const int64_t *shape, int form_a, int form_b) {
  const bool two = is_binary(op), grad = op >= CUDA_MAP_GRAD_RELU;
  cuda_map_args args = {.n = shape[0] * shape[1] * shape[2],
                        .rank = 3,
                        .op = op,
                        .alpha = 1.25,
                        .beta = 0.4,
                        .gamma = 1.1};
  const double q = op == CUDA_MAP_SELU || op == CUDA_MAP_GRAD_SELU ? args.gamma : args.beta;
  memcpy(args.shape, shape, 3 * sizeof *shape);
  const kit_tensor a =
      kit_random(dtype, strides_of(form_a, shape, args.stride[0]), 3, low_of(op), high_of(op));
  const kit_tensor b =
      kit_random(dtype, strides_of(form_b, shape, args.stride[1]), 4, grad ? -4 : 0.25, 2.5);
  const kit_tensor out = kit_new(dtype, args.n);
  double *want = kit_doubles(args.n);
  for (int64_t i = 0; i < args.n; ++i) {
    const int64_t at[3] = {i / shape[2] / shape[1], i / shape[2] % shape[1], i % shape[2]};
    int64_t in[2] = {0, 0};
    for (int k = 0; k < 3; ++k) {
      in[0] += at[k] * args.stride[0][k];
      in[1] += at[k] * args.stride[1][k];
    }
    want[i] = two ? of_two(op, kit_get(&a, in[0]), kit_get(&b, in[1]), args.alpha, q)
                  : of_one(op, kit_get(&a, in[0]), args.alpha, q);
  }
  args.out = out.data;
  args.in[0] = a.data;
  args.in[1] = two ? b.data : NULL;
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_map(&args, dtype, dtype, &launch));
  KIT_RUN(&launch, 1, &out);
  if (!kit_close(&out, want,
                 dtype == OPIPE_DOUBLE  ? (grad ? 1e-9 : 1e-13)
                 : dtype == OPIPE_FLOAT ? 4e-6
                                        : 0,
                 "out", __LINE__))
    OPI_FAIL("op %u, %s, forms %d %d", op, opipe_dtype_row_of(dtype)->name, form_a, form_b);
  kit_end();
}

static void test_float_functions(void) {
  static const int64_t shape[3] = {2, 3, 17}, even[3] = {3, 2, 32};
  for (uint32_t op = 0; op < CUDA_MAP_COUNT; ++op) {
    for (int t = 0; t < KIT_TYPES && (is_unary(op) || is_binary(op)); ++t) {
      float_case(op, kit_types[t], shape, 0, 0);
      float_case(op, kit_types[t], shape, 4, 4);
      if (is_binary(op)) {
        float_case(op, kit_types[t], even, 0, 2);
        float_case(op, kit_types[t], shape, 2, 0);
        float_case(op, kit_types[t], shape, 0, 3);
        float_case(op, kit_types[t], shape, 1, 0);
      }
    }
  }
  kit_skew = 1;
  float_case(CUDA_MAP_ADD, OPIPE_BFLOAT16, even, 0, 2);
  kit_skew = 0;
}

/* The corners: NaN, infinities, zero. */
static void test_float_corners(void) {
  static const struct {
    uint32_t op;
    double a, b, want;
  } cases[] = {{CUDA_MAP_MAX, NAN, 1, NAN},
               {CUDA_MAP_MIN, 1, NAN, NAN},
               {CUDA_MAP_RELU, NAN, 0, NAN},
               {CUDA_MAP_RELU, -1, 0, 0},
               {CUDA_MAP_SIGN, 0, 0, 0},
               {CUDA_MAP_ROUND, 2.5, 0, 2},
               {CUDA_MAP_GRAD_RELU, 3, 0, 0},
               {CUDA_MAP_SIGMOID, -2000, 0, 0},
               {CUDA_MAP_EXP, 1000, 0, INFINITY},
               {CUDA_MAP_GRAD_HARDSWISH, 2, 3, 2},
               {CUDA_MAP_GRAD_HARDSWISH, 2, -3, 0},
               {CUDA_MAP_SOFTPLUS, 500, 0, 500},
               {CUDA_MAP_MOD, -7, 3, 2},
               {CUDA_MAP_FMOD, -7, 3, -1},
               {CUDA_MAP_MOD, 7, -3, -2},
               {CUDA_MAP_GRAD_RELU, 3, NAN, NAN}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      const kit_tensor a = kit_new(kit_types[t], 1), b = kit_new(kit_types[t], 1),
                       out = kit_new(kit_types[t], 1);
      kit_set(&a, 0, cases[i].a);
      kit_set(&b, 0, cases[i].b);
      const cuda_map_args args = {
          .out = out.data, .in = {a.data, b.data}, .n = 1, .op = cases[i].op};
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_map(&args, kit_types[t], kit_types[t], &launch));
      KIT_RUN(&launch, 1, &out);
      KIT_CLOSE(out, &cases[i].want, 1e-6);
      kit_end();
    }
  }
}

/* ---- integers ---- */

static const uint32_t integers[] = {OPIPE_INT8,  OPIPE_UINT8,  OPIPE_INT16, OPIPE_UINT16,
                                    OPIPE_INT32, OPIPE_UINT32, OPIPE_INT64, OPIPE_UINT64};

static int64_t whole_at(const kit_tensor *t, int64_t i) {
  int64_t x = 0;
  memcpy(&x, (const char *)t->data + i * t->bytes, t->bytes);
  const uint32_t bits = t->bytes * 8;
  const bool is_signed = opipe_dtype_row_of(t->dtype)->elements == OPIPE_ELEM_INT;
  return is_signed && bits < 64 ? (int64_t)((uint64_t)x << (64 - bits)) >> (64 - bits) : x;
}

static int64_t integer_of(uint32_t op, int64_t a, int64_t b, bool is_u64) {
  uint64_t power = 1;
  switch (op) {
    case CUDA_MAP_ABS:
      return is_u64 || a >= 0 ? a : (int64_t)(0 - (uint64_t)a);
    case CUDA_MAP_NEG:
      return (int64_t)(0 - (uint64_t)a);
    case CUDA_MAP_SIGN:
      return is_u64 ? a != 0 : (a > 0) - (a < 0);
    case CUDA_MAP_RELU:
      return is_u64 || a > 0 ? a : 0;
    case CUDA_MAP_ADD:
      return (int64_t)((uint64_t)a + (uint64_t)b);
    case CUDA_MAP_SUB:
      return (int64_t)((uint64_t)a - (uint64_t)b);
    case CUDA_MAP_MUL:
      return (int64_t)((uint64_t)a * (uint64_t)b);
    case CUDA_MAP_DIV:
      return is_u64 ? (int64_t)((uint64_t)a / (uint64_t)b) : a / b;
    case CUDA_MAP_FMOD:
      return is_u64 ? (int64_t)((uint64_t)a % (uint64_t)b) : a % b;
    case CUDA_MAP_MOD:
      return is_u64 ? (int64_t)((uint64_t)a % (uint64_t)b)
                    : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    case CUDA_MAP_POW:
      for (int64_t k = 0; k < b; ++k)
        power *= (uint64_t)a;
      return b >= 0 ? (int64_t)power : a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
    case CUDA_MAP_MAX:
      return is_u64 ? ((uint64_t)a > (uint64_t)b ? a : b) : a > b ? a : b;
    case CUDA_MAP_MIN:
      return is_u64 ? ((uint64_t)a < (uint64_t)b ? a : b) : a < b ? a : b;
    default:
      return is_u64 || a >= 0 ? a : a * b; /* PRELU */
  }
}

static void test_integers(void) {
  static const uint32_t ops[] = {CUDA_MAP_ABS, CUDA_MAP_NEG,  CUDA_MAP_SIGN, CUDA_MAP_RELU,
                                 CUDA_MAP_ADD, CUDA_MAP_SUB,  CUDA_MAP_MUL,  CUDA_MAP_DIV,
                                 CUDA_MAP_MOD, CUDA_MAP_FMOD, CUDA_MAP_POW,  CUDA_MAP_MAX,
                                 CUDA_MAP_MIN, CUDA_MAP_PRELU};
  for (size_t o = 0; o < sizeof ops / sizeof ops[0]; ++o) {
    for (size_t t = 0; t < sizeof integers / sizeof integers[0]; ++t) {
      const bool is_u64 = integers[t] == OPIPE_UINT64;
      const bool is_signed = opipe_dtype_row_of(integers[t])->elements == OPIPE_ELEM_INT;
      const kit_tensor a = kit_random(integers[t], 99, 3, is_signed ? -12 : 0, 12),
                       out = kit_new(integers[t], 99);
      const kit_tensor b = kit_random(integers[t], 99, 4, is_signed ? -4 : 0, 5),
                       want = kit_new(integers[t], 99);
      for (int64_t i = 0; i < 99; ++i) {
        if (whole_at(&b, i) == 0)
          kit_set(&b, i, 3);
      }
      if (integers[t] == OPIPE_INT64) { /* the quotient wraps */
        const int64_t lowest = INT64_MIN;
        memcpy(a.data, &lowest, sizeof lowest);
        kit_set(&b, 0, 1);
        kit_set(&a, 1, -1);
        kit_set(&b, 1, -1);
      }
      if (is_u64) /* above 2^63 */
        memset(a.data, 0xfe, 8);
      for (int64_t i = 0; i < 99; ++i) {
        const int64_t y = integer_of(ops[o], whole_at(&a, i), whole_at(&b, i), is_u64);
        memcpy((char *)want.data + i * want.bytes, &y, want.bytes);
      }
      const cuda_map_args args = {.out = out.data,
                                  .in = {a.data, b.data},
                                  .n = 99,
                                  .shape = {99},
                                  .rank = 1,
                                  .stride = {{1}, {1}},
                                  .op = ops[o]};
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_map(&args, integers[t], integers[t], &launch));
      KIT_RUN(&launch, 1, &out);
      if (!kit_same(&out, 0, &want, 0, 99))
        OPI_FAIL("op %u of %s", ops[o], opipe_dtype_row_of(integers[t])->name);
      kit_end();
    }
  }
}

static void test_division_by_zero_is_reported(void) {
  static const uint32_t ops[] = {CUDA_MAP_DIV, CUDA_MAP_MOD, CUDA_MAP_FMOD};
  for (size_t o = 0; o < 3; ++o) {
    for (int with = 0; with < 2; ++with) {
      const kit_tensor a = kit_random(OPIPE_INT32, 4, 1, 5, 6),
                       b = kit_random(OPIPE_INT32, 4, 1, 2, 3);
      const kit_tensor out = kit_new(OPIPE_INT32, 4);
      cuda_status *const status = kit_status();
      kit_set(&b, 2, 0);
      const cuda_map_args args = {.out = out.data,
                                  .in = {a.data, b.data},
                                  .n = 4,
                                  .shape = {4},
                                  .rank = 1,
                                  .stride = {{1}, {1}},
                                  .op = ops[o],
                                  .status = with ? status : NULL,
                                  .node = 17};
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_map(&args, OPIPE_INT32, OPIPE_INT32, &launch));
      KIT_RUN(&launch, 1, &out);
      OPI_ASSERT_INT(kit_get(&out, 2), 0);
      OPI_ASSERT_INT(status->code, with ? CUDA_STATUS_DIVIDE : 0);
      OPI_ASSERT_INT(status->node, with ? 17 : 0);
      OPI_ASSERT_INT(status->value, with ? 5 : 0);
      kit_end();
    }
  }
}

/* ---- Clip, comparisons, Where, Cast ---- */

static void test_clip(void) {
  for (int t = 0; t < KIT_TYPES + 2; ++t) {
    const uint32_t dtype = t < KIT_TYPES    ? kit_types[t]
                           : t == KIT_TYPES ? OPIPE_INT32
                                            : OPIPE_UINT64;
    for (int bounds = 0; bounds < 4; ++bounds) {
      const kit_tensor x = kit_random(dtype, 77, 2, t > KIT_TYPES ? 0 : -8, 8),
                       out = kit_new(dtype, 77);
      const kit_tensor low = kit_new(dtype, 1), high = kit_new(dtype, 1);
      double *want = kit_doubles(77);
      kit_set(&low, 0, t > KIT_TYPES ? 1 : -2);
      kit_set(&high, 0, 3);
      for (int64_t i = 0; i < 77; ++i) {
        want[i] = kit_get(&x, i);
        want[i] = (bounds & 1) != 0 && want[i] < kit_get(&low, 0) ? kit_get(&low, 0) : want[i];
        want[i] = (bounds & 2) != 0 && want[i] > kit_get(&high, 0) ? kit_get(&high, 0) : want[i];
      }
      const cuda_map_args args = {
          .out = out.data,
          .in = {x.data, (bounds & 1) != 0 ? low.data : NULL, (bounds & 2) != 0 ? high.data : NULL},
          .n = 77,
          .shape = {77},
          .rank = 1,
          .stride = {{1}},
          .op = CUDA_MAP_CLIP};
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_map(&args, dtype, dtype, &launch));
      KIT_RUN(&launch, 1, &out);
      KIT_CLOSE(out, want, 0);
      kit_end();
    }
  }
}

static bool tested(uint32_t op, double a, double b) {
  switch (op) {
    case CUDA_MAP_NOT:
      return a == 0;
    case CUDA_MAP_ISNAN:
      return a != a;
    case CUDA_MAP_ISINF:
      return a == (double)INFINITY; /* detect_positive alone */
    case CUDA_MAP_EQUAL:
      return a == b;
    case CUDA_MAP_GREATER:
      return a > b;
    case CUDA_MAP_GREATEROREQUAL:
      return a >= b;
    case CUDA_MAP_LESS:
      return a < b;
    case CUDA_MAP_LESSOREQUAL:
      return a <= b;
    case CUDA_MAP_AND:
      return a != 0 && b != 0;
    case CUDA_MAP_OR:
      return a != 0 || b != 0;
    default:
      return (a != 0) != (b != 0);
  }
}

static void test_comparisons(void) {
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_FLOAT16, OPIPE_BFLOAT16, OPIPE_DOUBLE,
                                   OPIPE_INT8,  OPIPE_INT64,   OPIPE_UINT64,   OPIPE_BOOL};
  static const uint32_t ops[] = {CUDA_MAP_NOT,   CUDA_MAP_ISNAN,          CUDA_MAP_ISINF,
                                 CUDA_MAP_EQUAL, CUDA_MAP_GREATER,        CUDA_MAP_LESS,
                                 CUDA_MAP_AND,   CUDA_MAP_GREATEROREQUAL, CUDA_MAP_OR,
                                 CUDA_MAP_XOR,   CUDA_MAP_LESSOREQUAL};
  for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; ++o) {
      const bool is_bool = types[t] == OPIPE_BOOL, is_unsigned = types[t] == OPIPE_UINT64;
      const kit_tensor a =
          kit_random(types[t], 60, 2, is_bool || is_unsigned ? 0 : -3, is_bool ? 2 : 3);
      const kit_tensor b =
          kit_random(types[t], 60, 3, is_bool || is_unsigned ? 0 : -3, is_bool ? 2 : 3);
      const kit_tensor out = kit_new(OPIPE_BOOL, 60);
      double *want = kit_doubles(60);
      if (t < 4) {
        kit_set(&a, 5, NAN);
        kit_set(&a, 6, INFINITY);
        kit_set(&a, 7, -(double)INFINITY);
      }
      for (int64_t i = 0; i < 60; ++i)
        want[i] = tested(ops[o], kit_get(&a, i), kit_get(&b, i));
      const cuda_map_args args = {.out = out.data,
                                  .in = {a.data, b.data},
                                  .n = 60,
                                  .shape = {6, 10},
                                  .rank = 2,
                                  .stride = {{10, 1}, {10, 1}},
                                  .op = ops[o],
                                  .beta = 1};
      cuda_launch launch;
      const bool logic =
          ops[o] == CUDA_MAP_NOT || (ops[o] >= CUDA_MAP_AND && ops[o] <= CUDA_MAP_XOR);
      const bool floats = ops[o] == CUDA_MAP_ISNAN || ops[o] == CUDA_MAP_ISINF;
      const bool known = logic ? is_bool : floats ? t < 4 : ops[o] == CUDA_MAP_EQUAL || !is_bool;
      OPI_ASSERT_INT(cuda_plan_map(&args, types[t], OPIPE_BOOL, &launch), known);
      if (known) {
        KIT_RUN(&launch, 1, &out);
        KIT_CLOSE(out, want, 1e-9);
      }
      kit_end();
    }
  }
}

static void test_where(void) {
  static const uint32_t types[] = {OPIPE_BOOL, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  for (size_t t = 0; t < 4; ++t) {
    const kit_tensor c = kit_random(OPIPE_BOOL, 5, 1, 0, 2), x = kit_random(types[t], 35, 2, 0, 2);
    const kit_tensor z = kit_random(types[t], 1, 3, 0, 2), out = kit_new(types[t], 35);
    double *want = kit_doubles(35);
    for (int64_t i = 0; i < 35; ++i)
      want[i] = kit_get(&c, i / 7) != 0 ? kit_get(&x, i) : kit_get(&z, 0);
    const cuda_map_args args = {.out = out.data,
                                .in = {c.data, x.data, z.data},
                                .n = 35,
                                .shape = {5, 7},
                                .rank = 2,
                                .stride = {{1, 0}, {7, 1}, {0, 0}},
                                .op = CUDA_MAP_WHERE};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_map(&args, types[t], types[t], &launch));
    KIT_RUN(&launch, 1, &out);
    KIT_CLOSE(out, want, 1e-9);
    kit_end();
  }
}

static void cast_case(uint32_t from, uint32_t to, bool dense) {
  const bool floats = opipe_dtype_row_of(from)->elements == OPIPE_ELEM_FLOAT;
  const bool to_float = opipe_dtype_row_of(to)->elements == OPIPE_ELEM_FLOAT;
  const bool negative = opipe_dtype_row_of(from)->elements == OPIPE_ELEM_INT || floats;
  const kit_tensor x = kit_random(from, 70, 5, negative ? -90 : 0, from == OPIPE_BOOL ? 2 : 90);
  const kit_tensor out = kit_new(to, 70), want = kit_new(to, 70);
  if (floats && to_float) {
    kit_set(&x, 0, INFINITY);
    kit_set(&x, 1, 1e-7);
    kit_set(&x, 2, 1e-40);
    kit_set(&x, 3, 1.00048828125 + 0x1p-24); /* its double rounding would differ */
  }
  for (int64_t i = 0; i < 70; ++i) {
    const double v = kit_get(&x, dense ? i : i / 7 + i % 7 * 10);
    if (to == OPIPE_BOOL)
      kit_set(&want, i, v != 0);
    else if (to_float)
      kit_set(&want, i, v);
    else
      kit_set(&want, i, trunc(v));
  }
  const cuda_map_args args = {.out = out.data,
                              .in = {x.data},
                              .n = 70,
                              .shape = {10, 7},
                              .rank = 2,
                              .stride = {{dense ? 7 : 1, dense ? 1 : 10}},
                              .op = CUDA_MAP_CAST};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_map(&args, from, to, &launch));
  KIT_RUN(&launch, 1, &out);
  if (!kit_same(&out, 0, &want, 0, 70)) {
    OPI_FAIL("%s to %s, dense %d", opipe_dtype_row_of(from)->name, opipe_dtype_row_of(to)->name,
             (int)dense);
  }
  kit_end();
}

static void test_casts(void) {
  static const uint32_t types[] = {OPIPE_FLOAT,  OPIPE_BFLOAT16, OPIPE_FLOAT16, OPIPE_DOUBLE,
                                   OPIPE_BOOL,   OPIPE_INT8,     OPIPE_UINT8,   OPIPE_INT16,
                                   OPIPE_UINT16, OPIPE_INT32,    OPIPE_UINT32,  OPIPE_INT64,
                                   OPIPE_UINT64};
  for (size_t a = 0; a < sizeof types / sizeof types[0]; ++a) {
    for (size_t b = 0; b < sizeof types / sizeof types[0]; ++b) {
      cast_case(types[a], types[b], true);
      cast_case(types[a], types[b], false);
    }
  }
}

static void test_casts_out_of_range(void) {
  static const struct {
    double x;
    uint32_t to;
    int64_t want;
  } cases[] = {{1e30, OPIPE_INT64, INT64_MIN},
               {NAN, OPIPE_INT64, INT64_MIN},
               {1e19, OPIPE_UINT64, -8446744073709551616},
               {300, OPIPE_UINT8, 44},
               {-1e30, OPIPE_INT8, 0},
               {NAN, OPIPE_BOOL, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    const kit_tensor x = kit_new(OPIPE_DOUBLE, 1), out = kit_new(cases[i].to, 1);
    kit_set(&x, 0, cases[i].x);
    const cuda_map_args args = {.out = out.data, .in = {x.data}, .n = 1, .op = CUDA_MAP_CAST};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_map(&args, OPIPE_DOUBLE, cases[i].to, &launch));
    KIT_RUN(&launch, 1, &out);
    OPI_ASSERT_INT(whole_at(&out, 0), cases[i].want);
    kit_end();
  }
}

static void test_sums(void) {
  for (int t = 0; t < 3; ++t) {
    const kit_tensor x = kit_random(kit_types[t], 1027, 2, -4, 4),
                     to = kit_random(OPIPE_FLOAT, 1027, 4, -1, 1);
    double *want = kit_doubles(1027);
    cuda_launch launch;
    for (int64_t i = 0; i < 1027; ++i)
      want[i] = kit_get(&to, i) + kit_get(&x, i);
    const cuda_accumulate_args args = {to.data, x.data, 1027};
    OPI_ASSERT_FATAL(cuda_plan_accumulate(&args, kit_types[t], &launch));
    KIT_RUN(&launch, 1, &to);
    KIT_CLOSE(to, want, 0);
    kit_end();
  }
}

static void test_what_has_no_kernel(void) {
  cuda_launch launch;
  cuda_map_args args = {.n = 1, .op = CUDA_MAP_EXP};
  OPI_ASSERT(!cuda_plan_map(&args, OPIPE_INT32, OPIPE_INT32, &launch));
  OPI_ASSERT(!cuda_plan_map(&args, OPIPE_FLOAT, OPIPE_DOUBLE, &launch));
  args.op = CUDA_MAP_CAST;
  OPI_ASSERT(!cuda_plan_map(&args, OPIPE_FLOAT8E5M2, OPIPE_FLOAT, &launch));
  args.op = CUDA_MAP_ADD;
  OPI_ASSERT(!cuda_plan_map(&args, OPIPE_BOOL, OPIPE_BOOL, &launch));
  args.op = CUDA_MAP_EQUAL;
  OPI_ASSERT(!cuda_plan_map(&args, OPIPE_FLOAT, OPIPE_FLOAT, &launch));
  args.op = CUDA_MAP_SIN;
  args.rank = CUDA_AXES + 1;
  OPI_ASSERT(!cuda_plan_map(&args, OPIPE_FLOAT, OPIPE_FLOAT, &launch));
}

OPI_TEST_MAIN("cuda_map", OPI_TEST(test_float_functions), OPI_TEST(test_float_corners),
              OPI_TEST(test_integers), OPI_TEST(test_division_by_zero_is_reported),
              OPI_TEST(test_clip), OPI_TEST(test_comparisons), OPI_TEST(test_where),
              OPI_TEST(test_casts), OPI_TEST(test_casts_out_of_range), OPI_TEST(test_sums),
              OPI_TEST(test_what_has_no_kernel))
