/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of one row: products whose last block to arrive adds up what all found, with the same
 * bits in every run, whatever lay in the arena before; bytes of the run's block; attention by parts
 * of the keys. */
#include <math.h>
#include <stdlib.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { DEEP = 1040, WIDE = 520, KEYS = 200, HEADS = 2, DEPTH = 16 };

static float x[DEEP], up[DEEP * WIDE], down[WIDE * DEEP], y[WIDE], z[DEEP];

/* y = x up; z = y down + x */
static void make_products(bt_graph *g) {
  const uint32_t f = OPIPE_FLOAT;
  bt_init(g);
  ct_draw(x, DEEP, 1);
  ct_draw(up, DEEP * WIDE, 2);
  ct_draw(down, WIDE * DEEP, 3);
  const uint32_t vx = bt_value(g, OPIPE_VALUE_INPUT, f, x, BT_SHAPE(1, DEEP));
  const uint32_t vup = bt_value(g, OPIPE_VALUE_PARAMETER, f, up, BT_SHAPE(DEEP, WIDE));
  const uint32_t vdown = bt_value(g, OPIPE_VALUE_PARAMETER, f, down, BT_SHAPE(WIDE, DEEP));
  const uint32_t vy = bt_value(g, OPIPE_VALUE_OUTPUT, f, y, BT_SHAPE(1, WIDE));
  const uint32_t sum = bt_value(g, OPIPE_VALUE_TEMP, f, NULL, BT_SHAPE(1, DEEP));
  const uint32_t vz = bt_value(g, OPIPE_VALUE_OUTPUT, f, z, BT_SHAPE(1, DEEP));
  bt_node(g, "MatMul", BT_IN(vx, vup), BT_OUT(vy));
  bt_node(g, "MatMul", BT_IN(vy, vdown), BT_OUT(sum));
  bt_node(g, "Add", BT_IN(sum, vx), BT_OUT(vz));
}

static void expect_products(void) {
  for (int i = 0; i < DEEP; ++i) {
    double sum = x[i];
    for (int k = 0; k < WIDE; ++k)
      sum += (double)y[k] * down[k * DEEP + i];
    OPI_ASSERT(fabs(sum - z[i]) < 1e-4);
  }
  for (int i = 0; i < WIDE; ++i) {
    double sum = 0;
    for (int k = 0; k < DEEP; ++k)
      sum += (double)x[k] * up[k * WIDE + i];
    OPI_ASSERT(fabs(sum - y[i]) < 1e-4);
  }
}

/* One run, waited for. */
/* The arena as a run that ended somewhere may leave it. */
static void spoil(const opipe_backend *t, bt_run *run, int with) {
  const opipe_region all = {run->arena, 0, run->info.arena_bytes};
  void *bytes = malloc(run->info.arena_bytes);
  OPI_ASSERT_FATAL(bytes != NULL);
  memset(bytes, with, run->info.arena_bytes);
  OPI_ASSERT_OK(t->write(run->queue, &all, bytes, &err), &err);
  free(bytes);
}

static void test_runs_have_the_same_bits(void) {
  static const char *const options[] = {"fallback=none", "fallback=none,graphs=1"};
  static float first[WIDE], last[DEEP];
  ct_backend b;
  bt_graph g;
  bt_run run;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  for (int i = 0; i < 2; ++i) {
    opipe_device *device = NULL;
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, options[i], 1, 0, &device, &err), &err);
    make_products(&g);
    OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, 0, &run, &err), &err);
    OPI_ASSERT_INT(run.info.n_kernels, 2);
    for (int turn = 0; turn < 4; ++turn) {
      if (turn != 2) /* twice in a row, too */
        spoil(t, &run, turn == 3 ? 0xff : 7);
      ct_step(t, device, &g, &run, 1);
      if (turn == 0 && i == 0) {
        expect_products();
        memcpy(first, y, sizeof y);
        memcpy(last, z, sizeof z);
      }
      OPI_ASSERT(memcmp(first, y, sizeof y) == 0 && memcmp(last, z, sizeof z) == 0);
    }
    bt_release(t, &run);
    t->device_close(device);
  }
  bt_close(&b.base);
}

