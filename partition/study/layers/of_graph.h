/* SPDX-License-Identifier: Apache-2.0 */
/* A model's graph as layers: what planners decide by that know nothing of graphs. */
#ifndef OPI_LAYERS_OF_GRAPH_H
#define OPI_LAYERS_OF_GRAPH_H

#include "partition/plan/env.h"
#include "partition/study/layers/layers.h"

/* All borrowed. */
typedef struct opi_graph_profile {
  const opi_plan_env *env;       /* `bound` is at hand */
  const opi_train_spec *spec;    /* NULL: forwards alone */
  const char *name;              /* of the profile */
  const char *batch_dim;         /* as in opipe_plan_params; NULL: chosen */
  const uint32_t *samples;       /* [n_samples] of a micro-batch, rising; none: as it is bound */
  uint32_t n_samples;            /* more than one: some dimension is the batch */
  const opi_device_spec *device; /* where it runs: opened, unless it is described */
  const opi_device_facts *facts;
  bool may_be_whole; /* where the batch cannot be cut: as it is bound, and the layers say why */
  uint32_t cost;     /* OPI_COST_RATES, OPI_COST_MEASURED: every node alone, best of 3 */
  bool every_node;   /* a layer for each node; else as opi_layers_split says */
} opi_graph_profile;

/* Layers are named after the last of their nodes (opi_node_key), by which a cut between them is
 * found again in the graph. What a layer keeps for its backward, sends and has are the cells and
 * parameters of a stage of its own; tensor parallelism divides attention and products with
 * parameters, with two sums of what an attention's layer hands on (Shoeybi et al. 2019). Errors:
 * those of binding, differentiating and measuring; INVALID, numbers of samples that the batch
 * cannot have, where it may not be whole; UNSUPPORTED, a graph whose nodes change with them. */
opipe_status opi_layers_of_graph(const opi_graph_profile *profile, opi_layers **out_layers,
                                 opipe_error *err);

#endif /* OPI_LAYERS_OF_GRAPH_H */
