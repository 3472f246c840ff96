/* SPDX-License-Identifier: Apache-2.0 */
/* Carries a plan's stages over to another binding of the same model (another shape): nodes are
 * known by the name of their first output. Fusion or folding may differ between shapes, so a node
 * without a key goes where its producers are, at the latest of them.
 */
#include "partition/cut/cutting.h"

const char *opi_node_key(const opi_graph *graph, const opi_node *node) {
  for (uint32_t i = 0; i < node->n_out; ++i) {
    if (node->out[i] != OPIPE_NONE)
      return graph->values[node->out[i]].name;
  }
  return node->name;
}

static uint32_t latest_producer(const opi_graph *graph, const opi_node *node,
                                const uint32_t *stage_of_node) {
  uint32_t stage = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const uint32_t producer = graph->values[node->in[i]].producer;
    if (producer != OPIPE_NONE && stage_of_node[producer] > stage)
      stage = stage_of_node[producer];
  }
  return stage;
}

opipe_status opi_plan_assign(const opi_plan *plan, const opi_graph *graph,
                             const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                             opipe_error *err) {
  opi_map *keys = NULL;
  OPI_TRY(opi_map_create(allocator, &keys, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t n = 0; n < plan->n_nodes && status == OPIPE_OK; ++n) {
    status = opi_map_set(keys, plan->node_keys[n], plan->stage_of_node[n], err);
  }
  for (uint32_t n = 0; n < graph->n_nodes && status == OPIPE_OK; ++n) {
    const uint32_t floor = latest_producer(graph, &graph->nodes[n], out_stage_of_node);
    uint32_t stage = floor;
    if (opi_map_get(keys, opi_node_key(graph, &graph->nodes[n]), &stage) && stage < floor)
      stage = floor;
    out_stage_of_node[n] = stage;
  }
  opi_map_free(keys);
  return status;
}
