/* SPDX-License-Identifier: Apache-2.0 */
/* Taking a graph apart: routes, skips, shared parameters, outputs that come from anywhere. */
#include "partition/program/stretches.h"
#include "tests/partition/toy.h"

/* x -> a -> b -> c -> d; a is read by d too; w is read in the first and the last stage; c is an
 * output as well. */
static void make_graph(toy *t) {
  toy_open(t);
  const uint32_t x = toy_input(t, "x", 8), w = toy_param(t, "w", 512);
  const uint32_t a = toy_node(t, "a", (uint32_t[]){x, w}, 2, 8);
  const uint32_t b = toy_node(t, "b", (uint32_t[]){a}, 1, 16);
  const uint32_t c = toy_node(t, "c", (uint32_t[]){b, x}, 2, 8);
  const uint32_t d = toy_node(t, "d", (uint32_t[]){c, a, w}, 3, 4);
  toy_output(t, d);
  toy_output(t, c);
  toy_output(t, x);
}

static opipe_status cut(const toy *t, const uint32_t *stages, uint32_t n_stages, opi_cut **out_cut,
                        opipe_error *err) {
  const opi_cut_source source = {.graph = t->graph, .stage = stages, .n_stages = n_stages};
  return opi_cut_build(&source, opi_allocator_system(), out_cut, err);
}

static uint32_t n_boundaries(const opi_cut *c, uint32_t stage) {
  return opi_forward_of(c, stage)->graph.n_boundaries;
}

static const opi_route *find_route(const opi_cut *c, const char *name, uint32_t src, uint32_t dst) {
  for (uint32_t r = 0; r < c->n_routes; ++r) {
    if (strcmp(c->graph->values[c->routes[r].value].name, name) == 0 &&
        c->routes[r].src_stage == src && c->routes[r].dst_stage == dst)
      return &c->routes[r];
  }
  return NULL;
}

static void test_routes_go_straight_to_each_reader(void) {
  toy t;
  opi_cut *c = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  make_graph(&t);
  OPI_ASSERT_OK_FATAL(cut(&t, (uint32_t[]){0, 1, 1, 2}, 3, &c, &err), &err);
  OPI_ASSERT_INT(c->n_routes, 3);
  OPI_ASSERT(find_route(c, "a", 0, 1) != NULL);
  OPI_ASSERT(find_route(c, "a", 0, 2) != NULL); /* skips stage 1 */
  OPI_ASSERT(find_route(c, "c", 1, 2) != NULL);
  OPI_ASSERT_INT(find_route(c, "a", 0, 2)->n_bytes, 32);
  /* x is loaded by the stages that read it */
  OPI_ASSERT_INT(opi_cell_of(c, opi_forward_of(c, 0), 0)->source, OPI_CELL_REQUEST);
  OPI_ASSERT_INT(n_boundaries(c, 0), 2); /* x in, a out once for both routes */
  OPI_ASSERT_INT(n_boundaries(c, 1), 3); /* a, x in, c out */
  const opi_route *first = find_route(c, "a", 0, 1), *second = find_route(c, "a", 0, 2);
  const opi_cell *a = &c->cells[first->src_cell];
  OPI_ASSERT(&c->routes[a->first_out] == first && &c->routes[first->next_out] == second);
  OPI_ASSERT_INT(second->next_out, OPIPE_NONE);
  opi_cut_free(c);
  toy_close(&t);
}

static void test_a_shared_parameter_is_one_entry(void) {
  toy t;
  opi_cut *c = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  make_graph(&t);
  OPI_ASSERT_OK_FATAL(cut(&t, (uint32_t[]){0, 1, 1, 2}, 3, &c, &err), &err);
  OPI_ASSERT_INT(c->n_params, 1);
  OPI_ASSERT_STR(c->sources[0].name, "w");
  OPI_ASSERT_INT(opi_forward_of(c, 0)->n_params, 1);
  OPI_ASSERT_INT(opi_forward_of(c, 1)->n_params, 0);
  OPI_ASSERT_INT(opi_forward_of(c, 2)->n_params, 1);
  opi_cut_free(c);
  toy_close(&t);
}

static void test_outputs_know_where_they_come_from(void) {
  toy t;
  opi_cut *c = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  make_graph(&t);
  OPI_ASSERT_OK_FATAL(cut(&t, (uint32_t[]){0, 1, 1, 2}, 3, &c, &err), &err);
  OPI_ASSERT_INT(c->cells[c->output_cell[0]].stage, 2);
  OPI_ASSERT_INT(c->cells[c->output_cell[1]].stage, 1);
  OPI_ASSERT_INT(c->cells[c->output_cell[1]].output, 1);
  OPI_ASSERT_INT(c->output_port[1], OPIPE_NONE);
  OPI_ASSERT_INT(c->output_cell[2], OPIPE_NONE); /* an input handed through */
  OPI_ASSERT_INT(c->output_port[2], 0);
  opi_cut_free(c);
  toy_close(&t);
}

