/* SPDX-License-Identifier: Apache-2.0 */
/* Routes between pieces: from the forward of an instance to its backwards, from stage to stage, and
 * from one token slice to the next. Both ends of the first and the last live on one rank.
 *
 * For n pieces of R rows, piece i has rows ceil(R i / n) to ceil(R (i + 1) / n) - 1. The tensors of
 * a piece are those of a graph of its own number of rows; the rows of a tensor that is cut must be
 * contiguous. Every piece has all of a tensor that does not depend on the batch.
 */
#include <string.h>

#include "partition/program/pieces.h"

enum { STATES_FROM = 65536 /* indices of routes between slices */ };

/* ---- rows of tensors ---- */

/* The dimension in which a tensor grows with the rows; -1: none; *out_front: no dimension precedes
 * it. */
static int32_t grown_dim(const opi_composed_graph *s, uint32_t base_cell, bool *out_front) {
  const opi_value *a = &s->graph->values[s->base->cells[base_cell].value];
  const opi_value *b = &s->other->graph->values[s->other->cut->cells[base_cell].value];
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
static bool seen_in_front(const opi_composed_graph *s, const opi_value *value, int32_t dim,
                          int64_t unit) {
  const opi_graph *g = s->graph;
  bool found = false;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *w = &g->values[v];
    const opi_carry *carry = &s->axes->carry[v];
    if (s->axes->mixed[v] || carry->axis != dim || w->rank != value->rank ||
        memcmp(w->shape, value->shape, (size_t)w->rank * sizeof *w->shape) != 0)
      continue;
    if (carry->outer != 1 || carry->inner != unit)
      return false;
    found = true;
  }
  return found;
}

static opipe_status refuse(const opi_composing *m, const opi_composed_graph *s, uint32_t base_cell,
                           const char *why) {
  const opi_cell *cell = &s->base->cells[base_cell];
  const opi_graph *g = s->graph;
  const uint32_t node = g->values[cell->value].producer;
  return opi_fail(
      m->err, OPIPE_E_UNSUPPORTED, "a micro-batch cannot be cut in stage %u: tensor '%s'%s%s%s %s",
      cell->stage / m->model->n_places, cell->name, node == OPIPE_NONE ? "" : " of node '",
      node == OPIPE_NONE ? "" : g->nodes[node].name, node == OPIPE_NONE ? "" : "'", why);
}

/* Bytes of a row; 0: every piece has the whole tensor. A tensor that grows with the rows, though it
 * passed a sum over the batch or an operator without a rule, is a gradient of one that holds rows:
 * the forward pass treats every row alone, and so does its derivative. */
static opipe_status row_bytes(const opi_composing *m, const opi_composed_graph *s,
                              uint32_t base_cell, uint64_t *out_bytes) {
  const opi_cell *cell = &s->base->cells[base_cell];
  const opi_value *value = &s->graph->values[cell->value];
  const bool mixed = s->axes->mixed[cell->value];
  bool front = true;
  const int32_t dim = grown_dim(s, base_cell, &front);
  *out_bytes = 0;
  if (dim < 0)
    return mixed ? refuse(m, s, base_cell, "is made of all of its rows") : OPIPE_OK;
  const int64_t unit = value->shape[dim] / m->rows;
  const opi_carry *carry = &s->axes->carry[cell->value];
  const bool known = !mixed && carry->axis == dim;
  if (known && carry->count != 0) {
    return refuse(m, s, base_cell,
                  "holds positions among its rows, which begin anew in every part");
  }
  const bool holds = unit >= 1 && value->shape[dim] == unit * m->rows;
  if (!front || !holds ||
      (known ? carry->outer != 1 : unit > 1 && !seen_in_front(s, value, dim, unit)))
    return refuse(m, s, base_cell, "does not hold them one after the other");
  *out_bytes = cell->n_bytes / (uint64_t)m->rows;
  const uint32_t graph = (uint32_t)(s - m->graphs);
  for (uint32_t v = 0; v < m->model->n_variants; ++v) {
    const opi_variant *variant = &m->model->variants[v];
    if (variant->slices[graph].cut->cells[base_cell].n_bytes !=
        *out_bytes * (uint64_t)variant->rows)
      return refuse(m, s, base_cell, "has no bytes of its own for each of them");
  }
  return OPIPE_OK;
}

