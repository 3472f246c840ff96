/* SPDX-License-Identifier: Apache-2.0 */
/* A bound graph in the form that backends see: same indices, shapes and names by reference. Inputs
 * take the boundary slots 0 .., outputs the slots after them; known values are constants.
 */
#include "loader/graph/graph.h"

opipe_value opi_value_view(const opi_value *value) {
  return (opipe_value){.name = value->name,
                       .shape = value->shape,
                       .n_bytes = value->n_bytes,
                       .dtype = value->dtype,
                       .rank = (uint32_t)value->rank,
                       .role = OPIPE_VALUE_TEMP,
                       .slot = OPIPE_NONE};
}

opipe_node opi_node_view(const opi_node *node, const uint32_t *in, const uint32_t *out) {
  return (opipe_node){.name = node->name,
                      .op = node->op,
                      .domain = node->domain,
                      .in = in,
                      .out = out,
                      .attrs = node->attrs,
                      .n_in = node->n_in,
                      .n_out = node->n_out,
                      .n_attrs = node->n_attrs,
                      .version = node->version,
                      .pass = node->pass};
}

opipe_status opi_graph_to_abi(const opi_graph *graph, opi_arena *arena, opipe_graph *out_graph,
                              opipe_error *err) {
  opipe_value *values = OPI_ARENA_ARRAY(arena, opipe_value, graph->n_values);
  opipe_node *nodes = OPI_ARENA_ARRAY(arena, opipe_node, graph->n_nodes);
  if (values == NULL || nodes == NULL) {
    return opi_fail_nomem(err, graph->n_values * sizeof(*values) + graph->n_nodes * sizeof(*nodes),
                          "the graph as a backend sees it");
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (graph->values[v].flags & OPI_VALUE_MISSING) {
      return opi_fail(err, OPIPE_E_STATE, "initializer '%s' has no data: its file was not opened",
                      graph->values[v].name);
    }
    values[v] = opi_value_view(&graph->values[v]);
    if (graph->values[v].data != NULL) {
      values[v].role = OPIPE_VALUE_CONSTANT;
      values[v].data = graph->values[v].data;
    }
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    nodes[n] = opi_node_view(&graph->nodes[n], graph->nodes[n].in, graph->nodes[n].out);
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    values[graph->inputs[i]].role = OPIPE_VALUE_INPUT;
    values[graph->inputs[i]].slot = i;
  }
  for (uint32_t i = 0; i < graph->n_outputs; ++i) {
    values[graph->outputs[i]].role = OPIPE_VALUE_OUTPUT;
    values[graph->outputs[i]].slot = graph->n_inputs + i;
  }
  *out_graph = (opipe_graph){.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars),
                             .n_values = graph->n_values,
                             .values = values,
                             .nodes = nodes,
                             .n_nodes = graph->n_nodes,
                             .n_boundaries = graph->n_inputs + graph->n_outputs};
  return OPIPE_OK;
}
