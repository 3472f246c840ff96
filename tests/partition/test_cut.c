/* SPDX-License-Identifier: Apache-2.0 */
/* Taking a graph apart: routes, skips, shared parameters, outputs that come from anywhere. */
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

OPI_TEST_MAIN("cut", OPI_TEST(test_routes_go_straight_to_each_reader),
              OPI_TEST(test_a_shared_parameter_is_one_entry),
              OPI_TEST(test_outputs_know_where_they_come_from),
              OPI_TEST(test_an_edge_that_goes_back_is_refused))
