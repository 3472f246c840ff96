/* SPDX-License-Identifier: Apache-2.0 */
/* Heads and tails: nothing brings a compute here before its head, and its tail follows its end
 * whatever is done. They are longest paths over messages, over streams, whose computes come one
 * after the other, and over what a cap makes wait, whatever number of stages share it:
 *
 *   before a forward y starts, so many forwards of each stage have started as must come before it;
 *   a backward gives back what a forward has taken, so that of c forwards and g backwards of a
 *   stage what c take less what g give is held, and nothing where it is less; if the rank holds
 *   too much even when all other stages have given what they can before y, y comes behind the
 *   backward with which that is over, and else behind the first with which it may be.
 *
 * Where several computes of one rank must come before another, all of their work does, from when
 * it can begin. A pass goes through all computes in an order of what must come before what; as it
 * finds more of that there is another pass.
 */
#include <math.h>
#include <string.h>

#include "partition/study/improve/works.h"

enum {
  BEFORE_MOST = 1 << 23, /* entries of `before`: beyond, that part is left out */
  PASSES_MOST = 8        /* each is a bound; the last ones find little */
};

typedef struct heads {
  const opi_works *w;
  double *head;     /* [n] */
  uint32_t *before; /* [n * n_streams] of each stream, how many come before; NULL: not looked at */
  uint32_t *waits, *stack; /* [n] */
  uint32_t *giver; /* [n_streams] the stream that gives back what this one takes, where its rank has
                      a cap; OPIPE_NONE: none */
  /* of each stream, in a pass: how many are done; which one stands because of the cap, until so
   * many of that giver are done */
  uint32_t *done, *stands, *stands_for, *until; /* [n_streams] */
  uint32_t *at;                                 /* [n_streams] */
  bool capped;                                  /* some stream has a giver */
  bool looks;                                   /* at caps, in this pass */
  bool grew;                                    /* this pass found more than the one before */
} heads;

static uint32_t length_of(const opi_works *w, uint32_t s) {
  return w->stream_first[s + 1] - w->stream_first[s];
}

static uint32_t nth_of(const opi_works *w, uint32_t s, uint32_t place) {
  return w->stream_work[w->stream_first[s] + place];
}

/* Of one compute of the stream. */
static int64_t takes_of(const opi_works *w, uint32_t s) {
  return w->takes[nth_of(w, s, 0)];
}

/* All that a stage takes it gives back, by backwards or by halves of them. */
static bool gives_back(const opi_works *w, uint32_t taker, uint32_t s) {
  const opi_do *a = &w->items[nth_of(w, taker, 0)], *b = &w->items[nth_of(w, s, 0)];
  const uint64_t n_a = length_of(w, taker), n_b = length_of(w, s);
  uint64_t taken = 0, given = 0;
  return takes_of(w, s) < 0 && a->stage == b->stage && a->replica == b->replica &&
         !opi_mul_u64((uint64_t)takes_of(w, taker), n_a, &taken) &&
         !opi_mul_u64((uint64_t)-takes_of(w, s), n_b, &given) && taken == given &&
         taken <= INT64_MAX;
}

static void find_givers(heads *h) {
  const opi_works *w = h->w;
  for (uint32_t rank = 0; rank < w->n_ranks; ++rank) {
    for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
      h->giver[s] = OPIPE_NONE;
      if (w->cap[rank] == INT64_MAX || takes_of(w, s) <= 0)
        continue;
      for (uint32_t t = w->rank_stream[rank]; t < w->rank_stream[rank + 1]; ++t)
        h->giver[s] = gives_back(w, s, t) ? t : h->giver[s];
      h->capped = h->capped || h->giver[s] != OPIPE_NONE;
    }
  }
}

/* ---- what comes before what ---- */

static void raise_head(heads *h, uint32_t y, double head) {
  h->grew = h->grew || head > h->head[y];
  h->head[y] = fmax(h->head[y], head);
}

/* x comes before y, and so does what comes before x. */
static void note_before(heads *h, uint32_t x, uint32_t y, double delay) {
  const uint32_t n = h->w->n_streams, own = h->w->stream[x];
  raise_head(h, y, h->head[x] + h->w->ns[x] + delay);
  if (h->before == NULL)
    return;
  const uint32_t *from = &h->before[(size_t)x * n];
  uint32_t *to = &h->before[(size_t)y * n];
  for (uint32_t s = 0; s < n; ++s) {
    const uint32_t least = s == own ? h->w->place[x] + 1 : from[s];
    h->grew = h->grew || least > to[s];
    to[s] = least > to[s] ? least : to[s];
  }
}

/* How many of the stream come before y, as far as that is known. */
static uint32_t n_before(const heads *h, uint32_t s, uint32_t y) {
  return h->before == NULL ? 0 : h->before[(size_t)y * h->w->n_streams + s];
}

