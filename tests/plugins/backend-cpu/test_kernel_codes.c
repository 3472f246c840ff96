/* SPDX-License-Identifier: Apache-2.0 */
/* Products with packed codes: bit for bit those with the unpacked matrix, in every form, on every
 * instruction set, with one and two threads and for every number of rows. */
#include "kernel_test.h"
#include "plugins/backend-cpu/kernels/half.h"

/* ctest: timeout=120 */

/* A matrix as files hold it, W[K,N] of it in fp32, and its packed form. */
typedef struct matrix {
  cpu_codes form;
  uint8_t *codes, *zero_bytes;
  void *scales, *zero_floats; /* of form.scale */
  float *w;                   /* [K,N] */
  void *packed;
  int64_t row_bytes;
} matrix;

/* How codes lie: by column with whole blocks, as MatMulNBits has them, or dense [K,N]. */
typedef enum order { BY_COLUMN, BY_ROW } order;

typedef struct form_case {
  int64_t k, n, block;
  uint32_t bits;
  cpu_dtype scale;
  cpu_zeros zeros;
  bool is_signed;
  order order;
} form_case;

static void put_code(uint8_t *data, uint32_t bits, int64_t at, uint32_t code) {
  const int64_t per_byte = 8 / (int64_t)bits;
  const uint32_t shift = (uint32_t)(at % per_byte) * bits;
  data[at / per_byte] = (uint8_t)((data[at / per_byte] & ~(((1u << bits) - 1u) << shift)) |
                                  (code & ((1u << bits) - 1u)) << shift);
}

static float put_float(cpu_dtype type, void *data, int64_t at, float value) {
  if (type == CPU_F32)
    return ((float *)data)[at] = value;
  uint16_t *half = data;
  half[at] = type == CPU_F16 ? cpu_f32_to_f16(value) : cpu_f32_to_bf16(value);
  return type == CPU_F16 ? cpu_f16_to_f32(half[at]) : cpu_bf16_to_f32(half[at]);
}

static void make(const cpu_exec *x, const form_case *c, matrix *m) {
  const int64_t blocks = (c->k + c->block - 1) / c->block, deep = blocks * c->block;
  const bool turned = c->order == BY_COLUMN;
  const int32_t half = 1 << (c->bits - 1), base = c->is_signed ? half : 0;
  opi_test_random random = {(uint32_t)(c->k * 31 + c->n + c->bits)};
  memset(m, 0, sizeof *m);
  m->form = (cpu_codes){.k = c->k,
                        .n = c->n,
                        .block = c->block,
                        .bits = c->bits,
                        .scale = c->scale,
                        .zeros = c->zeros,
                        .zero = half - 1};
  m->codes = kernel_memory((size_t)(deep * c->n));
  m->zero_bytes = kernel_memory((size_t)(blocks * c->n));
  m->scales = kernel_memory((size_t)(blocks * c->n) * 4);
  m->zero_floats = kernel_memory((size_t)(blocks * c->n) * 4);
  m->w = kernel_floats(c->k * c->n);
  const float spread = c->bits == 8 ? 0.01f : 0.2f;
  for (int64_t n = 0; n < c->n; ++n) {
    for (int64_t b = 0; b < blocks; ++b) {
      const float scale = put_float(c->scale, m->scales, n * blocks + b,
                                    spread * (float)opi_test_uniform(&random, -1, 1));
      const int32_t zero = (int32_t)opi_test_uniform(&random, 0, 2.0 * half);
      const float number = put_float(c->scale, m->zero_floats, n * blocks + b,
                                     (float)opi_test_uniform(&random, 0, 2.0 * half));
      put_code(m->zero_bytes, c->bits, n * blocks + b, (uint32_t)(zero - base));
      const float off = c->zeros == CPU_ZEROS_ONE     ? (float)m->form.zero
                        : c->zeros == CPU_ZEROS_BYTES ? (float)zero
                                                      : number;
      for (int64_t k = b * c->block; k < c->k && k < (b + 1) * c->block; ++k) {
        const int32_t code = (int32_t)opi_test_uniform(&random, 0, 2.0 * half);
        put_code(m->codes, c->bits, turned ? n * deep + k : k * c->n + n, (uint32_t)(code - base));
        m->w[k * c->n + n] = ((float)code - off) * scale;
      }
    }
  }
  const cpu_codes_source source = {
      .codes = {m->codes, c->bits, c->is_signed, CPU_F32, turned ? 1 : c->n, turned ? deep : 1},
      .scales = {m->scales, 0, false, c->scale, 1, blocks},
      .zeros = {c->zeros == CPU_ZEROS_FLOATS ? m->zero_floats : (void *)m->zero_bytes,
                c->zeros == CPU_ZEROS_FLOATS ? 0 : c->bits, c->is_signed, c->scale, 1, blocks}};
  uint64_t bytes = 0;
  OPI_ASSERT_FATAL(cpu_codes_bytes(&m->form, &bytes));
  m->packed = kernel_memory((size_t)bytes);
  cpu_codes_pack(x, &m->form, &source, 0, cpu_codes_panels(&m->form), m->packed);
}

