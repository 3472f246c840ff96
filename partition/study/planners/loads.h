/* SPDX-License-Identifier: Apache-2.0 */
/* What a strategy's stages cost when they are played. */
#ifndef OPI_LAYERS_LOADS_H
#define OPI_LAYERS_LOADS_H

#include "partition/study/planners/strategy.h"
#include "partition/study/simulate/order_play.h"

/* Of one replica and one tensor rank of every stage, for a micro-batch of the strategy's samples,
 * which the replicas of a stage (as many for all) cut between them. Recomputation is a longer
 * backward of the inputs, before which only what came in is kept. state_bytes: device memory per
 * byte of parameters, all of which an update reads and writes. bandwidth: bytes per second of that
 * memory; 0: not known, updates take no time. out [n_stages]. */
void opi_strategy_loads(const opi_strategy *strategy, const opi_layers *layers, double state_bytes,
                        double bandwidth, opi_stage_load *out);

#endif /* OPI_LAYERS_LOADS_H */
