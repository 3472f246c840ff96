/* SPDX-License-Identifier: Apache-2.0 */
/* Math functions: error against double in units of the last place, the same bits on every
 * instruction set, and the special values. */
#include "kernel_test.h"

/* ctest: timeout=120 */

static double exact_sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}

static double exact_hard_swish(double x) {
  return x * fmin(fmax(x / 6 + 0.5, 0), 1);
}

static double exact_silu(double x) {
  return x / (1.0 + exp(-x));
}

static double exact_gelu_erf(double x) {
  return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

static double exact_gelu_tanh(double x) {
  return x / (1.0 + exp(-1.59576912160573071176 * (x + 0.044715 * x * x * x)));
}

static double exact_gelu_quick(double x) {
  return x / (1.0 + exp(-1.702 * x));
}

static double exact_reciprocal(double x) {
  return 1.0 / x;
}

static double exact_rsqrt(double x) {
  return 1.0 / sqrt(x);
}

typedef struct function_case {
  const char *name;
  int op;
  double (*exact)(double x);
  double low, high;
  double units;    /* largest error allowed, in units of the last place; 0: not asked */
  double absolute; /* largest absolute error allowed; 0: not asked */
} function_case;

static const function_case cases[] = {
    {"exp", CPU_UNARY_EXP, exp, -87.0, 88.7, 1.1, 0.0},
    {"log", CPU_UNARY_LOG, log, 1e-30, 20.0, 0.9, 0.0},
    {"log near 1", CPU_UNARY_LOG, log, 0.6, 1.6, 0.9, 0.0},
    {"tanh", CPU_ACT_TANH, tanh, -10.0, 10.0, 1.4, 0.0},
    {"tanh near 0", CPU_ACT_TANH, tanh, -0.7, 0.7, 1.4, 0.0},
    {"erf", CPU_UNARY_ERF, erf, -5.0, 5.0, 2.4, 0.0},
    {"erf near 0", CPU_UNARY_ERF, erf, -0.8, 0.8, 2.4, 0.0},
    {"sigmoid", CPU_ACT_SIGMOID, exact_sigmoid, -80.0, 20.0, 2.6, 0.0},
    {"silu", CPU_ACT_SILU, exact_silu, -80.0, 20.0, 2.6, 0.0},
    {"gelu erf", CPU_ACT_GELU_ERF, exact_gelu_erf, -12.0, 10.0, 6.0, 3e-7},
    {"gelu tanh", CPU_ACT_GELU_TANH, exact_gelu_tanh, -8.0, 8.0, 100.0, 6e-7},
    {"gelu quick", CPU_ACT_GELU_QUICK, exact_gelu_quick, -20.0, 20.0, 45.0, 2e-6},
    {"hard swish", CPU_ACT_HARD_SWISH, exact_hard_swish, -2.0, 10.0, 2.0, 3e-7},
    {"sqrt", CPU_UNARY_SQRT, sqrt, 0.0, 100.0, 0.51, 0.0},
    {"reciprocal", CPU_UNARY_RECIPROCAL, exact_reciprocal, 0.01, 100.0, 0.51, 0.0},
    {"rsqrt", CPU_UNARY_RSQRT, exact_rsqrt, 0.001, 100.0, 1.6, 0.0},
};

static void check_errors(const function_case *f, const float *in, const float *out, int64_t n) {
  double worst = 0.0;
  double worst_absolute = 0.0;
  double worst_at = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    double exact = f->exact((double)in[i]);
    if (fabs(exact) < 0x1p-126)
      continue;
    int exponent = 0;
    frexp((double)(float)exact, &exponent);
    double error = fabs((double)out[i] - exact);
    double units = error / ldexp(1.0, exponent - 24);
    if (!(units <= worst)) {
      worst = units;
      worst_at = (double)in[i];
    }
    worst_absolute = error <= worst_absolute ? worst_absolute : error;
  }
  printf("    %-12s %.2f units (at %.6g), %.2g absolute\n", f->name, worst, worst_at,
         worst_absolute);
  if (!(worst <= f->units) || (f->absolute > 0.0 && !(worst_absolute <= f->absolute)))
    OPI_FAIL("%s: %.3f units at %.9g, %.3g absolute", f->name, worst, worst_at, worst_absolute);
}

static void test_errors_and_equal_bits(void) {
  enum { N = 400003 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *in = kernel_floats(N);
  float *out = kernel_floats(N);
  float *wanted = kernel_floats(N);
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
    const function_case *f = &cases[c];
    for (int64_t i = 0; i < N; ++i)
      in[i] = (float)(f->low + (f->high - f->low) * (double)i / (N - 1));
    cpu_unary_f32(&execs[n - 1].x, (cpu_unary)f->op, in, wanted, N);
    check_errors(f, in, wanted, N);
    for (int i = 0; i < n - 1; ++i) {
      int64_t count = execs[i].x.kernels == cpu_kernels_get(CPU_ISA_PORTABLE) ? N / 5 : N;
      cpu_unary_f32(&execs[i].x, (cpu_unary)f->op, in, out, count);
      kernel_same(out, wanted, count, f->name, execs[i].name);
    }
  }
  free(in), free(out), free(wanted);
}