static void drop(matrix *m) {
  free(m->codes);
  free(m->zero_bytes);
  free(m->scales);
  free(m->zero_floats);
  free(m->w);
  free(m->packed);
}

static void *workspace_of(const cpu_exec *x, const cpu_codes *form, int64_t m, bool int8) {
  uint64_t bytes = 0;
  OPI_ASSERT_FATAL(cpu_codes_workspace(cpu_team_size(x->team), form, m, int8, &bytes));
  return kernel_memory((size_t)bytes);
}

/* The product with the unpacked matrix. */
static void plain(const cpu_exec *x, const matrix *m, int64_t rows, const float *a, float *c,
                  const cpu_epilogue *epilogue) {
  uint64_t bytes = 0;
  OPI_ASSERT_FATAL(cpu_pack_bytes(CPU_PACK_F32_PANEL, m->form.k, m->form.n, &bytes));
  void *packed = kernel_memory((size_t)bytes);
  cpu_pack(x, CPU_PACK_F32_PANEL,
           &(cpu_pack_source){m->w, CPU_F32, m->form.k, m->form.n, m->form.n, 1, 0}, packed);
  cpu_matmul(x, &(cpu_matmul_args){.m = rows,
                                   .a = a,
                                   .a_stride = m->form.k,
                                   .b = {CPU_PACK_F32_PANEL, m->form.k, m->form.n, packed},
                                   .c = c,
                                   .c_stride = m->form.n,
                                   .epilogue = epilogue});
  free(packed);
}

static void check(const kernel_exec *e, const form_case *c) {
  static const int64_t counts[] = {1, 2, 5, 7, 13};
  enum { MOST = 13 };
  matrix m;
  make(&e->x, c, &m);
  float *a = kernel_random(MOST * c->k, 5);
  float *bias = kernel_random(c->n, 6);
  float *wanted = kernel_floats(MOST * c->n);
  float *found = kernel_floats(MOST * c->n);
  void *workspace = workspace_of(&e->x, &m.form, MOST, false);
  const cpu_epilogue epilogue = {.alpha = 0.5f, .activation = CPU_ACT_SILU, .bias = bias};
  char what[96];
  snprintf(what, sizeof what, "%lldx%lld, %u bits, blocks of %lld, zeros %d, order %d",
           (long long)c->k, (long long)c->n, c->bits, (long long)c->block, (int)c->zeros,
           (int)c->order);
  plain(&e->x, &m, MOST, a, wanted, &epilogue);
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
    memset(found, 0xff, sizeof(float) * (size_t)(MOST * c->n));
    cpu_codes_matmul(&e->x, &(cpu_codes_args){.m = counts[i],
                                              .a = a,
                                              .a_stride = c->k,
                                              .form = &m.form,
                                              .packed = m.packed,
                                              .c = found,
                                              .c_stride = c->n,
                                              .epilogue = &epilogue,
                                              .workspace = workspace});
    kernel_same(found, wanted, counts[i] * c->n, what, e->name);
    OPI_ASSERT(counts[i] == MOST || c->n == 0 || isnan(found[counts[i] * c->n]));
  }
  free(a);
  free(bias);
  free(wanted);
  free(found);
  free(workspace);
  drop(&m);
}

