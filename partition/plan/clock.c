/* SPDX-License-Identifier: Apache-2.0 */
/* The queue is a binary heap, or, in turns, two sets of ranks. Waiting ranks lie in a table by
 * their events, so that whoever makes an event happen finds them. */
#include "partition/plan/clock.h"

#include <string.h>

/* ---- the queue ---- */

static bool comes_first(const opi_clock_entry *a, const opi_clock_entry *b) {
  return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void put(opi_clock *c, opi_clock_entry entry) {
  if (!opi_arena_grow(c->arena, (void **)&c->heap, &c->room, c->n + 1, sizeof *c->heap)) {
    c->failed = true;
    return;
  }
  uint32_t i = c->n++;
  for (; i > 0 && comes_first(&entry, &c->heap[(i - 1) / 2]); i = (i - 1) / 2)
    c->heap[i] = c->heap[(i - 1) / 2];
  c->heap[i] = entry;
}

/* There must be one. */
static opi_clock_entry take(opi_clock *c) {
  const opi_clock_entry first = c->heap[0], last = c->heap[--c->n];
  uint32_t i = 0;
  for (uint32_t child = 1; child < c->n; child = 2 * i + 1) {
    child += child + 1 < c->n && comes_first(&c->heap[child + 1], &c->heap[child]);
    if (!comes_first(&c->heap[child], &last))
      break;
    c->heap[i] = c->heap[child];
    i = child;
  }
  c->heap[i] = last;
  return first;
}

/* A rank behind the running one still has its turn; one before it has the next. */
static void put_turn(opi_clock *c, uint32_t rank) {
  uint64_t *set = rank > c->running ? c->turn : c->next_turn;
  set[rank / 64] |= UINT64_C(1) << rank % 64;
  ++c->n;
}

/* There must be one. */
static uint32_t take_turn(opi_clock *c) {
  uint32_t word = c->running / 64; /* this turn's ranks are all behind the running one */
  while (word < c->n_words && c->turn[word] == 0)
    ++word;
  if (word >= c->n_words) {
    uint64_t *ended = c->turn;
    c->turn = c->next_turn;
    c->next_turn = ended;
    for (word = 0; c->turn[word] == 0;)
      ++word;
  }
  const uint32_t bit = (uint32_t)__builtin_ctzll(c->turn[word]);
  c->turn[word] &= c->turn[word] - 1;
  --c->n;
  return word * 64 + bit;
}

static void put_rank(opi_clock *c, uint32_t rank, double at) {
  if (c->rules.order == OPI_CLOCK_TURNS)
    put_turn(c, rank);
  else
    put(c, (opi_clock_entry){at, c->rules.order == OPI_CLOCK_TIME ? c->n_put++ : rank, rank, 0});
}

double opi_clock_again(opi_clock *c, uint32_t rank, double at) {
  put_rank(c, rank, at);
  return OPI_CLOCK_STANDS;
}

void opi_clock_put(opi_clock *c, double at, uint32_t what, uint32_t version) {
  put(c, (opi_clock_entry){at, c->n_put++, c->n_ranks + what, version});
}

/* ---- events ---- */

/* Neighbouring stages wait for events that lie a row of micro-batches apart: mixed, they spread. */
static uint32_t *sleepers_of(const opi_clock *c, uint64_t event) {
  return &c->sleeper[event * 0x9e3779b97f4a7c15u >> 32 & (c->n_sleepers - 1)];
}

double opi_clock_wait(opi_clock *c, uint32_t rank, uint64_t event) {
  if (event != OPI_CLOCK_NO_EVENT) {
    uint32_t *first = sleepers_of(c, event);
    c->next_sleeper[rank] = *first;
    c->previous_sleeper[rank] = OPIPE_NONE;
    if (*first != OPIPE_NONE)
      c->previous_sleeper[*first] = rank;
    *first = rank;
  }
  c->waits_for[rank] = event;
  return OPI_CLOCK_STANDS;
}

void opi_clock_wake(opi_clock *c, uint32_t rank, uint64_t event, double at) {
  if (c->waits_for[rank] != event)
    return;
  const uint32_t next = c->next_sleeper[rank], previous = c->previous_sleeper[rank];
  *(previous == OPIPE_NONE ? sleepers_of(c, event) : &c->next_sleeper[previous]) = next;
  if (next != OPIPE_NONE)
    c->previous_sleeper[next] = previous;
  c->waits_for[rank] = OPI_CLOCK_NO_EVENT;
  put_rank(c, rank, at > c->now[rank] ? at : c->now[rank]);
}

void opi_clock_happen(opi_clock *c, uint64_t event, double at) {
  for (uint32_t rank = *sleepers_of(c, event); rank != OPIPE_NONE;) {
    const uint32_t next = c->next_sleeper[rank];
    opi_clock_wake(c, rank, event, at);
    rank = next;
  }
}

/* ---- the loop ---- */

opipe_status opi_clock_open(uint32_t n_ranks, const opi_clock_rules *rules, opi_arena *arena,
                            opi_clock *c, opipe_error *err) {
  *c = (opi_clock){.rules = *rules,
                   .arena = arena,
                   .n_ranks = n_ranks,
                   .n_sleepers = 1,
                   .n_words = n_ranks / 64 + 1};
  while (c->n_sleepers < n_ranks)
    c->n_sleepers *= 2;
  c->now = OPI_ARENA_ARRAY(arena, double, n_ranks);
  c->waits_for = OPI_ARENA_ARRAY(arena, uint64_t, n_ranks);
  c->sleeper = OPI_ARENA_ARRAY(arena, uint32_t, c->n_sleepers);
  c->next_sleeper = OPI_ARENA_ARRAY(arena, uint32_t, n_ranks);
  c->previous_sleeper = OPI_ARENA_ARRAY(arena, uint32_t, n_ranks);
  c->turn = OPI_ARENA_ARRAY(arena, uint64_t, c->n_words);
  c->next_turn = OPI_ARENA_ARRAY(arena, uint64_t, c->n_words);
  if (c->now == NULL || c->waits_for == NULL || c->sleeper == NULL || c->next_sleeper == NULL ||
      c->previous_sleeper == NULL || c->turn == NULL || c->next_turn == NULL)
    return opi_fail_nomem(err, n_ranks * sizeof *c->now, "a clock");
  memset(c->waits_for, 0xff, n_ranks * sizeof *c->waits_for);
  memset(c->sleeper, 0xff, c->n_sleepers * sizeof *c->sleeper);
  return OPIPE_OK;
}

/* Rank after rank, each until it waits or is at its end. */
static void run_turns(opi_clock *c) {
  while (c->n > 0 && !c->failed) {
    const uint32_t rank = c->running = take_turn(c);
    double until = c->now[rank];
    while (until >= 0) {
      c->now[rank] = until;
      until = c->rules.act(c->rules.ctx, rank, until);
    }
  }
}

/* Looks at a rank until it waits, is at its end, or is in an action. */
static void run_rank(opi_clock *c, uint32_t rank, double at) {
  double until = at;
  c->running = rank;
  c->now[rank] = at;
  while (until >= 0 && until <= at)
    until = c->rules.act(c->rules.ctx, rank, at);
  if (until > at)
    put_rank(c, rank, until);
}

static void run_by_time(opi_clock *c) {
  while (c->n > 0 && !c->failed) {
    const opi_clock_entry entry = take(c);
    if (entry.what < c->n_ranks)
      run_rank(c, entry.what, entry.at);
    else
      c->rules.due(c->rules.ctx, entry.what - c->n_ranks, entry.version, entry.at);
  }
}

opipe_status opi_clock_run(opi_clock *c, opipe_error *err) {
  c->running = OPIPE_NONE; /* behind every rank: all have the next turn */
  for (uint32_t rank = 0; rank < c->n_ranks; ++rank)
    put_rank(c, rank, 0);
  if (c->rules.order == OPI_CLOCK_TURNS)
    run_turns(c);
  else
    run_by_time(c);
  return c->failed ? opi_fail_nomem(err, c->n * sizeof *c->heap, "a clock") : OPIPE_OK;
}
