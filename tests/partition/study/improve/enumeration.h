/* SPDX-License-Identifier: Apache-2.0 */
/* All orders of small pipelines, tried one by one, without anything of the search. Stage s on rank
 * s, forwards, input and weight backwards of M micro-batches; a rank holds a stash from F to W.
 */
#ifndef TESTS_ENUMERATION_H
#define TESTS_ENUMERATION_H

#include <math.h>

#include "partition/study/improve/improve.h"
#include "tests/partition/schedule/orders.h"

enum { ALL_STAGES = 3, ALL_WORKS = 12, ALL_WORDS = 1 << 11 };

typedef struct small {
  uint32_t n_stages, n_microbatches;
  double cost[3][ALL_STAGES]; /* F, I, W */
  double comm;
  uint32_t cap; /* stashes of a rank */
} small;

/* A rank's works: 3 * micro-batch + phase. */
typedef struct word {
  uint8_t work[ALL_WORKS];
} word;

typedef struct words {
  word list[ALL_WORDS];
  uint32_t n;
} words;

/* Adds all words that begin so. in_turn: micro-batches by number in each phase. */
static inline void words_add(words *all, const small *p, word *w, uint32_t n, bool in_turn) {
  uint32_t done[3] = {0, 0, 0}, held = 0; /* micro-batches as bits */
  for (uint32_t i = 0; i < n; ++i) {
    done[w->work[i] % 3] |= 1u << w->work[i] / 3;
    held += w->work[i] % 3 == 0 ? 1u : w->work[i] % 3 == 2 ? UINT32_MAX : 0u;
  }
  if (n == 3 * p->n_microbatches) {
    OPI_ASSERT_FATAL(all->n < ALL_WORDS);
    all->list[all->n++] = *w;
    return;
  }
  for (uint32_t phase = 0; phase < 3; ++phase) {
    bool first = true;
    for (uint32_t m = 0; m < p->n_microbatches && (first || !in_turn); ++m) {
      const bool open = (done[phase] & 1u << m) == 0;
      first = first && !open;
      if (!open || (phase > 0 && (done[phase - 1] & 1u << m) == 0) ||
          (phase == 0 && held == p->cap))
        continue;
      w->work[n] = (uint8_t)(3 * m + phase);
      words_add(all, p, w, n + 1, in_turn);
    }
  }
}

typedef struct running {
  double end[ALL_STAGES][ALL_WORKS], now[ALL_STAGES];
  uint32_t at[ALL_STAGES];
} running;

/* The next of a stage, if what it reads is there. */
static inline bool all_step(const small *p, const word *own, uint32_t s, running *r) {
  const uint32_t x = own->work[r->at[s]], phase = x % 3, other = phase == 0 ? s - 1 : s + 1;
  double start = r->now[s];
  if (phase < 2 && other < p->n_stages) {
    if (r->end[other][x] < 0)
      return false;
    start = fmax(start, r->end[other][x] + p->comm);
  }
  r->now[s] = r->end[s][x] = start + p->cost[phase][s];
  ++r->at[s];
  return true;
}

/* INFINITY: it deadlocks. */
static inline double all_time(const small *p, const word *const rank[ALL_STAGES]) {
  const uint32_t n = 3 * p->n_microbatches;
  running r = {.now = {0}};
  double last = 0;
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    for (uint32_t i = 0; i < n; ++i)
      r.end[s][i] = -1;
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t s = 0; s < p->n_stages; ++s) {
      while (r.at[s] < n && all_step(p, rank[s], s, &r))
        moved = true;
    }
  }
  for (uint32_t s = 0; s < p->n_stages; ++s)
    last = r.at[s] < n ? INFINITY : fmax(last, r.now[s]);
  return last;
}

static inline double all_orders(const small *p, bool in_turn) {
  static words all;
  word begun;
  const word *rank[ALL_STAGES] = {NULL};
  double best = INFINITY;
  all.n = 0;
  words_add(&all, p, &begun, 0, in_turn);
  const uint32_t second = p->n_stages > 1 ? all.n : 1, third = p->n_stages > 2 ? all.n : 1;
  for (uint32_t a = 0; a < all.n; ++a) {
    for (uint32_t b = 0; b < second; ++b) {
      for (uint32_t c = 0; c < third; ++c) {
        rank[0] = &all.list[a];
        rank[1] = &all.list[b];
        rank[2] = &all.list[c];
        best = fmin(best, all_time(p, rank));
      }
    }
  }
  return best;
}

/* ---- the same problem for the library ---- */

static inline uint64_t small_draw(uint64_t *io_seed) {
  *io_seed = *io_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *io_seed >> 33;
}

/* Whole numbers, so that sums are exact. */
static inline small small_random(uint64_t seed, uint32_t n_stages, uint32_t n_microbatches) {
  small p = {.n_stages = n_stages, .n_microbatches = n_microbatches};
  for (uint32_t s = 0; s < n_stages; ++s) {
    for (uint32_t phase = 0; phase < 3; ++phase)
      p.cost[phase][s] = (double)(1 + small_draw(&seed) % 7);
  }
  p.comm = (double)(small_draw(&seed) % 4);
  p.cap = 1 + (uint32_t)(small_draw(&seed) % n_microbatches);
  return p;
}

/* From one micro-batch after the other; what is found is timed anew. */
static inline opi_improved small_improve(const small *p, const opi_improve_effort *effort) {
  static made m;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = NULL;
  opi_improved found = {.moves = 0};
  uint64_t room[ALL_STAGES];
  double peak[ALL_STAGES];
  opi_simulation again = {.peak_stash = peak};
  const opi_costs costs = {.comm = p->comm,
                           .stage_forward = p->cost[0],
                           .stage_input = p->cost[1],
                           .stage_weight = p->cost[2],
                           .n_stages = p->n_stages};
  made_begin(&m, p->n_stages, p->n_microbatches);
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    room[s] = p->cap;
    for (uint32_t k = 0; k < p->n_microbatches; ++k) {
      made_add(&m, s, s, OPIPE_PASS_FORWARD, k);
      made_add(&m, s, s, OPIPE_PASS_BACKWARD, k);
    }
  }
  m.problem.rank_stash_bytes = room;
  opi_do_list *start = made_list(&m);
  OPI_ASSERT_OK_FATAL(opi_improve_order(&m.problem, start, &costs, effort, opi_allocator_system(),
                                        &list, &found, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(
      opi_simulate_order(&m.problem, list, &costs, opi_allocator_system(), &again, &err), &err);
  OPI_ASSERT(again.makespan == found.found_ns);
  for (uint32_t s = 0; s < p->n_stages; ++s)
    OPI_ASSERT(peak[s] <= p->cap);
  opi_do_list_free(start);
  opi_do_list_free(list);
  return found;
}

/* Equal to all orders, and said to be. */
static inline void small_compare(uint64_t seed, const small *p, bool in_turn) {
  const opi_improve_effort effort = {.moves = 300, .seed = seed};
  const opi_improved found = small_improve(p, &effort);
  const double best = all_orders(p, in_turn);
  if (found.found_ns != best || !found.exact) {
    OPI_FAIL("seed %llu, %u stages, %u micro-batches, cap %u: found %g%s, the best is %g",
             (unsigned long long)seed, p->n_stages, p->n_microbatches, p->cap, found.found_ns,
             found.exact ? "" : " (not said to be exact)", best);
  }
  OPI_ASSERT(found.bound_ns == best);
}

#endif /* TESTS_ENUMERATION_H */
