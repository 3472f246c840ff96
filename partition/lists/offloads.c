/* SPDX-License-Identifier: Apache-2.0 */
/* See offloads.h. */
#include "partition/lists/offloads.h"

#include <stdlib.h>
#include <string.h>

enum {
  COMPUTES_LEAST = 3, /* between: one beside which it leaves, one that has its room, one beside
                         which it returns */
  HOST_ALIGNMENT = 256
};

/* ---- places ---- */

bool opi_away_find(const opi_slots *s, uint32_t cell, uint32_t m, opi_away *out) {
  const opi_cell *c = &s->cut->cells[cell];
  const opi_times *t = s->times;
  const uint32_t n_mb = s->plan->n_microbatches;
  const uint32_t *actions = &t->phase_action[((size_t)c->stage * n_mb + m) * OPI_PHASES];
  const uint32_t forward = actions[OPI_PHASE_F];
  uint32_t reader = OPIPE_NONE;
  for (uint32_t p = 0; p < OPI_PHASES; ++p) {
    if ((c->readers & 1u << p) != 0 &&
        (reader == OPIPE_NONE || t->start[actions[p]] < t->start[reader]))
      reader = actions[p];
  }
  if (s->reference || reader == OPIPE_NONE || forward == OPIPE_NONE)
    return false;
  const uint32_t rank =
      opi_piece_rank(s->plan, c->stage, t->replica_of[(size_t)c->stage * n_mb + m]);
  const uint32_t first = s->plan->rank_first[rank], end = s->plan->rank_first[rank + 1];
  const uint64_t n = end - first;
  const uint64_t gap = t->periodic ? t->start[reader] - t->start[forward] : reader - forward;
  if (reader == forward || (!t->periodic && reader < forward) || gap <= COMPUTES_LEAST || gap > n)
    return false;
  *out = (opi_away){.forward = forward,
                    .reader = reader,
                    .leaves = forward + 1 < end ? forward + 1 : forward,
                    .returns = reader > first ? reader - 1 : reader,
                    .from = t->start[forward],
                    .until = t->start[reader]};
  return true;
}

uint64_t opi_away_left(const opi_slots *s, const opi_away *away) {
  if (!s->times->periodic)
    return s->times->end[away->leaves];
  return s->times->end[away->forward] + (away->leaves != away->forward);
}

uint64_t opi_away_returns(const opi_slots *s, const opi_away *away) {
  if (!s->times->periodic)
    return s->times->start[away->returns];
  return away->until - (away->returns != away->reader);
}

/* ---- moves ---- */

/* A tensor on its way, before tensors are joined to moves. */
typedef struct away_item {
  opi_away away;
  uint32_t rank, route, microbatch;
  uint64_t n_bytes;
} away_item;

static int by_actions(const void *left, const void *right) {
  const away_item *a = left, *b = right;
  if (a->away.forward != b->away.forward)
    return a->away.forward < b->away.forward ? -1 : 1;
  if (a->away.reader != b->away.reader)
    return a->away.reader < b->away.reader ? -1 : 1;
  return a->route < b->route ? -1 : a->route > b->route;
}

static opipe_status list_items(opi_listing *l, away_item **out, uint32_t *out_n) {
  const uint32_t n_mb = l->plan->n_microbatches;
  uint32_t room = 0;
  *out_n = 0;
  for (uint32_t r = 0; r < l->cut->n_routes; ++r) {
    for (uint32_t m = 0; l->cut->routes[r].offload && m < n_mb; ++m) {
      const opi_route *route = &l->cuts[opi_row_class_of(l->plan->whole, m)]->routes[r];
      const opi_occurrence *o = opi_listing_occurrence(l, route->dst_cell, m);
      away_item item = {.rank = o->rank, .route = r, .microbatch = m, .n_bytes = route->n_bytes};
      if (o->home != OPIPE_NONE || !opi_away_find(&l->slots, route->dst_cell, m, &item.away))
        continue;
      if (!opi_arena_grow(&l->scratch, (void **)out, &room, *out_n + 1, sizeof **out))
        return opi_fail_nomem(l->err, *out_n * sizeof **out, "offloads");
      (*out)[(*out_n)++] = item;
    }
  }
  if (*out_n > 1)
    qsort(*out, *out_n, sizeof **out, by_actions);
  return OPIPE_OK;
}

