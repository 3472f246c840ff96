/* SPDX-License-Identifier: Apache-2.0 */
/* When messages have left their memory: before which records of the maker's rank that write the
 * next tensor there, or before which POST if that tensor is received. */
#include <string.h>

#include "partition/lists/offloads.h"

static opipe_status note_left(opi_listing *l, uint32_t occurrence, uint32_t before, int32_t lap) {
  for (uint32_t i = l->left.of[occurrence]; i != OPIPE_NONE; i = l->left.list[i].next) {
    if (l->left.list[i].before == before && l->left.list[i].lap == lap)
      return OPIPE_OK;
  }
  if (!opi_arena_grow(&l->scratch, (void **)&l->left.list, &l->left.room, l->left.n + 1,
                      sizeof *l->left.list))
    return opi_fail_nomem(l->err, sizeof *l->left.list, "messages");
  l->left.list[l->left.n] = (opi_left){before, lap, l->left.of[occurrence]};
  l->left.of[occurrence] = l->left.n++;
  return OPIPE_OK;
}

/* Records of a body that run: those of its mini-batch, of the next one, or both. */
enum { PLAIN = 1, NEXT = 2, BOTH = PLAIN | NEXT };

static uint32_t part_of(const opi_listing *l, uint32_t occurrence) {
  const uint32_t a = l->slots.occurrences[occurrence].first_action;
  return opi_action_is_next(&l->plan->actions[a]) ? NEXT : PLAIN;
}

/* The occurrence that had the slot last, if parts `own` of the body run after parts `before`;
 * counted in mini-batches from its own. OPIPE_NONE: there is none. */
static uint32_t had_slot(const opi_listing *l, uint32_t occurrence, uint32_t before, uint32_t own,
                         int32_t *out_lap) {
  const opi_occurrence *all = l->slots.occurrences;
  const uint32_t rank = all[occurrence].rank;
  const uint64_t n = l->plan->rank_first[rank + 1] - l->plan->rank_first[rank];
  uint32_t bodies = 0;
  for (uint32_t x = occurrence;;) {
    const uint64_t at = all[x].t0 % n;
    x = all[x].previous;
    bodies += all[x].t0 % n >= at; /* around the circle */
    if (bodies > 1)
      return OPIPE_NONE;
    if ((part_of(l, x) & (bodies == 0 ? own : before)) == 0)
      continue;
    *out_lap = (int32_t)(part_of(l, x) == NEXT) - (int32_t)(part_of(l, occurrence) == NEXT) -
               (int32_t)bodies;
    return x;
  }
}

/* Drains of a double-buffered run, whose first body follows a prologue and whose epilogue follows
 * the bodies or the prologue (an evaluation has the parts of both); and of the prologue. */
static opipe_status leave_body(opi_listing *l, uint32_t occurrence) {
  static const struct {
    uint32_t before, own;
  } runs[] = {{BOTH, BOTH}, {NEXT, BOTH}, {BOTH, PLAIN}, {NEXT, PLAIN}, {0, NEXT}};
  for (size_t i = 0; i < OPI_COUNT(runs); ++i) {
    int32_t lap = 0;
    const uint32_t x = (runs[i].own & part_of(l, occurrence)) == 0
                           ? OPIPE_NONE
                           : had_slot(l, occurrence, runs[i].before, runs[i].own, &lap);
    if (x != OPIPE_NONE)
      OPI_TRY(note_left(l, x, l->slots.occurrences[occurrence].first_action, lap));
  }
  return OPIPE_OK;
}

/* In a stream of requests: the body in which the previous occurrence had the slot. */
static int32_t lap_before(const opi_listing *l, const opi_occurrence *next) {
  const int64_t length = l->plan->rank_first[next->rank + 1] - l->plan->rank_first[next->rank];
  int64_t gap = (int64_t)next->t0 - (int64_t)l->slots.occurrences[next->previous].t1;
  int32_t lap = 0;
  for (; gap < 0; gap += length)
    --lap;
  return lap;
}

/* A message must leave its memory before the slot's next occurrence is made, possibly in a later
 * body around the circle. */
static opipe_status find_left_circle(opi_listing *l) {
  const uint32_t n_mb = l->plan->n_microbatches;
  const size_t n = (size_t)l->cut->n_cells * n_mb;
  for (size_t o = 0; o < n; ++o) {
    const opi_occurrence *next = &l->slots.occurrences[o];
    if (next->previous == OPIPE_NONE || l->cut->cells[o / n_mb].source != OPI_CELL_MADE)
      continue;
    OPI_TRY(l->plan->trains
                ? leave_body(l, (uint32_t)o)
                : note_left(l, next->previous, next->first_action, lap_before(l, next)));
  }
  return OPIPE_OK;
}

