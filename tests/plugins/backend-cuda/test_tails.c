/* SPDX-License-Identifier: Apache-2.0 */
/* Tails of products (rows, addends, GELU and its derivative, Split), and values that lie in another
 * one: as many steps as are left, with the results of the nodes one by one. */
#include <math.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { ROWS = 5, DEEP = 4, WIDE = 8, CELLS = ROWS * WIDE };

static uint16_t brain(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float wide(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float out = 0;
  memcpy(&out, &bits, sizeof out);
  return out;
}

/* -1, -1/2, 0 or 1/2: sums of some products are exact. */
static void draw(uint16_t *out, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out[i] = brain((float)(int)(seed >> 30) / 2.0f - 1.0f);
  }
}

/* Steps of the program; its outputs are where the graph says. */
static uint32_t run_graph(const opipe_backend *t, opipe_device *device, const bt_graph *g,
                          uint32_t flags) {
  bt_run run;
  ct_run(t, device, g, flags, 1, &run);
  const uint32_t n = run.info.n_kernels;
  bt_release(t, &run);
  return n;
}

/* ---- tails ---- */

static uint16_t some_x[ROWS * DEEP], some_w[DEEP * WIDE], some_row[WIDE], some_c[CELLS];

typedef enum form {
  ROW_AND_ADDEND,  /* p + row + c */
  ADDEND_THEN_ROW, /* c + p + row */
  ADDEND_BY_VIEW,  /* c + [1, ROWS, WIDE] of p */
  ADDEND_DIES,     /* -(p + relu(c)): written over */
  ADDEND_IS_X,     /* -(p of x + x), of a square product: not written over */
  TWICE,           /* p + p */
  TWO_PRODUCTS,    /* p + row + (p of c) */
  GEMM_AND_ADDEND, /* Gemm(x, w, row) + c */
  GELU,            /* gelu(p + row) */
  GELU_KEEPS,      /* p + row; gelu of it */
  GELU_KEEPS_TEMP, /* gelu(p + row); -(p + row) behind it */
  GELU_IS_SECOND,  /* -(p + row); gelu(p + row) behind it */
  GELU_BY_ERF,
  GELU_OF_FLOAT,
  GELU_OF_SIX, /* columns */
  GELU_ADDED,  /* gelu(p + c) */
  DERIVATIVE,  /* of gelu at c, times p */
  DERIVATIVE_OF_ROW,
  CASES
} form;

static const struct {
  uint32_t steps, alone; /* all that are left; one by one */
} wanted[CASES] = {{1, 3}, {1, 3}, {1, 2}, {3, 4}, {3, 4}, {2, 2}, {2, 4}, {1, 2}, {1, 3},
                   {1, 3}, {2, 4}, {3, 4}, {2, 3}, {2, 3}, {2, 3}, {2, 3}, {1, 2}, {2, 3}};

typedef struct maker {
  bt_graph g;
  uint32_t dtype;
  int64_t columns;
  uint32_t x, w, row, c;
} maker;

static uint32_t make(maker *m, uint32_t role, void *data) {
  return bt_value(&m->g, role, m->dtype, data, BT_SHAPE(ROWS, m->columns));
}

static uint32_t temp(maker *m) {
  return make(m, OPIPE_VALUE_TEMP, NULL);
}

static uint32_t sum(maker *m, uint32_t a, uint32_t b, uint32_t to) {
  (void)bt_node(&m->g, "Add", BT_IN(a, b), BT_OUT(to));
  return to;
}

static uint32_t product(maker *m, uint32_t x) {
  const uint32_t p = temp(m);
  (void)bt_node(&m->g, "MatMul", BT_IN(x, m->w), BT_OUT(p));
  return p;
}

static void one(maker *m, const char *op, uint32_t from, uint32_t to) {
  opipe_node *node = bt_node(&m->g, op, BT_IN(from), BT_OUT(to));
  if (strcmp(op, "Gelu") == 0)
    bt_text(&m->g, node, "approximate", "tanh");
}

