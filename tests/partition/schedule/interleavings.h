/* SPDX-License-Identifier: Apache-2.0 */
/* A search through all interleavings of a small lowered list under each rule, written from the
 * rules' own words and without the proof. Stages form a chain; a micro-batch passes one replica of
 * each; forwards have slices, backwards slices and parts.
 *
 * A state is where every rank stands. The past follows from it.
 */
#ifndef TESTS_INTERLEAVINGS_H
#define TESTS_INTERLEAVINGS_H

#include <string.h>

#include "partition/schedule/actions.h"

enum { REPLAY_RANKS = 4, REPLAY_STATES = 1 << 20, REPLAY_ITEMS = 512, REPLAY_NEEDS = 3 };

/* Tables that never change while a list runs, by item. OPIPE_NONE: nothing. */
typedef struct replay_tables {
  uint32_t rank[REPLAY_ITEMS];
  uint32_t other[REPLAY_ITEMS];               /* messages: the item at the other end */
  uint32_t turn[REPLAY_ITEMS];                /* messages: place in the queue, on their own rank */
  uint32_t queue[REPLAY_ITEMS];               /* messages: an item that stands for the queue */
  uint32_t group[REPLAY_ITEMS];               /* messages: first of those that start together */
  uint32_t producer[REPLAY_ITEMS];            /* sends */
  uint32_t needs[REPLAY_ITEMS][REPLAY_NEEDS]; /* computes: what the own rank must have done */
  bool reads[REPLAY_ITEMS];                   /* computes: from the stage beside it */
  uint32_t made[REPLAY_ITEMS];                /* who makes that */
  uint32_t receive[REPLAY_ITEMS];             /* and how it comes here, from another rank */
} replay_tables;

typedef struct replay {
  const opi_problem *p;
  const opi_do_list *list;
  const replay_tables *t;
  uint32_t rule;
  uint32_t at[REPLAY_RANKS]; /* items, counted over the list */
} replay;

static inline bool replay_sends(const opi_do *a) {
  return a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
}

/* The item of one kind and stage for the micro-batch and part of `like` (forwards have no parts);
 * OPIPE_NONE. B stands for I and W. */
static inline uint32_t replay_find(const opi_do_list *list, uint32_t kind, uint32_t stage,
                                   uint32_t slice, const opi_do *like) {
  const bool forward = kind == OPI_DO_F || kind == OPI_DO_SEND_F || kind == OPI_DO_RECV_F;
  for (uint32_t i = 0; i < list->n_items; ++i) {
    const opi_do *a = &list->items[i];
    const bool kinds =
        a->kind == kind || (a->kind == OPI_DO_B && (kind == OPI_DO_I || kind == OPI_DO_W));
    if (kinds && a->stage == stage && a->microbatch == like->microbatch && a->slice == slice &&
        (forward || a->part == like->part))
      return i;
  }
  return OPIPE_NONE;
}

/* ---- tables ---- */

static inline uint32_t replay_counterpart(const opi_do_list *list, uint32_t item) {
  const opi_do *a = &list->items[item];
  const bool forward = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_RECV_F;
  const bool up = forward == replay_sends(a); /* the other end is the next stage */
  const uint32_t kind = a->kind == OPI_DO_SEND_F   ? OPI_DO_RECV_F
                        : a->kind == OPI_DO_RECV_F ? OPI_DO_SEND_F
                        : a->kind == OPI_DO_SEND_B ? OPI_DO_RECV_B
                                                   : OPI_DO_SEND_B;
  return replay_find(list, kind, up ? a->stage + 1 : a->stage - 1, a->slice, a);
}

/* Do two messages share a queue under the rule? Both are taken at one rank. */
static inline bool replay_same_queue(const replay *r, uint32_t x, uint32_t y) {
  const opi_do *a = &r->list->items[x], *b = &r->list->items[y];
  const uint32_t rank_a = r->t->rank[r->t->other[x]], rank_b = r->t->rank[r->t->other[y]];
  if (r->rule == OPI_RULE_STREAM) {
    return a->kind == b->kind && a->stage == b->stage && a->replica == b->replica &&
           a->peer == b->peer;
  }
  if (r->rule == OPI_RULE_EDGE)
    return replay_sends(a) == replay_sends(b) && rank_a == rank_b;
  return r->rule == OPI_RULE_PAIR && rank_a == rank_b;
}

