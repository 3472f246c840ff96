/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose backends support different nodes. A plan may combine them if each supports the nodes
 * of its own stages. */
#ifndef OPI_TAKEN_H
#define OPI_TAKEN_H

#include "partition/cost/profile.h"
#include "partition/plan/plan.h"

/* profiles [n_ranks]. Errors: UNSUPPORTED, no rank supports some node; lists all nodes that rank 0
 * refuses. */
opipe_status opi_taken_somewhere(const opi_decision *plan, const opi_graph *graph,
                                 opi_profile *const *profiles, opipe_error *err);
/* Errors: UNSUPPORTED, names the first rank that does not support all nodes of its stages. */
opipe_status opi_taken_by_ranks(const opi_decision *plan, const opi_graph *graph,
                                opi_profile *const *profiles, opipe_error *err);

/* out_nodes [n_nodes]: true for nodes of the rank's stages, of any replica. */
void opi_taken_nodes(const opi_decision *plan, uint32_t rank, bool *out_nodes);

#endif /* OPI_TAKEN_H */
