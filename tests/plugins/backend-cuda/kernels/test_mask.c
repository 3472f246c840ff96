/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Masks for kernels that add finite numbers to scores: copies and notes of them, and the rows that
 * are set right behind such kernels, with their dY, against plain loops in double. */
#include "kit.h"

typedef struct form {
  int64_t batch, heads, queries, keys;
  int repeats;   /* bits: batch 1, heads 2, rows 4, keys 8 */
  int64_t shift; /* folded causality; -1: none */
} form;

static const form forms[] = {
    {1, 1, 1, 1, 0, -1},   {2, 3, 5, 40, 0, -1},  {2, 3, 5, 40, 1, -1}, {2, 2, 4, 130, 2, -1},
    {3, 2, 7, 33, 6, -1},  {2, 2, 3, 300, 7, -1}, {2, 2, 9, 35, 8, -1}, {2, 2, 40, 37, 2, 0},
    {2, 1, 33, 70, 1, 37}, {1, 2, 6, 64, 4, 3},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static const struct {
  uint32_t mask, dtype;
} types[] = {{OPIPE_BOOL, OPIPE_BFLOAT16},     {OPIPE_BOOL, OPIPE_FLOAT16},
             {OPIPE_BFLOAT16, OPIPE_BFLOAT16}, {OPIPE_FLOAT16, OPIPE_FLOAT16},
             {OPIPE_FLOAT, OPIPE_BFLOAT16},    {OPIPE_FLOAT, OPIPE_FLOAT16}};
enum { TYPES = sizeof types / sizeof types[0] };

static const double hidden = -0x1p127, lowest = -0x1p126;

/* Numbers of every kind: some rows have hardly any that are seen. */
static kit_tensor make_mask(uint32_t dtype, int64_t n, int64_t keys) {
  static const double odd[] = {-INFINITY, -3.4e38, -1e9, -65504, -20000, -1500, -900, 0.5, 3e38};
  const kit_tensor x =
      kit_random(dtype, n, 3, dtype == OPIPE_BOOL ? 0 : -3, dtype == OPIPE_BOOL ? 2 : 3);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = i / keys;
    if (row % 3 == 1)
      kit_set(&x, i, dtype == OPIPE_BOOL ? 0 : -INFINITY); /* nothing */
    else if (dtype != OPIPE_BOOL && (i * 7 + row) % 5 == 0 && dtype != OPIPE_FLOAT16)
      kit_set(&x, i, odd[(size_t)(i * 7 + row) / 5 % 9]);
    else if (dtype == OPIPE_FLOAT16 && (i * 7 + row) % 5 == 0)
      kit_set(&x, i, odd[(size_t)(i * 7 + row) / 5 % 2 == 0 ? 0 : 3 + (size_t)i % 5]);
  }
  if (dtype != OPIPE_BOOL && n > 20) {
    kit_set(&x, n - 1, (double)NAN);
    kit_set(&x, n / 2, (double)INFINITY);
  }
  return x;
}

static double expected(uint32_t mask_dtype, double x, bool *out_wrong) {
  *out_wrong = false;
  if (mask_dtype == OPIPE_BOOL)
    return x != 0 ? 0 : hidden;
  if (x == -INFINITY)
    return hidden;
  if (!(x < INFINITY)) {
    *out_wrong = true;
    return 0;
  }
  const double low = mask_dtype == OPIPE_BFLOAT16  ? -1024
                     : mask_dtype == OPIPE_FLOAT16 ? -8192
                                                   : -0x1p26;
  const double y = x > low ? x : x * (mask_dtype == OPIPE_FLOAT ? 0x1p16 : 0x1p80);
  return y < lowest ? lowest : y > -lowest ? -lowest : y;
}

typedef struct prepared {
  kit_tensor mask, copy, notes;
  cuda_mask_args args;
} prepared;

