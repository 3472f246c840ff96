/* SPDX-License-Identifier: Apache-2.0 */
/* A problem made ready for search: every compute a number, with what it takes and what it waits
 * for. Of this folder alone.
 *
 * The computes of one stage's replica and kind are a *stream*: micro-batches are alike, so that it
 * loses nothing to keep their order, and an order of a rank is how its streams are interleaved.
 */
#ifndef OPI_IMPROVE_WORKS_H
#define OPI_IMPROVE_WORKS_H

#include "partition/study/improve/improve.h"

/* Who follows whom, and how long after its end. */
typedef struct opi_links {
  uint32_t *first; /* [n + 1] into the two below */
  uint32_t *other;
  double *delay;
} opi_links;

typedef struct opi_works {
  uint32_t n, n_ranks, n_streams;
  const opi_do *items;             /* [n] */
  uint32_t *rank, *stream, *place; /* [n] place: in its stream */
  double *ns;                      /* [n] */
  int64_t *takes; /* [n] of what its rank keeps: taken when it starts, or (below 0) given at its
                     end */
  int64_t *cap;   /* [n_ranks] INT64_MAX: none */
  opi_links before, after; /* messages and own stage; streams not counted */
  uint32_t *stream_first;  /* [n_streams + 1] into stream_work */
  uint32_t *stream_work;   /* [n] */
  uint32_t *rank_stream;   /* [n_ranks + 1] the streams of a rank lie side by side */
  uint32_t *rank_first;    /* [n_ranks + 1] into sequences */
} opi_works;

/* An order, and when it runs. */
typedef struct opi_works_order {
  uint32_t *work;      /* [n] rank by rank */
  double *start, *end; /* [n] by work */
  double makespan;     /* INFINITY: it does not come to an end */
} opi_works_order;

/* All in `arena`; sequence: that of the list. Errors: as opi_improve_order. */
opipe_status opi_works_build(const opi_problem *problem, const opi_do_list *list,
                             const opi_costs *costs, opi_arena *arena, opi_works *out_works,
                             opi_works_order *out_sequence, opipe_error *err);
/* The same problem backwards in time: works keep their numbers. False: out of memory. */
bool opi_works_reverse(const opi_works *works, opi_arena *arena, opi_works *out_works);
bool opi_works_order_make(const opi_works *works, opi_arena *arena, opi_works_order *out);
void opi_works_order_copy(const opi_works *works, const opi_works_order *from, opi_works_order *to);
/* [n_ranks] The most that is kept at one time stays within every cap? Names the first that does
 * not. */
bool opi_works_fits(const opi_works *works, const opi_works_order *sequence, uint32_t *out_rank,
                    int64_t *out_most);

/* ---- clock.c ---- */

/* Room for timing and making orders of one problem. */
typedef struct opi_works_clock {
  uint32_t *waits, *queue;         /* [n] */
  uint32_t *at;                    /* [max(n_streams, n_ranks)] */
  double *ready;                   /* [n] */
  double *free_at, *least, *first; /* [n_ranks] */
  int64_t *held;                   /* [n_ranks] */
  bool *stale;                     /* [n_ranks] */
  uint32_t *filled;                /* [n_ranks] */
} opi_works_clock;
bool opi_works_clock_make(const opi_works *works, opi_arena *arena, opi_works_clock *out);
/* Times of a sequence: each compute as early as can be. */
void opi_works_clock_run(const opi_works *works, opi_works_clock *clock,
                         opi_works_order *io_sequence);
/* Makes a sequence: always on the rank that could end something first, of what could start before
 * that the one with the smallest key [n]. patience in [0, 1]: 0, only what could start first.
 * False: under the caps it gets stuck. Times are filled. */
bool opi_works_clock_order(const opi_works *works, opi_works_clock *clock, const double *key,
                           double patience, opi_works_order *out);

/* ---- heads.c ---- */

/* [n] Nothing brings a compute here before its head; so much follows the end of each whatever is
 * done. Errors: LIMIT, nothing keeps within the caps. */
opipe_status opi_works_heads(const opi_works *works, opi_arena *arena, double **out_head,
                             opipe_error *err);
opipe_status opi_works_tails(const opi_works *works, opi_arena *arena, double **out_tail,
                             opipe_error *err);

/* ---- search.c, bound.c, exact.c ---- */

/* io_best: an order with its times, and then the best that was found. Ends where it reaches
 * `bound`, too. */
opipe_status opi_works_search(const opi_works *works, const opi_improve_effort *effort,
                              double bound, opi_arena *arena, opi_works_order *io_best,
                              uint64_t *out_moves, opipe_error *err);
/* Errors: as opi_works_heads. */
opipe_status opi_works_bound(const opi_works *works, opi_arena *arena, double *out_ns,
                             opipe_error *err);
enum { OPI_SOLVED_MOST = 40 }; /* computes of a small problem */
/* Looks through all orders of a small problem, with at most `states` beginnings kept; io_best: one
 * that is known, and then the best. *out_all: they were all seen. */
opipe_status opi_works_solve(const opi_works *works, uint32_t states, opi_arena *arena,
                             opi_works_order *io_best, bool *out_all, opipe_error *err);

#endif /* OPI_IMPROVE_WORKS_H */
