/* SPDX-License-Identifier: Apache-2.0 */
/* A bound graph in the form that backends see: same indices, shapes and names by reference. Inputs
 * take the boundary slots 0 .., outputs the slots after them; known values are constants.
 */
#include "loader/graph/graph.h"

static void fill_value(const opi_value *from, opipe_value *to) {
  to->name = from->name;
  to->shape = from->shape;
  to->n_bytes = from->n_bytes;
  to->dtype = from->dtype;
  to->rank = (uint32_t)from->rank;
  to->role = OPIPE_VALUE_TEMP;
  if (from->data != NULL) {
    to->role = OPIPE_VALUE_CONSTANT;
    to->data = from->data;
  }
}

static void fill_node(const opi_node *from, opipe_node *to) {
  to->name = from->name;
  to->op = from->op;
  to->domain = from->domain;
  to->in = from->in;
  to->out = from->out;
  to->attrs = from->attrs;
  to->n_in = from->n_in;
  to->n_out = from->n_out;
  to->n_attrs = from->n_attrs;
  to->version = from->version;
  to->pass = from->pass;
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
    fill_value(&graph->values[v], &values[v]);
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    fill_node(&graph->nodes[n], &nodes[n]);
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