/* Joins tensors of one forward and one backward to a move, by rank and forward. */
static opipe_status join_items(opi_listing *l, const away_item *items, uint32_t n,
                               opi_away *absences) {
  opi_lists *lists = l->lists;
  lists->moves = OPI_ARENA_ARRAY(&lists->arena, opi_list_move, n);
  lists->moved = OPI_ARENA_ARRAY(&lists->arena, opi_list_moved, n);
  if (lists->moves == NULL || lists->moved == NULL)
    return opi_fail_nomem(l->err, n * sizeof *lists->moves, "offloads");
  for (uint32_t i = 0; i < n; ++i) {
    const away_item *item = &items[i];
    opi_list_move *move = lists->n_moves == 0 ? NULL : &lists->moves[lists->n_moves - 1];
    if (move == NULL || absences[lists->n_moves - 1].forward != item->away.forward ||
        absences[lists->n_moves - 1].reader != item->away.reader) {
      absences[lists->n_moves] = item->away;
      move = &lists->moves[lists->n_moves++];
      *move = (opi_list_move){.rank = item->rank,
                              .stage = l->plan->actions[item->away.forward].stage,
                              .forward = item->away.forward,
                              .reader = item->away.reader,
                              .microbatch = item->microbatch,
                              .first = i};
    }
    lists->moved[i] = (opi_list_moved){.route = item->route, .offset_bytes = move->host_bytes};
    move->n_bytes += item->n_bytes;
    move->host_bytes += opi_align_up(item->n_bytes, HOST_ALIGNMENT);
    ++move->n;
  }
  return OPIPE_OK;
}

/* ---- places in the host's memory ---- */

typedef struct host_block {
  uint64_t at, end;
} host_block;

static int by_place(const void *left, const void *right) {
  const host_block *a = left, *b = right;
  return a->at != b->at ? (a->at < b->at ? -1 : 1) : 0;
}

/* Whether both are in the host's memory at some time; around the circle, arcs of length n. */
static bool meet(const opi_listing *l, const opi_away *a, const opi_away *b, uint64_t n) {
  if (!l->circle)
    return a->from <= b->until && b->from <= a->until;
  const uint64_t behind = (b->from % n + n - a->from % n) % n;
  const uint64_t before = (a->from % n + n - b->from % n) % n;
  return behind <= a->until - a->from || before <= b->until - b->from;
}

/* Places the moves of a rank, which are consecutive, each at the lowest place that is free as long
 * as it is away. In a list, moves that ended before are not looked at again. */
static opipe_status place_rank(opi_listing *l, uint32_t first, uint32_t end, opi_away *absences) {
  opi_lists *lists = l->lists;
  const uint32_t rank = lists->moves[first].rank;
  const uint64_t n = l->plan->rank_first[rank + 1] - l->plan->rank_first[rank];
  host_block *blocks = OPI_ARENA_ARRAY(&l->scratch, host_block, end - first);
  uint32_t *live = OPI_ARENA_ARRAY(&l->scratch, uint32_t, end - first), n_live = 0;
  if (blocks == NULL || live == NULL)
    return opi_fail_nomem(l->err, (end - first) * sizeof *blocks, "offloads");
  for (uint32_t i = first; i < end; ++i) {
    opi_list_move *move = &lists->moves[i];
    uint32_t n_blocks = 0, kept = 0;
    uint64_t at = 0;
    for (uint32_t k = 0; k < n_live; ++k) {
      const opi_list_move *other = &lists->moves[live[k]];
      const bool meets = meet(l, &absences[i], &absences[live[k]], n);
      if (meets)
        blocks[n_blocks++] = (host_block){other->at_bytes, other->at_bytes + other->host_bytes};
      if (meets || l->circle)
        live[kept++] = live[k];
    }
    n_live = kept;
    live[n_live++] = i;
    qsort(blocks, n_blocks, sizeof *blocks, by_place);
    for (uint32_t k = 0; k < n_blocks; ++k) {
      if (blocks[k].at >= at && blocks[k].at - at >= move->host_bytes)
        break;
      at = blocks[k].end > at ? blocks[k].end : at;
    }
    move->at_bytes = at;
    if (at + move->host_bytes > lists->offload_bytes[rank])
      lists->offload_bytes[rank] = at + move->host_bytes;
  }
  return OPIPE_OK;
}

