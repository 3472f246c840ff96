/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes of all tensors and, around a circle, slots: one pool per cell and rank, the lowest free
 * slot for every occurrence. Lists with a beginning and an end are packed (pack.c). */
#include "partition/lists/slots.h"

#include <stdlib.h>
#include <string.h>

#include "partition/lists/offloads.h"

static size_t occurrence(const opi_slots *s, uint32_t cell, uint32_t m) {
  return (size_t)cell * s->plan->n_microbatches + m;
}

static uint32_t rank_of(const opi_slots *s, uint32_t stage, uint32_t m) {
  const uint32_t replica = s->times->replica_of[(size_t)stage * s->plan->n_microbatches + m];
  return opi_piece_rank(s->plan, stage, replica);
}

static void use(opi_occurrence *o, const opi_times *t, uint32_t action) {
  if (t->end[action] > o->t1)
    o->t1 = t->end[action];
  if (o->last_action == OPIPE_NONE || t->start[action] > t->start[o->last_action])
    o->last_action = action;
  if (o->first_action == OPIPE_NONE || t->start[action] < t->start[o->first_action])
    o->first_action = action;
}

static const opi_route *route_of(const opi_slots *s, uint32_t route, uint32_t m) {
  return &s->cuts[opi_row_class_of(s->plan->whole, m)]->routes[route];
}

/* Whether a tensor routed within an instance stays in place: in every class its rows begin where
 * the device can have a tensor. */
static bool stays(const opi_slots *s, uint32_t route, uint32_t rank) {
  for (uint32_t k = 0; k < s->n_classes; ++k) {
    if (s->alignment[rank] > 1 && s->cuts[k]->routes[route].src_bytes % s->alignment[rank] != 0)
      return false;
  }
  return true;
}

/* A received tensor is live from the start of its first maker, so that messages never wait for
 * memory if real times differ from modelled ones. Rows copied from another piece: from the copy. */
static opipe_status time_received(opi_slots *s, uint32_t c, uint32_t m, opi_occurrence *o) {
  const opi_cell *cell = &s->cut->cells[c];
  const uint32_t n_mb = s->plan->n_microbatches;
  o->t0 = UINT64_MAX;
  for (uint32_t r = cell->route; r < cell->route + cell->n_routes; ++r) {
    const opi_route *route = route_of(s, r, m);
    const uint64_t start =
        s->times->phase_start[((size_t)route->src_stage * n_mb + m) * OPI_PHASES + route->phase];
    const bool here = rank_of(s, route->src_stage, m) == o->rank;
    if (route->empty)
      continue;
    if (here ? cell->n_routes > 1 : route->within) {
      return opi_fail(
          s->err, OPIPE_E_INVALID,
          "schedule '%s': rows of tensor '%s' of micro-batch %u are made on rank %u and "
          "read on rank %u",
          s->plan->whole->schedule.name, cell->name, m, rank_of(s, route->src_stage, m), o->rank);
    }
    opi_away away;
    if (route->offload && opi_away_find(s, c, m, &away)) {
      o->t0 = opi_away_returns(s, &away);
      continue;
    }
    if (here && (!route->within || stays(s, r, o->rank)))
      o->home = (uint32_t)occurrence(s, route->src_cell, m);
    o->t0 = start < o->t0 ? start : o->t0;
    if (route->within && o->home == OPIPE_NONE)
      o->t0 = s->times->start[o->first_action];
  }
  return OPIPE_OK;
}

/* The lifetime of one micro-batch of one cell, on its own. */
static opipe_status time_one(opi_slots *s, uint32_t c, uint32_t m) {
  const opi_times *t = s->times;
  const opi_cell *cell = &s->cut->cells[c];
  opi_occurrence *o = &s->occurrences[occurrence(s, c, m)];
  const uint32_t n_mb = s->plan->n_microbatches;
  const size_t phases = ((size_t)cell->stage * n_mb + m) * OPI_PHASES;
  *o = (opi_occurrence){.rank = rank_of(s, cell->stage, m),
                        .home = OPIPE_NONE,
                        .previous = OPIPE_NONE,
                        .before = OPIPE_NONE,
                        .first_action = OPIPE_NONE,
                        .last_action = OPIPE_NONE};
  for (uint32_t p = 0; p < OPI_PHASES; ++p) {
    const uint32_t reader = t->phase_action[phases + p];
    if ((cell->readers & 1u << p) == 0)
      continue;
    use(o, t, reader);
    if (t->await_at != NULL && opi_piece_sums(s->plan, cell->stage))
      use(o, t, t->await_at[reader]); /* until the sum has ended */
  }
  if (cell->source == OPI_CELL_REQUEST) {
    o->t0 = t->phase_start[phases + OPI_PHASE_F];
    use(o, t, t->phase_action[phases + OPI_PHASE_F]);
  } else if (cell->source == OPI_CELL_MADE) {
    o->t0 = t->phase_start[phases + cell->phase];
    use(o, t, t->phase_action[phases + cell->phase]);
  } else {
    return time_received(s, c, m, o);
  }
  return OPIPE_OK;
}

