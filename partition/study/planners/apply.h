/* SPDX-License-Identifier: Apache-2.0 */
/* A strategy as the parameters of a plan. */
#ifndef OPI_LAYERS_APPLY_H
#define OPI_LAYERS_APPLY_H

#include "partition/study/planners/strategy.h"

/* As in opipe_plan_params. */
typedef struct opi_applied {
  const char *schedule;
  const char *const *ends;        /* [n_stages - 1] the last layer of every stage but the last */
  const uint32_t *stage_replicas; /* [n_stage_replicas] */
  const uint32_t *rank_devices;   /* [n_rank_devices] the cluster's device for every rank; owned by
                                     the strategy; NULL: rank r has device r */
  const char *planner, *stopped;  /* as in opi_plan */
  uint32_t n_stages, n_microbatches, replicas, n_stage_replicas, n_rank_devices;
  uint32_t tensor; /* members of a tensor group; 1: none */
  bool recompute;
  bool sharded;   /* the optimizer's state is, over the copies */
  bool scattered; /* members of tensor groups send parts between stages */
} opi_applied;

/* Records the names of the stages' last layers. Errors: NOMEM. */
opipe_status opi_strategy_name_stages(opi_strategy *strategy, const opi_layers *layers,
                                      opipe_error *err);
/* Replicas that divide micro-batches, for every place of a pipeline: out [n_stages / chunks], or
 * NULL. 1 if the schedule lays a stage out on several of its own ranks (devices hold several
 * stages). Returns the number common to all places; 0: they differ. */
uint32_t opi_strategy_replicas(const opi_strategy *strategy, uint32_t *out);
/* If all stages have the same number of replicas and no devices are assigned to ranks, replicas
 * become copies of the pipeline, with correspondingly more micro-batches if the samples divide.
 * Allocates in `arena` and the strategy. Errors: UNSUPPORTED, anything that no session executes:
 * tensor groups with replicas of single stages or with slices, replicas of
 * stages in copies of a pipeline or of requests, several groups of slices; INVALID, layers without
 * names. */
opipe_status opi_strategy_apply(const opi_strategy *strategy, bool trains, opi_arena *arena,
                                opi_applied *out, opipe_error *err);

#endif /* OPI_LAYERS_APPLY_H */
