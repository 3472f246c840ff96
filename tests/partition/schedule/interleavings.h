/* SPDX-License-Identifier: Apache-2.0 */
/* A search through all interleavings of a small lowered list under each rule, written from the
 * rules' own words and without the proof. Stages form a chain; one replica, slice and part.
 *
 * A state is where every rank stands. What has happened follows from it.
 */
#ifndef TESTS_INTERLEAVINGS_H
#define TESTS_INTERLEAVINGS_H

#include <string.h>

#include "partition/schedule/actions.h"

enum { REPLAY_RANKS = 4, REPLAY_STATES = 1 << 20 };

typedef struct replay {
  const opi_problem *p;
  const opi_do_list *list;
  uint32_t rule;
  uint32_t at[REPLAY_RANKS]; /* items, counted over the list */
} replay;

static inline bool replay_sends(const opi_do *a) {
  return a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
}

/* The item of one kind, stage and micro-batch; OPIPE_NONE. B stands for I and W. */
static inline uint32_t replay_find(const replay *r, uint32_t kind, uint32_t stage,
                                   uint32_t microbatch) {
  for (uint32_t i = 0; i < r->list->n_items; ++i) {
    const opi_do *a = &r->list->items[i];
    const bool kinds =
        a->kind == kind || (a->kind == OPI_DO_B && (kind == OPI_DO_I || kind == OPI_DO_W));
    if (kinds && a->stage == stage && a->microbatch == microbatch)
      return i;
  }
  return OPIPE_NONE;
}

static inline uint32_t replay_rank(const replay *r, uint32_t item) {
  uint32_t rank = 0;
  while (r->list->rank_first[rank + 1] <= item)
    ++rank;
  return rank;
}

static inline bool replay_done(const replay *r, uint32_t item) {
  return item != OPIPE_NONE && r->at[replay_rank(r, item)] > item;
}

static inline uint32_t replay_counterpart(const replay *r, uint32_t item) {
  const opi_do *a = &r->list->items[item];
  const bool forward = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_RECV_F;
  const bool up = forward == replay_sends(a); /* the other end is the next stage */
  const uint32_t kind = a->kind == OPI_DO_SEND_F   ? OPI_DO_RECV_F
                        : a->kind == OPI_DO_RECV_F ? OPI_DO_SEND_F
                        : a->kind == OPI_DO_SEND_B ? OPI_DO_RECV_B
                                                   : OPI_DO_SEND_B;
  return replay_find(r, kind, up ? a->stage + 1 : a->stage - 1, a->microbatch);
}

/* Do two messages share a queue under the rule? Both are taken at one rank. */
static inline bool replay_same_queue(const replay *r, uint32_t x, uint32_t y) {
  const opi_do *a = &r->list->items[x], *b = &r->list->items[y];
  const uint32_t rank_a = replay_rank(r, replay_counterpart(r, x));
  const uint32_t rank_b = replay_rank(r, replay_counterpart(r, y));
  if (r->rule == OPI_RULE_STREAM)
    return a->kind == b->kind && a->stage == b->stage;
  if (r->rule == OPI_RULE_EDGE)
    return replay_sends(a) == replay_sends(b) && rank_a == rank_b;
  return r->rule == OPI_RULE_PAIR && rank_a == rank_b;
}

/* Place of a message in its queue, on its own rank. */
static inline uint32_t replay_turn(const replay *r, uint32_t item) {
  uint32_t n = 0;
  for (uint32_t i = r->list->rank_first[replay_rank(r, item)]; i < item; ++i)
    n += opi_do_is_message(r->list->items[i].kind) && replay_same_queue(r, i, item);
  return n;
}

