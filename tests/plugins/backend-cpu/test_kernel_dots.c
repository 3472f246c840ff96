/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 by bf16: every kind of this machine against a plain loop in the order that
 * dots.h states, bit for bit, with one and two threads and any number of rows; the models of the
 * instructions by cases that tell orders and roundings apart; the rule. */
#include "kernel_test.h"
#include "plugins/backend-cpu/kernels/half.h"
#include "plugins/backend-cpu/kernels/tiles_model.h"

/* ctest: timeout=120 */

typedef struct shape {
  int64_t m, k, n;
} shape;

/* Operands and results of a product. */
typedef struct product {
  shape s;
  float *a;         /* [M,K], numbers of bf16 */
  uint16_t *a_half; /* the same */
  uint16_t *b;      /* [K,N] */
  float *bias, *wanted, *found;
  void *packed;
} product;

static float flushed(float x) {
  return fabsf(x) < 1.17549435e-38f ? x * 0.0f : x;
}

static float fused(float a, float b, float sum) {
  return flushed(fmaf(flushed(a), flushed(b), flushed(sum)));
}

/* One chain of one element: step k of A and B are a[k] and b[k * stride]. */
static float chain_of_pairs(const float *a, const uint16_t *b, int64_t stride, int64_t steps) {
  float sum = 0.0f;
  for (int64_t k = 0; k < steps; k += 2) {
    if (k + 1 < steps)
      sum = fused(a[k + 1], cpu_bf16_to_f32(b[(k + 1) * stride]), sum);
    sum = fused(a[k], cpu_bf16_to_f32(b[k * stride]), sum);
  }
  return sum;
}

static float chain_of_tiles(const float *a, const uint16_t *b, int64_t stride, int64_t steps) {
  float sum = 0.0f;
  for (int64_t from = 0; from < steps; from += CPU_DOTS_STEPS) {
    float part[2] = {0.0f, 0.0f};
    for (int64_t k = from; k < steps && k < from + CPU_DOTS_STEPS; ++k)
      part[k % 2] = fused(a[k], cpu_bf16_to_f32(b[k * stride]), part[k % 2]);
    sum = flushed(sum + flushed(part[0] + part[1]));
  }
  return sum;
}

static bool kind_is_pairs(cpu_dots_kind kind) {
  return kind == CPU_DOTS_PAIRS || kind == CPU_DOTS_PAIRS_MODEL;
}

/* wanted = (A B) / 2 + bias in the order of a kind. */
static void plain_product(const product *p, cpu_dots_kind kind) {
  const shape s = p->s;
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    float sum = 0.0f;
    for (int64_t k = 0; k < s.k; k += CPU_CHAIN) {
      const float *a = p->a + i / s.n * s.k + k;
      const uint16_t *b = p->b + k * s.n + i % s.n;
      const int64_t steps = s.k - k < CPU_CHAIN ? s.k - k : CPU_CHAIN;
      const float chain = (kind_is_pairs(kind) ? chain_of_pairs : chain_of_tiles)(a, b, s.n, steps);
      sum = k == 0 ? chain : sum + chain;
    }
    p->wanted[i] = 0.5f * sum + p->bias[i % s.n];
  }
}

