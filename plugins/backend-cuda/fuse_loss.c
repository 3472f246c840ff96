/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that read scores of a half type, and gradients that are written as one.
 *
 *   Cast to fp32 -> views -> SoftmaxCrossEntropyLoss
 *   Cast to fp32 -> views -> SoftmaxCrossEntropyLossGrad -> views -> Cast back
 *
 * become the loss alone: it widens each score as it reads it and rounds its gradient once, as the
 * nodes would. Only temporaries with one reader disappear: scores of fp32 that are an output, too
 * (logits), are made, and read by nobody here.
 */
#include "ops/rule.h"

typedef struct chain {
  uint32_t value; /* the last one: what the loss reads, or what was narrowed */
  uint32_t end;   /* the node behind it; OPIPE_NONE: the value goes elsewhere, too */
  uint32_t kept;  /* values up to the last that is an output: what makes them stays */
} chain;

static bool is_cast(const opipe_graph *graph, const opipe_node *node, bool widens) {
  if (!cuda_named(node, "", "Cast") || node->n_in != 1 || node->n_out != 1 ||
      node->in[0] == OPIPE_NONE || node->out[0] == OPIPE_NONE)
    return false;
  const uint32_t from = graph->values[node->in[0]].dtype, to = graph->values[node->out[0]].dtype;
  return widens ? cuda_is_half(from) && to == OPIPE_FLOAT : from == OPIPE_FLOAT && cuda_is_half(to);
}

static bool is_view(const opipe_graph *graph, const opipe_node *node, uint32_t value) {
  return (cuda_named(node, "", "Reshape") || cuda_named(node, "", "Identity")) && node->n_in > 0 &&
         node->in[0] == value && node->n_out == 1 && node->out[0] != OPIPE_NONE &&
         cuda_elems(&graph->values[node->out[0]]) == cuda_elems(&graph->values[value]);
}

/* From a value through views to the node that reads the last of them. take: the views that nothing
 * is kept of vanish. */
static chain follow(const opipe_program *program, uint32_t value, const chain *take) {
  const opipe_graph *graph = program->graph;
  chain found = {value, OPIPE_NONE, 0};
  for (uint32_t n = 1; program->matched.reader[found.value] < graph->n_nodes; ++n) {
    const uint32_t role = graph->values[found.value].role;
    if (role != OPIPE_VALUE_TEMP && role != OPIPE_VALUE_OUTPUT)
      break;
    found.kept = role == OPIPE_VALUE_OUTPUT ? n : found.kept;
    found.end = program->matched.reader[found.value];
    const opipe_node *node = &graph->nodes[found.end];
    if (!is_view(graph, node, found.value))
      return found;
    program->matched.taken[found.end] |= take != NULL && n >= take->kept;
    found.value = node->out[0];
  }
  found.end = OPIPE_NONE;
  return found;
}

/* Is the node a loss of the scores, 1, or the gradient of one, 2? */
static int loss_of(const opipe_node *node, uint32_t scores) {
  if (cuda_named(node, "", "SoftmaxCrossEntropyLoss")) {
    return node->n_in >= 2 && node->in[0] == scores && node->in[1] != OPIPE_NONE &&
           node->n_out >= 1;
  }
  return cuda_named(node, "opipe", "SoftmaxCrossEntropyLossGrad") && node->n_in >= 3 &&
                 node->in[0] != OPIPE_NONE && node->in[1] == scores && node->in[2] != OPIPE_NONE &&
                 node->n_out == 1 && node->out[0] != OPIPE_NONE
             ? 2
             : 0;
}

static void match_loss(opipe_program *program, uint32_t i) {
  const opipe_graph *graph = program->graph;
  const opipe_node *cast = &graph->nodes[i], *loss;
  if (!is_cast(graph, cast, true) || program->matched.taken[i])
    return;
  const uint32_t dtype = graph->values[cast->in[0]].dtype;
  const chain scores = follow(program, cast->out[0], NULL);
  const int kind = scores.end != OPIPE_NONE ? loss_of(&graph->nodes[scores.end], scores.value) : 0;
  if (kind == 0 || program->matched.taken[scores.end])
    return;
  loss = &graph->nodes[scores.end];
  if (kind == 2) {
    const chain made = follow(program, loss->out[0], NULL);
    if (made.end == OPIPE_NONE || made.kept > 0 || program->matched.taken[made.end] ||
        !is_cast(graph, &graph->nodes[made.end], false) ||
        graph->values[graph->nodes[made.end].out[0]].dtype != dtype ||
        !cuda_loss_reads(program, loss, dtype))
      return;
    program->matched.narrow[loss->out[0]] = graph->nodes[made.end].out[0];
    program->matched.taken[made.end] = true;
    (void)follow(program, loss->out[0], &made);
  } else if (!cuda_loss_reads(program, loss, dtype)) {
    return;
  }
  program->matched.narrow[scores.value] = cast->in[0];
  program->matched.taken[i] = scores.kept == 0;
  (void)follow(program, cast->out[0], &scores);
}

opipe_status cuda_match_losses(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  program->matched.narrow = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  if (program->matched.narrow == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    program->matched.narrow[v] = OPIPE_NONE;
  for (uint32_t i = 0; i < graph->n_nodes; ++i)
    match_loss(program, i);
  return OPIPE_OK;
}

uint32_t cuda_narrow(const opipe_program *program, uint32_t value) {
  const uint32_t narrow =
      program->matched.narrow != NULL ? program->matched.narrow[value] : OPIPE_NONE;
  return narrow != OPIPE_NONE ? narrow : value;
}