static void make_added(maker *m, form which, uint32_t y) {
  bt_graph *g = &m->g;
  uint32_t p = OPIPE_NONE, q = OPIPE_NONE;
  switch (which) {
    case ADDEND_THEN_ROW:
      (void)sum(m, sum(m, m->c, product(m, m->x), temp(m)), m->row, y);
      break;
    case ADDEND_BY_VIEW:
      p = product(m, m->x);
      q = bt_value(g, OPIPE_VALUE_TEMP, m->dtype, NULL, BT_SHAPE(1, ROWS, WIDE));
      (void)bt_node(g, "Reshape", BT_IN(p), BT_OUT(q));
      g->values[m->c].shape = g->values[y].shape = g->values[q].shape;
      g->values[m->c].rank = g->values[y].rank = 3;
      (void)sum(m, m->c, q, y);
      break;
    case ADDEND_DIES:
      q = temp(m);
      one(m, "Relu", m->c, q);
      p = sum(m, product(m, m->x), q, temp(m));
      one(m, "Neg", p, y);
      break;
    case ADDEND_IS_X:
      q = temp(m);
      one(m, "Relu", m->c, q);
      one(m, "Neg", sum(m, product(m, q), q, temp(m)), y);
      break;
    case TWICE:
      p = product(m, m->x);
      (void)sum(m, p, p, y);
      break;
    case TWO_PRODUCTS:
      p = sum(m, product(m, m->x), m->row, temp(m));
      (void)sum(m, p, product(m, m->x), y);
      break;
    case GEMM_AND_ADDEND:
      p = temp(m);
      (void)bt_node(g, "Gemm", BT_IN(m->x, m->w, m->row), BT_OUT(p));
      (void)sum(m, p, m->c, y);
      break;
    default:
      (void)sum(m, sum(m, product(m, m->x), m->row, temp(m)), m->c, y);
  }
}

static void make_through(maker *m, form which, uint32_t y, void *more) {
  bt_graph *g = &m->g;
  const uint32_t p = product(m, m->x);
  const bool keeps = which == GELU_KEEPS, behind = which == GELU_KEEPS_TEMP;
  const uint32_t z =
      keeps || behind || which == GELU_IS_SECOND ? make(m, OPIPE_VALUE_OUTPUT, more) : OPIPE_NONE;
  opipe_node *node = NULL;
  if (which == DERIVATIVE || which == DERIVATIVE_OF_ROW) {
    const uint32_t dy = which == DERIVATIVE ? p : sum(m, p, m->row, temp(m));
    node = bt_node(g, "ActivationGrad", BT_IN(dy, m->c), BT_OUT(y));
    node->domain = "opipe";
    bt_text(g, node, "activation", "GeluTanh");
    return;
  }
  const uint32_t f = sum(m, p, which == GELU_ADDED ? m->c : m->row, keeps ? z : temp(m));
  if (which == GELU_IS_SECOND)
    one(m, "Neg", f, z);
  if (which == GELU_BY_ERF)
    (void)bt_node(g, "Gelu", BT_IN(f), BT_OUT(y));
  else
    one(m, "Gelu", f, y);
  if (behind)
    one(m, "Neg", f, z);
}

/* y, more: [CELLS] of the type */
static void make_graph(maker *m, form which, void *y, void *more) {
  static float x[ROWS * DEEP], w[DEEP * WIDE], row[WIDE], c[CELLS];
  const bool wide_types = which == GELU_OF_FLOAT;
  memset(m, 0, sizeof *m);
  bt_init(&m->g);
  for (int i = 0; i < ROWS * DEEP; ++i)
    x[i] = wide(some_x[i]);
  for (int i = 0; i < DEEP * WIDE; ++i)
    w[i] = wide(some_w[i]);
  for (int i = 0; i < WIDE; ++i)
    row[i] = wide(some_row[i]);
  for (int i = 0; i < CELLS; ++i)
    c[i] = wide(some_c[i]);
  m->dtype = wide_types ? OPIPE_FLOAT : OPIPE_BFLOAT16;
  m->columns = which == GELU_OF_SIX ? 6 : which == ADDEND_IS_X ? DEEP : WIDE;
  m->x = bt_value(&m->g, OPIPE_VALUE_INPUT, m->dtype, wide_types ? (void *)x : (void *)some_x,
                  BT_SHAPE(ROWS, DEEP));
  m->w = bt_value(&m->g, OPIPE_VALUE_PARAMETER, m->dtype, wide_types ? (void *)w : (void *)some_w,
                  BT_SHAPE(DEEP, m->columns));
  m->row = bt_value(&m->g, OPIPE_VALUE_INPUT, m->dtype, wide_types ? (void *)row : (void *)some_row,
                    BT_SHAPE(m->columns));
  m->c = make(m, OPIPE_VALUE_INPUT, wide_types ? (void *)c : (void *)some_c);
  const uint32_t to = make(m, OPIPE_VALUE_OUTPUT, y);
  if (which < GELU)
    make_added(m, which, to);
  else
    make_through(m, which, to, more);
}

