/* SPDX-License-Identifier: Apache-2.0 */
/* Units that do not divide: heads, groups of keys, rows of a vocabulary, blocks of few-bit columns.
 * The members' results are the whole graph's, and their parts differ by one unit at most.
 */
#include <math.h>

#include "tests/loader/graphs.h"
#include "tests/loader/shard/members.h"

typedef struct bench {
  test_graph g;
  opi_arena arena;
  opi_bound *bound;
  test_model m; /* inputs */
  void *inputs[4];
  void *want[4];
} bench;

static void open_bench(bench *b) {
  memset(b, 0, sizeof *b);
  test_open(&b->g);
  opi_arena_init(&b->arena, opi_allocator_system(), 0);
}

static void close_bench(bench *b) {
  opi_bound_free(b->bound);
  opi_arena_release(&b->arena);
  test_close(&b->g);
}

static uint32_t parameter(bench *b, const char *name, const int64_t *shape, uint32_t rank) {
  opi_value v = {.dtype = OPIPE_FLOAT, .shape = (int64_t *)(uintptr_t)shape, .rank = (int32_t)rank};
  test_need(opi_tensor_bytes(OPIPE_FLOAT, shape, rank, &v.n_bytes));
  return test_known(&b->g, name, OPIPE_FLOAT, shape, rank,
                    test_fill(&b->arena, &v, (uint64_t)shape[0] * 31 + b->g.n_names));
}

static uint32_t column(bench *b, uint32_t x, const char *name, int64_t k, int64_t n) {
  const int64_t shape[2] = {k, n};
  return test_op(&b->g, "MatMul", x, parameter(b, name, shape, 2));
}

static bool bind(bench *b, uint32_t flags) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  options.flags |= flags;
  options.evaluator = test_backend_evaluator();
  bool ok = opi_bind(&b->g.model, &options, &b->bound, &err) >= 0;
  for (uint32_t i = 0; ok && i < b->bound->graph->n_inputs; ++i) {
    opi_value *v = &b->m.inputs[b->m.n_inputs++];
    *v = b->bound->graph->values[b->bound->graph->inputs[i]];
    v->data = b->inputs[i] = test_fill(&b->arena, v, i + 5);
  }
  ok = ok && test_run(&b->m, b->bound, options.evaluator, &b->arena, b->want, &err) >= 0;
  if (!ok)
    OPI_FAIL("%s", err.message);
  return ok;
}

static opi_shards *divide(const bench *b, uint32_t width, uint32_t flags) {
  const opi_shard_wish wish = {.width = width,
                               .flags = flags,
                               .evaluator = test_backend_evaluator(),
                               .allocator = opi_allocator_system()};
  opi_shards *shards = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_shard(b->bound, &wish, &shards, &err), &err);
  return shards;
}

/* Runs the members and compares all outputs, whole or in parts. */
static void compare(bench *b, const opi_shards *shards, test_group *t) {
  const opi_graph *g = b->bound->graph;
  opipe_error err = OPIPE_ERROR_INIT;
  *t = (test_group){.evaluator = test_backend_evaluator(), .arena = &b->arena};
  test_group_open(t, b->bound, shards, b->inputs);
  OPI_ASSERT_OK_FATAL(test_group_run(t, &err), &err);
  double worst = 0, largest = 1e-3;
  for (uint32_t r = 0; r < shards->width * g->n_outputs; ++r) {
    const opi_shard_member *m = &shards->members[r / g->n_outputs];
    const uint32_t o = r % g->n_outputs, v = m->bound->graph->outputs[o];
    const opi_value *y = &g->values[g->outputs[o]];
    const opi_shard_part *part = test_part_of(m->outputs, m->n_outputs, g->outputs[o]);
    const float *want = part == NULL ? b->want[o] : test_pack(&b->arena, y, b->want[o], part);
    const float *own = t->members[r / g->n_outputs].data[v];
    for (uint64_t i = 0; i < opi_elems(&m->bound->graph->values[v]); ++i) {
      worst = fmax(worst, fabs((double)own[i] - (double)want[i]));
      largest = fmax(largest, fabs((double)want[i]));
    }
  }
  (void)opi_test_check(worst <= 2e-5 * largest, __FILE__, __LINE__, false, "off by %g of %g", worst,
                       largest);
}

