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
#include "fuse.h"

typedef struct search {
  opipe_program *program;
  opipe_program probe;
  const uint32_t *source; /* [n_values]: whose elements a value has */
} search;

static bool is_product(const opipe_program *program, uint32_t i) {
  const opipe_node *node = &program->graph->nodes[i];
  return cuda_adds(program, i) && node->n_in >= 2 && node->in[0] != OPIPE_NONE &&
         node->in[1] != OPIPE_NONE &&
         (cuda_named(node, "", "MatMul") || cuda_named(node, "com.microsoft", "FusedMatMul") ||
          cuda_named(node, "", "Gemm"));
}

/* Node `sums` as what product i does along. */
static opipe_status settle(search *s, uint32_t i, uint32_t input, uint32_t sums, opipe_error *err) {
  opipe_program *program = s->program;
  bool taken = false;
  cuda_beside *beside = CUDA_POOL_ARRAY(&program->pool, cuda_beside, 1);
  if (beside == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", program->graph->n_nodes);
  *beside = (cuda_beside){sums, input};
  program->matched.besides[i] = beside;
  const opipe_status status = cuda_probe_takes(&s->probe, i, &taken, err);
  if (!taken)
    program->matched.besides[i] = NULL;
  program->matched.taken[sums] = taken;
  return status;
}

static opipe_status match(search *s, uint32_t i, opipe_error *err) {
  const opipe_program *program = s->program;
  const opipe_graph *graph = program->graph;
  const opipe_node *product = &graph->nodes[i];
  for (uint32_t input = 0; input < 2; ++input) {
    for (uint32_t k = 0; k < graph->n_nodes && program->matched.besides[i] == NULL; ++k) {
      const opipe_node *node = &graph->nodes[k];
      if (cuda_named(node, "", "ReduceSum") && cuda_adds(program, k) &&
          s->source[node->in[0]] == s->source[product->in[input]] && cuda_can_move(program, k, i))
        CUDA_TRY(settle(s, i, input, k, err));
    }
  }
  return OPIPE_OK;
}

opipe_status cuda_match_sums(opipe_program *program, opipe_error *err) {
  const uint32_t n = program->graph->n_nodes;
  search s = {.program = program};
  program->matched.besides = CUDA_POOL_ARRAY(&program->pool, cuda_beside *, n);
  s.source = cuda_find_sources(program);
  if (program->matched.besides == NULL || s.source == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", n);
  if (!program->device->bias_gradients)
    return OPIPE_OK;
  opipe_status status = cuda_probe_make(program, &s.probe, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    if (is_product(program, i))
      status = match(&s, i, err);
  }
  cuda_pool_release(&s.probe.pool);
  return status;
}

const cuda_beside *cuda_beside_of(const opipe_program *program, const opipe_node *node) {
  return program->matched.besides != NULL ? program->matched.besides[node - program->graph->nodes]
                                          : NULL;
}
