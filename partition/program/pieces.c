/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces: rows of a micro-batch, with some of a stage's phases, as stages of their own.
 *
 *   backwards in halves        F of all rows ══╦══ B of the first rows      one instance: what the
 *                                              ╚══ B of the other rows      halves read of F's
 *                                                                           tensors stays in place
 *   replicas that cut (2, 1)   F, B of the first rows ─┬─ F, B of all rows  a message for every
 *                              F, B of the other rows ─┘                    overlap of rows
 *
 * For n pieces of R rows, piece i has rows ceil(R i / n) to ceil(R (i + 1) / n) - 1. The tensors of
 * a piece are those of a training graph of its own number of rows; the rows of a tensor that is cut
 * must be contiguous. Every piece has all of a tensor that does not depend on the batch.
 */
#include <string.h>

#include "partition/program/model.h"

enum { FORWARD = 1u << OPI_PHASE_F, BACKWARD = 1u << OPI_PHASE_I | 1u << OPI_PHASE_W };

static int64_t first_row(int64_t rows, uint32_t n, uint32_t i) {
  return (rows * (int64_t)i + n - 1) / n;
}

/* ---- rows ---- */

static opipe_status place_piece(const opi_decision *plan, uint32_t s, uint32_t k, int64_t rows,
                                opi_piece *piece, opipe_error *err) {
  const uint32_t n_parts = plan->n_parts > 1 ? plan->n_parts : 1;
  const uint32_t each = n_parts > 1 ? n_parts + 1 : 1, share = k / each, sub = k % each;
  const uint32_t n_shares = plan->shares == NULL ? 1 : plan->shares[s];
  *piece = (opi_piece){.variant = OPIPE_NONE, .share = share};
  if (share >= n_shares)
    return OPIPE_OK;
  piece->first = first_row(rows, n_shares, share);
  piece->rows = first_row(rows, n_shares, share + 1) - piece->first;
  if (piece->rows == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "stage %u has %u replicas, which cannot share a micro-batch of %lld row%s", s,
                    n_shares, (long long)rows, rows == 1 ? "" : "s");
  }
  piece->phases = sub != 0                             ? BACKWARD
                  : each == 1 && opi_plan_trains(plan) ? FORWARD | BACKWARD
                                                       : FORWARD;
  if (sub == 0)
    return OPIPE_OK;
  if (piece->rows < n_parts) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "schedule '%s' cuts the backward of a micro-batch into %u parts along the "
                    "batch: %lld row%s cannot be cut",
                    plan->schedule, n_parts, (long long)piece->rows, piece->rows == 1 ? "" : "s");
  }
  const int64_t whole = piece->rows, at = first_row(whole, n_parts, sub - 1);
  piece->first += at;
  piece->rows = first_row(whole, n_parts, sub) - at;
  return OPIPE_OK;
}

opipe_status opi_pieces_place(const opi_decision *plan, uint32_t c, int64_t rows,
                              opi_cut_model *model, opipe_error *err) {
  const uint32_t n = plan->n_stages * model->n_pieces;
  model->pieces[c] = OPI_ARENA_ARRAY(&model->arena, opi_piece, n);
  if (model->pieces[c] == NULL)
    return opi_fail_nomem(err, n * sizeof(opi_piece), "pieces");
  for (uint32_t v = 0; v < n; ++v) {
    opi_piece *piece = &model->pieces[c][v];
    OPI_TRY(place_piece(plan, v / model->n_pieces, v % model->n_pieces, rows, piece, err));
    if (piece->phases != 0)
      OPI_TRY(opi_variant_note(model, piece->rows, &piece->variant, err));
  }
  return OPIPE_OK;
}

/* ---- cuts of tensors ---- */

typedef struct composing {
  const opi_cut_model *model;
  const opi_piece *pieces;        /* of the class */
  const opi_cut *base;            /* of the first variant: cells as in all of them */
  const opi_graph *graph;         /* the same */
  const opi_variant_slice *other; /* a variant with other rows */
  int64_t rows;
  const opi_carry *carry;
  const bool *mixed;
  opi_cut *cut;
  opi_arena scratch;
  uint32_t **cell_of; /* [n_stages * n_pieces][cells of the base stage] index in the cut */
  uint32_t n_pieces, room_routes;
  opipe_error *err;
} composing;

static const opi_cut *variant_cut(const composing *m, const opi_piece *piece) {
  return m->model->variants[piece->variant].slices[0].cut;
}