/* Counters are in the arena of programs that raise them, and of no others. */
static void test_bytes_of_counters(void) {
  enum { PARTS = (WIDE + 63) / 64, SCRATCH = PARTS * DEEP * 4, BLOCK = 24 + 64 * 8 + 256 * 4 };
  ct_backend b;
  bt_graph g;
  bt_run run;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none", 1, 0, &device, &err), &err);
  make_products(&g);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, 0, &run, &err), &err);
  OPI_ASSERT_INT(run.info.workspace_bytes, (BLOCK + 255) / 256 * 256 + (SCRATCH + 255) / 256 * 256);
  OPI_ASSERT_INT(run.info.arena_bytes, run.info.workspace_bytes + run.info.temp_bytes);
  bt_release(t, &run);
  bt_init(&g); /* rows of weights: a warp has all of k */
  const uint32_t f = OPIPE_FLOAT;
  const uint32_t vx = bt_value(&g, OPIPE_VALUE_INPUT, f, x, BT_SHAPE(1, DEEP));
  const uint32_t vw = bt_value(&g, OPIPE_VALUE_PARAMETER, f, up, BT_SHAPE(WIDE, DEEP));
  const uint32_t vy = bt_value(&g, OPIPE_VALUE_OUTPUT, f, y, BT_SHAPE(1, WIDE));
  bt_int(&g, bt_node(&g, "Gemm", BT_IN(vx, vw), BT_OUT(vy)), "transB", 1);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, 0, &run, &err), &err);
  OPI_ASSERT_INT(run.info.n_kernels, 1);
  OPI_ASSERT_INT(run.info.workspace_bytes, 0);
  bt_release(t, &run);
  t->device_close(device);
  bt_close(&b.base);
}

enum { MOST = 3 }; /* tokens */
static float q[HEADS * MOST * DEPTH], fresh[2][HEADS * MOST * DEPTH], past[2][HEADS * KEYS * DEPTH],
    result[HEADS * MOST * DEPTH];

/* An element of the keys (0) or values (1) of `tokens` behind others. */
static float joined(int which, int tokens, int head, int j, int d) {
  const int before = KEYS - tokens;
  return j < before ? past[which][(head * before + j) * DEPTH + d]
                    : fresh[which][(head * tokens + j - before) * DEPTH + d];
}

static void expect_row(int tokens, int h, int s) {
  const int seen = KEYS - tokens + s + 1;
  double weight[KEYS], sum = 0;
  for (int j = 0; j < seen; ++j) {
    weight[j] = 0;
    for (int d = 0; d < DEPTH; ++d)
      weight[j] += (double)q[(h * tokens + s) * DEPTH + d] * joined(0, tokens, h, j, d) / 4;
    weight[j] = exp(weight[j]);
    sum += weight[j];
  }
  for (int d = 0; d < DEPTH; ++d) {
    double wanted = 0;
    for (int j = 0; j < seen; ++j)
      wanted += weight[j] / sum * joined(1, tokens, h, j, d);
    OPI_ASSERT(fabs(wanted - result[(h * tokens + s) * DEPTH + d]) < 1e-5);
  }
}

static void make_attention(bt_graph *g, int tokens) {
  const uint32_t f = OPIPE_FLOAT;
  uint32_t in[5];
  bt_init(g);
  ct_draw(q, HEADS * MOST * DEPTH, 4);
  in[0] = bt_value(g, OPIPE_VALUE_INPUT, f, q, BT_SHAPE(1, HEADS, tokens, DEPTH));
  for (uint32_t i = 0; i < 2; ++i) {
    ct_draw(fresh[i], HEADS * MOST * DEPTH, 5 + i);
    ct_draw(past[i], HEADS * KEYS * DEPTH, 7 + i);
    in[1 + i] = bt_value(g, OPIPE_VALUE_INPUT, f, fresh[i], BT_SHAPE(1, HEADS, tokens, DEPTH));
    in[3 + i] =
        bt_value(g, OPIPE_VALUE_INPUT, f, past[i], BT_SHAPE(1, HEADS, KEYS - tokens, DEPTH));
  }
  const uint32_t out =
      bt_value(g, OPIPE_VALUE_OUTPUT, f, result, BT_SHAPE(1, HEADS, tokens, DEPTH));
  opipe_node *node =
      bt_node(g, "Attention", BT_IN(in[0], in[1], in[2], OPIPE_NONE, in[3], in[4]), BT_OUT(out));
  bt_int(g, node, "is_causal", 1);
}

static void attend(const opipe_backend *t, opipe_device *device, int tokens, uint32_t flags,
                   uint64_t kernels) {
  bt_graph g;
  bt_run run;
  make_attention(&g, tokens);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, flags, &run, &err), &err);
  OPI_ASSERT_INT(run.info.n_kernels, kernels);
  spoil(t, &run, 9);
  ct_step(t, device, &g, &run, 1);
  for (int i = 0; i < HEADS * tokens; ++i)
    expect_row(tokens, i / tokens, i % tokens);
  bt_release(t, &run);
}

/* Tokens behind others: keys in parts, then the parts, by the last block for one row and by a
 * launch for three; among the zones of poison, too. Or by the kernel of many rows. */
static void test_attention_of_few_tokens(void) {
  static const char *const options[] = {"fallback=none", "fallback=none,few_attention=0"};
  ct_backend b;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  for (int i = 0; i < 2; ++i) {
    opipe_device *device = NULL;
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, options[i], 1, 0, &device, &err), &err);
    for (int which = 0; which < 4; ++which) {
      attend(t, device, which % 2 == 0 ? 1 : MOST, which < 2 ? 0 : OPIPE_COMPILE_POISON,
             which % 2 == 0 || i == 1 ? 1 : 2);
    }
    t->device_close(device);
  }
  bt_close(&b.base);
}

/* ---- keys and values in two pieces ---- */

