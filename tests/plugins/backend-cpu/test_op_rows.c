/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.RowAttention: sequences of unlike lengths that enter in slices, mixed in every pass, give
 * the bits that Attention gives each of them alone, whatever the size of the pages and in whatever
 * order the pages lie; what a row does not see may be NaN. Rows outside the table are refused.
 */
#include <math.h>

#include "backend_test.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
  HEADS = 4,
  KV_HEADS = 2,
  DIM = 20,
  SEQUENCES = 4,
  LONGEST = 270, /* more than a chain of 256 keys */
  ROWS = 37,     /* of a pass */
  CONTEXT = 384,
  POOL = SEQUENCES * CONTEXT
};
static const int64_t lengths[SEQUENCES] = {1, 64, 129, LONGEST};

/* A form of attention. */
typedef struct form {
  int64_t v_dim, window; /* window 0: none */
  double softcap;
  bool slopes;
  const char *kernels;
} form;

typedef struct sequence {
  float q[LONGEST * HEADS * DIM], k[LONGEST * KV_HEADS * DIM], v[LONGEST * KV_HEADS * 64];
  float wanted[LONGEST * HEADS * 64], found[LONGEST * HEADS * 64];
  int64_t done; /* tokens that went through */
} sequence;

static bt_backend backend;
static opipe_device *device;
static sequence sequences[SEQUENCES];
static const float slopes[HEADS] = {0.5f, 0.25f, 1.0f, 0.01f};

static void open_device(const char *options) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, options, 2, 0, &device, &err), &err);
}

static void close_device(void) {
  backend.table->device_close(device);
  bt_close(&backend);
}

/* The sequence alone, by Attention. */
static void attend_alone(const form *f, sequence *s, int64_t n) {
  static float mask[HEADS * LONGEST * LONGEST];
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  bt_init(&g);
  const bool masked = f->window > 0 || f->slopes;
  for (int64_t i = 0; i < HEADS * n * n; ++i) {
    const int64_t row = i / n % n, key = i % n;
    const bool seen = key <= row && (f->window == 0 || key > row - f->window);
    mask[i] = !seen ? -INFINITY : f->slopes ? slopes[i / n / n] * (float)(key - row) : 0.0f;
  }
  const uint32_t q = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, s->q,
                              BT_SHAPE(1, n, HEADS * DIM)),
                 k = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, s->k,
                              BT_SHAPE(1, n, KV_HEADS * DIM)),
                 v = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, s->v,
                              BT_SHAPE(1, n, KV_HEADS * f->v_dim)),
                 y = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, s->wanted,
                              BT_SHAPE(1, n, HEADS * f->v_dim));
  uint32_t m = BT_END;
  if (masked)
    m = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, mask, BT_SHAPE(HEADS, n, n));
  opipe_node *node = bt_node(&g, "Attention", BT_IN(q, k, v, m), BT_OUT(y));
  bt_int(&g, node, "q_num_heads", HEADS);
  bt_int(&g, node, "kv_num_heads", KV_HEADS);
  bt_int(&g, node, "is_causal", masked ? 0 : 1);
  bt_float(&g, node, "scale", 0.3);
  bt_float(&g, node, "softcap", f->softcap);
  OPI_ASSERT_OK_FATAL(bt_run_once(backend.table, device, &g, 0, &err), &err);
}

/* One pass of the row form. */
typedef struct pass {
  float q[ROWS * HEADS * DIM], k[ROWS * KV_HEADS * DIM], v[ROWS * KV_HEADS * 64];
  float y[ROWS * HEADS * 64];
  int64_t position[ROWS], sequence[ROWS], table[SEQUENCES * CONTEXT / 64];
  float keys[POOL * KV_HEADS * DIM], values[POOL * KV_HEADS * 64];
} pass;
static pass now;

