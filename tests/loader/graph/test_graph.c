/* SPDX-License-Identifier: Apache-2.0 */
/* The graph itself: order, cycles, uses, consistency, the form for backends. */
#include "tests/loader/graphs.h"

static const int64_t two[1] = {2};

/* d = c + b, c = Neg b, b = Abs a: written backwards. */
static void test_sort_is_executable_and_stable(void) {
  test_graph t;
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(&t);
  const uint32_t a = test_input(&t, "a", OPIPE_FLOAT, two, 1);
  const uint32_t late = test_op(&t, "Exp", a, OPIPE_NONE);
  const uint32_t d = test_op(&t, "Add", a, a);
  const uint32_t c = test_op(&t, "Neg", a, OPIPE_NONE);
  const uint32_t b = test_op(&t, "Abs", a, OPIPE_NONE);
  t.graph->nodes[1].in[0] = c;
  t.graph->nodes[1].in[1] = b;
  t.graph->nodes[2].in[0] = b;
  test_output(&t, d);
  test_output(&t, late);
  OPI_ASSERT_OK_FATAL(opi_graph_sort(t.graph, &err), &err);
  static const char *const wanted[] = {"Exp", "Abs", "Neg", "Add"};
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT_STR(t.graph->nodes[i].op, wanted[i]);
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT_INT(t.graph->values[t.graph->nodes[i].out[0]].producer, i);
  const opi_node *before = t.graph->nodes;
  OPI_ASSERT_OK(opi_graph_sort(t.graph, &err), &err);
  OPI_ASSERT(t.graph->nodes == before); /* in order: nothing moves */
  test_close(&t);
}

static void test_sort_prints_the_cycle(void) {
  test_graph t;
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(&t);
  const uint32_t a = test_input(&t, "a", OPIPE_FLOAT, two, 1);
  const uint32_t b = test_op(&t, "Abs", a, OPIPE_NONE);
  const uint32_t c = test_op(&t, "Neg", b, OPIPE_NONE);
  const uint32_t d = test_op(&t, "Exp", c, OPIPE_NONE);
  t.graph->nodes[0].in[0] = d;
  t.graph->nodes[0].name = "first";
  t.graph->nodes[1].name = "second";
  t.graph->nodes[2].name = "third";
  OPI_ASSERT_ERROR(opi_graph_sort(t.graph, &err), OPIPE_E_INVALID, &err, "has a cycle: node ");
  OPI_ASSERT(strstr(err.message, "'second' needs 'first'") != NULL);
  OPI_ASSERT(strstr(err.message, "'third' needs 'second'") != NULL);
  OPI_ASSERT(strstr(err.message, "'first' needs 'third'") != NULL);
  t.graph->nodes[1].in[0] = c; /* a node that reads itself */
  t.graph->nodes[0].in[0] = a;
  OPI_ASSERT_ERROR(opi_graph_sort(t.graph, &err), OPIPE_E_INVALID, &err, "'second' needs 'second'");
  test_close(&t);
}

static void test_uses_list_every_use(void) {
  test_graph t;
  opi_uses uses;
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(&t);
  const uint32_t a = test_input(&t, "a", OPIPE_FLOAT, two, 1);
  const uint32_t b = test_op(&t, "Mul", a, a);
  const uint32_t c = test_op(&t, "Add", a, b);
  OPI_ASSERT_OK_FATAL(opi_graph_uses(t.graph, &t.arena, &uses, &err), &err);
  OPI_ASSERT_INT(uses.first[a + 1] - uses.first[a], 3);
  OPI_ASSERT_INT(uses.users[uses.first[a]], 0);
  OPI_ASSERT_INT(uses.users[uses.first[a] + 1], 0);
  OPI_ASSERT_INT(uses.users[uses.first[a] + 2], 1);
  OPI_ASSERT_INT(uses.first[c + 1] - uses.first[c], 0);
  test_close(&t);
}

static opi_bound *bind_pair(test_graph *t) {
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(t);
  const uint32_t a = test_input(t, "a", OPIPE_FLOAT, two, 1);
  const uint32_t w = test_known(t, "w", OPIPE_FLOAT, two, 1, NULL);
  const uint32_t b = test_op(t, "Mul", a, w);
  test_output(t, test_op(t, "Exp", b, OPIPE_NONE));
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t->model, &options, &bound, &err), &err);
  return bound;
}

static void test_verify_finds_what_is_wrong(void) {
  test_graph t;
  opi_bound *bound = bind_pair(&t);
  opi_graph *g = bound->graph;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK(opi_graph_verify(g, &err), &err);
  const uint32_t mid = g->nodes[0].out[0];
  g->values[mid].n_bytes = 4;
  OPI_ASSERT_ERROR(opi_graph_verify(g, &err), OPIPE_E_INTERNAL, &err, "says 4 bytes, its shape 8");
  g->values[mid].n_bytes = 8;
  g->values[mid].producer = 1;
  OPI_ASSERT_ERROR(opi_graph_verify(g, &err), OPIPE_E_INTERNAL, &err, "");
  g->values[mid].producer = 0;
  const char *name = g->values[mid].name;
  g->values[mid].name = "a";
  OPI_ASSERT_ERROR(opi_graph_verify(g, &err), OPIPE_E_INTERNAL, &err, "share the name 'a'");
  g->values[mid].name = name;
  g->nodes[0].in[0] = 99;
  OPI_ASSERT_ERROR(opi_graph_verify(g, &err), OPIPE_E_INTERNAL, &err, "reads value 99");
  opi_bound_free(bound);
  test_close(&t);
}

static void test_backend_form_has_roles_and_slots(void) {
  test_graph t;
  opi_bound *bound = bind_pair(&t);
  opi_graph *g = bound->graph;
  opipe_graph seen;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_graph_to_abi(g, &t.arena, &seen, &err), &err);
  OPI_ASSERT_INT(seen.n_nodes, 2);
  OPI_ASSERT_INT(seen.n_boundaries, 2);
  OPI_ASSERT_INT(seen.values[g->inputs[0]].role, OPIPE_VALUE_INPUT);
  OPI_ASSERT_INT(seen.values[g->inputs[0]].slot, 0);
  OPI_ASSERT_INT(seen.values[g->outputs[0]].role, OPIPE_VALUE_OUTPUT);
  OPI_ASSERT_INT(seen.values[g->outputs[0]].slot, 1);
  OPI_ASSERT_INT(seen.values[g->nodes[0].in[1]].role, OPIPE_VALUE_CONSTANT);
  OPI_ASSERT(seen.values[g->nodes[0].in[1]].data != NULL);
  OPI_ASSERT_INT(seen.values[g->nodes[0].out[0]].role, OPIPE_VALUE_TEMP);
  OPI_ASSERT_INT(seen.values[g->nodes[0].out[0]].n_bytes, 8);
  OPI_ASSERT_STR(seen.nodes[1].op, "Exp");
  opi_bound_free(bound);
  test_close(&t);
}

OPI_TEST_MAIN("graph", OPI_TEST(test_sort_is_executable_and_stable),
              OPI_TEST(test_sort_prints_the_cycle), OPI_TEST(test_uses_list_every_use),
              OPI_TEST(test_verify_finds_what_is_wrong),
              OPI_TEST(test_backend_form_has_roles_and_slots))
