/* SPDX-License-Identifier: Apache-2.0 */
/* A bound graph's own consistency. Whatever is found is a bug of the pass before, not of the file:
 * the status is OPIPE_E_INTERNAL and the message names the value or the node.
 */
#include "loader/graph/graph.h"

#include <inttypes.h>
#include <string.h>

static opipe_status check_value(const opi_graph *graph, uint32_t v, opipe_error *err) {
  const opi_value *value = &graph->values[v];
  uint64_t n_bytes = 0;
  if (value->name == NULL)
    return opi_fail(err, OPIPE_E_INTERNAL, "value %" PRIu32 " has no name", v);
  if (value->rank < 0 || value->rank > OPIPE_MAX_RANK) {
    return opi_fail(err, OPIPE_E_INTERNAL, "value '%s' has rank %" PRId32, value->name,
                    value->rank);
  }
  if (!opi_tensor_bytes(value->dtype, value->shape, (uint32_t)value->rank, &n_bytes)) {
    return opi_fail(err, OPIPE_E_INTERNAL, "value '%s' has no size (type %s)", value->name,
                    opi_dtype_name(value->dtype));
  }
  if (n_bytes != value->n_bytes) {
    return opi_fail(err, OPIPE_E_INTERNAL, "value '%s' says %" PRIu64 " bytes, its shape %" PRIu64,
                    value->name, value->n_bytes, n_bytes);
  }
  if (value->producer != OPIPE_NONE && value->producer >= graph->n_nodes) {
    return opi_fail(err, OPIPE_E_INTERNAL, "value '%s' has producer %" PRIu32 " of %" PRIu32,
                    value->name, value->producer, graph->n_nodes);
  }
  if (value->data != NULL && (value->producer != OPIPE_NONE || (value->flags & OPI_VALUE_INPUT))) {
    return opi_fail(err, OPIPE_E_INTERNAL, "value '%s' is both known and computed or fed",
                    value->name);
  }
  return OPIPE_OK;
}

static opipe_status check_input(const opi_graph *graph, uint32_t n, uint32_t v, opipe_error *err) {
  const opi_node *node = &graph->nodes[n];
  if (v == OPIPE_NONE)
    return OPIPE_OK;
  if (v >= graph->n_values) {
    return opi_fail(err, OPIPE_E_INTERNAL, "node '%s' reads value %" PRIu32 " of %" PRIu32,
                    node->name, v, graph->n_values);
  }
  const opi_value *value = &graph->values[v];
  if (value->producer != OPIPE_NONE && value->producer >= n) {
    return opi_fail(err, OPIPE_E_INTERNAL,
                    "node '%s' (%" PRIu32 ") reads '%s' before node %" PRIu32 " makes it",
                    node->name, n, value->name, value->producer);
  }
  const bool made = value->producer != OPIPE_NONE || value->data != NULL;
  if (!made && !(value->flags & (OPI_VALUE_INPUT | OPI_VALUE_MISSING | OPI_VALUE_SCALAR))) {
    return opi_fail(err, OPIPE_E_INTERNAL, "node '%s' reads '%s', which nothing makes", node->name,
                    value->name);
  }
  return OPIPE_OK;
}

static opipe_status check_node(const opi_graph *graph, uint32_t n, opipe_error *err) {
  const opi_node *node = &graph->nodes[n];
  for (uint32_t i = 0; i < node->n_in; ++i)
    OPI_TRY(check_input(graph, n, node->in[i], err));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    if (v >= graph->n_values || graph->values[v].producer != n) {
      return opi_fail(err, OPIPE_E_INTERNAL, "output %" PRIu32 " of node '%s' is not its own", o,
                      node->name);
    }
  }
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    if (node->attrs[a].kind == OPI_ATTR_GRAPH)
      return opi_fail(err, OPIPE_E_INTERNAL, "node '%s' still holds a subgraph", node->name);
  }
  return OPIPE_OK;
}

static opipe_status check_names(const opi_graph *graph, opipe_error *err) {
  opi_map *map = NULL;
  uint32_t other = 0;
  opipe_status status = opi_map_create(graph->arena->allocator, &map, err);
  if (status < 0)
    return status;
  for (uint32_t v = 0; v < graph->n_values && status >= 0; ++v) {
    const char *name = graph->values[v].name;
    status = opi_map_claim(map, name, v, &other, err);
    if (status >= 0 && other != v) {
      status = opi_fail(err, OPIPE_E_INTERNAL,
                        "values %" PRIu32 " and %" PRIu32 " share the name '%s'", other, v, name);
    }
  }
  opi_map_free(map);
  return status;
}

opipe_status opi_graph_verify(const opi_graph *graph, opipe_error *err) {
  for (uint32_t v = 0; v < graph->n_values; ++v)
    OPI_TRY(check_value(graph, v, err));
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    OPI_TRY(check_node(graph, n, err));
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const uint32_t v = graph->inputs[i];
    if (v >= graph->n_values || graph->values[v].producer != OPIPE_NONE)
      return opi_fail(err, OPIPE_E_INTERNAL, "graph input %" PRIu32 " is computed or unknown", i);
  }
  for (uint32_t i = 0; i < graph->n_outputs; ++i) {
    const uint32_t v = graph->outputs[i];
    if (v >= graph->n_values || graph->values[v].producer == OPIPE_NONE)
      return opi_fail(err, OPIPE_E_INTERNAL, "graph output %" PRIu32 " is made by no node", i);
  }
  return check_names(graph, err);
}