static prepared prepare(const form *f, uint32_t mask_dtype, uint32_t dtype) {
  const int64_t extent[4] = {
      (f->repeats & 1) != 0 ? 1 : f->batch, (f->repeats & 2) != 0 ? 1 : f->heads,
      (f->repeats & 4) != 0 ? 1 : f->queries, (f->repeats & 8) != 0 ? 1 : f->keys};
  prepared p = {
      .args = {.batch = extent[0], .heads = extent[1], .keys = f->keys, .shift = f->shift}};
  p.args.rows = f->shift >= 0 ? f->queries : extent[2];
  int64_t n = 1;
  for (int i = 3; i >= 0; --i) {
    p.args.stride[i] = extent[i] > 1 ? n : 0;
    n *= extent[i];
  }
  const int64_t rows = p.args.batch * p.args.heads * p.args.rows;
  p.mask = make_mask(mask_dtype, n, extent[3]);
  p.copy = kit_new(cuda_mask_type(mask_dtype, dtype), rows * f->keys);
  p.notes = kit_new(OPIPE_INT32, rows * 2);
  p.args.mask = p.mask.data;
  p.args.out = p.copy.data;
  p.args.notes = p.notes.data;
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_mask(&p.args, mask_dtype, dtype, &launch));
  KIT_RUN(&launch, 1, &p.copy, &p.notes);
  return p;
}

static void check_prepared(const form *f, const prepared *p, uint32_t mask_dtype) {
  const cuda_mask_args *a = &p->args;
  double *want = kit_doubles(p->copy.n);
  for (int64_t i = 0; i < a->batch * a->heads * a->rows; ++i) {
    const int64_t row = i % a->rows, h = i / a->rows % a->heads, b = i / a->rows / a->heads;
    int64_t first = a->keys, bad = a->keys;
    for (int64_t t = a->keys - 1; t >= 0; --t) {
      bool wrong = false;
      double x = expected(mask_dtype,
                          kit_get(&p->mask, b * a->stride[0] + h * a->stride[1] +
                                                row * a->stride[2] + t * a->stride[3]),
                          &wrong);
      if (f->shift >= 0 && t > row + f->shift) {
        x = hidden;
        wrong = false;
      }
      want[i * a->keys + t] = x;
      first = x > hidden ? t : first;
      bad = wrong ? t : bad;
    }
    OPI_ASSERT_INT((int64_t)kit_get(&p->notes, 2 * i), first);
    OPI_ASSERT_INT((int64_t)kit_get(&p->notes, 2 * i + 1), bad);
  }
  for (int64_t i = 0; i < p->copy.n; ++i) {
    const kit_tensor one = kit_new(p->copy.dtype, 1);
    kit_set(&one, 0, want[i]);
    OPI_ASSERT(kit_same(&p->copy, i, &one, 0, 1));
  }
}

static void test_prepared(void) {
  for (size_t i = 0; i < FORMS; ++i) {
    for (size_t t = 0; t < TYPES; ++t) {
      if (!kit_covers(i * TYPES + t, 5))
        continue;
      const prepared p = prepare(&forms[i], types[t].mask, types[t].dtype);
      check_prepared(&forms[i], &p, types[t].mask);
      kit_end();
    }
  }
}

/* ---- behind attention ---- */

enum { DEPTH = 40 };

/* The value 1 / n of a row that sees nothing but low numbers, and the largest of these. */
static double share_of(const prepared *p, int64_t row, int64_t seen, double *out_top) {
  double top = hidden, sum = 0;
  for (int64_t t = 0; t < seen; ++t)
    top = fmax(top, kit_get(&p->copy, row * p->args.keys + t));
  for (int64_t t = 0; t < seen; ++t)
    sum += exp(kit_get(&p->copy, row * p->args.keys + t) - top);
  *out_top = top;
  return 1 / sum;
}