static product make(const cpu_exec *x, shape s) {
  product p = {.s = s};
  uint64_t bytes = 0;
  float *numbers = kernel_random(s.k * s.n, 31);
  p.a = kernel_random(s.m * s.k, 32);
  p.a_half = kernel_memory((size_t)(s.m * s.k) * 2);
  p.b = kernel_memory((size_t)(s.k * s.n) * 2);
  p.bias = kernel_random(s.n, 33);
  p.wanted = kernel_floats(s.m * s.n);
  p.found = kernel_floats(s.m * s.n);
  cpu_convert(x, CPU_F32, numbers, CPU_BF16, p.b, s.k * s.n);
  for (int64_t i = 0; i < s.m * s.k; ++i) {
    p.a_half[i] = cpu_f32_to_bf16(i % 97 == 5 ? p.a[i] * 1e-38f : p.a[i]);
    p.a[i] = cpu_bf16_to_f32(p.a_half[i]);
  }
  OPI_ASSERT(cpu_pack_bytes(CPU_PACK_BF16_PANEL, s.k, s.n, &bytes));
  p.packed = kernel_memory(bytes);
  const cpu_pack_source source = {
      .data = p.b, .dtype = CPU_BF16, .k = s.k, .n = s.n, .k_stride = s.n, .n_stride = 1};
  cpu_pack(x, CPU_PACK_BF16_PANEL, &source, p.packed);
  free(numbers);
  return p;
}

static void drop(product *p) {
  free(p->a), free(p->a_half), free(p->b), free(p->bias), free(p->wanted), free(p->found),
      free(p->packed);
}

/* found = (A B) / 2 + bias of the first m rows. */
static void multiply(const cpu_exec *x, const product *p, const cpu_dots *dots, int64_t m) {
  const cpu_epilogue epilogue = {.alpha = 0.5f, .bias = p->bias};
  uint64_t room = 0;
  OPI_ASSERT(cpu_matmul_workspace(cpu_team_size(x->team), CPU_PACK_BF16_PANEL, &room));
  const cpu_matmul_args g = {.m = m,
                             .a = p->a,
                             .a_stride = p->s.k,
                             .b = {CPU_PACK_BF16_PANEL, p->s.k, p->s.n, p->packed},
                             .c = p->found,
                             .c_stride = p->s.n,
                             .epilogue = &epilogue,
                             .workspace = kernel_memory(room),
                             .dots = dots,
                             .a_half = p->a_half};
  memset(p->found, 0xff, sizeof(float) * (size_t)(p->s.m * p->s.n));
  memset(g.workspace, 0xff, room); /* NaN */
  cpu_matmul(x, &g);
  free(g.workspace);
}

static void test_products_are_the_plain_loop_bit_for_bit(void) {
  static const shape shapes[] = {{1, 1, 1},     {1, 300, 130}, {2, 511, 65},  {3, 33, 64},
                                 {7, 256, 63},  {16, 40, 96},  {17, 31, 200}, {33, 600, 70},
                                 {70, 287, 33}, {5, 0, 40},    {129, 64, 17}};
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  int found = 0;
  for (int kind = 1; kind < CPU_DOTS_COUNT; ++kind) {
    const cpu_dots *dots = cpu_dots_get((cpu_dots_kind)kind);
    found += dots != NULL;
    for (size_t s = 0; dots != NULL && s < sizeof shapes / sizeof shapes[0]; ++s) {
      product p = make(&execs[0].x, shapes[s]);
      plain_product(&p, (cpu_dots_kind)kind);
      for (int i = n - 2; i < n; ++i) { /* one thread and two */
        char what[64];
        snprintf(what, sizeof what, "%s %lldx%lldx%lld", cpu_dots_name((cpu_dots_kind)kind),
                 (long long)p.s.m, (long long)p.s.k, (long long)p.s.n);
        multiply(&execs[i].x, &p, dots, p.s.m);
        kernel_same(p.found, p.wanted, p.s.m * p.s.n, what, execs[i].name);
      }
      drop(&p);
    }
  }
  OPI_ASSERT(found >= 2); /* models run everywhere */
}

/* Fewer rows are the first rows of more; the sums are those of fp64, and not those of fp32 kernels
 * to the last bit. */
