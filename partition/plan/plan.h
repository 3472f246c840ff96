/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: a value that says which node runs in which stage, which stage on which rank, in which
 * order, and what that costs.
 *
 *   decided    what all ranks must agree on; hashed    plan/decision.h
 *   predicted  its times and bytes                     plan/prediction.h
 *
 * A plan is made by partition/make, read from JSON, or given as cuts. It is proven before anything
 * runs; the runtime only executes it. Facts that only plan making needs, such as device rates and
 * the caps that schedules are told, are in make/making.h. Plans do not depend on weight values: the
 * fingerprint covers graph, names, types and shapes. The same inputs give the same bytes.
 */
#ifndef OPI_PLAN_H
#define OPI_PLAN_H

#include "partition/plan/decision.h"
#include "partition/plan/prediction.h"
#include "partition/plan/step.h"

typedef struct opi_plan {
  opi_arena arena;  /* owns all memory that the two parts point to */
  uint64_t hash[2]; /* XXH3-128 of `decided` as written; ranks compare it */
  opi_decision decided;
  opi_prediction predicted;
  struct opi_row_model *rows; /* a plan of passes: its model, owned; else NULL */
} opi_plan;

opipe_status opi_plan_new(const opipe_allocator *allocator, opi_plan **out_plan, opipe_error *err);
void opi_plan_free(opi_plan *plan); /* accepts NULL */

/* A node's key in plans: the name of its first present output. */
const char *opi_node_key(const opi_graph *graph, const opi_node *node);
/* True if `key` is one of the names in `batch_dim` ("ids.0,mask.0"). */
bool opi_is_batch_dim(const char *batch_dim, const char *key);

/* Model-flops utilisation in the steady state: flops over what the plan's devices could do in
 * interval_ns; 0: unknown. */
static inline double opi_plan_utilisation(const opi_plan *plan) {
  return plan->predicted.peak_flops > 0 && plan->predicted.interval_ns > 0
             ? plan->predicted.flops /
                   (plan->predicted.peak_flops * plan->predicted.interval_ns * 1e-9)
             : 0;
}

/* The model whose graphs the plan's are. */
const opi_model *opi_plan_model(const opi_plan *plan, const opi_model *file);

#endif /* OPI_PLAN_H */