static void test_an_edge_that_goes_back_is_refused(void) {
  toy t;
  opi_cut *c = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  make_graph(&t);
  OPI_ASSERT_ERROR(cut(&t, (uint32_t[]){1, 0, 1, 1}, 2, &c, &err), OPIPE_E_INVALID, &err,
                   "'a' backwards: stage 1 makes it, node 'n_b' reads it in stage 0");
  OPI_ASSERT_ERROR(cut(&t, (uint32_t[]){0, 0, 0, 5}, 2, &c, &err), OPIPE_E_INVALID, &err,
                   "stage 5 of 2");
  OPI_ASSERT_ERROR(cut(&t, (uint32_t[]){0, 0, 0, 0}, 0, &c, &err), OPIPE_E_INVALID, &err,
                   "at least 1 stage");
  toy_close(&t);
}

/* ---- stretches ---- */

/* A node that copies, and whose gradient is summed; a node that sums. */
static bool sums(const opi_graph *graph, const opi_node *node) {
  (void)graph;
  return strncmp(node->name, "n_sum", 5) == 0;
}

static uint32_t pass_node(toy *t, const char *name, uint32_t in, uint32_t other, uint8_t pass) {
  const uint32_t v = toy_node(t, name, (uint32_t[]){in, other}, other == OPIPE_NONE ? 1 : 2, 8);
  t->graph->nodes[t->graph->n_nodes - 1].pass = pass;
  return v;
}

static uint32_t forward(toy *t, const char *name, uint32_t in, uint32_t other) {
  return pass_node(t, name, in, other, OPIPE_PASS_FORWARD);
}

static uint32_t backward(toy *t, const char *name, uint32_t in, uint32_t other) {
  return pass_node(t, name, in, other, OPIPE_PASS_BACKWARD_INPUT);
}

/* A node's place by the name of its value. */
static uint32_t place_of(const toy *t, const opi_stretches *s, const char *name) {
  uint32_t n = 0;
  while (n < t->graph->n_nodes && strcmp(t->graph->nodes[n].name + 2, name) != 0)
    ++n;
  return n == t->graph->n_nodes ? OPIPE_NONE : s->stage[n];
}

static bool has_node(const opi_cut *c, uint32_t stage, uint32_t program, const char *name) {
  const opi_program *p = opi_program_of(c, stage, program);
  bool found = false;
  for (uint32_t n = 0; n < p->graph.n_nodes; ++n)
    found = found || strcmp(p->graph.nodes[n].name + 2, name) == 0;
  return found;
}

