/* SPDX-License-Identifier: Apache-2.0 */
/* For every integer graph input: the number that its elements must stay below, from the tables that
 * they index. Hosts draw inputs with it; 0 means that nothing is indexed, as far as can be seen.
 *
 * Backwards over the nodes: a table's extent bounds its indices; movement and casts pass a bound
 * on, additions of constants shift it, products and running sums divide it.
 */
#include "loader/passes/walk.h"

/* Operators that read tables: which input are the indices, which the table, along which dimension
 * (-1: attribute axis). */
typedef struct table_rule {
  const char *op;
  uint8_t index, table;
  int8_t dim;
} table_rule;

static const table_rule tables[] = {
    {"Gather", 1, 0, -1},
    {"GatherElements", 1, 0, -1},
    {"EmbedLayerNormalization", 0, 2, 0},
    {"EmbedLayerNormalization", 1, 4, 0},
    {"EmbedLayerNormalization", 8, 3, 0},
    {"SoftmaxCrossEntropyLoss", 1, 0, 1},
    {"NegativeLogLikelihoodLoss", 1, 0, 1},
    {"RotaryEmbedding", 1, 2, 0}, /* com.microsoft */
    {"RotaryEmbedding", 3, 1, 0}, /* ai.onnx 23 */
};

/* Elements pass from these inputs to the output unchanged. */
static bool passes_on(const opi_node *node, uint32_t i) {
  static const char *const movers[] = {
      "Identity", "Reshape", "Transpose", "Expand",    "Tile",   "Slice",    "Split",
      "Cast",     "Pad",     "Squeeze",   "Unsqueeze", "Gather", "GatherND", "GatherElements"};
  if (strcmp(node->op, "Concat") == 0)
    return true;
  if (strcmp(node->op, "Where") == 0)
    return i > 0;
  if (strcmp(node->op, "Max") == 0 || strcmp(node->op, "Min") == 0)
    return true;
  for (size_t k = 0; k < OPI_COUNT(movers); ++k) {
    if (strcmp(node->op, movers[k]) == 0)
      return i == 0;
  }
  return false;
}

static bool is_integer(const opi_value *value) {
  return opi_dtype_is_integer(value->dtype);
}

static void lower(int64_t *io_limit, int64_t limit) {
  if (limit > 0 && (*io_limit == 0 || limit < *io_limit))
    *io_limit = limit;
}

static int64_t element(const opi_value *value, uint64_t i) {
  int64_t wide = 0;
  int32_t narrow = 0;
  if (value->dtype == OPIPE_INT64)
    memcpy(&wide, (const char *)value->data + i * 8, 8);
  if (value->dtype == OPIPE_INT32) {
    memcpy(&narrow, (const char *)value->data + i * 4, 4);
    wide = narrow;
  }
  return wide;
}

/* Largest and smallest element of a known integer tensor. */
static bool bounds(const opi_value *value, int64_t *out_low, int64_t *out_high) {
  uint64_t n = 0;
  if (value->data == NULL || (value->dtype != OPIPE_INT64 && value->dtype != OPIPE_INT32)) {
    return false;
  }
  if (!opi_shape_elems(value->shape, (uint32_t)value->rank, &n) || n == 0)
    return false;
  *out_low = *out_high = element(value, 0);
  for (uint64_t i = 1; i < n; ++i) {
    const int64_t x = element(value, i);
    if (x < *out_low)
      *out_low = x;
    if (x > *out_high)
      *out_high = x;
  }
  return true;
}

/* x + c < limit for all c  <=>  x < limit - max(c); x - c: x < limit + min(c). */
static void shift(const opi_graph *graph, const opi_node *node, int64_t limit, int64_t *limits) {
  const bool add = strcmp(node->op, "Add") == 0, sub = strcmp(node->op, "Sub") == 0;
  if (!add && !sub)
    return;
  for (uint32_t i = 0; i < 2; ++i) {
    int64_t low = 0, high = 0, moved = 0;
    if (sub && i == 1)
      return;
    if (!bounds(&graph->values[node->in[1 - i]], &low, &high))
      continue;
    const bool over = add ? __builtin_sub_overflow(limit, high, &moved)
                          : __builtin_add_overflow(limit, low, &moved);
    if (!over)
      lower(&limits[node->in[i]], moved);
  }
}