static void make_graph(bt_graph *g, const form *f, int64_t page) {
  const int64_t pool = POOL / page, vd = f->v_dim;
  bt_init(g);
  const uint32_t in[8] = {
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, now.q, BT_SHAPE(ROWS, HEADS * DIM)),
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, now.k, BT_SHAPE(ROWS, KV_HEADS * DIM)),
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, now.v, BT_SHAPE(ROWS, KV_HEADS * vd)),
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, now.position, BT_SHAPE(ROWS)),
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, now.sequence, BT_SHAPE(ROWS)),
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, now.table, BT_SHAPE(SEQUENCES, CONTEXT / page)),
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, now.keys, BT_SHAPE(pool, KV_HEADS, page, DIM)),
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, now.values, BT_SHAPE(pool, KV_HEADS, page, vd))};
  const uint32_t y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, now.y,
                              BT_SHAPE(ROWS, HEADS * vd)),
                 kp = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, now.keys,
                               BT_SHAPE(pool, KV_HEADS, page, DIM)),
                 vp = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, now.values,
                               BT_SHAPE(pool, KV_HEADS, page, vd));
  uint32_t biased = BT_END;
  if (f->slopes)
    biased = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, slopes, BT_SHAPE(HEADS));
  opipe_node *node = bt_node(g, "RowAttention",
                             BT_IN(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], biased),
                             BT_OUT(y, kp, vp));
  node->domain = "opipe";
  bt_int(g, node, "num_heads", HEADS);
  bt_int(g, node, "kv_num_heads", KV_HEADS);
  bt_float(g, node, "scale", 0.3);
  bt_float(g, node, "softcap", f->softcap);
  if (f->window > 0)
    bt_int(g, node, "left_window_size", f->window - 1);
}

/* Compiled, with the pages that come out where they come in (boundaries 6 and 7, 9 and 10). */
static opipe_status prepare(const bt_graph *g, bt_run *r, opipe_error *err) {
  const opipe_status s = bt_prepare(backend.table, device, g, OPIPE_COMPILE_POISON, r, err);
  if (s < 0)
    return s;
  backend.table->binding_free(r->binding);
  r->regions[9] = r->regions[6];
  r->regions[10] = r->regions[7];
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients),
                                  .n_boundaries = g->graph.n_boundaries,
                                  .program = r->program,
                                  .arena = {r->arena, 0, r->info.arena_bytes},
                                  .boundaries = r->regions};
  return backend.table->bind(device, &bind, &r->binding, err);
}

/* Fills the pass with slices of sequences, in any order. */
static void fill_pass(const form *f, opi_test_random *random, int64_t slice) {
  const int64_t vd = f->v_dim;
  int64_t r = 0;
  for (int64_t i = 0; i < ROWS; ++i)
    now.sequence[i] = -1;
  const int64_t first = (int64_t)(opi_test_next(random) % SEQUENCES);
  for (int64_t i = 0; i < SEQUENCES; ++i) {
    const int64_t at = (first + i) % SEQUENCES;
    sequence *s = &sequences[at];
    int64_t n = lengths[at] - s->done < slice ? lengths[at] - s->done : slice;
    r += r < ROWS && opi_test_next(random) % 3 == 0; /* a row that is none */
    n = n < ROWS - r ? n : ROWS - r;
    for (int64_t k = 0; k < n; ++k, ++r, ++s->done) {
      memcpy(now.q + r * HEADS * DIM, s->q + s->done * HEADS * DIM, HEADS * DIM * sizeof(float));
      memcpy(now.k + r * KV_HEADS * DIM, s->k + s->done * KV_HEADS * DIM,
             KV_HEADS * DIM * sizeof(float));
      memcpy(now.v + r * KV_HEADS * vd, s->v + s->done * KV_HEADS * vd,
             (size_t)(KV_HEADS * vd) * sizeof(float));
      now.position[r] = s->done;
      now.sequence[r] = at;
    }
  }
}

static void take_results(const form *f) {
  const int64_t n = HEADS * f->v_dim;
  bool zero = true;
  for (int64_t r = 0; r < ROWS; ++r) {
    if (now.sequence[r] >= 0) {
      memcpy(sequences[now.sequence[r]].found + now.position[r] * n, now.y + r * n,
             (size_t)n * sizeof(float));
      continue;
    }
    for (int64_t c = 0; c < n; ++c)
      zero = zero && now.y[r * n + c] == 0;
  }
  OPI_ASSERT(zero);
}

static bool all_done(void) {
  bool done = true;
  for (int64_t i = 0; i < SEQUENCES; ++i)
    done = done && sequences[i].done == lengths[i];
  return done;
}

