/* SPDX-License-Identifier: Apache-2.0 */
/* What no order can beat. Every compute has a head (nothing brings it here earlier) and a tail (so
 * much follows its end whatever is done): longest paths over messages, over streams, whose computes
 * come one after the other, and over what a cap makes wait (with room for c of a stage, its
 * forward k + c starts behind the end of its backward k). Where several streams of one rank must
 * come before a compute, all of their work does, from when it can begin. Then each rank alone, as
 * if it could lay work aside: its heads, works and tails (Jackson's preemptive schedule).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/improve/works.h"

enum { BEFORE_MOST = 1 << 23 }; /* entries of `before`: beyond, that part is left out */

typedef struct heads {
  const opi_works *w;
  double *head;     /* [n] */
  uint32_t *before; /* [n * n_streams] of each stream, how many come before; NULL: not looked at */
  uint32_t *waits, *queue;
  uint32_t *room;    /* [n_streams] of which so many fit at once, 0: any number */
  uint32_t *partner; /* [n_streams] the stream that gives back, OPIPE_NONE */
  uint32_t *at;      /* [n_streams] */
} heads;

/* ---- what caps make wait ---- */

static uint32_t length_of(const opi_works *w, uint32_t s) {
  return w->stream_first[s + 1] - w->stream_first[s];
}

/* For streams that take: how many fit, and who gives back one for one. */
static void find_partners(heads *h) {
  const opi_works *w = h->w;
  for (uint32_t rank = 0; rank < w->n_ranks; ++rank) {
    for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
      const opi_do *a = &w->items[w->stream_work[w->stream_first[s]]];
      const int64_t takes = w->takes[w->stream_work[w->stream_first[s]]];
      h->partner[s] = OPIPE_NONE;
      for (uint32_t t = w->rank_stream[rank]; t < w->rank_stream[rank + 1]; ++t) {
        const uint32_t x = w->stream_work[w->stream_first[t]];
        if (takes > 0 && w->cap[rank] != INT64_MAX && w->takes[x] == -takes &&
            w->items[x].stage == a->stage && w->items[x].replica == a->replica &&
            length_of(w, s) == length_of(w, t)) {
          h->partner[s] = t;
          h->room[s] = (uint32_t)(w->cap[rank] / takes < w->n ? w->cap[rank] / takes : w->n);
        }
      }
    }
  }
}

/* ---- heads ---- */

static void note_before(heads *h, uint32_t x, uint32_t y) {
  const uint32_t n = h->w->n_streams;
  if (h->before == NULL)
    return;
  const uint32_t *from = &h->before[(size_t)x * n];
  uint32_t *to = &h->before[(size_t)y * n];
  for (uint32_t s = 0; s < n; ++s)
    to[s] = from[s] > to[s] ? from[s] : to[s];
  const uint32_t own = h->w->stream[x];
  to[own] = h->w->place[x] + 1 > to[own] ? h->w->place[x] + 1 : to[own];
}

/* x comes before y, whose head is raised. Returns y if that was the last. */
static void pass_on(heads *h, uint32_t x, uint32_t y, double delay, uint32_t *io_n) {
  h->head[y] = fmax(h->head[y], h->head[x] + h->w->ns[x] + delay);
  note_before(h, x, y);
  if (--h->waits[y] == 0)
    h->queue[(*io_n)++] = y;
}

/* The work of y's own rank that must come before it, from when it can begin. */
static void raise_by_rank(heads *h, uint32_t y) {
  const opi_works *w = h->w;
  const uint32_t rank = w->rank[y];
  const uint32_t *before = h->before == NULL ? NULL : &h->before[(size_t)y * w->n_streams];
  double sum = 0;
  for (uint32_t s = w->rank_stream[rank]; before != NULL && s < w->rank_stream[rank + 1]; ++s)
    h->at[s] = before[s];
  while (before != NULL) {
    uint32_t latest = OPIPE_NONE;
    for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
      if (h->at[s] == 0)
        continue;
      const uint32_t x = w->stream_work[w->stream_first[s] + h->at[s] - 1];
      latest = latest == OPIPE_NONE || h->head[x] > h->head[latest] ? x : latest;
    }
    if (latest == OPIPE_NONE)
      return;
    --h->at[w->stream[latest]];
    sum += w->ns[latest];
    h->head[y] = fmax(h->head[y], h->head[latest] + sum);
  }
}

/* The one of its stream behind x, and what waits for x's bytes. */
static uint32_t next_of(const heads *h, uint32_t x) {
  const opi_works *w = h->w;
  const uint32_t s = w->stream[x], next = w->stream_first[s] + w->place[x] + 1;
  return next < w->stream_first[s + 1] ? w->stream_work[next] : OPIPE_NONE;
}

static uint32_t waiting_for(const heads *h, uint32_t x, uint32_t taker) {
  const opi_works *w = h->w;
  if (h->partner[taker] != w->stream[x])
    return OPIPE_NONE;
  const uint64_t at = (uint64_t)w->place[x] + h->room[taker];
  return at < length_of(w, taker) ? w->stream_work[w->stream_first[taker] + at] : OPIPE_NONE;
}

static void count_waits(heads *h) {
  const opi_works *w = h->w;
  for (uint32_t x = 0; x < w->n; ++x) {
    const uint32_t s = w->stream[x];
    h->waits[x] = w->before.first[x + 1] - w->before.first[x] + (w->place[x] > 0) +
                  (h->partner[s] != OPIPE_NONE && w->place[x] >= h->room[s]);
  }
}

