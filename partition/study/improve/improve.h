/* SPDX-License-Identifier: Apache-2.0 */
/* Better orders by search: from an order that is there to one that takes less time, in the same
 * stages on the same ranks, under the same caps.
 *
 * A pure function of its arguments: moves are counted, not timed. What it gives has passed the
 * proof (partition/schedule) and is never slower than what it was given, by the clock of
 * partition/schedule/events.h.
 */
#ifndef OPI_IMPROVE_H
#define OPI_IMPROVE_H

#include "partition/schedule/order_search.h"

#define OPI_IMPROVE_MOVES 4000 /* the preset: orders that are made and timed */

typedef struct opi_improved {
  double start_ns, found_ns; /* makespans, in the unit of the costs */
  double bound_ns;           /* no order of these stages on these ranks takes less */
  uint64_t moves;            /* orders that were made and timed, the start among them */
  bool exact;                /* found_ns is the least of all orders */
} opi_improved;

/* A better order, as computes alone: F I W (effort->whole: F B), pairs that overlap taken apart.
 * problem: its edges, stash_bytes and rank_stash_bytes count. start: computes alone, whole
 * (opi_pass_check), within the caps. *out_list is the caller's. Errors: UNSUPPORTED,
 * double-buffered weights, recomputation as actions of its own, offloaded stashes; INVALID, a start
 * that deadlocks or breaks a cap (with the numbers). */
opipe_status opi_improve_order(const opi_problem *problem, const opi_do_list *start,
                               const opi_costs *costs, const opi_improve_effort *effort,
                               const opipe_allocator *allocator, opi_do_list **out_list,
                               opi_improved *out_result, opipe_error *err);

/* What no order of the problem's computes, as `list` has them, takes less than; what else it has
 * (messages, sums, steps) takes no time. Errors: UNSUPPORTED, as above; LIMIT, more than
 * OPI_BOUND_MOST computes. */
enum { OPI_BOUND_MOST = 1 << 20 };
opipe_status opi_improve_bound(const opi_problem *problem, const opi_do_list *list,
                               const opi_costs *costs, const opipe_allocator *allocator,
                               double *out_ns, opipe_error *err);

#endif /* OPI_IMPROVE_H */
