/* SPDX-License-Identifier: Apache-2.0 */
/* From a training graph to cells and routes: who makes each value, who reads it, where it must be
 * kept and where it travels. The programs themselves are built by program.c.
 */
#include "partition/train/cut.h"

#include <string.h>

#include "partition/cut/cutting.h"
#include "partition/train/build.h"

static uint32_t phase_of(const opi_node *node) {
  switch (node->pass) {
    case OPIPE_PASS_BACKWARD_INPUT:
      return OPI_PHASE_I;
    case OPIPE_PASS_BACKWARD_WEIGHT:
      return OPI_PHASE_W;
    default:
      return OPI_PHASE_F;
  }
}

/* ---- what is no cell: parameters, constants, scalars, gradients ---- */

static uint32_t master_slot(const opi_train_cut *master, const opi_value *value) {
  const opipe_param_source source = {.name = value->name,
                                     .data = value->data,
                                     .shape = value->shape,
                                     .n_bytes = value->n_bytes,
                                     .dtype = value->dtype,
                                     .rank = (uint32_t)value->rank};
  for (uint32_t p = 0; p < master->n_params; ++p) {
    if (opi_same_source(&master->sources[p], &source))
      return p;
  }
  return OPIPE_NONE;
}

static opipe_status add_param(opi_train_build *b, uint32_t v, bool trained) {
  opi_train_cut *c = b->cut;
  const opi_value *value = &b->graph->values[v];
  if (b->param_of_value[v] != OPIPE_NONE) {
    c->trained[b->param_of_value[v]] = c->trained[b->param_of_value[v]] || trained;
    return OPIPE_OK;
  }
  if (b->master != NULL) {
    b->param_of_value[v] = master_slot(b->master, value);
    return OPIPE_OK;
  }
  uint32_t room = b->room_trained;
  if (!opi_arena_grow(&c->arena, (void **)&c->sources, &b->room_sources, c->n_params + 1,
                      sizeof *c->sources) ||
      !opi_arena_grow(&c->arena, (void **)&c->trained, &room, c->n_params + 1, sizeof(bool)))
    return opi_fail_nomem(b->err, sizeof *c->sources, "a parameter");
  b->room_trained = room;
  c->sources[c->n_params] = (opipe_param_source){.name = value->name,
                                                 .data = value->data,
                                                 .shape = value->shape,
                                                 .n_bytes = value->n_bytes,
                                                 .dtype = value->dtype,
                                                 .rank = (uint32_t)value->rank};
  c->trained[c->n_params] = trained;
  b->param_of_value[v] = c->n_params++;
  return OPIPE_OK;
}

static opipe_status find_params(opi_train_build *b) {
  const opi_graph *g = b->graph;
  const opi_training *t = b->training;
  if (b->master != NULL) {
    b->cut->sources = b->master->sources;
    b->cut->trained = b->master->trained;
    b->cut->n_params = b->master->n_params;
  }
  for (uint32_t p = 0; p < t->n_params; ++p) {
    const opi_train_param *param = &t->params[p];
    if (param->n_gradients == 0 || param->value == OPIPE_NONE)
      continue;
    OPI_TRY(add_param(b, param->value, true));
    for (uint32_t i = 0; i < param->n_gradients; ++i)
      b->gradient_of_value[param->gradients[i]] = b->param_of_value[param->value];
    if (b->param_of_value[param->value] == OPIPE_NONE) {
      return opi_fail(b->err, OPIPE_E_INTERNAL,
                      "parameter '%s' is trained in one row class and not in the other",
                      param->name);
    }
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (v != OPIPE_NONE && opi_value_is_known(&g->values[v]) && opi_value_is_param(&g->values[v]))
        OPI_TRY(add_param(b, v, false));
    }
  }
  for (uint32_t s = 0; s < OPI_SCALAR_TABLE; ++s) {
    if (t->scalars[s] != OPIPE_NONE)
      b->scalar_of_value[t->scalars[s]] = s;
  }
  return OPIPE_OK;
}

