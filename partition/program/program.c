/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of one stage: the nodes of their phases, in graph order, as a backend compiles them.
 * Boundary slots number the inputs in order of first use, then the outputs in order of values. */
#include <stdlib.h>
#include <string.h>

#include "partition/program/build.h"

typedef struct making {
  opi_cut_builder *b;
  opi_program *program;
  opipe_value *values;
  uint32_t *globals; /* [n_values] */
  uint32_t stage, which, phases;
  uint32_t number; /* the program's, for marks */
  bool evaluates;  /* the stage evaluates: E differs from F */
  uint32_t room_values, room_globals, room_cells, room_writes, room_params;
} making;

static bool belongs(const making *m, uint32_t node) {
  return (m->phases & 1u << opi_phase_of(&m->b->graph->nodes[node])) != 0;
}

static opipe_status add_boundary(making *m, uint32_t cell, bool writes, opipe_value *value) {
  opi_program *p = m->program;
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
  opi_program *p = m->program;
  if (m->b->seen_param[slot] == m->number)
    return OPIPE_OK;
  if (!opi_arena_grow(&m->b->cut->arena, (void **)&p->params, &m->room_params, p->n_params + 1,
                      sizeof *p->params))
    return opi_fail_nomem(m->b->err, sizeof slot, "a parameter");
  m->b->seen_param[slot] = m->number;
  p->params[p->n_params++] = slot;
  return OPIPE_OK;
}

static int by_slot(const void *left, const void *right) {
  const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
  return a < b ? -1 : a > b;
}

/* A value that the program reads but does not make. */
static opipe_status place_outer(making *m, uint32_t v, opipe_value *out) {
  const opi_cut_builder *b = m->b;
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
  const uint32_t cell = b->here[v];
  if (cell == OPIPE_NONE) {
    return opi_fail(b->err, OPIPE_E_INTERNAL, "stage %u reads tensor '%s' that it does not hold",
                    m->stage, value->name);
  }
  return add_boundary(m, cell, false, out);
}

