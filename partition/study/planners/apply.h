/* SPDX-License-Identifier: Apache-2.0 */
/* A strategy as what a plan is made from. */
#ifndef OPI_LAYERS_APPLY_H
#define OPI_LAYERS_APPLY_H

#include "partition/study/planners/strategy.h"

/* As in opipe_plan_params. */
typedef struct opi_applied {
  const char *schedule;
  const char *const *ends;        /* [n_stages - 1] the last layer of every stage but the last */
  const uint32_t *stage_replicas; /* [n_stage_replicas] */
  const uint32_t *rank_devices;  /* [n_rank_devices] the cluster's device of every rank of the plan;
                                    the strategy's; NULL: rank r has device r */
  const char *planner, *stopped; /* as in opi_plan */
  uint32_t n_stages, n_microbatches, replicas, n_stage_replicas, n_rank_devices;
  bool recompute;
} opi_applied;

/* Remembers the names of the stages' last layers. Errors: NOMEM. */
opipe_status opi_strategy_name_stages(opi_strategy *strategy, const opi_layers *layers,
                                      opipe_error *err);
/* Replicas of every place of a pipeline, which cut each micro-batch: out [n_stages / chunks], or
 * NULL. A schedule that lays a stage out on several of its own ranks (devices stand in several
 * stages) has none: 1. Returns how many all have; 0: they differ. */
uint32_t opi_strategy_replicas(const opi_strategy *strategy, uint32_t *out);
/* Where all stages have as many replicas, and nothing says which devices ranks have, replicas
 * become copies of the pipeline, with as many micro-batches more where the samples can be shared
 * out. In `arena` and the strategy. Errors: UNSUPPORTED, what no session executes: tensor groups,
 * sharded optimizers, scattered messages, replicas of stages in copies of a pipeline or of
 * requests, several groups of slices; INVALID, layers without names. */
opipe_status opi_strategy_apply(const opi_strategy *strategy, bool trains, opi_arena *arena,
                                opi_applied *out, opipe_error *err);

#endif /* OPI_LAYERS_APPLY_H */
