/* SPDX-License-Identifier: Apache-2.0 */
/* A file's graph as the tables of a host that has it in memory (opipe/build.h): the same names,
 * types and nodes, functions expanded; content by address, where the file's is mapped.
 */
#ifndef TESTS_LOADER_WIRE_TABLES_H
#define TESTS_LOADER_WIRE_TABLES_H

#include <opipe/host.h>

#include "loader/graph/model.h"
#include "tests/support/support.h"

/* The name that a value of an inner graph has where it comes from. */
static const char *tables_name(const opi_graph *g, uint32_t v) {
  for (uint32_t i = 0; i < g->n_captures; ++i) {
    if (g->capture_inner[i] == v)
      return tables_name(g->outer, g->capture_outer[i]);
  }
  return g->values[v].name;
}

static opipe_build_value tables_value(const opi_graph *g, uint32_t v) {
  const opi_value *value = &g->values[v];
  return (opipe_build_value){.name = tables_name(g, v),
                             .shape = value->shape,
                             .dim_names = value->dim_names,
                             .dtype = value->dtype,
                             .rank = value->rank};
}

static const char **tables_names(opi_arena *arena, const opi_graph *g, const uint32_t *list,
                                 uint32_t n) {
  const char **names = OPI_ARENA_ARRAY(arena, const char *, n);
  for (uint32_t i = 0; i < n; ++i)
    names[i] = list[i] == OPIPE_NONE ? "" : tables_name(g, list[i]);
  return names;
}

/* False: something that tables cannot say. */
static bool tables_fill(opi_arena *arena, const opi_graph *g, opipe_build_graph *out) {
  opipe_build_value *inputs = OPI_ARENA_ARRAY(arena, opipe_build_value, g->n_inputs);
  opipe_build_value *outputs = OPI_ARENA_ARRAY(arena, opipe_build_value, g->n_outputs);
  opipe_build_tensor *tensors = OPI_ARENA_ARRAY(arena, opipe_build_tensor, g->n_values);
  opipe_build_node *nodes = OPI_ARENA_ARRAY(arena, opipe_build_node, g->n_nodes);
  *out = opipe_build_graph_init();
  out->name = g->name;
  out->inputs = inputs, out->n_inputs = g->n_inputs;
  out->outputs = outputs, out->n_outputs = g->n_outputs;
  out->tensors = tensors, out->nodes = nodes, out->n_nodes = g->n_nodes;
  for (uint32_t i = 0; i < g->n_inputs; ++i)
    inputs[i] = tables_value(g, g->inputs[i]);
  for (uint32_t i = 0; i < g->n_outputs; ++i)
    outputs[i] = tables_value(g, g->outputs[i]);
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *value = &g->values[v];
    if ((value->flags & OPI_VALUE_INITIALIZER) == 0)
      continue;
    tensors[out->n_tensors++] = (opipe_build_tensor){.name = value->name,
                                                     .shape = value->shape,
                                                     .data = value->data,
                                                     .n_bytes = value->n_bytes,
                                                     .dtype = value->dtype,
                                                     .rank = (uint32_t)value->rank};
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *from = &g->nodes[n];
    opipe_attr *attrs = OPI_ARENA_ARRAY(arena, opipe_attr, from->n_attrs);
    nodes[n] = (opipe_build_node){.name = from->name,
                                  .op = from->op,
                                  .domain = from->domain,
                                  .inputs = tables_names(arena, g, from->in, from->n_in),
                                  .outputs = tables_names(arena, g, from->out, from->n_out),
                                  .attrs = attrs,
                                  .n_inputs = from->n_in,
                                  .n_outputs = from->n_out,
                                  .n_attrs = from->n_attrs};
    for (uint32_t a = 0; a < from->n_attrs; ++a) {
      attrs[a] = from->attrs[a];
      if (attrs[a].kind < OPI_ATTR_GRAPH)
        continue;
      opipe_build_graph *body = OPI_ARENA_NEW(arena, opipe_build_graph);
      if (attrs[a].kind != OPI_ATTR_GRAPH || !tables_fill(arena, attrs[a].data, body))
        return false;
      attrs[a].kind = OPIPE_ATTR_GRAPH;
      attrs[a].data = body;
    }
  }
  return true;
}

/* A body that a function brought may be of other versions than the model's. */
static bool tables_versions(const opi_model *model, const opi_graph *g) {
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    bool same = false;
    for (uint32_t o = 0; o < model->n_opsets; ++o) {
      same = same || (strcmp(model->opsets[o].domain, node->domain) == 0 &&
                      model->opsets[o].version == (int64_t)node->version);
    }
    if (!same)
      return false;
  }
  return true;
}

/* All in `arena`; what it points to is the model's. False: tables cannot say it. */
static bool tables_of(opi_arena *arena, const opi_model *model, opipe_build_params *out) {
  opipe_build_graph *graph = OPI_ARENA_NEW(arena, opipe_build_graph);
  opipe_build_opset *opsets = OPI_ARENA_ARRAY(arena, opipe_build_opset, model->n_opsets);
  for (uint32_t o = 0; o < model->n_opsets; ++o)
    opsets[o] = (opipe_build_opset){model->opsets[o].domain, model->opsets[o].version};
  *out = opipe_build_params_init();
  out->graph = graph;
  out->opsets = opsets;
  out->n_opsets = model->n_opsets;
  out->ir_version = (uint32_t)model->ir_version;
  return tables_versions(model, model->graph) && tables_fill(arena, model->graph, graph);
}

#endif /* TESTS_LOADER_WIRE_TABLES_H */
