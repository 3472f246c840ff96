/* SPDX-License-Identifier: Apache-2.0 */
/* From a graph to cells and routes: the maker and the readers of each value, where it is kept and
 * where it travels. program.c builds the programs.
 *
 * Nodes are sorted by stage first, and each stage's values are found through its own nodes, so the
 * whole takes time in nodes and their inputs, however many stages there are. */
#include "partition/program/cut.h"

#include <stdlib.h>
#include <string.h>

#include "partition/program/build.h"

uint32_t *opi_cut_table(opi_cut_builder *b, size_t n) {
  uint32_t *table = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n + 1);
  if (table != NULL)
    memset(table, 0xff, (n + 1) * sizeof *table);
  return table;
}

static bool travels(const opi_cut_builder *b, uint32_t v) {
  return v != OPIPE_NONE && !opi_value_is_known(&b->graph->values[v]) &&
         b->scalar_of_value[v] == OPIPE_NONE && b->gradient_of_value[v] == OPIPE_NONE;
}

/* ---- uses ---- */

/* Marks the GroupSpreads between stretches whose results nobody reads (members.c): they are in no
 * program. */
static opipe_status find_spreads(opi_cut_builder *b, bool **out_left) {
  const opi_graph *g = b->graph;
  bool *left = OPI_ARENA_ARRAY(&b->scratch, bool, g->n_nodes);
  *out_left = left;
  if (left == NULL)
    return opi_fail_nomem(b->err, g->n_nodes, "a cut");
  for (uint32_t n = 0; n < g->n_nodes && b->source->n_places != 0; ++n) {
    opi_collective how;
    left[n] = opi_collective_of(g, &g->nodes[n], &how) && how.kind == OPI_COLLECTIVE_SPREAD;
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (v != OPIPE_NONE && g->values[v].producer != OPIPE_NONE)
        left[g->values[v].producer] = false;
    }
  }
  return OPIPE_OK;
}

static opipe_status sort_nodes(opi_cut_builder *b) {
  const opi_graph *g = b->graph;
  const uint32_t n_stages = b->cut->n_stages, *stage = b->source->stage;
  bool *left = NULL;
  OPI_TRY(find_spreads(b, &left));
  b->node_first = OPI_ARENA_ARRAY(&b->scratch, uint32_t, (size_t)n_stages + 2);
  b->nodes = OPI_ARENA_ARRAY(&b->scratch, uint32_t, g->n_nodes);
  if (b->node_first == NULL || b->nodes == NULL)
    return opi_fail_nomem(b->err, g->n_nodes * sizeof(uint32_t), "a cut");
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (stage[n] >= n_stages) {
      return opi_fail(b->err, OPIPE_E_INVALID, "node '%s' stands in stage %u of %u",
                      g->nodes[n].name, stage[n], n_stages);
    }
    b->node_first[stage[n] + 2] += !left[n];
  }
  for (uint32_t s = 2; s <= n_stages; ++s)
    b->node_first[s] += b->node_first[s - 1];
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (!left[n])
      b->nodes[b->node_first[stage[n] + 1]++] = n;
  }
  return OPIPE_OK;
}

static opipe_status add_use(opi_cut_builder *b, uint32_t s, uint32_t v, uint32_t readers) {
  if (!travels(b, v))
    return OPIPE_OK;
  if (b->here[v] == OPIPE_NONE || b->here[v] < b->use_first[s]) {
    if (!opi_arena_grow(&b->scratch, (void **)&b->uses, &b->room_uses, b->n_uses + 1,
                        sizeof *b->uses))
      return opi_fail_nomem(b->err, sizeof *b->uses, "a cut");
    b->here[v] = b->n_uses;
    b->uses[b->n_uses++] = (opi_cut_use){v, 0};
  }
  b->uses[b->here[v]].readers |= readers;
  return OPIPE_OK;
}

static int by_value(const void *left, const void *right) {
  const opi_cut_use *a = left, *b = right;
  return a->value < b->value ? -1 : a->value > b->value;
}

