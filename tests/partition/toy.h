/* SPDX-License-Identifier: Apache-2.0 */
/* Bound graphs made by hand for tests of the partition: float tensors of given sizes, nodes without
 * meaning. No backend is needed. */
#ifndef TESTS_PARTITION_TOY_H
#define TESTS_PARTITION_TOY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "partition/cost/profile.h"
#include "tests/support/support.h"

typedef struct toy {
  opi_arena arena;
  opi_graph *graph;
} toy;

static inline void toy_need(bool there) {
  if (there)
    return;
  fprintf(stderr, "out of memory in a test\n");
  exit(1);
}

static inline void toy_open(toy *t) {
  opi_arena_init(&t->arena, opi_allocator_system(), 0);
  t->graph = opi_graph_new(&t->arena, "toy");
  toy_need(t->graph != NULL);
}

static inline void toy_close(toy *t) {
  opi_arena_release(&t->arena);
}

/* A float value of n elements. */
static inline uint32_t toy_value(toy *t, const char *name, int64_t n) {
  const uint32_t v =
      opi_graph_add_value(t->graph, opi_arena_strdup(&t->arena, name), OPIPE_FLOAT, &n, 1);
  toy_need(v != OPIPE_NONE);
  t->graph->values[v].n_bytes = (uint64_t)n * 4;
  return v;
}

static inline uint32_t toy_input(toy *t, const char *name, int64_t n) {
  const uint32_t v = toy_value(t, name, n);
  toy_need(opi_graph_add_input(t->graph, v));
  t->graph->values[v].flags |= OPI_VALUE_INPUT;
  return v;
}

static inline uint32_t toy_param(toy *t, const char *name, int64_t n) {
  const uint32_t v = toy_value(t, name, n);
  void *data = opi_arena_alloc(&t->arena, (size_t)n * 4);
  toy_need(data != NULL);
  t->graph->values[v].data = data;
  t->graph->values[v].flags |= OPI_VALUE_INITIALIZER;
  return v;
}

/* A node that reads `in` and makes one value called `name` of n elements. */
static inline uint32_t toy_node(toy *t, const char *name, const uint32_t *in, uint32_t n_in,
                                int64_t n) {
  const uint32_t out = toy_value(t, name, n);
  opi_node *node = opi_graph_add_node(t->graph, opi_arena_printf(&t->arena, "n_%s", name), "Add",
                                      "", n_in, 1, 0);
  toy_need(node != NULL);
  memcpy(node->in, in, n_in * sizeof(*in));
  node->out[0] = out;
  node->stage = -1;
  t->graph->values[out].producer = t->graph->n_nodes - 1;
  return out;
}

static inline void toy_output(toy *t, uint32_t v) {
  toy_need(opi_graph_add_output(t->graph, v));
  t->graph->values[v].flags |= OPI_VALUE_OUTPUT;
}

/* A plan of n stages, one per rank, M micro-batches in rising order. */
static inline opi_decision toy_plan(toy *t, uint32_t n_stages, uint32_t n_microbatches,
                                    uint32_t depth) {
  opi_decision plan = {.allocator = opi_allocator_system(),
                       .n_ranks = n_stages,
                       .n_stages = n_stages,
                       .n_replicas = 1,
                       .n_microbatches = n_microbatches,
                       .depth = depth,
                       .schedule.name = "toy"};
  plan.instance_rank = OPI_ARENA_ARRAY(&t->arena, uint32_t, n_stages);
  plan.devices = OPI_ARENA_ARRAY(&t->arena, opi_device_spec, n_stages);
  plan.actions = OPI_ARENA_ARRAY(&t->arena, opipe_action, n_stages * n_microbatches);
  plan.rank_first = OPI_ARENA_ARRAY(&t->arena, uint32_t, n_stages + 1);
  toy_need(plan.instance_rank != NULL && plan.devices != NULL && plan.actions != NULL &&
           plan.rank_first != NULL);
  for (uint32_t s = 0; s < n_stages; ++s) {
    plan.instance_rank[s] = s;
    plan.rank_first[s] = plan.n_actions;
    for (uint32_t m = 0; m < n_microbatches; ++m) {
      plan.actions[plan.n_actions++] =
          (opipe_action){.rank = s, .stage = s, .microbatch = m, .pass = OPIPE_PASS_FORWARD};
    }
  }
  plan.rank_first[n_stages] = plan.n_actions;
  return plan;
}

#endif /* TESTS_PARTITION_TOY_H */
