/* SPDX-License-Identifier: Apache-2.0 */
/* The packed products: bit for bit a plain loop in the documented order, on every instruction set
 * and with one and two threads; close to double; independent of how many rows a call has. */
#include "kernel_test.h"

/* ctest: timeout=120 */

/* The documented order of additions, one element. */
static float chain_sum(const float *a, const float *b, int64_t b_stride, int64_t k) {
  float sum = 0.0f;
  for (int64_t i = 0; i < k; i += CPU_CHAIN) {
    float chain = 0.0f;
    for (int64_t j = i; j < k && j < i + CPU_CHAIN; ++j)
      chain = fmaf(a[j], b[j * b_stride], chain);
    sum = i == 0 ? chain : sum + chain;
  }
  return sum;
}

typedef struct shape {
  int64_t m, k, n;
} shape;

static cpu_packed pack(const cpu_exec *x, const float *b, int64_t k, int64_t n) {
  uint64_t bytes = 0;
  OPI_ASSERT(cpu_pack_bytes(CPU_PACK_F32_PANEL, k, n, &bytes));
  void *data = kernel_memory(bytes);
  cpu_pack_source source = {b, CPU_F32, k, n, n, 1, 0};
  cpu_pack(x, CPU_PACK_F32_PANEL, &source, data);
  return (cpu_packed){CPU_PACK_F32_PANEL, k, n, data};
}

static void check_product(const kernel_exec *e, shape s) {
  float *a = kernel_random(s.m * s.k, 1);
  float *b = kernel_random(s.k * s.n, 2);
  float *c = kernel_floats(s.m * s.n);
  float *wanted = kernel_floats(s.m * s.n);
  double *exact = kernel_memory((size_t)(s.m * s.n) * sizeof(double));
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      wanted[i * s.n + j] = chain_sum(a + i * s.k, b + j, s.n, s.k);
      exact[i * s.n + j] = 0.0;
      for (int64_t k = 0; k < s.k; ++k)
        exact[i * s.n + j] += (double)a[i * s.k + k] * (double)b[k * s.n + j];
    }
  }
  cpu_packed packed = pack(&e->x, b, s.k, s.n);
  cpu_matmul_args g = {.m = s.m, .a = a, .a_stride = s.k, .b = packed, .c = c, .c_stride = s.n};
  cpu_matmul(&e->x, &g);
  char what[64];
  snprintf(what, sizeof what, "%lldx%lldx%lld", (long long)s.m, (long long)s.k, (long long)s.n);
  kernel_same(c, wanted, s.m * s.n, what, e->name);
  kernel_close(c, exact, s.m * s.n, 2e-6, what, e->name);
  free(a);
  free(b);
  free(c);
  free(wanted);
  free(exact);
  free((void *)(uintptr_t)packed.data);
}

static void test_product_is_the_plain_loop_bit_for_bit(void) {
  static const shape shapes[] = {
      {1, 1, 1},     {1, 768, 64},  {1, 300, 259}, {1, 256, 256}, {2, 257, 193}, {3, 511, 130},
      {4, 100, 65},  {5, 1030, 70}, {6, 64, 64},   {7, 255, 63},  {8, 1025, 17}, {9, 16, 15},
      {12, 300, 48}, {13, 33, 33},  {19, 700, 97}, {200, 40, 81}, {33, 1, 200},  {2, 8200, 66},
  };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int i = 0; i < n; ++i) {
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s)
      check_product(&execs[i], shapes[s]);
  }
}

/* Every row count from 1 to 512 gives the rows of the 512-row product. */
static void test_rows_do_not_depend_on_their_number(void) {
  enum { M = 512, K = 300, N = 130 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *a = kernel_random(M * K, 3);
  float *b = kernel_random(K * N, 4);
  float *whole = kernel_floats(M * N);
  float *c = kernel_floats(M * N);
  for (int i = 0; i < n; ++i) {
    const cpu_exec *x = &execs[i].x;
    cpu_packed packed = pack(x, b, K, N);
    cpu_matmul_args g = {.m = M, .a = a, .a_stride = K, .b = packed, .c = whole, .c_stride = N};
    if (i == 0)
      cpu_matmul(x, &g);
    g.c = c;
    bool few = x->kernels == cpu_kernels_get(CPU_ISA_PORTABLE) || opi_test_is_cover();
    for (int64_t m = 1; m <= M; m += few && m > 20 ? 97 : 1) {
      g.m = m;
      memset(c, 0xff, sizeof(float) * M * N);
      cpu_matmul(x, &g);
      if (!kernel_same(c, whole, m * N, "rows", execs[i].name))
        break;
      OPI_ASSERT(m == M || isnan(c[m * N]));
    }
    free((void *)(uintptr_t)packed.data);
  }
  free(a);
  free(b);
  free(whole);
  free(c);
}

/* wanted [m, n]: what the epilogue makes of sum [m, n], each of its parts a step of its own. */
static void separate_steps(const cpu_exec *x, const cpu_epilogue *e, int64_t m, int64_t n,
                           const float *sum, float *wanted) {
  for (int64_t i = 0; i < m * n; ++i) {
    float v = sum[i] * e->alpha;
    v = e->bias ? v + e->bias[i % n] : v;
    wanted[i] = e->row_bias ? v + e->row_bias[i / n] : v;
  }
  cpu_unary_f32(x, (cpu_unary)e->activation, wanted, wanted, m * n);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      float v = wanted[r * n + j];
      v = e->multiplier ? v * e->multiplier[r * e->multiplier_stride + j] : v;
      wanted[r * n + j] = e->residual ? v + e->residual[r * e->residual_stride + j] : v;
    }
  }
}

