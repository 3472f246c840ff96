/* SPDX-License-Identifier: Apache-2.0 */
/* All orders of small pipelines with several stages on each of two ranks, tried one by one, without
 * anything of the library's. Forwards and backwards, whole or in halves, of M micro-batches; a rank
 * holds what a forward has taken until the end of its (weight) backward.
 */
#ifndef TESTS_PLACED_H
#define TESTS_PLACED_H

#include <math.h>

#include "partition/study/improve/improve.h"
#include "tests/partition/schedule/orders.h"

enum { PLACED_STAGES = 6, PLACED_MICROBATCHES = 3, PLACED_WORKS = 12, PLACED_WORDS = 1 << 12 };

typedef struct placed {
  uint32_t n_stages, n_microbatches;
  uint32_t rank[PLACED_STAGES];
  uint32_t n_kinds;              /* 3: F, I, W; 2: F, B */
  double cost[3][PLACED_STAGES]; /* F, I, W; a whole backward takes I + W */
  uint64_t takes[PLACED_STAGES]; /* bytes of a forward */
  double comm;
  uint64_t cap; /* of each rank */
} placed;

/* A rank's works: stage * n_kinds + kind; the micro-batches of each are in turn. */
typedef struct placed_word {
  uint8_t work[PLACED_WORKS];
} placed_word;

typedef struct placed_words {
  placed_word list[PLACED_WORDS];
  uint32_t n;
} placed_words;

typedef uint8_t placed_counts[PLACED_STAGES][3];

/* Has the rank done before what makes that the next of the stage can come at all? */
static inline bool placed_may(const placed *p, placed_counts done, uint32_t rank, uint32_t stage,
                              uint32_t kind) {
  const uint32_t m = done[stage][kind];
  if (m == p->n_microbatches || (kind > 0 && done[stage][kind - 1] <= m))
    return false;
  for (uint32_t s = 0; s < p->n_stages && kind < 2; ++s) {
    const bool earlier = kind == 0 ? s < stage : s > stage;
    if (earlier && p->rank[s] == rank && done[s][kind] <= m)
      return false;
  }
  return true;
}

/* Adds all words of the rank that begin so. */
static inline void placed_add(placed_words *all, const placed *p, uint32_t rank, placed_word *w,
                              uint32_t n, placed_counts done, uint64_t held) {
  bool any = false;
  for (uint32_t stage = 0; stage < p->n_stages; ++stage) {
    for (uint32_t kind = 0; kind < p->n_kinds && p->rank[stage] == rank; ++kind) {
      any = any || done[stage][kind] < p->n_microbatches;
      if (!placed_may(p, done, rank, stage, kind) || (kind == 0 && held + p->takes[stage] > p->cap))
        continue;
      const uint64_t now = kind == 0                ? held + p->takes[stage]
                           : kind + 1 == p->n_kinds ? held - p->takes[stage]
                                                    : held;
      w->work[n] = (uint8_t)(stage * p->n_kinds + kind);
      ++done[stage][kind];
      placed_add(all, p, rank, w, n + 1, done, now);
      --done[stage][kind];
    }
  }
  if (any)
    return;
  OPI_ASSERT_FATAL(all->n < PLACED_WORDS);
  all->list[all->n++] = *w;
}

typedef struct placed_run {
  double end[PLACED_STAGES][2][PLACED_MICROBATCHES], now[2];
  placed_counts done;
  uint32_t at[2];
} placed_run;

/* The next of a rank, if what it reads is there. */
static inline bool placed_step(const placed *p, const placed_word *own, uint32_t rank,
                               placed_run *r) {
  const uint32_t stage = own->work[r->at[rank]] / p->n_kinds;
  const uint32_t kind = own->work[r->at[rank]] % p->n_kinds, m = r->done[stage][kind];
  const uint32_t other = kind == 0 ? stage - 1 : stage + 1;
  double start = r->now[rank], takes = p->cost[kind][stage];
  if (kind < 2 && other < p->n_stages) {
    if (r->done[other][kind] <= m)
      return false;
    const double comm = p->rank[other] == rank ? 0 : p->comm;
    start = fmax(start, r->end[other][kind][m] + comm);
  }
  takes += kind == 1 && p->n_kinds == 2 ? p->cost[2][stage] : 0;
  r->now[rank] = start + takes;
  if (kind < 2)
    r->end[stage][kind][m] = r->now[rank];
  ++r->done[stage][kind];
  ++r->at[rank];
  return true;
}

/* INFINITY: it deadlocks. */
static inline double placed_time(const placed *p, const placed_word *const word[2],
                                 const uint32_t length[2]) {
  placed_run r = {.now = {0}};
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      while (r.at[rank] < length[rank] && placed_step(p, word[rank], rank, &r))
        moved = true;
    }
  }
  return r.at[0] < length[0] || r.at[1] < length[1] ? INFINITY : fmax(r.now[0], r.now[1]);
}

static inline double placed_orders(const placed *p) {
  static placed_words all[2];
  uint32_t length[2] = {0, 0};
  double best = INFINITY;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    placed_word begun;
    placed_counts done = {{0}};
    all[rank].n = 0;
    placed_add(&all[rank], p, rank, &begun, 0, done, 0);
    for (uint32_t s = 0; s < p->n_stages; ++s)
      length[rank] += p->rank[s] == rank ? p->n_kinds * p->n_microbatches : 0;
  }
  for (uint32_t a = 0; a < all[0].n; ++a) {
    for (uint32_t b = 0; b < all[1].n; ++b) {
      const placed_word *const word[2] = {&all[0].list[a], &all[1].list[b]};
      best = fmin(best, placed_time(p, word, length));
    }
  }
  return best;
}

/* ---- the same problem for the library ---- */

/* From one micro-batch after the other, with or without the cap. */
static inline opi_improved placed_improve(const placed *p, const opi_improve_effort *how,
                                          bool capped) {
  static made m;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = NULL;
  opi_improved found = {.moves = 0};
  uint64_t room[2] = {p->cap, p->cap};
  const opi_improve_effort effort = {
      .moves = how->moves, .no_exact = how->no_exact, .whole = p->n_kinds == 2};
  const opi_costs costs = {.comm = p->comm,
                           .stage_forward = p->cost[0],
                           .stage_input = p->cost[1],
                           .stage_weight = p->cost[2],
                           .n_stages = p->n_stages};
  made_begin(&m, p->n_stages, p->n_microbatches);
  m.problem.n_ranks = 2;
  memcpy(m.place, p->rank, p->n_stages * sizeof *m.place);
  for (uint32_t k = 0; k < p->n_microbatches; ++k) {
    for (uint32_t s = 0; s < p->n_stages; ++s)
      made_add(&m, p->rank[s], s, OPIPE_PASS_FORWARD, k);
    for (uint32_t s = p->n_stages; s-- > 0;)
      made_add(&m, p->rank[s], s, OPIPE_PASS_BACKWARD, k);
  }
  m.problem.stash_bytes = p->takes;
  m.problem.rank_stash_bytes = capped ? room : NULL;
  opi_do_list *start = made_list(&m);
  OPI_ASSERT_OK_FATAL(opi_improve_order(&m.problem, start, &costs, &effort, opi_allocator_system(),
                                        &list, &found, &err),
                      &err);
  opi_do_list_free(start);
  opi_do_list_free(list);
  return found;
}

#endif /* TESTS_PLACED_H */
