/* SPDX-License-Identifier: Apache-2.0 */
/* GroupQueryAttention computed: a sequence decoded token by token from its cache gives what one
 * prompt over the whole sequence gives, with rotary embedding, a local window, several tokens at
 * once, sequences of different length in one batch, and a cache that holds a window alone.
 */
#include <math.h>

#include "tests/loader/backend_evaluator.h"
#include "tests/loader/graphs.h"

enum {
  HEADS = 4,
  KV = 2,
  SIZE = 8,
  MAX_POSITIONS = 16,
  Q_WIDTH = HEADS * SIZE,
  KV_WIDTH = KV * SIZE
};

typedef struct step {
  int64_t batch, length, cache, total, window;
  const float *q, *k, *v;       /* [batch, length, heads * SIZE] */
  const float *past_k, *past_v; /* [batch, KV, cache, SIZE], NULL: none */
  const int32_t *lengths;       /* [batch] seqlens_k */
  bool known;                   /* are the lengths known before the run? */
  float *y, *present_k, *present_v;
  bool slides; /* sliding_window_cache */
  bool whole;  /* causal 0 */
  double softcap;
  const float *bias; /* [batch, HEADS, length, total], NULL: none */
  uint32_t flags;    /* OPI_BIND_* */
  uint32_t appends;  /* out: how many opipe.Append the graph has */
} step;

static float table[2][MAX_POSITIONS * SIZE / 2];

static void fill(float *data, size_t n, uint64_t seed) {
  opi_test_random random = {seed};
  for (size_t i = 0; i < n; ++i)
    data[i] = (float)opi_test_uniform(&random, -1, 1);
}

static uint32_t constant(test_graph *t, uint32_t dtype, int64_t rows, int64_t cols, int64_t third,
                         int64_t fourth, const void *data) {
  const int64_t shape[4] = {rows, cols, third, fourth};
  return test_known(t, NULL, dtype, shape, fourth > 0 ? 4 : third > 0 ? 3 : cols > 0 ? 2 : 1, data);
}

/* One GroupQueryAttention through the evaluator. Queries are a graph input, so that nothing is
 * folded. */
static bool run_step(step *s) {
  const opi_evaluator *evaluator = test_backend_evaluator();
  const int64_t q_shape[3] = {s->batch, s->length, Q_WIDTH}, one = 1, n = s->batch;
  const int32_t total = (int32_t)s->total;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bound *bound = NULL;
  test_graph t;
  uint32_t in[11], out[3];
  opipe_attr attrs[7] = {OPI_ATTR_I("num_heads", HEADS),
                         OPI_ATTR_I("kv_num_heads", KV),
                         OPI_ATTR_I("do_rotary", 1),
                         OPI_ATTR_I("local_window_size", s->window),
                         OPI_ATTR_I("sliding_window_cache", s->slides),
                         OPI_ATTR_I("causal", s->whole ? 0 : 1),
                         OPI_ATTR_F("softcap", (float)s->softcap)};
  void *results[3];
  bool good = false;
  test_open(&t);
  in[0] = test_input(&t, "q", OPIPE_FLOAT, q_shape, 3);
  in[1] = constant(&t, OPIPE_FLOAT, s->batch, s->length, KV_WIDTH, 0, s->k);
  in[2] = constant(&t, OPIPE_FLOAT, s->batch, s->length, KV_WIDTH, 0, s->v);
  in[3] = s->past_k != NULL ? constant(&t, OPIPE_FLOAT, s->batch, KV, s->cache, SIZE, s->past_k)
                            : OPIPE_NONE;
  in[4] = s->past_k != NULL ? constant(&t, OPIPE_FLOAT, s->batch, KV, s->cache, SIZE, s->past_v)
                            : OPIPE_NONE;
  in[5] = s->known ? test_known(&t, "lengths", OPIPE_INT32, &n, 1, s->lengths)
                   : test_input(&t, "lengths", OPIPE_INT32, &n, 1);
  in[6] = test_known(&t, "total", OPIPE_INT32, &one, 1, &total);
  in[7] = constant(&t, OPIPE_FLOAT, MAX_POSITIONS, SIZE / 2, 0, 0, table[0]);
  in[8] = constant(&t, OPIPE_FLOAT, MAX_POSITIONS, SIZE / 2, 0, 0, table[1]);
  in[9] = OPIPE_NONE;
  in[10] = s->bias != NULL
               ? constant(&t, OPIPE_FLOAT, s->batch, HEADS, s->length, s->total, s->bias)
               : OPIPE_NONE;
  test_node(&t, "GroupQueryAttention", 1, in, 11, attrs, 7, out, 3)->domain = "com.microsoft";
  for (uint32_t o = 0; o < 3; ++o)
    test_output(&t, out[o]);
  opi_bind_options options = test_options();
  options.evaluator = evaluator;
  options.flags = s->flags;
  if (OPI_ASSERT_OK(opi_bind(&t.model, &options, &bound, &err), &err)) {
    opipe_graph abi;
    opi_arena *arena = &bound->arena;
    s->appends = test_count(bound->graph, "Append");
    if (OPI_ASSERT_OK(opi_graph_to_abi(bound->graph, arena, &abi, &err), &err)) {
      opipe_value *values = opi_arena_copy(arena, abi.values, abi.n_values * sizeof(*values));
      for (uint32_t i = 0; i < bound->graph->n_inputs; ++i) {
        opipe_value *v = &values[bound->graph->inputs[i]];
        v->role = OPIPE_VALUE_CONSTANT;
        v->data = v->dtype == OPIPE_FLOAT ? (const void *)s->q : s->lengths;
      }
      for (uint32_t o = 0; o < 3; ++o) {
        values[bound->graph->outputs[o]].slot = o;
        results[o] = opi_arena_alloc(arena, values[bound->graph->outputs[o]].n_bytes);
      }
      abi.values = values;
      abi.n_boundaries = 3;
      good = OPI_ASSERT_OK(evaluator->run(evaluator->ctx, &abi, results, &err), &err);
      float *const to[3] = {s->y, s->present_k, s->present_v};
      for (uint32_t o = 0; good && o < 3; ++o)
        memcpy(to[o], results[o], values[bound->graph->outputs[o]].n_bytes);
    }
  }
  opi_bound_free(bound);
  test_close(&t);
  return good;
}

