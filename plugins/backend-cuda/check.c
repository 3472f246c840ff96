/* SPDX-License-Identifier: Apache-2.0 */
/* The graph that came over the border is not trusted until it was checked here: afterwards indices,
 * ranks, sizes and roles can be relied on. Rules check their own operators' shapes.
 */
#include "ops/rule.h"

/* The product of extents, counted as at least 1, stays small: strides are made of it. */
static bool extents_fit(const opipe_value *value) {
  int64_t n = 1;
  for (uint32_t i = 0; i < value->rank; ++i) {
    if (value->shape[i] < 0 ||
        __builtin_mul_overflow(n, value->shape[i] > 1 ? value->shape[i] : 1, &n))
      return false;
  }
  return n <= INT64_MAX / 128;
}

static opipe_status check_shape(const opipe_value *value, uint32_t index, opipe_error *err) {
  uint64_t n_bytes = 0;
  if (value->name == NULL || value->rank > OPIPE_MAX_RANK ||
      (value->rank > 0 && value->shape == NULL)) {
    return opipe_fail(err, OPIPE_E_INVALID, "value %u has no name, no shape or rank %u above %d",
                      index, value->rank, OPIPE_MAX_RANK);
  }
  if (!opipe_tensor_bytes(value->dtype, value->shape, value->rank, &n_bytes) ||
      !extents_fit(value) || n_bytes != value->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "value '%.80s': %llu bytes do not fit shape and type",
                      value->name, (unsigned long long)value->n_bytes);
  }
  return OPIPE_OK;
}

static opipe_status check_role(const opipe_graph *graph, const opipe_value *value,
                               opipe_error *err) {
  uint32_t slots = UINT32_MAX;
  switch (value->role) {
    case OPIPE_VALUE_TEMP:
      return OPIPE_OK;
    case OPIPE_VALUE_CONSTANT:
      return value->data != NULL || value->n_bytes == 0
                 ? OPIPE_OK
                 : opipe_fail(err, OPIPE_E_INVALID, "constant '%.80s' has no data", value->name);
    case OPIPE_VALUE_PARAMETER:
      slots = graph->n_params;
      break;
    case OPIPE_VALUE_GRADIENT:
      slots = value->dtype == OPIPE_FLOAT ? graph->n_params : 0;
      break;
    case OPIPE_VALUE_INPUT:
    case OPIPE_VALUE_OUTPUT:
      slots = graph->n_boundaries;
      break;
    case OPIPE_VALUE_SCALAR:
      slots = value->rank == 0 && (value->dtype == OPIPE_INT64 || value->dtype == OPIPE_DOUBLE)
                  ? graph->n_scalars
                  : 0;
      break;
    default:
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "value '%.80s': role %u is not known",
                        value->name, value->role);
  }
  return value->slot < slots
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID,
                          "value '%.80s': slot %u, there are %u for its role and type", value->name,
                          value->slot, slots);
}

static opipe_status check_input(const opipe_graph *graph, const opipe_node *node, uint32_t v,
                                const uint8_t *made, opipe_error *err) {
  if (v == OPIPE_NONE)
    return OPIPE_OK;
  if (v >= graph->n_values) {
    return opipe_fail(err, OPIPE_E_INVALID, "node '%.80s' reads value %u of %u", node->name, v,
                      graph->n_values);
  }
  const uint32_t role = graph->values[v].role;
  const bool unmade = (role == OPIPE_VALUE_TEMP || role == OPIPE_VALUE_OUTPUT) && !made[v];
  return unmade || role == OPIPE_VALUE_GRADIENT
             ? opipe_fail(err, OPIPE_E_INVALID, "node '%.80s' reads '%.80s', which %s", node->name,
                          graph->values[v].name, unmade ? "is not made yet" : "is a gradient")
             : OPIPE_OK;
}

static opipe_status check_output(const opipe_graph *graph, const opipe_node *node, uint32_t v,
                                 uint8_t *made, opipe_error *err) {
  if (v == OPIPE_NONE)
    return OPIPE_OK;
  if (v >= graph->n_values) {
    return opipe_fail(err, OPIPE_E_INVALID, "node '%.80s' writes value %u of %u", node->name, v,
                      graph->n_values);
  }
  const uint32_t role = graph->values[v].role;
  if (role == OPIPE_VALUE_GRADIENT && cuda_is_accumulate(node))
    return OPIPE_OK; /* several nodes may add to one */
  if ((role != OPIPE_VALUE_TEMP && role != OPIPE_VALUE_OUTPUT) || made[v]) {
    return opipe_fail(err, OPIPE_E_INVALID, "node '%.80s' writes '%.80s', which %s", node->name,
                      graph->values[v].name, made[v] ? "is made already" : "cannot be written");
  }
  made[v] = 1;
  return OPIPE_OK;
}

static opipe_status check_node(const opipe_graph *graph, const opipe_node *node, uint8_t *made,
                               opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (node->name == NULL || node->op == NULL || node->domain == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "a node without name, operator or domain");
  for (uint32_t i = 0; status >= 0 && i < node->n_in; ++i)
    status = check_input(graph, node, node->in[i], made, err);
  for (uint32_t i = 0; status >= 0 && i < node->n_out; ++i)
    status = check_output(graph, node, node->out[i], made, err);
  return status;
}

/* An output's region belongs to one value alone. taken [n_boundaries]: 1 + its value */
static opipe_status check_boundary(const opipe_graph *graph, uint32_t v, uint32_t *taken,
                                   opipe_error *err) {
  const opipe_value *value = &graph->values[v];
  if (value->role != OPIPE_VALUE_INPUT && value->role != OPIPE_VALUE_OUTPUT)
    return OPIPE_OK;
  const uint32_t before = taken[value->slot];
  taken[value->slot] = v + 1;
  if (before == 0 ||
      (graph->values[before - 1].role == OPIPE_VALUE_INPUT && value->role == OPIPE_VALUE_INPUT))
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID, "'%.80s' and '%.80s' share boundary %u", value->name,
                    graph->values[before - 1].name, value->slot);
}

opipe_status cuda_check_graph(const opipe_graph *graph, cuda_pool *pool, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (graph == NULL || !OPIPE_HAS(graph, opipe_graph, n_scalars))
    return opipe_fail(err, OPIPE_E_ABI, "the graph's struct_size is too small");
  uint8_t *made = CUDA_POOL_ARRAY(pool, uint8_t, graph->n_values);
  uint32_t *taken = CUDA_POOL_ARRAY(pool, uint32_t, graph->n_boundaries);
  if (made == NULL || taken == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  if (graph->n_scalars > CUDA_SCALARS) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "a graph of %u scalars, at most %d",
                      graph->n_scalars, CUDA_SCALARS);
  }
  for (uint32_t v = 0; status >= 0 && v < graph->n_values; ++v) {
    status = check_shape(&graph->values[v], v, err);
    if (status >= 0)
      status = check_role(graph, &graph->values[v], err);
    if (status >= 0)
      status = check_boundary(graph, v, taken, err);
  }
  for (uint32_t i = 0; status >= 0 && i < graph->n_nodes; ++i)
    status = check_node(graph, &graph->nodes[i], made, err);
  return status;
}
