/* SPDX-License-Identifier: Apache-2.0 */
/* File graphs made by hand, for tests of operators and passes: no file is read.
 *
 *   test_graph t; test_open(&t);
 *   uint32_t x = test_input(&t, "x", OPIPE_FLOAT, shape, 2);
 *   ... test_node(&t, "Add", 13, in, 2, NULL, 0, &y, 1); test_output(&t, y);
 *   opi_bind(&t.model, &options, &bound, &err); ... test_close(&t);
 * Out of memory ends the test program.
 */
#ifndef TESTS_LOADER_GRAPHS_H
#define TESTS_LOADER_GRAPHS_H

#include <stdio.h>
#include <stdlib.h>

#include "loader/passes/passes.h"
#include "tests/support/support.h"

typedef struct test_graph {
  opi_arena arena;
  opi_model model;
  opi_graph *graph; /* that things are added to: the main graph, or a body */
  uint32_t n_names;
} test_graph;

static inline void test_need(bool there) {
  if (there)
    return;
  fprintf(stderr, "out of memory in a test\n");
  exit(1);
}

static inline void test_open(test_graph *t) {
  memset(t, 0, sizeof(*t));
  opi_arena_init(&t->arena, opi_allocator_system(), 0);
  t->graph = opi_graph_new(&t->arena, "test");
  test_need(t->graph != NULL);
  t->model.allocator = opi_allocator_system();
  t->model.graph = t->graph;
}

static inline void test_close(test_graph *t) {
  opi_arena_release(&t->arena);
}

static inline const char *test_name(test_graph *t, const char *name) {
  if (name != NULL)
    return name;
  const char *made = opi_arena_printf(&t->arena, "t%u", t->n_names++);
  test_need(made != NULL);
  return made;
}

static inline uint32_t test_value(test_graph *t, const char *name) {
  const uint32_t v = opi_graph_add_value(t->graph, test_name(t, name), OPIPE_UNDEFINED, NULL, -1);
  test_need(v != OPIPE_NONE);
  return v;
}

/* A graph input; entries of -1 are free dimensions without a name. */
static inline uint32_t test_input(test_graph *t, const char *name, uint32_t dtype,
                                  const int64_t *shape, uint32_t rank) {
  const uint32_t v = opi_graph_add_value(t->graph, test_name(t, name), dtype, shape, (int32_t)rank);
  test_need(v != OPIPE_NONE && opi_graph_add_input(t->graph, v));
  return v;
}

/* Names a free dimension. */
static inline void test_dim(test_graph *t, uint32_t input, uint32_t axis, const char *name) {
  opi_value *value = &t->graph->values[input];
  if (value->dim_names == NULL) {
    value->dim_names = OPI_ARENA_ARRAY(&t->arena, const char *, (uint32_t)value->rank);
    test_need(value->dim_names != NULL);
  }
  value->dim_names[axis] = name;
  value->shape[axis] = -1;
}

/* An initializer; data NULL: zeros. */
static inline uint32_t test_known(test_graph *t, const char *name, uint32_t dtype,
                                  const int64_t *shape, uint32_t rank, const void *data) {
  uint64_t n_bytes = 0;
  test_need(opi_tensor_bytes(dtype, shape, rank, &n_bytes));
  const uint32_t v = opi_graph_add_value(t->graph, test_name(t, name), dtype, shape, (int32_t)rank);
  test_need(v != OPIPE_NONE);
  opi_value *value = &t->graph->values[v];
  value->data =
      data != NULL ? opi_arena_copy(&t->arena, data, n_bytes) : opi_arena_alloc(&t->arena, n_bytes);
  test_need(value->data != NULL);
  value->n_bytes = n_bytes;
  value->flags |= OPI_VALUE_INITIALIZER;
  return v;
}

static inline uint32_t test_ints(test_graph *t, const char *name, const int64_t *ints, uint32_t n) {
  const int64_t shape[1] = {n};
  return test_known(t, name, OPIPE_INT64, shape, 1, ints);
}

/* Adds a node that makes n_out new values, named out_names[o] where given through test_rename. */
static inline opi_node *test_node(test_graph *t, const char *op, uint32_t version,
                                  const uint32_t *in, uint32_t n_in, const opipe_attr *attrs,
                                  uint32_t n_attrs, uint32_t *out, uint32_t n_out) {
  for (uint32_t o = 0; o < n_out; ++o)
    out[o] = test_value(t, NULL);
  const char *name = opi_arena_printf(&t->arena, "%s_%u", op, t->n_names++);
  opi_node *node = opi_graph_add_node(t->graph, name, op, "", n_in, n_out, n_attrs);
  test_need(name != NULL && node != NULL);
  node->version = version;
  if (n_in != 0)
    memcpy(node->in, in, n_in * sizeof(*in));
  if (n_attrs != 0)
    memcpy(node->attrs, attrs, n_attrs * sizeof(*attrs));
  for (uint32_t o = 0; o < n_out; ++o) {
    node->out[o] = out[o];
    t->graph->values[out[o]].producer = t->graph->n_nodes - 1;
  }
  return node;
}

/* A node without attributes and with one output. */
static inline uint32_t test_op(test_graph *t, const char *op, uint32_t a, uint32_t b) {
  const uint32_t in[2] = {a, b};
  uint32_t out = OPIPE_NONE;
  test_node(t, op, 18, in, b == OPIPE_NONE ? 1 : 2, NULL, 0, &out, 1);
  return out;
}

static inline void test_rename(test_graph *t, uint32_t value, const char *name) {
  t->graph->values[value].name = name;
}

static inline void test_output(test_graph *t, uint32_t value) {
  test_need(opi_graph_add_output(t->graph, value));
}

static inline opi_bind_options test_options(void) {
  return (opi_bind_options){.flags = OPI_BIND_NO_FUSE, .allocator = opi_allocator_system()};
}

/* How many nodes of the operator a graph has. */
static inline uint32_t test_count(const opi_graph *graph, const char *op) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < graph->n_nodes; ++i)
    n += strcmp(graph->nodes[i].op, op) == 0;
  return n;
}

#endif /* TESTS_LOADER_GRAPHS_H */