static inline void replay_tabulate_message(const replay *r, replay_tables *t, uint32_t i) {
  const opi_do *a = &r->list->items[i];
  const uint32_t first = r->list->rank_first[t->rank[i]];
  t->turn[i] = 0;
  t->queue[i] = t->group[i] = i;
  for (uint32_t k = i; k-- > first;) {
    if (!opi_do_is_message(r->list->items[k].kind) || !replay_same_queue(r, k, i))
      continue;
    t->queue[i] = t->queue[k];
    t->turn[i] = t->turn[k] + 1;
    break;
  }
  if (r->rule == OPI_RULE_GROUPED && i > first && opi_do_is_message(a[-1].kind))
    t->group[i] = t->group[i - 1];
  if (replay_sends(a)) {
    t->producer[i] =
        replay_find(r->list, a->kind == OPI_DO_SEND_F ? OPI_DO_F : OPI_DO_I, a->stage, a->slice, a);
  }
}

/* Slices go forward in rising, backward in falling order. */
static inline void replay_tabulate_compute(const replay *r, replay_tables *t, uint32_t i) {
  const opi_do_list *list = r->list;
  const opi_do *a = &list->items[i];
  uint32_t *needs = t->needs[i], n = 0;
  if (a->kind == OPI_DO_W) {
    needs[0] = replay_find(list, OPI_DO_I, a->stage, a->slice, a);
    return;
  }
  const bool forward = a->kind == OPI_DO_F;
  if (!forward)
    needs[n++] = replay_find(list, OPI_DO_F, a->stage, a->slice, a);
  if (forward ? a->slice > 0 : a->slice + 1u < r->p->n_slices) {
    needs[n++] = replay_find(list, forward ? OPI_DO_F : OPI_DO_I, a->stage,
                             forward ? a->slice - 1u : a->slice + 1u, a);
  }
  t->reads[i] = forward ? a->stage > 0 : a->stage + 1 < r->p->n_stages;
  if (!t->reads[i])
    return;
  t->made[i] = replay_find(list, forward ? OPI_DO_F : OPI_DO_I,
                           forward ? a->stage - 1 : a->stage + 1, a->slice, a);
  if (t->rank[t->made[i]] != t->rank[i]) {
    t->receive[i] =
        replay_find(list, forward ? OPI_DO_RECV_F : OPI_DO_RECV_B, a->stage, a->slice, a);
  }
}

static inline void replay_tabulate(replay *r, replay_tables *t) {
  const opi_do_list *list = r->list;
  memset(t, 0xff, sizeof *t);
  memset(t->reads, 0, sizeof t->reads);
  r->t = t;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i)
      t->rank[i] = rank;
  }
  for (uint32_t i = 0; i < list->n_items; ++i) {
    if (opi_do_is_message(list->items[i].kind))
      t->other[i] = replay_counterpart(list, i);
  }
  for (uint32_t i = 0; i < list->n_items; ++i) {
    if (opi_do_is_message(list->items[i].kind))
      replay_tabulate_message(r, t, i);
    else if (opi_do_is_compute(list->items[i].kind))
      replay_tabulate_compute(r, t, i);
  }
}

/* ---- the past ---- */

static inline bool replay_done(const replay *r, uint32_t item) {
  return item != OPIPE_NONE && r->at[r->t->rank[item]] > item;
}

/* Has what is received with `item` come? */
static inline bool replay_arrived(const replay *r, uint32_t item) {
  const replay_tables *t = r->t;
  const uint32_t other = t->other[item];
  if (!replay_done(r, item) || (r->rule < OPI_RULE_BLOCKING && !replay_done(r, other)))
    return false;
  if (r->rule == OPI_RULE_TAG || r->rule >= OPI_RULE_BLOCKING)
    return true;
  if (t->turn[item] != t->turn[other])
    return false; /* it would be another's */
  if (r->rule != OPI_RULE_PAIR)
    return true;
  for (uint32_t i = r->list->rank_first[t->rank[item]]; i < item; ++i) {
    if (opi_do_is_message(r->list->items[i].kind) && t->queue[i] == t->queue[item] &&
        t->turn[i] != t->turn[t->other[i]])
      return false; /* the queue stands still before */
  }
  return true;
}