/* The dimension in which a tensor grows with the rows; -1: none; *out_front: no dimension precedes
 * it. */
static int32_t grown_dim(const composing *m, uint32_t base_cell, bool *out_front) {
  const opi_value *a = &m->graph->values[m->base->cells[base_cell].value];
  const opi_value *b = &m->other->graph->values[m->other->cut->cells[base_cell].value];
  *out_front = true;
  for (int32_t d = 0; d < a->rank && d < b->rank; ++d) {
    if (a->shape[d] != b->shape[d])
      return d;
    *out_front = *out_front && a->shape[d] == 1;
  }
  return -1;
}

/* Whether a value of the same shape is known to hold the rows in front, and none holds them
 * otherwise. */
static bool seen_in_front(const composing *m, const opi_value *value, int32_t dim, int64_t unit) {
  const opi_graph *g = m->graph;
  bool found = false;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *w = &g->values[v];
    if (m->mixed[v] || m->carry[v].axis != dim || w->rank != value->rank ||
        memcmp(w->shape, value->shape, (size_t)w->rank * sizeof *w->shape) != 0)
      continue;
    if (m->carry[v].outer != 1 || m->carry[v].inner != unit)
      return false;
    found = true;
  }
  return found;
}

static opipe_status refuse(const composing *m, uint32_t base_cell, const char *why) {
  const opi_cell *cell = &m->base->cells[base_cell];
  const opi_graph *g = m->graph;
  const uint32_t node = g->values[cell->value].producer;
  return opi_fail(
      m->err, OPIPE_E_UNSUPPORTED, "a micro-batch cannot be cut in stage %u: tensor '%s'%s%s%s %s",
      cell->stage, cell->name, node == OPIPE_NONE ? "" : " of node '",
      node == OPIPE_NONE ? "" : g->nodes[node].name, node == OPIPE_NONE ? "" : "'", why);
}

/* Bytes of a row; 0: every piece has the whole tensor. A tensor that grows with the rows, though it
 * passed a sum over the batch or an operator without a rule, is a gradient of one that holds rows:
 * the forward pass treats every row alone, and so does its derivative. */
static opipe_status row_bytes(const composing *m, uint32_t base_cell, uint64_t *out_bytes) {
  const opi_cell *cell = &m->base->cells[base_cell];
  const opi_value *value = &m->graph->values[cell->value];
  bool front = true;
  const int32_t dim = grown_dim(m, base_cell, &front);
  *out_bytes = 0;
  if (dim < 0)
    return m->mixed[cell->value] ? refuse(m, base_cell, "is made of all of its rows") : OPIPE_OK;
  const int64_t unit = value->shape[dim] / m->rows;
  const opi_carry *carry = &m->carry[cell->value];
  const bool known = !m->mixed[cell->value] && carry->axis == dim;
  if (known && carry->count != 0)
    return refuse(m, base_cell, "holds positions among its rows, which begin anew in every part");
  const bool holds = unit >= 1 && value->shape[dim] == unit * m->rows;
  if (!front || !holds ||
      (known ? carry->outer != 1 : unit > 1 && !seen_in_front(m, value, dim, unit)))
    return refuse(m, base_cell, "does not hold them one after the other");
  *out_bytes = cell->n_bytes / (uint64_t)m->rows;
  for (uint32_t v = 0; v < m->model->n_variants; ++v) {
    const opi_variant *variant = &m->model->variants[v];
    if (variant->slices[0].cut->cells[base_cell].n_bytes != *out_bytes * (uint64_t)variant->rows)
      return refuse(m, base_cell, "has no bytes of its own for each of them");
  }
  return OPIPE_OK;
}

/* ---- cells ---- */