/* Entries of a parameter that member r has. */
static int64_t entries(const bench *b, const opi_shards *shards, uint32_t r, const char *name) {
  const uint32_t v = opi_bound_value(b->bound, name);
  const opi_shard_member *m = &shards->members[r];
  const opi_shard_part *part = test_part_of(m->params, m->n_params, v);
  int64_t n = 0;
  for (uint32_t k = 0; part != NULL && k < part->n_runs; ++k)
    n += part->runs[k].n;
  return n;
}

/* ---- heads ---- */

enum { TOKENS = 5, HIDDEN = 6, SIZE = 4, PAST = 3 };
/* PACKED: one parameter for queries, keys and values. KEPT: with keys and values of earlier tokens,
 * and those of all tokens as outputs. */
typedef enum form { PLAIN, PACKED, KEPT, FORMS } form;

/* Attention with a residual. */
static void attention(bench *b, int64_t heads, int64_t kv_heads, form how) {
  const int64_t shape[3] = {2, TOKENS, HIDDEN}, q = heads * SIZE, kv = kv_heads * SIZE;
  const opipe_attr attrs[3] = {OPI_ATTR_I("q_num_heads", heads),
                               OPI_ATTR_I("kv_num_heads", kv_heads), OPI_ATTR_I("is_causal", 1)};
  const int64_t past[4] = {2, kv_heads, PAST, SIZE};
  const uint32_t x = test_input(&b->g, "x", OPIPE_FLOAT, shape, 3);
  uint32_t in[6] = {OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE}, y[3];
  if (how == KEPT) {
    in[4] = test_input(&b->g, "past_k", OPIPE_FLOAT, past, 4);
    in[5] = test_input(&b->g, "past_v", OPIPE_FLOAT, past, 4);
  }
  if (how == PACKED) {
    const int64_t sizes[3] = {q, kv, kv};
    const opipe_attr axis = OPI_ATTR_I("axis", 2);
    const uint32_t from[2] = {column(b, x, "wq", HIDDEN, q + 2 * kv),
                              test_ints(&b->g, NULL, sizes, 3)};
    test_node(&b->g, "Split", 13, from, 2, &axis, 1, in, 3);
  } else {
    in[0] = column(b, x, "wq", HIDDEN, q);
    in[1] = column(b, x, "wk", HIDDEN, kv);
    in[2] = column(b, x, "wv", HIDDEN, kv);
  }
  test_node(&b->g, "Attention", 23, in, how == KEPT ? 6 : 3, attrs, 3, y, how == KEPT ? 3 : 1);
  test_output(&b->g, test_op(&b->g, "Add", x, column(b, y[0], "wo", q, HIDDEN)));
  for (uint32_t o = 1; how == KEPT && o < 3; ++o)
    test_output(&b->g, y[o]);
}

typedef struct head_case {
  int64_t heads, kv_heads;
  uint32_t width;
  int64_t most, least; /* query heads of a member */
  uint32_t repeated;   /* heads of keys, over all members */
} head_case;

static const head_case head_cases[] = {
    {12, 12, 5, 3, 2, 0}, {10, 2, 3, 4, 3, 1}, {28, 7, 8, 4, 3, 2},
    {8, 2, 4, 2, 2, 0},   {6, 2, 2, 3, 3, 0},  {9, 3, 2, 6, 3, 0},
};