/* Epilogues against separate plain steps, for every activation, with and without the other parts.
 */
static void test_epilogue_is_the_separate_steps(void) {
  enum { M = 14, K = 70, N = 85, LD = 90 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *a = kernel_random(M * K, 5);
  float *b = kernel_random(K * N, 6);
  float *bias = kernel_random(N, 7);
  float *row_bias = kernel_random(M, 8);
  float *multiplier = kernel_random(M * LD, 9);
  float *residual = kernel_random(M * LD, 10);
  float *sum = kernel_floats(M * N);
  float *wanted = kernel_floats(M * N);
  float *c = kernel_floats(M * LD);
  float *packed_rows = kernel_floats(M * N);
  for (int i = 0; i < n; ++i) {
    const cpu_exec *x = &execs[i].x;
    cpu_packed packed = pack(x, b, K, N);
    cpu_matmul_args g = {.m = M, .a = a, .a_stride = K, .b = packed, .c = sum, .c_stride = N};
    cpu_matmul(x, &g);
    for (int parts = 0; parts < 16; ++parts) {
      for (int act = 0; act < CPU_ACT_COUNT; ++act) {
        cpu_epilogue e = {.alpha = parts & 1 ? 0.37f : 1.0f,
                          .activation = (cpu_activation)act,
                          .bias = parts & 1 ? NULL : bias,
                          .row_bias = parts & 2 ? row_bias : NULL,
                          .multiplier = parts & 4 ? multiplier : NULL,
                          .multiplier_stride = LD,
                          .residual = parts & 8 ? residual : NULL,
                          .residual_stride = parts & 4 ? 0 : LD};
        separate_steps(x, &e, M, N, sum, wanted);
        g.c = c;
        g.c_stride = LD;
        g.epilogue = &e;
        memset(c, 0xff, sizeof(float) * M * LD);
        cpu_matmul(x, &g);
        for (int64_t r = 0; r < M; ++r) {
          memcpy(packed_rows + r * N, c + r * LD, sizeof(float) * N);
          OPI_ASSERT(isnan(c[r * LD + N])); /* nothing written beyond the row */
        }
        kernel_same(packed_rows, wanted, M * N, "epilogue", execs[i].name);
      }
    }
    free((void *)(uintptr_t)packed.data);
  }
  free(a), free(b), free(bias), free(row_bias), free(multiplier), free(residual);
  free(sum), free(wanted), free(c), free(packed_rows);
}

static void test_empty_sizes_and_special_values(void) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  const float bias[70] = {[3] = 2.5f, [69] = -1.0f};
  for (int i = 0; i < n; ++i) {
    const cpu_exec *x = &execs[i].x;
    float c[2 * 70];
    cpu_epilogue e = {.alpha = 1.0f, .bias = bias};
    cpu_matmul_args g = {
        .m = 2, .b = {CPU_PACK_F32_PANEL, 0, 70, c}, .c = c, .c_stride = 70, .epilogue = &e};
    memset(c, 0xff, sizeof c);
    cpu_matmul(x, &g); /* K = 0 */
    OPI_ASSERT(c[3] == 2.5f && c[70 + 69] == -1.0f && c[0] == 0.0f);
    g.m = 0;
    memset(c, 0, sizeof c);
    cpu_matmul(x, &g);
    OPI_ASSERT(c[3] == 0.0f);
    g.m = 1;
    g.b.n = 0;
    cpu_matmul(x, &g);
    OPI_ASSERT(c[3] == 0.0f);

    float a[2][2] = {{NAN, 1.0f}, {INFINITY, 1.0f}};
    const float b[2][1] = {{1.0f}, {2.0f}};
    cpu_packed packed = pack(x, &b[0][0], 2, 1);
    cpu_matmul_args h = {.m = 2, .a = &a[0][0], .a_stride = 2, .b = packed, .c = c, .c_stride = 1};
    cpu_matmul(x, &h);
    OPI_ASSERT(isnan(c[0]) && isinf(c[1]));
    free((void *)(uintptr_t)packed.data);
  }
}

