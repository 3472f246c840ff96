/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of fp32 that a training program reads rounded: the Cast is no step. The set keeps a
 * rounded copy beside the master, made anew when that changes (train.c), not in every run.
 *
 *   PARAMETER (fp32) -> Cast to a half type -> ...      the copy -> ...
 */
#include "ops/rule.h"

static uint32_t key_of(uint32_t dtype) {
  return dtype == OPIPE_BFLOAT16 ? CUDA_LAYOUT_BF16 : dtype == OPIPE_FLOAT16 ? CUDA_LAYOUT_F16 : 0u;
}

static bool is_rounding(const opipe_graph *graph, const opipe_node *node) {
  if (!cuda_named(node, "", "Cast") || node->n_in != 1 || node->n_out != 1 ||
      node->in[0] == OPIPE_NONE || node->out[0] == OPIPE_NONE)
    return false;
  const opipe_value *from = &graph->values[node->in[0]], *to = &graph->values[node->out[0]];
  return from->role == OPIPE_VALUE_PARAMETER && from->dtype == OPIPE_FLOAT &&
         to->role == OPIPE_VALUE_TEMP && key_of(to->dtype) != 0 && cuda_same_shape(from, to) &&
         cuda_elems(from) > 0;
}

opipe_status cuda_match_rounded(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  if ((program->flags & OPIPE_COMPILE_OWNED) == 0 || !program->device->half_copies)
    return OPIPE_OK;
  program->matched.rounded = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  if (program->matched.rounded == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    program->matched.rounded[v] = OPIPE_NONE;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    if (program->matched.taken[i] || !is_rounding(graph, &graph->nodes[i]))
      continue;
    const uint32_t made = graph->nodes[i].out[0], param = graph->nodes[i].in[0];
    cuda_storage *storage = &program->storages[made];
    program->matched.rounded[made] = param;
    program->matched.taken[i] = true;
    storage->kind = CUDA_PLACE_PARAM; /* no output lies there */
    storage->slot = graph->values[param].slot;
    storage->key = key_of(graph->values[made].dtype);
  }
  return OPIPE_OK;
}