static inline bool replay_fed(const replay *r, uint32_t item) {
  const replay_tables *t = r->t;
  for (uint32_t n = 0; n < REPLAY_NEEDS && t->needs[item][n] != OPIPE_NONE; ++n) {
    if (!replay_done(r, t->needs[item][n]))
      return false;
  }
  if (!t->reads[item])
    return true;
  return t->receive[item] == OPIPE_NONE ? replay_done(r, t->made[item])
                                        : replay_arrived(r, t->receive[item]);
}

/* A message that meets: both ranks must stand at it, or in its group. */
static inline bool replay_meets(const replay *r, uint32_t item) {
  const uint32_t other = r->t->other[item];
  return r->at[r->t->rank[other]] >= r->t->group[other];
}

static inline bool replay_can(const replay *r, uint32_t rank) {
  const uint32_t item = r->at[rank];
  if (item == r->list->rank_first[rank + 1])
    return false;
  const opi_do *a = &r->list->items[item];
  if (opi_do_is_message(a->kind)) {
    return (!replay_sends(a) || replay_done(r, r->t->producer[item])) &&
           (r->rule < OPI_RULE_BLOCKING || replay_meets(r, item));
  }
  return !opi_do_is_compute(a->kind) || replay_fed(r, item);
}

/* Every rank at its end, and every message where it belongs. */
static inline bool replay_ended(const replay *r) {
  for (uint32_t rank = 0; rank < r->list->n_ranks; ++rank) {
    if (r->at[rank] != r->list->rank_first[rank + 1])
      return false;
  }
  for (uint32_t i = 0; i < r->list->n_items; ++i) {
    const opi_do *a = &r->list->items[i];
    if (opi_do_is_message(a->kind) && !replay_sends(a) && !replay_arrived(r, i))
      return false;
  }
  return true;
}

/* ---- the search ---- */

/* States of a list; the search takes at most REPLAY_STATES. */
static inline uint64_t replay_states(const opi_do_list *list) {
  uint64_t n = 1;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank)
    n *= list->rank_first[rank + 1] - list->rank_first[rank] + 1;
  return n;
}

/* Does every interleaving come to the end? Counts the states seen. At most REPLAY_ITEMS items. */
static inline bool replay_all(const opi_problem *p, const opi_do_list *list, uint32_t rule,
                              uint32_t *out_states) {
  static uint8_t seen[REPLAY_STATES];
  static uint32_t todo[REPLAY_STATES];
  static replay_tables tables;
  uint32_t n = 1, n_todo = 1;
  bool good = true;
  const uint64_t states = replay_states(list);
  replay r = {.p = p, .list = list, .rule = rule};
  replay_tabulate(&r, &tables);
  memset(seen, 0, states < REPLAY_STATES ? (size_t)states : REPLAY_STATES);
  todo[0] = 0;
  seen[0] = 1;
  while (n_todo > 0) {
    const uint32_t state = todo[--n_todo];
    uint32_t rest = state;
    for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
      const uint32_t length = list->rank_first[rank + 1] - list->rank_first[rank] + 1;
      r.at[rank] = list->rank_first[rank] + rest % length;
      rest /= length;
    }
    bool moved = false;
    for (uint32_t rank = 0, weight = 1; rank < list->n_ranks; ++rank) {
      if (replay_can(&r, rank)) {
        moved = true;
        const uint32_t then = state + weight;
        if (then < REPLAY_STATES && seen[then] == 0) {
          seen[then] = 1;
          todo[n_todo++] = then;
          ++n;
        }
      }
      weight *= list->rank_first[rank + 1] - list->rank_first[rank] + 1;
    }
    good = good && (moved || replay_ended(&r));
  }
  *out_states = n;
  return good;
}

#endif /* TESTS_INTERLEAVINGS_H */