/* Row-major, transposed and oddly strided sources of every storage type pack to the same panels;
 * the inverse gives the matrix back. */
static void test_packing_from_every_layout_and_type(void) {
  enum { K = 37, N = 150 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *b = kernel_floats(K * N);
  uint16_t *half = kernel_memory(sizeof(uint16_t) * K * N);
  uint16_t *turned_half = kernel_memory(sizeof(uint16_t) * K * N);
  float *turned = kernel_floats(K * N);
  float *odd = kernel_floats(K * N * 2);
  float *back = kernel_floats(K * N);
  for (int type = 0; type < 3; ++type) {
    const cpu_dtype dtype = (cpu_dtype)type;
    for (int i = 0; i < n; ++i) {
      const cpu_exec *x = &execs[i].x;
      kernel_fill(b, K * N, 11);
      if (dtype != CPU_F32) {
        cpu_convert(x, CPU_F32, b, dtype, half, K * N);
        cpu_convert(x, dtype, half, CPU_F32, b, K * N);
      }
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t j = 0; j < N; ++j) {
          turned[j * K + k] = b[k * N + j];
          turned_half[j * K + k] = half[k * N + j];
          odd[(k * N + j) * 2] = b[k * N + j];
        }
      }
      cpu_packed plain = pack(x, b, K, N);
      const bool f32 = dtype == CPU_F32;
      const cpu_pack_source sources[] = {
          {f32 ? (const void *)b : half, dtype, K, N, N, 1, 0},
          {f32 ? (const void *)turned : turned_half, dtype, K, N, 1, K, 0},
          {odd, CPU_F32, K, N, 2 * N, 2, 0},
      };
      uint64_t bytes = 0;
      OPI_ASSERT(cpu_pack_bytes(CPU_PACK_F32_PANEL, K, N, &bytes));
      OPI_ASSERT_INT(bytes, 192 * K * 4);
      float *packed = kernel_memory(bytes);
      for (size_t s = 0; s < 3; ++s) {
        memset(packed, 0xff, bytes);
        cpu_pack(x, CPU_PACK_F32_PANEL, &sources[s], packed);
        kernel_same(packed, plain.data, (int64_t)(bytes / 4), "panels", execs[i].name);
      }
      cpu_unpack(x, &plain, back, N);
      kernel_same(back, b, K * N, "unpacked", execs[i].name);
      free(packed);
      free((void *)(uintptr_t)plain.data);
    }
  }
  free(b), free(half), free(turned_half), free(turned), free(odd), free(back);
}

/* B of fp16 or bf16 stored as it is, [K,N] or [N,K], packed in two parts: the bits of the product
 * with the same numbers in fp32, for one row and for many, and nothing but the elements kept. */
