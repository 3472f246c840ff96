/* SPDX-License-Identifier: Apache-2.0 */
/* Models from a host's tables (opipe/build.h). Private to loader/wire. */
#ifndef OPI_WIRE_BUILD_H
#define OPI_WIRE_BUILD_H

#include <opipe/build.h>

#include "loader/wire/wire.h"

/* Encodes the model as the message of a file; with `out` NULL only measures it. Tensors of the main
 * graph are external, with their index as location; all others contain their data. The tables have
 * been checked. encode.c */
uint64_t opi_build_encode(const opipe_build_params *params, uint8_t *out);

/* Element `index` of a graph's tensors. */
static inline opipe_build_tensor opi_build_tensor_at(const opipe_build_graph *graph,
                                                     uint32_t index) {
  opipe_build_tensor tensor;
  opi_array_get(graph->tensors, graph->tensors_stride, index, &tensor, sizeof tensor);
  return tensor;
}

#endif /* OPI_WIRE_BUILD_H */