static bool travels(const opi_train_build *b, uint32_t v) {
  return v != OPIPE_NONE && !opi_value_is_known(&b->graph->values[v]) &&
         b->scalar_of_value[v] == OPIPE_NONE && b->gradient_of_value[v] == OPIPE_NONE;
}

/* ---- cells ---- */

static uint32_t find_port(const uint32_t *list, uint32_t n, uint32_t value) {
  for (uint32_t i = 0; i < n; ++i) {
    if (list[i] == value)
      return i;
  }
  return OPIPE_NONE;
}

/* The phases of stage s that read value v, gathered beforehand: bits [v * n_stages + s]. */
static opipe_status gather_readers(opi_train_build *b) {
  const opi_graph *g = b->graph;
  const uint32_t n_stages = b->cut->n_stages;
  b->readers = opi_arena_array(&b->scratch, (size_t)g->n_values * n_stages, sizeof *b->readers);
  if (b->readers == NULL)
    return opi_fail_nomem(b->err, (uint64_t)g->n_values * n_stages, "a training cut");
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t s = b->training->stage[n];
    if (s >= n_stages) {
      return opi_fail(b->err, OPIPE_E_INVALID, "node '%s' stands in stage %u of %u",
                      g->nodes[n].name, s, n_stages);
    }
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (travels(b, v))
        b->readers[(size_t)v * n_stages + s] |= (uint8_t)(1u << phase_of(&g->nodes[n]));
    }
  }
  return OPIPE_OK;
}

/* Does a program of the stage that makes the value leave it to another one? */
static bool leaves_program(const opi_train_build *b, uint32_t s, uint32_t maker, uint32_t readers) {
  const uint32_t used = b->cut->used[s];
  const uint32_t others = readers & ~(1u << maker);
  if (maker == OPI_PHASE_F)
    return others != 0;
  return others != 0 && (used & (1u << OPI_PROGRAM_I | 1u << OPI_PROGRAM_W)) != 0;
}

/* Is it kept from one program of the stage to another? */
static bool is_stash(const opi_cell *cell) {
  return cell->source == OPI_CELL_MADE
             ? cell->readers != 0
             : (cell->phase == OPI_PHASE_F && (cell->readers & ~1u) != 0) ||
                   (cell->phase == OPI_PHASE_I && (cell->readers & 1u << OPI_PHASE_W) != 0);
}

static opipe_status add_cell(opi_train_build *b, opi_cell cell) {
  opi_train_cut *c = b->cut;
  if (!opi_arena_grow(&c->arena, (void **)&c->cells, &b->room_cells, c->n_cells + 1,
                      sizeof *c->cells))
    return opi_fail_nomem(b->err, sizeof cell, "a tensor between programs");
  cell.n_bytes = b->graph->values[cell.value].n_bytes;
  cell.name = b->graph->values[cell.value].name;
  cell.stash = is_stash(&cell);
  b->cell_of[(size_t)cell.value * c->n_stages + cell.stage] = c->n_cells;
  c->cells[c->n_cells++] = cell;
  return OPIPE_OK;
}

