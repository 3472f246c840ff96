/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are picked of a transposed table, as of an embedding that is tied to a product's
 * weights: they are picked first, and then turned.
 */
#include "tests/loader/fusion/models.h"
#include "tests/loader/graphs.h"

/* Axis `axis` of the transposed table is picked; `picks` indices in each of `rows` rows. */
typedef struct table {
  uint32_t rank;
  int64_t shape[3], perm[3];
  int64_t axis, rows, picks;
  bool first; /* it pays to pick first */
} table;

static void build(test_graph *t, const table *of) {
  const int64_t ids_shape[2] = {of->rows, of->picks};
  const opipe_attr perm = OPI_ATTR_N("perm", of->perm, of->rank),
                   axis = OPI_ATTR_I("axis", of->axis);
  uint32_t in[2], out;
  test_open(t);
  const uint32_t x = test_input(t, "table", OPIPE_FLOAT, of->shape, of->rank);
  test_node(t, "Transpose", 13, &x, 1, &perm, 1, &in[0], 1);
  in[1] = test_input(t, "ids", OPIPE_INT64, ids_shape, 2);
  test_node(t, "Gather", 13, in, 2, &axis, 1, &out, 1);
  test_output(t, out);
}

static opipe_status bind_as(test_graph *t, uint32_t flags, opi_bound **out_bound,
                            opipe_error *err) {
  const opi_bind_options options = {
      .flags = flags, .evaluator = test_backend_evaluator(), .allocator = opi_allocator_system()};
  return opi_bind(&t->model, &options, out_bound, err);
}

static bool turns_table(const opi_graph *g) {
  bool found = false;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    found = found || (strcmp(g->nodes[n].op, "Transpose") == 0 &&
                      strcmp(g->values[g->nodes[n].in[0]].name, "table") == 0);
  }
  return found;
}

static void check(const table *of) {
  opi_bound *fused = NULL, *plain = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  void *a[1], *b[1];
  test_graph t;
  test_model none;
  memset(&none, 0, sizeof(none));
  build(&t, of);
  if (OPI_ASSERT_OK(bind_as(&t, 0, &fused, &err), &err) &&
      OPI_ASSERT_OK(bind_as(&t, OPI_BIND_NO_FUSE, &plain, &err), &err)) {
    const opi_graph *g = fused->graph;
    const uint64_t n_bytes = g->values[g->outputs[0]].n_bytes;
    OPI_ASSERT_INT(!turns_table(g), of->first);
    OPI_ASSERT(turns_table(plain->graph));
    if (OPI_ASSERT_OK(test_run(&none, fused, test_backend_evaluator(), &fused->arena, a, &err),
                      &err) &&
        OPI_ASSERT_OK(test_run(&none, plain, test_backend_evaluator(), &plain->arena, b, &err),
                      &err))
      OPI_ASSERT(memcmp(a[0], b[0], n_bytes) == 0);
  }
  opi_bound_free(fused);
  opi_bound_free(plain);
  test_close(&t);
}

static void test_rows_of_a_transposed_table(void) {
  static const table tables[] = {
      {2, {6, 90}, {1, 0}, 0, 2, 3, true},       {2, {6, 90}, {1, 0}, 1, 1, 4, true},
      {3, {8, 9, 10}, {2, 0, 1}, 1, 1, 3, true}, {3, {8, 9, 10}, {1, 2, 0}, 0, 2, 2, true},
      {3, {8, 9, 10}, {2, 1, 0}, 2, 1, 5, true}, {2, {4, 8}, {1, 0}, 0, 3, 2, true},
      {2, {4, 6}, {1, 0}, 0, 4, 5, false}, /* no less: as it is */
      {2, {9, 30}, {1, 0}, 0, 1, 1, true}};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  for (size_t i = 0; i < OPI_COUNT(tables); ++i)
    check(&tables[i]);
}

OPI_TEST_MAIN("tables", OPI_TEST(test_rows_of_a_transposed_table))
