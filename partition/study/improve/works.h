/* SPDX-License-Identifier: Apache-2.0 */
/* A problem prepared for search: every compute is a number, with its time, its bytes and its
 * predecessors. Private to this folder.
 *
 * The computes of one kind on one replica of a stage form a *stream*. Micro-batches are alike, so
 * keeping their order loses nothing, and an order of a rank is an interleaving of its streams.
 */
#ifndef OPI_IMPROVE_WORKS_H
#define OPI_IMPROVE_WORKS_H

#include "partition/study/improve/improve.h"

/* Successors or predecessors, with delays after the end. */
typedef struct opi_links {
  uint32_t *first; /* [n + 1] into the arrays below */
  uint32_t *other;
  double *delay;
} opi_links;

typedef struct opi_works {
  uint32_t n, n_ranks, n_streams;
  const opi_do *items;             /* [n] */
  uint32_t *rank, *stream, *place; /* [n] place: position within its stream */
  double *ns;                      /* [n] */
  int64_t
      *takes; /* [n] bytes kept on its rank: above 0 taken at its start, below 0 freed at its end */
  int64_t *cap;            /* [n_ranks] INT64_MAX: none */
  opi_links before, after; /* messages and the own stage; streams are implied */
  uint32_t *stream_first;  /* [n_streams + 1] into stream_work */
  uint32_t *stream_work;   /* [n] */
  uint32_t *rank_stream;   /* [n_ranks + 1] the streams of a rank are contiguous */
  uint32_t *rank_first;    /* [n_ranks + 1] into sequences */
} opi_works;

/* An order and its times. */
typedef struct opi_works_order {
  uint32_t *work;      /* [n] rank by rank */
  double *start, *end; /* [n] by work */
  double makespan;     /* INFINITY: it deadlocks */
} opi_works_order;

/* Allocates in `arena`. *out_sequence: the list's order. Errors: as opi_improve_order. */
opipe_status opi_works_build(const opi_problem *problem, const opi_do_list *list,
                             const opi_costs *costs, opi_arena *arena, opi_works *out_works,
                             opi_works_order *out_sequence, opipe_error *err);
/* The same problem reversed in time; works keep their numbers. False: out of memory. */
bool opi_works_reverse(const opi_works *works, opi_arena *arena, opi_works *out_works);
bool opi_works_order_make(const opi_works *works, opi_arena *arena, opi_works_order *out);
void opi_works_order_copy(const opi_works *works, const opi_works_order *from, opi_works_order *to);
/* [n_ranks] True if the peak of kept bytes is within every cap; else *out_rank is the first rank
 * over it, *out_most its peak. */
bool opi_works_fits(const opi_works *works, const opi_works_order *sequence, uint32_t *out_rank,
                    int64_t *out_most);

/* ---- clock.c ---- */

/* Scratch for timing and making orders of one problem. */
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
/* Times a sequence: each compute starts as early as possible. */
void opi_works_clock_run(const opi_works *works, opi_works_clock *clock,
                         opi_works_order *io_sequence);
/* Makes a sequence. It repeatedly takes the rank that could end something first and, of the
 * computes that could start there before that end, the one with the smallest key [n]. patience in
 * [0, 1]: 0 considers only those that could start first. False: it gets stuck under the caps. Times
 * are filled in. */
bool opi_works_clock_order(const opi_works *works, opi_works_clock *clock, const double *key,
                           double patience, opi_works_order *out);

/* ---- heads.c ---- */

/* out_head [n]: earliest start of each compute in any order; out_tail [n]: time that follows its
 * end in any order. Errors: LIMIT, no order keeps within the caps. */
opipe_status opi_works_heads(const opi_works *works, opi_arena *arena, double **out_head,
                             opipe_error *err);
opipe_status opi_works_tails(const opi_works *works, opi_arena *arena, double **out_tail,
                             opipe_error *err);

/* ---- search.c, bound.c, exact.c ---- */

/* io_best: in: an order with its times; out: the best found. The search also ends when it reaches
 * `bound`. */
opipe_status opi_works_search(const opi_works *works, const opi_improve_effort *effort,
                              double bound, opi_arena *arena, opi_works_order *io_best,
                              uint64_t *out_moves, opipe_error *err);
/* Errors: as opi_works_heads. */
opipe_status opi_works_bound(const opi_works *works, opi_arena *arena, double *out_ns,
                             opipe_error *err);
enum { OPI_SOLVED_MOST = 40 }; /* most computes of a small problem */
/* Searches all orders of a small problem, keeping at most `states` prefixes. io_best: in: a known
 * order; out: the best. *out_all: the search was complete. */
opipe_status opi_works_solve(const opi_works *works, uint32_t states, opi_arena *arena,
                             opi_works_order *io_best, bool *out_all, opipe_error *err);

#endif /* OPI_IMPROVE_WORKS_H */
