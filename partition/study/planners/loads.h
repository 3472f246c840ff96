/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of a strategy's stages, for playing it. */
#ifndef OPI_LAYERS_LOADS_H
#define OPI_LAYERS_LOADS_H

#include "partition/study/planners/strategy.h"
#include "partition/study/simulate/order_play.h"

/* Loads per stage for one replica and one tensor rank. They are for one micro-batch of the
 * strategy's samples, which the stage's replicas (equally many for all) divide. Recomputation
 * lengthens the backward for inputs, before which only the stage's inputs are kept. state_bytes:
 * device memory per byte of parameters, all of which an update reads and writes. bandwidth: bytes
 * per second of that memory; 0: unknown, updates take no time. out [n_stages]. */
void opi_strategy_loads(const opi_strategy *strategy, const opi_layers *layers, double state_bytes,
                        double bandwidth, opi_stage_load *out);

#endif /* OPI_LAYERS_LOADS_H */