static opipe_status gather_stage(opi_cut_builder *b, uint32_t s) {
  const opi_graph *g = b->graph;
  b->use_first[s] = b->n_uses;
  for (uint32_t i = b->node_first[s]; i < b->node_first[s + 1]; ++i) {
    const opi_node *node = &g->nodes[b->nodes[i]];
    for (uint32_t k = 0; k < node->n_in; ++k) {
      const uint32_t v = node->in[k];
      OPI_TRY(add_use(b, s, v, 1u << opi_phase_of(node)));
      if (v != OPIPE_NONE && g->values[v].producer != OPIPE_NONE &&
          b->source->stage[g->values[v].producer] != s)
        b->elsewhere[v] = true;
    }
    for (uint32_t k = 0; k < node->n_out; ++k)
      OPI_TRY(add_use(b, s, node->out[k], 0));
  }
  if (b->n_uses - b->use_first[s] > 1)
    qsort(b->uses + b->use_first[s], b->n_uses - b->use_first[s], sizeof *b->uses, by_value);
  return OPIPE_OK;
}

static opipe_status gather_uses(opi_cut_builder *b) {
  b->use_first = OPI_ARENA_ARRAY(&b->scratch, uint32_t, (size_t)b->cut->n_stages + 1);
  b->elsewhere = OPI_ARENA_ARRAY(&b->scratch, bool, b->graph->n_values);
  if (b->use_first == NULL || b->elsewhere == NULL)
    return opi_fail_nomem(b->err, b->graph->n_values, "a cut");
  for (uint32_t s = 0; s < b->cut->n_stages; ++s)
    OPI_TRY(gather_stage(b, s));
  b->use_first[b->cut->n_stages] = b->n_uses;
  return OPIPE_OK;
}

/* ---- cells ---- */

/* Whether a program of the stage that makes the value leaves it to another program. */
static bool leaves_program(const opi_cut_builder *b, uint32_t s, uint32_t maker, uint32_t readers) {
  const uint32_t used = b->cut->used[s];
  const uint32_t others = readers & ~(1u << maker);
  if (maker == OPI_PHASE_F)
    return others != 0;
  return others != 0 && (used & (1u << OPI_PROGRAM_I | 1u << OPI_PROGRAM_W)) != 0;
}

/* Whether one program of the stage keeps it for another. */
static bool is_stash(const opi_cell *cell) {
  return cell->source == OPI_CELL_MADE
             ? cell->readers != 0
             : (cell->phase == OPI_PHASE_F && (cell->readers & ~1u) != 0) ||
                   (cell->phase == OPI_PHASE_I && (cell->readers & 1u << OPI_PHASE_W) != 0);
}

static opipe_status add_cell(opi_cut_builder *b, opi_cell cell) {
  opi_cut *c = b->cut;
  if (!opi_arena_grow(&c->arena, (void **)&c->cells, &b->room_cells, c->n_cells + 1,
                      sizeof *c->cells))
    return opi_fail_nomem(b->err, sizeof cell, "a tensor between programs");
  cell.n_bytes = b->graph->values[cell.value].n_bytes;
  cell.name = b->graph->values[cell.value].name;
  cell.stash = is_stash(&cell);
  if (cell.source == OPI_CELL_MADE)
    b->home_cell[cell.value] = c->n_cells;
  c->cells[c->n_cells++] = cell;
  return OPIPE_OK;
}

/* A value without a node that makes it: an input, or a state of another slice, at home in the same
 * stage. */
static opipe_status outer_cell(opi_cut_builder *b, opi_cell cell) {
  if (cell.readers == 0)
    return OPIPE_OK;
  if (cell.state != 0) {
    cell.source = OPI_CELL_RECEIVED;
    cell.phase = cell.state == OPI_STATE_PAST ? OPI_PHASE_F : OPI_PHASE_I;
    return add_cell(b, cell);
  }
  cell.source = OPI_CELL_REQUEST;
  cell.held = (b->graph->values[cell.value].flags & OPI_VALUE_HELD) != 0;
  cell.port = b->port_of_value[cell.value];
  if (cell.port == OPIPE_NONE) {
    return opi_fail(b->err, OPIPE_E_INTERNAL, "tensor '%s' has no producer",
                    b->graph->values[cell.value].name);
  }
  return add_cell(b, cell);
}

