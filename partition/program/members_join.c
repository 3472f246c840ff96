/* SPDX-License-Identifier: Apache-2.0 */
/* The cuts of all members of tensor groups as one: piece place * width + member of a stage is that
 * place of that member (opi_piece_place_of). Programs of even places are the members' own; odd ones
 * have none, but meetings that make their results. Routes lead from a member to itself.
 */
#include <string.h>

#include "partition/program/model.h"

typedef struct member_join {
  const opi_decision *plan;
  const opi_cut_model *model;
  const opi_variant *variant; /* of the class */
  opi_cut *cut;
  opi_arena scratch;
  uint32_t **cell_of; /* [n_members][cells of the member's cut] */
  uint32_t width, n_places;
  opipe_error *err;
} member_join;

static const opi_cut *cut_of(const member_join *j, uint32_t member) {
  return j->variant->slices[member].cut;
}

/* The stage of the view that is a stage of a member's cut. */
static uint32_t view_stage(const member_join *j, uint32_t member, uint32_t of) {
  return of * j->width + member;
}

/* ---- cells and routes ---- */

static bool is_divided(const member_join *j, uint32_t output, uint32_t member) {
  return j->cut->output_parts[output * j->width + member].axis >= 0;
}

/* A whole output is member 0's. */
static bool has_output(const member_join *j, uint32_t output, uint32_t member) {
  return output != OPIPE_NONE && (member == 0 || is_divided(j, output, member));
}

static opipe_status copy_cells(member_join *j) {
  opi_cut *c = j->cut;
  for (uint32_t k = 0; k < j->width; ++k) {
    c->n_cells += cut_of(j, k)->n_cells;
    c->n_routes += cut_of(j, k)->n_routes;
    j->cell_of[k] = OPI_ARENA_ARRAY(&j->scratch, uint32_t, (size_t)cut_of(j, k)->n_cells + 1);
    if (j->cell_of[k] == NULL)
      return opi_fail_nomem(j->err, cut_of(j, k)->n_cells * sizeof(uint32_t), "pieces");
  }
  c->cells = OPI_ARENA_ARRAY(&c->arena, opi_cell, (size_t)c->n_cells + 1);
  c->routes = OPI_ARENA_ARRAY(&c->arena, opi_route, (size_t)c->n_routes + 1);
  if (c->cells == NULL || c->routes == NULL)
    return opi_fail_nomem(j->err, c->n_cells * sizeof *c->cells, "pieces");
  c->n_cells = 0;
  for (uint32_t v = 0; v < c->n_stages; ++v) {
    const uint32_t k = v % j->width, of = v / j->width;
    const opi_cut *from = cut_of(j, k);
    c->cell_first[v] = c->n_cells;
    for (uint32_t i = from->cell_first[of]; i < from->cell_first[of + 1]; ++i) {
      opi_cell cell = from->cells[i];
      cell.stage = v;
      cell.output = has_output(j, cell.output, k) ? cell.output : OPIPE_NONE;
      j->cell_of[k][i] = c->n_cells;
      c->cells[c->n_cells++] = cell;
    }
  }
  c->cell_first[c->n_stages] = c->n_cells;
  return OPIPE_OK;
}

/* In the order of their destinations. */
static void copy_routes(member_join *j) {
  opi_cut *c = j->cut;
  c->n_routes = 0;
  for (uint32_t i = 0; i < c->n_cells; ++i) {
    opi_cell *cell = &c->cells[i];
    const uint32_t k = cell->stage % j->width, first = cell->route;
    if (cell->source != OPI_CELL_RECEIVED)
      continue;
    cell->route = c->n_routes;
    for (uint32_t r = first; r < first + cell->n_routes; ++r) {
      opi_route route = cut_of(j, k)->routes[r];
      route.src_stage = view_stage(j, k, route.src_stage);
      route.dst_stage = view_stage(j, k, route.dst_stage);
      route.src_cell = j->cell_of[k][route.src_cell];
      route.dst_cell = j->cell_of[k][route.dst_cell];
      c->routes[c->n_routes++] = route;
    }
  }
  opi_cut_link_routes(c);
}

/* ---- programs ---- */