/* The work of y's own rank that must come before it, from when it can begin. */
static void raise_by_rank(heads *h, uint32_t y) {
  const opi_works *w = h->w;
  const uint32_t rank = w->rank[y];
  double sum = 0;
  for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s)
    h->at[s] = n_before(h, s, y);
  while (h->before != NULL) {
    uint32_t latest = OPIPE_NONE;
    for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
      if (h->at[s] == 0)
        continue;
      const uint32_t x = nth_of(w, s, h->at[s] - 1);
      latest = latest == OPIPE_NONE || h->head[x] > h->head[latest] ? x : latest;
    }
    if (latest == OPIPE_NONE)
      return;
    --h->at[w->stream[latest]];
    sum += w->ns[latest];
    raise_head(h, y, h->head[latest] + sum);
  }
}

/* ---- what caps make wait ---- */

/* Of a stage, when c have taken and g have given. */
static int64_t held_by(const heads *h, uint32_t taker, uint32_t c, uint32_t g) {
  const int64_t taken = takes_of(h->w, taker) * (int64_t)c;
  const int64_t given = -takes_of(h->w, h->giver[taker]) * (int64_t)g;
  return taken > given ? taken - given : 0;
}

/* So many of the taker have started at least when y has. */
static uint32_t n_taken(const heads *h, uint32_t taker, uint32_t y) {
  return taker == h->w->stream[y] ? h->w->place[y] + 1 : n_before(h, taker, y);
}

/* So many of the taker's giver can come before y and give back what is held then. */
static uint32_t most_given(const heads *h, uint32_t taker, uint32_t y) {
  const opi_works *w = h->w;
  const uint32_t giver = h->giver[taker];
  const int64_t gives = -takes_of(w, giver);
  const int64_t useful = (held_by(h, taker, n_taken(h, taker, y), 0) + gives - 1) / gives;
  uint32_t low = n_before(h, giver, y), high = length_of(w, giver);
  while (low < high) { /* those that y comes before are the last of them */
    const uint32_t middle = low + (high - low) / 2;
    if (n_before(h, w->stream[y], nth_of(w, giver, middle)) > w->place[y])
      high = middle;
    else
      low = middle + 1;
  }
  return low < useful ? low : (uint32_t)useful;
}

/* What is held when y has started and so many (at [taker]) have given: within the cap? But for
 * `except` (OPIPE_NONE: nothing); *out_room: what is left for that. */
static bool fits(const heads *h, uint32_t y, uint32_t except, int64_t *out_room) {
  const opi_works *w = h->w;
  const uint32_t rank = w->rank[y];
  int64_t room = w->cap[rank];
  for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
    const int64_t held =
        s == except || h->giver[s] == OPIPE_NONE ? 0 : held_by(h, s, n_taken(h, s, y), h->at[s]);
    if (held > room)
      return false;
    room -= held;
  }
  *out_room = room;
  return true;
}

/* So many of the taker's giver come before y, although all others give what they can (at [taker]).
 * OPIPE_NONE: that is not enough. */
static uint32_t least_given(const heads *h, uint32_t taker, uint32_t y) {
  const int64_t gives = -takes_of(h->w, h->giver[taker]);
  const int64_t taken = held_by(h, taker, n_taken(h, taker, y), 0);
  int64_t room = 0;
  if (!fits(h, y, taker, &room))
    return OPIPE_NONE;
  const int64_t least = taken <= room ? 0 : (taken - room + gives - 1) / gives;
  return least <= h->at[taker] ? (uint32_t)least : OPIPE_NONE;
}

static void let_all_give(heads *h, uint32_t y) {
  const opi_works *w = h->w;
  const uint32_t rank = w->rank[y];
  for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s)
    h->at[s] = h->giver[s] == OPIPE_NONE ? 0 : most_given(h, s, y);
}

/* Puts those that must give before y before it; what comes before them may ask for more. False: one
 * of them is not done, so that y stands until it is. */
static bool come_behind_givers(heads *h, uint32_t y) {
  const opi_works *w = h->w;
  const uint32_t rank = w->rank[y];
  for (bool more = true; more;) {
    more = false;
    let_all_give(h, y);
    for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
      const uint32_t giver = h->giver[s];
      const uint32_t least = giver == OPIPE_NONE ? 0 : least_given(h, s, y);
      if (least == 0)
        continue;
      if (least > h->done[giver]) {
        h->stands[w->stream[y]] = y;
        h->stands_for[w->stream[y]] = giver;
        h->until[w->stream[y]] = least;
        return false;
      }
      more = more || (h->before != NULL && least > n_before(h, giver, y));
      note_before(h, nth_of(w, giver, least - 1), y, 0);
    }
  }
  return true;
}