static opipe_status list_piece(composing *m, uint32_t v, bool count) {
  opi_cut *c = m->cut;
  const uint32_t s = v / m->n_pieces, phases = m->pieces[v].phases;
  const opi_cut *from = variant_cut(m, &m->pieces[v]);
  const uint32_t first = from->cell_first[s], end = from->cell_first[s + 1];
  if (!count) {
    m->cell_of[v] = OPI_ARENA_ARRAY(&m->scratch, uint32_t, end - first);
    if (m->cell_of[v] == NULL)
      return opi_fail_nomem(m->err, (end - first) * sizeof(uint32_t), "pieces");
  }
  for (uint32_t i = first; i < end; ++i) {
    opi_cell cell = from->cells[i];
    const bool own = (phases & 1u << cell.phase) != 0;
    if (!count)
      m->cell_of[v][i - first] = OPIPE_NONE;
    if (!own && (cell.phase != OPI_PHASE_F || (cell.readers & phases) == 0))
      continue;
    cell.stage = v;
    cell.readers &= phases;
    cell.route = OPIPE_NONE;
    cell.n_routes = 0;
    if (own && cell.source == OPI_CELL_RECEIVED && cell.readers == 0)
      cell.readers = 1u << cell.phase; /* only for another piece, which receives it here */
    if (!own) {
      cell.source = OPI_CELL_RECEIVED;
      cell.output = OPIPE_NONE;
      cell.stash = false;
    }
    if (!count) {
      m->cell_of[v][i - first] = c->n_cells;
      c->cells[c->n_cells] = cell;
    }
    ++c->n_cells;
  }
  return OPIPE_OK;
}

/* The piece with the same rows' forward. */
static uint32_t forward_piece(const composing *m, uint32_t v) {
  const uint32_t first = v / m->n_pieces * m->n_pieces;
  for (uint32_t k = first; k < first + m->n_pieces; ++k) {
    if ((m->pieces[k].phases & FORWARD) != 0 && m->pieces[k].share == m->pieces[v].share)
      return k;
  }
  return v;
}

static opipe_status list_cells(composing *m) {
  opi_cut *c = m->cut;
  for (uint32_t v = 0; v < c->n_stages; ++v) {
    if (m->pieces[v].phases != 0)
      OPI_TRY(list_piece(m, v, true));
  }
  c->cells = OPI_ARENA_ARRAY(&c->arena, opi_cell, c->n_cells);
  c->cell_first = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)c->n_stages + 1);
  c->used = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->phases = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->forward_of = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  m->cell_of = OPI_ARENA_ARRAY(&m->scratch, uint32_t *, c->n_stages);
  if (c->cells == NULL || c->cell_first == NULL || c->used == NULL || c->phases == NULL ||
      c->forward_of == NULL || m->cell_of == NULL)
    return opi_fail_nomem(m->err, c->n_cells * sizeof(opi_cell), "pieces");
  c->n_cells = 0;
  for (uint32_t v = 0; v < c->n_stages; ++v) {
    c->cell_first[v] = c->n_cells;
    c->phases[v] = m->pieces[v].phases;
    c->forward_of[v] = forward_piece(m, v);
    if (m->pieces[v].phases != 0)
      OPI_TRY(list_piece(m, v, false));
  }
  c->cell_first[c->n_stages] = c->n_cells;
  return OPIPE_OK;
}

/* ---- routes ---- */

static uint32_t cell_at(const composing *m, uint32_t v, uint32_t base_cell) {
  return m->cell_of[v][base_cell - m->base->cell_first[v / m->n_pieces]];
}

static opipe_status add_route(composing *m, opi_route route) {
  opi_cut *c = m->cut;
  opi_cell *dst = &c->cells[route.dst_cell];
  if (!opi_arena_grow(&c->arena, (void **)&c->routes, &m->room_routes, c->n_routes + 1,
                      sizeof *c->routes))
    return opi_fail_nomem(m->err, sizeof route, "a route");
  route.src_stage = c->cells[route.src_cell].stage;
  route.dst_stage = dst->stage;
  for (uint32_t r = 0; r < c->n_routes; ++r) {
    route.index += c->routes[r].src_stage == route.src_stage &&
                   c->routes[r].dst_stage == route.dst_stage && c->routes[r].phase == route.phase;
  }
  if (dst->n_routes++ == 0)
    dst->route = c->n_routes;
  c->routes[c->n_routes++] = route;
  return OPIPE_OK;
}

/* Routes from the forward of an instance to its backwards. */
static opipe_status route_within(composing *m, uint32_t v) {
  const opi_cut *base = m->base;
  const uint32_t s = v / m->n_pieces, from = m->cut->forward_of[v];
  const opi_piece *src = &m->pieces[from], *dst = &m->pieces[v];
  for (uint32_t i = base->cell_first[s]; i < base->cell_first[s + 1]; ++i) {
    const uint32_t cell = cell_at(m, v, i);
    uint64_t bytes = 0;
    if (from == v || cell == OPIPE_NONE || base->cells[i].phase != OPI_PHASE_F)
      continue;
    OPI_TRY(row_bytes(m, i, &bytes));
    OPI_TRY(add_route(m, (opi_route){.value = base->cells[i].value,
                                     .src_cell = cell_at(m, from, i),
                                     .dst_cell = cell,
                                     .phase = OPI_PHASE_F,
                                     .within = true,
                                     .src_bytes = bytes * (uint64_t)(dst->first - src->first),
                                     .n_bytes = m->cut->cells[cell].n_bytes}));
  }
  return OPIPE_OK;
}