static void test_rows_and_accuracy(void) {
  enum { M = 67, K = 700, N = 70 };
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  const cpu_exec *x = &execs[n - 1].x;
  product p = make(x, (shape){M, K, N});
  double *exact = kernel_memory(sizeof(double) * M * N);
  float *widened = kernel_floats(M * N);
  for (int64_t i = 0; i < M * N; ++i) {
    exact[i] = 0.0;
    for (int64_t k = 0; k < K; ++k)
      exact[i] += (double)p.a[i / N * K + k] * (double)cpu_bf16_to_f32(p.b[k * N + i % N]);
    exact[i] = 0.5 * exact[i] + (double)p.bias[i % N];
  }
  multiply(x, &p, NULL, M);
  memcpy(widened, p.found, sizeof(float) * M * N);
  for (int kind = 1; kind < CPU_DOTS_COUNT; ++kind) {
    const cpu_dots *dots = cpu_dots_get((cpu_dots_kind)kind);
    if (dots == NULL)
      continue;
    multiply(x, &p, dots, M);
    memcpy(p.wanted, p.found, sizeof(float) * M * N);
    kernel_close(p.found, exact, M * N, 2e-6, "accuracy", cpu_dots_name((cpu_dots_kind)kind));
    OPI_ASSERT(kernel_differ(p.found, widened, M * N) >= 0);
    for (int64_t m = 1; m < M; m += m < 8 ? 1 : 13) {
      multiply(x, &p, dots, m);
      kernel_same(p.found, p.wanted, m * N, "rows", cpu_dots_name((cpu_dots_kind)kind));
    }
  }
  free(exact), free(widened);
  drop(&p);
}

static uint16_t half(float x) {
  return cpu_f32_to_bf16(x);
}

/* One lane: the second product first; each sum rounded; small sums and operands are zero. */
static void test_model_of_a_pair(void) {
  const float big = 16777216.0f; /* 2^24: 1 more is lost, 2 more are not */
  const uint16_t ones[2] = {half(1.0f), half(1.0f)};
  OPI_ASSERT(model_pair((uint16_t[]){half(1.0f), half(-1.0f)}, ones, big) == 16777216.0f);
  OPI_ASSERT(model_pair((uint16_t[]){half(-1.0f), half(1.0f)}, ones, big) == 16777215.0f);
  OPI_ASSERT(model_pair((uint16_t[]){half(1.0f), half(1.0f)}, ones, big) == 16777216.0f);
  const uint16_t tiny[2] = {1, 1}; /* subnormal */
  const uint16_t large[2] = {half(1e38f), half(1e38f)};
  OPI_ASSERT(model_pair(tiny, large, 3.0f) == 3.0f);
  const uint16_t small[2] = {half(0x1p-70f), 0}, less[2] = {half(-0x1p-60f), 0};
  const float sum = model_pair(small, less, 0.0f); /* -2^-130 */
  OPI_ASSERT(sum == 0.0f);
  OPI_ASSERT(model_pair(small, less, 0x1p-127f) == 0.0f); /* a subnormal sum counts as zero */
  /* not rounded before it is added: 2^-126 - 2^-127 would be no number, 2^-125 - 2^-149 is one */
  const uint16_t at[2] = {half(0x1p-75f), 0}, by[2] = {half(-0x1p-73f), 0};
  OPI_ASSERT(model_pair(at, by, 0x1p-125f) == 0x1p-125f - 0x1p-148f);
  OPI_ASSERT(isnan(model_pair((uint16_t[]){0, half(INFINITY)}, (uint16_t[]){0, 0}, 1.0f)));
  OPI_ASSERT(isinf(model_pair((uint16_t[]){half(1.0f), half(INFINITY)}, ones, 1.0f)));
}