static opipe_status cell_at(opi_cut_builder *b, const opi_cut_use *use, uint32_t s) {
  const opi_graph *g = b->graph;
  const uint32_t node = g->values[use->value].producer;
  opi_cell cell = {.stage = s,
                   .value = use->value,
                   .readers = use->readers,
                   .port = OPIPE_NONE,
                   .route = OPIPE_NONE,
                   .output = OPIPE_NONE,
                   .first_out = OPIPE_NONE,
                   .state = b->state_of_value[use->value] % 8,
                   .state_index = b->state_of_value[use->value] / 8};
  if (node == OPIPE_NONE)
    return outer_cell(b, cell);
  cell.phase = opi_phase_of(&g->nodes[node]);
  if (b->source->stage[node] != s) {
    cell.source = OPI_CELL_RECEIVED;
    cell.state = 0; /* its maker hands it on */
    return use->readers == 0 ? OPIPE_OK : add_cell(b, cell);
  }
  cell.source = OPI_CELL_MADE;
  cell.output = b->output_of_value[use->value];
  const bool wanted = cell.state != 0 || cell.output != OPIPE_NONE || b->elsewhere[use->value] ||
                      leaves_program(b, s, cell.phase, cell.readers);
  cell.readers &= ~(1u << cell.phase);
  return wanted ? add_cell(b, cell) : OPIPE_OK;
}

static opipe_status find_cells(opi_cut_builder *b) {
  opi_cut *c = b->cut;
  c->cell_first = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)c->n_stages + 1);
  b->home_cell = opi_cut_table(b, b->graph->n_values);
  if (c->cell_first == NULL || b->home_cell == NULL)
    return opi_fail_nomem(b->err, b->graph->n_values * sizeof(uint32_t), "a cut");
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    c->cell_first[s] = c->n_cells;
    for (uint32_t u = b->use_first[s]; u < b->use_first[s + 1]; ++u)
      OPI_TRY(cell_at(b, &b->uses[u], s));
  }
  c->cell_first[c->n_stages] = c->n_cells;
  for (uint32_t o = 0; o < b->graph->n_outputs; ++o) {
    c->output_cell[o] = b->home_cell[b->graph->outputs[o]];
    c->output_port[o] = b->port_of_value[b->graph->outputs[o]];
  }
  return OPIPE_OK;
}

/* ---- one message for all places of a stage ---- */

static uint32_t places_of(const opi_cut_builder *b) {
  return b->source->n_places > 1 ? b->source->n_places : 1;
}

/* Whether the tensor comes from another stage of the plan. */
static bool comes_from_afar(const opi_cut_builder *b, const opi_cell *cell) {
  if (cell->source != OPI_CELL_RECEIVED || cell->state != 0)
    return false;
  const uint32_t maker = b->source->stage[b->graph->values[cell->value].producer];
  return maker / places_of(b) != cell->stage / places_of(b);
}

/* Finds for a tensor's places in a stage the one that its pass comes to first: it receives the
 * tensor, in that pass, and the others have it from there. An odd place has no program, and
 * receives what it reads alone. */
static opipe_status find_relays(opi_cut_builder *b) {
  opi_cut *c = b->cut;
  const uint32_t n = c->n_cells, n_places = places_of(b);
  uint32_t *first = opi_cut_table(b, b->graph->n_values);
  b->relay = opi_cut_table(b, n);
  if (first == NULL || b->relay == NULL)
    return opi_fail_nomem(b->err, n * sizeof(uint32_t), "a cut");
  for (uint32_t k = 0; k < 2 * n && n_places > 1; ++k) { /* activations, then gradients */
    const uint32_t i = k < n ? k : 2 * n - 1 - k;
    const uint32_t phase = k < n ? OPI_PHASE_F : OPI_PHASE_I;
    const opi_cell *cell = &c->cells[i];
    if (cell->phase != phase || !comes_from_afar(b, cell))
      continue;
    const uint32_t known = first[cell->value];
    if (known != OPIPE_NONE && c->cells[known].stage / n_places == cell->stage / n_places) {
      c->cells[known].readers |= 1u << phase;
      b->relay[i] = known;
    } else if ((cell->readers & 1u << phase) != 0 || cell->stage % n_places % 2 == 0) {
      first[cell->value] = i;
    }
  }
  return OPIPE_OK;
}

