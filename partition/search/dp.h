/* SPDX-License-Identifier: Apache-2.0 */
/* Where to cut: exact dynamic programming over contiguous cuts of the node order under memory caps,
 * then refinement across them. */
#ifndef OPI_DP_H
#define OPI_DP_H

#include "partition/cost/profile.h"

typedef struct opi_cut_problem {
  const opi_graph *graph;
  const opi_profile *const *profiles; /* [n_stages] profile of each stage's device; may repeat */
  const uint64_t *caps_bytes;         /* [n_stages] UINT64_MAX: no cap */
  const bool *closed; /* [n_nodes + 1] positions where no cut is allowed; NULL: none */
  const bool *stays;  /* [n_nodes] nodes that refinement must not move; NULL: none */
  uint32_t n_stages;
  uint32_t depth;          /* slots per boundary tensor */
  double link_ns_per_byte; /* of the transport; receiving counts as work of the stage */
} opi_cut_problem;

/* Minimises the largest stage time (compute plus receiving), ties by the bytes that cross.
 * out_stage_of_node [n_nodes]. Stages may be empty only if there are fewer nodes than stages.
 * Bottleneck partition of a chain by dynamic programming, O(stages * positions^2); of more than
 * 1,200 positions (fewer in graphs of more than 16,000 nodes) the one with the smallest live set in
 * each run of nodes is kept. Errors: LIMIT, no contiguous cut fits the caps; names the stage and
 * its overflow in the cut that overflows least. */
opipe_status opi_cut_dp(const opi_cut_problem *problem, const opipe_allocator *allocator,
                        uint32_t *out_stage_of_node, opipe_error *err);

/* Moves single nodes across neighbouring boundaries while that lowers the largest stage time, then
 * the sum of squares. Every edge stays forward and no stage loses its last node; the cut need not
 * be contiguous in the node order. Memory is not checked; the caller checks it exactly. *out_moves:
 * number of moves. */
opipe_status opi_cut_refine(const opi_cut_problem *problem, const opipe_allocator *allocator,
                            uint32_t *io_stage_of_node, uint32_t *out_moves, opipe_error *err);

/* Time of each stage of a cut by the profiles: compute plus receiving. out_ns [n_stages]. */
opipe_status opi_cut_times(const opi_cut_problem *problem, const uint32_t *stage_of_node,
                           const opipe_allocator *allocator, double *out_ns, opipe_error *err);

/* Lists narrow positions (a cut stands before that node): those where less crosses than shortly
 * before and after, as between the blocks of a transformer. If there are fewer than n_least, lists
 * all positions; if more than n_most, evenly chosen ones. In `arena`. */
opipe_status opi_cut_narrow(const opi_graph *graph, uint32_t n_least, uint32_t n_most,
                            opi_arena *arena, uint32_t **out_positions, uint32_t *out_n,
                            opipe_error *err);

#endif /* OPI_DP_H */
