/* SPDX-License-Identifier: Apache-2.0 */
/* Enumerates all orders of a small problem. Computes are placed by rising start, so that every set
 * of times occurs once. Branches are cut if a bound shows that they are no better, if they leave a
 * gap in which another compute of the rank would fit (with its bytes), or if they have got as far
 * as a prefix that was explored before, and no sooner anywhere. */
#include <math.h>
#include <string.h>

#include "partition/study/improve/works.h"

enum { BUCKETS = 1 << 14, NODES_MOST = 6000000 };

/* The state after a prefix. ready [n]: when the prefix lets a compute start. */
typedef struct stand {
  uint32_t *at, *waits;    /* [n_streams], [n] */
  double *ready, *free_at; /* [n], [n_ranks] */
  int64_t *held;           /* [n_ranks] */
  double start;            /* of the compute placed last, and its rank */
  uint32_t rank;
} stand;

typedef struct seen {
  uint64_t key; /* progress of every stream */
  double start;
  uint32_t rank, next; /* next: entry + 1 */
} seen;

typedef struct solver {
  const opi_works *w;
  const double *tail; /* [n] */
  stand *stands;      /* [n + 1] by number of computes placed */
  uint32_t *chosen;   /* [n] */
  double *left;       /* [n_ranks] work that is left */
  uint32_t *bucket;   /* [BUCKETS] entry + 1 */
  seen *entries;      /* [n_most] */
  double *times;      /* [n_most * n_times] */
  double *scratch;    /* [n_times] */
  uint32_t n_entries, n_most, n_times;
  uint64_t nodes;
  opi_works_clock clock;
  opi_works_order trial;
  opi_works_order *best;
} solver;

/* ---- prefixes seen before ---- */

static uint64_t key_of(const solver *v, const stand *s) {
  uint64_t key = 0;
  for (uint32_t i = 0; i < v->w->n_streams; ++i) {
    const uint32_t first = v->w->stream_first[i], end = v->w->stream_first[i + 1];
    key = key * (end - first + 1) + (s->at[i] - first);
  }
  return key;
}

/* The times that determine everything that follows. */
static void times_of(const solver *v, const stand *s, double *out) {
  const opi_works *w = v->w;
  memcpy(out, s->free_at, w->n_ranks * sizeof *out);
  for (uint32_t x = 0; x < w->n; ++x) {
    const bool done = w->place[x] < s->at[w->stream[x]] - w->stream_first[w->stream[x]];
    out[w->n_ranks + x] = done ? 0 : fmax(s->ready[x], s->free_at[w->rank[x]]);
  }
}

static bool no_later(const double *a, const double *b, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    if (a[i] > b[i])
      return false;
  }
  return true;
}

static bool before(double start_a, uint32_t rank_a, double start_b, uint32_t rank_b) {
  return start_a < start_b || (start_a == start_b && rank_a <= rank_b);
}

/* True if a prefix like it was seen before; otherwise records it. */
static bool was_seen(solver *v, const stand *s) {
  const uint64_t key = key_of(v, s);
  uint32_t *bucket = &v->bucket[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 50];
  times_of(v, s, v->scratch);
  for (uint32_t e = *bucket; e != 0; e = v->entries[e - 1].next) {
    const seen *x = &v->entries[e - 1];
    if (x->key == key && before(x->start, x->rank, s->start, s->rank) &&
        no_later(&v->times[(size_t)(e - 1) * v->n_times], v->scratch, v->n_times))
      return true;
  }
  if (v->n_entries == v->n_most)
    return false;
  v->entries[v->n_entries] = (seen){key, s->start, s->rank, *bucket};
  memcpy(&v->times[(size_t)v->n_entries * v->n_times], v->scratch, v->n_times * sizeof(double));
  *bucket = ++v->n_entries;
  return false;
}

/* ---- from one prefix to the next ---- */

static double start_of(const opi_works *w, const stand *s, uint32_t x) {
  return fmax(s->ready[x], s->free_at[w->rank[x]]);
}

