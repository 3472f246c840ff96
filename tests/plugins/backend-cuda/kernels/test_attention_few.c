/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Attention of few rows by parts of the keys: every form against plain loops in double; a row's
 * bits, whatever stands beside it; what is hidden. */
#include "attention.h"

enum { PART = 64 }; /* keys */

static bool is_few(const char *kernel) {
  return strncmp(kernel, "opipe_attention_few_", strlen("opipe_attention_few_")) == 0;
}

/* Does the last block to arrive join the parts? Blocks that share counters leave them at 0. */
static void run_at_once(cuda_attention_args args, uint32_t dtype, const kit_tensor *wanted) {
  static const uint32_t none[CUDA_COUNTERS];
  const uint32_t n = cuda_attention_counters(&args, dtype);
  const int64_t rows = args.queries * (args.heads / args.kv_heads);
  const kit_tensor y = kit_new(dtype, wanted->n);
  cuda_launch launches[CUDA_ATTENTION_LAUNCHES];
  OPI_ASSERT_INT(n, args.keys > PART && rows <= 2 ? args.batch * args.kv_heads : 0);
  args.counters = kit_placed(none, n * sizeof none[0]);
  args.y = y.data;
  OPI_ASSERT_INT(plan(&args, dtype, launches), n > 0 || args.keys <= PART ? 1 : 2);
  if (n == 0)
    return;
  KIT_RUN(launches, 1, &y);
  OPI_ASSERT(kit_same(&y, 0, wanted, 0, y.n));
  OPI_ASSERT(memcmp(args.counters, none, n * sizeof none[0]) == 0);
}

/* Runs it, by one launch and by two. */
static void run(cuda_attention_args args, uint32_t dtype, const kit_tensor *y) {
  cuda_launch launches[CUDA_ATTENTION_LAUNCHES];
  args.y = y->data;
  const uint32_t n = plan(&args, dtype, launches);
  OPI_ASSERT_FATAL(n > 0 && is_few(launches[0].kernel));
  OPI_ASSERT_INT(n, args.keys > PART ? 2 : 1);
  KIT_RUN(launches, n, y);
  run_at_once(args, dtype, y);
}

static const form forms[] = {
    {1, 2, 1, 1, 1, 31, 64, 64, 1, 0, 0, 0, 0, false}, /* one part */
    {3, 8, 1, 1, 1, 63, 80, 72, 1, 0, 0, 0, 0, false},
    {1, 1, 1, 8, 64, 0, 16, 8, 1, 0, 0, 0, 0, true},
    {2, 4, 2, 1, 1, 64, 64, 64, 1, 0, 0, 0, 0, false}, /* a part of one key */
    {1, 2, 1, 1, 1, 512, 128, 128, 1, 0, 0, 0, 0, false},
    {1, 2, 1, 4, 4, 130, 128, 96, 1, 0, 0, 0, 0, false},
    {2, 4, 1, 2, 200, 0, 64, 128, 0, 1, 0, 0, 0, false}, /* masks */
    {2, 2, 1, 3, 150, 0, 32, 40, 0, 2, 2, 0, 5, false},
    {1, 4, 1, 2, 129, 0, 128, 128, 1, 3, 5, 3, 0, false},
    {1, 2, 2, 4, 90, 50, 64, 64, 1, 2, 7, 70, 0, false},
    {3, 2, 2, 2, 190, 0, 64, 64, 0, 0, 0, 0, 2.5, true},
    {3, 2, 1, 1, 130, 70, 104, 64, 0, 3, 0, 0, 0, true},
    {1, 1, 1, 1, 1, 2200, 16, 24, 1, 0, 0, 0, 0, false}, /* more parts than are under way */
};

static void test_few_rows(void) {
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
    for (int t = 0; t < 3; ++t) {
      if (!kit_covers(i * 3 + (size_t)t, 5))
        continue;
      const problem p = make(&forms[i], kit_types[t]);
      forward(&p, &forms[i], 4);
      run(p.args, p.dtype, &p.y);
      kit_end();
    }
  }
}

