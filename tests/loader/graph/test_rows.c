/* SPDX-License-Identifier: Apache-2.0 */
/* A graph for another number of rows, from those of two: what goes with the rows, what stays, and
 * what cannot be told. */
#include "loader/graph/rows.h"
#include "tests/loader/graphs.h"

/* One graph: y = Reshape(x, target) with constants of every kind beside it. */
typedef struct subject {
  test_graph t;
  uint32_t x, target, mean, total, same, inner, outer, y;
} subject;

static uint32_t table(subject *s, const char *name, int64_t rows, bool inner) {
  const int64_t shape[2] = {rows * 2, 3};
  int32_t numbers[64];
  for (int64_t i = 0; i < rows * 2 * 3; ++i) {
    const int64_t entry = i / 3, row = inner ? entry / 2 : entry % rows;
    const int64_t which = inner ? entry % 2 : entry / rows;
    numbers[i] = (int32_t)(100 * row + 10 * which + i % 3);
  }
  return test_known(&s->t, name, OPIPE_INT32, shape, 2, numbers);
}

static opipe_attr ints_attr(subject *s, int64_t rows) {
  const int64_t ints[3] = {7, 5 * rows, -rows};
  opipe_attr attr = {.name = "sizes", .kind = OPIPE_ATTR_INTS, .n = 3};
  attr.data = opi_arena_copy(&s->t.arena, ints, sizeof ints);
  test_need(attr.data != NULL);
  return attr;
}

static void make(subject *s, int64_t rows) {
  const int64_t in_shape[2] = {rows, 6}, out_shape[3] = {rows * 2, 3, 1}, target[2] = {rows * 2, 3};
  const float mean = 1.0f / (float)rows, total = 0.1f * (float)rows, same = 0.3f;
  test_open(&s->t);
  s->x = test_input(&s->t, "x", OPIPE_FLOAT, in_shape, 2);
  s->target = test_ints(&s->t, "target", target, 2);
  s->mean = test_known(&s->t, "mean", OPIPE_FLOAT, NULL, 0, &mean);
  s->total = test_known(&s->t, "total", OPIPE_FLOAT, NULL, 0, &total);
  s->same = test_known(&s->t, "same", OPIPE_FLOAT, NULL, 0, &same);
  s->inner = table(s, "inner", rows, true);
  s->outer = table(s, "outer", rows, false);
  const uint32_t in[2] = {s->x, s->target};
  const opipe_attr attrs[2] = {ints_attr(s, rows),
                               {.name = "offset", .kind = OPIPE_ATTR_INT, .i = 3 * rows}};
  test_node(&s->t, "Reshape", 14, in, 2, attrs, 2, &s->y, 1);
  opi_value *y = &s->t.graph->values[s->y];
  y->shape = opi_arena_copy(&s->t.arena, out_shape, sizeof out_shape);
  y->rank = 3;
  y->dtype = OPIPE_FLOAT;
  test_need(y->shape != NULL);
  test_output(&s->t, s->y);
}

static float float_of(const opi_graph *g, uint32_t v) {
  return *(const float *)g->values[v].data;
}

static void check_table(const opi_graph *g, uint32_t v, int64_t rows, bool inner) {
  const int32_t *numbers = g->values[v].data;
  OPI_ASSERT_INT(g->values[v].shape[0], rows * 2);
  OPI_ASSERT_INT(g->values[v].n_bytes, rows * 2 * 3 * 4);
  for (int64_t i = 0; i < rows * 2 * 3; ++i) {
    const int64_t entry = i / 3, row = inner ? entry / 2 : entry % rows;
    const int64_t which = inner ? entry % 2 : entry / rows;
    OPI_ASSERT_INT(numbers[i], 100 * row + 10 * which + i % 3);
  }
}

