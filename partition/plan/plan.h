/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: a value that says which node runs in which stage, which stage on which rank, in which
 * order, and what that costs.
 *
 *   decided    what ranks must have in common; hashed       plan/decision.h
 *   predicted  times and bytes of that                       plan/prediction.h
 *
 * A plan is made by partition/make, read from JSON, or given as cuts, and proven before anything
 * runs; the runtime only executes it. What only making a plan needs (facts about devices, caps that
 * a schedule is told) is not part of it: make/making.h. A plan does not depend on weight values:
 * its fingerprint covers graph, names, types and shapes. Same inputs, same bytes.
 */
#ifndef OPI_PLAN_H
#define OPI_PLAN_H

#include "partition/plan/decision.h"
#include "partition/plan/prediction.h"
#include "partition/plan/step.h"

typedef struct opi_plan {
  opi_arena arena;  /* owns all that the two parts lead to */
  uint64_t hash[2]; /* of `decided` as it is written, XXH3-128; ranks compare it */
  opi_decision decided;
  opi_prediction predicted;
} opi_plan;

opipe_status opi_plan_new(const opipe_allocator *allocator, opi_plan **out_plan, opipe_error *err);
void opi_plan_free(opi_plan *plan); /* accepts NULL */

/* A node's key in plans: the name of its first present output. */
const char *opi_node_key(const opi_graph *graph, const opi_node *node);
/* Is `key` one of the names in `batch_dim` ("ids.0,mask.0")? */
bool opi_is_batch_dim(const char *batch_dim, const char *key);

/* Model-flops utilisation in the steady state: flops over what the plan's devices could do in
 * interval_ns. 0: not known. */
static inline double opi_plan_utilisation(const opi_plan *plan) {
  return plan->predicted.peak_flops > 0 && plan->predicted.interval_ns > 0
             ? plan->predicted.flops /
                   (plan->predicted.peak_flops * plan->predicted.interval_ns * 1e-9)
             : 0;
}

#endif /* OPI_PLAN_H */
