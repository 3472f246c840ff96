/* SPDX-License-Identifier: Apache-2.0 */
/* Work that norms and gates do along (norms' gradients: fuse_norms.c):
 *
 *   Add of two values of one shape -> norm             the sum is written, and its norm
 *   activation -> Mul by a value of its shape          a gate; what else is read is written, too
 *   Mul -> an activation's gradient                    a gate's
 *
 * Nothing is rounded less often than by the nodes one by one, so results have the same bits,
 * whichever other nodes a program has. The node in front moves to the node that takes it. Each is
 * tried before it is kept.
 */
#include "fuse.h"

static const opipe_value *value_of(const opipe_program *program, uint32_t value) {
  return &program->graph->values[value];
}

bool cuda_alike(const opipe_program *program, uint32_t a, uint32_t b) {
  if (a == OPIPE_NONE || b == OPIPE_NONE)
    return false;
  const opipe_value *x = value_of(program, a), *y = value_of(program, b);
  const bool lies = x->role != OPIPE_VALUE_SCALAR && x->role != OPIPE_VALUE_GRADIENT;
  return lies && x->dtype == y->dtype && cuda_same_shape(x, y);
}

bool cuda_is_free(const opipe_program *program, uint32_t i) {
  return !program->matched.taken[i] && program->matched.hosts[i] == OPIPE_NONE;
}

bool cuda_is_pair(const opipe_program *program, uint32_t i, const char *op) {
  const opipe_node *node = &program->graph->nodes[i];
  return cuda_named(node, "", op) && node->n_in == 2 && node->n_out == 1 &&
         cuda_is_free(program, i) && cuda_alike(program, node->in[0], node->out[0]) &&
         cuda_alike(program, node->in[1], node->out[0]);
}

/* ---- sums in front of norms ---- */

static bool is_norm(const opipe_node *node) {
  return cuda_named(node, "", "LayerNormalization") || cuda_named(node, "", "RMSNormalization");
}

/* Is it read before node i? */
static bool is_read_before(const opipe_graph *graph, uint32_t value, uint32_t from, uint32_t i) {
  for (uint32_t n = from; n < i; ++n) {
    for (uint32_t k = 0; k < graph->nodes[n].n_in; ++k) {
      if (graph->nodes[n].in[k] == value)
        return true;
    }
  }
  return false;
}

/* The norm of what Add `add` makes, before anything else reads it; n_nodes: none. */
static uint32_t norm_behind(const opipe_program *program, uint32_t add) {
  const opipe_graph *graph = program->graph;
  const uint32_t made = graph->nodes[add].out[0];
  uint32_t i = add + 1;
  while (i < graph->n_nodes && (!is_norm(&graph->nodes[i]) || graph->nodes[i].in[0] != made))
    ++i;
  return i < graph->n_nodes && cuda_is_free(program, i) && !is_read_before(graph, made, add + 1, i)
             ? i
             : graph->n_nodes;
}

static opipe_status match_sum(opipe_program *program, opipe_program *probe, uint32_t i,
                              opipe_error *err) {
  const uint32_t norm =
      cuda_is_pair(program, i, "Add") ? norm_behind(program, i) : program->graph->n_nodes;
  bool taken = false;
  if (norm == program->graph->n_nodes)
    return OPIPE_OK;
  program->matched.fronts[norm] = i;
  const opipe_status status = cuda_probe_takes(probe, norm, &taken, err);
  program->matched.fronts[norm] = taken ? i : OPIPE_NONE;
  program->matched.taken[i] = taken;
  return status;
}

/* ---- gates ---- */

static bool is_gating(const opipe_node *node) {
  return (cuda_named(node, "", "Sigmoid") || cuda_named(node, "", "Relu") ||
          cuda_named(node, "", "Gelu") || cuda_named(node, "", "Swish")) &&
         node->n_in == 1 && node->n_out == 1;
}

/* The activation of which node i takes the product, before anything else reads it; n_nodes: none.
 */
static uint32_t gate_before(const opipe_program *program, uint32_t i) {
  const opipe_graph *graph = program->graph;
  const opipe_node *mul = &graph->nodes[i];
  for (uint32_t n = i; n > 0; --n) {
    const opipe_node *node = &graph->nodes[n - 1];
    const uint32_t made = node->n_out > 0 ? node->out[0] : OPIPE_NONE;
    if (!is_gating(node) || !cuda_is_free(program, n - 1) ||
        !cuda_alike(program, node->in[0], made) || (made == mul->in[0]) == (made == mul->in[1]))
      continue;
    return is_read_before(graph, made, n, i) ? graph->n_nodes : n - 1;
  }
  return graph->n_nodes;
}

/* A product that node i, the gradient of an activation, alone takes on; n_nodes: none. */
static uint32_t product_before(const opipe_program *program, uint32_t i) {
  const opipe_graph *graph = program->graph;
  const opipe_node *node = &graph->nodes[i];
  for (uint32_t n = i; n > 0; --n) {
    const opipe_node *mul = &graph->nodes[n - 1];
    if (mul->n_out != 1 || mul->out[0] != node->in[0])
      continue;
    const bool alone = program->matched.reader[mul->out[0]] == i &&
                       value_of(program, mul->out[0])->role == OPIPE_VALUE_TEMP;
    return alone && cuda_is_pair(program, n - 1, "Mul") ? n - 1 : graph->n_nodes;
  }
  return graph->n_nodes;
}

static bool is_activation_grad(const opipe_program *program, uint32_t i) {
  const opipe_node *node = &program->graph->nodes[i];
  return cuda_named(node, "opipe", "ActivationGrad") && node->n_in == 2 && node->n_out == 1 &&
         cuda_is_free(program, i) && cuda_alike(program, node->in[0], node->out[0]) &&
         cuda_alike(program, node->in[1], node->out[0]);
}

static opipe_status match_gate(opipe_program *program, opipe_program *probe, uint32_t i,
                               opipe_error *err) {
  const uint32_t front = cuda_is_pair(program, i, "Mul")  ? gate_before(program, i)
                         : is_activation_grad(program, i) ? product_before(program, i)
                                                          : program->graph->n_nodes;
  bool taken = false;
  if (front == program->graph->n_nodes)
    return OPIPE_OK;
  program->matched.fronts[i] = front;
  const opipe_status status = cuda_probe_takes(probe, i, &taken, err);
  program->matched.fronts[i] = taken ? front : OPIPE_NONE;
  program->matched.taken[front] = taken;
  return status;
}

opipe_status cuda_match_rows(opipe_program *program, opipe_error *err) {
  const uint32_t n = program->graph->n_nodes;
  opipe_program probe;
  program->matched.fronts = cuda_no_nodes(program);
  if (program->matched.fronts == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", n);
  opipe_status status = cuda_probe_make(program, &probe, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    status = match_sum(program, &probe, i, err);
    status = status >= 0 ? match_gate(program, &probe, i, err) : status;
  }
  cuda_pool_release(&probe.pool);
  return status;
}

const opipe_node *cuda_front_of(const opipe_program *program, const opipe_node *node) {
  return cuda_along(program, program->matched.fronts, node);
}

bool cuda_keeps_front(const opipe_program *program, const opipe_node *node) {
  const uint32_t made = cuda_front_of(program, node)->out[0];
  return value_of(program, made)->role != OPIPE_VALUE_TEMP ||
         program->matched.reader[made] != (uint32_t)(node - program->graph->nodes);
}