/* By how many records a message may be early around the circle. In a stream of requests it has one
 * slot more than that: as many as micro-batches lie between its ends. A stage of a tensor group has
 * a record for every place. */
static uint64_t ahead_of(const opi_slots *s, const opi_route *route) {
  const uint32_t n_pieces = s->plan->n_pieces, width = opi_plan_width(s->plan->whole);
  if (!s->plan->trains) {
    const uint64_t n_places = n_pieces / width / opi_plan_pieces(s->plan->whole);
    return (opi_forward_slots(s->plan->whole,
                              route->dst_stage / n_pieces - route->src_stage / n_pieces) -
            1) *
           n_places;
  }
  return s->plan->whole->depth == 0 ? 1 : s->plan->whole->depth;
}

/* Whether both cells of the route are all of one tensor, for every number of rows. */
static bool is_whole(const opi_slots *s, uint32_t route) {
  for (uint32_t k = 0; k < s->n_classes; ++k) {
    const opi_cut *cut = s->cuts[k];
    const opi_route *r = &cut->routes[route];
    if (r->empty || r->within || r->src_bytes != 0 || r->dst_bytes != 0 ||
        r->n_bytes != cut->cells[r->src_cell].n_bytes ||
        r->n_bytes != cut->cells[r->dst_cell].n_bytes)
      return false;
  }
  return true;
}

/* The number of the rank's records that stand in its list before time `at`, by the clock; under_way
 * decides whether a running one counts. */
static uint32_t records_before(const opi_slots *s, uint32_t rank, uint64_t at, bool under_way) {
  const uint32_t first = s->plan->rank_first[rank];
  uint32_t low = first, high = s->plan->rank_first[rank + 1];
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (under_way ? s->times->clock_start[middle] < at : s->times->clock_end[middle] <= at)
      low = middle + 1;
    else
      high = middle;
  }
  return low - first;
}

static uint32_t maker_of(const opi_slots *s, const opi_route *route, uint32_t m) {
  return s->times
      ->phase_action[((size_t)route->src_stage * s->plan->n_microbatches + m) * OPI_PHASES +
                     route->phase];
}

/* The position of the reader's rank from which a double-buffered tensor of a route has its place.
 * If messages are matched by order: the maker's end, by the clock. Else before the record that runs
 * when the maker begins: the tensor can be made in place, and all that the maker waits for lies
 * earlier. */
static uint64_t made_from(const opi_slots *s, const opi_route *route, uint32_t rank, uint32_t m) {
  const uint32_t n = s->plan->rank_first[rank + 1] - s->plan->rank_first[rank];
  const uint32_t maker = maker_of(s, route, m);
  const uint64_t at = s->strict ? s->times->clock_end[maker] : s->times->clock_start[maker];
  return records_before(s, rank, at, s->strict) +
         (opi_action_is_next(&s->plan->actions[maker]) ? 0 : n);
}

/* Whether the circle has room for it from then on, until all places of the stage have read it. */
static bool is_in_time(const opi_slots *s, const opi_route *route, uint32_t m) {
  const opi_occurrence *o = &s->occurrences[occurrence(s, route->dst_cell, m)];
  uint64_t until = o->t1;
  if (!s->times->periodic || !s->plan->trains)
    return true;
  for (uint32_t r = s->cut->cells[route->dst_cell].first_out; r != OPIPE_NONE;
       r = s->cut->routes[r].next_out) {
    const opi_occurrence *next = &s->occurrences[occurrence(s, s->cut->routes[r].dst_cell, m)];
    until = next->t1 > until ? next->t1 : until;
  }
  return until - made_from(s, route, o->rank, m) <=
         s->plan->rank_first[o->rank + 1] - s->plan->rank_first[o->rank];
}