static void settle(const form *f, const prepared *p, uint32_t dtype, bool causal, bool grad) {
  const cuda_mask_args *m = &p->args;
  const int64_t rows = f->batch * f->heads * f->queries, n = rows * DEPTH;
  const kit_tensor y = kit_random(dtype, n, 1, -1, 1), dy = kit_random(dtype, n, 2, -1, 1);
  const kit_tensor stats = kit_random(OPIPE_FLOAT, rows, 4, -2, 2), dy_out = kit_new(dtype, n);
  cuda_settle_args args = {.y = y.data,
                           .stats = stats.data,
                           .dy = grad ? dy.data : NULL,
                           .dy_out = grad ? dy_out.data : NULL,
                           .mask = p->copy.data,
                           .notes = p->notes.data,
                           .row_stride = {m->batch > 1 ? m->heads * m->rows : 0,
                                          m->heads > 1 ? m->rows : 0, m->rows > 1 ? 1 : 0},
                           .batch = f->batch,
                           .heads = f->heads,
                           .queries = f->queries,
                           .keys = f->keys,
                           .value_depth = DEPTH,
                           .causal = causal,
                           .half_mask = p->copy.dtype == OPIPE_BFLOAT16};
  const int64_t by_rows[3] = {f->queries * f->heads * DEPTH, DEPTH, f->heads * DEPTH};
  memcpy(args.y_stride, by_rows, sizeof by_rows);
  memcpy(args.dy_stride, by_rows, sizeof by_rows);
  double *want = kit_doubles(n), *want_stats = kit_doubles(rows), *want_dy = kit_doubles(n);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t s = i % f->queries, h = i / f->queries % f->heads, b = i / f->queries / f->heads;
    const int64_t row = b * args.row_stride[0] + h * args.row_stride[1] + s * args.row_stride[2];
    const int64_t seen = causal && s + 1 < f->keys ? s + 1 : f->keys;
    const bool wrong = kit_get(&p->notes, 2 * row + 1) < (double)seen;
    const bool none = !wrong && kit_get(&p->notes, 2 * row) >= (double)seen;
    double share = 1, sum = kit_get(&stats, i);
    if (!wrong && !none && i % 4 == 0) { /* as cuDNN would find it, but for what rounds */
      kit_set(&stats, i, -0x1p100);
      share = share_of(p, row, seen, &sum);
    }
    want_stats[i] = wrong ? (double)NAN : none ? (double)INFINITY : sum;
    for (int64_t d = 0; d < DEPTH; ++d) {
      const int64_t at = b * by_rows[0] + h * by_rows[1] + s * by_rows[2] + d;
      want[at] = wrong ? (double)NAN : none ? 0 : kit_get(&y, at);
      want_dy[i * DEPTH + d] = wrong ? (double)NAN : none ? 0 : kit_get(&dy, at) * share;
    }
  }
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_settle(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &y, &stats, &dy_out);
  KIT_CLOSE(y, want, 1e-9);
  KIT_CLOSE(stats, want_stats, 1e-9);
  if (grad)
    KIT_CLOSE(dy_out, want_dy, 0);
  args.stats = NULL;
  args.dy = NULL;
  OPI_ASSERT_FATAL(cuda_plan_settle(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &y);
  KIT_CLOSE(y, want, 1e-9);
}

static void test_settled(void) {
  for (size_t i = 0; i < FORMS; ++i) {
    for (size_t t = 0; t < TYPES; ++t) {
      if (!kit_covers(i * TYPES + t, 5))
        continue;
      const prepared p = prepare(&forms[i], types[t].mask, types[t].dtype);
      settle(&forms[i], &p, types[t].dtype, i % 2 == 0, t % 2 == 0);
      settle(&forms[i], &p, types[t].dtype, i % 2 != 0, t % 2 != 0);
      kit_end();
    }
  }
}

static void test_what_has_no_launch(void) {
  cuda_launch launch;
  const cuda_mask_args mask = {.batch = 1, .heads = 1, .rows = 1, .keys = 8, .shift = -1};
  cuda_mask_args empty = mask;
  const cuda_settle_args rows = {.batch = 1, .heads = 1, .queries = 1, .keys = 8};
  cuda_settle_args none = rows;
  empty.rows = 0;
  none.queries = 0;
  OPI_ASSERT(cuda_plan_mask(&mask, OPIPE_FLOAT, OPIPE_FLOAT16, &launch));
  OPI_ASSERT(!cuda_plan_mask(&empty, OPIPE_FLOAT, OPIPE_FLOAT16, &launch));
  OPI_ASSERT(!cuda_plan_mask(&mask, OPIPE_BFLOAT16, OPIPE_FLOAT16, &launch));
  OPI_ASSERT(!cuda_plan_mask(&mask, OPIPE_DOUBLE, OPIPE_FLOAT16, &launch));
  OPI_ASSERT(cuda_plan_settle(&rows, OPIPE_FLOAT16, &launch));
  OPI_ASSERT(!cuda_plan_settle(&none, OPIPE_FLOAT16, &launch));
  OPI_ASSERT(!cuda_plan_settle(&rows, OPIPE_FLOAT, &launch));
}

OPI_TEST_MAIN("cuda kernels: masks for cuDNN", OPI_TEST(test_prepared), OPI_TEST(test_settled),
              OPI_TEST(test_what_has_no_launch))