static bool meet(const opi_piece *a, const opi_piece *b) {
  return a->first < b->first + b->rows && b->first < a->first + a->rows;
}

/* Whether two pieces share rows in any class, or have the same rows in every class. */
static bool meet_ever(const composing *m, uint32_t p, uint32_t q) {
  bool any = false;
  for (uint32_t c = 0; c < m->model->n_classes; ++c)
    any = any || meet(&m->model->pieces[c][p], &m->model->pieces[c][q]);
  return any;
}
static bool same_always(const composing *m, uint32_t p, uint32_t q) {
  bool all = true;
  for (uint32_t c = 0; c < m->model->n_classes; ++c) {
    const opi_piece *a = &m->model->pieces[c][p], *b = &m->model->pieces[c][q];
    all = all && a->first == b->first && a->rows == b->rows;
  }
  return all;
}

/* Routes the rows of piece p that piece q receives. */
static opipe_status route_rows(composing *m, uint32_t base_route, uint32_t p, uint32_t q,
                               uint64_t bytes) {
  const opi_route *r = &m->base->routes[base_route];
  const opi_piece *src = &m->pieces[p], *dst = &m->pieces[q];
  const int64_t first = src->first > dst->first ? src->first : dst->first;
  const int64_t src_end = src->first + src->rows, dst_end = dst->first + dst->rows;
  const int64_t end = src_end < dst_end ? src_end : dst_end;
  const uint32_t dst_cell = cell_at(m, q, r->dst_cell);
  opi_route route = {.value = r->value,
                     .src_cell = cell_at(m, p, r->src_cell),
                     .dst_cell = dst_cell,
                     .phase = r->phase,
                     .n_bytes = m->cut->cells[dst_cell].n_bytes};
  if (bytes != 0 && end > first) {
    route.src_bytes = bytes * (uint64_t)(first - src->first);
    route.dst_bytes = bytes * (uint64_t)(first - dst->first);
    route.n_bytes = bytes * (uint64_t)(end - first);
  } else if (bytes != 0) {
    route.empty = true;
    route.n_bytes = 0;
  }
  return add_route(m, route);
}

/* Routes to piece q of a route's destination from the pieces of its source. */
static opipe_status route_to(composing *m, uint32_t base_route, uint32_t q) {
  const opi_route *r = &m->base->routes[base_route];
  const uint32_t first = r->src_stage * m->n_pieces, phase = 1u << r->phase;
  uint64_t bytes = 0;
  for (uint32_t p = first; p < first + m->n_pieces; ++p) {
    if ((m->pieces[p].phases & phase) != 0 && same_always(m, p, q))
      return route_rows(m, base_route, p, q, 0);
  }
  OPI_TRY(row_bytes(m, r->src_cell, &bytes));
  if (bytes == 0 && r->phase != OPI_PHASE_F)
    return refuse(m, r->src_cell, "is a sum over all of its rows");
  for (uint32_t p = first; p < first + m->n_pieces; ++p) {
    if ((m->pieces[p].phases & phase) == 0 || !meet_ever(m, p, q))
      continue;
    OPI_TRY(route_rows(m, base_route, p, q, bytes));
    if (bytes == 0) /* all of them hold the same */
      return OPIPE_OK;
  }
  return OPIPE_OK;
}

static opipe_status list_routes(composing *m) {
  for (uint32_t v = 0; v < m->cut->n_stages; ++v) {
    if (m->pieces[v].phases != 0)
      OPI_TRY(route_within(m, v));
  }
  for (uint32_t r = 0; r < m->base->n_routes; ++r) {
    const uint32_t first = m->base->routes[r].dst_stage * m->n_pieces;
    for (uint32_t q = first; q < first + m->n_pieces; ++q) {
      if ((m->pieces[q].phases & 1u << m->base->routes[r].phase) != 0)
        OPI_TRY(route_to(m, r, q));
    }
  }
  return OPIPE_OK;
}