/* The action with which an occurrence that is not posted begins. */
static uint32_t first_touch(const opi_listing *l, uint32_t occurrence) {
  const uint32_t c = occurrence / l->plan->n_microbatches, m = occurrence % l->plan->n_microbatches;
  const opi_cell *cell = &l->cut->cells[c];
  opi_away away;
  if (cell->source == OPI_CELL_RECEIVED && l->cut->routes[cell->route].offload &&
      opi_away_find(&l->slots, c, m, &away))
    return away.returns;
  return l->slots.occurrences[occurrence].first_action;
}

/* The same for a list with a beginning and an end: before the tensor that is made, copied or loaded
 * there, or before the POST if it is received. */
static opipe_status find_left_list(opi_listing *l) {
  const uint32_t n_mb = l->plan->n_microbatches;
  const size_t n = (size_t)l->cut->n_cells * n_mb;
  for (size_t o = 0; o < n; ++o) {
    const opi_occurrence *next = &l->slots.occurrences[o];
    const opi_cell *cell = &l->cut->cells[o / n_mb];
    const bool posted = cell->source == OPI_CELL_RECEIVED && !l->cut->routes[cell->route].within;
    const uint32_t key =
        posted ? opi_listing_post_key(l, (uint32_t)o) : first_touch(l, (uint32_t)o);
    for (uint32_t i = next->before; i != OPIPE_NONE; i = l->slots.before[i].next)
      OPI_TRY(note_left(l, l->slots.before[i].occurrence, key, 0));
  }
  return OPIPE_OK;
}

static opipe_status add_drain(opi_listing *l, uint32_t message, int32_t lap, uint32_t key,
                              uint32_t **io_keys, uint32_t *io_room) {
  if (!opi_arena_grow(&l->scratch, (void **)&l->drain_items, &l->rooms.drains, l->n_drains + 1,
                      sizeof *l->drain_items) ||
      !opi_arena_grow(&l->scratch, (void **)io_keys, io_room, l->n_drains + 1, sizeof **io_keys))
    return opi_fail_nomem(l->err, sizeof *l->drain_items, "messages");
  l->drain_items[l->n_drains] = (opi_drain){message, lap};
  (*io_keys)[l->n_drains++] = key;
  return OPIPE_OK;
}

/* The occurrence whose memory on its own rank holds another: a sum lies where what was added up
 * was. */
static size_t holder_of(const opi_listing *l, size_t occurrence) {
  const opi_occurrence *all = l->slots.occurrences;
  while (all[occurrence].home != OPIPE_NONE &&
         all[all[occurrence].home].rank == all[occurrence].rank)
    occurrence = all[occurrence].home;
  return occurrence;
}

/* No drain is needed for credits, which have no memory, or for tensors made in place, which are the
 * reader's at once. Tensors without a successor leave at the tail. */
static opipe_status list_drains(opi_listing *l) {
  const opi_piece_plan *plan = l->plan;
  uint32_t *keys = NULL, room = 0;
  for (uint32_t i = 0; i < l->lists->n_messages; ++i) {
    const opi_list_message *message = &l->lists->messages[i];
    const bool credit = i >= l->first_credit;
    const size_t src =
        credit
            ? 0
            : holder_of(l, (size_t)l->cut->routes[message->route].src_cell * plan->n_microbatches +
                               message->microbatch);
    if (message->direct)
      continue;
    const uint32_t left = credit ? OPIPE_NONE : l->left.of[src];
    const uint32_t tail = plan->n_actions + l->lists->streams[message->stream].src_rank;
    if (left == OPIPE_NONE)
      OPI_TRY(add_drain(l, i, 0, tail, &keys, &room));
    for (uint32_t k = left; k != OPIPE_NONE; k = l->left.list[k].next)
      OPI_TRY(add_drain(l, i, l->left.list[k].lap, l->left.list[k].before, &keys, &room));
  }
  return opi_bucket_make(l, keys, l->n_drains,
                         opi_listing_post_key(l, l->cut->n_cells * plan->n_microbatches),
                         &l->drains);
}

opipe_status opi_listing_drains(opi_listing *l) {
  const size_t n = (size_t)l->cut->n_cells * l->plan->n_microbatches;
  l->left.of = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  if (l->left.of == NULL)
    return opi_fail_nomem(l->err, n * sizeof *l->left.of, "messages");
  memset(l->left.of, 0xff, n * sizeof *l->left.of);
  OPI_TRY(l->circle ? find_left_circle(l) : find_left_list(l));
  return list_drains(l);
}