static opipe_status local_value(making *m, uint32_t v, bool made, uint32_t *out_local) {
  opi_cut_builder *b = m->b;
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

/* Makes a Dropout drop nothing, for evaluation. */
static opipe_status without_dropout(making *m, opipe_node *node) {
  if (m->which != OPI_PROGRAM_E || opi_op_row(node->domain, node->op)->kind != OPI_KIND_RANDOM)
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

/* Whether another program of the stage, another stage or the caller reads the result. */
static bool leaves(const making *m, const opi_cell *cell) {
  if (cell->state != 0 || cell->first_out != OPIPE_NONE)
    return true;
  if (m->which == OPI_PROGRAM_E && m->evaluates) /* no backward follows */
    return cell->output != OPIPE_NONE;
  return (cell->readers & ~m->phases) != 0 ||
         (cell->output != OPIPE_NONE && !opi_cell_is_evaluated(m->b->cut, cell));
}

static opipe_status mark_outputs(making *m) {
  const opi_cut *c = m->b->cut;
  for (uint32_t i = 0; i < m->program->graph.n_values; ++i) {
    if (m->values[i].role != OPIPE_VALUE_TEMP)
      continue;
    const uint32_t cell = m->b->here[m->globals[i]];
    if (cell != OPIPE_NONE && leaves(m, &c->cells[cell]))
      OPI_TRY(add_boundary(m, cell, true, &m->values[i]));
  }
  return OPIPE_OK;
}

static bool is_wanted(const making *m, const opi_node *node) {
  const opi_cut_builder *b = m->b;
  for (uint32_t k = 0; k < node->n_out; ++k) {
    const uint32_t v = node->out[k], cell = v == OPIPE_NONE ? OPIPE_NONE : b->here[v];
    if (v != OPIPE_NONE && (b->wanted[v] == m->number || b->gradient_of_value[v] != OPIPE_NONE ||
                            (cell != OPIPE_NONE && leaves(m, &b->cut->cells[cell]))))
      return true;
  }
  return false;
}

/* Marks and counts the nodes of the program. If the stage evaluates, F and E leave out nodes that
 * serve only each other's results; all other nodes have a reader. */
static uint32_t mark_nodes(making *m) {
  opi_cut_builder *b = m->b;
  uint32_t n = 0;
  for (uint32_t i = b->node_first[m->stage + 1]; i-- > b->node_first[m->stage];) {
    const opi_node *node = &b->graph->nodes[b->nodes[i]];
    b->runs[i] = belongs(m, b->nodes[i]) &&
                 (!m->evaluates || m->phases != 1u << OPI_PHASE_F || is_wanted(m, node));
    for (uint32_t k = 0; b->runs[i] && k < node->n_in; ++k) {
      if (node->in[k] != OPIPE_NONE)
        b->wanted[node->in[k]] = m->number;
    }
    n += b->runs[i];
  }
  return n;
}

static opipe_status convert_nodes(making *m, opipe_node *nodes) {
  const opi_cut_builder *b = m->b;
  opi_program *p = m->program;
  for (uint32_t i = b->node_first[m->stage]; i < b->node_first[m->stage + 1]; ++i) {
    const opi_node *node = &b->graph->nodes[b->nodes[i]];
    opi_work work = {0, 0};
    if (!b->runs[i])
      continue;
    OPI_TRY(convert_node(m, node, &nodes[p->graph.n_nodes++]));
    opi_node_work(b->graph, node, &work);
    p->phases |= 1u << opi_phase_of(node);
    p->flops += work.flops;
    p->bytes += work.bytes;
  }
  return mark_outputs(m);
}

/* ---- gradients ---- */

/* Roughly what devices compute while they read a byte. */
static double weigh(const opi_graph *graph, const opi_node *node) {
  enum { FLOPS_OF_BYTE = 8 };
  opi_work work = {0, 0};
  opi_node_work(graph, node, &work);
  return work.flops + FLOPS_OF_BYTE * work.bytes;
}

static uint32_t param_at(const opi_program *p, uint32_t slot) {
  const uint32_t *found = bsearch(&slot, p->params, p->n_params, sizeof slot, by_slot);
  return (uint32_t)(found - p->params);
}

/* Notes the work so far at the gradients that a node adds to. */
static void note_ends(const making *m, const opi_node *node, const double done[OPI_PHASES]) {
  opi_program *p = m->program;
  for (uint32_t k = 0; k < node->n_out; ++k) {
    const uint32_t v = node->out[k];
    const uint32_t slot = v == OPIPE_NONE ? OPIPE_NONE : m->b->gradient_of_value[v];
    if (slot == OPIPE_NONE)
      continue;
    opi_gradient_end *end = &p->ends[param_at(p, slot)];
    end->is_given = true;
    memcpy(end->done, done, sizeof end->done);
  }
}

static opipe_status find_ends(const making *m) {
  const opi_cut_builder *b = m->b;
  opi_program *p = m->program;
  double done[OPI_PHASES] = {0};
  if (m->which == OPI_PROGRAM_F || m->which == OPI_PROGRAM_E || p->n_params == 0)
    return OPIPE_OK;
  p->ends = OPI_ARENA_ARRAY(&b->cut->arena, opi_gradient_end, p->n_params);
  if (p->ends == NULL)
    return opi_fail_nomem(b->err, p->n_params * sizeof *p->ends, "a program");
  for (uint32_t i = b->node_first[m->stage]; i < b->node_first[m->stage + 1]; ++i) {
    const opi_node *node = &b->graph->nodes[b->nodes[i]];
    if (!b->runs[i])
      continue;
    done[opi_phase_of(node)] += weigh(b->graph, node);
    note_ends(m, node, done);
  }
  for (uint32_t k = 0; k < p->n_params * OPI_PHASES; ++k) {
    double *at = &p->ends[k / OPI_PHASES].done[k % OPI_PHASES];
    *at = done[k % OPI_PHASES] > 0 ? *at / done[k % OPI_PHASES] : 0;
  }
  return OPIPE_OK;
}

static opipe_status make_program(making *m) {
  opi_cut_builder *b = m->b;
  opi_program *p = m->program;
  m->number = b->n_programs++;
  const uint32_t n = mark_nodes(m);
  opipe_node *nodes = OPI_ARENA_ARRAY(&b->cut->arena, opipe_node, n);
  if (nodes == NULL)
    return opi_fail_nomem(b->err, n * sizeof *nodes, "a program");
  const opipe_status status = convert_nodes(m, nodes);
  for (uint32_t i = 0; i < p->graph.n_values; ++i)
    b->local[m->globals[i]] = OPIPE_NONE;
  if (p->n_params > 1)
    qsort(p->params, p->n_params, sizeof *p->params, by_slot);
  if (status == OPIPE_OK)
    OPI_TRY(find_ends(m));
  p->graph.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars);
  p->graph.values = m->values;
  p->graph.nodes = nodes;
  p->graph.n_params = b->cut->n_params;
  p->graph.n_scalars = b->source->scalars == NULL ? 0 : opi_scalar_count(b->source->scalars);
  return status;
}

static bool has_dropout(const opi_program *forward) {
  for (uint32_t n = 0; n < forward->graph.n_nodes; ++n) {
    const opipe_node *node = &forward->graph.nodes[n];
    if (opi_op_row(node->domain, node->op)->kind == OPI_KIND_RANDOM)
      return true;
  }
  return false;
}

static opipe_status build_programs(opi_cut_builder *b, uint32_t stage) {
  opi_cut *c = b->cut;
  const bool evaluates = opi_stage_evaluates(c, stage);
  for (uint32_t p = 0; p < c->n_kinds; ++p) {
    const bool forward = (c->used[stage] & 1u << OPI_PROGRAM_F) != 0;
    if (p == OPI_PROGRAM_E &&
        ((evaluates && forward) || has_dropout(opi_program_of(c, stage, OPI_PROGRAM_F))))
      c->used[stage] |= 1u << OPI_PROGRAM_E;
    if ((c->used[stage] & 1u << p) == 0)
      continue;
    making m = {.b = b,
                .program = &c->programs[stage * c->n_kinds + p],
                .stage = stage,
                .which = p,
                .evaluates = evaluates,
                .phases = opi_program_phases(p)};
    OPI_TRY(make_program(&m));
  }
  return OPIPE_OK;
}

opipe_status opi_programs_build(opi_cut_builder *b, uint32_t stage) {
  const opi_cut *c = b->cut;
  for (uint32_t i = c->cell_first[stage]; i < c->cell_first[stage + 1]; ++i)
    b->here[c->cells[i].value] = i;
  const opipe_status status = build_programs(b, stage);
  for (uint32_t i = c->cell_first[stage]; i < c->cell_first[stage + 1]; ++i)
    b->here[c->cells[i].value] = OPIPE_NONE;
  return status;
}