/* One row of a problem by itself: batch b, head h, query s. */
static void run_alone(const problem *p, int64_t b, int64_t h, int64_t s, const kit_tensor *y) {
  cuda_attention_args a = p->args;
  const int64_t kv = h / (a.heads / a.kv_heads), size = p->q.bytes;
  a.q = (const char *)a.q + at_of(a.q_stride, b, h, s) * size;
  a.k = (const char *)a.k + at_of(a.k_stride, b, kv, 0) * size;
  a.v = (const char *)a.v + at_of(a.v_stride, b, kv, 0) * size;
  a.past_k = (const char *)a.past_k + at_of(a.past_k_stride, b, kv, 0) * size;
  a.past_v = (const char *)a.past_v + at_of(a.past_v_stride, b, kv, 0) * size;
  a.keys = a.past + s + 1;
  a.batch = a.heads = a.kv_heads = a.queries = 1;
  a.causal = 0;
  run(a, p->dtype, y);
}

/* A row's bits depend on its own keys alone: not on what is of its batch, its group or its call,
 * nor on keys that it does not see, here or in further parts. */
static void test_rows_alone(void) {
  static const form whole[] = {{3, 4, 2, 4, 4, 124, 64, 48, 1, 0, 0, 0, 0, false},
                               {1, 2, 1, 3, 3, 61, 128, 128, 1, 0, 0, 0, 0, false}};
  for (int t = 0; t < 3; ++t) {
    for (int which = 0; which < 2; ++which) {
      const form *f = &whole[which];
      const problem p = make(f, kit_types[t]);
      const kit_tensor one = kit_new(p.dtype, f->value_depth);
      run(p.args, p.dtype, &p.y);
      for (int64_t i = 0; i < f->batch * f->heads * f->queries; ++i) {
        const int64_t b = i / f->queries / f->heads, h = i / f->queries % f->heads;
        if (!kit_covers((size_t)i, 7))
          continue;
        run_alone(&p, b, h, i % f->queries, &one);
        OPI_ASSERT(kit_same(&one, 0, &p.y, at_of(p.args.y_stride, b, h, i % f->queries), one.n));
      }
      kit_end();
    }
  }
}

/* Few of many keys: the bits of a call that has no others; what lies behind them is not read. */
static void test_hidden_keys(void) {
  static const form padded = {1, 2, 1, 2, 300, 0, 64, 64, 0, 0, 0, 0, 0, true};
  for (int t = 0; t < 3; ++t) {
    for (int64_t seen = 0; seen < 140; seen += 45) {
      const problem own = make(&padded, kit_types[t]);
      const kit_tensor one = kit_new(own.dtype, own.y.n);
      for (int64_t i = seen * 64; i < own.k.n; ++i) {
        kit_set(&own.k, i, (double)NAN);
        kit_set(&own.v, i, (double)NAN);
      }
      kit_set(&own.nonpad, 0, (double)seen);
      run(own.args, own.dtype, &own.y);
      for (int64_t i = 0; i < own.y.n; ++i)
        OPI_ASSERT(seen == 0 ? kit_get(&own.y, i) == 0 : isfinite(kit_get(&own.y, i)));
      if (seen >= 32) {
        cuda_attention_args a = own.args;
        a.keys = a.mask_keys = seen;
        a.nonpad = NULL;
        run(a, own.dtype, &one);
        OPI_ASSERT(kit_same(&own.y, 0, &one, 0, one.n));
      }
    }
    kit_end();
  }
}

/* A row of which a mask hides every key is 0; a value whose key it hides is left out. */
static void test_masked_rows(void) {
  static const form masked = {1, 1, 1, 3, 130, 0, 64, 64, 0, 1, 0, 0, 0, false};
  static const form lowest = {1, 2, 1, 3, 100, 0, 64, 64, 0, 3, 3, 0, 0, false};
  for (int t = 0; t < 3; ++t) {
    const problem p = make(&masked, kit_types[t]);
    for (int64_t j = 0; j < 3 * 130; ++j)
      kit_set(&p.mask, j, j >= 130 && j % 130 != 100);
    for (int64_t d = 0; d < 64; ++d)
      kit_set(&p.v, 100 * 64 + d, (double)NAN);
    run(p.args, p.dtype, &p.y);
    for (int64_t i = 0; i < p.y.n; ++i)
      OPI_ASSERT(i < 64 ? kit_get(&p.y, i) == 0 : isfinite(kit_get(&p.y, i)));
    const problem low = make(&lowest, kit_types[t]); /* no exponential holds the scores' sum */
    for (int64_t j = 0; j < 100; ++j)
      kit_set(&low.mask, 100 + j, -3.4e38);
    forward(&low, &lowest, 4);
    kit_end();
  }
}