static void try_mix(const form *f, int64_t page, int64_t slice, bool in_place) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_test_random random = {(uint64_t)(page + slice)};
  bt_graph g;
  bt_run r;
  for (size_t i = 0; i < COUNT(now.keys); ++i)
    now.keys[i] = NAN;
  for (size_t i = 0; i < COUNT(now.values); ++i)
    now.values[i] = NAN;
  for (int64_t p = 0; p < POOL / page; ++p)
    now.table[p] = (p * 7 + 3) % (POOL / page); /* no neighbours; POOL / page is 12 or 24 */
  for (int64_t i = 0; i < SEQUENCES; ++i)
    sequences[i].done = 0;
  make_graph(&g, f, page);
  OPI_ASSERT_OK_FATAL(
      in_place ? prepare(&g, &r, &err) : bt_prepare(backend.table, device, &g, 0, &r, &err), &err);
  while (!all_done()) {
    fill_pass(f, &random, slice);
    OPI_ASSERT_OK_FATAL(bt_step(backend.table, &g, &r, &err), &err);
    take_results(f);
  }
  bt_release(backend.table, &r);
  for (int64_t i = 0; i < SEQUENCES; ++i) {
    const sequence *s = &sequences[i];
    const int64_t n = lengths[i] * HEADS * f->v_dim;
    float most = 0, off = 0;
    for (int64_t k = 0; k < n; ++k) {
      most = fmaxf(most, fabsf(s->wanted[k]));
      off = fmaxf(off, fabsf(s->wanted[k] - s->found[k]));
    }
    if (f->kernels == NULL || strstr(f->kernels, "reference") == NULL)
      OPI_ASSERT(memcmp(s->wanted, s->found, (size_t)n * sizeof(float)) == 0);
    OPI_ASSERT(off <= 1e-6f * most);
  }
}

static void test_mixes(void) {
  static const form forms[] = {
      {32, 0, 0, false, NULL},
      {24, 0, 0, false, NULL},
      {16, 50, 0, false, NULL},
      {16, 0, 0, true, NULL},
      {16, 70, 2, true, NULL},
      {20, 0, 2, false, NULL},
      {16, 50, 2, true, "kernels=reference"},
  };
  static const struct {
    int64_t page, slice;
    bool in_place;
  } ways[] = {{64, 1, true}, {128, 7, true}, {64, 25, false}, {128, LONGEST, true}};
  opi_test_random random = {5};
  for (size_t i = 0; i < SEQUENCES; ++i) {
    opi_test_fill_f32(&random, sequences[i].q, COUNT(sequences[i].q), -2, 2);
    opi_test_fill_f32(&random, sequences[i].k, COUNT(sequences[i].k), -2, 2);
    opi_test_fill_f32(&random, sequences[i].v, COUNT(sequences[i].v), -2, 2);
  }
  for (size_t i = 0; i < COUNT(forms); ++i) {
    open_device(forms[i].kernels);
    for (int64_t s = 0; s < SEQUENCES; ++s)
      attend_alone(&forms[i], &sequences[s], lengths[s]);
    for (size_t w = 0; w < (forms[i].kernels != NULL ? 1 : 2); ++w) {
      const size_t k = (2 + i + w) % COUNT(ways);
      try_mix(&forms[i], ways[k].page, ways[k].slice, ways[k].in_place);
    }
    close_device();
  }
}

/* A page that is copied before a pass holds the same keys and values for another sequence: its next
 * row has the bits of the first's, also where pages are written in place. */
