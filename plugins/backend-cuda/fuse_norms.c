/* SPDX-License-Identifier: Apache-2.0 */
/* Work that the gradients of norms do along:
 *
 *   dX -> Add of a value of its shape       the gradient that goes past the norm
 *   the scale's gradient, of the same rows  statistics are handed on, or its sums are made along
 *   what is made -> sums of its columns     the gradient of a bias in front
 *
 * The first two are what the nodes one by one make, to the bit, and so is dX always. With
 * norm_sums=1, rows of up to 1024 elements of fp32 and half types are read once for all of it: the
 * sums over rows, of scales and biases, are then added in an order of their own. Types, shapes and
 * what stands in the program decide. It is done where the Add stands; sums move there unless that
 * changes an order of additions (fuse_moves.c). Each is tried before it is kept.
 */
#include "fuse.h"

typedef struct search {
  opipe_program *program;
  opipe_program probe;
  const uint32_t *source; /* [n_values]: whose elements a value has */
} search;

static bool is_norm_grad(const opipe_node *node) {
  return (cuda_named(node, "opipe", "LayerNormalizationGrad") ||
          cuda_named(node, "opipe", "RMSNormalizationGrad")) &&
         node->n_in == 3 && node->n_out == 1 && node->out[0] != OPIPE_NONE;
}

/* The Add behind it. */
static opipe_status match_add(search *s, uint32_t i, opipe_error *err) {
  opipe_program *program = s->program;
  const opipe_graph *graph = program->graph;
  const uint32_t dx = graph->nodes[i].out[0], add = program->matched.reader[dx];
  bool taken = false;
  if (graph->values[dx].role != OPIPE_VALUE_TEMP || add >= graph->n_nodes ||
      !cuda_is_pair(program, add, "Add"))
    return OPIPE_OK;
  cuda_tail *tail = CUDA_POOL_ARRAY(&program->pool, cuda_tail, 1);
  if (tail == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", graph->n_nodes);
  *tail = (cuda_tail){.row = OPIPE_NONE, .aux = OPIPE_NONE, .n = 1, .nodes = {add}};
  tail->addend = graph->nodes[add].in[graph->nodes[add].in[0] == dx ? 1 : 0];
  program->matched.tails[i] = tail;
  const opipe_status status = cuda_probe_takes(&s->probe, i, &taken, err);
  if (!taken) {
    program->matched.tails[i] = NULL;
    return status;
  }
  program->matched.taken[i] = true;
  program->matched.hosts[add] = i;
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

/* Where it is done. */
static uint32_t place_of(const opipe_program *program, uint32_t i) {
  const cuda_tail *tail = program->matched.tails[i];
  return tail != NULL ? tail->nodes[tail->n - 1] : i;
}

static opipe_status match_scale(search *s, uint32_t i, opipe_error *err) {
  opipe_program *program = s->program;
  const opipe_graph *graph = program->graph;
  uint32_t scale = 0;
  bool taken = false;
  while (scale < graph->n_nodes &&
         (!cuda_is_free(program, scale) || !is_scale_of(&graph->nodes[scale], &graph->nodes[i])))
    ++scale;
  if (scale == graph->n_nodes || !cuda_can_move(program, scale, place_of(program, i)))
    return OPIPE_OK;
  program->matched.scales[i] = scale;
  const opipe_status status = cuda_probe_takes(&s->probe, i, &taken, err);
  program->matched.scales[i] = taken ? scale : OPIPE_NONE;
  program->matched.taken[scale] = taken;
  return status;
}

/* Sums of the columns of what it makes. */
static opipe_status match_columns(search *s, uint32_t i, opipe_error *err) {
  opipe_program *program = s->program;
  const opipe_graph *graph = program->graph;
  const uint32_t place = place_of(program, i), made = graph->nodes[place].out[0];
  for (uint32_t k = 0; k < graph->n_nodes; ++k) {
    const opipe_node *node = &graph->nodes[k];
    bool taken = false;
    if (!cuda_named(node, "", "ReduceSum") || !cuda_adds(program, k) ||
        s->source[node->in[0]] != made || !cuda_can_move(program, k, place))
      continue;
    program->matched.columns[i] = k;
    const opipe_status status = cuda_probe_takes(&s->probe, i, &taken, err);
    program->matched.columns[i] = taken ? k : OPIPE_NONE;
    program->matched.taken[k] = taken;
    if (taken || status < 0)
      return status;
  }
  return OPIPE_OK;
}

opipe_status cuda_match_norms(opipe_program *program, opipe_error *err) {
  search s = {.program = program, .source = cuda_find_sources(program)};
  program->matched.scales = cuda_no_nodes(program);
  program->matched.columns = cuda_no_nodes(program);
  if (program->matched.scales == NULL || program->matched.columns == NULL || s.source == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", program->graph->n_nodes);
  opipe_status status = cuda_probe_make(program, &s.probe, err);
  for (uint32_t i = 0; status >= 0 && i < program->graph->n_nodes; ++i) {
    if (!is_norm_grad(&program->graph->nodes[i]) || !cuda_is_free(program, i))
      continue;
    status = match_add(&s, i, err);
    status = status >= 0 ? match_scale(&s, i, err) : status;
    if (status >= 0 && program->device->norm_sums)
      status = match_columns(&s, i, err);
  }
  cuda_pool_release(&s.probe.pool);
  return status;
}

const opipe_node *cuda_scale_of(const opipe_program *program, const opipe_node *node) {
  return cuda_along(program, program->matched.scales, node);
}

const opipe_node *cuda_columns_of(const opipe_program *program, const opipe_node *node) {
  return cuda_along(program, program->matched.columns, node);
}