/* Even and odd steps are summed apart, added to each other, then to C. */
static void test_model_of_tiles(void) {
  static model_tiles t;
  uint16_t a[16][32], b[16][32];
  float c[16][16];
  memset(&t, 0, sizeof t);
  model_configure(&t, 16, 16, 16);
  for (int r = 0; r < 16; ++r) {
    for (int k = 0; k < 32; ++k) {
      a[r][k] = half(k == 0 ? 16777216.0f : k % 2 != 0 ? (float)(r + 1) : 0.0f);
      b[r][k] = half(k % 2 != 0 ? (float)(1 << (k / 2 % 4)) : 1.0f); /* [k][n][2] */
    }
    for (int n = 0; n < 16; ++n)
      c[r][n] = r == 3 ? 1.0f : 0.0f;
  }
  model_load(&t, 4, a, sizeof a[0]);
  model_load(&t, 6, b, sizeof b[0]);
  model_load(&t, 1, c, sizeof c[0]);
  model_dot_bf16(&t, 1, 4, 6);
  model_store(&t, 1, c, sizeof c[0]);
  for (int r = 0; r < 16; ++r) {
    for (int n = 0; n < 16; ++n) {
      /* odd: 16 (r + 1) 2^(n % 4), even: 2^24; the 1 of C is lost in their sum */
      const float odd = (float)(16 * (r + 1) * (1 << (n % 4)));
      OPI_ASSERT(c[r][n] == 16777216.0f + odd);
    }
  }
  model_zero(&t, 1);
  model_store(&t, 1, c, sizeof c[0]);
  OPI_ASSERT(c[0][0] == 0.0f && c[15][15] == 0.0f);
}

/* Signed by unsigned, modulo 2^32; shapes smaller than a tile, whose rest is left alone; shapes
 * that do not go together. */
static void test_model_of_tiles_of_bytes(void) {
  static model_tiles t;
  int8_t a[5][12];
  uint8_t b[3][16][4];
  int32_t c[6][16], wanted[5][16];
  memset(&t, 0x5a, sizeof t);
  model_configure(&t, 5, 0, 3);
  for (int r = 0; r < 5; ++r) {
    for (int k = 0; k < 12; ++k)
      a[r][k] = (int8_t)(k == 0 ? -128 : 17 * r - 11 * k);
  }
  for (int k = 0; k < 3; ++k) {
    for (int n = 0; n < 16; ++n) {
      for (int i = 0; i < 4; ++i)
        b[k][n][i] = (uint8_t)(k == 0 && i == 0 ? 255 : 31 * k + 15 * n + i);
    }
  }
  for (int r = 0; r < 6; ++r) {
    for (int n = 0; n < 16; ++n)
      c[r][n] = r == 2 ? INT32_MIN : 1000 * r;
  }
  for (int r = 0; r < 5; ++r) {
    for (int n = 0; n < 16; ++n) {
      uint32_t sum = (uint32_t)c[r][n];
      for (int k = 0; k < 12; ++k)
        sum += (uint32_t)(a[r][k] * b[k / 4][n][k % 4]);
      memcpy(&wanted[r][n], &sum, sizeof sum);
    }
  }
  model_load(&t, 4, a, sizeof a[0]);
  model_load(&t, 6, b, sizeof b[0]);
  model_load(&t, 0, c, sizeof c[0]);
  model_dot_bytes(&t, 0, 4, 6);
  model_store(&t, 0, c, sizeof c[0]);
  OPI_ASSERT(memcmp(c, wanted, sizeof wanted) == 0);
  OPI_ASSERT(c[5][0] == 5000 && c[5][15] == 5000); /* behind the tile's rows */
  OPI_ASSERT(c[2][0] > 0);                         /* it went round */
  t.n_rows[6] = 2;
  model_dot_bytes(&t, 0, 4, 6);
  model_store(&t, 0, c, sizeof c[0]);
  OPI_ASSERT(c[0][0] == -1 && c[4][15] == -1);
}