static opipe_status copy_programs(member_join *j) {
  opi_cut *c = j->cut;
  for (uint32_t i = 0; i < c->n_stages * c->n_kinds; ++i) {
    const uint32_t v = i / c->n_kinds, k = v % j->width, of = v / j->width;
    const opi_cut *from = cut_of(j, k);
    const bool sums = of % j->n_places % 2 == 1;
    c->used[v] = from->used[of];
    c->phases[v] = from->phases[of];
    c->forward_of[v] = v;
    if (sums)
      continue;
    c->programs[i] = *opi_program_of(from, of, i % c->n_kinds);
    const uint32_t n = c->programs[i].graph.n_boundaries;
    uint32_t *cells = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)n + 1);
    if (cells == NULL)
      return opi_fail_nomem(j->err, n * sizeof *cells, "pieces");
    for (uint32_t b = 0; b < n; ++b)
      cells[b] = j->cell_of[k][c->programs[i].cells[b]];
    c->programs[i].cells = cells;
  }
  return OPIPE_OK;
}

/* ---- inputs and outputs ---- */

static opi_port_part port_part(const opi_shard_part *parts, uint32_t n, uint32_t value,
                               const opi_graph *whole) {
  opi_port_part out = {.axis = -1};
  for (uint32_t i = 0; i < n; ++i) {
    if (parts[i].value != value)
      continue;
    out = (opi_port_part){.axis = parts[i].axis,
                          .n_runs = parts[i].n_runs,
                          .n_whole = whole->values[parts[i].whole].shape[parts[i].axis],
                          .runs = parts[i].runs};
  }
  return out;
}

/* Parts are the same for all numbers of rows: rows are never divided among members. */
static opipe_status list_ports(member_join *j) {
  opi_cut *c = j->cut;
  const opi_variant *base = &j->model->variants[j->model->base];
  const opi_graph *g = c->graph, *whole = base->bound->graph;
  opi_port_part *in = OPI_ARENA_ARRAY(&c->arena, opi_port_part, (size_t)g->n_inputs * j->width + 1);
  opi_port_part *out =
      OPI_ARENA_ARRAY(&c->arena, opi_port_part, (size_t)g->n_outputs * j->width + 1);
  if (in == NULL || out == NULL)
    return opi_fail_nomem(j->err, g->n_outputs * sizeof *out, "pieces");
  for (uint32_t k = 0; k < j->width; ++k) {
    const opi_shard_member *member = &base->shards->members[k];
    const opi_graph *own = base->slices[k].graph;
    for (uint32_t i = 0; i < g->n_inputs; ++i)
      in[i * j->width + k] = port_part(member->inputs, member->n_inputs, own->inputs[i], whole);
    for (uint32_t o = 0; o < g->n_outputs; ++o)
      out[o * j->width + k] = port_part(member->outputs, member->n_outputs, own->outputs[o], whole);
  }
  c->input_parts = in;
  c->output_parts = out;
  return OPIPE_OK;
}

static opipe_status list_outputs(member_join *j) {
  opi_cut *c = j->cut;
  const uint32_t n = c->graph->n_outputs;
  c->output_port = cut_of(j, 0)->output_port;
  c->n_pieces = j->model->n_pieces;
  c->output_cell = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)n * c->n_pieces + 1);
  if (c->output_cell == NULL)
    return opi_fail_nomem(j->err, (uint64_t)n * c->n_pieces * sizeof(uint32_t), "pieces");
  memset(c->output_cell, 0xff, (size_t)n * c->n_pieces * sizeof(uint32_t));
  for (uint32_t o = 0; o < n; ++o) {
    for (uint32_t k = 0; k < j->width; ++k) {
      const uint32_t from = cut_of(j, k)->output_cell[o];
      if (from == OPIPE_NONE || !has_output(j, o, k))
        continue;
      const uint32_t cell = j->cell_of[k][from];
      c->output_cell[o * c->n_pieces + c->cells[cell].stage % c->n_pieces] = cell;
    }
  }
  return OPIPE_OK;
}

/* ---- meetings ---- */

static uint32_t phase_of(const opi_node *node) {
  return node->pass == OPIPE_PASS_BACKWARD_INPUT    ? OPI_PHASE_I
         : node->pass == OPIPE_PASS_BACKWARD_WEIGHT ? OPI_PHASE_W
                                                    : OPI_PHASE_F;
}

/* The collectives of every member in graph order: nodes [n_members][*out_n]. */
static opipe_status list_collectives(member_join *j, uint32_t **nodes, uint32_t *out_n) {
  for (uint32_t k = 0; k < j->width; ++k) {
    const opi_graph *g = j->variant->slices[k].graph;
    uint32_t n = 0;
    nodes[k] = OPI_ARENA_ARRAY(&j->scratch, uint32_t, (size_t)g->n_nodes + 1);
    if (nodes[k] == NULL)
      return opi_fail_nomem(j->err, g->n_nodes * sizeof(uint32_t), "pieces");
    for (uint32_t i = 0; i < g->n_nodes; ++i) {
      opi_collective how;
      if (opi_collective_of(g, &g->nodes[i], &how) && how.kind != OPI_COLLECTIVE_SPREAD)
        nodes[k][n++] = i;
    }
    if (k > 0 && n != *out_n)
      return opi_fail(j->err, OPIPE_E_INTERNAL, "members with %u and %u collectives", *out_n, n);
    *out_n = n;
  }
  return OPIPE_OK;
}

