/* SPDX-License-Identifier: Apache-2.0 */
/* Times of a sequence, and sequences made by the clock (after Giffler and Thompson, 1960). */
#include <math.h>
#include <string.h>

#include "partition/study/improve/works.h"

bool opi_works_clock_make(const opi_works *w, opi_arena *arena, opi_works_clock *out) {
  const size_t n_ranks = w->n_ranks, most = w->n_streams > n_ranks ? w->n_streams : n_ranks;
  *out = (opi_works_clock){.waits = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
                           .queue = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
                           .at = OPI_ARENA_ARRAY(arena, uint32_t, most),
                           .ready = OPI_ARENA_ARRAY(arena, double, w->n),
                           .free_at = OPI_ARENA_ARRAY(arena, double, n_ranks),
                           .least = OPI_ARENA_ARRAY(arena, double, n_ranks),
                           .first = OPI_ARENA_ARRAY(arena, double, n_ranks),
                           .held = OPI_ARENA_ARRAY(arena, int64_t, n_ranks),
                           .stale = OPI_ARENA_ARRAY(arena, bool, n_ranks),
                           .filled = OPI_ARENA_ARRAY(arena, uint32_t, n_ranks)};
  return out->waits != NULL && out->queue != NULL && out->at != NULL && out->ready != NULL &&
         out->free_at != NULL && out->least != NULL && out->first != NULL && out->held != NULL &&
         out->stale != NULL && out->filled != NULL;
}

static void begin(const opi_works *w, opi_works_clock *c) {
  for (uint32_t i = 0; i < w->n; ++i) {
    c->waits[i] = w->before.first[i + 1] - w->before.first[i];
    c->ready[i] = 0;
  }
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    c->free_at[r] = 0;
    c->held[r] = 0;
    c->stale[r] = true;
    c->filled[r] = w->rank_first[r];
  }
}

/* ---- times of a sequence ---- */

/* True if everything that the rank's next compute reads has a time. */
static bool is_next(const opi_works *w, const opi_works_clock *c, const opi_works_order *s,
                    uint32_t rank) {
  return c->at[rank] < w->rank_first[rank + 1] && c->waits[s->work[c->at[rank]]] == 0;
}

void opi_works_clock_run(const opi_works *w, opi_works_clock *c, opi_works_order *s) {
  uint32_t n_queue = 0, n_done = 0;
  double makespan = 0;
  begin(w, c);
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    c->at[r] = w->rank_first[r];
    if (is_next(w, c, s, r))
      c->queue[n_queue++] = r;
  }
  while (n_queue > 0) {
    const uint32_t r = c->queue[--n_queue];
    while (is_next(w, c, s, r)) {
      const uint32_t x = s->work[c->at[r]++];
      s->start[x] = c->ready[x] > c->free_at[r] ? c->ready[x] : c->free_at[r];
      const double end = s->start[x] + w->ns[x];
      s->end[x] = c->free_at[r] = end;
      makespan = end > makespan ? end : makespan;
      ++n_done;
      for (uint32_t k = w->after.first[x]; k < w->after.first[x + 1]; ++k) {
        const uint32_t y = w->after.other[k], there = w->rank[y];
        const double at = end + w->after.delay[k];
        c->ready[y] = at > c->ready[y] ? at : c->ready[y];
        if (--c->waits[y] == 0 && there != r && is_next(w, c, s, there) &&
            s->work[c->at[there]] == y)
          c->queue[n_queue++] = there;
      }
    }
  }
  s->makespan = n_done == w->n ? makespan : INFINITY;
}

/* ---- sequences by the clock ---- */

static double start_of(const opi_works_clock *c, uint32_t rank, uint32_t x) {
  return c->ready[x] > c->free_at[rank] ? c->ready[x] : c->free_at[rank];
}

/* The next compute of a stream if it may start, else OPIPE_NONE. */
static uint32_t head_of(const opi_works *w, const opi_works_clock *c, uint32_t rank,
                        uint32_t stream) {
  if (c->at[stream] == w->stream_first[stream + 1])
    return OPIPE_NONE;
  const uint32_t x = w->stream_work[c->at[stream]];
  const bool fits = w->takes[x] <= 0 || w->takes[x] <= w->cap[rank] - c->held[rank];
  return c->waits[x] == 0 && fits ? x : OPIPE_NONE;
}

/* Finds when the rank could first start, and first end, something. */
static void look(const opi_works *w, opi_works_clock *c, uint32_t rank) {
  c->least[rank] = c->first[rank] = INFINITY;
  for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
    const uint32_t x = head_of(w, c, rank, s);
    if (x == OPIPE_NONE)
      continue;
    const double start = start_of(c, rank, x), end = start + w->ns[x];
    c->first[rank] = start < c->first[rank] ? start : c->first[rank];
    c->least[rank] = end < c->least[rank] ? end : c->least[rank];
  }
  c->stale[rank] = false;
}

/* The compute with the smallest key among those that could start before the first end. */
static uint32_t choose(const opi_works *w, const opi_works_clock *c, uint32_t rank,
                       const double *key, double patience) {
  const double until = c->first[rank] + patience * (c->least[rank] - c->first[rank]);
  uint32_t best = OPIPE_NONE;
  for (uint32_t s = w->rank_stream[rank]; s < w->rank_stream[rank + 1]; ++s) {
    const uint32_t x = head_of(w, c, rank, s);
    if (x == OPIPE_NONE)
      continue;
    const double start = start_of(c, rank, x);
    if ((start < until || start <= c->first[rank]) && (best == OPIPE_NONE || key[x] < key[best]))
      best = x;
  }
  return best;
}

static void put(const opi_works *w, opi_works_clock *c, uint32_t x, opi_works_order *out) {
  const uint32_t rank = w->rank[x];
  out->work[c->filled[rank]++] = x;
  out->start[x] = start_of(c, rank, x);
  out->end[x] = c->free_at[rank] = out->start[x] + w->ns[x];
  c->held[rank] += w->takes[x];
  c->stale[rank] = true;
  ++c->at[w->stream[x]];
  for (uint32_t k = w->after.first[x]; k < w->after.first[x + 1]; ++k) {
    const uint32_t y = w->after.other[k];
    const double at = out->end[x] + w->after.delay[k];
    c->ready[y] = at > c->ready[y] ? at : c->ready[y];
    if (--c->waits[y] == 0)
      c->stale[w->rank[y]] = true;
  }
}

bool opi_works_clock_order(const opi_works *w, opi_works_clock *c, const double *key,
                           double patience, opi_works_order *out) {
  begin(w, c);
  memcpy(c->at, w->stream_first, w->n_streams * sizeof *c->at);
  out->makespan = 0;
  for (uint32_t i = 0; i < w->n; ++i) {
    uint32_t rank = 0;
    for (uint32_t r = 0; r < w->n_ranks; ++r) {
      if (c->stale[r])
        look(w, c, r);
      rank = c->least[r] < c->least[rank] ? r : rank;
    }
    const uint32_t x = isfinite(c->least[rank]) ? choose(w, c, rank, key, patience) : OPIPE_NONE;
    if (x == OPIPE_NONE) {
      out->makespan = INFINITY;
      return false;
    }
    put(w, c, x, out);
    out->makespan = out->end[x] > out->makespan ? out->end[x] : out->makespan;
  }
  return true;
}
