/* SPDX-License-Identifier: Apache-2.0 */
/* Row-wise operations: sums in the documented order bit for bit, the rest against double; the same
 * bits on every instruction set and number of threads; remainders, strides, in place, special
 * values. */
#include "kernel_test.h"

/* ctest: timeout=120 */

static const int64_t widths[] = {1, 3, 15, 16, 17, 63, 64, 65, 100, 128, 250, 768, 1000};
enum { N_WIDTHS = sizeof widths / sizeof widths[0], MOST = 1000 };

/* The documented order: 64 partial sums and a fixed tree. */
static float documented_sum(const float *p, int64_t n) {
  float s[64] = {0};
  float t[16];
  for (int64_t i = 0; i < n; ++i)
    s[i % 64] += p[i];
  for (int l = 0; l < 16; ++l)
    t[l] = (s[l] + s[16 + l]) + (s[32 + l] + s[48 + l]);
  for (int step = 8; step > 0; step /= 2) {
    for (int l = 0; l < step; ++l)
      t[l] += t[l + step];
  }
  return t[0];
}

/* Compares one reduction of one row with the same in double. */
static void check_reduction(int op, const float *row, int64_t columns, float got) {
  double sum = 0.0;
  double squares = 0.0;
  double sizes = 0.0;
  double most = -INFINITY;
  double least = INFINITY;
  for (int64_t c = 0; c < columns; ++c) {
    double v = (double)row[c];
    sum += v;
    squares += v * v;
    sizes += fabs(v);
    most = v > most ? v : most;
    least = v < least ? v : least;
  }
  const double exact[] = {sum, sum / (double)columns, squares, sqrt(squares), sizes, most, least};
  OPI_ASSERT(fabs((double)got - exact[op]) <= 1e-6 * sizes);
  OPI_ASSERT(op != CPU_REDUCE_SUM || got == documented_sum(row, columns));
  OPI_ASSERT(op < CPU_REDUCE_MAX || (double)got == exact[op]);
}

static void test_reductions(void) {
  enum { ROWS = 13 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int w = 0; w < N_WIDTHS; ++w) {
    const int64_t columns = widths[w];
    float *in = kernel_random(ROWS * columns, 1);
    float out[ROWS];
    float first[CPU_REDUCE_MIN + 1][ROWS];
    for (int i = 0; i < n; ++i) {
      for (int op = 0; op <= CPU_REDUCE_MIN; ++op) {
        cpu_reduce_rows(&execs[i].x, (cpu_reduce)op, ROWS, columns, in, columns, out);
        if (i == 0)
          memcpy(first[op], out, sizeof out);
        kernel_same(out, first[op], ROWS, "reduction", execs[i].name);
        for (int64_t r = 0; r < ROWS; ++r)
          check_reduction(op, in + r * columns, columns, out[r]);
      }
    }
    in[columns / 2] = NAN;
    for (int i = 0; i < n; ++i) {
      for (int op = 0; op <= CPU_REDUCE_MIN; ++op) {
        cpu_reduce_rows(&execs[i].x, (cpu_reduce)op, 1, columns, in, columns, out);
        OPI_ASSERT(isnan(out[0]));
      }
    }
    free(in);
  }
  float empty = 5.0f;
  cpu_reduce_rows(&execs[0].x, CPU_REDUCE_SUM, 1, 0, &empty, 0, &empty);
  OPI_ASSERT(empty == 0.0f);
}