/* a, a copy, b, a sum, c with the residual a; and back. */
static void test_a_stage_is_cut_at_its_sums(void) {
  static const uint32_t anchor[] = {0, 1, 2, 3, 4, 4, 3, 2, 1, 1, 0};
  static const struct {
    const char *name;
    uint32_t place;
  } wanted[] = {{"a", 0},    {"copy", 0}, {"b", 0},        {"sum", 3},  {"c", 4}, {"dc", 4},
                {"dsum", 2}, {"db", 2},   {"sum_back", 1}, {"both", 0}, {"da", 0}};
  static const uint32_t stage[OPI_COUNT(wanted)] = {0};
  const uint32_t F = 1u << OPI_PROGRAM_F, B = 1u << OPI_PROGRAM_B;
  const uint32_t used[] = {F | B, F | B, F | B, F | B, F | B};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_stretches found;
  opi_cut *c = NULL;
  toy t;
  toy_open(&t);
  const uint32_t x = toy_input(&t, "x", 8);
  const uint32_t a = forward(&t, "a", x, OPIPE_NONE), copy = forward(&t, "copy", a, OPIPE_NONE);
  const uint32_t b = forward(&t, "b", copy, OPIPE_NONE), sum = forward(&t, "sum", b, OPIPE_NONE);
  const uint32_t loss = forward(&t, "c", sum, a), dc = backward(&t, "dc", loss, OPIPE_NONE);
  const uint32_t dsum = backward(&t, "dsum", dc, OPIPE_NONE), db = backward(&t, "db", dsum, copy);
  const uint32_t back = backward(&t, "sum_back", db, OPIPE_NONE);
  const uint32_t both = backward(&t, "both", back, dc);
  (void)backward(&t, "da", both, x);
  toy_output(&t, loss);
  const opi_stretch_source from = {t.graph, stage, anchor, 1, sums};
  OPI_ASSERT_OK_FATAL(opi_stretches_find(&from, &t.arena, &found, &err), &err);
  OPI_ASSERT_INT(found.n_places, 5);
  for (size_t i = 0; i < OPI_COUNT(wanted); ++i)
    OPI_ASSERT_INT(place_of(&t, &found, wanted[i].name), wanted[i].place);
  const opi_training training = {.graph = t.graph};
  const opi_cut_source source = {.graph = t.graph,
                                 .training = &training,
                                 .stage = found.stage,
                                 .used = used,
                                 .n_stages = found.n_places};
  OPI_ASSERT_OK_FATAL(opi_cut_build(&source, opi_allocator_system(), &c, &err), &err);
  OPI_ASSERT(has_node(c, 0, OPI_PROGRAM_F, "a") && has_node(c, 0, OPI_PROGRAM_F, "b"));
  OPI_ASSERT_INT(opi_program_of(c, 3, OPI_PROGRAM_F)->graph.n_nodes, 1);
  OPI_ASSERT_INT(opi_program_of(c, 1, OPI_PROGRAM_F)->graph.n_nodes, 0); /* joined */
  OPI_ASSERT_INT(opi_program_of(c, 2, OPI_PROGRAM_F)->graph.n_nodes, 0);
  OPI_ASSERT(has_node(c, 2, OPI_PROGRAM_B, "dsum") && has_node(c, 2, OPI_PROGRAM_B, "db"));
  OPI_ASSERT(has_node(c, 1, OPI_PROGRAM_B, "sum_back"));
  OPI_ASSERT(has_node(c, 0, OPI_PROGRAM_B, "both") && has_node(c, 0, OPI_PROGRAM_B, "da"));
  OPI_ASSERT(find_route(c, "b", 0, 3) != NULL && find_route(c, "sum", 3, 4) != NULL);
  OPI_ASSERT(find_route(c, "db", 2, 1) != NULL && find_route(c, "sum_back", 1, 0) != NULL);
  OPI_ASSERT(find_route(c, "copy", 0, 2) != NULL); /* kept for the backward of b */
  opi_cut_free(c);
  toy_close(&t);
}

/* Sums that do not wait for each other stand together; one that reads another's result does not. */
static void test_sums_beside_each_other_are_one_place(void) {
  static const uint32_t stage[] = {0, 0, 0, 0, 0, 0, 1, 1};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_stretches found;
  toy t;
  toy_open(&t);
  const uint32_t x = toy_input(&t, "x", 8);
  const uint32_t a = forward(&t, "a", x, OPIPE_NONE), b = forward(&t, "b", x, OPIPE_NONE);
  const uint32_t first = forward(&t, "sum0", a, OPIPE_NONE);
  const uint32_t second = forward(&t, "sum1", b, OPIPE_NONE);
  const uint32_t third = forward(&t, "sum2", first, second), c = forward(&t, "c", third, a);
  toy_output(&t, forward(&t, "sum3", forward(&t, "d", c, OPIPE_NONE), OPIPE_NONE));
  const opi_stretch_source from = {t.graph, stage, NULL, 2, sums};
  OPI_ASSERT_OK_FATAL(opi_stretches_find(&from, &t.arena, &found, &err), &err);
  OPI_ASSERT_INT(found.n_places, 5);
  OPI_ASSERT_INT(place_of(&t, &found, "b"), 0);
  OPI_ASSERT_INT(place_of(&t, &found, "sum0"), 1);
  OPI_ASSERT_INT(place_of(&t, &found, "sum1"), 1);
  OPI_ASSERT_INT(place_of(&t, &found, "sum2"), 3);
  OPI_ASSERT_INT(place_of(&t, &found, "c"), 4);
  OPI_ASSERT_INT(place_of(&t, &found, "d"), 5 + 0);
  OPI_ASSERT_INT(place_of(&t, &found, "sum3"), 5 + 1); /* the stage ends with it */
  toy_close(&t);
}

OPI_TEST_MAIN("cut", OPI_TEST(test_routes_go_straight_to_each_reader),
              OPI_TEST(test_a_shared_parameter_is_one_entry),
              OPI_TEST(test_outputs_know_where_they_come_from),
              OPI_TEST(test_an_edge_that_goes_back_is_refused),
              OPI_TEST(test_a_stage_is_cut_at_its_sums),
              OPI_TEST(test_sums_beside_each_other_are_one_place))