/* The first route of a cell to a rank into whose memory the maker may write; OPIPE_NONE: none. */
static uint32_t first_direct(const opi_slots *s, uint32_t c, uint32_t m) {
  const uint32_t maker = s->occurrences[occurrence(s, c, m)].rank;
  uint32_t r = s->cut->cells[c].first_out;
  while (r != OPIPE_NONE && !opi_plan_edge_is_direct(
                                s->plan->whole, maker,
                                s->occurrences[occurrence(s, s->cut->routes[r].dst_cell, m)].rank))
    r = s->cut->routes[r].next_out;
  return r;
}

/* A tensor that no stage of its own rank reads is made at the place of its first reader that shares
 * memory. From there it is copied to the others, before that reader may read and free it. */
static void place_direct(opi_slots *s, uint32_t c, uint32_t m) {
  const opi_cell *cell = &s->cut->cells[c];
  const uint32_t first = cell->source == OPI_CELL_MADE ? first_direct(s, c, m) : OPIPE_NONE;
  const bool result = cell->output != OPIPE_NONE && s->plan->trains; /* read at the end */
  if (first == OPIPE_NONE || cell->state != 0 || result ||
      (cell->readers & ~(1u << cell->phase)) != 0 || !is_whole(s, first))
    return;
  for (uint32_t r = cell->first_out; r != OPIPE_NONE; r = s->cut->routes[r].next_out) {
    if (s->occurrences[occurrence(s, s->cut->routes[r].dst_cell, m)].home != OPIPE_NONE ||
        s->cut->routes[r].offload)
      return;
  }
  const uint32_t to = s->cut->routes[first].dst_cell;
  if (s->cut->cells[to].n_routes == 1 && is_in_time(s, &s->cut->routes[first], m))
    s->occurrences[occurrence(s, c, m)].home = (uint32_t)occurrence(s, to, m);
}

/* A route extends the life of its source: until it is delivered, or until the reader on the same
 * rank is done. */
static void follow_route(opi_slots *s, uint32_t r, uint32_t m) {
  const opi_times *t = s->times;
  const opi_route *route = route_of(s, r, m);
  const uint64_t ahead = ahead_of(s, route);
  opi_occurrence *src = &s->occurrences[occurrence(s, route->src_cell, m)];
  const opi_occurrence *dst = &s->occurrences[occurrence(s, route->dst_cell, m)];
  const size_t made =
      ((size_t)route->src_stage * s->plan->n_microbatches + m) * OPI_PHASES + route->phase;
  const uint64_t start = t->phase_start[made], end = t->phase_end[made];
  opi_away away;
  if (route->offload && dst->home == OPIPE_NONE && opi_away_find(s, route->dst_cell, m, &away)) {
    const uint64_t left = opi_away_left(s, &away);
    src->t1 = left > src->t1 ? left : src->t1;
    return;
  }
  const bool here = dst->home != OPIPE_NONE || route->within;
  const uint32_t last = dst->home != OPIPE_NONE ? dst->last_action : dst->first_action;
  uint64_t until =
      end + (end - start) + opi_link_ns(&s->plan->whole->link, route->n_bytes); /* the same again as
                                                                                   slack */
  if (here)
    until = dst->home != OPIPE_NONE ? dst->t1 : t->end[last];
  else if (t->periodic)
    until = t->start[src->first_action] + 1 + ahead;
  if (here && t->start[last] > t->start[src->last_action])
    src->last_action = last;
  if (until > src->t1)
    src->t1 = until;
}

/* Routes within instances come first: their source may itself lie in another stage's place. */
static void follow_routes(opi_slots *s) {
  for (uint32_t i = 0; i < 2 * s->cut->n_routes; ++i) { /* offloads, then all others */
    const uint32_t r = i % s->cut->n_routes;
    for (uint32_t m = 0; m < s->plan->n_microbatches; ++m) {
      if (s->cut->routes[r].offload == (i < s->cut->n_routes) && !route_of(s, r, m)->empty)
        follow_route(s, r, m);
    }
  }
}