static void check_half(const kernel_exec *e, shape s, cpu_dtype dtype, bool turned) {
  float *b = kernel_random(s.k * s.n, 21);
  float *a = kernel_random(s.m * s.k, 22);
  float *bias = kernel_random(s.n, 23);
  uint16_t *half = kernel_memory((size_t)(s.k * s.n) * 2);
  float *wanted = kernel_floats(s.m * s.n), *found = kernel_floats(s.m * s.n);
  const cpu_pack_format format = dtype == CPU_F16 ? CPU_PACK_F16_PANEL : CPU_PACK_BF16_PANEL;
  uint64_t bytes = 0, room = 0;
  cpu_convert(&e->x, CPU_F32, b, dtype, half, s.k * s.n);
  cpu_convert(&e->x, dtype, half, CPU_F32, b, s.k * s.n);
  uint16_t *stored = kernel_memory((size_t)(s.k * s.n) * 2);
  for (int64_t k = 0; k < s.k; ++k) {
    for (int64_t j = 0; j < s.n; ++j)
      stored[turned ? j * s.k + k : k * s.n + j] = half[k * s.n + j];
  }
  OPI_ASSERT(cpu_pack_bytes(format, s.k, s.n, &bytes));
  OPI_ASSERT_INT(bytes, (s.n + 63) / 64 * 64 * s.k * 2);
  char *packed = kernel_memory(bytes);
  const int64_t lines = turned ? s.n : s.k, first = lines > 64 ? 64 : 0;
  for (int part = first > 0 ? 0 : 1; part < 2; ++part) {
    const int64_t from = part == 0 ? 0 : first, count = part == 0 ? first : lines - first;
    const cpu_pack_source source = {.data = stored + from * (turned ? s.k : s.n),
                                    .dtype = dtype,
                                    .k = turned ? s.k : count,
                                    .n = turned ? count : s.n,
                                    .k_stride = turned ? 1 : s.n,
                                    .n_stride = turned ? s.k : 1,
                                    .depth = s.k};
    cpu_pack(&e->x, format, &source, packed + from * (turned ? s.k : CPU_PANEL) * 2);
  }
  const cpu_epilogue epilogue = {.alpha = 0.5f, .bias = bias, .activation = CPU_ACT_SILU};
  cpu_matmul_args g = {.m = s.m,
                       .a = a,
                       .a_stride = s.k,
                       .b = pack(&e->x, b, s.k, s.n),
                       .c = wanted,
                       .c_stride = s.n,
                       .epilogue = &epilogue};
  void *plain = (void *)(uintptr_t)g.b.data;
  cpu_matmul(&e->x, &g);
  OPI_ASSERT(cpu_matmul_workspace(cpu_team_size(e->x.team), format, &room));
  g.workspace = kernel_memory(room);
  g.b = (cpu_packed){format, s.k, s.n, packed};
  g.c = found;
  cpu_matmul(&e->x, &g);
  kernel_same(found, wanted, s.m * s.n, dtype == CPU_F16 ? "fp16" : "bf16", e->name);
  free(a), free(b), free(bias), free(half), free(stored), free(packed), free(plain);
  free(g.workspace), free(wanted), free(found);
}

static void test_half_panels_give_the_bits_of_fp32(void) {
  static const shape shapes[] = {{1, 1, 1},    {1, 300, 259}, {1, 257, 64},  {2, 511, 130},
                                 {7, 255, 63}, {13, 33, 33},  {200, 40, 81}, {3, 1300, 200}};
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  for (int i = 0; i < n; ++i) {
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
      check_half(&execs[i], shapes[s], CPU_F16, s % 2 != 0);
      check_half(&execs[i], shapes[s], CPU_BF16, s % 2 == 0);
    }
  }
}

static void test_sizes_that_overflow_are_refused(void) {
  uint64_t bytes = 7;
  OPI_ASSERT(!cpu_pack_bytes(CPU_PACK_F32_PANEL, INT64_MAX, INT64_MAX, &bytes));
  OPI_ASSERT(!cpu_pack_bytes(CPU_PACK_F32_PANEL, -1, 4, &bytes));
  OPI_ASSERT(!cpu_pack_bytes((cpu_pack_format)99, 4, 4, &bytes));
  OPI_ASSERT(!cpu_pack_bytes(CPU_PACK_F16_PANEL, INT64_MAX, 4, &bytes));
  OPI_ASSERT(!cpu_matmul_workspace(0, CPU_PACK_F16_PANEL, &bytes));
  OPI_ASSERT(!cpu_matmul_batch_workspace(1024, INT64_MAX / 4, &bytes));
  OPI_ASSERT(!cpu_matmul_batch_workspace(0, 4, &bytes));
  OPI_ASSERT(!cpu_matmul_f64_workspace(2, INT64_MAX, &bytes));
  for (int64_t rows = 1; rows < 64; rows += 40) { /* few, and many */
    const cpu_attention_args far = {
        .heads = 2, .kv_heads = 1, .q_rows = rows, .kv_rows = INT64_MAX, .qk_dim = 64, .v_dim = 64};
    OPI_ASSERT(!cpu_attention_workspace(1, &far, &bytes));
  }
  OPI_ASSERT(!cpu_conv_workspace(1, INT64_MAX, &bytes));
}