static void expect_close(const void *got, const void *plain, uint32_t dtype, bool exact) {
  for (int i = 0; i < CELLS; ++i) {
    const bool brains = dtype == OPIPE_BFLOAT16;
    const float a = brains ? wide(((const uint16_t *)got)[i]) : ((const float *)got)[i];
    const float b = brains ? wide(((const uint16_t *)plain)[i]) : ((const float *)plain)[i];
    OPI_ASSERT(exact ? a == b : fabsf(a - b) <= 0.008f * fabsf(b) + 1e-3f);
  }
}

static void test_products_do_along(void) {
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  draw(some_x, ROWS * DEEP, 1);
  draw(some_w, DEEP * WIDE, 2);
  draw(some_row, WIDE, 3);
  draw(some_c, CELLS, 4);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none", 1, 0, &device, &err), &err);
  for (form which = 0; which < CASES; ++which) {
    uint32_t y[2][CELLS] = {{0}}, more[2][CELLS] = {{0}};
    for (int alone = 0; alone < 2; ++alone) {
      maker m;
      make_graph(&m, which, y[alone], more[alone]);
      const uint32_t flags = OPIPE_COMPILE_POISON | (alone ? (uint32_t)OPIPE_COMPILE_NO_FUSE : 0u);
      const uint32_t n = run_graph(b.base.table, device, &m.g, flags);
      OPI_ASSERT_INT(n, alone ? wanted[which].alone : wanted[which].steps);
    }
    const uint32_t dtype = which == GELU_OF_FLOAT ? OPIPE_FLOAT : OPIPE_BFLOAT16;
    expect_close(y[0], y[1], dtype, which < GELU);
    expect_close(more[0], more[1], dtype, true);
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

/* By the kernel for few rows, which takes along all but derivatives, in a launch each. */
static void test_few_rows_do_along(void) {
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none,few_rows=8", 1, 0, &device, &err), &err);
  for (form which = 0; which < CASES; ++which) {
    uint32_t y[3][CELLS] = {{0}}, more[3][CELLS] = {{0}};
    for (uint32_t i = 0; i < 3; ++i) {
      maker m;
      make_graph(&m, which, y[i], more[i]);
      if (i == 2) { /* one row less than it has; the library's product */
        b.base.table->device_close(device);
        OPI_ASSERT_OK_FATAL(bt_device(&b.base, "few_rows=4", 1, 0, &device, &err), &err);
      }
      const uint32_t flags = i == 1 ? (uint32_t)OPIPE_COMPILE_NO_FUSE : OPIPE_COMPILE_POISON;
      const uint32_t n = run_graph(b.base.table, device, &m.g, flags);
      if (i != 1)
        OPI_ASSERT_INT(n, wanted[which].steps);
    }
    b.base.table->device_close(device);
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none,few_rows=8", 1, 0, &device, &err), &err);
    const uint32_t dtype = which == GELU_OF_FLOAT ? OPIPE_FLOAT : OPIPE_BFLOAT16;
    for (int i = 1; i < 3; ++i) {
      expect_close(y[0], y[i], dtype, false);
      expect_close(more[0], more[i], dtype, true);
    }
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

/* ---- Split: as products ---- */

enum {
  MANY = 4096,
  PART = 1032,
  THIN = 8
}; /* the second part's row is at a multiple of 16 bytes */

/* A part is large, or it is half as large; of W or its transpose. */
static uint32_t run_split(const opipe_backend *t, opipe_device *device, int64_t rows, bool turned,
                          uint32_t flags, uint16_t *a, uint16_t *b) {
  static uint16_t x[MANY * THIN], w[THIN * 2 * PART], row[2 * PART];
  static const int64_t halves[2] = {PART, PART};
  bt_graph g;
  bt_init(&g);
  draw(x, MANY * THIN, 5);
  draw(w, THIN * 2 * PART, 6);
  draw(row, 2 * PART, 7);
  const uint32_t type = OPIPE_BFLOAT16;
  const uint32_t from = bt_value(&g, OPIPE_VALUE_INPUT, type, x, BT_SHAPE(rows, THIN));
  const uint32_t by = turned
                          ? bt_value(&g, OPIPE_VALUE_PARAMETER, type, w, BT_SHAPE(2 * PART, THIN))
                          : bt_value(&g, OPIPE_VALUE_PARAMETER, type, w, BT_SHAPE(THIN, 2 * PART));
  const uint32_t bias = bt_value(&g, OPIPE_VALUE_PARAMETER, type, row, BT_SHAPE(2 * PART));
  const uint32_t lengths = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, halves, BT_SHAPE(2));
  const uint32_t p = bt_value(&g, OPIPE_VALUE_TEMP, type, NULL, BT_SHAPE(rows, 2 * PART));
  const uint32_t q = bt_value(&g, OPIPE_VALUE_TEMP, type, NULL, BT_SHAPE(rows, 2 * PART));
  const uint32_t left = bt_value(&g, OPIPE_VALUE_OUTPUT, type, a, BT_SHAPE(rows, PART));
  const uint32_t right = bt_value(&g, OPIPE_VALUE_OUTPUT, type, b, BT_SHAPE(rows, PART));
  opipe_node *node = bt_node(&g, turned ? "FusedMatMul" : "MatMul", BT_IN(from, by), BT_OUT(p));
  if (turned) {
    node->domain = "com.microsoft";
    bt_int(&g, node, "transB", 1);
  }
  (void)bt_node(&g, "Add", BT_IN(p, bias), BT_OUT(q));
  bt_int(&g, bt_node(&g, "Split", BT_IN(q, lengths), BT_OUT(left, right)), "axis", 1);
  return run_graph(t, device, &g, flags);
}

static void test_large_splits_are_products(void) {
  static uint16_t got[2][MANY * PART], plain[2][MANY * PART];
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none", 1, 0, &device, &err), &err);
  const opipe_backend *t = b.base.table;
  for (int turned = 0; turned < 2; ++turned) {
    OPI_ASSERT_INT(run_split(t, device, MANY, turned, 0, got[0], got[1]), 2);
    OPI_ASSERT_INT(run_split(t, device, MANY, turned, OPIPE_COMPILE_NO_FUSE, plain[0], plain[1]),
                   4);
    OPI_ASSERT(memcmp(got, plain, sizeof got) == 0); /* all of it is exact */
  }
  OPI_ASSERT_INT(run_split(t, device, MANY / 2, false, 0, got[0], got[1]), 3);
  t->device_close(device);
  bt_close(&b.base);
}

/* ---- parts ---- */

enum { BATCH = 2, TOKENS = 40, HEADS = 2, MOST = 3 * 16 };
typedef enum place { IN_PARTS, SHIFTED /* not at 16 bytes */, READ_ELSEWHERE, HANDED_ON } place;

/* Attention of thirds of qkv, and its gradients put together. */
static uint32_t run_parts(const opipe_backend *t, opipe_device *device, place lying, uint32_t flags,
                          uint16_t *y, uint16_t *dqkv, uint16_t *more) {
  static uint16_t qkv[BATCH * TOKENS * MOST], dy[BATCH * TOKENS * MOST];
  const int64_t width = lying == SHIFTED ? 12 : 16;
  const int64_t thirds[3] = {width, width, width};
  const uint32_t type = OPIPE_BFLOAT16, inner = OPIPE_VALUE_TEMP;
  uint32_t q[3], dq[3];
  bt_graph g;
  bt_init(&g);
  draw(qkv, sizeof qkv / 2, 8);
  draw(dy, sizeof dy / 2, 9);
  const uint32_t x = bt_value(&g, OPIPE_VALUE_INPUT, type, qkv, BT_SHAPE(BATCH, TOKENS, 3 * width));
  const uint32_t down = bt_value(&g, OPIPE_VALUE_INPUT, type, dy, BT_SHAPE(BATCH, TOKENS, width));
  const uint32_t lengths = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, thirds, BT_SHAPE(3));
  for (uint32_t i = 0; i < 3; ++i) {
    const bool out = i == 1 && lying == HANDED_ON;
    q[i] = bt_value(&g, out ? (uint32_t)OPIPE_VALUE_OUTPUT : inner, type, out ? more : NULL,
                    BT_SHAPE(BATCH, TOKENS, width));
    dq[i] = bt_value(&g, inner, type, NULL, BT_SHAPE(BATCH, TOKENS, width));
  }
  const uint32_t to = bt_value(&g, OPIPE_VALUE_OUTPUT, type, y, BT_SHAPE(BATCH, TOKENS, width));
  const uint32_t dx = bt_value(&g, inner, type, NULL, BT_SHAPE(BATCH, TOKENS, 3 * width));
  const uint32_t out =
      bt_value(&g, OPIPE_VALUE_OUTPUT, type, dqkv, BT_SHAPE(BATCH, TOKENS, 3 * width));
  bt_int(&g, bt_node(&g, "Split", BT_IN(x, lengths), BT_OUT(q[0], q[1], q[2])), "axis", 2);
  opipe_node *forward = bt_node(&g, "Attention", BT_IN(q[0], q[1], q[2]), BT_OUT(to));
  opipe_node *backward =
      bt_node(&g, "AttentionGrad", BT_IN(down, q[0], q[1], q[2]), BT_OUT(dq[0], dq[1], dq[2]));
  backward->domain = "opipe";
  for (int i = 0; i < 2; ++i) {
    bt_int(&g, i == 0 ? forward : backward, "q_num_heads", HEADS);
    bt_int(&g, i == 0 ? forward : backward, "kv_num_heads", HEADS);
    bt_int(&g, i == 0 ? forward : backward, "is_causal", 1);
  }
  bt_int(&g, bt_node(&g, "Concat", BT_IN(dq[0], dq[1], dq[2]), BT_OUT(dx)), "axis", 2);
  (void)bt_node(&g, "Neg", BT_IN(dx), BT_OUT(out));
  if (lying == READ_ELSEWHERE) {
    const uint32_t z = bt_value(&g, OPIPE_VALUE_OUTPUT, type, more, BT_SHAPE(BATCH, TOKENS, width));
    (void)bt_node(&g, "Neg", BT_IN(q[1]), BT_OUT(z));
  }
  return run_graph(t, device, &g, flags);
}

/* Nothing moves; where one of them cannot be a part, all of the Split moves. */
static void test_attention_reads_and_writes_parts(void) {
  static const uint32_t saved[] = {
      [IN_PARTS] = 6, [SHIFTED] = 0, [READ_ELSEWHERE] = 3, [HANDED_ON] = 3};
  static uint16_t y[2][BATCH * TOKENS * MOST], dx[2][BATCH * TOKENS * MOST],
      more[2][BATCH * TOKENS * MOST];
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none", 1, 0, &device, &err), &err);
  for (place lying = IN_PARTS; lying <= HANDED_ON; ++lying) {
    uint32_t n[2] = {0};
    for (uint32_t alone = 0; alone < 2; ++alone) {
      const uint32_t flags =
          OPIPE_COMPILE_POISON | (alone != 0 ? (uint32_t)OPIPE_COMPILE_NO_FUSE : 0u);
      n[alone] = run_parts(b.base.table, device, lying, flags, y[alone], dx[alone], more[alone]);
    }
    OPI_ASSERT_INT(n[0] + saved[lying], n[1]);
    OPI_ASSERT(memcmp(y[0], y[1], sizeof y[0]) == 0);
    OPI_ASSERT(memcmp(dx[0], dx[1], sizeof dx[0]) == 0);
    OPI_ASSERT(memcmp(more[0], more[1], sizeof more[0]) == 0);
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda tails", OPI_TEST(test_products_do_along), OPI_TEST(test_few_rows_do_along),
              OPI_TEST(test_large_splits_are_products),
              OPI_TEST(test_attention_reads_and_writes_parts))
