/* SPDX-License-Identifier: Apache-2.0 */
/* The search. Every compute has a key that decides which of several a rank runs first; the clock
 * (clock.c) turns keys into an order. Each move starts from the times of a good order as keys and
 * shifts some of them: those of one stream, of one kind, or within a period of time. The resulting
 * order is repacked from its end backwards and then from its start (after Li and Willis, 1992). It
 * becomes the current order if it is not much worse; the tolerance falls to zero as moves are used
 * up. */
#include <math.h>
#include <string.h>

#include "partition/study/improve/works.h"

enum { PATIENCES = 3, RETURN_AFTER = 400 /* moves without improvement: back to the best order */ };
static const double PATIENCE[PATIENCES] = {0, 0.5, 1};
static const double WORSE = 0.02; /* initial tolerance for a worse order */

typedef struct search {
  const opi_works *w;
  opi_works back;
  opi_works_clock clock;
  opi_works_order best, now, trial, packed;
  double *key;  /* [n] */
  double *tail; /* [n] lower bound on the time after a compute's end, ignoring ranks */
  double span;  /* mean time of a compute */
  uint64_t random, moves, most;
  double bound;
} search;

/* ---- random numbers ---- */

/* splitmix64 */
static uint64_t draw(search *s) {
  uint64_t z = s->random += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static double fraction(search *s) { /* [0, 1) */
  return (double)(draw(s) >> 11) * 0x1p-53;
}

static uint32_t below(search *s, uint32_t n) {
  return (uint32_t)(fraction(s) * n);
}

/* ---- one order after the other ---- */

static void keep_best(search *s, const opi_works_order *x) {
  if (x->makespan < s->best.makespan)
    opi_works_order_copy(s->w, x, &s->best);
}

static bool is_done(const search *s) {
  return s->moves >= s->most || s->best.makespan <= s->bound * (1 + 1e-12);
}

static bool make_order(search *s, double patience, opi_works_order *out) {
  ++s->moves;
  const bool made = opi_works_clock_order(s->w, &s->clock, s->key, patience, out);
  if (made)
    keep_best(s, out);
  return made;
}

static void turn_round(const opi_works *w, opi_works_order *x) {
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    for (uint32_t a = w->rank_first[r], b = w->rank_first[r + 1]; a + 1 < b; ++a) {
      const uint32_t last = x->work[--b];
      x->work[b] = x->work[a];
      x->work[a] = last;
    }
  }
}

/* Repacks backwards, latest end first, then forwards again. Replaces `x` if the result is better.
 */
static void pack(search *s, double patience, opi_works_order *x) {
  for (uint32_t i = 0; i < s->w->n; ++i)
    s->key[i] = -x->end[i];
  ++s->moves;
  if (!opi_works_clock_order(&s->back, &s->clock, s->key, patience, &s->packed))
    return;
  turn_round(s->w, &s->packed);
  opi_works_clock_run(s->w, &s->clock, &s->packed);
  keep_best(s, &s->packed);
  if (s->packed.makespan <= x->makespan)
    opi_works_order_copy(s->w, &s->packed, x);
  memcpy(s->key, s->packed.start, s->w->n * sizeof *s->key);
  if (make_order(s, patience, &s->packed) && s->packed.makespan <= x->makespan)
    opi_works_order_copy(s->w, &s->packed, x);
}

/* ---- keys ---- */

/* Shifts the keys of computes that resemble x, within a period of time, earlier or later. */
static void move_some(search *s) {
  const opi_works *w = s->w;
  const uint32_t x = below(s, w->n), how = below(s, 4);
  const double length = s->now.makespan * (below(s, 3) == 0 ? 1 : fraction(s) * 0.4);
  const double from = s->now.start[x] - length / 2, to = from + length;
  const double far = s->span * (1 + 6 * fraction(s)), shift = below(s, 2) == 0 ? far : -far;
  for (uint32_t i = 0; i < w->n; ++i) {
    const opi_do *a = &w->items[i], *b = &w->items[x];
    if (s->now.start[i] < from || s->now.start[i] > to)
      continue;
    if (how == 0 && w->stream[i] == w->stream[x])
      s->key[i] += shift;
    else if (how == 1 && a->kind == b->kind)
      s->key[i] += shift;
    else if (how == 2 && w->rank[i] == w->rank[x])
      s->key[i] += far * (fraction(s) - 0.5);
    else if (how == 3)
      s->key[i] += far * (fraction(s) - 0.5);
  }
}