static void test_copies(void) {
  enum { TOKENS = 70, PAGE = 128 };
  static const form f = {16, 0, 0, false, NULL};
  static int64_t copies[2 * 3];
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  bt_run r;
  open_device(NULL);
  make_graph(&g, &f, PAGE);
  const uint32_t c = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, copies, BT_SHAPE(2, 3));
  opipe_node *node = &g.nodes[0];
  uint32_t in[10];
  memcpy(in, node->in, 8 * sizeof *in);
  in[8] = OPIPE_NONE;
  in[9] = c;
  node->in = in;
  node->n_in = 10;
  memset(&now, 0, sizeof now);
  for (size_t i = 0; i < COUNT(now.table); ++i)
    now.table[i] = -1;
  now.table[0] = 2;
  now.table[CONTEXT / PAGE] = 5;
  OPI_ASSERT_OK_FATAL(prepare(&g, &r, &err), &err);
  for (int64_t t = 0; t < TOKENS; t += ROWS - 1) {
    for (int64_t i = 0; i < ROWS; ++i) {
      const bool is = i < ROWS - 1 && t + i < TOKENS;
      now.sequence[i] = is ? 0 : -1;
      now.position[i] = t + i;
      memcpy(now.q + i * HEADS * DIM, sequences[3].q + i * 7, HEADS * DIM * sizeof(float));
      memcpy(now.k + i * KV_HEADS * DIM, sequences[3].k + (t + i) * 5,
             KV_HEADS * DIM * sizeof(float));
      memcpy(now.v + i * KV_HEADS * 16, sequences[3].v + (t + i) * 3,
             KV_HEADS * 16 * sizeof(float));
    }
    copies[0] = copies[3] = -1;
    OPI_ASSERT_OK_FATAL(bt_step(backend.table, &g, &r, &err), &err);
  }
  for (int64_t i = 0; i < ROWS; ++i) { /* the same token for both, after a copy over two pages */
    now.sequence[i] = i < 2 ? i : -1;
    now.position[i] = TOKENS;
    memcpy(now.q + i * HEADS * DIM, sequences[2].q, HEADS * DIM * sizeof(float));
    memcpy(now.k + i * KV_HEADS * DIM, sequences[2].k, KV_HEADS * DIM * sizeof(float));
    memcpy(now.v + i * KV_HEADS * 16, sequences[2].v, KV_HEADS * 16 * sizeof(float));
  }
  const int64_t two[6] = {2, 7, TOKENS, 7, 5, TOKENS};
  memcpy(copies, two, sizeof copies);
  OPI_ASSERT_OK_FATAL(bt_step(backend.table, &g, &r, &err), &err);
  OPI_ASSERT(memcmp(now.y, now.y + HEADS * 16, HEADS * 16 * sizeof(float)) == 0);
  OPI_ASSERT(now.y[0] != 0);
  copies[1] = POOL / PAGE;
  OPI_ASSERT(bt_step(backend.table, &g, &r, &err) == OPIPE_E_INVALID);
  OPI_ASSERT(strstr(err.message, "copy 0 is of 70 tokens from page 2 to page 12") != NULL);
  bt_release(backend.table, &r);
  close_device();
}

/* One row of a pass, changed to what cannot be. */
static void test_refusals(void) {
  static const form plain = {16, 0, 0, false, NULL};
  static const struct {
    int64_t position, sequence, page;
    const char *why;
  } rows[] = {{0, SEQUENCES, 0, "row 5 is of sequence 4, the table has 4"},
              {CONTEXT, 1, 0, "row 5 is at position 384, 0 to 383 have pages"},
              {-1, 1, 0, "row 5 is at position -1"},
              {64, 1, 24, "row 5 needs page 1 of sequence 1, which is 24 of 24"},
              {64, 1, -1, "row 5 needs page 1 of sequence 1, which is -1 of 24"}};
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  open_device(NULL);
  for (size_t i = 0; i < COUNT(rows); ++i) {
    memset(&now, 0, sizeof now);
    for (int64_t r = 0; r < ROWS; ++r)
      now.sequence[r] = -1;
    now.sequence[5] = rows[i].sequence;
    now.position[5] = rows[i].position;
    now.table[CONTEXT / 64 + 1] = rows[i].page;
    make_graph(&g, &plain, 64);
    OPI_ASSERT_ERROR(bt_run_once(backend.table, device, &g, 0, &err), OPIPE_E_INVALID, &err,
                     rows[i].why);
  }
  make_graph(&g, &plain, 96);
  OPI_ASSERT_ERROR(bt_run_once(backend.table, device, &g, 0, &err), OPIPE_E_UNSUPPORTED, &err,
                   "a page has 96 tokens, no multiple of 64");
  close_device();
}

OPI_TEST_MAIN("backend-cpu row attention", OPI_TEST(test_mixes), OPI_TEST(test_copies),
              OPI_TEST(test_refusals))
