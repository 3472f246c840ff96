/* SPDX-License-Identifier: Apache-2.0 */
/* Where the layers of a bound graph end. */
#ifndef OPI_LAYERS_SPLIT_H
#define OPI_LAYERS_SPLIT_H

#include "loader/graph/graph.h"

/* Layers are runs of the graph's nodes in their order. Nodes that repeat (same operators, same
 * shapes) are blocks, each of which is one layer, and ends where the least bytes cross; what stands
 * before, between and behind is looked through in the same way, and where nothing repeats it is cut
 * at narrow places into parts with at least a 64th of all work. What the graph is for decides
 * nothing: numbers of rows do not move layers, as long as the nodes are the same.
 * out_layer_of_node [n_nodes], in `arena`. Costs O(nodes x period) with periods of at most 4096
 * nodes. Errors: NOMEM. */
opipe_status opi_layers_split(const opi_graph *graph, opi_arena *arena,
                              uint32_t **out_layer_of_node, uint32_t *out_n_layers,
                              opipe_error *err);

#endif /* OPI_LAYERS_SPLIT_H */
