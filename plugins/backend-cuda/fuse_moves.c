/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes may be done elsewhere: what goes straight to an accumulator (fuse.c) is added in the
 * order of the nodes one by one, wherever it is made. */
#include "fuse.h"

uint32_t *cuda_no_nodes(opipe_program *program) {
  uint32_t *list = CUDA_POOL_ARRAY(&program->pool, uint32_t, program->graph->n_nodes);
  for (uint32_t i = 0; list != NULL && i < program->graph->n_nodes; ++i)
    list[i] = OPIPE_NONE;
  return list;
}

const opipe_node *cuda_along(const opipe_program *program, const uint32_t *list,
                             const opipe_node *node) {
  const uint32_t i = list != NULL ? list[node - program->graph->nodes] : OPIPE_NONE;
  return i != OPIPE_NONE ? &program->graph->nodes[i] : NULL;
}

static bool is_view(const opipe_graph *graph, const opipe_node *node) {
  if ((!cuda_named(node, "", "Reshape") && !cuda_named(node, "", "Identity")) || node->n_in < 1 ||
      node->n_out != 1 || node->in[0] == OPIPE_NONE || node->out[0] == OPIPE_NONE)
    return false;
  const opipe_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  return x->dtype == y->dtype && cuda_elems(x) == cuda_elems(y);
}

uint32_t *cuda_find_sources(opipe_program *program) {
  const opipe_graph *graph = program->graph;
  uint32_t *source = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  for (uint32_t v = 0; source != NULL && v < graph->n_values; ++v)
    source[v] = v;
  for (uint32_t i = 0; source != NULL && i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    if (is_view(graph, node))
      source[node->out[0]] = source[node->in[0]];
  }
  return source;
}

bool cuda_adds(const opipe_program *program, uint32_t i) {
  const opipe_node *node = &program->graph->nodes[i];
  return !program->matched.taken[i] && program->matched.hosts[i] == OPIPE_NONE &&
         node->n_out == 1 && node->out[0] != OPIPE_NONE &&
         program->matched.adds_to[node->out[0]] != OPIPE_NONE;
}

/* The parameter to whose gradient a node's output is added; each Accumulate has a value of its own
 * for it. OPIPE_NONE: to none's. */
static uint32_t slot_of(const opipe_program *program, uint32_t value) {
  const opipe_value *values = program->graph->values;
  const bool ends = value != OPIPE_NONE && values[value].role == OPIPE_VALUE_GRADIENT;
  const uint32_t sum = ends || value == OPIPE_NONE ? value : program->matched.adds_to[value];
  return sum != OPIPE_NONE ? values[sum].slot : OPIPE_NONE;
}

/* NULL: no node. */
static bool adds_to_slot(const opipe_program *program, const opipe_node *node, uint32_t slot) {
  bool adds = false;
  for (uint32_t k = 0; node != NULL && k < node->n_out; ++k)
    adds = adds || slot_of(program, node->out[k]) == slot;
  return adds;
}

/* Do the steps that stand at node i add to the gradient, be they its own or of what is done along
 * there? */
static bool adds_there(const opipe_program *program, uint32_t i, uint32_t slot) {
  const opipe_node *nodes = program->graph->nodes;
  const bool is_host = program->matched.hosts[i] != OPIPE_NONE;
  const opipe_node *node = &nodes[is_host ? program->matched.hosts[i] : i];
  const cuda_beside *beside = cuda_beside_of(program, node);
  if (program->matched.taken[i] && !is_host)
    return false;
  return adds_to_slot(program, node, slot) ||
         adds_to_slot(program, beside != NULL ? &nodes[beside->node] : NULL, slot) ||
         adds_to_slot(program, cuda_scale_of(program, node), slot) ||
         adds_to_slot(program, cuda_columns_of(program, node), slot);
}

/* Does node i read what `node` makes, or add to the same accumulator? */
static bool meets(const opipe_program *program, uint32_t i, const opipe_node *node) {
  const opipe_node *other = &program->graph->nodes[i];
  for (uint32_t k = 0; k < node->n_out; ++k) {
    const uint32_t made = node->out[k], slot = slot_of(program, made);
    for (uint32_t j = 0; made != OPIPE_NONE && j < other->n_in; ++j) {
      if (other->in[j] == made && !program->matched.taken[i])
        return true;
    }
    if (slot != OPIPE_NONE && adds_there(program, i, slot))
      return true;
  }
  return false;
}

bool cuda_can_move(const opipe_program *program, uint32_t from, uint32_t to) {
  const uint32_t first = from < to ? from + 1 : to, end = from < to ? to + 1 : from;
  for (uint32_t i = first; i < end; ++i) {
    if (meets(program, i, &program->graph->nodes[from]))
      return false;
  }
  return true;
}