static void test_what_goes_with_the_rows(void) {
  subject a, b;
  opi_arena arena;
  opipe_error err = OPIPE_ERROR_INIT;
  make(&a, 4);
  make(&b, 6);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  for (int64_t rows = 1; rows <= 4; ++rows) {
    const opi_row_change change = {4, 6, rows};
    opi_graph *g = NULL;
    OPI_ASSERT_OK_FATAL(opi_graph_with_rows(a.t.graph, b.t.graph, &change, &arena, &g, &err), &err);
    OPI_ASSERT_INT(g->values[a.x].shape[0], rows);
    OPI_ASSERT_INT(g->values[a.x].shape[1], 6);
    OPI_ASSERT_INT(g->values[a.y].shape[0], 2 * rows);
    OPI_ASSERT_INT(g->values[a.y].n_bytes, 2 * rows * 3 * 4);
    OPI_ASSERT_INT(((const int64_t *)g->values[a.target].data)[0], 2 * rows);
    OPI_ASSERT_INT(((const int64_t *)g->values[a.target].data)[1], 3);
    OPI_ASSERT(float_of(g, a.mean) == 1.0f / (float)rows);
    OPI_ASSERT(float_of(g, a.total) > 0.0999999f * (float)rows);
    OPI_ASSERT(float_of(g, a.total) < 0.1000001f * (float)rows);
    OPI_ASSERT(g->values[a.same].data == a.t.graph->values[a.same].data); /* borrowed */
    check_table(g, a.inner, rows, true);
    check_table(g, a.outer, rows, false);
    const opi_node *node = &g->nodes[0];
    OPI_ASSERT_INT(((const int64_t *)node->attrs[0].data)[0], 7);
    OPI_ASSERT_INT(((const int64_t *)node->attrs[0].data)[1], 5 * rows);
    OPI_ASSERT_INT(((const int64_t *)node->attrs[0].data)[2], -rows);
    OPI_ASSERT_INT(node->attrs[1].i, 3 * rows);
  }
  OPI_ASSERT_INT(a.t.graph->values[a.x].shape[0], 4); /* as it was */
  opi_arena_release(&arena);
  test_close(&a.t);
  test_close(&b.t);
}

typedef void (*spoil_fn)(subject *b);
static void spoil_number(subject *b) {
  ((int64_t *)(uintptr_t)b->t.graph->values[b->target].data)[1] = 4;
}
static void spoil_float(subject *b) {
  *(float *)(uintptr_t)b->t.graph->values[b->mean].data = 0.5f;
}
static void spoil_row(subject *b) {
  ((int32_t *)(uintptr_t)b->t.graph->values[b->inner].data)[7] = 1;
}
static void spoil_shape(subject *b) {
  b->t.graph->values[b->y].shape[0] = 13;
}
static void spoil_attr(subject *b) {
  b->t.graph->nodes[0].attrs[1].i = 19;
}
static void spoil_operator(subject *b) {
  b->t.graph->nodes[0].op = "Expand";
}
static void spoil_wires(subject *b) {
  b->t.graph->nodes[0].in[0] = b->same;
}
static void spoil_nodes(subject *b) {
  (void)test_op(&b->t, "Neg", b->y, OPIPE_NONE);
}

static void test_what_cannot_be_told(void) {
  static const struct {
    spoil_fn spoil;
    const char *text;
  } cases[] = {{spoil_number, "'target'"},   {spoil_float, "'mean'"},
               {spoil_row, "'inner'"},       {spoil_attr, "an attribute of node 'Reshape"},
               {spoil_operator, "'Reshape"}, {spoil_wires, "'Reshape"},
               {spoil_shape, "the shape"},   {spoil_nodes, "the contents"}};
  opi_arena arena;
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_row_change change = {4, 6, 1}, more = {4, 6, 5}, none = {4, 6, 0};
  opi_graph *g = NULL;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    subject a, b;
    make(&a, 4);
    make(&b, 6);
    cases[i].spoil(&b);
    OPI_ASSERT_ERROR(opi_graph_with_rows(a.t.graph, b.t.graph, &change, &arena, &g, &err),
                     OPIPE_E_UNSUPPORTED, &err, cases[i].text);
    OPI_ASSERT(strstr(err.message, "graphs of 4 and of 6 rows") != NULL);
    OPI_ASSERT_ERROR(opi_graph_with_rows(a.t.graph, a.t.graph, &more, &arena, &g, &err),
                     OPIPE_E_INTERNAL, &err, "a graph of 5 rows");
    OPI_ASSERT_ERROR(opi_graph_with_rows(a.t.graph, a.t.graph, &none, &arena, &g, &err),
                     OPIPE_E_INTERNAL, &err, "a graph of 0 rows");
    test_close(&a.t);
    test_close(&b.t);
  }
  opi_arena_release(&arena);
}

OPI_TEST_MAIN("graphs of other rows", OPI_TEST(test_what_goes_with_the_rows),
              OPI_TEST(test_what_cannot_be_told))