/* A member's cell of a value at a stage of its cut; OPIPE_NONE: none. */
static uint32_t find_cell(const member_join *j, uint32_t member, uint32_t stage, uint32_t value) {
  const opi_cut *from = cut_of(j, member);
  for (uint32_t c = from->cell_first[stage]; c < from->cell_first[stage + 1]; ++c) {
    if (from->cells[c].value == value)
      return j->cell_of[member][c];
  }
  return OPIPE_NONE;
}

static void set_extents(const opi_value *out, const opi_collective *how, opi_group_value *value) {
  value->outer = value->inner = 1;
  for (int32_t d = 0; d < out->rank; ++d) {
    if (how->kind == OPI_COLLECTIVE_SUM || d > how->axis)
      value->inner *= (uint64_t)out->shape[d];
    else if (d < how->axis)
      value->outer *= (uint64_t)out->shape[d];
  }
}

/* Describes collective i of all members. */
static opipe_status describe(member_join *j, uint32_t *const *nodes, uint32_t i,
                             opi_group_value *value) {
  opi_arena *arena = &j->cut->arena;
  uint32_t *in = OPI_ARENA_ARRAY(arena, uint32_t, j->width);
  uint32_t *out = OPI_ARENA_ARRAY(arena, uint32_t, j->width);
  if (in == NULL || out == NULL)
    return opi_fail_nomem(j->err, j->width * sizeof *in, "pieces");
  *value = (opi_group_value){.in_cell = in, .out_cell = out};
  for (uint32_t k = 0; k < j->width; ++k) {
    const opi_variant_slice *slice = &j->variant->slices[k];
    const opi_graph *g = slice->graph;
    const opi_node *node = &g->nodes[nodes[k][i]];
    const opi_value *x = &g->values[node->in[0]], *y = &g->values[node->out[0]];
    const uint64_t bytes = x->n_bytes > y->n_bytes ? x->n_bytes : y->n_bytes;
    opi_collective how;
    (void)opi_collective_of(g, node, &how);
    in[k] = find_cell(j, k, slice->stage[nodes[k][i]], node->in[0]);
    out[k] = find_cell(j, k, slice->stage[nodes[k][i]], node->out[0]);
    value->n_bytes = bytes > value->n_bytes ? bytes : value->n_bytes;
    if (in[k] == OPIPE_NONE) {
      return opi_fail(j->err, OPIPE_E_INTERNAL, "member %u of a tensor group lacks '%s', to be %s",
                      k, x->name, "added up");
    }
    if (k != 0)
      continue;
    value->name = y->name;
    value->kind = how.kind;
    value->dtype = how.dtype;
    set_extents(y, &how, value);
    if (how.n_parts == 0)
      continue;
    value->parts = opi_arena_copy(arena, how.parts, how.n_parts * sizeof *how.parts);
    if (value->parts == NULL)
      return opi_fail_nomem(j->err, how.n_parts * sizeof *how.parts, "pieces");
  }
  return OPIPE_OK;
}

/* Adds a value to the meeting at its place; meetings lie in the order of places and phases. */
static opipe_status list_meetings(member_join *j) {
  opi_cut *c = j->cut;
  uint32_t **nodes = OPI_ARENA_ARRAY(&j->scratch, uint32_t *, j->width), n = 0;
  const opi_variant_slice *first = &j->variant->slices[0];
  if (nodes == NULL)
    return opi_fail_nomem(j->err, j->width * sizeof *nodes, "pieces");
  OPI_TRY(list_collectives(j, nodes, &n));
  c->meetings = OPI_ARENA_ARRAY(&c->arena, opi_group_meeting, (size_t)n + 1);
  opi_group_value *values = OPI_ARENA_ARRAY(&c->arena, opi_group_value, (size_t)n + 1);
  if (c->meetings == NULL || values == NULL)
    return opi_fail_nomem(j->err, n * sizeof *values, "pieces");
  const uint32_t n_places = j->plan->n_stages * j->n_places;
  uint32_t at = 0;
  for (uint32_t p = 0; p < n_places * OPI_PHASES && n != 0; ++p) {
    const uint32_t of = p / OPI_PHASES, start = at;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t node = nodes[0][i];
      if (first->stage[node] == of && phase_of(&first->graph->nodes[node]) == p % OPI_PHASES)
        OPI_TRY(describe(j, nodes, i, &values[at++]));
    }
    if (at == start)
      continue;
    c->meetings[c->n_meetings++] = (opi_group_meeting){.stage = of / j->n_places,
                                                       .place = of % j->n_places,
                                                       .phase = p % OPI_PHASES,
                                                       .n_values = at - start,
                                                       .values = &values[start]};
  }
  return OPIPE_OK;
}