/* Copies tokens [from, from + n) of sequences [batch, length, width]. */
static void tokens(const float *all, int64_t batch, int64_t length, int64_t width, int64_t from,
                   int64_t n, float *out) {
  for (int64_t b = 0; b < batch; ++b) {
    memcpy(out + b * n * width, all + (b * length + from) * width,
           (size_t)(n * width) * sizeof(float));
  }
}

enum { BATCH = 2, LENGTH = 7 };

typedef struct sequences {
  float q[BATCH * LENGTH * Q_WIDTH], k[BATCH * LENGTH * KV_WIDTH], v[BATCH * LENGTH * KV_WIDTH];
  float whole[BATCH * LENGTH * Q_WIDTH]; /* the prompt's result */
  float cache_k[BATCH * LENGTH * KV_WIDTH], cache_v[BATCH * LENGTH * KV_WIDTH];
} sequences;

static void fill_table(void) {
  for (size_t i = 0; i < OPI_COUNT(table[0]); ++i) {
    const double angle = (double)(i / (SIZE / 2)) * pow(10.0, -(double)(i % (SIZE / 2)));
    table[0][i] = (float)cos(angle);
    table[1][i] = (float)sin(angle);
  }
}

static bool prompt(sequences *s, int64_t window) {
  static const int32_t lengths[BATCH] = {LENGTH - 1, LENGTH - 1};
  fill_table();
  fill(s->q, OPI_COUNT(s->q), 1);
  fill(s->k, OPI_COUNT(s->k), 2);
  fill(s->v, OPI_COUNT(s->v), 3);
  step all = {BATCH, LENGTH, 0,       LENGTH, window,   s->q,       s->k,      s->v,
              NULL,  NULL,   lengths, true,   s->whole, s->cache_k, s->cache_v};
  return run_step(&all);
}

/* Prompt of `first` tokens, then the rest `n` at a time; compares every row with the whole
 * prompt's. */
