/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.RowAttention: shapes and work; inputs that do not fit are named with both numbers. */
#include "loader/ops/common.h"
#include "loader/ops/row_attention.h"
#include "tests/support/support.h"

/* The shapes of one node: 5 rows of 4 heads of queries, 2 of keys. */
typedef struct shapes {
  int64_t q[2], k[2], v[2], position, sequence, table[2], keys[4], values[4], slopes;
  uint32_t keys_type, position_type, copies_type;
  int64_t copies[2];
} shapes;

static const shapes good = {{5, 32},       {5, 16},       {5, 12}, 5,           5,          {3, 7},
                            {9, 2, 64, 8}, {9, 2, 64, 6}, 4,       OPIPE_FLOAT, OPIPE_INT64,
                            OPIPE_INT64, {0, 3}};

static opipe_status emit(const shapes *s, const opi_row_attention *how, opi_arena *arena,
                         opi_graph **out_graph, uint32_t *out, opipe_error *err) {
  opi_graph *g = opi_graph_new(arena, "rows");
  opi_builder b;
  OPI_TRY(opi_b_open(&b, g, arena, opi_allocator_system(), err));
  const uint32_t in[OPI_ROWS_INPUTS] = {
      opi_b_borrow(&b, "q", OPIPE_FLOAT, s->q, 2, NULL),
      opi_b_borrow(&b, "k", OPIPE_FLOAT, s->k, 2, NULL),
      opi_b_borrow(&b, "v", OPIPE_FLOAT, s->v, 2, NULL),
      opi_b_borrow(&b, "position", s->position_type, &s->position, 1, NULL),
      opi_b_borrow(&b, "sequence", OPIPE_INT64, &s->sequence, 1, NULL),
      opi_b_borrow(&b, "table", OPIPE_INT64, s->table, 2, NULL),
      opi_b_borrow(&b, "keys", s->keys_type, s->keys, 4, NULL),
      opi_b_borrow(&b, "values", OPIPE_FLOAT, s->values, 4, NULL),
      s->slopes == 0 ? OPIPE_NONE : opi_b_borrow(&b, "slopes", OPIPE_FLOAT, &s->slopes, 1, NULL),
      s->copies[0] == 0
          ? OPIPE_NONE
          : opi_b_borrow(&b, "copies", s->copies_type, s->copies, 2, NULL)};
  const opipe_status status = opi_row_attention_emit(&b, how, in, out, err);
  opi_b_close(&b);
  *out_graph = g;
  return status;
}

static void test_shapes(void) {
  const opi_row_attention how = {4, 2, 0.5, 0, 3, false};
  opi_arena arena;
  opi_graph *g = NULL;
  opi_work work;
  uint32_t out[OPI_ROWS_OUTPUTS];
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(emit(&good, &how, &arena, &g, out, &err), &err);
  const opi_value *y = &g->values[out[OPI_ROWS_Y]];
  OPI_ASSERT(y->rank == 2 && y->shape[0] == 5 && y->shape[1] == 24 && y->dtype == OPIPE_FLOAT);
  OPI_ASSERT(memcmp(g->values[out[1]].shape, good.keys, sizeof good.keys) == 0);
  OPI_ASSERT(memcmp(g->values[out[2]].shape, good.values, sizeof good.values) == 0);
  OPI_ASSERT_INT(opi_attr_int(&g->nodes[0], "left_window_size", -1), 2);
  opi_node_work(g, &g->nodes[0], &work); /* 448 keys, 20 rows of heads of 8 + 6 */
  OPI_ASSERT(work.flops == 2.0 * 448 * 20 * 14 + 5.0 * 448 * 20);
  opi_arena_release(&arena);
}

static void test_refusals(void) {
  static const char *const why[] = {"3 heads are no multiple of 2 heads of keys",
                                    "'q' has shape [5, 31]: axis 1 must be 32",
                                    "'k' has shape [4, 16]",
                                    "'v' has shape [5, 13]",
                                    "'position' has shape [4]: axis 0 must be 5",
                                    "'position' is of type int32, not int64",
                                    "'sequence' has shape [6]: axis 0 must be 5",
                                    "'keys' has shape [9, 3, 64, 8]: axis 1 must be 2",
                                    "'values' has shape [8, 2, 64, 6]: axis 0 must be 9",
                                    "of 0 tokens of size 8 hold nothing",
                                    "'slopes' has shape [3]: axis 0 must be 4",
                                    "'q' is of type float32, but input 'keys' is of type float16",
                                    "'copies' has shape [2, 4]: axis 1 must be 3",
                                    "'copies' is of type int32, not int64"};
  for (size_t i = 0; i < OPI_COUNT(why); ++i) {
    opi_row_attention how = {i == 0 ? 3 : 4, 2, 0.5, 0, 0, i > 11};
    opi_arena arena;
    opi_graph *g = NULL;
    uint32_t out[OPI_ROWS_OUTPUTS];
    opipe_error err = OPIPE_ERROR_INIT;
    shapes s = good;
    s.q[1] -= i == 1;
    s.k[0] -= i == 2;
    s.v[1] += i == 3;
    s.position -= i == 4;
    s.position_type = i == 5 ? OPIPE_INT32 : OPIPE_INT64;
    s.sequence += i == 6;
    s.keys[1] += i == 7;
    s.values[0] -= i == 8;
    s.keys[2] = i == 9 ? 0 : 64;
    s.slopes -= i == 10;
    s.keys_type = i == 11 ? OPIPE_FLOAT16 : OPIPE_FLOAT;
    s.copies[0] = i == 12 || i == 13 ? 2 : 0;
    s.copies[1] += i == 12;
    s.copies_type = i == 13 ? OPIPE_INT32 : OPIPE_INT64;
    opi_arena_init(&arena, opi_allocator_system(), 0);
    const opipe_status status = emit(&s, &how, &arena, &g, out, &err);
    (void)opi_test_check(status < 0 && strstr(err.message, why[i]) != NULL, __FILE__, __LINE__,
                         false, "case %zu: %d %s", i, status, err.message);
    opi_arena_release(&arena);
  }
}

OPI_TEST_MAIN("row attention", OPI_TEST(test_shapes), OPI_TEST(test_refusals))