/* Random bit patterns: all instruction sets agree, NaN gives NaN and nothing else does so alone. */
static void test_any_bits_agree(void) {
  enum { N = 65536 };
  static const int ops[] = {CPU_UNARY_EXP,     CPU_UNARY_LOG,   CPU_UNARY_ERF,     CPU_UNARY_SQRT,
                            CPU_ACT_TANH,      CPU_ACT_SIGMOID, CPU_ACT_SILU,      CPU_ACT_GELU_ERF,
                            CPU_ACT_GELU_TANH, CPU_ACT_RELU,    CPU_UNARY_NEG,     CPU_UNARY_ABS,
                            CPU_UNARY_SQUARE,  CPU_UNARY_RSQRT, CPU_ACT_GELU_QUICK};
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *in = kernel_floats(N);
  float *out = kernel_floats(N);
  float *wanted = kernel_floats(N);
  opi_test_random random = {99};
  for (int64_t i = 0; i < N; ++i) {
    uint32_t bits = (uint32_t)opi_test_next(&random);
    memcpy(in + i, &bits, sizeof bits);
  }
  for (size_t o = 0; o < sizeof ops / sizeof ops[0]; ++o) {
    for (int i = 0; i < n; ++i) {
      cpu_unary_f32(&execs[i].x, (cpu_unary)ops[o], in, i == 0 ? wanted : out, N);
      if (i > 0)
        kernel_same(out, wanted, N, "any bits", execs[i].name);
    }
    for (int64_t i = 0; i < N; ++i) {
      if (isnan(in[i]) && !isnan(wanted[i])) {
        OPI_FAIL("operation %d loses a NaN", ops[o]);
        break;
      }
    }
  }
  free(in), free(out), free(wanted);
}

static float one(const cpu_exec *x, int op, float in) {
  float out = -1234.0f;
  cpu_unary_f32(x, (cpu_unary)op, &in, &out, 1);
  return out;
}

static void test_limits(void) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int i = 0; i < n; ++i) {
    const cpu_exec *x = &execs[i].x;
    OPI_ASSERT(one(x, CPU_UNARY_EXP, -INFINITY) == 0.0f);
    OPI_ASSERT(one(x, CPU_UNARY_EXP, INFINITY) == INFINITY);
    OPI_ASSERT(one(x, CPU_UNARY_EXP, 89.0f) == INFINITY);
    OPI_ASSERT(one(x, CPU_UNARY_EXP, 0.0f) == 1.0f);
    OPI_ASSERT(one(x, CPU_UNARY_EXP, -100.0f) == expf(-100.0f)); /* subnormal */
    OPI_ASSERT(one(x, CPU_UNARY_EXP, -104.5f) == 0.0f);
    OPI_ASSERT(one(x, CPU_UNARY_LOG, 0.0f) == -INFINITY);
    OPI_ASSERT(one(x, CPU_UNARY_LOG, -0.0f) == -INFINITY);
    OPI_ASSERT(one(x, CPU_UNARY_LOG, INFINITY) == INFINITY);
    OPI_ASSERT(isnan(one(x, CPU_UNARY_LOG, -1.0f)));
    OPI_ASSERT(fabsf(one(x, CPU_UNARY_LOG, 1e-40f) - logf(1e-40f)) < 1e-5f);
    OPI_ASSERT(one(x, CPU_ACT_TANH, INFINITY) == 1.0f);
    OPI_ASSERT(one(x, CPU_ACT_TANH, -INFINITY) == -1.0f);
    OPI_ASSERT(one(x, CPU_UNARY_ERF, -INFINITY) == -1.0f);
    OPI_ASSERT(signbit(one(x, CPU_UNARY_ERF, -0.0f)));
    OPI_ASSERT(one(x, CPU_ACT_SIGMOID, -INFINITY) == 0.0f);
    OPI_ASSERT(one(x, CPU_ACT_SIGMOID, INFINITY) == 1.0f);
    OPI_ASSERT(one(x, CPU_ACT_GELU_ERF, INFINITY) == INFINITY);
    OPI_ASSERT(one(x, CPU_ACT_GELU_ERF, -INFINITY) > -1e-37f);
    OPI_ASSERT(one(x, CPU_ACT_GELU_ERF, 1e30f) == 1e30f);
    OPI_ASSERT(one(x, CPU_ACT_GELU_TANH, 1e30f) == 1e30f);
    OPI_ASSERT(one(x, CPU_ACT_RELU, -INFINITY) == 0.0f);
  }
}

OPI_TEST_MAIN("kernel_vmath", OPI_TEST(test_errors_and_equal_bits), OPI_TEST(test_any_bits_agree),
              OPI_TEST(test_limits))
