/* SPDX-License-Identifier: Apache-2.0 */
/* Merges the cuts of token slices: one stage for every (stage, slice), and a route for every tensor
 * that a slice hands on. Both ends of such a route live on one rank, so nothing is ever copied. */
#include <string.h>

#include "partition/program/cut.h"

typedef struct merging {
  opi_cut *const *parts;
  opi_cut *cut;
  opi_arena scratch;
  uint32_t **cell_of; /* [n][part's cells] index in the whole */
  uint32_t n, room_routes;
  opipe_error *err;
} merging;

static opipe_status merge_cells(merging *m) {
  opi_cut *c = m->cut;
  const uint32_t n_stages = m->parts[0]->n_stages;
  for (uint32_t k = 0; k < m->n; ++k)
    c->n_cells += m->parts[k]->n_cells;
  c->n_stages = n_stages * m->n;
  c->cells = OPI_ARENA_ARRAY(&c->arena, opi_cell, c->n_cells);
  c->cell_first = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)c->n_stages + 1);
  c->used = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->phases = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->forward_of = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  m->cell_of = OPI_ARENA_ARRAY(&m->scratch, uint32_t *, m->n);
  if (c->cells == NULL || c->cell_first == NULL || c->used == NULL || c->phases == NULL ||
      c->forward_of == NULL || m->cell_of == NULL)
    return opi_fail_nomem(m->err, c->n_cells * sizeof(opi_cell), "token slices");
  for (uint32_t k = 0; k < m->n; ++k) {
    m->cell_of[k] = OPI_ARENA_ARRAY(&m->scratch, uint32_t, m->parts[k]->n_cells);
    if (m->cell_of[k] == NULL)
      return opi_fail_nomem(m->err, c->n_cells * sizeof(uint32_t), "token slices");
  }
  c->n_cells = 0;
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    const opi_cut *part = m->parts[s % m->n];
    const uint32_t stage = s / m->n;
    c->cell_first[s] = c->n_cells;
    c->used[s] = part->used[stage];
    c->phases[s] = part->phases[stage];
    c->forward_of[s] = s;
    for (uint32_t i = part->cell_first[stage]; i < part->cell_first[stage + 1]; ++i) {
      m->cell_of[s % m->n][i] = c->n_cells;
      c->cells[c->n_cells] = part->cells[i];
      c->cells[c->n_cells++].stage = s;
    }
  }
  c->cell_first[c->n_stages] = c->n_cells;
  return OPIPE_OK;
}

static opipe_status add_route(merging *m, opi_route route) {
  opi_cut *c = m->cut;
  if (!opi_arena_grow(&c->arena, (void **)&c->routes, &m->room_routes, c->n_routes + 1,
                      sizeof *c->routes))
    return opi_fail_nomem(m->err, sizeof route, "a route");
  c->cells[route.dst_cell].route = c->n_routes;
  c->cells[route.dst_cell].n_routes = 1;
  c->routes[c->n_routes++] = route;
  return OPIPE_OK;
}

static opipe_status merge_routes(merging *m) {
  for (uint32_t k = 0; k < m->n; ++k) {
    for (uint32_t r = 0; r < m->parts[k]->n_routes; ++r) {
      opi_route route = m->parts[k]->routes[r];
      route.src_cell = m->cell_of[k][route.src_cell];
      route.dst_cell = m->cell_of[k][route.dst_cell];
      route.src_stage = route.src_stage * m->n + k;
      route.dst_stage = route.dst_stage * m->n + k;
      OPI_TRY(add_route(m, route));
    }
  }
  return OPIPE_OK;
}

/* The cell of part k that makes state `index` in role `state`. */
static uint32_t maker_of(const merging *m, uint32_t k, uint32_t index, uint32_t state) {
  for (uint32_t i = 0; i < m->parts[k]->n_cells; ++i) {
    const opi_cell *cell = &m->parts[k]->cells[i];
    if (cell->state == state && cell->state_index == index && cell->source == OPI_CELL_MADE)
      return m->cell_of[k][i];
  }
  return OPIPE_NONE;
}