/* ---- routes ---- */

/* Counts of routes from each (stage, phase) into the current stage. */
typedef struct route_counts {
  uint32_t *count, *stage; /* [n_stages * OPI_PHASES] */
} route_counts;

static opipe_status fail_direction(const opi_cut_builder *b, const opi_cell *dst, uint32_t src) {
  const opi_graph *g = b->graph;
  const char *reader = "";
  for (uint32_t i = b->node_first[dst->stage]; i < b->node_first[dst->stage + 1]; ++i) {
    const opi_node *node = &g->nodes[b->nodes[i]];
    for (uint32_t k = 0; k < node->n_in && reader[0] == '\0'; ++k)
      reader = node->in[k] == dst->value ? node->name : reader;
  }
  return opi_fail(b->err, OPIPE_E_INVALID,
                  "the cut sends %s '%s' %s: stage %u makes it, node '%s' reads it in stage %u",
                  dst->phase == OPI_PHASE_F ? "tensor" : "gradient", dst->name,
                  dst->phase == OPI_PHASE_F ? "backwards" : "forwards", src, reader, dst->stage);
}

/* The cell from which a received one has its tensor, and its stage. */
static uint32_t source_of(const opi_cut_builder *b, uint32_t dst_cell, uint32_t *out_stage) {
  const opi_cell *dst = &b->cut->cells[dst_cell];
  if (b->relay[dst_cell] != OPIPE_NONE) {
    *out_stage = b->cut->cells[b->relay[dst_cell]].stage;
    return b->relay[dst_cell];
  }
  *out_stage = b->source->stage[b->graph->values[dst->value].producer];
  return b->home_cell[dst->value];
}

static opipe_status add_route(opi_cut_builder *b, uint32_t dst_cell, route_counts *counts) {
  opi_cut *c = b->cut;
  opi_cell *dst = &c->cells[dst_cell];
  uint32_t src_stage = 0;
  const uint32_t src_cell = source_of(b, dst_cell, &src_stage);
  const bool forward = dst->phase == OPI_PHASE_F;
  const uint32_t at = src_stage * OPI_PHASES + dst->phase;
  const bool inside = src_stage / places_of(b) == dst->stage / places_of(b);
  if ((dst->phase == OPI_PHASE_W && !inside) || forward != (src_stage < dst->stage))
    return fail_direction(b, dst, src_stage);
  if (!opi_arena_grow(&c->arena, (void **)&c->routes, &b->room_routes, c->n_routes + 1,
                      sizeof *c->routes))
    return opi_fail_nomem(b->err, sizeof *c->routes, "a route");
  if (counts->stage[at] != dst->stage) {
    counts->stage[at] = dst->stage;
    counts->count[at] = 0;
  }
  dst->route = c->n_routes;
  dst->n_routes = 1;
  c->routes[c->n_routes++] = (opi_route){.value = dst->value,
                                         .src_stage = src_stage,
                                         .dst_stage = dst->stage,
                                         .src_cell = src_cell,
                                         .dst_cell = dst_cell,
                                         .phase = dst->phase,
                                         .index = counts->count[at]++,
                                         .n_bytes = dst->n_bytes};
  return OPIPE_OK;
}

void opi_cut_link_routes(opi_cut *cut) {
  for (uint32_t i = 0; i < cut->n_cells; ++i)
    cut->cells[i].first_out = OPIPE_NONE;
  for (uint32_t r = cut->n_routes; r-- > 0;) {
    opi_cell *src = &cut->cells[cut->routes[r].src_cell];
    cut->routes[r].next_out = src->first_out;
    src->first_out = r;
  }
}

/* Routes between places of a stage come first: they begin where others end, and lifetimes are
 * followed in this order (lists/slots.c). */
