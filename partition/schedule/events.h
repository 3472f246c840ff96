/* SPDX-License-Identifier: Apache-2.0 */
/* Discrete events: when does each compute of an order run, given costs? Ranks work in order; what a
 * compute reads from another rank comes `comm` later than it was made; nothing else takes time.
 * Messages in the list are no events of their own.
 */
#ifndef OPI_EVENTS_H
#define OPI_EVENTS_H

#include "partition/schedule/actions.h"

/* Of one stage and one whole micro-batch; slices, parts and shares cost their fraction. */
typedef struct opi_costs {
  double forward, input, weight; /* of every stage, where the arrays are NULL */
  double comm;
  const double *stage_forward, *stage_input, *stage_weight; /* [n_stages] */
  uint32_t n_stages;       /* of the arrays where they may not fit the order; 0: they do */
  const double *edge_comm; /* [edges of the problem] in place of comm; NULL: comm */
} opi_costs;
extern const opi_costs opi_unit_costs; /* 1, 1, 1, no communication */
/* Errors: INVALID, arrays of other lengths than there are stages. */
opipe_status opi_costs_check(const opi_costs *costs, uint32_t n_stages, opipe_error *err);

typedef struct opi_timeline {
  double *start, *end; /* [n_items]; 0 for what is no compute */
  double makespan;
} opi_timeline;

/* In `arena`. The list must have passed opi_pass_check. A double-buffered body is timed as it runs
 * once, behind its prologue. Errors: INVALID, ranks that wait for ever. */
opipe_status opi_timeline_build(const opi_problem *problem, const opi_do_list *list,
                                const opi_costs *costs, opi_arena *arena,
                                opi_timeline *out_timeline, opipe_error *err);

/* Of an unrolled body, n_steps mini-batches; step as opi_unroll gives it. */
opipe_status opi_timeline_unrolled(const opi_problem *problem, const opi_do_list *unrolled,
                                   const uint32_t *step, uint32_t n_steps, const opi_costs *costs,
                                   opi_arena *arena, opi_timeline *out_timeline, opipe_error *err);
enum { OPI_BODIES = 8 }; /* of a double-buffered schedule, to see its steady state */

typedef struct opi_simulation {
  double makespan; /* double-buffered: of one mini-batch in the steady state */
  double span;     /* largest over ranks of last end minus first start; double-buffered: makespan */
  double bubble;   /* 1 - busy / (ranks x makespan) */
  double *peak_stash; /* [n_ranks] caller's memory: stage activations held from the start of F to
                         the end of B or of the last W */
  double *busy;       /* [n_ranks] caller's memory, may be NULL */
} opi_simulation;
opipe_status opi_simulate_order(const opi_problem *problem, const opi_do_list *list,
                                const opi_costs *costs, const opipe_allocator *allocator,
                                opi_simulation *io_result, opipe_error *err);

/* What a message along an edge of the problem, or (OPIPE_NONE) within a stage, takes. */
static inline double opi_edge_comm(const opi_costs *costs, uint32_t edge) {
  return costs->edge_comm == NULL || edge == OPIPE_NONE ? costs->comm : costs->edge_comm[edge];
}
/* Tokens of a sequence; 0: the order does not say. */
double opi_order_tokens(const opi_problem *problem);
/* What part of its phase of a whole micro-batch a compute is: slices, parts, shares. */
double opi_compute_share(const opi_problem *problem, double n_tokens, const opi_do *item);
/* What it takes of that, by the costs. */
double opi_compute_takes(const opi_problem *problem, const opi_costs *costs, double n_tokens,
                         const opi_do *item);

/* A body unrolled: its flagged part, the body n_bodies times, the rest of the last mini-batch.
 * out_step [n_items of the result] in `arena`: the mini-batch of every item, from 0. */
opipe_status opi_unroll(const opi_do_list *list, uint32_t n_bodies,
                        const opipe_allocator *allocator, opi_arena *arena, opi_do_list **out_list,
                        uint32_t **out_step, opipe_error *err);

#endif /* OPI_EVENTS_H */