static void test_names_and_rule(void) {
  cpu_dots_kind kind = CPU_DOTS_WIDEN;
  for (int i = 0; i < CPU_DOTS_COUNT; ++i) {
    OPI_ASSERT(cpu_dots_parse(cpu_dots_name((cpu_dots_kind)i), &kind));
    OPI_ASSERT_INT(kind, i);
  }
  OPI_ASSERT(!cpu_dots_parse("amx", &kind));
  OPI_ASSERT(cpu_dots_name(CPU_DOTS_COUNT) == NULL);
  OPI_ASSERT(cpu_dots_get(CPU_DOTS_WIDEN) == NULL && cpu_dots_get(CPU_DOTS_COUNT) == NULL);
  const cpu_dots_vendor amd = CPU_DOTS_AMD, intel = CPU_DOTS_INTEL;
  const struct {
    cpu_dots_machine machine;
    cpu_dots_kind kind;
  } rules[] = {{{CPU_DOTS_OTHER, 0, false, false, false}, CPU_DOTS_WIDEN},
               {{CPU_DOTS_OTHER, 0x19, true, true, true}, CPU_DOTS_WIDEN},
               {{amd, 0x19, false, false, false}, CPU_DOTS_WIDEN}, /* Zen 3 */
               {{amd, 0x19, true, true, false}, CPU_DOTS_PAIRS},   /* Zen 4 */
               {{amd, 0x1a, true, true, false}, CPU_DOTS_PAIRS},   /* Zen 5 */
               {{amd, 0x1b, true, true, false}, CPU_DOTS_WIDEN},   /* nobody has measured it */
               {{intel, 6, true, true, false}, CPU_DOTS_WIDEN},    /* Cooper Lake */
               {{intel, 6, true, true, true}, CPU_DOTS_TILES},     /* Sapphire Rapids */
               {{intel, 6, false, true, true}, CPU_DOTS_WIDEN}};   /* without the other kernels */
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i)
    OPI_ASSERT_INT(cpu_dots_rule(&rules[i].machine), rules[i].kind);
  cpu_dots_machine machine;
  cpu_dots_detect(&machine);
  OPI_ASSERT(machine.avx512 == (cpu_isa_detect() == CPU_ISA_AVX512));
  /* instructions that are there agree with their models, or they would not be given out */
  OPI_ASSERT((cpu_dots_get(CPU_DOTS_PAIRS) != NULL) == machine.pairs);
  OPI_ASSERT((cpu_dots_get(CPU_DOTS_TILES) != NULL) == machine.tiles);
  cpu_bytes_kind bytes = CPU_BYTES_COUNT;
  for (int i = 0; i < CPU_BYTES_COUNT; ++i) {
    OPI_ASSERT(cpu_bytes_parse(cpu_bytes_name((cpu_bytes_kind)i), &bytes));
    OPI_ASSERT_INT(bytes, i);
  }
  OPI_ASSERT(!cpu_bytes_parse("amx", &bytes) && cpu_bytes_name(CPU_BYTES_COUNT) == NULL);
  OPI_ASSERT((cpu_bytes_get(CPU_BYTES_TILES, CPU_ISA_AVX512) != NULL) == cpu_isa_tiles_bytes());
  OPI_ASSERT(cpu_bytes_get(CPU_BYTES_TILES, CPU_ISA_AVX2) == NULL);
  OPI_ASSERT_INT(cpu_bytes_rule(CPU_ISA_PORTABLE), CPU_BYTES_PLAIN);
  OPI_ASSERT_INT(cpu_bytes_rule(CPU_ISA_AVX512), cpu_isa_tiles_bytes() ? CPU_BYTES_TILES
                                                 : cpu_isa_sums_bytes(CPU_ISA_AVX512)
                                                     ? CPU_BYTES_VNNI
                                                     : CPU_BYTES_PLAIN);
  printf("on this machine:%s%s ", machine.pairs ? " pairs" : "", machine.tiles ? " tiles" : "");
}

OPI_TEST_MAIN("kernel_dots", OPI_TEST(test_model_of_a_pair), OPI_TEST(test_model_of_tiles),
              OPI_TEST(test_model_of_tiles_of_bytes), OPI_TEST(test_names_and_rule),
              OPI_TEST(test_products_are_the_plain_loop_bit_for_bit),
              OPI_TEST(test_rows_and_accuracy))
