/* SPDX-License-Identifier: Apache-2.0 */
/* Growing a graph: values, nodes, inputs and outputs are appended to arrays in the graph's arena.
 *
 * Arrays grow by doubling, so that indices stay valid while pointers may move. Nothing is ever
 * removed here; passes that drop things rebuild the arrays.
 */
#include "loader/graph/graph.h"

#include <string.h>

opi_graph *opi_graph_new(opi_arena *arena, const char *name) {
  opi_graph *graph = OPI_ARENA_NEW(arena, opi_graph);
  if (graph == NULL)
    return NULL;
  graph->arena = arena;
  graph->name = name != NULL ? name : "";
  return graph;
}

bool opi_graph_reserve(opi_graph *graph, uint32_t n_values, uint32_t n_nodes) {
  return opi_arena_grow(graph->arena, (void **)&graph->values, &graph->room_values, n_values,
                        sizeof(opi_value)) &&
         opi_arena_grow(graph->arena, (void **)&graph->nodes, &graph->room_nodes, n_nodes,
                        sizeof(opi_node));
}

uint32_t opi_graph_add_value(opi_graph *graph, const char *name, uint32_t dtype,
                             const int64_t *shape, int32_t rank) {
  if (graph->n_values >= OPIPE_NONE - 1)
    return OPIPE_NONE;
  if (!opi_arena_grow(graph->arena, (void **)&graph->values, &graph->room_values,
                      graph->n_values + 1, sizeof(opi_value)))
    return OPIPE_NONE;
  int64_t *own = NULL;
  if (rank > 0) {
    own = OPI_ARENA_ARRAY(graph->arena, int64_t, (uint32_t)rank);
    if (own == NULL)
      return OPIPE_NONE;
    for (int32_t d = 0; d < rank; ++d)
      own[d] = shape != NULL ? shape[d] : -1;
  }
  opi_value *value = &graph->values[graph->n_values];
  memset(value, 0, sizeof(*value));
  value->name = name;
  value->shape = own;
  value->rank = rank;
  value->dtype = dtype;
  value->producer = OPIPE_NONE;
  value->source = OPIPE_NONE;
  return graph->n_values++;
}

static uint32_t *index_array(opi_arena *arena, uint32_t n) {
  uint32_t *array = OPI_ARENA_ARRAY(arena, uint32_t, n);
  if (array == NULL)
    return NULL;
  for (uint32_t i = 0; i < n; ++i)
    array[i] = OPIPE_NONE;
  return array;
}

opi_node *opi_graph_add_node(opi_graph *graph, const char *name, const char *op, const char *domain,
                             uint32_t n_in, uint32_t n_out, uint32_t n_attrs) {
  if (graph->n_nodes >= OPIPE_NONE - 1)
    return NULL;
  if (!opi_arena_grow(graph->arena, (void **)&graph->nodes, &graph->room_nodes, graph->n_nodes + 1,
                      sizeof(opi_node)))
    return NULL;
  uint32_t *in = index_array(graph->arena, n_in);
  uint32_t *out = index_array(graph->arena, n_out);
  opipe_attr *attrs = OPI_ARENA_ARRAY(graph->arena, opipe_attr, n_attrs);
  if (in == NULL || out == NULL || attrs == NULL)
    return NULL;
  opi_node *node = &graph->nodes[graph->n_nodes++];
  memset(node, 0, sizeof(*node));
  node->name = name;
  node->op = op;
  node->domain = domain != NULL ? domain : "";
  node->in = in;
  node->out = out;
  node->attrs = attrs;
  node->n_in = n_in;
  node->n_out = n_out;
  node->n_attrs = n_attrs;
  node->source = OPIPE_NONE;
  node->stage = -1;
  node->pass = OPIPE_PASS_FORWARD;
  return node;
}

static bool add_index(opi_graph *graph, uint32_t **array, uint32_t *n, uint32_t *room,
                      uint32_t value) {
  if (!opi_arena_grow(graph->arena, (void **)array, room, *n + 1, sizeof(uint32_t)))
    return false;
  (*array)[(*n)++] = value;
  return true;
}

bool opi_graph_add_input(opi_graph *graph, uint32_t value) {
  if (!add_index(graph, &graph->inputs, &graph->n_inputs, &graph->room_inputs, value))
    return false;
  graph->values[value].flags |= OPI_VALUE_INPUT;
  return true;
}

bool opi_graph_add_output(opi_graph *graph, uint32_t value) {
  if (!add_index(graph, &graph->outputs, &graph->n_outputs, &graph->room_outputs, value))
    return false;
  graph->values[value].flags |= OPI_VALUE_OUTPUT;
  return true;
}

const opi_value *opi_graph_initializer(const opi_graph *graph, const char *name) {
  const opi_value *found = NULL;
  for (uint32_t v = 0; v < graph->n_values && found == NULL; ++v) {
    if ((graph->values[v].flags & OPI_VALUE_INITIALIZER) != 0 &&
        strcmp(graph->values[v].name, name) == 0)
      found = &graph->values[v];
  }
  for (uint32_t n = 0; n < graph->n_nodes && found == NULL; ++n) {
    const opi_node *node = &graph->nodes[n];
    for (uint32_t a = 0; a < node->n_attrs && found == NULL; ++a) {
      if (node->attrs[a].kind == OPI_ATTR_GRAPH)
        found = opi_graph_initializer(node->attrs[a].data, name);
    }
  }
  return found;
}

const opipe_attr *opi_attr_find(const opi_node *node, const char *name) {
  for (uint32_t i = 0; i < node->n_attrs; ++i) {
    if (strcmp(node->attrs[i].name, name) == 0)
      return &node->attrs[i];
  }
  return NULL;
}

int64_t opi_attr_int(const opi_node *node, const char *name, int64_t fallback) {
  const opipe_attr *attr = opi_attr_find(node, name);
  return attr != NULL && attr->kind == OPIPE_ATTR_INT ? attr->i : fallback;
}

double opi_attr_float(const opi_node *node, const char *name, double fallback) {
  const opipe_attr *attr = opi_attr_find(node, name);
  return attr != NULL && attr->kind == OPIPE_ATTR_FLOAT ? attr->f : fallback;
}

const char *opi_attr_string(const opi_node *node, const char *name, const char *fallback) {
  const opipe_attr *attr = opi_attr_find(node, name);
  return attr != NULL && attr->kind == OPIPE_ATTR_STRING ? (const char *)attr->data : fallback;
}

const int64_t *opi_attr_ints(const opi_node *node, const char *name, uint32_t *out_n) {
  const opipe_attr *attr = opi_attr_find(node, name);
  const bool found = attr != NULL && attr->kind == OPIPE_ATTR_INTS;
  *out_n = found ? attr->n : 0;
  return found ? (const int64_t *)attr->data : NULL;
}