/* Has what is received with `item` come? */
static inline bool replay_arrived(const replay *r, uint32_t item) {
  const uint32_t other = replay_counterpart(r, item);
  if (!replay_done(r, item) || (r->rule < OPI_RULE_BLOCKING && !replay_done(r, other)))
    return false;
  if (r->rule == OPI_RULE_TAG || r->rule >= OPI_RULE_BLOCKING)
    return true;
  if (replay_turn(r, item) != replay_turn(r, other))
    return false; /* it would be another's */
  if (r->rule != OPI_RULE_PAIR)
    return true;
  for (uint32_t i = r->list->rank_first[replay_rank(r, item)]; i < item; ++i) {
    if (opi_do_is_message(r->list->items[i].kind) && replay_same_queue(r, i, item) &&
        replay_turn(r, i) != replay_turn(r, replay_counterpart(r, i)))
      return false; /* the queue stands still before */
  }
  return true;
}

/* Is what compute `item` reads from `stage` there? */
static inline bool replay_has(const replay *r, uint32_t item, uint32_t kind, uint32_t stage) {
  const opi_do *a = &r->list->items[item];
  const uint32_t rank = replay_rank(r, item);
  if (r->p->instance_rank[stage] == rank)
    return replay_done(r, replay_find(r, kind, stage, a->microbatch));
  const uint32_t receive =
      replay_find(r, kind == OPI_DO_F ? OPI_DO_RECV_F : OPI_DO_RECV_B, a->stage, a->microbatch);
  return receive != OPIPE_NONE && replay_arrived(r, receive);
}

static inline uint32_t replay_group_start(const replay *r, uint32_t item) {
  const uint32_t first = r->list->rank_first[replay_rank(r, item)];
  while (r->rule == OPI_RULE_GROUPED && item > first &&
         opi_do_is_message(r->list->items[item - 1].kind))
    --item;
  return item;
}

static inline bool replay_produced(const replay *r, uint32_t item) {
  const opi_do *a = &r->list->items[item];
  return !replay_sends(a) ||
         replay_done(r, replay_find(r, a->kind == OPI_DO_SEND_F ? OPI_DO_F : OPI_DO_I, a->stage,
                                    a->microbatch));
}

/* A message that meets: both ranks must stand at it, or in its group. */
static inline bool replay_meets(const replay *r, uint32_t item) {
  const uint32_t other = replay_counterpart(r, item);
  return r->at[replay_rank(r, other)] >= replay_group_start(r, other);
}

static inline bool replay_can(const replay *r, uint32_t rank) {
  const uint32_t item = r->at[rank];
  if (item == r->list->rank_first[rank + 1])
    return false;
  const opi_do *a = &r->list->items[item];
  if (opi_do_is_message(a->kind))
    return replay_produced(r, item) && (r->rule < OPI_RULE_BLOCKING || replay_meets(r, item));
  if (a->kind == OPI_DO_F)
    return a->stage == 0 || replay_has(r, item, OPI_DO_F, a->stage - 1);
  if (a->kind == OPI_DO_W)
    return replay_done(r, replay_find(r, OPI_DO_I, a->stage, a->microbatch));
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_I)
    return replay_done(r, replay_find(r, OPI_DO_F, a->stage, a->microbatch)) &&
           (a->stage + 1 == r->p->n_stages || replay_has(r, item, OPI_DO_I, a->stage + 1));
  return true;
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

/* States of a list; the search takes at most REPLAY_STATES. */
static inline uint64_t replay_states(const opi_do_list *list) {
  uint64_t n = 1;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank)
    n *= list->rank_first[rank + 1] - list->rank_first[rank] + 1;
  return n;
}

/* Does every interleaving come to the end? Counts the states seen. */
static inline bool replay_all(const opi_problem *p, const opi_do_list *list, uint32_t rule,
                              uint32_t *out_states) {
  static uint8_t seen[REPLAY_STATES];
  static uint32_t todo[REPLAY_STATES];
  uint32_t n = 1, n_todo = 1;
  bool good = true;
  const uint64_t states = replay_states(list);
  memset(seen, 0, states < REPLAY_STATES ? (size_t)states : REPLAY_STATES);
  todo[0] = 0;
  seen[0] = 1;
  while (n_todo > 0) {
    replay r = {.p = p, .list = list, .rule = rule};
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