/* Returns how many were reached: all, unless no order keeps within the caps. */
static uint32_t raise_heads(heads *h) {
  const opi_works *w = h->w;
  uint32_t n = 0, done = 0;
  find_partners(h);
  count_waits(h);
  for (uint32_t x = 0; x < w->n; ++x) {
    if (h->waits[x] == 0)
      h->queue[n++] = x;
  }
  for (; done < n; ++done) {
    const uint32_t x = h->queue[done], rank = w->rank[x], next = next_of(h, x);
    raise_by_rank(h, x);
    for (uint32_t k = w->after.first[x]; k < w->after.first[x + 1]; ++k)
      pass_on(h, x, w->after.other[k], w->after.delay[k], &n);
    if (next != OPIPE_NONE)
      pass_on(h, x, next, 0, &n);
    for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
      const uint32_t y = waiting_for(h, x, s);
      if (y != OPIPE_NONE)
        pass_on(h, x, y, 0, &n);
    }
  }
  return done;
}

static opipe_status find_heads(const opi_works *w, opi_arena *arena, double **out_head,
                               opipe_error *err) {
  const uint64_t entries = (uint64_t)w->n * w->n_streams;
  heads h = {.w = w,
             .head = OPI_ARENA_ARRAY(arena, double, w->n),
             .waits = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
             .queue = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
             .room = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
             .partner = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
             .at = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams)};
  if (entries <= BEFORE_MOST)
    h.before = OPI_ARENA_ARRAY(arena, uint32_t, entries);
  if (h.head == NULL || h.waits == NULL || h.queue == NULL || h.room == NULL || h.partner == NULL ||
      h.at == NULL || (h.before == NULL && entries <= BEFORE_MOST))
    return opi_fail_nomem(err, w->n * sizeof(double), "a bound");
  if (raise_heads(&h) < w->n)
    return opi_fail(err, OPIPE_E_LIMIT, "no order of the stages keeps within the caps");
  *out_head = h.head;
  return OPIPE_OK;
}

opipe_status opi_works_tails(const opi_works *w, opi_arena *arena, double **out_tail,
                             opipe_error *err) {
  opi_works reversed;
  if (!opi_works_reverse(w, arena, &reversed))
    return opi_fail_nomem(err, w->n * sizeof(double), "a bound");
  return find_heads(&reversed, arena, out_tail, err);
}

/* ---- each rank alone ---- */

typedef struct piece {
  double head, left, tail;
} piece;

static int by_head(const void *a, const void *b) {
  const double x = ((const piece *)a)->head, y = ((const piece *)b)->head;
  return x < y ? -1 : x > y;
}

/* A heap with the longest tail on top. */
static void sift(piece *heap, uint32_t n, uint32_t at) {
  for (uint32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
    child += child + 1 < n && heap[child + 1].tail > heap[child].tail;
    if (heap[at].tail >= heap[child].tail)
      return;
    const piece moved = heap[at];
    heap[at] = heap[child];
    heap[child] = moved;
    at = child;
  }
}

static void push(piece *heap, uint32_t n, piece p) {
  uint32_t at = n;
  for (; at > 0 && heap[(at - 1) / 2].tail < p.tail; at = (at - 1) / 2)
    heap[at] = heap[(at - 1) / 2];
  heap[at] = p;
}

/* Always that of the longest tail among what is there; pieces are sorted by head. */
static double preemptive(const piece *pieces, uint32_t n, piece *heap) {
  double now = 0, most = 0;
  uint32_t n_heap = 0;
  for (uint32_t next = 0; next < n || n_heap > 0;) {
    if (n_heap == 0)
      now = fmax(now, pieces[next].head);
    for (; next < n && pieces[next].head <= now; ++next)
      push(heap, n_heap++, pieces[next]);
    const double until = next < n ? pieces[next].head : INFINITY;
    if (heap[0].left > until - now) {
      heap[0].left -= until - now;
      now = until;
      continue;
    }
    now += heap[0].left;
    most = fmax(most, now + heap[0].tail);
    heap[0] = heap[--n_heap];
    sift(heap, n_heap, 0);
  }
  return most;
}

opipe_status opi_works_bound(const opi_works *w, opi_arena *arena, double *out_ns,
                             opipe_error *err) {
  double *head = NULL, *tail = NULL;
  piece *pieces = OPI_ARENA_ARRAY(arena, piece, w->n);
  piece *heap = OPI_ARENA_ARRAY(arena, piece, w->n);
  if (pieces == NULL || heap == NULL)
    return opi_fail_nomem(err, w->n * sizeof *pieces, "a bound");
  OPI_TRY(find_heads(w, arena, &head, err));
  OPI_TRY(opi_works_tails(w, arena, &tail, err));
  *out_ns = 0;
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    const uint32_t first = w->rank_first[r], n = w->rank_first[r + 1] - first;
    for (uint32_t i = 0; i < n; ++i)
      pieces[i] = (piece){head[first + i], w->ns[first + i], tail[first + i]};
    qsort(pieces, n, sizeof *pieces, by_head);
    *out_ns = fmax(*out_ns, preemptive(pieces, n, heap));
  }
  return OPIPE_OK;
}
