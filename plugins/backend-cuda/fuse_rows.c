/* SPDX-License-Identifier: Apache-2.0 */
/* What norms and gates do along:
 *
 *   norm's gradient -> Add of a value of its shape    the gradient that goes past the norm
 *   norm's gradient and its scale's, of the same rows  the statistics are handed on
 *   Add of two values of one shape -> norm             the sum is written, and its norm
 *   activation -> Mul by a value of its shape          a gate; what else is read is written, too
 *   Mul -> an activation's gradient                    a gate's
 *
 * Nothing is rounded less often than by the nodes one by one, so results have their bits, and what
 * a program does along is no matter of which nodes stand in it. A norm's gradient stands where the
 * Add behind it does; what is in front moves to the node that takes it. Each is tried before it is
 * kept.
 */
#include "ops/rule.h"

static const opipe_value *value_of(const opipe_program *program, uint32_t value) {
  return &program->graph->values[value];
}

/* Of one type and shape, and both there. */
static bool alike(const opipe_program *program, uint32_t a, uint32_t b) {
  if (a == OPIPE_NONE || b == OPIPE_NONE)
    return false;
  const opipe_value *x = value_of(program, a), *y = value_of(program, b);
  const bool lies = x->role != OPIPE_VALUE_SCALAR && x->role != OPIPE_VALUE_GRADIENT;
  return lies && x->dtype == y->dtype && cuda_same_shape(x, y);
}

/* Does the node make its own steps, where it stands? */
static bool is_free(const opipe_program *program, uint32_t i) {
  return !program->taken[i] && program->hosts[i] == OPIPE_NONE;
}

/* An operator of two values of one shape, element by element. */
static bool is_pair(const opipe_program *program, uint32_t i, const char *op) {
  const opipe_node *node = &program->graph->nodes[i];
  return cuda_named(node, "", op) && node->n_in == 2 && node->n_out == 1 && is_free(program, i) &&
         alike(program, node->in[0], node->out[0]) && alike(program, node->in[1], node->out[0]);
}

/* ---- gradients of norms ---- */

static bool is_norm_grad(const opipe_node *node) {
  return (cuda_named(node, "opipe", "LayerNormalizationGrad") ||
          cuda_named(node, "opipe", "RMSNormalizationGrad")) &&
         node->n_in == 3 && node->n_out == 1 && node->out[0] != OPIPE_NONE;
}

/* The Add behind it. */
static opipe_status match_add(opipe_program *program, opipe_program *probe, uint32_t i,
                              opipe_error *err) {
  const opipe_graph *graph = program->graph;
  const uint32_t dx = graph->nodes[i].out[0], add = program->reader[dx];
  bool taken = false;
  if (value_of(program, dx)->role != OPIPE_VALUE_TEMP || add >= graph->n_nodes ||
      !is_pair(program, add, "Add"))
    return OPIPE_OK;
  cuda_tail *tail = CUDA_POOL_ARRAY(&program->pool, cuda_tail, 1);
  if (tail == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", graph->n_nodes);
  *tail = (cuda_tail){.row = OPIPE_NONE, .aux = OPIPE_NONE, .n = 1, .nodes = {add}};
  tail->addend = graph->nodes[add].in[graph->nodes[add].in[0] == dx ? 1 : 0];
  program->tails[i] = tail;
  const opipe_status status = cuda_probe_takes(probe, i, &taken, err);
  if (!taken) {
    program->tails[i] = NULL;
    return status;
  }
  program->taken[i] = true;
  program->hosts[add] = i;
  return OPIPE_OK;
}

/* Is it the gradient of the scale (and bias) of the norm whose gradient `dx` is? */
static bool is_scale_of(const opipe_node *node, const opipe_node *dx) {
  const size_t n = strlen(dx->op);
  return strcmp(node->domain, "opipe") == 0 && strncmp(node->op, dx->op, n) == 0 &&
         strcmp(node->op + n, "Scale") == 0 && node->n_in == 2 && node->in[0] == dx->in[0] &&
         node->in[1] == dx->in[1] &&
         opipe_attr_int(node, "axis", -1) == opipe_attr_int(dx, "axis", -1) &&
         opipe_attr_float(node, "epsilon", 1e-5) == opipe_attr_float(dx, "epsilon", 1e-5);
}

/* Is the value the accumulator of that slot? One of a parameter that is used twice is a value for
 * each. */
static bool is_sum_of(const opipe_program *program, uint32_t v, uint32_t slot) {
  return v != OPIPE_NONE && value_of(program, v)->role == OPIPE_VALUE_GRADIENT &&
         value_of(program, v)->slot == slot;
}

/* Does node i read what `node` makes, or add to the same accumulator? */
static bool meets(const opipe_program *program, uint32_t i, const opipe_node *node) {
  const opipe_node *other = &program->graph->nodes[i];
  for (uint32_t k = 0; k < node->n_out; ++k) {
    const uint32_t made = node->out[k];
    const uint32_t sum = made != OPIPE_NONE ? program->adds_to[made] : OPIPE_NONE;
    for (uint32_t j = 0; made != OPIPE_NONE && j < other->n_in; ++j) {
      if (other->in[j] == made && !program->taken[i])
        return true;
    }
    for (uint32_t j = 0; sum != OPIPE_NONE && j < other->n_out; ++j) {
      const uint32_t to = other->out[j], slot = value_of(program, sum)->slot;
      if ((is_sum_of(program, to, slot) && !program->taken[i]) ||
          (to != OPIPE_NONE && is_sum_of(program, program->adds_to[to], slot)))
        return true;
    }
  }
  return false;
}

/* The scale's gradient moves to where dX is made: not past a node that minds. */
static bool can_move(const opipe_program *program, uint32_t from, uint32_t to) {
  const opipe_node *node = &program->graph->nodes[from];
  const uint32_t first = from < to ? from + 1 : to, end = from < to ? to + 1 : from;
  for (uint32_t i = first; i < end; ++i) {
    if (meets(program, i, node))
      return false;
  }
  return true;
}

static opipe_status match_scale(opipe_program *program, opipe_program *probe, uint32_t i,
                                opipe_error *err) {
  const opipe_graph *graph = program->graph;
  const cuda_tail *tail = program->tails[i];
  const uint32_t place = tail != NULL ? tail->nodes[tail->n - 1] : i;
  uint32_t scale = 0;
  bool taken = false;
  while (scale < graph->n_nodes &&
         (!is_free(program, scale) || !is_scale_of(&graph->nodes[scale], &graph->nodes[i])))
    ++scale;
  if (scale == graph->n_nodes || !can_move(program, scale, place))
    return OPIPE_OK;
  program->scales[i] = scale;
  const opipe_status status = cuda_probe_takes(probe, i, &taken, err);
  program->scales[i] = taken ? scale : OPIPE_NONE;
  program->taken[scale] = taken;
  return status;
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
  return i < graph->n_nodes && is_free(program, i) && !is_read_before(graph, made, add + 1, i)
             ? i
             : graph->n_nodes;
}

static opipe_status match_sum(opipe_program *program, opipe_program *probe, uint32_t i,
                              opipe_error *err) {
  const uint32_t norm =
      is_pair(program, i, "Add") ? norm_behind(program, i) : program->graph->n_nodes;
  bool taken = false;
  if (norm == program->graph->n_nodes)
    return OPIPE_OK;
  program->fronts[norm] = i;
  const opipe_status status = cuda_probe_takes(probe, norm, &taken, err);
  program->fronts[norm] = taken ? i : OPIPE_NONE;
  program->taken[i] = taken;
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
    if (!is_gating(node) || !is_free(program, n - 1) || !alike(program, node->in[0], made) ||
        (made == mul->in[0]) == (made == mul->in[1]))
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
    const bool alone = program->reader[mul->out[0]] == i &&
                       value_of(program, mul->out[0])->role == OPIPE_VALUE_TEMP;
    return alone && is_pair(program, n - 1, "Mul") ? n - 1 : graph->n_nodes;
  }
  return graph->n_nodes;
}