static opipe_status place_all(opi_listing *l, opi_away *absences) {
  opi_lists *lists = l->lists;
  for (uint32_t first = 0, i = 0; i < lists->n_moves; first = i) {
    while (i < lists->n_moves && lists->moves[i].rank == lists->moves[first].rank)
      ++i;
    OPI_TRY(place_rank(l, first, i, absences));
  }
  return OPIPE_OK;
}

/* ---- keys ---- */

static opipe_status key_moves(opi_listing *l, const opi_away *absences) {
  const uint32_t n = l->lists->n_moves, n_actions = l->plan->n_actions;
  opi_bucket *const to[] = {&l->moves.leave, &l->moves.left, &l->moves.come, &l->moves.back};
  uint32_t *keys = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  if (keys == NULL)
    return opi_fail_nomem(l->err, n * sizeof *keys, "offloads");
  for (uint32_t k = 0; k < OPI_COUNT(to); ++k) {
    for (uint32_t i = 0; i < n; ++i) {
      const opi_away *a = &absences[i];
      keys[i] = k == 0 ? a->forward : k == 1 ? a->leaves : k == 2 ? a->returns : a->reader;
    }
    OPI_TRY(opi_bucket_make(l, keys, n, n_actions, to[k]));
  }
  return OPIPE_OK;
}

opipe_status opi_listing_moves(opi_listing *l) {
  away_item *items = NULL;
  uint32_t n = 0;
  l->lists->offload_bytes = OPI_ARENA_ARRAY(&l->lists->arena, uint64_t, l->plan->n_ranks);
  if (l->lists->offload_bytes == NULL)
    return opi_fail_nomem(l->err, l->plan->n_ranks * sizeof(uint64_t), "offloads");
  if (l->reference)
    return OPIPE_OK;
  OPI_TRY(list_items(l, &items, &n));
  if (n == 0)
    return OPIPE_OK;
  opi_away *absences = OPI_ARENA_ARRAY(&l->scratch, opi_away, n);
  if (absences == NULL)
    return opi_fail_nomem(l->err, n * sizeof *absences, "offloads");
  OPI_TRY(join_items(l, items, n, absences));
  OPI_TRY(place_all(l, absences));
  return key_moves(l, absences);
}

/* ---- the clock ---- */

opipe_status opi_moves_clock_open(const opi_piece_plan *plan, const opi_lists *lists,
                                  opi_arena *arena, opi_moves_clock *out, opipe_error *err) {
  *out = (opi_moves_clock){.plan = plan,
                           .lists = lists,
                           .out_free = OPI_ARENA_ARRAY(arena, double, plan->n_ranks),
                           .in_free = OPI_ARENA_ARRAY(arena, double, plan->n_ranks),
                           .left = OPI_ARENA_ARRAY(arena, double, (size_t)lists->n_moves + 1),
                           .returned = OPI_ARENA_ARRAY(arena, double, (size_t)lists->n_moves + 1)};
  return out->out_free == NULL || out->in_free == NULL || out->left == NULL || out->returned == NULL
             ? opi_fail_nomem(err, lists->n_moves * sizeof(double), "a proof")
             : OPIPE_OK;
}

static double later(double a, double b) {
  return a > b ? a : b;
}

void opi_moves_advance(opi_moves_clock *c, uint32_t rank, const opi_step *step, bool timed,
                       double *io_now) {
  const opi_list_move *move = &c->lists->moves[step->route];
  const double rate = opi_device_host_rate(&c->plan->whole->devices[rank]);
  const double takes = timed ? (double)move->n_bytes / rate : 0;
  if (step->kind == OPI_ACT_OFFLOAD) {
    c->left[step->route] = c->out_free[rank] = later(c->out_free[rank], *io_now) + takes;
  } else if (step->kind == OPI_ACT_RELOAD) {
    const double from = later(c->in_free[rank], later(*io_now, c->left[step->route]));
    c->returned[step->route] = c->in_free[rank] = from + takes;
  } else {
    const bool leaves = step->kind == OPI_ACT_LEAVE;
    *io_now = later(*io_now, leaves ? c->left[step->route] : c->returned[step->route]);
  }
}
