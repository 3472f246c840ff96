/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of a forward plan: what an output holds is the input of the same stream's next request, and
 * stays where its stage is. What makes the output and what reads the input is in one stage, so
 * that what is kept never travels; stages behind may read the output too.
 */
#ifndef OPI_STATES_H
#define OPI_STATES_H

#include <opipe/host.h>

#include "partition/plan/plan.h"

/* Copies the pairs that were asked for; names are looked up by opi_states_check. */
opipe_status opi_states_copy(opi_plan *plan, const opipe_plan_params *params, opipe_error *err);
/* Can they be pairs of this model? Fills what follows from it, and capacities that are 0. After the
 * plan's layout. Errors: NOTFOUND (no such output, input), INVALID (types, shapes, one named
 * twice), UNSUPPORTED (micro-batches, slices, training, what no node makes or reads). */
opipe_status opi_states_check(opi_plan *plan, const opi_graph *file, const opi_graph *bound,
                              opipe_error *err);
/* For the search of a cut: stays [n_nodes], nodes that are not moved alone; closed [n_nodes + 1],
 * positions in the order of nodes at which no cut may stand. Pairs that one node of the file makes
 * or reads stay together: other shapes may need them in one stage. */
opipe_status opi_states_tie(const opi_plan *plan, const opi_graph *file, const opi_graph *bound,
                            bool *out_stays, bool *out_closed, opipe_error *err);
/* Finds the stage of every pair by plan->stage_of_node. Errors: INVALID, it would need two: both
 * are named, with the nodes. */
opipe_status opi_states_place(opi_plan *plan, const opi_graph *bound, opipe_error *err);
/* In another binding of the model, whose nodes the plan's keys have put into stages: moves what
 * makes or reads a pair into the stage that keeps it, and with it what that is made of. Errors:
 * UNSUPPORTED names the pair that no stage can keep in this shape, and why. */
opipe_status opi_states_hold(const opi_plan *plan, const opi_graph *bound,
                             uint32_t *io_stage_of_node, opipe_error *err);

/* Copies of the pipeline that take requests in turn; a stream stays on one of them. */
uint32_t opi_states_homes(const opi_plan *plan);
/* The rank that holds pair `index` of a stream whose home is copy `home`; once actions are known.
 */
uint32_t opi_state_rank(const opi_plan *plan, uint32_t index, uint32_t home);
/* Bytes of `n_elems` elements of the pair, rounded up to the alignment: of one of the two buffers.
 * False: beyond 2^56. */
bool opi_state_bytes(const opi_state_pair *pair, uint64_t n_elems, uint32_t alignment,
                     uint64_t *out_bytes);
/* What one stream with the plan's capacities takes of a rank, and which copy has it. */
uint64_t opi_stream_bytes(const opi_plan *plan, uint32_t rank, uint32_t alignment,
                          uint32_t *out_home);
/* Of n streams, those whose home is copy `home`: they are given out in turn. */
static inline uint32_t opi_streams_at(const opi_plan *plan, uint32_t n, uint32_t home) {
  const uint32_t n_homes = opi_states_homes(plan);
  return n / n_homes + (home < n % n_homes ? 1 : 0);
}

#endif /* OPI_STATES_H */