/* It may be one or the other that gives: not before so many of them can be done. */
static void wait_for_room(heads *h, uint32_t y) {
  const opi_works *w = h->w;
  const uint32_t rank = w->rank[y];
  int64_t unused = 0;
  for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s)
    h->at[s] = h->giver[s] == OPIPE_NONE ? 0 : n_before(h, h->giver[s], y);
  while (h->before != NULL && !fits(h, y, OPIPE_NONE, &unused)) {
    uint32_t next = OPIPE_NONE;
    double soonest = INFINITY;
    for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
      if (h->giver[s] == OPIPE_NONE || h->at[s] >= most_given(h, s, y))
        continue;
      const uint32_t x = nth_of(w, h->giver[s], h->at[s]);
      if (h->head[x] + w->ns[x] < soonest) {
        soonest = h->head[x] + w->ns[x];
        next = s;
      }
    }
    if (next == OPIPE_NONE)
      return;
    ++h->at[next];
    raise_head(h, y, soonest);
  }
}

/* ---- passes ---- */

static void begin_pass(heads *h) {
  const opi_works *w = h->w;
  h->grew = false;
  for (uint32_t x = 0; x < w->n; ++x)
    h->waits[x] = w->before.first[x + 1] - w->before.first[x] + (w->place[x] > 0);
  for (uint32_t s = 0; s < w->n_streams; ++s) {
    h->done[s] = 0;
    h->stands[s] = OPIPE_NONE;
  }
}

static void let_come(heads *h, uint32_t y, uint32_t *io_n) {
  if (--h->waits[y] == 0)
    h->stack[(*io_n)++] = y;
}

/* x is done: what follows it may come, and what stood for it. */
static void pass_on(heads *h, uint32_t x, uint32_t *io_n) {
  const opi_works *w = h->w;
  const uint32_t own = w->stream[x], rank = w->rank[x];
  ++h->done[own];
  for (uint32_t k = w->after.first[x]; k < w->after.first[x + 1]; ++k) {
    note_before(h, x, w->after.other[k], w->after.delay[k]);
    let_come(h, w->after.other[k], io_n);
  }
  if (w->place[x] + 1 < length_of(w, own)) {
    const uint32_t next = nth_of(w, own, w->place[x] + 1);
    note_before(h, x, next, 0);
    let_come(h, next, io_n);
  }
  for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
    if (h->stands[s] == OPIPE_NONE || h->stands_for[s] != own || h->done[own] < h->until[s])
      continue;
    h->stack[(*io_n)++] = h->stands[s];
    h->stands[s] = OPIPE_NONE;
  }
}

/* Returns whether all were reached: else no order keeps within the caps. */
static bool pass(heads *h) {
  const opi_works *w = h->w;
  uint32_t n = 0, n_done = 0;
  begin_pass(h);
  for (uint32_t x = 0; x < w->n; ++x) {
    if (h->waits[x] == 0)
      h->stack[n++] = x;
  }
  while (n > 0) {
    const uint32_t x = h->stack[--n];
    const bool takes = h->looks && h->giver[w->stream[x]] != OPIPE_NONE;
    if (takes && !come_behind_givers(h, x))
      continue;
    if (takes)
      wait_for_room(h, x);
    raise_by_rank(h, x);
    pass_on(h, x, &n);
    ++n_done;
  }
  return n_done == w->n;
}

static bool raise_heads(heads *h) {
  bool all = true;
  find_givers(h);
  h->looks = h->capped && h->before == NULL;
  all = pass(h);
  h->looks = h->capped;
  h->grew = h->capped && h->before != NULL;
  for (uint32_t i = 1; all && h->grew && i < PASSES_MOST; ++i)
    all = pass(h);
  return all;
}

opipe_status opi_works_heads(const opi_works *w, opi_arena *arena, double **out_head,
                             opipe_error *err) {
  const uint64_t entries = (uint64_t)w->n * w->n_streams;
  heads h = {.w = w,
             .head = OPI_ARENA_ARRAY(arena, double, w->n),
             .waits = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
             .stack = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
             .giver = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
             .done = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
             .stands = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
             .stands_for = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
             .until = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
             .at = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams)};
  if (entries <= BEFORE_MOST)
    h.before = OPI_ARENA_ARRAY(arena, uint32_t, entries);
  if (h.head == NULL || h.waits == NULL || h.stack == NULL || h.giver == NULL || h.done == NULL ||
      h.stands == NULL || h.stands_for == NULL || h.until == NULL || h.at == NULL ||
      (h.before == NULL && entries <= BEFORE_MOST))
    return opi_fail_nomem(err, w->n * sizeof(double), "a bound");
  if (!raise_heads(&h))
    return opi_fail(err, OPIPE_E_LIMIT, "no order of the stages keeps within the caps");
  *out_head = h.head;
  return OPIPE_OK;
}

opipe_status opi_works_tails(const opi_works *w, opi_arena *arena, double **out_tail,
                             opipe_error *err) {
  opi_works reversed;
  if (!opi_works_reverse(w, arena, &reversed))
    return opi_fail_nomem(err, w->n * sizeof(double), "a bound");
  return opi_works_heads(&reversed, arena, out_tail, err);
}