static void check_heads(const head_case *c, form how) {
  bench b;
  test_group t;
  open_bench(&b);
  attention(&b, c->heads, c->kv_heads, how);
  if (bind(&b, 0)) {
    opi_shards *shards = divide(&b, c->width, OPI_SHARD_DENSE);
    uint32_t repeated = 0;
    compare(&b, shards, &t);
    OPI_ASSERT_INT(shards->n_attention, 1);
    OPI_ASSERT_INT(shards->n_reasons, 0);
    OPI_ASSERT_INT(t.n_sums, 1);
    for (uint32_t r = 0; r < c->width; ++r) {
      const int64_t own = entries(&b, shards, r, "wo") / SIZE;
      OPI_ASSERT(own <= c->most && own >= c->least);
      repeated += shards->members[r].n_repeated;
      if (how != PACKED)
        OPI_ASSERT(entries(&b, shards, r, "wq") == own * SIZE);
    }
    OPI_ASSERT_INT(repeated, c->repeated);
    opi_shards_free(shards);
  }
  close_bench(&b);
}

static void test_heads_that_do_not_divide(void) {
  for (size_t i = 0; i < OPI_COUNT(head_cases); ++i) {
    for (uint32_t how = 0; how < FORMS; ++how)
      check_heads(&head_cases[i], (form)how);
  }
}

static void test_too_few_heads_stay_whole(void) {
  bench b;
  test_group t;
  open_bench(&b);
  attention(&b, 4, 4, PLAIN);
  if (bind(&b, 0)) {
    opi_shards *shards = divide(&b, 5, OPI_SHARD_DENSE);
    compare(&b, shards, &t);
    OPI_ASSERT_INT(shards->n_attention, 0);
    OPI_ASSERT(shards->n_reasons != 0);
    OPI_ASSERT(strcmp(shards->reasons[0].why, "4 units for 5 members") == 0);
    opi_shards_free(shards);
  }
  close_bench(&b);
}

/* ---- rows of a vocabulary ---- */

static void test_rows_of_a_vocabulary(void) {
  enum { ROWS = 50257 };
  static int64_t ids[6] = {0, 25128, 25129, ROWS - 1, -1, 7};
  const int64_t shape[2] = {2, 3}, table[2] = {ROWS, 4};
  const opipe_attr turned = OPI_ATTR_I("axis", 0);
  bench b;
  test_group t;
  open_bench(&b);
  const uint32_t x = test_input(&b.g, "ids", OPIPE_INT64, shape, 2);
  const uint32_t w = parameter(&b, "table", table, 2);
  const uint32_t in[2] = {w, x};
  uint32_t rows = OPIPE_NONE;
  test_node(&b.g, "Gather", 13, in, 2, &turned, 1, &rows, 1);
  const uint32_t y = test_op(&b.g, "Relu", rows, OPIPE_NONE);
  test_output(&b.g, y);
  if (bind(&b, 0)) {
    opipe_error err = OPIPE_ERROR_INIT;
    b.m.inputs[0].data = b.inputs[0] = ids;
    OPI_ASSERT_OK(test_run(&b.m, b.bound, test_backend_evaluator(), &b.arena, b.want, &err), &err);
    opi_shards *shards = divide(&b, 2, 0);
    compare(&b, shards, &t);
    OPI_ASSERT_INT(entries(&b, shards, 0, "table"), 25129);
    OPI_ASSERT_INT(entries(&b, shards, 1, "table"), 25128);
    ids[5] = ROWS; /* outside the whole table: an error in both, though it is in neither's part */
    for (uint32_t r = 0; r < 2; ++r) {
      test_group own = {.evaluator = test_backend_evaluator(), .arena = &b.arena};
      test_group_open(&own, b.bound, shards, b.inputs);
      OPI_ASSERT_ERROR(test_node_run(&own, &own.members[r], &own.members[r].graph->nodes[0], &err),
                       OPIPE_E_INVALID, &err, "index 50257 is outside [-50257, 50257)");
    }
    opi_shards_free(shards);
  }
  close_bench(&b);
}

/* ---- blocks ---- */

