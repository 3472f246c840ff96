/* SPDX-License-Identifier: Apache-2.0 */
/* Where the layers of a bound graph end. */
#ifndef OPI_LAYERS_SPLIT_H
#define OPI_LAYERS_SPLIT_H

#include "loader/graph/graph.h"

/* Layers are runs of the graph's nodes in order. Repeated runs of nodes (same operators and shapes)
 * are blocks, one layer each, and end where the least bytes cross. The nodes before, between and
 * after them are searched in the same way; runs without repetition are cut at narrow places into
 * parts with at least a 64th of all work. Only the structure counts: numbers of rows do not move
 * layers as long as the nodes stay the same. out_layer_of_node [n_nodes], in `arena`. O(nodes x
 * period), with periods of at most 4096 nodes. Errors: NOMEM. */
opipe_status opi_layers_split(const opi_graph *graph, opi_arena *arena,
                              uint32_t **out_layer_of_node, uint32_t *out_n_layers,
                              opipe_error *err);

#endif /* OPI_LAYERS_SPLIT_H */
