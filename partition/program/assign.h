/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's stages in another binding of the same model. */
#ifndef OPI_ASSIGN_H
#define OPI_ASSIGN_H

#include "partition/plan/plan.h"

/* Whether two names are equal but for a counter at their end ("_12"). */
bool opi_same_stem(const char *a, const char *b);

/* Whether the name is of a value recomputed for a backward. */
bool opi_is_again(const char *name);

/* Stage of every node of `graph` (another binding of the plan's model) by the plan's node keys; a
 * node without a key in the plan takes the largest stage of its producers. */
opipe_status opi_plan_assign(const opi_decision *plan, const opi_graph *graph,
                             const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                             opipe_error *err);

/* A cut after nodes, given by their keys in another binding of the model: ends [n_stages - 1], the
 * last node of every stage but the last, in the graph's order. Errors: INVALID, the key that no
 * node after the previous end has. */
opipe_status opi_cut_behind(const opi_graph *graph, const char *const *ends, uint32_t n_stages,
                            uint32_t *out_stage_of_node, opipe_error *err);

#endif /* OPI_ASSIGN_H */