/* A whole backward meets once at a place (lists/group_sums.c). */
static opipe_status check_meetings(const member_join *j) {
  const opi_cut *c = j->cut;
  for (uint32_t m = 1; m < c->n_meetings; ++m) {
    const opi_group_meeting *a = &c->meetings[m - 1], *b = &c->meetings[m];
    const uint32_t view = (a->stage * j->n_places + a->place) * j->width;
    if (a->stage == b->stage && a->place == b->place && a->phase == OPI_PHASE_I &&
        b->phase == OPI_PHASE_W && (c->used[view] & 1u << OPI_PROGRAM_B) != 0) {
      return opi_fail(j->err, OPIPE_E_INTERNAL, "'%s' and '%s' are made at one place of a backward",
                      a->values[0].name, b->values[0].name);
    }
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status open_cut(member_join *j) {
  opi_cut *c = j->cut;
  const size_t n = c->n_stages;
  c->cell_first = OPI_ARENA_ARRAY(&c->arena, uint32_t, n + 1);
  c->used = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
  c->phases = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
  c->forward_of = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
  c->programs = OPI_ARENA_ARRAY(&c->arena, opi_program, n * c->n_kinds);
  j->cell_of = OPI_ARENA_ARRAY(&j->scratch, uint32_t *, j->width);
  return c->cell_first == NULL || c->used == NULL || c->phases == NULL || c->forward_of == NULL ||
                 c->programs == NULL || j->cell_of == NULL
             ? opi_fail_nomem(j->err, n * sizeof *c->programs, "pieces")
             : OPIPE_OK;
}

static opipe_status join(member_join *j) {
  OPI_TRY(open_cut(j));
  OPI_TRY(list_ports(j));
  OPI_TRY(copy_cells(j));
  copy_routes(j);
  OPI_TRY(copy_programs(j));
  OPI_TRY(list_outputs(j));
  OPI_TRY(list_meetings(j));
  return check_meetings(j);
}

/* The view's pieces: which graph each has. */
static opipe_status place_pieces(const opi_decision *plan, uint32_t c, opi_cut_model *model,
                                 opipe_error *err) {
  const uint32_t n = plan->n_stages * model->n_pieces, v = model->variant_of[c];
  opi_piece *pieces = OPI_ARENA_ARRAY(&model->arena, opi_piece, n);
  if (pieces == NULL)
    return opi_fail_nomem(err, n * sizeof *pieces, "pieces");
  for (uint32_t i = 0; i < n; ++i) {
    pieces[i] = (opi_piece){.variant = v,
                            .slice = i % model->n_members,
                            .phases = model->variants[v].slices[0].cut->phases[0],
                            .rows = model->variants[v].rows};
  }
  model->pieces[c] = pieces;
  return OPIPE_OK;
}

opipe_status opi_members_compose(const opi_decision *plan, uint32_t c, opi_cut_model *model,
                                 opipe_error *err) {
  const opi_variant *variant = &model->variants[model->variant_of[c]];
  const opi_variant_slice *first = &variant->slices[0];
  OPI_TRY(place_pieces(plan, c, model, err));
  opi_cut *cut = opi_alloc_zero(plan->allocator, 1, sizeof *cut);
  if (cut == NULL)
    return opi_fail_nomem(err, sizeof *cut, "pieces");
  opi_arena_init(&cut->arena, plan->allocator, 0);
  cut->graph = first->graph;
  cut->training = first->training;
  cut->n_kinds = first->cut->n_kinds;
  cut->sources = first->cut->sources;
  cut->trained = first->cut->trained;
  cut->parts = first->cut->parts;
  cut->n_params = first->cut->n_params;
  cut->n_stages = plan->n_stages * model->n_pieces;
  member_join j = {.plan = plan,
                   .model = model,
                   .variant = variant,
                   .cut = cut,
                   .width = model->n_members,
                   .n_places = model->n_places,
                   .err = err};
  opi_arena_init(&j.scratch, plan->allocator, 0);
  const opipe_status status = join(&j);
  opi_arena_release(&j.scratch);
  if (status < 0) {
    opi_cut_free(cut);
    return status;
  }
  model->cuts[c] = cut;
  return OPIPE_OK;
}