static void test_products_have_the_bits_of_unpacked_ones(void) {
  static const form_case cases[] = {
      {64, 64, 32, 4, CPU_F32, CPU_ZEROS_ONE, false, BY_COLUMN},
      {544, 130, 32, 4, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
      {300, 67, 16, 4, CPU_F16, CPU_ZEROS_FLOATS, false, BY_COLUMN},
      {33, 5, 16, 4, CPU_F32, CPU_ZEROS_ONE, true, BY_COLUMN},
      {257, 70, 128, 8, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
      {515, 64, 256, 8, CPU_BF16, CPU_ZEROS_FLOATS, false, BY_COLUMN},
      {300, 65, 512, 8, CPU_F32, CPU_ZEROS_ONE, true, BY_COLUMN},
      {91, 40, 64, 2, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
      {530, 66, 16, 2, CPU_F16, CPU_ZEROS_ONE, true, BY_COLUMN},
      {95, 33, 32, 2, CPU_F32, CPU_ZEROS_FLOATS, true, BY_COLUMN},
      {1100, 96, 1100, 8, CPU_F32, CPU_ZEROS_BYTES, true, BY_ROW},
      {70, 63, 70, 4, CPU_F32, CPU_ZEROS_BYTES, true, BY_ROW},
      {1300, 20, 64, 4, CPU_F32, CPU_ZEROS_BYTES, false, BY_ROW},
      {1, 1, 1, 8, CPU_F32, CPU_ZEROS_ONE, false, BY_ROW},
      {9, 129, 16, 4, CPU_F32, CPU_ZEROS_BYTES, true, BY_ROW},
  };
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  for (int i = 0; i < n; ++i) {
    for (size_t s = 0; s < sizeof cases / sizeof cases[0]; ++s) {
      form_case c = cases[s];
      c.block = c.block > c.k && c.order == BY_ROW ? c.k : c.block;
      check(&execs[i], &c);
    }
  }
}

/* ---- rows of 8 bits ---- */

/* One row as codes.h says: bytes, and of each block its scale and sum. */
static void round_row(const cpu_codes *form, const float *a, int32_t *q, float *scale, float *sum) {
  for (int64_t b = 0; b * form->block < form->k; ++b) {
    const int64_t first = b * form->block;
    const int64_t end = first + form->block < form->k ? first + form->block : form->k;
    float most = 0.0f;
    int32_t total = 0;
    for (int64_t k = first; k < end; ++k)
      most = fmaxf(most, fabsf(a[k]));
    scale[b] = most / 127.0f;
    for (int64_t k = first; k < end; ++k) {
      q[k] = most == 0.0f ? 0 : (int32_t)nearbyintf(a[k] * (1.0f / scale[b]));
      total += q[k];
    }
    sum[b] = (float)total;
  }
}

/* Codes, scales and zeros of a matrix, as floats: code(k, n) and so on. */
static float code_of(const matrix *m, const form_case *c, int64_t k, int64_t n) {
  const int64_t blocks = (c->k + c->block - 1) / c->block, per_byte = 8 / (int64_t)c->bits;
  const int64_t at = n * blocks * c->block + k;
  const uint32_t code = (uint32_t)m->codes[at / per_byte] >> (at % per_byte * (int64_t)c->bits);
  return (float)((code & ((1u << c->bits) - 1u)) ^ (c->is_signed ? 1u << (c->bits - 1) : 0u));
}

static float number_of(cpu_dtype type, const void *data, int64_t at) {
  const uint16_t *half = data;
  return type == CPU_F32   ? ((const float *)data)[at]
         : type == CPU_F16 ? cpu_f16_to_f32(half[at])
                           : cpu_bf16_to_f32(half[at]);
}

static float zero_of(const matrix *m, const form_case *c, int64_t at) {
  const int64_t per_byte = 8 / (int64_t)c->bits;
  const uint32_t code =
      (uint32_t)m->zero_bytes[at / per_byte] >> (at % per_byte * (int64_t)c->bits);
  if (c->zeros == CPU_ZEROS_ONE)
    return (float)m->form.zero;
  if (c->zeros == CPU_ZEROS_FLOATS)
    return number_of(c->scale, m->zero_floats, at);
  return (float)((code & ((1u << c->bits) - 1u)) ^ (c->is_signed ? 1u << (c->bits - 1) : 0u));
}

/* The product of rounded rows, element by element in the stated order. */
static void plain_int8(const matrix *m, const form_case *c, const float *a, float *out) {
  const int64_t blocks = (c->k + c->block - 1) / c->block;
  int32_t *q = kernel_memory((size_t)c->k * sizeof *q);
  float *scale = kernel_floats(blocks), *sum = kernel_floats(blocks);
  round_row(&m->form, a, q, scale, sum);
  for (int64_t n = 0; n < c->n; ++n) {
    float v = 0.0f;
    for (int64_t b = 0; b < blocks; ++b) {
      double dot = 0.0;
      for (int64_t k = b * c->block; k < c->k && k < (b + 1) * c->block; ++k)
        dot += (double)q[k] * (double)code_of(m, c, k, n);
      const float whole = fmaf(-zero_of(m, c, n * blocks + b), sum[b], (float)dot);
      v = fmaf(whole, scale[b] * number_of(c->scale, m->scales, n * blocks + b), v);
    }
    out[n] = v;
  }
  free(q);
  free(scale);
  free(sum);
}

static void check_int8(const kernel_exec *e, const form_case *c) {
  /* 16 read a panel together, in tiles of 2 to 4; 32 on tiles */
  static const int64_t counts[] = {1, 2, 7, 18, 35};
  enum { MOST = 35 };
  matrix m;
  make(&e->x, c, &m);
  float *a = kernel_random(MOST * c->k, 5);
  float *wanted = kernel_floats(MOST * c->n);
  float *found = kernel_floats(MOST * c->n);
  void *workspace = workspace_of(&e->x, &m.form, MOST, true);
  memset(a + c->k, 0, sizeof(float) * (size_t)(c->k < c->block ? c->k : c->block));
  for (int64_t r = 0; r < MOST; ++r)
    plain_int8(&m, c, a + r * c->k, wanted + r * c->n);
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
    char what[96];
    snprintf(what, sizeof what, "%lld rows, %lldx%lld, %u bits, blocks of %lld",
             (long long)counts[i], (long long)c->k, (long long)c->n, c->bits, (long long)c->block);
    memset(found, 0xff, sizeof(float) * (size_t)(MOST * c->n));
    cpu_codes_matmul(&e->x, &(cpu_codes_args){.m = counts[i],
                                              .a = a,
                                              .a_stride = c->k,
                                              .form = &m.form,
                                              .packed = m.packed,
                                              .c = found,
                                              .c_stride = c->n,
                                              .int8 = true,
                                              .workspace = workspace});
    kernel_same(found, wanted, counts[i] * c->n, what, e->name);
    OPI_ASSERT(counts[i] == MOST || isnan(found[counts[i] * c->n]));
  }
  a[3] = (float)INFINITY; /* is not lost */
  a[c->k + 1] = (float)NAN;
  cpu_codes_matmul(&e->x, &(cpu_codes_args){.m = 2,
                                            .a = a,
                                            .a_stride = c->k,
                                            .form = &m.form,
                                            .packed = m.packed,
                                            .c = found,
                                            .c_stride = c->n,
                                            .int8 = true,
                                            .workspace = workspace});
  OPI_ASSERT(isnan(found[0]) && isnan(found[2 * c->n - 1]));
  free(a);
  free(wanted);
  free(found);
  free(workspace);
  drop(&m);
}

static void test_rows_of_8_bits(void) {
  static const form_case cases[] = {
      {64, 64, 32, 4, CPU_F32, CPU_ZEROS_ONE, false, BY_COLUMN},
      {544, 130, 32, 4, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
      {300, 67, 16, 4, CPU_F16, CPU_ZEROS_FLOATS, false, BY_COLUMN},
      {33, 5, 16, 4, CPU_F32, CPU_ZEROS_ONE, true, BY_COLUMN},
      {600, 70, 256, 4, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
      {257, 70, 128, 8, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
      {515, 64, 256, 8, CPU_BF16, CPU_ZEROS_FLOATS, false, BY_COLUMN},
      {91, 40, 64, 2, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
      {530, 66, 16, 2, CPU_F16, CPU_ZEROS_ONE, true, BY_COLUMN},
      {100, 65, 48, 4, CPU_F32, CPU_ZEROS_FLOATS, true, BY_COLUMN},
      {200, 20, 80, 4, CPU_F32, CPU_ZEROS_ONE, false, BY_COLUMN},
      {256, 64, 32, 8, CPU_F16, CPU_ZEROS_BYTES, true, BY_COLUMN},
      {384, 64, 192, 2, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN},
  };
  kernel_exec execs[KERNEL_BYTE_EXECS];
  const int n = kernel_byte_execs(execs);
  for (int i = 0; i < n; ++i) {
    for (size_t s = 0; s < sizeof cases / sizeof cases[0]; ++s)
      check_int8(&execs[i], &cases[s]);
  }
}

/* The largest numbers of every kind: no sum within a block overflows. */
static void test_extremes_of_8_bits(void) {
  enum { K = 256, N = 64 };
  enum { M = 17 };
  kernel_exec execs[KERNEL_BYTE_EXECS];
  const int n = kernel_byte_execs(execs);
  static float a[M * K], found[M * N];
  for (int i = 0; i < n; ++i) {
    for (uint32_t bits = 2; bits <= 8; bits *= 2) {
      const form_case c = {K, N, K, bits, CPU_F32, CPU_ZEROS_ONE, false, BY_COLUMN};
      matrix m;
      make(&execs[i].x, &c, &m);
      void *workspace = workspace_of(&execs[i].x, &m.form, M, true);
      memset((char *)m.packed + N * 4, 0xff, (size_t)(K * N) * bits / 8);
      for (int sign = -1; sign <= 1; sign += 2) {
        for (int k = 0; k < M * K; ++k)
          a[k] = (float)sign * 127.0f;
        for (int k = 0; k < N; ++k)
          ((float *)m.packed)[k] = 1.0f;
        for (int64_t r = 1; r <= M; r += M - 1) {
          cpu_codes_matmul(&execs[i].x, &(cpu_codes_args){.m = r,
                                                          .a = a,
                                                          .a_stride = K,
                                                          .form = &m.form,
                                                          .packed = m.packed,
                                                          .c = found,
                                                          .c_stride = N,
                                                          .int8 = true,
                                                          .workspace = workspace});
          const float each = (float)((1 << bits) - 1 - m.form.zero);
          OPI_ASSERT(found[0] == (float)sign * 127.0f * (float)K * each &&
                     found[r * N - 1] == found[0]);
        }
      }
      free(workspace);
      drop(&m);
    }
  }
}

/* Panels are what threads share, rows where those are few: one row to 200, on two threads too. */
static void test_rows_do_not_depend_on_their_number(void) {
  enum { M = 200, K = 320, N = 70 };
  const form_case c = {K, N, 32, 4, CPU_F32, CPU_ZEROS_BYTES, false, BY_COLUMN};
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  float *a = kernel_random(M * K, 3);
  float *whole = kernel_floats(M * N);
  float *found = kernel_floats(M * N);
  for (int i = 0; i < n; ++i) {
    matrix m;
    make(&execs[i].x, &c, &m);
    void *workspace = workspace_of(&execs[i].x, &m.form, M, false);
    cpu_codes_args g = {.a = a,
                        .a_stride = K,
                        .form = &m.form,
                        .packed = m.packed,
                        .c = found,
                        .c_stride = N,
                        .workspace = workspace};
    plain(&execs[i].x, &m, M, a, whole, NULL);
    for (g.m = 1; g.m <= M; g.m += g.m < 20 ? 1 : 60) {
      cpu_codes_matmul(&execs[i].x, &g);
      if (!kernel_same(found, whole, g.m * N, "rows", execs[i].name))
        break;
    }
    free(workspace);
    drop(&m);
  }
  free(a);
  free(whole);
  free(found);
}

/* Integers by integers: the sums of a plain loop, of every pair of types. */
static void check_integers(const kernel_exec *e, int64_t m, int64_t k, int64_t n, int types) {
  const bool a_signed = (types & 1) != 0, b_signed = (types & 2) != 0, each = (types & 4) != 0;
  const cpu_codes form = {.k = k, .n = n, .block = k, .bits = 8};
  opi_test_random random = {(uint32_t)(m * 7 + k + types)};
  uint8_t *a = kernel_memory((size_t)(m * k)), *b = kernel_memory((size_t)(k * n));
  uint8_t *zeros = kernel_memory((size_t)n);
  int32_t *c = kernel_memory((size_t)(m * n) * sizeof *c);
  uint64_t bytes = 0, room = 0;
  for (int64_t i = 0; i < m * k; ++i)
    a[i] = i % 9 == 0 ? 0x80 : (uint8_t)opi_test_uniform(&random, 0, 256);
  for (int64_t i = 0; i < k * n; ++i)
    b[i] = i % 5 == 0 ? 0xff : (uint8_t)opi_test_uniform(&random, 0, 256);
  for (int64_t i = 0; i < n; ++i)
    zeros[i] = (uint8_t)opi_test_uniform(&random, 0, 256);
  OPI_ASSERT_FATAL(cpu_codes_bytes(&form, &bytes));
  OPI_ASSERT_FATAL(cpu_codes_integer_workspace(&form, m, &room));
  void *packed = kernel_memory((size_t)bytes), *workspace = kernel_memory((size_t)room);
  const cpu_codes_source source = {.codes = {b, 8, b_signed, CPU_F32, n, 1}};
  cpu_codes_pack(&e->x, &form, &source, 0, cpu_codes_panels(&form), packed);
  cpu_codes_integer(&e->x, &(cpu_codes_integer_args){.m = m,
                                                     .a = a,
                                                     .a_signed = a_signed,
                                                     .a_zero = a_signed ? -7 : 133,
                                                     .form = &form,
                                                     .packed = packed,
                                                     .b_base = b_signed ? 128 : 0,
                                                     .b_zeros = zeros,
                                                     .b_zeros_signed = b_signed,
                                                     .b_zero_each = each,
                                                     .c = c,
                                                     .workspace = workspace});
  int64_t wrong = 0;
  for (int64_t i = 0; i < m * n; ++i) {
    const uint8_t z = zeros[each ? i % n : 0];
    int32_t sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      const uint8_t x = a[i / n * k + j], w = b[j * n + i % n];
      sum += ((a_signed ? (int8_t)x : x) - (a_signed ? -7 : 133)) *
             ((b_signed ? (int8_t)w : w) - (b_signed ? (int8_t)z : z));
    }
    wrong += sum != c[i];
  }
  OPI_ASSERT_INT(wrong, 0);
  free(a);
  free(b);
  free(zeros);
  free(c);
  free(packed);
  free(workspace);
}

static void test_integers_by_integers(void) {
  static const struct {
    int64_t m, k, n;
  } shapes[] = {{1, 1, 1},    {1, 300, 130}, {3, 64, 64},   {6, 515, 70},
                {40, 33, 17}, {32, 128, 96}, {35, 191, 64}, {50, 5, 100}};
  kernel_exec execs[KERNEL_BYTE_EXECS];
  const int n = kernel_byte_execs(execs);
  for (int i = 0; i < n; ++i) {
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
      for (int types = 0; types < 8; ++types)
        check_integers(&execs[i], shapes[s].m, shapes[s].k, shapes[s].n, types);
    }
  }
}

static void test_forms_without_a_packing_are_refused(void) {
  const cpu_codes good = {.k = 64, .n = 64, .block = 32, .bits = 4, .zero = 8};
  uint64_t bytes = 0;
  cpu_codes form = good;
  OPI_ASSERT(cpu_codes_bytes(&form, &bytes));
  OPI_ASSERT(bytes == 64 * 64 / 2 + 2 * 64 * 4);
  form.bits = 3;
  OPI_ASSERT(!cpu_codes_bytes(&form, &bytes));
  form = good;
  form.block = 24;
  OPI_ASSERT(!cpu_codes_bytes(&form, &bytes));
  form = good;
  form.zero = 16;
  OPI_ASSERT(!cpu_codes_bytes(&form, &bytes));
  form = good;
  form.block = 512;
  form.k = 1024;
  OPI_ASSERT(cpu_codes_workspace(1, &form, 4, false, &bytes));
  OPI_ASSERT(!cpu_codes_workspace(1, &form, 4, true, &bytes));
  form = good;
  form.k = INT64_MAX / 64;
  OPI_ASSERT(!cpu_codes_bytes(&form, &bytes));
  form = good;
  form.n = INT64_MAX;
  form.k = 1 << 20;
  OPI_ASSERT(!cpu_codes_bytes(&form, &bytes));
}

OPI_TEST_MAIN("kernel_codes", OPI_TEST(test_products_have_the_bits_of_unpacked_ones),
              OPI_TEST(test_rows_of_8_bits), OPI_TEST(test_extremes_of_8_bits),
              OPI_TEST(test_integers_by_integers),
              OPI_TEST(test_rows_do_not_depend_on_their_number),
              OPI_TEST(test_forms_without_a_packing_are_refused))