/* ---- adding a route ---- */

/* Routes of equal source, destination and phase are counted. */
static uint32_t next_index(const opi_composing *m, const opi_route *route) {
  uint32_t r = m->last_into[route->dst_stage];
  while (r != OPIPE_NONE && (m->cut->routes[r].src_stage != route->src_stage ||
                             m->cut->routes[r].phase != route->phase))
    r = m->before_into[r];
  return r == OPIPE_NONE ? 0 : m->cut->routes[r].index + 1;
}

/* Fills in the stages and, between slices apart, the index. */
static opipe_status add_route(opi_composing *m, opi_route route) {
  opi_cut *c = m->cut;
  opi_cell *dst = &c->cells[route.dst_cell];
  if (!opi_arena_grow(&c->arena, (void **)&c->routes, &m->room_routes, c->n_routes + 1,
                      sizeof *c->routes) ||
      !opi_arena_grow(&m->scratch, (void **)&m->before_into, &m->room_before, c->n_routes + 1,
                      sizeof *m->before_into))
    return opi_fail_nomem(m->err, sizeof route, "a route");
  route.src_stage = c->cells[route.src_cell].stage;
  route.dst_stage = dst->stage;
  if (route.index < STATES_FROM)
    route.index = next_index(m, &route);
  m->before_into[c->n_routes] = m->last_into[route.dst_stage];
  m->last_into[route.dst_stage] = c->n_routes;
  if (dst->n_routes++ == 0)
    dst->route = c->n_routes;
  c->routes[c->n_routes++] = route;
  return OPIPE_OK;
}

/* ---- from the forward of an instance to its backwards ---- */

static opipe_status route_within(opi_composing *m, uint32_t v) {
  const opi_composed_graph *slice = opi_composed_graph_of(m, v);
  const opi_cut *base = slice->base;
  const uint32_t s = v / m->n_pieces, from = m->cut->forward_of[v];
  const opi_piece *src = &m->pieces[from], *dst = &m->pieces[v];
  for (uint32_t i = base->cell_first[s]; i < base->cell_first[s + 1]; ++i) {
    const uint32_t cell = opi_cell_in_piece(m, v, i);
    uint64_t bytes = 0;
    if (from == v || cell == OPIPE_NONE || base->cells[i].phase != OPI_PHASE_F)
      continue;
    OPI_TRY(row_bytes(m, slice, i, &bytes));
    OPI_TRY(add_route(m, (opi_route){.value = base->cells[i].value,
                                     .src_cell = opi_cell_in_piece(m, from, i),
                                     .dst_cell = cell,
                                     .phase = OPI_PHASE_F,
                                     .within = true,
                                     .src_bytes = bytes * (uint64_t)(dst->first - src->first),
                                     .n_bytes = m->cut->cells[cell].n_bytes}));
  }
  return OPIPE_OK;
}

/* ---- from stage to stage ---- */

static bool meet(const opi_piece *a, const opi_piece *b) {
  return a->first < b->first + b->rows && b->first < a->first + a->rows;
}

/* Whether two pieces share rows in any class, or have the same rows in every class. */
static bool meet_ever(const opi_composing *m, uint32_t p, uint32_t q) {
  bool any = false;
  for (uint32_t c = 0; c < m->model->n_classes; ++c)
    any = any || meet(&m->model->pieces[c][p], &m->model->pieces[c][q]);
  return any;
}
static bool same_always(const opi_composing *m, uint32_t p, uint32_t q) {
  bool all = true;
  for (uint32_t c = 0; c < m->model->n_classes; ++c) {
    const opi_piece *a = &m->model->pieces[c][p], *b = &m->model->pieces[c][q];
    all = all && a->first == b->first && a->rows == b->rows;
  }
  return all;
}