/* OPIPE_NONE: no compute of the stream can be placed. */
static uint32_t head_of(const opi_works *w, const stand *s, uint32_t stream) {
  if (s->at[stream] == w->stream_first[stream + 1])
    return OPIPE_NONE;
  const uint32_t x = w->stream_work[s->at[stream]], rank = w->rank[x];
  const bool fits = w->takes[x] <= 0 || w->takes[x] <= w->cap[rank] - s->held[rank];
  return s->waits[x] == 0 && fits ? x : OPIPE_NONE;
}

static bool leaves_room(const opi_works *w, const stand *s, uint32_t x) {
  const uint32_t rank = w->rank[x];
  for (uint32_t i = w->rank_stream[rank]; i < w->rank_stream[rank + 1]; ++i) {
    const uint32_t other = head_of(w, s, i);
    const bool may =
        other != OPIPE_NONE && other != x && (w->takes[other] <= 0 || w->cap[rank] == INT64_MAX);
    if (may && start_of(w, s, other) + w->ns[other] <= start_of(w, s, x))
      return true;
  }
  return false;
}

static void put(const solver *v, const stand *from, uint32_t x, stand *to) {
  const opi_works *w = v->w;
  const uint32_t rank = w->rank[x];
  memcpy(to->at, from->at, w->n_streams * sizeof *to->at);
  memcpy(to->waits, from->waits, w->n * sizeof *to->waits);
  memcpy(to->ready, from->ready, w->n * sizeof *to->ready);
  memcpy(to->free_at, from->free_at, w->n_ranks * sizeof *to->free_at);
  memcpy(to->held, from->held, w->n_ranks * sizeof *to->held);
  to->start = start_of(w, from, x);
  to->rank = rank;
  to->free_at[rank] = to->start + w->ns[x];
  to->held[rank] += w->takes[x];
  ++to->at[w->stream[x]];
  for (uint32_t k = w->after.first[x]; k < w->after.first[x + 1]; ++k) {
    const uint32_t y = w->after.other[k];
    to->ready[y] = fmax(to->ready[y], to->free_at[rank] + w->after.delay[k]);
    --to->waits[y];
  }
}

/* A lower bound: each rank's remaining work and the tail after its last compute. */
static double least_of(const solver *v, const stand *s) {
  const opi_works *w = v->w;
  double least = 0;
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    double first = INFINITY, tail = INFINITY;
    for (uint32_t i = w->rank_stream[r]; i < w->rank_stream[r + 1]; ++i) {
      if (s->at[i] == w->stream_first[i + 1])
        continue;
      const uint32_t x = w->stream_work[s->at[i]];
      const uint32_t last = w->stream_work[w->stream_first[i + 1] - 1];
      first = fmin(first, start_of(w, s, x));
      tail = fmin(tail, v->tail[last]);
      least = fmax(least, start_of(w, s, x) + w->ns[x] + v->tail[x]);
    }
    if (isfinite(first))
      least = fmax(least, first + v->left[r] + tail);
    least = fmax(least, s->free_at[r]);
  }
  return least;
}

static void finish(solver *v) {
  const opi_works *w = v->w;
  uint32_t *filled = v->clock.filled;
  memcpy(filled, w->rank_first, w->n_ranks * sizeof *filled);
  for (uint32_t i = 0; i < w->n; ++i)
    v->trial.work[filled[w->rank[v->chosen[i]]]++] = v->chosen[i];
  opi_works_clock_run(w, &v->clock, &v->trial);
  if (v->trial.makespan < v->best->makespan)
    opi_works_order_copy(w, &v->trial, v->best);
}

/* Lists the stream heads that may come next, by rising start. Returns their number; out
 * [n_streams]. */
static uint32_t list_next(const solver *v, const stand *s, uint32_t *out) {
  const opi_works *w = v->w;
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->n_streams; ++i) {
    const uint32_t x = head_of(w, s, i);
    if (x == OPIPE_NONE || !before(s->start, s->rank, start_of(w, s, x), w->rank[x]) ||
        leaves_room(w, s, x))
      continue;
    uint32_t at = n++;
    for (; at > 0 && start_of(w, s, out[at - 1]) > start_of(w, s, x); --at)
      out[at] = out[at - 1];
    out[at] = x;
  }
  return n;
}

