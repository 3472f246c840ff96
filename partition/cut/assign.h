/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's stages in another binding of the same model. */
#ifndef OPI_ASSIGN_H
#define OPI_ASSIGN_H

#include "partition/plan.h"

/* A node's key in plans: the name of its first present output. */
const char *opi_node_key(const opi_graph *graph, const opi_node *node);
/* Are two names the same but for a counter at their end ("_12")? */
bool opi_same_stem(const char *a, const char *b);

/* Stage of every node of `graph` (another binding of the plan's model) by the plan's node keys; a
 * node that the plan does not know takes the largest stage of its producers. */
opipe_status opi_plan_assign(const opi_plan *plan, const opi_graph *graph,
                             const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                             opipe_error *err);

#endif /* OPI_ASSIGN_H */
