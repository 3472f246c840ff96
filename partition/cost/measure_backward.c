/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the backward nodes of a training graph. Each becomes a stage of its own, with
 * boundaries, parameters or scalars as inputs, and is run by measure.c.
 */
#include <string.h>

#include "partition/cost/backward.h"
#include "partition/cost/measure.h"
#include "partition/program/cut.h"

typedef struct lone {
  const opi_training *training;
  opi_arena arena;
  uint32_t *slot_of; /* [n_values] index in sources; OPIPE_NONE: not a parameter */
  opipe_param_source *sources;
  uint32_t n_params, room;
  opipe_error *err;
} lone;

static bool is_measured(const opi_node *node) {
  return node->pass != OPIPE_PASS_FORWARD && opi_op_of(node)->kind != OPI_KIND_ACCUMULATE;
}

static uint32_t scalar_of(const opi_training *t, uint32_t v) {
  for (uint32_t i = 0; i < OPI_SCALAR_TABLE; ++i) {
    if (t->scalars[i] == v)
      return i;
  }
  return OPIPE_NONE;
}

static opipe_status param_slot(lone *l, uint32_t v, uint32_t *out_slot) {
  const opi_value *value = &l->training->graph->values[v];
  if (l->slot_of[v] == OPIPE_NONE) {
    if (!opi_arena_grow(&l->arena, (void **)&l->sources, &l->room, l->n_params + 1,
                        sizeof *l->sources))
      return opi_fail_nomem(l->err, sizeof *l->sources, "a parameter");
    l->sources[l->n_params] = opi_param_source_of(value);
    l->slot_of[v] = l->n_params++;
  }
  *out_slot = l->slot_of[v];
  return OPIPE_OK;
}

/* Gives an input its role: scalar, parameter, constant or boundary. */
static opipe_status place_input(lone *l, opipe_graph *graph, uint32_t v, opipe_value *out) {
  const opi_value *value = &l->training->graph->values[v];
  const uint32_t scalar = scalar_of(l->training, v);
  if (scalar != OPIPE_NONE) {
    out->role = OPIPE_VALUE_SCALAR;
    out->slot = scalar;
    return OPIPE_OK;
  }
  if (opi_value_is_known(value) && opi_value_is_param(value)) {
    out->role = OPIPE_VALUE_PARAMETER;
    return param_slot(l, v, &out->slot);
  }
  if (opi_value_is_known(value)) {
    out->role = OPIPE_VALUE_CONSTANT;
    out->data = value->data;
    return OPIPE_OK;
  }
  out->role = OPIPE_VALUE_INPUT;
  out->slot = graph->n_boundaries++;
  return OPIPE_OK;
}

static opipe_status isolate(lone *l, const opi_node *node, opipe_graph *graph) {
  const uint32_t most = node->n_in + node->n_out;
  opipe_value *values = OPI_ARENA_ARRAY(&l->arena, opipe_value, most);
  uint32_t *globals = OPI_ARENA_ARRAY(&l->arena, uint32_t, most);
  uint32_t *locals = OPI_ARENA_ARRAY(&l->arena, uint32_t, most);
  opipe_node *view = OPI_ARENA_ARRAY(&l->arena, opipe_node, 1);
  if (values == NULL || globals == NULL || locals == NULL || view == NULL)
    return opi_fail_nomem(l->err, most * sizeof *values, "a measurement");
  uint32_t n = 0;
  for (uint32_t i = 0; i < most; ++i) {
    const bool made = i >= node->n_in;
    const uint32_t v = made ? node->out[i - node->n_in] : node->in[i];
    uint32_t at = 0;
    while (at < n && globals[at] != v) /* listed once even if read twice */
      ++at;
    locals[i] = v == OPIPE_NONE ? OPIPE_NONE : at;
    if (v == OPIPE_NONE || at < n)
      continue;
    values[n] = opi_value_view(&l->training->graph->values[v]);
    globals[n] = v;
    if (!made) {
      OPI_TRY(place_input(l, graph, v, &values[n]));
    } else {
      values[n].role = OPIPE_VALUE_OUTPUT;
      values[n].slot = graph->n_boundaries++;
    }
    ++n;
  }
  *view = opi_node_view(node, locals, locals + node->n_in);
  graph->struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars);
  graph->n_values = n;
  graph->values = values;
  graph->nodes = view;
  graph->n_nodes = 1;
  graph->n_scalars = opi_scalar_count(l->training->scalars);
  return OPIPE_OK;
}

static opipe_status isolate_all(lone *l, opipe_graph *graphs, const opipe_graph **list,
                                uint32_t *out_n) {
  const opi_graph *g = l->training->graph;
  *out_n = 0;
  memset(l->slot_of, 0xff, g->n_values * sizeof *l->slot_of);
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (!is_measured(&g->nodes[n]))
      continue;
    list[*out_n] = &graphs[*out_n];
    OPI_TRY(isolate(l, &g->nodes[n], &graphs[(*out_n)++]));
  }
  for (uint32_t i = 0; i < *out_n; ++i)
    graphs[i].n_params = l->n_params;
  return OPIPE_OK;
}

opipe_status opi_train_measure(const opi_training *training, const opi_backend_ref *backend,
                               opipe_device *device, const opipe_allocator *allocator,
                               uint64_t (*now_ns)(void), double *out_ns, opipe_error *err) {
  const opi_graph *g = training->graph;
  lone l = {.training = training, .err = err};
  opipe_status status = OPIPE_OK;
  uint32_t n_graphs = 0, next = 0;
  opi_arena_init(&l.arena, allocator, 0);
  opipe_graph *graphs = OPI_ARENA_ARRAY(&l.arena, opipe_graph, g->n_nodes);
  const opipe_graph **list = OPI_ARENA_ARRAY(&l.arena, const opipe_graph *, g->n_nodes);
  double *ns = OPI_ARENA_ARRAY(&l.arena, double, g->n_nodes);
  l.slot_of = OPI_ARENA_ARRAY(&l.arena, uint32_t, g->n_values);
  if (graphs == NULL || list == NULL || ns == NULL || l.slot_of == NULL)
    status = opi_fail_nomem(err, g->n_nodes * sizeof *graphs, "a measurement");
  if (status == OPIPE_OK)
    status = isolate_all(&l, graphs, list, &n_graphs);
  if (status == OPIPE_OK) {
    status = opi_measure_programs(list, n_graphs, l.sources, l.n_params, backend, device, allocator,
                                  now_ns, ns, err);
  }
  for (uint32_t n = 0; n < g->n_nodes && status == OPIPE_OK; ++n)
    out_ns[n] = is_measured(&g->nodes[n]) ? ns[next++] : -1;
  opi_arena_release(&l.arena);
  return status;
}