/* False: the limit of states or nodes was reached. */
static bool look(solver *v, uint32_t n_put) {
  const stand *s = &v->stands[n_put];
  uint32_t next[2 * OPI_SOLVED_MOST];
  if (n_put == v->w->n) {
    finish(v);
    return true;
  }
  if (++v->nodes > NODES_MOST)
    return false;
  if (least_of(v, s) >= v->best->makespan * (1 - 1e-12) || was_seen(v, s))
    return true;
  const uint32_t n = list_next(v, s, next);
  bool more = true;
  for (uint32_t i = 0; more && i < n; ++i) {
    const uint32_t rank = v->w->rank[next[i]];
    v->chosen[n_put] = next[i];
    put(v, s, next[i], &v->stands[n_put + 1]);
    v->left[rank] -= v->w->ns[next[i]];
    more = look(v, n_put + 1);
    v->left[rank] += v->w->ns[next[i]];
  }
  return more;
}

/* ---- all of it ---- */

static bool make_stands(solver *v, opi_arena *arena) {
  const opi_works *w = v->w;
  v->stands = OPI_ARENA_ARRAY(arena, stand, (size_t)w->n + 1);
  for (uint32_t i = 0; v->stands != NULL && i <= w->n; ++i) {
    stand *s = &v->stands[i];
    *s = (stand){.at = OPI_ARENA_ARRAY(arena, uint32_t, w->n_streams),
                 .waits = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
                 .ready = OPI_ARENA_ARRAY(arena, double, w->n),
                 .free_at = OPI_ARENA_ARRAY(arena, double, w->n_ranks),
                 .held = OPI_ARENA_ARRAY(arena, int64_t, w->n_ranks)};
    if (s->at == NULL || s->waits == NULL || s->ready == NULL || s->free_at == NULL ||
        s->held == NULL)
      return false;
  }
  if (v->stands == NULL)
    return false;
  memcpy(v->stands[0].at, w->stream_first, w->n_streams * sizeof(uint32_t));
  for (uint32_t x = 0; x < w->n; ++x) {
    v->stands[0].waits[x] = w->before.first[x + 1] - w->before.first[x];
    v->left[w->rank[x]] += w->ns[x];
  }
  return true;
}

static bool open_solver(solver *v, opi_arena *arena) {
  const opi_works *w = v->w;
  v->n_times = w->n_ranks + w->n;
  v->chosen = OPI_ARENA_ARRAY(arena, uint32_t, w->n);
  v->left = OPI_ARENA_ARRAY(arena, double, w->n_ranks);
  v->bucket = OPI_ARENA_ARRAY(arena, uint32_t, BUCKETS);
  v->entries = OPI_ARENA_ARRAY(arena, seen, v->n_most);
  v->times = OPI_ARENA_ARRAY(arena, double, (size_t)v->n_most * v->n_times);
  v->scratch = OPI_ARENA_ARRAY(arena, double, v->n_times);
  return v->chosen != NULL && v->left != NULL && v->bucket != NULL && v->entries != NULL &&
         v->times != NULL && v->scratch != NULL && opi_works_clock_make(w, arena, &v->clock) &&
         opi_works_order_make(w, arena, &v->trial) && make_stands(v, arena);
}

opipe_status opi_works_solve(const opi_works *w, uint32_t states, opi_arena *arena,
                             opi_works_order *io_best, bool *out_all, opipe_error *err) {
  solver v = {.w = w, .n_most = states, .best = io_best};
  double *tail = NULL;
  *out_all = false;
  if (w->n > OPI_SOLVED_MOST)
    return OPIPE_OK;
  OPI_TRY(opi_works_tails(w, arena, &tail, err));
  v.tail = tail;
  if (!open_solver(&v, arena))
    return opi_fail_nomem(err, (uint64_t)states * w->n * sizeof(double), "all orders");
  *out_all = look(&v, 0);
  return OPIPE_OK;
}
