/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a model's graph into layers, for planners that know nothing of graphs. */
#ifndef OPI_LAYERS_OF_GRAPH_H
#define OPI_LAYERS_OF_GRAPH_H

#include "partition/plan/env.h"
#include "partition/study/layers/layers.h"

/* All borrowed. */
typedef struct opi_graph_profile {
  const opi_plan_env *env;       /* with `bound` set */
  const opi_train_spec *spec;    /* NULL: forward only */
  const char *name;              /* of the profile */
  const char *batch_dim;         /* as in opipe_plan_params; NULL: chosen */
  const uint32_t *samples;       /* [n_samples] per micro-batch, rising; none: as bound */
  uint32_t n_samples;            /* more than one: some dimension is the batch */
  const opi_device_spec *device; /* opened unless described */
  const opi_device_facts *facts;
  bool may_be_whole; /* if the batch cannot be split, profile it as bound and let the layers say why
                      */
  uint32_t cost;     /* OPI_COST_RATES; OPI_COST_MEASURED: every node alone, best of 3 */
  bool every_node;   /* one layer per node; otherwise as opi_layers_split decides */
} opi_graph_profile;

/* Layers are named after their last node (opi_node_key), so that a cut between them can be found in
 * the graph again. A layer's stashes, messages and parameters are those of a stage of its own.
 * Tensor parallelism divides attention and products with parameters; the layer of an attention sums
 * its outputs twice (Shoeybi et al. 2019). Errors: those of binding, differentiating and measuring;
 * INVALID, numbers of samples that the batch cannot have (unless may_be_whole); UNSUPPORTED, a
 * graph whose nodes depend on them. */
opipe_status opi_layers_of_graph(const opi_graph_profile *profile, opi_layers **out_layers,
                                 opipe_error *err);

#endif /* OPI_LAYERS_OF_GRAPH_H */
