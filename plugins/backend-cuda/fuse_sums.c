/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of biases that products make along:
 *
 *   dW += X^T dY, or dY^T X       the product, which reads all of dY
 *   db += sums of dY's columns    another walk over dY, but for this
 *
 * where both read one dY, as it is or by views, and each goes straight to an accumulator (fuse.c).
 * The library sums dY over k beside the product; a launch over the bias alone adds that. It is done
 * where the product stands, unless another addition to the bias' accumulator lies between. Each
 * pair is tried before it is kept: what the library has no algorithm for stays two walks. Shapes,
 * types and the library alone say what is kept.
 */
#include "ops/rule.h"

typedef struct search {
  opipe_program *program;
  opipe_program probe;
  uint32_t *source; /* [n_values]: the value whose elements it has, by views; itself: its own */
} search;

static bool is_view(const opipe_graph *graph, const opipe_node *node) {
  if ((!cuda_named(node, "", "Reshape") && !cuda_named(node, "", "Identity")) || node->n_in < 1 ||
      node->n_out != 1 || node->in[0] == OPIPE_NONE || node->out[0] == OPIPE_NONE)
    return false;
  const opipe_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  return x->dtype == y->dtype && cuda_elems(x) == cuda_elems(y);
}

static void find_sources(search *s) {
  const opipe_graph *graph = s->program->graph;
  for (uint32_t v = 0; v < graph->n_values; ++v)
    s->source[v] = v;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    if (is_view(graph, node))
      s->source[node->out[0]] = s->source[node->in[0]];
  }
}

/* Does the node make one value, straight into an accumulator, where it stands? */
static bool adds(const opipe_program *program, uint32_t i) {
  const opipe_node *node = &program->graph->nodes[i];
  return !program->taken[i] && program->hosts[i] == OPIPE_NONE && node->n_out == 1 &&
         node->out[0] != OPIPE_NONE && program->adds_to[node->out[0]] != OPIPE_NONE;
}

static bool is_product(const opipe_program *program, uint32_t i) {
  const opipe_node *node = &program->graph->nodes[i];
  return adds(program, i) && node->n_in >= 2 && node->in[0] != OPIPE_NONE &&
         node->in[1] != OPIPE_NONE &&
         (cuda_named(node, "", "MatMul") || cuda_named(node, "com.microsoft", "FusedMatMul") ||
          cuda_named(node, "", "Gemm"));
}

/* The accumulator that a value goes to: of which parameter. Each Accumulate has a value of its own
 * for it. OPIPE_NONE: none. */
static uint32_t slot_of(const opipe_program *program, uint32_t value) {
  const opipe_value *values = program->graph->values;
  const uint32_t sum = values[value].role == OPIPE_VALUE_GRADIENT ? value : program->adds_to[value];
  return sum != OPIPE_NONE ? values[sum].slot : OPIPE_NONE;
}

/* Does node i add to it, or a sum that moved there or away from there? */
static bool adds_there(const opipe_program *program, uint32_t i, uint32_t slot) {
  const opipe_graph *graph = program->graph;
  const opipe_node *node = &graph->nodes[i];
  const cuda_beside *beside = program->besides[i];
  for (uint32_t k = 0; k < node->n_out; ++k) {
    const uint32_t out = node->out[k];
    const bool ends = out != OPIPE_NONE && graph->values[out].role == OPIPE_VALUE_GRADIENT;
    if (out != OPIPE_NONE && slot_of(program, out) == slot && !(ends && program->taken[i]))
      return true;
  }
  return beside != NULL && slot_of(program, graph->nodes[beside->node].out[0]) == slot;
}

static bool can_move(const opipe_program *program, uint32_t from, uint32_t to) {
  const uint32_t slot = slot_of(program, program->graph->nodes[from].out[0]);
  const uint32_t first = from < to ? from + 1 : to, end = from < to ? to + 1 : from;
  for (uint32_t i = first; i < end; ++i) {
    if (adds_there(program, i, slot))
      return false;
  }
  return true;
}

/* Node `sums` as what product i does along. */
static opipe_status settle(search *s, uint32_t i, uint32_t input, uint32_t sums, opipe_error *err) {
  opipe_program *program = s->program;
  bool taken = false;
  cuda_beside *beside = CUDA_POOL_ARRAY(&program->pool, cuda_beside, 1);
  if (beside == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", program->graph->n_nodes);
  *beside = (cuda_beside){sums, input};
  program->besides[i] = beside;
  const opipe_status status = cuda_probe_takes(&s->probe, i, &taken, err);
  if (!taken)
    program->besides[i] = NULL;
  program->taken[sums] = taken;
  return status;
}

static opipe_status match(search *s, uint32_t i, opipe_error *err) {
  const opipe_program *program = s->program;
  const opipe_graph *graph = program->graph;
  const opipe_node *product = &graph->nodes[i];
  for (uint32_t input = 0; input < 2; ++input) {
    for (uint32_t k = 0; k < graph->n_nodes && program->besides[i] == NULL; ++k) {
      const opipe_node *node = &graph->nodes[k];
      if (cuda_named(node, "", "ReduceSum") && adds(program, k) &&
          s->source[node->in[0]] == s->source[product->in[input]] && can_move(program, k, i))
        CUDA_TRY(settle(s, i, input, k, err));
    }
  }
  return OPIPE_OK;
}

opipe_status cuda_match_sums(opipe_program *program, opipe_error *err) {
  const uint32_t n = program->graph->n_nodes;
  search s = {.program = program};
  program->besides = CUDA_POOL_ARRAY(&program->pool, cuda_beside *, n);
  s.source = CUDA_POOL_ARRAY(&program->pool, uint32_t, program->graph->n_values);
  if (program->besides == NULL || s.source == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", n);
  if (!program->device->bias_gradients)
    return OPIPE_OK;
  find_sources(&s);
  opipe_status status = cuda_probe_make(program, &s.probe, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    if (is_product(program, i))
      status = match(&s, i, err);
  }
  cuda_pool_release(&s.probe.pool);
  return status;
}

const cuda_beside *cuda_beside_of(const opipe_program *program, const opipe_node *node) {
  return program->besides != NULL ? program->besides[node - program->graph->nodes] : NULL;
}