/* ---- programs ---- */

static opipe_status take_program(composing *m, uint32_t v, uint32_t which) {
  opi_cut *c = m->cut;
  const uint32_t s = v / m->n_pieces;
  opi_program *program = &c->programs[v * c->n_kinds + which];
  if (m->pieces[v].phases == 0 || (opi_program_phases(which) & ~m->pieces[v].phases) != 0)
    return OPIPE_OK;
  *program = *opi_program_of(variant_cut(m, &m->pieces[v]), s, which);
  c->used[v] |= variant_cut(m, &m->pieces[v])->used[s] & 1u << which;
  const uint32_t n = program->graph.n_boundaries;
  uint32_t *cells = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
  if (cells == NULL)
    return opi_fail_nomem(m->err, n * sizeof *cells, "pieces");
  for (uint32_t b = 0; b < n; ++b) {
    cells[b] = cell_at(m, v, program->cells[b]);
    if (cells[b] == OPIPE_NONE) {
      return opi_fail(m->err, OPIPE_E_INTERNAL, "a piece of stage %u lacks tensor '%s'", s,
                      m->base->cells[program->cells[b]].name);
    }
  }
  program->cells = cells;
  return OPIPE_OK;
}

/* Lists a forward's outputs: every piece of the stage that makes one has its rows. */
static opipe_status list_outputs(composing *m) {
  opi_cut *c = m->cut;
  const uint32_t n = m->graph->n_outputs * m->n_pieces;
  c->output_port = m->base->output_port;
  c->n_slices = m->n_pieces;
  c->output_cell = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
  if (c->output_cell == NULL)
    return opi_fail_nomem(m->err, n * sizeof(uint32_t), "pieces");
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t cell = m->base->output_cell[i / m->n_pieces];
    c->output_cell[i] = OPIPE_NONE;
    if (cell == OPIPE_NONE)
      continue;
    const uint32_t v = m->base->cells[cell].stage * m->n_pieces + i % m->n_pieces;
    if (m->pieces[v].phases != 0)
      c->output_cell[i] = cell_at(m, v, cell);
  }
  return OPIPE_OK;
}

static opipe_status compose(composing *m) {
  opi_cut *c = m->cut;
  const uint32_t n = c->n_stages * c->n_kinds;
  OPI_TRY(list_cells(m));
  OPI_TRY(list_routes(m));
  if (c->training == NULL)
    OPI_TRY(list_outputs(m));
  c->programs = OPI_ARENA_ARRAY(&c->arena, opi_program, n);
  if (c->programs == NULL)
    return opi_fail_nomem(m->err, n * sizeof *c->programs, "pieces");
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(take_program(m, i / c->n_kinds, i % c->n_kinds));
  return OPIPE_OK;
}

opipe_status opi_pieces_compose(const opi_decision *plan, uint32_t c, const opi_carry *carry,
                                const bool *mixed, opi_cut_model *model, opipe_error *err) {
  const opi_variant *first = &model->variants[0];
  const opi_variant *last = &model->variants[model->n_variants - 1];
  opi_cut *cut = opi_alloc_zero(plan->allocator, 1, sizeof *cut);
  if (cut == NULL)
    return opi_fail_nomem(err, sizeof *cut, "pieces");
  opi_arena_init(&cut->arena, plan->allocator, 0);
  cut->graph = first->slices[0].graph;
  cut->training = first->slices[0].training;
  cut->n_kinds = first->slices[0].cut->n_kinds;
  cut->n_slices = 1;
  cut->sources = first->slices[0].cut->sources;
  cut->trained = first->slices[0].cut->trained;
  cut->n_params = first->slices[0].cut->n_params;
  cut->n_stages = plan->n_stages * model->n_pieces;
  composing m = {.model = model,
                 .pieces = model->pieces[c],
                 .base = first->slices[0].cut,
                 .graph = first->slices[0].graph,
                 .other = &last->slices[0],
                 .rows = first->rows,
                 .carry = carry,
                 .mixed = mixed,
                 .cut = cut,
                 .n_pieces = model->n_pieces,
                 .err = err};
  opi_arena_init(&m.scratch, plan->allocator, 0);
  const opipe_status status = compose(&m);
  opi_cut_link_routes(cut);
  opi_arena_release(&m.scratch);
  if (status < 0) {
    opi_cut_free(cut);
    return status;
  }
  model->cuts[c] = cut;
  return OPIPE_OK;
}