typedef enum form {
  ONE,      /* token: q, k and v of a Split; k and v behind earlier ones; attention */
  FEW,      /* three */
  BY_HEADS, /* rank 4, not of a Split */
  MANY,     /* more rows than few: pieces are put together, as in all below */
  CAUSAL,
  KEPT,   /* the keys are an output */
  UNEVEN, /* of values the new ones stand first */
  FORMS
} form;

/* Steps: fused, and one by one. The Split three, each Concat two. */
static const struct {
  uint32_t fused, alone;
  int tokens;
} wanted[FORMS] = {{1, 8, 1}, {2, 9, 3}, {1, 5, 1}, {8, 8, 9}, {8, 8, 1}, {8, 8, 1}, {8, 8, 1}};

enum { WIDTH = HEADS * DEPTH, TOKENS = 9 };
static float packed[TOKENS * 3 * WIDTH], earlier[2][KEYS * WIDTH], all_keys[KEYS * WIDTH],
    pieces[TOKENS * WIDTH];

static uint32_t tensor(bt_graph *g, uint32_t role, float *data, bool by_heads, int64_t rows) {
  return by_heads ? bt_value(g, role, OPIPE_FLOAT, data, BT_SHAPE(1, HEADS, rows, DEPTH))
                  : bt_value(g, role, OPIPE_FLOAT, data, BT_SHAPE(1, rows, WIDTH));
}

static void make_pieces(bt_graph *g, form which) {
  const bool heads = which == BY_HEADS;
  const int64_t tokens = wanted[which].tokens, past_rows = KEYS - tokens;
  static const int64_t thirds[3] = {WIDTH, WIDTH, WIDTH};
  uint32_t part[3], joined_of[2];
  bt_init(g);
  ct_draw(packed, TOKENS * 3 * WIDTH, 11);
  for (int i = 0; i < 3; ++i) {
    part[i] = heads ? tensor(g, OPIPE_VALUE_INPUT, packed + i * WIDTH, true, tokens)
                    : tensor(g, OPIPE_VALUE_TEMP, NULL, false, tokens);
  }
  if (!heads) {
    const uint32_t all =
        bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, packed, BT_SHAPE(1, tokens, 3 * WIDTH));
    const uint32_t sizes = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, thirds, BT_SHAPE(3));
    bt_int(g, bt_node(g, "Split", BT_IN(all, sizes), BT_OUT(part[0], part[1], part[2])), "axis", 2);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    ct_draw(earlier[i], KEYS * WIDTH, 12 + i);
    const uint32_t old = tensor(g, OPIPE_VALUE_PARAMETER, earlier[i], heads, past_rows);
    const bool kept = which == KEPT && i == 0, turned = which == UNEVEN && i == 1;
    joined_of[i] = tensor(g, kept ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP, kept ? all_keys : NULL,
                          heads, KEYS);
    const uint32_t first = turned ? part[1 + i] : old, second = turned ? old : part[1 + i];
    bt_int(g, bt_node(g, "Concat", BT_IN(first, second), BT_OUT(joined_of[i])), "axis",
           heads ? 2 : 1);
  }
  const uint32_t out = tensor(g, OPIPE_VALUE_OUTPUT, pieces, heads, tokens);
  opipe_node *node =
      bt_node(g, "Attention", BT_IN(part[0], joined_of[0], joined_of[1]), BT_OUT(out));
  if (!heads) {
    bt_int(g, node, "q_num_heads", HEADS);
    bt_int(g, node, "kv_num_heads", HEADS);
  }
  bt_int(g, node, "is_causal", which == CAUSAL);
}

/* Few rows read both pieces where they lie, with the bits of the nodes one by one. */
static void test_keys_in_two_pieces(void) {
  static const uint32_t flags[] = {OPIPE_COMPILE_NO_FUSE, 0, OPIPE_COMPILE_POISON,
                                   OPIPE_COMPILE_CHECK_FINITE};
  static float alone[TOKENS * WIDTH];
  ct_backend b;
  bt_graph g;
  bt_run run;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none", 1, 0, &device, &err), &err);
  for (form which = 0; which < FORMS; ++which) {
    for (int i = 0; i < 4; ++i) {
      make_pieces(&g, which);
      memset(pieces, 0, sizeof pieces);
      OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, flags[i], &run, &err), &err);
      if (i < 3)
        OPI_ASSERT_INT(run.info.n_kernels, i == 0 ? wanted[which].alone : wanted[which].fused);
      ct_step(t, device, &g, &run, 1);
      if (i == 0)
        memcpy(alone, pieces, sizeof pieces);
      OPI_ASSERT(pieces[0] != 0 && memcmp(alone, pieces, sizeof pieces) == 0);
      bt_release(t, &run);
    }
  }
  t->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda few rows", OPI_TEST(test_runs_have_the_same_bits),
              OPI_TEST(test_bytes_of_counters), OPI_TEST(test_attention_of_few_tokens),
              OPI_TEST(test_keys_in_two_pieces))