static opipe_status cell_at(opi_train_build *b, uint32_t v, uint32_t s) {
  const opi_graph *g = b->graph;
  const uint32_t n_stages = b->cut->n_stages;
  const uint8_t *readers = &b->readers[(size_t)v * n_stages];
  const uint32_t node = g->values[v].producer;
  opi_cell cell = {.stage = s,
                   .value = v,
                   .readers = readers[s],
                   .port = OPIPE_NONE,
                   .route = OPIPE_NONE,
                   .output = OPIPE_NONE,
                   .state = b->state_of_value[v] % 8,
                   .state_index = b->state_of_value[v] / 8};
  if (node == OPIPE_NONE) {
    if (readers[s] == 0)
      return OPIPE_OK;
    if (cell.state != 0) { /* of another slice, at home in the same stage */
      cell.source = OPI_CELL_RECEIVED;
      cell.phase = cell.state == OPI_STATE_PAST ? OPI_PHASE_F : OPI_PHASE_I;
      return add_cell(b, cell);
    }
    cell.source = OPI_CELL_REQUEST;
    cell.port = find_port(g->inputs, g->n_inputs, v);
    if (cell.port == OPIPE_NONE)
      return opi_fail(b->err, OPIPE_E_INTERNAL, "tensor '%s' comes from nowhere",
                      g->values[v].name);
    return add_cell(b, cell);
  }
  const uint32_t home = b->training->stage[node];
  cell.phase = phase_of(&g->nodes[node]);
  if (home != s) {
    cell.source = OPI_CELL_RECEIVED;
    return readers[s] == 0 ? OPIPE_OK : add_cell(b, cell);
  }
  cell.source = OPI_CELL_MADE;
  cell.output = find_port(g->outputs, g->n_outputs, v);
  bool wanted = cell.state != 0 || cell.output != OPIPE_NONE ||
                leaves_program(b, s, cell.phase, cell.readers);
  for (uint32_t t = 0; t < n_stages && !wanted; ++t)
    wanted = t != s && readers[t] != 0;
  cell.readers &= ~(1u << cell.phase);
  return wanted ? add_cell(b, cell) : OPIPE_OK;
}

static opipe_status find_cells(opi_train_build *b) {
  opi_train_cut *c = b->cut;
  const size_t n = (size_t)b->graph->n_values * c->n_stages;
  b->cell_of = opi_arena_array(&b->scratch, n, sizeof *b->cell_of);
  c->cell_first = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)c->n_stages + 1);
  if (b->cell_of == NULL || c->cell_first == NULL)
    return opi_fail_nomem(b->err, n * sizeof *b->cell_of, "a training cut");
  memset(b->cell_of, 0xff, n * sizeof *b->cell_of);
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    c->cell_first[s] = c->n_cells;
    for (uint32_t v = 0; v < b->graph->n_values; ++v) {
      if (travels(b, v))
        OPI_TRY(cell_at(b, v, s));
    }
  }
  c->cell_first[c->n_stages] = c->n_cells;
  return OPIPE_OK;
}

/* ---- routes ---- */

static opipe_status add_route(opi_train_build *b, uint32_t dst_cell) {
  opi_train_cut *c = b->cut;
  opi_cell *dst = &c->cells[dst_cell];
  const opi_value *value = &b->graph->values[dst->value];
  const uint32_t src_stage = b->training->stage[value->producer];
  const uint32_t src_cell = b->cell_of[(size_t)dst->value * c->n_stages + src_stage];
  const bool forward = dst->phase == OPI_PHASE_F;
  if (dst->phase == OPI_PHASE_W || forward != (src_stage < dst->stage)) {
    return opi_fail(b->err, OPIPE_E_INVALID,
                    "tensor '%s' (%s) is made in stage %u and read in stage %u: activations go to "
                    "later stages, gradients to earlier ones",
                    value->name, forward ? "forward" : "backward", src_stage, dst->stage);
  }
  if (!opi_arena_grow(&c->arena, (void **)&c->routes, &b->room_routes, c->n_routes + 1,
                      sizeof *c->routes))
    return opi_fail_nomem(b->err, sizeof *c->routes, "a route");
  uint32_t index = 0;
  for (uint32_t r = 0; r < c->n_routes; ++r) {
    index += c->routes[r].src_stage == src_stage && c->routes[r].dst_stage == dst->stage &&
             c->routes[r].phase == dst->phase;
  }
  dst->route = c->n_routes;
  dst->n_routes = 1;
  c->routes[c->n_routes++] = (opi_train_route){.value = dst->value,
                                               .src_stage = src_stage,
                                               .dst_stage = dst->stage,
                                               .src_cell = src_cell,
                                               .dst_cell = dst_cell,
                                               .phase = dst->phase,
                                               .index = index,
                                               .n_bytes = dst->n_bytes};
  return OPIPE_OK;
}

