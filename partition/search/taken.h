/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose backends differ in the nodes that they take: a plan may use them where each has the
 * nodes of its own stages. */
#ifndef OPI_TAKEN_H
#define OPI_TAKEN_H

#include "partition/cost/profile.h"
#include "partition/plan/plan.h"

/* profiles [n_ranks]. UNSUPPORTED: there are nodes that no rank takes, or more that rank 0 does
 * not. */
opipe_status opi_taken_somewhere(const opi_plan *plan, const opi_graph *graph,
                                 opi_profile *const *profiles, opipe_error *err);
/* UNSUPPORTED: a rank does not take all nodes of its stages; the first such rank is named. */
opipe_status opi_taken_by_ranks(const opi_plan *plan, const opi_graph *graph,
                                opi_profile *const *profiles, opipe_error *err);

/* out_nodes [n_nodes]: those of the rank's stages, of any replica. */
void opi_taken_nodes(const opi_plan *plan, uint32_t rank, bool *out_nodes);

#endif /* OPI_TAKEN_H */