static void check_decoding(int64_t first, int64_t n, int64_t window, bool known) {
  static sequences s;
  static float q[BATCH * LENGTH * Q_WIDTH], k[BATCH * LENGTH * KV_WIDTH],
      v[BATCH * LENGTH * KV_WIDTH], y[BATCH * LENGTH * Q_WIDTH];
  static float wanted[BATCH * LENGTH * Q_WIDTH], cache[2][2][BATCH * LENGTH * KV_WIDTH];
  if (!prompt(&s, window))
    return;
  for (int64_t at = 0, now = 0; at < LENGTH; at += now) {
    now = at == 0 ? first : n;
    const int32_t lengths[BATCH] = {(int32_t)(at + now - 1), (int32_t)(at + now - 1)};
    const int64_t side = (at == 0 ? 0 : (at - first) / n + 1) % 2;
    tokens(s.q, BATCH, LENGTH, Q_WIDTH, at, now, q);
    tokens(s.k, BATCH, LENGTH, KV_WIDTH, at, now, k);
    tokens(s.v, BATCH, LENGTH, KV_WIDTH, at, now, v);
    tokens(s.whole, BATCH, LENGTH, Q_WIDTH, at, now, wanted);
    step one = {BATCH,
                now,
                at,
                at + now,
                window,
                q,
                k,
                v,
                at > 0 ? cache[1 - side][0] : NULL,
                cache[1 - side][1],
                lengths,
                known,
                y,
                cache[side][0],
                cache[side][1]};
    if (!run_step(&one))
      return;
    OPI_ASSERT_NEAR(y, wanted, (size_t)(BATCH * now * Q_WIDTH), OPIPE_FLOAT, 1e-5, 1e-5);
  }
}

static void test_decoding_equals_the_prompt(void) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  check_decoding(3, 1, -1, true);
  check_decoding(3, 1, -1, false);
  check_decoding(1, 2, -1, true);
  check_decoding(1, 3, -1, false);
  check_decoding(3, 1, 2, true);
  check_decoding(3, 2, 3, false);
}

/* In a cache that slides, `kept` rows are the newest keys of both sequences, of `at` so far. */
static void check_rows(const sequences *s, const float *present, int64_t capacity, int64_t at,
                       int64_t kept) {
  for (int64_t h = 0; h < BATCH * KV; ++h) {
    OPI_ASSERT_NEAR(present + h * capacity * SIZE, s->cache_k + (h * LENGTH + at - kept) * SIZE,
                    (size_t)(kept * SIZE), OPIPE_FLOAT, 1e-6, 1e-6);
  }
}

/* A prompt of `first` tokens, then `n` at a time, from a cache of `capacity` rows: every row is the
 * whole prompt's. Token by token, a full cache gives up all but the window. */
static void check_sliding(int64_t capacity, int64_t window, int64_t first, int64_t n, bool known) {
  static sequences s;
  static float q[BATCH * LENGTH * Q_WIDTH], k[BATCH * LENGTH * KV_WIDTH],
      v[BATCH * LENGTH * KV_WIDTH], y[BATCH * LENGTH * Q_WIDTH];
  static float wanted[BATCH * LENGTH * Q_WIDTH], cache[2][2][BATCH * LENGTH * KV_WIDTH];
  int64_t kept = 0;
  uint32_t side = 0;
  if (!prompt(&s, window))
    return;
  memset(cache, 0, sizeof cache);
  for (int64_t at = 0, now = 0; at < LENGTH; at += now) {
    now = at == 0 ? first : n;
    const int32_t lengths[BATCH] = {(int32_t)(at + now - 1), (int32_t)(at + now - 1)};
    tokens(s.q, BATCH, LENGTH, Q_WIDTH, at, now, q);
    tokens(s.k, BATCH, LENGTH, KV_WIDTH, at, now, k);
    tokens(s.v, BATCH, LENGTH, KV_WIDTH, at, now, v);
    tokens(s.whole, BATCH, LENGTH, Q_WIDTH, at, now, wanted);
    step one = {.batch = BATCH,
                .length = now,
                .cache = capacity,
                .total = at + now,
                .window = window,
                .q = q,
                .k = k,
                .v = v,
                .past_k = cache[side][0],
                .past_v = cache[side][1],
                .lengths = lengths,
                .known = known,
                .y = y,
                .present_k = cache[1 - side][0],
                .present_v = cache[1 - side][1],
                .slides = true};
    if (!run_step(&one))
      return;
    for (int64_t t = 0; t < now; ++t)
      kept = kept < capacity ? kept + 1 : window;
    OPI_ASSERT_NEAR(y, wanted, (size_t)(BATCH * now * Q_WIDTH), OPIPE_FLOAT, 1e-5, 1e-5);
    side = 1 - side;
    check_rows(&s, cache[side][0], capacity, at + now, kept);
  }
}

