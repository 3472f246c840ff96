/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of a forward plan: an output's content is the input of the same stream's next request and
 * stays in its stage. One stage makes the output and reads the input, so kept tensors never travel;
 * later stages may read the output too. */
#ifndef OPI_STATES_H
#define OPI_STATES_H

#include <opipe/host.h>

#include "partition/program/model.h"

/* Copies the requested pairs; opi_states_check looks up their names. */
opipe_status opi_states_copy(opi_plan *plan, const opipe_plan_params *params, opipe_error *err);
/* Checks the pairs against the model and fills in capacities that are 0 and everything that follows
 * from the model. Runs after the plan's layout. Errors: NOTFOUND (no such output or input), INVALID
 * (types, shapes, one named twice), UNSUPPORTED (micro-batches, slices, training, an output without
 * a node or an input without a reader). */
opipe_status opi_states_check(opi_decision *plan, const opi_graph *file, const opi_graph *bound,
                              opipe_error *err);
/* For the search of a cut: stays [n_nodes], nodes that may not move alone; closed [n_nodes + 1],
 * positions in the order of nodes where no cut may stand. Pairs that one node of the file makes or
 * reads stay together: other shapes may need them in one stage. */
opipe_status opi_states_tie(const opi_decision *plan, const opi_graph *file, const opi_graph *bound,
                            bool *out_stays, bool *out_closed, opipe_error *err);
/* Finds the stage of every pair by stage_of_node. Errors: INVALID, it would need two: both are
 * named, with the nodes. */
opipe_status opi_states_place(opi_decision *plan, const opi_graph *bound, opipe_error *err);
/* In another binding of the model, whose nodes have stages by the plan's keys: moves a pair's
 * makers and readers, and the makers of their inputs, into the stage that keeps the pair. Errors:
 * UNSUPPORTED, the pair that no stage can keep in this shape, and why. */
opipe_status opi_states_hold(const opi_decision *plan, const opi_graph *bound,
                             uint32_t *io_stage_of_node, opipe_error *err);

/* Copies of the pipeline that take requests in turn; a stream stays on one of them. */
uint32_t opi_states_homes(const opi_decision *plan);
/* The pairs in a graph of the plan's model, for its division: out [n_states]. */
void opi_states_list(const opi_decision *plan, const opi_graph *bound, opi_shard_pair *out);
/* In tensor groups, once graphs are divided: the members' parts of every pair. Members may hold
 * some heads together, or all hold the whole tensor. */
opipe_status opi_states_divide(const opi_cut_model *model, opi_decision *plan, opi_arena *arena,
                               opipe_error *err);
/* The rank that holds pair `index` of a stream whose home is copy `home`, in tensor groups that of
 * member 0; valid once actions are known. */
uint32_t opi_state_rank(const opi_decision *plan, uint32_t index, uint32_t home);
/* Bytes of one of the two buffers of a member for `n_elems` elements of the whole pair, aligned.
 * False: beyond 2^56. */
bool opi_state_bytes(const opi_state_pair *pair, uint32_t member, uint64_t n_elems,
                     uint32_t alignment, uint64_t *out_bytes);
/* A member's share of n_bytes of the whole pair. */
uint64_t opi_state_share(const opi_state_pair *pair, uint32_t member, uint64_t n_bytes);
/* Bytes that one stream with the plan's capacities holds on a rank, and the copy that has it. */
uint64_t opi_stream_bytes(const opi_decision *plan, uint32_t rank, uint32_t alignment,
                          uint32_t *out_home);
/* The number of n streams whose home is copy `home`: streams go to copies in turn. */
static inline uint32_t opi_streams_at(const opi_decision *plan, uint32_t n, uint32_t home) {
  const uint32_t n_homes = opi_states_homes(plan);
  return n / n_homes + (home < n % n_homes ? 1 : 0);
}

#endif /* OPI_STATES_H */