static opipe_status find_routes(opi_cut_builder *b) {
  opi_cut *c = b->cut;
  const size_t n = (size_t)c->n_stages * OPI_PHASES;
  route_counts counts = {opi_cut_table(b, n), opi_cut_table(b, n)};
  if (counts.count == NULL || counts.stage == NULL)
    return opi_fail_nomem(b->err, n * sizeof(uint32_t), "routes");
  for (uint32_t k = 0; k < 2 * c->n_cells; ++k) {
    const uint32_t i = k % c->n_cells;
    const opi_cell *cell = &c->cells[i];
    const bool afar = comes_from_afar(b, cell) && b->relay[i] == OPIPE_NONE;
    if (cell->source == OPI_CELL_RECEIVED && cell->state == 0 && afar == (k >= c->n_cells))
      OPI_TRY(add_route(b, i, &counts));
  }
  opi_cut_link_routes(c);
  return OPIPE_OK;
}

/* ---- all of it ---- */

static void note_states(opi_cut_builder *b) {
  for (uint32_t i = 0; i < b->source->n_states; ++i) {
    const opi_slice_state *state = &b->source->states[i];
    const uint32_t values[] = {state->past, state->present, state->present_gradient,
                               state->past_gradient};
    for (uint32_t k = 0; k < OPI_COUNT(values); ++k) {
      if (values[k] != OPIPE_NONE)
        b->state_of_value[values[k]] = 8 * i + OPI_STATE_PAST + k;
    }
  }
}

static void note_ports(opi_cut_builder *b) {
  const opi_graph *g = b->graph;
  for (uint32_t i = g->n_inputs; i-- > 0;)
    b->port_of_value[g->inputs[i]] = i;
  for (uint32_t o = g->n_outputs; o-- > 0;) {
    if (b->state_of_value[g->outputs[o]] == 0) /* a tensor for the next slice is no output */
      b->output_of_value[g->outputs[o]] = o;
  }
}

static opipe_status make_tables(opi_cut_builder *b) {
  const uint32_t n = b->graph->n_values;
  b->param_of_value = opi_cut_table(b, n);
  b->scalar_of_value = opi_cut_table(b, n);
  b->gradient_of_value = opi_cut_table(b, n);
  b->port_of_value = opi_cut_table(b, n);
  b->output_of_value = opi_cut_table(b, n);
  b->here = opi_cut_table(b, n);
  b->local = opi_cut_table(b, n);
  b->wanted = opi_cut_table(b, n);
  b->runs = OPI_ARENA_ARRAY(&b->scratch, bool, b->graph->n_nodes);
  b->state_of_value = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n);
  if (b->param_of_value == NULL || b->scalar_of_value == NULL || b->gradient_of_value == NULL ||
      b->port_of_value == NULL || b->output_of_value == NULL || b->here == NULL ||
      b->local == NULL || b->wanted == NULL || b->runs == NULL || b->state_of_value == NULL)
    return opi_fail_nomem(b->err, n * sizeof(uint32_t), "a cut");
  note_states(b);
  note_ports(b);
  return OPIPE_OK;
}

static opipe_status make_cut(opi_cut_builder *b) {
  opi_cut *c = b->cut;
  c->used = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->phases = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->forward_of = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->output_cell = OPI_ARENA_ARRAY(&c->arena, uint32_t, b->graph->n_outputs);
  c->programs = OPI_ARENA_ARRAY(&c->arena, opi_program, (size_t)c->n_stages * c->n_kinds);
  c->output_port = OPI_ARENA_ARRAY(&c->arena, uint32_t, b->graph->n_outputs);
  if (c->used == NULL || c->phases == NULL || c->forward_of == NULL || c->output_cell == NULL ||
      c->output_port == NULL || c->programs == NULL)
    return opi_fail_nomem(b->err, c->n_stages * sizeof *c->programs, "a cut");
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    c->used[s] = b->source->used == NULL ? 1u << OPI_PROGRAM_F : b->source->used[s];
    c->phases[s] = b->training == NULL ? 1u << OPI_PHASE_F : (1u << OPI_PHASES) - 1;
    c->forward_of[s] = s;
  }
  return OPIPE_OK;
}