static void test_sliding_cache(void) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  check_sliding(3, 3, 1, 1, false);
  check_sliding(3, 2, 1, 2, false);
  check_sliding(4, 2, 5, 1, true);
  check_sliding(2, 2, 3, 4, false); /* more tokens at once than the cache holds */
  check_sliding(5, 1, 7, 1, false);
  check_sliding(LENGTH, 3, 3, 2, true); /* gives up nothing */
}

/* A cache of fewer rows than the window is refused with both numbers. */
static void test_small_sliding_cache(void) {
  const int64_t q_shape[3] = {1, 1, Q_WIDTH}, kv_shape[3] = {1, 1, KV_WIDTH}, one = 1;
  const int64_t past_shape[4] = {1, KV, 3, SIZE};
  const int32_t total = 1;
  opipe_attr attrs[4] = {OPI_ATTR_I("num_heads", HEADS), OPI_ATTR_I("kv_num_heads", KV),
                         OPI_ATTR_I("local_window_size", 4), OPI_ATTR_I("sliding_window_cache", 1)};
  opi_bind_options options = test_options();
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bound *bound = NULL;
  uint32_t out[3];
  test_graph t;
  test_open(&t);
  const uint32_t in[7] = {test_input(&t, "q", OPIPE_FLOAT, q_shape, 3),
                          test_input(&t, "k", OPIPE_FLOAT, kv_shape, 3),
                          test_input(&t, "v", OPIPE_FLOAT, kv_shape, 3),
                          test_input(&t, "past_k", OPIPE_FLOAT, past_shape, 4),
                          test_input(&t, "past_v", OPIPE_FLOAT, past_shape, 4),
                          test_input(&t, "lengths", OPIPE_INT32, &one, 1),
                          test_known(&t, "total", OPIPE_INT32, &one, 1, &total)};
  test_node(&t, "GroupQueryAttention", 1, in, 7, attrs, 4, out, 3)->domain = "com.microsoft";
  test_output(&t, out[0]);
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_INVALID, &err,
                   "input 'past_k' holds 3 keys, it must hold at least local_window_size, 4");
  opi_bound_free(bound);
  test_close(&t);
}

/* Sequence 0 has 6 keys in the cache, sequence 1 only 4 (its cache's rest is rubbish): each sees
 * its own. */
static void test_lengths_differ(void) {
  static sequences s;
  static float q[BATCH * Q_WIDTH], k[BATCH * KV_WIDTH], v[BATCH * KV_WIDTH], y[BATCH * Q_WIDTH];
  static float past[2][BATCH * KV_WIDTH * 6], present[2][BATCH * KV_WIDTH * LENGTH];
  static const int32_t lengths[BATCH] = {6, 4};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  if (!prompt(&s, -1))
    return;
  for (int64_t b = 0; b < BATCH; ++b) { /* the token that comes next is number lengths[b] */
    memcpy(q + b * Q_WIDTH, s.q + (b * LENGTH + lengths[b]) * Q_WIDTH, Q_WIDTH * sizeof(float));
    memcpy(k + b * KV_WIDTH, s.k + (b * LENGTH + lengths[b]) * KV_WIDTH, KV_WIDTH * sizeof(float));
    memcpy(v + b * KV_WIDTH, s.v + (b * LENGTH + lengths[b]) * KV_WIDTH, KV_WIDTH * sizeof(float));
    for (int64_t h = 0; h < KV; ++h) {
      for (int64_t i = 0; i < 6 * SIZE; ++i) {
        const bool rubbish = i / SIZE >= lengths[b];
        past[0][(b * KV + h) * 6 * SIZE + i] =
            rubbish ? 99.0f : s.cache_k[(b * KV + h) * LENGTH * SIZE + i];
        past[1][(b * KV + h) * 6 * SIZE + i] =
            rubbish ? 99.0f : s.cache_v[(b * KV + h) * LENGTH * SIZE + i];
      }
    }
  }
  step one = {BATCH,   1,       6,       7,     -1, q,          k,         v,
              past[0], past[1], lengths, false, y,  present[0], present[1]};
  if (!run_step(&one))
    return;
  for (int64_t b = 0; b < BATCH; ++b) {
    OPI_ASSERT_NEAR(y + b * Q_WIDTH, s.whole + (b * LENGTH + lengths[b]) * Q_WIDTH, Q_WIDTH,
                    OPIPE_FLOAT, 1e-5, 1e-5);
    for (int64_t h = 0; h < KV; ++h) { /* keys stand in order, behind them zeros */
      const float *found = present[0] + (b * KV + h) * LENGTH * SIZE;
      const float *wanted = s.cache_k + (b * KV + h) * LENGTH * SIZE;
      OPI_ASSERT_NEAR(found, wanted, (size_t)((lengths[b] + 1) * SIZE), OPIPE_FLOAT, 1e-6, 1e-6);
      for (int64_t i = (lengths[b] + 1) * SIZE; i < LENGTH * SIZE; ++i)
        OPI_ASSERT(found[i] == 0.0f);
    }
  }
}

