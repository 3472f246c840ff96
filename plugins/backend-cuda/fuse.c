/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are added straight into their accumulator.
 *
 *   product, column sum, GatherGrad, norm's GradScale -> views, widening casts -> Accumulate
 *
 * becomes the producer alone, which adds in fp32: no gradient of a weight lies in the arena, and
 * none is rounded to a half type on its way. Only temporaries with one reader disappear.
 */
#include "ops/rule.h"

static const uint32_t NEVER = UINT32_MAX, SEVERAL = UINT32_MAX - 1; /* in program->matched.reader */

enum change { LOOK, TAKE, GIVE }; /* treatment of the nodes on the way */

static void find_readers(opipe_program *program) {
  const opipe_graph *graph = program->graph;
  for (uint32_t v = 0; v < graph->n_values; ++v)
    program->matched.reader[v] = NEVER;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    for (uint32_t k = 0; k < graph->nodes[i].n_in; ++k) {
      const uint32_t v = graph->nodes[i].in[k];
      if (v != OPIPE_NONE)
        program->matched.reader[v] = program->matched.reader[v] == NEVER ? i : SEVERAL;
    }
  }
}

/* The same elements under another shape, or wider. */
static bool passes_on(const opipe_graph *graph, const opipe_node *node) {
  if (node->n_in < 1 || node->in[0] == OPIPE_NONE || node->n_out != 1 || node->out[0] == OPIPE_NONE)
    return false;
  const opipe_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  if (cuda_elems(x) != cuda_elems(y))
    return false;
  return cuda_named(node, "", "Reshape") || cuda_named(node, "", "Identity")
             ? x->dtype == y->dtype
             : cuda_named(node, "", "Cast") && y->dtype == OPIPE_FLOAT && cuda_is_half(x->dtype);
}

/* The accumulator that a temporary goes to and nowhere else; OPIPE_NONE: none. TAKE: the nodes
 * between them vanish. */
static uint32_t goal_of(const opipe_program *program, uint32_t value, enum change change) {
  const opipe_graph *graph = program->graph;
  const opipe_value *made = &graph->values[value];
  while (value != OPIPE_NONE && graph->values[value].role == OPIPE_VALUE_TEMP &&
         program->matched.reader[value] < graph->n_nodes) {
    const uint32_t i = program->matched.reader[value];
    const opipe_node *node = &graph->nodes[i];
    const bool ends = cuda_is_accumulate(node) && node->n_in == 1 && node->n_out == 1 &&
                      node->out[0] != OPIPE_NONE &&
                      graph->values[node->out[0]].role == OPIPE_VALUE_GRADIENT &&
                      cuda_elems(&graph->values[node->out[0]]) == cuda_elems(made);
    if (!ends && !passes_on(graph, node))
      return OPIPE_NONE;
    if (change != LOOK)
      program->matched.taken[i] = change == TAKE;
    if (ends)
      return node->out[0];
    value = node->out[0];
  }
  return OPIPE_NONE;
}

static bool is_summed(const opipe_graph *graph, uint32_t value) {
  const uint32_t dtype = value != OPIPE_NONE ? graph->values[value].dtype : OPIPE_DOUBLE;
  return dtype == OPIPE_FLOAT || cuda_is_half(dtype);
}

/* ReduceSum over the leading axes: sums of columns. */
static bool sums_columns(const opipe_graph *graph, const opipe_node *node) {
  if (!cuda_named(node, "", "ReduceSum") || node->n_in != 2 || node->in[1] == OPIPE_NONE)
    return false;
  const opipe_value *x = &graph->values[node->in[0]], *axes = &graph->values[node->in[1]];
  const uint64_t n = cuda_elems(axes);
  if (axes->role != OPIPE_VALUE_CONSTANT || axes->dtype != OPIPE_INT64 || n == 0 || n >= x->rank)
    return false;
  for (uint64_t i = 0; i < n; ++i) {
    if (((const int64_t *)axes->data)[i] != (int64_t)i)
      return false;
  }
  return true;
}

/* Can the node's rule add what it makes? */
static bool can_add(const opipe_graph *graph, const opipe_node *node) {
  if (node->n_in < 2 || !is_summed(graph, node->in[0]) || node->n_out < 1)
    return false;
  const bool norm = cuda_named(node, "opipe", "LayerNormalizationGradScale") ||
                    cuda_named(node, "opipe", "RMSNormalizationGradScale");
  const bool product =
      cuda_named(node, "", "MatMul") || cuda_named(node, "com.microsoft", "FusedMatMul") ||
      (cuda_named(node, "", "Gemm") && (node->n_in < 3 || node->in[2] == OPIPE_NONE));
  return product || norm || cuda_named(node, "opipe", "GatherGrad") || sums_columns(graph, node);
}

/* All outputs of a node, or none: a kernel adds both or writes both, and both at a time, so not to
 * one accumulator. */
static void redirect(const opipe_program *program, const opipe_node *node) {
  const opipe_value *values = program->graph->values;
  uint32_t slot = OPIPE_NONE; /* of the output before */
  bool all = true, any = false;
  for (uint32_t i = 0; i < node->n_out; ++i) {
    const uint32_t out = node->out[i];
    const uint32_t goal = out != OPIPE_NONE ? goal_of(program, out, LOOK) : OPIPE_NONE;
    any = any || out != OPIPE_NONE;
    all = all && (out == OPIPE_NONE || (goal != OPIPE_NONE && values[goal].slot != slot));
    slot = goal != OPIPE_NONE ? values[goal].slot : slot;
  }
  for (uint32_t i = 0; all && any && i < node->n_out; ++i) {
    if (node->out[i] != OPIPE_NONE)
      program->matched.adds_to[node->out[i]] = goal_of(program, node->out[i], TAKE);
  }
}

opipe_status cuda_match(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  program->matched.reader = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  program->matched.adds_to = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  program->matched.taken = CUDA_POOL_ARRAY(&program->pool, bool, graph->n_nodes);
  if (program->matched.reader == NULL || program->matched.adds_to == NULL ||
      program->matched.taken == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    program->matched.adds_to[v] = OPIPE_NONE;
  if ((program->flags & OPIPE_COMPILE_NO_FUSE) != 0)
    return OPIPE_OK;
  find_readers(program);
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    if (can_add(graph, &graph->nodes[i]))
      redirect(program, &graph->nodes[i]);
  }
  CUDA_TRY(cuda_match_rounded(program, err));
  CUDA_TRY(cuda_match_past(program, err));
  CUDA_TRY(cuda_match_parts(program, err));
  CUDA_TRY(cuda_match_losses(program, err));
  CUDA_TRY(cuda_match_pitches(program, err));
  CUDA_TRY(cuda_match_tails(program, err));
  CUDA_TRY(cuda_match_sums(program, err));
  CUDA_TRY(cuda_match_norms(program, err));
  return cuda_match_rows(program, err);
}

void cuda_unmatch(opipe_program *program, const opipe_node *node) {
  for (uint32_t i = 0; i < node->n_out; ++i) {
    if (node->out[i] == OPIPE_NONE || program->matched.adds_to[node->out[i]] == OPIPE_NONE)
      continue;
    (void)goal_of(program, node->out[i], GIVE);
    program->matched.adds_to[node->out[i]] = OPIPE_NONE;
  }
}
