/* SPDX-License-Identifier: Apache-2.0 */
/* A profile of layers, for people. */
#ifndef OPI_LAYERS_DESCRIBE_H
#define OPI_LAYERS_DESCRIBE_H

#include "partition/study/layers/layers.h"

/* A table for every number of samples, with sums. */
void opi_layers_describe(const opi_layers *layers, opi_text *text);

#endif /* OPI_LAYERS_DESCRIBE_H */