int opi_by_time(const void *x, const void *y) {
  const opi_timed *a = x, *b = y;
  if (a->t0 != b->t0)
    return a->t0 < b->t0 ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

/* The position from which a received tensor has its place: `ahead` records before its reader; in
 * training, when its first maker starts. A training body receives what it sends: a step is a
 * barrier. */
static uint64_t received_from(const opi_slots *s, uint32_t c, uint32_t m, uint64_t reader) {
  const opi_cell *cell = &s->cut->cells[c];
  const uint64_t ahead = ahead_of(s, &s->cut->routes[cell->route]);
  uint64_t first = reader;
  if (!s->plan->trains)
    return reader > ahead ? reader - ahead : 0;
  for (uint32_t r = cell->route; r < cell->route + cell->n_routes; ++r) {
    const opi_route *route = route_of(s, r, m);
    const uint64_t at = route->empty ? first : made_from(s, route, rank_of(s, cell->stage, m), m);
    first = at < first ? at : first;
  }
  return first;
}

/* A received tensor may come `depth` records before its reader, if the circle has room. */
static opipe_status bend_one(opi_slots *s, uint32_t c, uint32_t m) {
  opi_occurrence *o = &s->occurrences[occurrence(s, c, m)];
  const uint64_t n = s->plan->rank_first[o->rank + 1] - s->plan->rank_first[o->rank];
  const opi_cell *cell = &s->cut->cells[c];
  if (cell->source == OPI_CELL_RECEIVED && !s->cut->routes[cell->route].within) {
    const uint64_t reader = s->times->start[o->first_action];
    o->t0 = received_from(s, c, m, reader);
    if (o->t1 - o->t0 > n && !s->strict)
      o->t0 = o->t1 - n;
    if (o->t0 <= reader && o->t1 - o->t0 <= n)
      return OPIPE_OK;
  }
  if (o->t1 - o->t0 > n && s->times->end[o->last_action] - o->t0 <= n)
    o->t1 = o->t0 + n; /* then a send has less time */
  if (o->t1 - o->t0 <= n)
    return OPIPE_OK;
  return opi_fail(s->err, OPIPE_E_UNSUPPORTED,
                  "rank %u holds tensor '%s' of micro-batch %u for %llu of its %llu records: "
                  "longer than a mini-batch",
                  o->rank, s->cut->cells[c].name, m, (unsigned long long)(o->t1 - o->t0),
                  (unsigned long long)n);
}

static opipe_status bend(opi_slots *s) {
  for (uint32_t c = 0; c < s->cut->n_cells; ++c) {
    for (uint32_t m = 0; m < s->plan->n_microbatches; ++m)
      OPI_TRY(bend_one(s, c, m));
  }
  return OPIPE_OK;
}

/* Arcs on a circle, by start; the first and the last entry of every slot so far. */
typedef struct circle {
  const opi_slots *s;
  const opi_timed *entries; /* [n] t0 below length */
  uint32_t *slot_of;        /* [n] */
  uint32_t *first, *last;   /* [n] by slot */
  uint64_t *ends; /* [2 * n_leaves] leaf n_leaves + slot: end of its last arc, 0: none; node i: the
                     least of 2i and 2i + 1 */
  uint64_t length;
  uint32_t n, n_slots, n_leaves;
} circle;

static uint64_t arc_end(const circle *c, uint32_t i) {
  const opi_occurrence *o = &c->s->occurrences[c->entries[i].index];
  return c->entries[i].t0 + (o->t1 - o->t0);
}

/* The slot's arcs are disjoint and sorted by start: the next may overlap only the last or, around
 * the circle, the first. */
static bool meets_slot(const circle *c, uint32_t i, uint32_t slot) {
  return slot < c->n_slots && (arc_end(c, c->last[slot]) > c->entries[i].t0 ||
                               arc_end(c, i) > c->entries[c->first[slot]].t0 + c->length);
}

static void take_slot(circle *c, uint32_t i, uint32_t slot) {
  if (slot == c->n_slots) {
    c->first[slot] = i;
    ++c->n_slots;
  }
  c->last[slot] = i;
  c->slot_of[i] = slot;
}

/* Assigns slots in turn, in `n_turns` turns whose lengths differ by at most one: the fewest slots
 * if arcs are alike. False: some overlap. */
static bool colour_in_turns(circle *c, uint32_t n_turns) {
  uint32_t turn = 0, first = 0;
  c->n_slots = 0;
  for (uint32_t i = 0; i < c->n; ++i) {
    const uint32_t end = first + c->n / n_turns + (turn < c->n % n_turns);
    if (meets_slot(c, i, i - first))
      return false;
    take_slot(c, i, i - first);
    if (i + 1 < end)
      continue;
    first = end;
    ++turn;
  }
  return true;
}

/* The lowest slot, from `slot` on, whose last arc ends by `at`. */
static uint32_t lowest_free(const circle *c, uint32_t slot, uint64_t at) {
  uint32_t i = c->n_leaves + slot;
  while (c->ends[i] > at || i < c->n_leaves) {
    if (c->ends[i] <= at) {
      i *= 2;
      continue;
    }
    while ((i & 1) != 0)
      i /= 2;
    ++i;
  }
  return i - c->n_leaves;
}

/* The lowest slot whose first arc begins, around the circle, no sooner than `end`: slots are opened
 * in the order of the arcs. */
static uint32_t lowest_behind(const circle *c, uint64_t end) {
  uint32_t low = 0, high = c->n_slots;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (c->entries[c->first[middle]].t0 + c->length < end)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* For arcs of any length: the lowest slot with no overlapping arc. */
static void colour_lowest(circle *c) {
  c->n_slots = 0;
  c->n_leaves = 1;
  while (c->n_leaves <= c->n)
    c->n_leaves *= 2;
  memset(c->ends, 0, 2 * (size_t)c->n_leaves * sizeof *c->ends);
  for (uint32_t i = 0; i < c->n; ++i) {
    const uint64_t end = arc_end(c, i);
    const uint32_t slot = lowest_free(c, lowest_behind(c, end), c->entries[i].t0);
    take_slot(c, i, slot);
    c->ends[c->n_leaves + slot] = end;
    for (uint32_t k = (c->n_leaves + slot) / 2; k > 0; k /= 2)
      c->ends[k] = c->ends[2 * k] < c->ends[2 * k + 1] ? c->ends[2 * k] : c->ends[2 * k + 1];
  }
}

/* By start, around the circle; the slot's previous owner is the nearest one before. */
static uint32_t colour_circle(opi_slots *s, opi_timed *entries, uint32_t n, uint32_t *slot_of,
                              uint32_t *first, uint32_t *last, uint64_t *ends, uint64_t length) {
  circle c = {s, entries, slot_of, first, last, ends, length, n, 0, 0};
  for (uint32_t i = 0; i < n; ++i)
    entries[i].t0 %= length;
  qsort(entries, n, sizeof *entries, opi_by_time);
  colour_lowest(&c);
  const uint32_t lowest = c.n_slots;
  bool found = false;
  for (uint32_t turns = n; !found && (n + turns - 1) / turns < lowest; --turns)
    found = colour_in_turns(&c, turns);
  if (!found)
    colour_lowest(&c);
  for (uint32_t i = 0; i < n; ++i) { /* last: of all, then of the ones before */
    opi_occurrence *o = &s->occurrences[entries[i].index];
    o->previous = entries[last[slot_of[i]]].index;
    last[slot_of[i]] = i;
  }
  return c.n_slots;
}

static opipe_status place_pool(opi_slots *s, uint32_t c, uint32_t rank, opi_timed *entries,
                               uint32_t *slot_of, uint32_t *occupant, uint32_t *opener,
                               uint64_t *ends, uint64_t *io_bytes) {
  const uint64_t align = s->alignment[rank] == 0 ? 1 : s->alignment[rank];
  uint64_t stride = 0, total = 0;
  uint32_t n = 0;
  for (uint32_t m = 0; m < s->plan->n_microbatches; ++m) {
    const opi_occurrence *o = &s->occurrences[occurrence(s, c, m)];
    if (o->rank == rank && o->home == OPIPE_NONE)
      entries[n++] = (opi_timed){.t0 = o->t0, .index = (uint32_t)occurrence(s, c, m)};
  }
  if (n == 0)
    return OPIPE_OK;
  for (uint32_t k = 0; k < s->n_classes; ++k) {
    if (s->cuts[k]->cells[c].n_bytes > stride)
      stride = s->cuts[k]->cells[c].n_bytes;
  }
  const uint64_t length = s->plan->rank_first[rank + 1] - s->plan->rank_first[rank];
  const uint32_t n_slots = colour_circle(s, entries, n, slot_of, opener, occupant, ends, length);
  if (opi_add_u64(stride, align - 1, &stride))
    goto overflow;
  stride = stride < align ? align : stride & ~(align - 1);
  if (opi_mul_u64(stride, n_slots, &total))
    goto overflow;
  for (uint32_t i = 0; i < n; ++i) {
    s->occurrences[entries[i].index].offset_bytes = *io_bytes + slot_of[i] * stride;
    s->occurrences[entries[i].index].n_slots = n_slots;
  }
  if (opi_add_u64(*io_bytes, total, io_bytes))
    goto overflow;
  return OPIPE_OK;
overflow:
  return opi_fail(s->err, OPIPE_E_LIMIT, "the tensors kept on rank %u exceed 2^64 bytes", rank);
}

static opipe_status place_all(opi_slots *s, opi_arena *scratch) {
  const uint32_t n_mb = s->plan->n_microbatches, n_ranks = s->plan->n_ranks;
  opi_timed *entries = OPI_ARENA_ARRAY(scratch, opi_timed, n_mb);
  uint32_t *slot_of = OPI_ARENA_ARRAY(scratch, uint32_t, n_mb);
  uint32_t *occupant = OPI_ARENA_ARRAY(scratch, uint32_t, n_mb);
  uint32_t *opener = OPI_ARENA_ARRAY(scratch, uint32_t, n_mb);
  uint64_t *ends = OPI_ARENA_ARRAY(scratch, uint64_t, 4 * (size_t)n_mb + 4);
  uint64_t *bytes = OPI_ARENA_ARRAY(scratch, uint64_t, n_ranks);
  if (ends == NULL || entries == NULL || slot_of == NULL || occupant == NULL || opener == NULL ||
      bytes == NULL)
    return opi_fail_nomem(s->err, n_mb * sizeof *entries, "slots");
  for (uint32_t stash = 0; stash < 2; ++stash) {
    for (uint32_t c = 0; c < s->cut->n_cells; ++c) {
      if (s->cut->cells[c].stash != (stash == 1) || opi_slots_apart(s, c) || opi_slots_held(s, c))
        continue;
      for (uint32_t r = 0; r < n_ranks; ++r)
        OPI_TRY(place_pool(s, c, r, entries, slot_of, occupant, opener, ends, &bytes[r]));
    }
    for (uint32_t r = 0; r < n_ranks; ++r) {
      if (stash == 0)
        s->boundary_bytes[r] = bytes[r];
      else
        s->stash_bytes[r] = bytes[r] - s->boundary_bytes[r];
    }
  }
  return OPIPE_OK;
}

/* The place of an occurrence: in its own slot, or in another's, recursively. */
static uint64_t find_offset(const opi_slots *s, size_t index) {
  const uint32_t n_mb = s->plan->n_microbatches;
  const opi_occurrence *o = &s->occurrences[index];
  uint64_t from_home = 0;
  while (o->home != OPIPE_NONE) {
    const uint32_t cell = (uint32_t)(index / n_mb), m = (uint32_t)(index % n_mb);
    if (s->cut->cells[cell].source == OPI_CELL_RECEIVED)
      from_home += route_of(s, s->cut->cells[cell].route, m)->src_bytes;
    index = o->home;
    o = &s->occurrences[index];
  }
  return o->offset_bytes + from_home;
}

static uint32_t home_rank(const opi_slots *s, size_t index) {
  while (s->occurrences[index].home != OPIPE_NONE)
    index = s->occurrences[index].home;
  return s->occurrences[index].rank;
}

opipe_status opi_slots_build(opi_slots *s, opi_arena *scratch) {
  const opi_cut *cut = s->cut;
  const uint32_t n_mb = s->plan->n_microbatches;
  const size_t n = (size_t)cut->n_cells * n_mb;
  if (n > UINT32_MAX / 2) {
    return opi_fail(s->err, OPIPE_E_LIMIT,
                    "%u tensors of %u micro-batches; at most %u are possible in all", cut->n_cells,
                    n_mb, UINT32_MAX / 2);
  }
  s->occurrences = OPI_ARENA_ARRAY(scratch, opi_occurrence, n);
  if (s->occurrences == NULL)
    return opi_fail_nomem(s->err, n * sizeof *s->occurrences, "slots");
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    for (uint32_t m = 0; m < n_mb; ++m)
      OPI_TRY(time_one(s, c, m));
  }
  for (uint32_t c = 0; c < cut->n_cells && s->direct; ++c) {
    for (uint32_t m = 0; m < n_mb; ++m)
      place_direct(s, c, m);
  }
  opi_slots_sum_in_place(s);
  follow_routes(s);
  opi_slots_follow_sums(s);
  if (s->times->periodic && !s->reference) {
    OPI_TRY(bend(s));
    OPI_TRY(place_all(s, scratch));
  } else {
    OPI_TRY(opi_slots_pack(s, scratch));
  }
  OPI_TRY(opi_slots_evaluated(s, scratch));
  for (size_t i = 0; i < n; ++i) {
    opi_occurrence *o = &s->occurrences[i];
    o->lies_on = o->rank;
    if (o->home == OPIPE_NONE)
      continue;
    o->offset_bytes = find_offset(s, i);
    o->lies_on = home_rank(s, i);
  }
  return OPIPE_OK;
}