/* Routes the rows of piece p that piece q receives. */
static opipe_status route_rows(opi_composing *m, const opi_route *r, uint32_t p, uint32_t q,
                               uint64_t bytes) {
  const opi_piece *src = &m->pieces[p], *dst = &m->pieces[q];
  const int64_t first = src->first > dst->first ? src->first : dst->first;
  const int64_t src_end = src->first + src->rows, dst_end = dst->first + dst->rows;
  const int64_t end = src_end < dst_end ? src_end : dst_end;
  const uint32_t dst_cell = opi_cell_in_piece(m, q, r->dst_cell);
  opi_route route = {.value = r->value,
                     .src_cell = opi_cell_in_piece(m, p, r->src_cell),
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

/* Whether piece p makes tensors of the phase for q: of the same slice and member. */
static bool makes(const opi_composing *m, uint32_t p, uint32_t q, uint32_t phase) {
  return m->pieces[p].graph == m->pieces[q].graph && (m->pieces[p].phases & 1u << phase) != 0;
}

/* Routes to piece q of a route's destination from the pieces of its source. */
static opipe_status route_to(opi_composing *m, const opi_route *r, uint32_t q) {
  const opi_composed_graph *slice = opi_composed_graph_of(m, q);
  const uint32_t first = r->src_stage * m->n_pieces;
  uint64_t bytes = 0;
  for (uint32_t p = first; p < first + m->n_pieces; ++p) {
    if (makes(m, p, q, r->phase) && same_always(m, p, q))
      return route_rows(m, r, p, q, 0);
  }
  OPI_TRY(row_bytes(m, slice, r->src_cell, &bytes));
  if (bytes == 0 && r->phase != OPI_PHASE_F)
    return refuse(m, slice, r->src_cell, "is a sum over all of its rows");
  for (uint32_t p = first; p < first + m->n_pieces; ++p) {
    if (!makes(m, p, q, r->phase) || !meet_ever(m, p, q))
      continue;
    OPI_TRY(route_rows(m, r, p, q, bytes));
    if (bytes == 0) /* all of them hold the same */
      return OPIPE_OK;
  }
  return OPIPE_OK;
}

static opipe_status route_stages(opi_composing *m, uint32_t graph) {
  const opi_cut *base = m->graphs[graph].base;
  for (uint32_t r = 0; r < base->n_routes; ++r) {
    const uint32_t first = base->routes[r].dst_stage * m->n_pieces;
    for (uint32_t q = first; q < first + m->n_pieces; ++q) {
      if (makes(m, q, q, base->routes[r].phase) && m->pieces[q].graph == graph)
        OPI_TRY(route_to(m, &base->routes[r], q));
    }
  }
  return OPIPE_OK;
}

/* ---- from one token slice to the next ---- */

/* The cell in which another slice of a piece makes a state, at any place of the stage; OPIPE_NONE:
 * it has none. */
static uint32_t maker_of(const opi_composing *m, uint32_t piece, uint32_t slice,
                         const opi_cell *dst, uint32_t state) {
  const opi_cut *c = m->cut;
  const uint32_t n_pieces = m->model->n_pieces;
  opi_piece_place at = opi_piece_place_of(m->plan, piece % n_pieces);
  at.slice = slice;
  for (at.place = 0; at.place < m->model->n_places; ++at.place) {
    const uint32_t v = piece - piece % n_pieces + opi_piece_at_place(m->plan, at);
    for (uint32_t i = c->cell_first[v]; i < c->cell_first[v + 1]; ++i) {
      const opi_cell *cell = &c->cells[i];
      if (cell->state == state && cell->state_index == dst->state_index &&
          cell->source == OPI_CELL_MADE && cell->n_bytes == dst->n_bytes)
        return i;
    }
  }
  return OPIPE_NONE;
}

/* The part that a piece's member has of a state that its slice reads or makes; NULL: it has all.
 * All numbers of rows are divided as the base is. */
static const opi_shard_part *part_of(const opi_composing *m, const opi_cell *cell) {
  const opi_piece *piece = &m->pieces[cell->stage];
  const opi_variant *base = &m->model->variants[m->model->base];
  const opi_variant_slice *slice = &base->slices[piece->graph];
  const bool past = cell->state == OPI_STATE_PAST || cell->state == OPI_STATE_PAST_GRADIENT;
  if (base->shards == NULL || slice->tokens == NULL)
    return NULL;
  const opi_shard_member *member =
      &base->shards[piece->slice]->members[piece->graph % m->model->n_members];
  const opi_shard_part *parts = past ? member->inputs : member->outputs;
  const opi_token_state *states = slice->tokens->states;
  uint32_t i = 0;
  while (i < slice->tokens->n_states &&
         strcmp(states[i].name, slice->states[cell->state_index].name) != 0)
    ++i;
  if (i == slice->tokens->n_states)
    return NULL;
  for (uint32_t k = 0; k < (past ? member->n_inputs : member->n_outputs); ++k) {
    if (parts[k].value == (past ? states[i].past : states[i].present))
      return &parts[k];
  }
  return NULL;
}

/* Whether a member has the same heads of a state in two slices. */
static bool same_heads(const opi_composing *m, uint32_t dst_cell, uint32_t src_cell) {
  const opi_shard_part *x = part_of(m, &m->cut->cells[dst_cell]);
  const opi_shard_part *y = part_of(m, &m->cut->cells[src_cell]);
  if (x == NULL || y == NULL)
    return x == y;
  return x->axis == y->axis && x->n_runs == y->n_runs &&
         (x->n_runs == 0 || memcmp(x->runs, y->runs, x->n_runs * sizeof *x->runs) == 0);
}

static opipe_status route_state(opi_composing *m, uint32_t dst_cell) {
  const opi_cell dst = m->cut->cells[dst_cell];
  const uint32_t k = m->pieces[dst.stage].slice;
  uint32_t src = OPIPE_NONE;
  if (dst.state == OPI_STATE_PAST && k > 0)
    src = maker_of(m, dst.stage, k - 1, &dst, OPI_STATE_PRESENT);
  else if (dst.state == OPI_STATE_PRESENT_GRADIENT && k + 1 < m->model->n_slices)
    src = maker_of(m, dst.stage, k + 1, &dst, OPI_STATE_PAST_GRADIENT);
  if (src == OPIPE_NONE) {
    return opi_fail(m->err, OPIPE_E_UNSUPPORTED,
                    "token slice %u of stage %u reads '%s', which no other slice of the stage "
                    "passes on",
                    k, dst.stage / m->model->n_pieces, dst.name);
  }
  if (!same_heads(m, dst_cell, src)) {
    return opi_fail(m->err, OPIPE_E_UNSUPPORTED,
                    "token slice %u of stage %u: member %u of a tensor group has other parts of "
                    "'%s' than in the slice that passes it on",
                    k, dst.stage / m->model->n_pieces, dst.stage % m->model->n_members, dst.name);
  }
  return add_route(m, (opi_route){.value = dst.value,
                                  .src_cell = src,
                                  .dst_cell = dst_cell,
                                  .phase = dst.phase,
                                  .index = STATES_FROM + dst.state_index,
                                  .n_bytes = dst.n_bytes});
}

/* ---- all of them ---- */

/* Routes within instances come first: lifetimes are followed in this order (lists/slots.c). */
opipe_status opi_pieces_join(opi_composing *m) {
  opi_cut *c = m->cut;
  m->last_into = OPI_ARENA_ARRAY(&m->scratch, uint32_t, c->n_stages);
  if (m->last_into == NULL)
    return opi_fail_nomem(m->err, c->n_stages * sizeof(uint32_t), "pieces");
  memset(m->last_into, 0xff, c->n_stages * sizeof *m->last_into);
  for (uint32_t v = 0; v < c->n_stages; ++v) {
    if (m->pieces[v].phases != 0)
      OPI_TRY(route_within(m, v));
  }
  for (uint32_t k = 0; k < opi_model_graphs(m->model); ++k)
    OPI_TRY(route_stages(m, k));
  for (uint32_t i = 0; i < c->n_cells; ++i) {
    if (c->cells[i].source == OPI_CELL_RECEIVED && c->cells[i].state != 0)
      OPI_TRY(route_state(m, i));
  }
  opi_cut_link_routes(c);
  return OPIPE_OK;
}