static bool is_activation_grad(const opipe_program *program, uint32_t i) {
  const opipe_node *node = &program->graph->nodes[i];
  return cuda_named(node, "opipe", "ActivationGrad") && node->n_in == 2 && node->n_out == 1 &&
         is_free(program, i) && alike(program, node->in[0], node->out[0]) &&
         alike(program, node->in[1], node->out[0]);
}

static opipe_status match_gate(opipe_program *program, opipe_program *probe, uint32_t i,
                               opipe_error *err) {
  const uint32_t front = is_pair(program, i, "Mul")       ? gate_before(program, i)
                         : is_activation_grad(program, i) ? product_before(program, i)
                                                          : program->graph->n_nodes;
  bool taken = false;
  if (front == program->graph->n_nodes)
    return OPIPE_OK;
  program->fronts[i] = front;
  const opipe_status status = cuda_probe_takes(probe, i, &taken, err);
  program->fronts[i] = taken ? front : OPIPE_NONE;
  program->taken[front] = taken;
  return status;
}

opipe_status cuda_match_rows(opipe_program *program, opipe_error *err) {
  const uint32_t n = program->graph->n_nodes;
  opipe_program probe;
  program->fronts = CUDA_POOL_ARRAY(&program->pool, uint32_t, n);
  program->scales = CUDA_POOL_ARRAY(&program->pool, uint32_t, n);
  if (program->fronts == NULL || program->scales == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", n);
  for (uint32_t i = 0; i < n; ++i)
    program->fronts[i] = program->scales[i] = OPIPE_NONE;
  opipe_status status = cuda_probe_make(program, &probe, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    if (is_norm_grad(&program->graph->nodes[i]) && is_free(program, i)) {
      status = match_add(program, &probe, i, err);
      status = status >= 0 ? match_scale(program, &probe, i, err) : status;
      continue;
    }
    status = match_sum(program, &probe, i, err);
    status = status >= 0 ? match_gate(program, &probe, i, err) : status;
  }
  cuda_pool_release(&probe.pool);
  return status;
}

static const opipe_node *along(const opipe_program *program, const uint32_t *list,
                               const opipe_node *node) {
  const uint32_t i = list != NULL ? list[node - program->graph->nodes] : OPIPE_NONE;
  return i != OPIPE_NONE ? &program->graph->nodes[i] : NULL;
}

const opipe_node *cuda_front_of(const opipe_program *program, const opipe_node *node) {
  return along(program, program->fronts, node);
}

bool cuda_keeps_front(const opipe_program *program, const opipe_node *node) {
  const uint32_t made = cuda_front_of(program, node)->out[0];
  return value_of(program, made)->role != OPIPE_VALUE_TEMP ||
         program->reader[made] != (uint32_t)(node - program->graph->nodes);
}

const opipe_node *cuda_scale_of(const opipe_program *program, const opipe_node *node) {
  return along(program, program->scales, node);
}
