/* SPDX-License-Identifier: Apache-2.0 */
/* Where to cut: exact dynamic programming over contiguous cuts of the node order under memory caps,
 * then refinement across them. */
#ifndef OPI_DP_H
#define OPI_DP_H

#include "partition/cost/profile.h"

typedef struct opi_cut_problem {
  const opi_graph *graph;
  const opi_profile *const *profiles; /* [n_stages] of the device each stage runs on (may repeat) */
  const uint64_t *caps_bytes;         /* [n_stages] memory a stage may take; UINT64_MAX: no cap */
  const bool *closed; /* [n_nodes + 1] positions where no cut may stand; NULL: none is */
  const bool *stays;  /* [n_nodes] nodes that refinement leaves where they are; NULL: none */
  uint32_t n_stages;
  uint32_t depth;          /* slots of a boundary tensor */
  double link_ns_per_byte; /* of the transport: a stage is held to receive as long as that takes */
} opi_cut_problem;

/* Minimises the largest stage time (compute, plus receiving what crosses), ties by the bytes that
 * cross; stage of every node in out_stage_of_node [n_nodes]. Stages may be empty only when there
 * are fewer nodes than stages. OPIPE_E_LIMIT: no contiguous cut fits the caps: says which stage
 * misses by how much in the cut that overflows least. Bottleneck partition of a chain by dynamic
 * programming: O(stages * positions^2); of more than 1,200 positions (fewer in graphs of more than
 * 16,000 nodes) those with the smallest live set of each run of nodes are kept. */
opipe_status opi_cut_dp(const opi_cut_problem *problem, const opipe_allocator *allocator,
                        uint32_t *out_stage_of_node, opipe_error *err);

/* Moves single nodes over a neighbouring boundary as long as that lowers the largest stage time
 * (then the sum of squares), keeping every edge forward and a node in every stage that has one:
 * cuts that are not contiguous in the node order. Memory is left to the caller's exact check.
 * Returns the number of moves. */
opipe_status opi_cut_refine(const opi_cut_problem *problem, const opipe_allocator *allocator,
                            uint32_t *io_stage_of_node, uint32_t *out_moves, opipe_error *err);

/* Time of each stage of a cut by the profiles: compute plus receiving. out_ns [n_stages]. */
opipe_status opi_cut_times(const opi_cut_problem *problem, const uint32_t *stage_of_node,
                           const opipe_allocator *allocator, double *out_ns, opipe_error *err);

/* Positions between nodes (a cut stands before that node) where less crosses than a little before
 * and behind, as between the blocks of a transformer; all positions where that is fewer than
 * n_least. Of more than n_most, so many, evenly. In `arena`. */
opipe_status opi_cut_narrow(const opi_graph *graph, uint32_t n_least, uint32_t n_most,
                            opi_arena *arena, uint32_t **out_positions, uint32_t *out_n,
                            opipe_error *err);

#endif /* OPI_DP_H */
