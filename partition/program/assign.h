/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's stages in another binding of the same model. */
#ifndef OPI_ASSIGN_H
#define OPI_ASSIGN_H

#include "partition/plan/plan.h"

/* Are two names the same but for a counter at their end ("_12")? */
bool opi_same_stem(const char *a, const char *b);

/* Is it the name of what is computed once more, for a backward? */
bool opi_is_again(const char *name);

/* Stage of every node of `graph` (another binding of the plan's model) by the plan's node keys; a
 * node that the plan does not know takes the largest stage of its producers. */
opipe_status opi_plan_assign(const opi_plan *plan, const opi_graph *graph,
                             const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                             opipe_error *err);

/* A cut behind nodes, by their keys in another binding of the model: ends [n_stages - 1], the last
 * node of every stage but the last, in the graph's order. Errors: INVALID names the key that no
 * node behind the one before has. */
opipe_status opi_cut_behind(const opi_graph *graph, const char *const *ends, uint32_t n_stages,
                            uint32_t *out_stage_of_node, opipe_error *err);

#endif /* OPI_ASSIGN_H */
