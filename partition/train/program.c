/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of one stage: the nodes of their phases, in graph order, as a backend compiles them.
 * Boundary slots count the inputs in the order of first use, then the outputs in the order of
 * values.
 */
#include <string.h>

#include "partition/cut/cutting.h"
#include "partition/train/build.h"

typedef struct making {
  opi_train_build *b;
  opi_train_program *program;
  opipe_value *values;
  uint32_t *globals; /* [n_values] */
  uint32_t stage, which, phases;
  uint32_t room_values, room_globals, room_cells, room_writes, room_params;
} making;

static bool belongs(const making *m, uint32_t node) {
  const opi_node *n = &m->b->graph->nodes[node];
  const uint32_t phase = n->pass == OPIPE_PASS_BACKWARD_INPUT    ? OPI_PHASE_I
                         : n->pass == OPIPE_PASS_BACKWARD_WEIGHT ? OPI_PHASE_W
                                                                 : OPI_PHASE_F;
  return m->b->training->stage[node] == m->stage && (m->phases & 1u << phase) != 0;
}

static opipe_status add_boundary(making *m, uint32_t cell, bool writes, opipe_value *value) {
  opi_train_program *p = m->program;
  opi_arena *arena = &m->b->cut->arena;
  const uint32_t n = p->graph.n_boundaries;
  if (!opi_arena_grow(arena, (void **)&p->cells, &m->room_cells, n + 1, sizeof *p->cells) ||
      !opi_arena_grow(arena, (void **)&p->writes, &m->room_writes, n + 1, sizeof *p->writes))
    return opi_fail_nomem(m->b->err, sizeof cell, "a boundary");
  p->cells[n] = cell;
  p->writes[n] = writes;
  value->role = writes ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_INPUT;
  value->slot = n;
  p->graph.n_boundaries = n + 1;
  return OPIPE_OK;
}

static opipe_status use_param(making *m, uint32_t slot) {
  opi_train_program *p = m->program;
  for (uint32_t i = 0; i < p->n_params; ++i) {
    if (p->params[i] == slot)
      return OPIPE_OK;
  }
  if (!opi_arena_grow(&m->b->cut->arena, (void **)&p->params, &m->room_params, p->n_params + 1,
                      sizeof *p->params))
    return opi_fail_nomem(m->b->err, sizeof slot, "a parameter");
  uint32_t at = p->n_params++;
  for (; at > 0 && p->params[at - 1] > slot; --at)
    p->params[at] = p->params[at - 1];
  p->params[at] = slot;
  return OPIPE_OK;
}

/* A value that the program reads and does not make. */
static opipe_status place_outer(making *m, uint32_t v, opipe_value *out) {
  const opi_train_build *b = m->b;
  const opi_value *value = &b->graph->values[v];
  if (b->scalar_of_value[v] != OPIPE_NONE) {
    out->role = OPIPE_VALUE_SCALAR;
    out->slot = b->scalar_of_value[v];
    return OPIPE_OK;
  }
  if (b->param_of_value[v] != OPIPE_NONE) {
    out->role = OPIPE_VALUE_PARAMETER;
    out->slot = b->param_of_value[v];
    return use_param(m, out->slot);
  }
  if (opi_value_is_known(value)) {
    out->role = OPIPE_VALUE_CONSTANT;
    out->data = value->data;
    return OPIPE_OK;
  }
  const uint32_t cell = b->cell_of[(size_t)v * b->cut->n_stages + m->stage];
  if (cell == OPIPE_NONE) {
    return opi_fail(b->err, OPIPE_E_INTERNAL, "stage %u reads tensor '%s' that it does not hold",
                    m->stage, value->name);
  }
  return add_boundary(m, cell, false, out);
}

static opipe_status local_value(making *m, uint32_t v, bool made, uint32_t *out_local) {
  opi_train_build *b = m->b;
  if (b->local[v] != OPIPE_NONE) {
    *out_local = b->local[v];
    return OPIPE_OK;
  }
  const uint32_t index = m->program->graph.n_values;
  if (!opi_arena_grow(&b->cut->arena, (void **)&m->values, &m->room_values, index + 1,
                      sizeof *m->values) ||
      !opi_arena_grow(&b->scratch, (void **)&m->globals, &m->room_globals, index + 1,
                      sizeof *m->globals))
    return opi_fail_nomem(b->err, sizeof *m->values, "a value");
  const opi_value *value = &b->graph->values[v];
  opipe_value *out = &m->values[index];
  *out = opi_value_view(value);
  if (b->gradient_of_value[v] != OPIPE_NONE) {
    out->role = OPIPE_VALUE_GRADIENT;
    out->slot = b->gradient_of_value[v];
    OPI_TRY(use_param(m, out->slot));
  } else if (!made) {
    OPI_TRY(place_outer(m, v, out));
  }
  m->globals[index] = v;
  b->local[v] = index;
  ++m->program->graph.n_values;
  *out_local = index;
  return OPIPE_OK;
}