static opipe_status build_all(opi_cut_builder *b) {
  OPI_TRY(make_tables(b));
  OPI_TRY(make_cut(b));
  OPI_TRY(opi_cut_params(b));
  OPI_TRY(sort_nodes(b));
  OPI_TRY(gather_uses(b));
  OPI_TRY(find_cells(b));
  OPI_TRY(find_relays(b));
  OPI_TRY(find_routes(b));
  memset(b->here, 0xff, b->graph->n_values * sizeof *b->here);
  for (uint32_t s = 0; s < b->cut->n_stages; ++s)
    OPI_TRY(opi_programs_build(b, s));
  return OPIPE_OK;
}

opipe_status opi_cut_build(const opi_cut_source *source, const opipe_allocator *allocator,
                           opi_cut **out_cut, opipe_error *err) {
  if (source->n_stages == 0)
    return opi_fail(err, OPIPE_E_INVALID, "a cut needs at least 1 stage, 0 were asked for");
  opi_cut *cut = opi_alloc_zero(allocator, 1, sizeof *cut);
  if (cut == NULL)
    return opi_fail_nomem(err, sizeof *cut, "a cut");
  opi_arena_init(&cut->arena, allocator, 0);
  cut->graph = source->graph;
  cut->training = source->training;
  cut->n_stages = source->n_stages;
  cut->n_kinds = source->training == NULL ? 1 : OPI_PROGRAMS;
  cut->n_pieces = 1;
  opi_cut_builder b = {.source = source,
                       .graph = source->graph,
                       .training = source->training,
                       .cut = cut,
                       .err = err};
  opi_arena_init(&b.scratch, allocator, 0);
  const opipe_status status = build_all(&b);
  opi_map_free(b.master_slots);
  opi_arena_release(&b.scratch);
  if (status < 0) {
    opi_cut_free(cut);
    return status;
  }
  *out_cut = cut;
  return OPIPE_OK;
}

void opi_cut_free(opi_cut *cut) {
  if (cut == NULL)
    return;
  const opipe_allocator *allocator = cut->arena.allocator;
  opi_arena_release(&cut->arena);
  opi_free(allocator, cut, sizeof *cut);
}

static bool holds_cell(const opi_cell *a, const opi_cell *b) {
  return a->stage == b->stage && a->source == b->source && a->phase == b->phase &&
         a->readers == b->readers && a->port == b->port && a->route == b->route &&
         a->n_routes == b->n_routes && a->first_out == b->first_out && a->output == b->output &&
         a->state == b->state && a->stash == b->stash && a->held == b->held &&
         a->n_bytes >= b->n_bytes;
}

static bool holds_route(const opi_route *a, const opi_route *b) {
  return a->src_stage == b->src_stage && a->dst_stage == b->dst_stage &&
         a->src_cell == b->src_cell && a->dst_cell == b->dst_cell && a->phase == b->phase &&
         a->index == b->index && a->next_out == b->next_out && a->within == b->within &&
         a->offload == b->offload && a->empty == b->empty && a->src_bytes == b->src_bytes &&
         a->dst_bytes == b->dst_bytes && a->n_bytes >= b->n_bytes;
}

bool opi_cut_holds(const opi_cut *cut, const opi_cut *other) {
  bool holds = cut->n_cells == other->n_cells && cut->n_routes == other->n_routes &&
               cut->n_stages == other->n_stages && cut->n_kinds == other->n_kinds &&
               cut->n_meetings == 0 && other->n_meetings == 0;
  for (uint32_t c = 0; holds && c < cut->n_cells; ++c)
    holds = holds_cell(&cut->cells[c], &other->cells[c]);
  for (uint32_t r = 0; holds && r < cut->n_routes; ++r)
    holds = holds_route(&cut->routes[r], &other->routes[r]);
  for (uint32_t s = 0; holds && s < cut->n_stages; ++s) {
    holds = (opi_forward_of(cut, s)->graph.n_nodes != 0) ==
            (opi_forward_of(other, s)->graph.n_nodes != 0);
  }
  return holds;
}