static void note_states(opi_train_build *b) {
  for (uint32_t i = 0; i < b->training->n_states; ++i) {
    const opi_slice_state *state = &b->training->states[i];
    const uint32_t values[] = {state->past, state->present, state->present_gradient,
                               state->past_gradient};
    for (uint32_t k = 0; k < OPI_COUNT(values); ++k) {
      if (values[k] != OPIPE_NONE)
        b->state_of_value[values[k]] = 8 * i + OPI_STATE_PAST + k;
    }
  }
}

static opipe_status build_all(opi_train_build *b) {
  opi_train_cut *c = b->cut;
  const uint32_t n = b->graph->n_values;
  b->param_of_value = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n);
  b->scalar_of_value = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n);
  b->gradient_of_value = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n);
  b->local = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n);
  c->programs = OPI_ARENA_ARRAY(&c->arena, opi_train_program, (size_t)c->n_stages * OPI_PROGRAMS);
  if (b->param_of_value == NULL || b->scalar_of_value == NULL || b->gradient_of_value == NULL ||
      b->local == NULL || c->programs == NULL || c->used == NULL || c->phases == NULL ||
      c->forward_of == NULL)
    return opi_fail_nomem(b->err, n * sizeof(uint32_t), "a training cut");
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    c->phases[s] = (1u << OPI_PHASES) - 1;
    c->forward_of[s] = s;
  }
  memset(b->param_of_value, 0xff, n * sizeof(uint32_t));
  memset(b->scalar_of_value, 0xff, n * sizeof(uint32_t));
  memset(b->gradient_of_value, 0xff, n * sizeof(uint32_t));
  b->state_of_value = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n);
  if (b->state_of_value == NULL)
    return opi_fail_nomem(b->err, n * sizeof(uint32_t), "a training cut");
  note_states(b);
  OPI_TRY(find_params(b));
  OPI_TRY(gather_readers(b));
  OPI_TRY(find_cells(b));
  for (uint32_t i = 0; i < c->n_cells; ++i) {
    if (c->cells[i].source == OPI_CELL_RECEIVED && c->cells[i].state == 0)
      OPI_TRY(add_route(b, i));
  }
  for (uint32_t s = 0; s < c->n_stages; ++s)
    OPI_TRY(opi_train_programs_build(b, s));
  return OPIPE_OK;
}

opipe_status opi_train_cut_build(const opi_training *training, const uint32_t *used,
                                 uint32_t n_stages, const opi_train_cut *master,
                                 const opipe_allocator *allocator, opi_train_cut **out_cut,
                                 opipe_error *err) {
  opi_train_cut *cut = opi_alloc_zero(allocator, 1, sizeof *cut);
  if (cut == NULL)
    return opi_fail_nomem(err, sizeof *cut, "a training cut");
  opi_arena_init(&cut->arena, allocator, 0);
  cut->training = training;
  cut->n_stages = n_stages;
  cut->used = opi_arena_copy(&cut->arena, used, n_stages * sizeof *used);
  cut->phases = OPI_ARENA_ARRAY(&cut->arena, uint32_t, n_stages);
  cut->forward_of = OPI_ARENA_ARRAY(&cut->arena, uint32_t, n_stages);
  opi_train_build b = {
      .training = training, .graph = training->graph, .master = master, .cut = cut, .err = err};
  opi_arena_init(&b.scratch, allocator, 0);
  const opipe_status status = build_all(&b);
  opi_arena_release(&b.scratch);
  if (status < 0) {
    opi_train_cut_free(cut);
    return status;
  }
  *out_cut = cut;
  return OPIPE_OK;
}

void opi_train_cut_free(opi_train_cut *cut) {
  if (cut == NULL)
    return;
  const opipe_allocator *allocator = cut->arena.allocator;
  opi_arena_release(&cut->arena);
  opi_free(allocator, cut, sizeof *cut);
}