static void test_softmax(void) {
  enum { ROWS = 17 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int w = 0; w < N_WIDTHS; ++w) {
    const int64_t columns = widths[w];
    const int64_t size = ROWS * columns;
    float *in = kernel_random(size, 2);
    float *out = kernel_floats(size);
    float *first = kernel_floats(size);
    double *exact = kernel_memory((size_t)size * sizeof(double));
    for (int64_t i = 0; i < size; ++i)
      in[i] *= 20.0f;
    for (int log_form = 0; log_form < 2; ++log_form) {
      for (int64_t r = 0; r < ROWS; ++r) {
        double sum = 0.0;
        for (int64_t c = 0; c < columns; ++c)
          sum += exp((double)in[r * columns + c]);
        for (int64_t c = 0; c < columns; ++c) {
          double v = (double)in[r * columns + c];
          exact[r * columns + c] = log_form ? v - log(sum) : exp(v) / sum;
        }
      }
      for (int i = 0; i < n; ++i) {
        cpu_softmax_args g = {ROWS, columns, log_form != 0, in, columns, out, columns};
        memset(out, 0xff, (size_t)size * sizeof(float));
        cpu_softmax(&execs[i].x, &g);
        kernel_close(out, exact, size, 6e-7, "softmax", execs[i].name);
        if (i == 0)
          memcpy(first, out, (size_t)size * sizeof(float));
        kernel_same(out, first, size, "softmax", execs[i].name);
        memcpy(out, in, (size_t)size * sizeof(float));
        g.in = out; /* in place */
        cpu_softmax(&execs[i].x, &g);
        kernel_same(out, first, size, "softmax in place", execs[i].name);
      }
    }
    free(in), free(out), free(first), free(exact);
  }
  for (int i = 0; i < n; ++i) {
    float row[3][5] = {{-INFINITY, 0.0f, 0.0f, -INFINITY, -INFINITY},
                       {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
                       {0.0f, NAN, 0.0f, 0.0f, 0.0f}};
    cpu_softmax_args g = {3, 5, false, row[0], 5, row[0], 5};
    cpu_softmax(&execs[i].x, &g);
    OPI_ASSERT(row[0][0] == 0.0f && row[0][1] == 0.5f && row[0][4] == 0.0f);
    OPI_ASSERT(isnan(row[1][0]) && isnan(row[1][4]));
    OPI_ASSERT(isnan(row[2][0]) && isnan(row[2][1]));
  }
}

typedef struct norm_case {
  int rms, skip, skip_bias, scale, bias, sum;
} norm_case;

static void exact_norm(const cpu_norm_args *g, double *out) {
  for (int64_t r = 0; r < g->rows; ++r) {
    double z[MOST];
    double mean = 0.0;
    double square = 0.0;
    for (int64_t c = 0; c < g->columns; ++c) {
      z[c] = (double)g->in[r * g->in_row + c];
      z[c] += g->skip != NULL ? (double)g->skip[r * g->skip_row + c] : 0.0;
      z[c] += g->skip_bias != NULL ? (double)g->skip_bias[c] : 0.0;
      mean += g->rms ? 0.0 : z[c] / (double)g->columns;
    }
    for (int64_t c = 0; c < g->columns; ++c)
      square += (z[c] - mean) * (z[c] - mean) / (double)g->columns;
    for (int64_t c = 0; c < g->columns; ++c) {
      double v = (z[c] - mean) / sqrt(square + (double)g->epsilon);
      v *= g->scale != NULL ? (double)g->scale[c] : 1.0;
      out[r * g->columns + c] = v + (g->bias != NULL ? (double)g->bias[c] : 0.0);
    }
  }
}

static void check_norm(norm_case k, int64_t columns) {
  enum { ROWS = 9 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  const int64_t size = ROWS * columns;
  float *in = kernel_random(size, 3);
  float *skip = kernel_random(size, 4);
  float *vectors = kernel_random(3 * columns, 5);
  float *out = kernel_floats(size);
  float *sum = kernel_floats(size);
  float *first = kernel_floats(2 * size);
  double *exact = kernel_memory((size_t)size * sizeof(double));
  float statistics[2][ROWS];
  for (int i = 0; i < n; ++i) {
    cpu_norm_args g = {.rows = ROWS,
                       .columns = columns,
                       .rms = k.rms != 0,
                       .epsilon = 1e-3f,
                       .in = in,
                       .in_row = columns,
                       .skip = k.skip ? skip : NULL,
                       .skip_row = k.skip == 2 ? 0 : columns,
                       .skip_bias = k.skip_bias ? vectors : NULL,
                       .scale = k.scale ? vectors + columns : NULL,
                       .bias = k.bias ? vectors + 2 * columns : NULL,
                       .out = out,
                       .out_row = columns,
                       .sum = k.sum ? sum : NULL,
                       .sum_row = columns,
                       .mean = statistics[0],
                       .inv_std = statistics[1]};
    exact_norm(&g, exact);
    cpu_norm(&execs[i].x, &g);
    kernel_close(out, exact, size, 2e-6, "norm", execs[i].name);
    if (i == 0) {
      memcpy(first, out, (size_t)size * sizeof(float));
      memcpy(first + size, sum, (size_t)size * sizeof(float));
    }
    kernel_same(out, first, size, "norm", execs[i].name);
    for (int64_t c = 0; k.sum && c < size; ++c) {
      float z = in[c] + (k.skip ? skip[k.skip == 2 ? c % columns : c] : 0.0f);
      z += k.skip_bias ? vectors[c % columns] : 0.0f;
      OPI_ASSERT(sum[c] == z);
    }
    OPI_ASSERT(statistics[1][0] > 0.0f);
    memcpy(out, in, (size_t)size * sizeof(float));
    g.in = out;
    cpu_norm(&execs[i].x, &g);
    kernel_same(out, first, size, "norm in place", execs[i].name);
  }
  free(in), free(skip), free(vectors), free(out), free(sum), free(first), free(exact);
}

static void test_norms(void) {
  static const norm_case forms[] = {{0, 0, 0, 0, 0, 0}, {0, 0, 0, 1, 1, 0}, {0, 1, 1, 1, 1, 1},
                                    {0, 2, 0, 1, 0, 0}, {1, 0, 0, 1, 0, 0}, {1, 1, 0, 1, 0, 1},
                                    {1, 0, 1, 0, 1, 0}, {0, 0, 0, 0, 1, 1}};
  for (size_t f = 0; f < sizeof forms / sizeof forms[0]; ++f) {
    for (int w = 1; w < N_WIDTHS; ++w)
      check_norm(forms[f], widths[w]);
  }
}

static float plain_binary(int op, float a, float b) {
  switch (op) {
    case CPU_BINARY_SUB:
      return a - b;
    case CPU_BINARY_MUL:
      return a * b;
    case CPU_BINARY_DIV:
      return a / b;
    case CPU_BINARY_MIN:
      return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
    case CPU_BINARY_MAX:
      return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
    default:
      return a + b;
  }
}

static void test_binary_operations(void) {
  enum { ROWS = 7 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int w = 0; w < N_WIDTHS; ++w) {
    const int64_t columns = widths[w];
    float *a = kernel_random(ROWS * columns, 6);
    float *b = kernel_random(ROWS * columns, 7);
    float *out = kernel_floats(ROWS * columns);
    float *wanted = kernel_floats(ROWS * columns);
    a[0] = NAN;
    b[columns - 1] = NAN;
    for (int form = 0; form < 4 * (CPU_BINARY_MAX + 1); ++form) {
      const int64_t b_row = form & 1 ? 0 : columns;
      const int64_t b_column = form & 2 ? 0 : 1;
      const int op = form / 4;
      for (int64_t i = 0; i < ROWS * columns; ++i)
        wanted[i] = plain_binary(op, a[i], b[i / columns * b_row + i % columns * b_column]);
      for (int i = 0; i < n; ++i) {
        cpu_binary_args g = {(cpu_binary)op, ROWS,     columns, a,      columns, 1, b,
                             b_row,          b_column, out,     columns};
        memset(out, 0, (size_t)(ROWS * columns) * sizeof(float));
        cpu_binary_f32(&execs[i].x, &g);
        kernel_same(out, wanted, ROWS * columns, "binary", execs[i].name);
      }
    }
    free(a), free(b), free(out), free(wanted);
  }
}

/* Long rows and single rows are divided among threads. */
static void test_large_jobs_are_divided_without_a_trace(void) {
  enum { N = 50021 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *a = kernel_random(N, 8);
  float *b = kernel_random(N, 9);
  float *out = kernel_floats(N);
  for (int i = 0; i < n; ++i) {
    cpu_binary_args g = {CPU_BINARY_MUL, 1, N, a, N, 1, b, N, 1, out, N};
    memset(out, 0xff, sizeof(float) * N);
    cpu_binary_f32(&execs[i].x, &g);
    for (int64_t c = 0; c < N; ++c) {
      if (out[c] != a[c] * b[c]) {
        OPI_FAIL("%s: element %lld", execs[i].name, (long long)c);
        break;
      }
    }
    cpu_unary_f32(&execs[i].x, CPU_UNARY_NEG, a, out, N);
    OPI_ASSERT(out[0] == -a[0] && out[N - 1] == -a[N - 1] && out[N / 2] == -a[N / 2]);
  }
  free(a), free(b), free(out);
}

static void test_bias_and_activation(void) {
  enum { ROWS = 5, COLUMNS = 83 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *in = kernel_random(ROWS * COLUMNS, 10);
  float *bias = kernel_random(COLUMNS, 11);
  float *m = kernel_random(ROWS * COLUMNS, 12);
  float *r = kernel_random(ROWS * COLUMNS, 13);
  float *out = kernel_floats(ROWS * COLUMNS);
  float *wanted = kernel_floats(ROWS * COLUMNS);
  for (int act = 0; act < CPU_ACT_COUNT; ++act) {
    for (int i = 0; i < n; ++i) {
      for (int64_t c = 0; c < ROWS * COLUMNS; ++c)
        wanted[c] = in[c] + bias[c % COLUMNS];
      cpu_unary_f32(&execs[i].x, (cpu_unary)act, wanted, wanted, ROWS * COLUMNS);
      for (int64_t c = 0; c < ROWS * COLUMNS; ++c) {
        float v = wanted[c] * m[c];
        wanted[c] = v + r[c];
      }
      cpu_bias_args g = {ROWS, COLUMNS, in, COLUMNS, bias, (cpu_activation)act,
                         m,    COLUMNS, r,  COLUMNS, out,  COLUMNS};
      cpu_bias_activation(&execs[i].x, &g);
      kernel_same(out, wanted, ROWS * COLUMNS, "bias", execs[i].name);
    }
  }
  free(in), free(bias), free(m), free(r), free(out), free(wanted);
}

/* Every 16-bit value converts to fp32 as its definition says, and back to itself; fp32 values round
 * to the nearest. */
static double half_value(uint16_t h) {
  int e = (h >> 10) & 31;
  double f = (double)(h & 1023);
  double v = e == 0    ? ldexp(f, -24)
             : e == 31 ? (h & 1023 ? (double)NAN : (double)INFINITY)
                       : ldexp(1024.0 + f, e - 25);
  return h & 0x8000 ? -v : v;
}

static void test_conversions(void) {
  enum { N = 65536 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  uint16_t *h = kernel_memory(N * sizeof(uint16_t));
  uint16_t *back = kernel_memory(N * sizeof(uint16_t));
  float *f = kernel_floats(N);
  float *g = kernel_floats(N);
  uint16_t *first = kernel_memory(N * sizeof(uint16_t));
  for (int i = 0; i < n; ++i) {
    const cpu_exec *x = &execs[i].x;
    for (int v = 0; v < N; ++v)
      h[v] = (uint16_t)v;
    cpu_convert(x, CPU_F16, h, CPU_F32, f, N);
    for (int v = 0; v < N; ++v) {
      double wanted = half_value((uint16_t)v);
      if ((double)f[v] != wanted && !(isnan(f[v]) && isnan(wanted))) {
        OPI_FAIL("%s: half %04x is %a", execs[i].name, (unsigned)v, (double)f[v]);
        break;
      }
    }
    for (int type = CPU_F16; type <= CPU_BF16; ++type) {
      cpu_convert(x, (cpu_dtype)type, h, CPU_F32, f, N);
      cpu_convert(x, CPU_F32, f, (cpu_dtype)type, back, N);
      for (int v = 0; v < N; ++v)
        OPI_ASSERT(isnan(f[v]) || back[v] == v);
      /* halfway points and their neighbours round to even, to the nearest */
      kernel_fill(f, N, 14);
      for (int v = 0; v < N; ++v) {
        uint32_t bits = 0;
        memcpy(&bits, f + v, 4);
        bits = (bits & ~UINT32_C(0x1fff)) | (v % 3 == 0 ? 0x1000u : v % 3 == 1 ? 0x1001u : 0xfffu);
        bits = type == CPU_BF16 ? ((bits & ~UINT32_C(0xffff)) | 0x7fffu) + (uint32_t)(v % 3) : bits;
        memcpy(f + v, &bits, 4);
        f[v] = ldexpf(f[v], v % 40 - 20);
      }
      cpu_convert(x, CPU_F32, f, (cpu_dtype)type, back, N - 5);
      if (i == 0) {
        memcpy(first, back, N * sizeof(uint16_t));
        cpu_convert(x, (cpu_dtype)type, back, CPU_F32, g, N - 5);
        for (int v = 0; v < N - 5; ++v) {
          double unit = type == CPU_F16 ? fmax(fabs((double)f[v]) * 0x1p-11, 0x1p-25)
                                        : fabs((double)f[v]) * 0x1p-8;
          OPI_ASSERT(isinf(g[v]) || fabs((double)g[v] - (double)f[v]) <= unit);
        }
      } else if (type == CPU_BF16) {
        OPI_ASSERT(memcmp(first, back, (N - 5) * sizeof(uint16_t)) == 0);
      }
    }
  }
  /* fp16 rounding is the same everywhere */
  for (int i = 0; i < n; ++i) {
    cpu_convert(&execs[i].x, CPU_F32, f, CPU_F16, i == 0 ? first : back, N);
    OPI_ASSERT(i == 0 || memcmp(first, back, N * sizeof(uint16_t)) == 0);
  }
  free(h), free(back), free(f), free(g), free(first);
}

static void test_rotary(void) {
  enum { B = 2, H = 3, S = 5, D = 44, R = 40, HALF = R / 2, POSITIONS = 9 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *in = kernel_random(B * S * H * D, 15);
  float *out = kernel_floats(B * H * S * D);
  float *wanted = kernel_floats(B * H * S * D);
  float *cosine = kernel_random(POSITIONS * HALF, 16);
  float *sine = kernel_random(POSITIONS * HALF, 17);
  const int64_t positions[B * S] = {0, 1, 2, 3, 4, 8, 7, 6, 5, 4};
  for (int form = 0; form < 4; ++form) {
    const bool interleaved = form & 1;
    const bool indexed = form & 2;
    for (int64_t i = 0; i < B * H * S; ++i) {
      int64_t b = i / S / H;
      int64_t s = i % S;
      const float *p = in + ((b * S + s) * H + i / S % H) * D; /* batch, row, head, dim */
      float *o = wanted + i * D;                               /* batch, head, row, dim */
      memcpy(o, p, D * sizeof(float));
      int64_t at = indexed ? positions[b * S + s] : s + b * 4;
      for (int64_t j = 0; j < HALF; ++j) {
        int64_t u = interleaved ? 2 * j : j;
        int64_t v = interleaved ? 2 * j + 1 : j + HALF;
        float c = cosine[at * HALF + j];
        float w = sine[at * HALF + j];
        float ac = p[u] * c;
        float bw = p[v] * w;
        float bc = p[v] * c;
        float aw = p[u] * w;
        o[u] = ac - bw;
        o[v] = bc + aw;
      }
    }
    for (int i = 0; i < n; ++i) {
      cpu_rotary_args g = {.batch = B,
                           .heads = H,
                           .rows = S,
                           .dim = D,
                           .rotary_dim = R,
                           .interleaved = interleaved,
                           .in = in,
                           .in_stride = {S * H * D, D, H * D},
                           .out = out,
                           .out_stride = {H * S * D, S * D, D},
                           .cos = cosine,
                           .sin = sine,
                           .table_batch = 4 * HALF,
                           .table_row = HALF,
                           .positions = indexed ? positions : NULL,
                           .position_batch = S};
      memset(out, 0xff, sizeof(float) * B * H * S * D);
      cpu_rotary(&execs[i].x, &g);
      kernel_same(out, wanted, B * H * S * D, "rotary", execs[i].name);
      cpu_rotary_args again = g;
      for (int64_t q = 0; q < B * H * S; ++q)
        memcpy(out + q * D, in + ((q / S / H * S + q % S) * H + q / S % H) * D, D * sizeof(float));
      again.in = out;
      memcpy(again.in_stride, again.out_stride, sizeof again.in_stride);
      cpu_rotary(&execs[i].x, &again);
      kernel_same(out, wanted, B * H * S * D, "rotary in place", execs[i].name);
    }
  }
  free(in), free(out), free(wanted), free(cosine), free(sine);
}

static void test_gather(void) {
  enum { ROWS = 50, WIDTH = 33, COUNT = 3000 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *table = kernel_random(ROWS * WIDTH, 18);
  float *out = kernel_floats(COUNT * WIDTH);
  int64_t *wide = kernel_memory(COUNT * sizeof(int64_t));
  int32_t *narrow = kernel_memory(COUNT * sizeof(int32_t));
  opi_test_random random = {19};
  for (int i = 0; i < COUNT; ++i) {
    narrow[i] = (int32_t)(opi_test_next(&random) % (2 * ROWS)) - ROWS;
    wide[i] = narrow[i];
  }
  for (int i = 0; i < n; ++i) {
    for (int w = 0; w < 2; ++w) {
      memset(out, 0xff, sizeof(float) * COUNT * WIDTH);
      int64_t bad = cpu_gather_rows(&execs[i].x, table, ROWS, WIDTH * sizeof(float),
                                    w ? (const void *)wide : narrow, w, COUNT, out);
      OPI_ASSERT_INT(bad, -1);
      for (int64_t q = 0; q < COUNT; ++q) {
        int64_t row = wide[q] < 0 ? wide[q] + ROWS : wide[q];
        OPI_ASSERT(memcmp(out + q * WIDTH, table + row * WIDTH, WIDTH * sizeof(float)) == 0);
      }
    }
    int64_t kept[2] = {wide[2000], wide[7]};
    wide[2000] = INT64_MIN;
    OPI_ASSERT_INT(
        cpu_gather_rows(&execs[i].x, table, ROWS, WIDTH * sizeof(float), wide, true, COUNT, out),
        2000);
    wide[7] = ROWS;
    OPI_ASSERT_INT(
        cpu_gather_rows(&execs[i].x, table, ROWS, WIDTH * sizeof(float), wide, true, COUNT, out),
        7);
    wide[2000] = kept[0];
    wide[7] = kept[1];
  }
  free(table), free(out), free(wide), free(narrow);
}

OPI_TEST_MAIN("kernel_rowwise", OPI_TEST(test_reductions), OPI_TEST(test_softmax),
              OPI_TEST(test_norms), OPI_TEST(test_binary_operations),
              OPI_TEST(test_large_jobs_are_divided_without_a_trace),
              OPI_TEST(test_bias_and_activation), OPI_TEST(test_conversions), OPI_TEST(test_rotary),
              OPI_TEST(test_gather))