static void step(search *s, double worse) {
  const double patience = PATIENCE[below(s, PATIENCES)];
  memcpy(s->key, s->now.start, s->w->n * sizeof *s->key);
  move_some(s);
  if (below(s, 3) == 0)
    move_some(s);
  if (!make_order(s, patience, &s->trial))
    return;
  if (s->trial.makespan <= s->now.makespan * (1 + 3 * WORSE))
    pack(s, patience, &s->trial);
  if (s->trial.makespan <= s->now.makespan * (1 + worse))
    opi_works_order_copy(s->w, &s->trial, &s->now);
}

/* ---- starting orders ---- */

/* Ranks streams by kind alone: which of F, I (or B), W comes first. */
static void rank_kinds(search *s, uint32_t order) {
  static const uint8_t places[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                       {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (uint32_t i = 0; i < s->w->n; ++i) {
    const uint32_t kind = s->w->items[i].kind;
    const uint32_t phase = kind == OPI_DO_F ? 0 : kind == OPI_DO_W ? 2 : 1;
    s->key[i] = places[order][phase] - 1e-9 * s->tail[i] / s->span;
  }
}

static void find_tails(search *s) {
  const opi_works *w = s->w;
  for (uint32_t i = 0; i < w->n; ++i)
    s->packed.work[i] = w->before.first[i + 1] - w->before.first[i]; /* still to come */
  uint32_t *left = s->packed.work, n = 0;
  uint32_t *queue = s->trial.work;
  for (uint32_t i = 0; i < w->n; ++i) {
    if (left[i] == 0)
      queue[n++] = i;
  }
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t k = w->after.first[queue[i]]; k < w->after.first[queue[i] + 1]; ++k) {
      if (--left[w->after.other[k]] == 0)
        queue[n++] = w->after.other[k];
    }
  }
  for (uint32_t i = n; i-- > 0;) {
    const uint32_t x = queue[i];
    for (uint32_t k = w->after.first[x]; k < w->after.first[x + 1]; ++k) {
      const uint32_t y = w->after.other[k];
      s->tail[x] = fmax(s->tail[x], w->after.delay[k] + w->ns[y] + s->tail[y]);
    }
  }
}

static void take(search *s) {
  pack(s, 1, &s->trial);
  if (s->trial.makespan < s->now.makespan)
    opi_works_order_copy(s->w, &s->trial, &s->now);
}

static void begin(search *s) {
  find_tails(s);
  for (uint32_t p = 0; p < PATIENCES && !is_done(s); ++p) {
    memcpy(s->key, s->best.start, s->w->n * sizeof *s->key);
    if (make_order(s, PATIENCE[p], &s->trial))
      take(s);
    for (uint32_t i = 0; i < s->w->n; ++i)
      s->key[i] = -s->tail[i];
    if (make_order(s, PATIENCE[p], &s->trial))
      take(s);
    for (uint32_t k = 0; k < 6 && !is_done(s); ++k) {
      rank_kinds(s, k);
      if (make_order(s, PATIENCE[p], &s->trial))
        take(s);
    }
  }
}

/* ---- all of it ---- */

static bool open_search(search *s, opi_arena *arena, const opi_works_order *start) {
  const opi_works *w = s->w;
  s->key = OPI_ARENA_ARRAY(arena, double, w->n);
  s->tail = OPI_ARENA_ARRAY(arena, double, w->n);
  if (s->key == NULL || s->tail == NULL || !opi_works_reverse(w, arena, &s->back) ||
      !opi_works_clock_make(w, arena, &s->clock) || !opi_works_order_make(w, arena, &s->best) ||
      !opi_works_order_make(w, arena, &s->now) || !opi_works_order_make(w, arena, &s->trial) ||
      !opi_works_order_make(w, arena, &s->packed))
    return false;
  for (uint32_t i = 0; i < w->n; ++i)
    s->span += w->ns[i] / w->n;
  opi_works_order_copy(w, start, &s->best);
  opi_works_order_copy(w, start, &s->now);
  return true;
}

opipe_status opi_works_search(const opi_works *w, const opi_improve_effort *effort, double bound,
                              opi_arena *arena, opi_works_order *io_best, uint64_t *out_moves,
                              opipe_error *err) {
  search s = {.w = w, .random = effort->seed, .moves = 1, .bound = bound};
  s.most = effort->moves == 0 ? OPI_IMPROVE_MOVES : effort->moves;
  if (!open_search(&s, arena, io_best))
    return opi_fail_nomem(err, w->n * sizeof(double), "a search for orders");
  begin(&s);
  for (uint64_t since = 0; !is_done(&s); ++since) {
    const double before = s.best.makespan, left = 1 - (double)s.moves / (double)s.most;
    step(&s, WORSE * left);
    since = s.best.makespan < before ? 0 : since;
    if (since == RETURN_AFTER) {
      opi_works_order_copy(w, &s.best, &s.now);
      since = 0;
    }
  }
  opi_works_order_copy(w, &s.best, io_best);
  *out_moves = s.moves;
  return OPIPE_OK;
}