static opipe_status join_slices(merging *m) {
  opi_cut *c = m->cut;
  for (uint32_t i = 0; i < c->n_cells; ++i) {
    const opi_cell dst = c->cells[i];
    const uint32_t k = dst.stage % m->n;
    const bool forward = dst.state == OPI_STATE_PAST;
    uint32_t src = OPIPE_NONE;
    if (dst.source != OPI_CELL_RECEIVED || dst.state == 0)
      continue;
    if (forward && k > 0)
      src = maker_of(m, k - 1, dst.state_index, OPI_STATE_PRESENT);
    else if (!forward && k + 1 < m->n)
      src = maker_of(m, k + 1, dst.state_index, OPI_STATE_PAST_GRADIENT);
    if (src == OPIPE_NONE || c->cells[src].n_bytes != dst.n_bytes ||
        c->cells[src].stage / m->n != dst.stage / m->n) {
      return opi_fail(m->err, OPIPE_E_UNSUPPORTED,
                      "token slice %u of stage %u reads '%s', which no other slice of the stage "
                      "passes on",
                      k, dst.stage / m->n, dst.name);
    }
    OPI_TRY(add_route(m, (opi_route){.value = dst.value,
                                     .src_stage = c->cells[src].stage,
                                     .dst_stage = dst.stage,
                                     .src_cell = src,
                                     .dst_cell = i,
                                     .phase = dst.phase,
                                     .index = 65536 + dst.state_index,
                                     .n_bytes = dst.n_bytes}));
  }
  return OPIPE_OK;
}

static opipe_status merge_programs(merging *m) {
  opi_cut *c = m->cut;
  const uint32_t n_kinds = c->n_kinds;
  c->programs = OPI_ARENA_ARRAY(&c->arena, opi_program, (size_t)c->n_stages * n_kinds);
  if (c->programs == NULL)
    return opi_fail_nomem(m->err, c->n_stages * sizeof *c->programs, "token slices");
  for (uint32_t i = 0; i < c->n_stages * n_kinds; ++i) {
    const uint32_t s = i / n_kinds, k = s % m->n;
    opi_program *program = &c->programs[i];
    *program = *opi_program_of(m->parts[k], s / m->n, i % n_kinds);
    const uint32_t n = program->graph.n_boundaries;
    uint32_t *cells = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
    if (cells == NULL)
      return opi_fail_nomem(m->err, n * sizeof *cells, "token slices");
    for (uint32_t b = 0; b < n; ++b)
      cells[b] = m->cell_of[k][program->cells[b]];
    program->cells = cells;
  }
  return OPIPE_OK;
}

/* Every slice has its part of an output; one that is passed through is so in all. */
static opipe_status merge_outputs(merging *m) {
  opi_cut *c = m->cut;
  const uint32_t n = c->graph->n_outputs;
  c->output_port = m->parts[0]->output_port;
  c->output_cell = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)n * m->n);
  if (c->output_cell == NULL)
    return opi_fail_nomem(m->err, n * m->n * sizeof(uint32_t), "token slices");
  for (uint32_t i = 0; i < n * m->n; ++i) {
    const uint32_t k = i % m->n;
    const bool there = i / m->n < m->parts[k]->graph->n_outputs;
    const uint32_t cell = there ? m->parts[k]->output_cell[i / m->n] : OPIPE_NONE;
    c->output_cell[i] = cell == OPIPE_NONE ? OPIPE_NONE : m->cell_of[k][cell];
  }
  return OPIPE_OK;
}

opipe_status opi_cut_merge(opi_cut *const *parts, uint32_t n, const opipe_allocator *allocator,
                           opi_cut **out_cut, opipe_error *err) {
  opi_cut *cut = opi_alloc_zero(allocator, 1, sizeof *cut);
  if (cut == NULL)
    return opi_fail_nomem(err, sizeof *cut, "token slices");
  opi_arena_init(&cut->arena, allocator, 0);
  cut->graph = parts[0]->graph;
  cut->training = parts[0]->training;
  cut->n_kinds = parts[0]->n_kinds;
  cut->n_slices = n;
  cut->sources = parts[0]->sources;
  cut->trained = parts[0]->trained;
  cut->n_params = parts[0]->n_params;
  merging m = {.parts = parts, .cut = cut, .n = n, .err = err};
  opi_arena_init(&m.scratch, allocator, 0);
  opipe_status status = merge_cells(&m);
  if (status == OPIPE_OK)
    status = merge_routes(&m);
  if (status == OPIPE_OK)
    status = join_slices(&m);
  if (status == OPIPE_OK)
    status = merge_programs(&m);
  if (status == OPIPE_OK)
    status = merge_outputs(&m);
  if (status == OPIPE_OK)
    opi_cut_link_routes(cut);
  opi_arena_release(&m.scratch);
  if (status < 0) {
    opi_cut_free(cut);
    return status;
  }
  *out_cut = cut;
  return OPIPE_OK;
}
