/* SPDX-License-Identifier: Apache-2.0 */
/* Discrete events: when each compute of an order runs, given costs. Ranks work in order; a
 * compute's input from another rank arrives `comm` after it was made; nothing else takes time.
 * Messages in the list are no events of their own. */
#ifndef OPI_EVENTS_H
#define OPI_EVENTS_H

#include "partition/schedule/actions.h"

/* Costs of one stage and one whole micro-batch; slices, parts and shares cost their fraction. */
typedef struct opi_costs {
  double forward, input, weight; /* of every stage, if the arrays are NULL */
  double comm;
  const double *stage_forward, *stage_input, *stage_weight; /* [n_stages] */
  uint32_t n_stages;       /* length of the arrays, if it may differ from the order's stages; 0: it
                              does not */
  const double *edge_comm; /* [edges of the problem] replaces comm; NULL: comm */
} opi_costs;
extern const opi_costs opi_unit_costs; /* 1, 1, 1, no communication */
/* Errors: INVALID, arrays whose length is not the number of stages. */
opipe_status opi_costs_check(const opi_costs *costs, uint32_t n_stages, opipe_error *err);

typedef struct opi_timeline {
  double *start, *end; /* [n_items]; 0 for actions other than computes */
  double makespan;
} opi_timeline;

/* Allocates in `arena`. The list must have passed opi_pass_check. A double-buffered body is timed
 * for one run after its prologue. Errors: INVALID, ranks that wait forever. */
opipe_status opi_timeline_build(const opi_problem *problem, const opi_do_list *list,
                                const opi_costs *costs, opi_arena *arena,
                                opi_timeline *out_timeline, opipe_error *err);

/* Times an unrolled body of n_steps mini-batches; step: as opi_unroll gives it. */
opipe_status opi_timeline_unrolled(const opi_problem *problem, const opi_do_list *unrolled,
                                   const uint32_t *step, uint32_t n_steps, const opi_costs *costs,
                                   opi_arena *arena, opi_timeline *out_timeline, opipe_error *err);
enum { OPI_BODIES = 8 }; /* bodies of a double-buffered schedule that show its steady state */

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

/* The time of a message along an edge of the problem, or (OPIPE_NONE) within a stage. */
static inline double opi_edge_comm(const opi_costs *costs, uint32_t edge) {
  return costs->edge_comm == NULL || edge == OPIPE_NONE ? costs->comm : costs->edge_comm[edge];
}
/* Tokens of a sequence; 0: the order does not say. */
double opi_order_tokens(const opi_problem *problem);
/* The fraction of its phase of a whole micro-batch that a compute is: slices, parts, shares. */
double opi_compute_share(const opi_problem *problem, double n_tokens, const opi_do *item);
/* The compute's time by the costs, for its fraction of the phase. */
double opi_compute_takes(const opi_problem *problem, const opi_costs *costs, double n_tokens,
                         const opi_do *item);

/* Unrolls a body: its flagged part, the body n_bodies times, the rest of the last mini-batch.
 * out_step [n_items of the result] in `arena`: the mini-batch of every item, from 0. */
opipe_status opi_unroll(const opi_do_list *list, uint32_t n_bodies,
                        const opipe_allocator *allocator, opi_arena *arena, opi_do_list **out_list,
                        uint32_t **out_step, opipe_error *err);

#endif /* OPI_EVENTS_H */
