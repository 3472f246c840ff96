/* SPDX-License-Identifier: Apache-2.0 */
/* Better orders by search: from an existing order to one that takes less time, with the same stages
 * on the same ranks under the same caps.
 *
 * A pure function of its arguments: moves are counted, not timed. Its result has passed the proof
 * (partition/schedule) and is never slower than the start, by the clock of
 * partition/schedule/events.h.
 */
#ifndef OPI_IMPROVE_H
#define OPI_IMPROVE_H

#include "partition/schedule/order_search.h"

#define OPI_IMPROVE_MOVES 4000 /* preset: number of orders made and timed */

typedef struct opi_improved {
  double start_ns, found_ns; /* makespans in the unit of the costs */
  double bound_ns;           /* no order of these stages on these ranks takes less */
  uint64_t moves;            /* orders made and timed, including the start */
  bool exact;                /* found_ns is the minimum over all orders */
} opi_improved;

/* Finds a better order, as computes alone: F I W (effort->whole: F B), overlapping pairs split.
 * problem: its edges, stash_bytes and rank_stash_bytes count. start: computes alone, whole
 * (opi_pass_check), within the caps. *out_list is the caller's. Errors: UNSUPPORTED,
 * double-buffered weights, recomputation as separate actions, offloaded stashes; INVALID, a start
 * that deadlocks or breaks a cap (with the numbers). */
opipe_status opi_improve_order(const opi_problem *problem, const opi_do_list *start,
                               const opi_costs *costs, const opi_improve_effort *effort,
                               const opipe_allocator *allocator, opi_do_list **out_list,
                               opi_improved *out_result, opipe_error *err);

/* A lower bound on every order of the computes in `list`. Its other actions (messages, sums, steps)
 * count as instantaneous. Errors: UNSUPPORTED, as above; LIMIT, more than OPI_BOUND_MOST computes.
 */
enum { OPI_BOUND_MOST = 1 << 20 };
opipe_status opi_improve_bound(const opi_problem *problem, const opi_do_list *list,
                               const opi_costs *costs, const opipe_allocator *allocator,
                               double *out_ns, opipe_error *err);

#endif /* OPI_IMPROVE_H */