/* A product with constants of at most c stays below c * (m - 1) + 1; one of two unknown factors:
 * both stay below the root. */
static void scale(const opi_graph *graph, const opi_node *node, int64_t limit, int64_t *limits) {
  if (strcmp(node->op, "Mul") != 0)
    return;
  for (uint32_t i = 0; i < 2; ++i) {
    int64_t low = 0, high = 0, root = 0;
    const opi_value *other = &graph->values[node->in[1 - i]];
    if (bounds(other, &low, &high)) {
      if (low >= 0 && high > 0)
        lower(&limits[node->in[i]], (limit - 1) / high + 1);
      continue;
    }
    while ((root + 1) * (root + 1) <= limit - 1)
      ++root;
    if (other->data == NULL)
      lower(&limits[node->in[i]], root + 1);
  }
}

/* A running sum over n elements below m stays below n * (m - 1) + 1. */
static void running_sum(const opi_graph *graph, const opi_node *node, int64_t limit,
                        int64_t *limits) {
  if (strcmp(node->op, "CumSum") != 0)
    return;
  const opi_value *x = &graph->values[node->in[0]], *axis = &graph->values[node->in[1]];
  if (axis->data == NULL || axis->n_bytes != 8)
    return;
  const int64_t n = x->shape[element(axis, 0)];
  if (n > 0)
    lower(&limits[node->in[0]], (limit - 1) / n + 1);
}

static void read_tables(const opi_graph *graph, const opi_node *node, int64_t *limits) {
  for (size_t t = 0; t < OPI_COUNT(tables); ++t) {
    const table_rule *rule = &tables[t];
    if (strcmp(rule->op, node->op) != 0)
      continue;
    const uint32_t index = opi_node_in(node, rule->index), table = opi_node_in(node, rule->table);
    if (index == OPIPE_NONE || table == OPIPE_NONE || !is_integer(&graph->values[index]))
      continue;
    const int64_t dim = rule->dim >= 0 ? rule->dim : opi_attr_int(node, "axis", 0);
    const opi_value *x = &graph->values[table];
    if (dim >= 0 && dim < x->rank)
      lower(&limits[index], x->shape[dim]);
  }
  if (strcmp(node->op, "GatherND") == 0) {
    const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
    const int64_t batch = opi_attr_int(node, "batch_dims", 0), n = at->shape[at->rank - 1];
    for (int64_t d = batch; d < batch + n; ++d)
      lower(&limits[node->in[1]], x->shape[d]);
  }
  if (strcmp(node->op, "OneHot") == 0 && graph->values[node->in[1]].data != NULL) {
    lower(&limits[node->in[0]], element(&graph->values[node->in[1]], 0));
  }
}

static void visit(const opi_graph *graph, const opi_node *node, int64_t *limits) {
  const uint32_t out = opi_node_out(node, 0);
  read_tables(graph, node, limits);
  if (out == OPIPE_NONE)
    return;
  int64_t limit = limits[out];
  for (uint32_t o = 1; o < node->n_out; ++o) { /* Split */
    if (node->out[o] != OPIPE_NONE)
      lower(&limit, limits[node->out[o]]);
  }
  if (limit == 0)
    return;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && passes_on(node, i))
      lower(&limits[node->in[i]], limit);
  }
  shift(graph, node, limit, limits);
  scale(graph, node, limit, limits);
  running_sum(graph, node, limit, limits);
}

opipe_status opi_index_limits(const opi_graph *graph, opi_arena *arena, int64_t **out_limits,
                              opipe_error *err) {
  int64_t *limits = OPI_ARENA_ARRAY(arena, int64_t, graph->n_values);
  int64_t *of_inputs = OPI_ARENA_ARRAY(arena, int64_t, graph->n_inputs);
  if (limits == NULL || of_inputs == NULL) {
    return opi_fail_nomem(err, (uint64_t)graph->n_values * 8, "index limits");
  }
  for (uint32_t n = graph->n_nodes; n-- > 0;)
    visit(graph, &graph->nodes[n], limits);
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const uint32_t v = graph->inputs[i];
    of_inputs[i] = is_integer(&graph->values[v]) ? limits[v] : 0;
  }
  *out_limits = of_inputs;
  return OPIPE_OK;
}