/* Batched products with broadcasting, B as stored and stored transposed. */
static void test_batched_product_is_the_plain_loop(void) {
  enum { B0 = 2, B1 = 3, M = 9, K = 70, N = 75 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *a = kernel_random(B0 * B1 * M * K, 12);
  float *b = kernel_random(B1 * K * N, 13);
  float *bias = kernel_random(N, 14);
  float *c = kernel_floats(B0 * B1 * M * N);
  float *wanted = kernel_floats(B0 * B1 * M * N);
  for (int transposed = 0; transposed < 2; ++transposed) {
    cpu_epilogue e = {.alpha = 0.5f, .bias = bias};
    cpu_matmul_batch_args g = {.batch = {B0, B1},
                               .m = M,
                               .n = N,
                               .k = K,
                               .a = a,
                               .a_batch = {B1 * M * K, M * K},
                               .a_stride = K,
                               .b = b,
                               .b_batch = {0, K * N},
                               .b_k_stride = transposed ? 1 : N,
                               .b_n_stride = transposed ? K : 1,
                               .c = c,
                               .c_batch = {B1 * M * N, M * N},
                               .c_stride = N,
                               .epilogue = &e};
    for (int64_t i = 0; i < B0 * B1 * M; ++i) {
      for (int64_t j = 0; j < N; ++j) {
        const float *bi = b + i / M % B1 * K * N + j * g.b_n_stride;
        wanted[i * N + j] = 0.5f * chain_sum(a + i * K, bi, g.b_k_stride, K) + bias[j];
      }
    }
    for (int i = 0; i < n; ++i) {
      uint64_t bytes = 0;
      OPI_ASSERT(cpu_matmul_batch_workspace(cpu_team_size(execs[i].x.team), K, &bytes));
      g.workspace = kernel_memory(bytes);
      memset(c, 0xff, sizeof(float) * B0 * B1 * M * N);
      cpu_matmul_batch(&execs[i].x, &g);
      kernel_same(c, wanted, B0 * B1 * M * N, "batched", execs[i].name);
      free(g.workspace);
    }
  }
  free(a), free(b), free(bias), free(c), free(wanted);
}

static void test_double_product_is_the_plain_loop(void) {
  enum { M = 11, K = 600, N = 77 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  double *a = kernel_memory(sizeof(double) * M * K);
  double *b = kernel_memory(sizeof(double) * K * N);
  double *c = kernel_memory(sizeof(double) * M * N);
  double *wanted = kernel_memory(sizeof(double) * M * N);
  opi_test_random random = {15};
  for (int i = 0; i < M * K; ++i)
    a[i] = opi_test_uniform(&random, -1.0, 1.0);
  for (int i = 0; i < K * N; ++i)
    b[i] = opi_test_uniform(&random, -1.0, 1.0);
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < N; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < K; k += CPU_CHAIN) {
        double chain = 0.0;
        for (int64_t q = k; q < K && q < k + CPU_CHAIN; ++q)
          chain = fma(a[i * K + q], b[j * K + q], chain);
        sum = k == 0 ? chain : sum + chain;
      }
      wanted[i * N + j] = 1.5 * sum;
    }
  }
  for (int i = 0; i < n; ++i) {
    uint64_t bytes = 0;
    OPI_ASSERT(cpu_matmul_f64_workspace(cpu_team_size(execs[i].x.team), K, &bytes));
    cpu_matmul_f64_args g = {.batch = {1, 1},
                             .m = M,
                             .n = N,
                             .k = K,
                             .alpha = 1.5,
                             .a = a,
                             .a_stride = K,
                             .b = b,
                             .b_k_stride = 1,
                             .b_n_stride = K,
                             .c = c,
                             .c_stride = N,
                             .workspace = kernel_memory(bytes)};
    memset(c, 0xff, sizeof(double) * M * N);
    cpu_matmul_f64(&execs[i].x, &g);
    OPI_ASSERT(memcmp(c, wanted, sizeof(double) * M * N) == 0);
    free(g.workspace);
  }
  free(a), free(b), free(c), free(wanted);
}

static void test_transpose(void) {
  enum { M = 45, N = 70 };
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  float *in = kernel_random(M * N, 16);
  float *out = kernel_floats(M * N);
  for (int i = 0; i < n; ++i) {
    memset(out, 0xff, sizeof(float) * M * N);
    cpu_transpose(&execs[i].x, in, N, M, N, out, M);
    int64_t n_wrong = 0;
    for (int64_t r = 0; r < M; ++r) {
      for (int64_t c = 0; c < N; ++c)
        n_wrong += out[c * M + r] != in[r * N + c];
    }
    OPI_ASSERT_INT(n_wrong, 0);
  }
  free(in), free(out);
}

OPI_TEST_MAIN("kernel_matmul", OPI_TEST(test_product_is_the_plain_loop_bit_for_bit),
              OPI_TEST(test_rows_do_not_depend_on_their_number),
              OPI_TEST(test_epilogue_is_the_separate_steps),
              OPI_TEST(test_empty_sizes_and_special_values),
              OPI_TEST(test_packing_from_every_layout_and_type),
              OPI_TEST(test_half_panels_give_the_bits_of_fp32),
              OPI_TEST(test_sizes_that_overflow_are_refused),
              OPI_TEST(test_batched_product_is_the_plain_loop),
              OPI_TEST(test_double_product_is_the_plain_loop), OPI_TEST(test_transpose))