/* Q, K and V as columns of one tensor, and the result as rows of [batch, heads, queries, depth]. */
static void test_packed_operands(void) {
  static const form dense = {2, 2, 2, 4, 90, 0, 64, 64, 0, 0, 0, 0, 0, false};
  for (int t = 0; t < 3; ++t) {
    const problem p = make(&dense, kit_types[t]);
    cuda_attention_args a = p.args;
    const int64_t wide = 2 * 64, row = 3 * wide, size = p.q.bytes;
    const kit_tensor all = kit_new(p.dtype, 2 * 90 * row), y = kit_new(p.dtype, p.y.n);
    char *to = all.data;
    for (int64_t i = 0; i < 2 * 90; ++i) {
      if (i % 90 < 4) {
        memcpy(to + i * row * size, (char *)p.q.data + (i / 90 * 4 + i % 90) * wide * size,
               (size_t)(wide * size));
      }
      memcpy(to + (i * row + wide) * size, (char *)p.k.data + i * wide * size,
             (size_t)(wide * size));
      memcpy(to + (i * row + 2 * wide) * size, (char *)p.v.data + i * wide * size,
             (size_t)(wide * size));
    }
    const int64_t packed[3] = {90 * row, 64, row}, heads_first[3] = {2 * 4 * 64, 4 * 64, 64};
    run(a, p.dtype, &p.y);
    a.q = to;
    a.k = to + wide * size;
    a.v = to + 2 * wide * size;
    memcpy(a.q_stride, packed, sizeof packed);
    memcpy(a.k_stride, packed, sizeof packed);
    memcpy(a.v_stride, packed, sizeof packed);
    memcpy(a.y_stride, heads_first, sizeof heads_first);
    run(a, p.dtype, &y);
    for (int64_t i = 0; i < 2 * 4 * 2; ++i) { /* batch, query, head */
      const int64_t b = i / 8, s = i / 2 % 4, h = i % 2;
      OPI_ASSERT(kit_same(&p.y, i * 64, &y, at_of(heads_first, b, h, s), 64));
    }
    kit_end();
  }
}

/* The limits of "few": rows, keys and packets; neither sums nor scores asked for. */
static void test_which_are_few(void) {
  static const form fitting = {1, 4, 2, 4, 40, 0, 64, 64, 0, 0, 0, 0, 0, false};
  cuda_launch launches[CUDA_ATTENTION_LAUNCHES];
  for (int t = 0; t < KIT_TYPES; ++t) {
    const problem p = make(&fitting, kit_types[t]);
    for (int which = 0; which < 9; ++which) {
      cuda_attention_args args = p.args;
      args.depth = which == 1 ? 58 : which == 2 ? 136 : args.depth;
      args.k_stride[2] += which == 3 ? 2 : 0;
      args.q = which == 4 ? (const char *)args.q + 8 : args.q;
      args.keys = which == 5 ? 31 : args.keys;
      args.scores = which == 6 ? p.y.data : NULL;
      args.found = which == 7 ? p.y.data : NULL;
      args.queries = which == 8 ? 5 : args.queries;
      OPI_ASSERT(cuda_plan_attention(&args, p.dtype, launches) == 1);
      OPI_ASSERT_INT(is_few(launches[0].kernel), which == 0 && p.dtype != OPIPE_DOUBLE);
    }
    kit_end();
  }
}

OPI_TEST_MAIN("cuda_attention_few", OPI_TEST(test_few_rows), OPI_TEST(test_rows_alone),
              OPI_TEST(test_hidden_keys), OPI_TEST(test_masked_rows),
              OPI_TEST(test_packed_operands), OPI_TEST(test_which_are_few))
