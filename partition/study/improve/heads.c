/* SPDX-License-Identifier: Apache-2.0 */
/* Heads and tails: no order starts a compute before its head, and its tail always follows its end.
 * They are longest paths over messages, over streams (whose computes run in sequence), and over
 * waits that a cap causes, however many stages share it:
 *
 *   before a forward y starts, a known number of forwards of each stage must have started;
 *   a backward frees what a forward took, so after c forwards and g backwards a stage holds what
 *   c take less what g free, but at least nothing. If the rank holds too much even when all other
 *   stages have freed all they can before y, y must follow the backward that ends this; otherwise
 *   it must follow the first backward that may.
 *
 * If several computes of a rank must precede another, so must all of their work, from when it can
 * begin. A pass visits all computes in an order compatible with these precedences; while passes
 * find more of them, further passes follow.
 */
#include <math.h>
#include <string.h>

#include "partition/study/improve/works.h"

enum {
  BEFORE_MOST = 1 << 23, /* entries of `before`; if there were more, it is not used */
  PASSES_MOST = 8        /* each pass yields a bound; late ones find little */
};

typedef struct heads {
  const opi_works *w;
  double *head;            /* [n] */
  uint32_t *before;        /* [n * n_streams] how many of each stream come before; NULL: not used */
  uint32_t *waits, *stack; /* [n] */
  uint32_t *giver; /* [n_streams] the stream that frees what this one takes, if its rank has a cap;
                      OPIPE_NONE: none */
  /* by stream, within a pass: how many are done; which compute is blocked by the cap, and how many
   * of which giver must be done to release it */
  uint32_t *done, *stands, *stands_for, *until; /* [n_streams] */
  uint32_t *at;                                 /* [n_streams] */
  bool capped;                                  /* some stream has a giver */
  bool looks;                                   /* this pass considers caps */
  bool grew;                                    /* this pass raised some head */
} heads;

static uint32_t length_of(const opi_works *w, uint32_t s) {
  return w->stream_first[s + 1] - w->stream_first[s];
}

static uint32_t nth_of(const opi_works *w, uint32_t s, uint32_t place) {
  return w->stream_work[w->stream_first[s] + place];
}

/* Bytes that one compute of the stream takes. */
static int64_t takes_of(const opi_works *w, uint32_t s) {
  return w->takes[nth_of(w, s, 0)];
}

/* True if stream s frees everything that the taker takes, by backwards or halves of them. */
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

/* ---- precedences ---- */

static void raise_head(heads *h, uint32_t y, double head) {
  h->grew = h->grew || head > h->head[y];
  h->head[y] = fmax(h->head[y], head);
}

/* Notes that x, and everything before x, comes before y. */
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

/* Number of the stream's computes known to come before y. */
static uint32_t n_before(const heads *h, uint32_t s, uint32_t y) {
  return h->before == NULL ? 0 : h->before[(size_t)y * h->w->n_streams + s];
}

/* Raises y's head by the work of its own rank that must come before it, from when that can begin.
 */
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

/* ---- waits caused by caps ---- */

/* Bytes that a stage holds after c have taken and g have given. */
static int64_t held_by(const heads *h, uint32_t taker, uint32_t c, uint32_t g) {
  const int64_t taken = takes_of(h->w, taker) * (int64_t)c;
  const int64_t given = -takes_of(h->w, h->giver[taker]) * (int64_t)g;
  return taken > given ? taken - given : 0;
}

/* Least number of the taker that have started once y has. */
static uint32_t n_taken(const heads *h, uint32_t taker, uint32_t y) {
  return taker == h->w->stream[y] ? h->w->place[y] + 1 : n_before(h, taker, y);
}

/* Most of the taker's giver that can come before y and free something held then. */
static uint32_t most_given(const heads *h, uint32_t taker, uint32_t y) {
  const opi_works *w = h->w;
  const uint32_t giver = h->giver[taker];
  const int64_t gives = -takes_of(w, giver);
  const int64_t useful = (held_by(h, taker, n_taken(h, taker, y), 0) + gives - 1) / gives;
  uint32_t low = n_before(h, giver, y), high = length_of(w, giver);
  while (low < high) { /* the last ones of the stream must follow y */
    const uint32_t middle = low + (high - low) / 2;
    if (n_before(h, w->stream[y], nth_of(w, giver, middle)) > w->place[y])
      high = middle;
    else
      low = middle + 1;
  }
  return low < useful ? low : (uint32_t)useful;
}

/* True if the rank is within its cap once y has started and `at` of each taker's givers have run.
 * `except` (OPIPE_NONE: none) is left out; *out_room is what remains for it. */
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

/* Fewest backwards of this taker that must precede y even if all other stages free what they can
 * (at [taker]). OPIPE_NONE: even all of them are not enough. */
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

/* Places the backwards that must free memory before y. Their predecessors may demand more. False:
 * one of them is not done yet, and y is blocked until it is. */
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

/* If different givers may free the room, y waits until enough of them can be done. */
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

/* Marks x done and releases its successors and whatever was blocked on it. */
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

/* Returns whether all computes were reached; otherwise no order keeps within the caps. */
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