typedef struct form {
  int64_t length, cache, total, window;
  bool whole, biased;
  double softcap;
  int32_t lengths[BATCH];
} form;

/* A cache of a fixed size and one that grows, sequences of other lengths, one row and several,
 * windows, a soft cap, a bias, no causality: opipe.Append and lengths give bit by bit what the
 * operators of the standard give. */
static void test_appending_equals_gathering(void) {
  static const form forms[] = {
      {1, 6, 7, -1, false, false, 0, {6, 6}},    {1, 6, 7, -1, false, false, 0, {6, 2}},
      {1, 9, 7, -1, false, false, 0, {3, 6}},    {2, 5, 7, 2, false, false, 0, {6, 4}},
      {3, 12, 8, 3, false, false, 2.5, {7, 2}},  {2, 6, 8, -1, true, false, 0, {7, 3}},
      {1, 6, 7, -1, false, true, 0, {6, 4}},     {2, 12, 9, 2, false, true, 1.5, {8, 1}},
      {1, 12, 12, -1, false, false, 0, {11, 0}}, {4, 0, 4, -1, false, false, 0, {3, 3}}};
  static float data[5][BATCH * 12 * Q_WIDTH], bias[BATCH * HEADS * 12 * 12];
  static float found[2][3][BATCH * 16 * Q_WIDTH];
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  for (uint32_t i = 0; i < 5; ++i)
    fill(data[i], OPI_COUNT(data[i]), 20 + i);
  fill(bias, OPI_COUNT(bias), 30);
  fill_table();
  for (size_t c = 0; c < OPI_COUNT(forms); ++c) {
    const form *f = &forms[c];
    const size_t rows = (size_t)(f->cache > f->total ? f->cache : f->total);
    uint32_t appends[2] = {0, 0};
    for (uint32_t gathers = 0; gathers < 2; ++gathers) {
      step one = {.batch = BATCH, .length = f->length, .cache = f->cache, .total = f->total};
      one.window = f->window;
      one.q = data[0], one.k = data[1], one.v = data[2];
      one.past_k = f->cache > 0 ? data[3] : NULL;
      one.past_v = data[4];
      one.lengths = f->lengths;
      one.whole = f->whole, one.softcap = f->softcap;
      one.bias = f->biased ? bias : NULL;
      one.flags = gathers != 0 ? OPI_BIND_NO_APPEND : 0;
      one.y = found[gathers][0];
      one.present_k = found[gathers][1], one.present_v = found[gathers][2];
      if (!run_step(&one))
        return;
      appends[gathers] = one.appends;
    }
    OPI_ASSERT_INT(appends[0], f->total > f->length ? 2 : 0);
    OPI_ASSERT_INT(appends[1], 0);
    const size_t present = BATCH * rows * KV_WIDTH * sizeof(float);
    OPI_ASSERT(memcmp(found[0][0], found[1][0],
                      (size_t)(BATCH * f->length * Q_WIDTH) * sizeof(float)) == 0);
    OPI_ASSERT(memcmp(found[0][1], found[1][1], present) == 0);
    OPI_ASSERT(memcmp(found[0][2], found[1][2], present) == 0);
  }
}

OPI_TEST_MAIN("grouped attention", OPI_TEST(test_appending_equals_gathering),
              OPI_TEST(test_decoding_equals_the_prompt), OPI_TEST(test_lengths_differ),
              OPI_TEST(test_sliding_cache), OPI_TEST(test_small_sliding_cache))