/* Dropout that drops nothing, for evaluate. */
static opipe_status without_dropout(making *m, opipe_node *node) {
  if (m->which != OPI_PROGRAM_E || strcmp(node->op, "Dropout") != 0)
    return OPIPE_OK;
  opipe_attr *attrs =
      opi_arena_copy(&m->b->cut->arena, node->attrs, node->n_attrs * sizeof *node->attrs);
  if (attrs == NULL)
    return opi_fail_nomem(m->b->err, node->n_attrs * sizeof *attrs, "a node");
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    if (strcmp(attrs[a].name, "ratio") == 0)
      attrs[a].f = 0;
  }
  node->attrs = attrs;
  return OPIPE_OK;
}

static opipe_status convert_node(making *m, const opi_node *node, opipe_node *out) {
  opi_arena *arena = &m->b->cut->arena;
  uint32_t *in = OPI_ARENA_ARRAY(arena, uint32_t, node->n_in);
  uint32_t *outs = OPI_ARENA_ARRAY(arena, uint32_t, node->n_out);
  if (in == NULL || outs == NULL)
    return opi_fail_nomem(m->b->err, node->n_in * sizeof *in, "a node");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (node->in[i] != OPIPE_NONE)
      OPI_TRY(local_value(m, node->in[i], false, &in[i]));
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    outs[i] = OPIPE_NONE;
    if (node->out[i] != OPIPE_NONE)
      OPI_TRY(local_value(m, node->out[i], true, &outs[i]));
  }
  *out = opi_node_view(node, in, outs);
  return without_dropout(m, out);
}

/* Does another program of the stage, another stage or the caller want what this one makes? */
static bool leaves(const making *m, const opi_cell *cell) {
  return (cell->readers & ~m->phases) != 0 || cell->output != OPIPE_NONE || cell->state != 0;
}

static bool is_routed(const making *m, uint32_t cell) {
  const opi_train_cut *c = m->b->cut;
  for (uint32_t r = 0; r < c->n_routes; ++r) {
    if (c->routes[r].src_cell == cell)
      return true;
  }
  return false;
}

static opipe_status mark_outputs(making *m) {
  const opi_train_cut *c = m->b->cut;
  for (uint32_t i = 0; i < m->program->graph.n_values; ++i) {
    if (m->values[i].role != OPIPE_VALUE_TEMP)
      continue;
    const uint32_t cell = m->b->cell_of[(size_t)m->globals[i] * c->n_stages + m->stage];
    if (cell != OPIPE_NONE && (leaves(m, &c->cells[cell]) || is_routed(m, cell)))
      OPI_TRY(add_boundary(m, cell, true, &m->values[i]));
  }
  return OPIPE_OK;
}

static opipe_status make_program(making *m) {
  const opi_graph *g = m->b->graph;
  opi_train_program *p = m->program;
  uint32_t n = 0;
  memset(m->b->local, 0xff, g->n_values * sizeof *m->b->local);
  for (uint32_t i = 0; i < g->n_nodes; ++i)
    n += belongs(m, i);
  opipe_node *nodes = OPI_ARENA_ARRAY(&m->b->cut->arena, opipe_node, n);
  if (nodes == NULL)
    return opi_fail_nomem(m->b->err, n * sizeof *nodes, "a program");
  n = 0;
  for (uint32_t i = 0; i < g->n_nodes; ++i) {
    opi_work work = {0, 0};
    if (!belongs(m, i))
      continue;
    OPI_TRY(convert_node(m, &g->nodes[i], &nodes[n++]));
    opi_node_work(g, &g->nodes[i], &work);
    p->flops += work.flops;
    p->bytes += work.bytes;
  }
  OPI_TRY(mark_outputs(m));
  p->graph.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars);
  p->graph.values = m->values;
  p->graph.nodes = nodes;
  p->graph.n_nodes = n;
  p->graph.n_params = m->b->cut->n_params;
  p->graph.n_scalars = OPI_SCALAR_TABLE;
  return OPIPE_OK;
}

static bool has_dropout(const opi_train_program *forward) {
  for (uint32_t n = 0; n < forward->graph.n_nodes; ++n) {
    if (strcmp(forward->graph.nodes[n].op, "Dropout") == 0)
      return true;
  }
  return false;
}

opipe_status opi_train_programs_build(opi_train_build *b, uint32_t stage) {
  opi_train_cut *c = b->cut;
  for (uint32_t p = 0; p < OPI_PROGRAMS; ++p) {
    if (p == OPI_PROGRAM_E && has_dropout(opi_train_program_of(c, stage, OPI_PROGRAM_F)))
      c->used[stage] |= 1u << OPI_PROGRAM_E;
    if ((c->used[stage] & 1u << p) == 0)
      continue;
    making m = {.b = b,
                .program = &c->programs[stage * OPI_PROGRAMS + p],
                .stage = stage,
                .which = p,
                .phases = opi_program_phases(p)};
    OPI_TRY(make_program(&m));
  }
  return OPIPE_OK;
}