static uint32_t bytes(bench *b, const int64_t *shape, uint32_t rank) {
  uint64_t n = 0;
  opi_test_random random = {77};
  test_need(opi_tensor_bytes(OPIPE_UINT8, shape, rank, &n));
  uint8_t *data = opi_arena_alloc(&b->arena, n);
  for (uint64_t i = 0; i < n; ++i)
    data[i] = (uint8_t)opi_test_uniform(&random, 0, 255.9);
  return test_known(&b->g, NULL, OPIPE_UINT8, shape, rank, data);
}

static void check_blocks(bool zeros, uint32_t width, int64_t most, int64_t least) {
  enum { N = 6, BLOCK = 16, BLOCKS = 231, K = BLOCK * BLOCKS };
  const int64_t shape[2] = {2, N}, codes[3] = {N, BLOCKS, BLOCK / 2}, scales[1] = {N * BLOCKS},
                packed[1] = {N * ((BLOCKS + 1) / 2)};
  const opipe_attr attrs[4] = {OPI_ATTR_I("K", K), OPI_ATTR_I("N", N), OPI_ATTR_I("bits", 4),
                               OPI_ATTR_I("block_size", BLOCK)};
  bench b;
  test_group t;
  open_bench(&b);
  const uint32_t x = test_input(&b.g, "x", OPIPE_FLOAT, shape, 2);
  uint32_t in[4] = {test_op(&b.g, "Relu", column(&b, x, "up", N, K), OPIPE_NONE)}, y = OPIPE_NONE;
  in[1] = bytes(&b, codes, 3);
  in[2] = parameter(&b, "scales", scales, 1);
  if (zeros)
    in[3] = bytes(&b, packed, 1);
  test_node(&b.g, "MatMulNBits", 1, in, zeros ? 4 : 3, attrs, 4, &y, 1)->domain = "com.microsoft";
  test_output(&b.g, test_op(&b.g, "Add", x, y));
  if (bind(&b, 0)) {
    opi_shards *shards = divide(&b, width, 0); /* `up` is above 64 KiB: without data */
    compare(&b, shards, &t);
    OPI_ASSERT_INT(t.n_sums, 1);
    for (uint32_t r = 0; r < width; ++r) {
      const int64_t own = entries(&b, shards, r, "up");
      OPI_ASSERT(own % BLOCK == 0 && own / BLOCK <= most && own / BLOCK >= least);
    }
    opi_shards_free(shards);
  }
  close_bench(&b);
}

/* Zero points of two blocks share a byte, and go together. */
static void test_blocks_of_few_bits(void) {
  check_blocks(false, 2, 116, 115);
  check_blocks(true, 2, 116, 115);
  check_blocks(false, 5, 47, 46);
  check_blocks(true, 5, 48, 45);
}

/* ---- refusals ---- */

static void test_width_1_is_a_copy(void) {
  bench b;
  test_group t;
  open_bench(&b);
  attention(&b, 4, 4, false);
  if (bind(&b, 0)) {
    opi_shards *shards = divide(&b, 1, 0);
    compare(&b, shards, &t);
    OPI_ASSERT_INT(t.n_sums, 0);
    OPI_ASSERT_INT(shards->members[0].bound->graph->n_nodes, b.bound->graph->n_nodes);
    OPI_ASSERT_INT(shards->n_reasons, 0);
    opi_shards_free(shards);
  }
  close_bench(&b);
}

static void test_width_0_is_refused(void) {
  bench b;
  opi_shards *shards = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_shard_wish wish = {.allocator = opi_allocator_system()};
  open_bench(&b);
  attention(&b, 4, 4, false);
  if (bind(&b, 0)) {
    OPI_ASSERT_ERROR(opi_shard(b.bound, &wish, &shards, &err), OPIPE_E_INVALID, &err,
                     "a tensor group of 0 members");
  }
  close_bench(&b);
}

OPI_TEST_MAIN("units that do not divide", OPI_TEST(test_heads_that_do_not_divide),
              OPI_TEST(test_too_few_heads_stay_whole), OPI_TEST(test_rows_of_a_vocabulary),
              OPI_TEST(test_blocks_of_few_bits), OPI_TEST(test_width_1_is_a_copy),
              OPI_TEST(test_width_0_is_refused))
