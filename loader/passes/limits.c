/* SPDX-License-Identifier: Apache-2.0 */
/* For every integer graph input: the number that its elements must stay below, from the tables that
 * they index. Hosts draw inputs with it; 0 means that nothing is indexed, as far as can be seen.
 *
 * Backwards over the nodes: a table's extent bounds its indices; movement and casts pass a bound
 * on, additions of constants shift it, products and running sums divide it.
 */
#include "loader/passes/private.h"

/* Elements pass from these inputs to the output unchanged. */
static bool passes_on(const opi_op *op, uint32_t i) {
  const uint32_t first = OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_CAST | OPI_TAKES_STRETCHED |
                         OPI_TAKES_REPEATED | OPI_TAKES_PART | OPI_TAKES_PARTS | OPI_TAKES_PADDED |
                         OPI_TAKES_ROWS | OPI_TAKES_TUPLES | OPI_TAKES_ENTRIES;
  if ((op->takes & (OPI_TAKES_JOINED | OPI_TAKES_EXTREME)) != 0)
    return true;
  return (op->takes & (i == 0 ? first : (uint32_t)OPI_TAKES_CHOSEN)) != 0;
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
  if (value->data == NULL || (value->dtype != OPIPE_INT64 && value->dtype != OPIPE_INT32))
    return false;
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
static void shift(const opi_graph *graph, const opi_node *node, bool sub, int64_t limit,
                  int64_t *limits) {
  for (uint32_t i = 0; i < 2; ++i) {
    int64_t low = 0, high = 0, moved = 0;
    if (sub && i == 1)
      return;
    if (!bounds(&graph->values[node->in[1 - i]], &low, &high))
      continue;
    const bool over = sub ? __builtin_add_overflow(limit, low, &moved)
                          : __builtin_sub_overflow(limit, high, &moved);
    if (!over)
      lower(&limits[node->in[i]], moved);
  }
}

/* A product with constants of at most c stays below c * (m - 1) + 1; one of two unknown factors:
 * both stay below the root. */
static void scale(const opi_graph *graph, const opi_node *node, int64_t limit, int64_t *limits) {
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
  const opi_value *x = &graph->values[node->in[0]], *axis = &graph->values[node->in[1]];
  if (axis->data == NULL || axis->n_bytes != 8)
    return;
  const int64_t n = x->shape[element(axis, 0)];
  if (n > 0)
    lower(&limits[node->in[0]], (limit - 1) / n + 1);
}

/* `index` picks along dimension `axis` of `table`; OPIPE_NONE: it is not there. */
static void read_table(const opi_graph *graph, uint32_t index, uint32_t table, int64_t axis,
                       int64_t *limits) {
  if (index == OPIPE_NONE || table == OPIPE_NONE || !is_integer(&graph->values[index]))
    return;
  const opi_value *x = &graph->values[table];
  if (axis >= 0 && axis < x->rank)
    lower(&limits[index], x->shape[axis]);
}

static void read_tables(const opi_graph *graph, const opi_node *node, uint32_t index,
                        int64_t *limits) {
  switch (index) {
    case OPI_INDEX_AXIS:
      read_table(graph, node->in[1], node->in[0], opi_attr_int(node, "axis", 0), limits);
      break;
    case OPI_INDEX_CLASSES:
      read_table(graph, node->in[1], node->in[0], 1, limits);
      break;
    case OPI_INDEX_PLACES:
      read_table(graph, opi_node_in(node, 3), node->in[1], 0, limits);
      break;
    case OPI_INDEX_TUPLES: {
      const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
      const int64_t batch = opi_attr_int(node, "batch_dims", 0), n = at->shape[at->rank - 1];
      for (int64_t d = batch; d < batch + n; ++d)
        lower(&limits[node->in[1]], x->shape[d]);
      break;
    }
    case OPI_INDEX_DEPTH:
      if (graph->values[node->in[1]].data != NULL)
        lower(&limits[node->in[0]], element(&graph->values[node->in[1]], 0));
      break;
    case OPI_INDEX_STARTS: {
      const opi_value *x = &graph->values[node->in[0]], *up = &graph->values[node->in[1]];
      const int64_t axis = opi_attr_int(node, "axis", 0);
      if (opi_node_in(node, 2) != OPIPE_NONE)
        lower(&limits[node->in[2]], x->shape[axis] - up->shape[axis] + 1);
      break;
    }
    default:
      break;
  }
}

static void visit(const opi_graph *graph, const opi_node *node, int64_t *limits) {
  const opi_op *op = opi_op_of(node);
  const uint32_t out = opi_node_out(node, 0);
  read_tables(graph, node, op->index, limits);
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
    if (node->in[i] != OPIPE_NONE && passes_on(op, i))
      lower(&limits[node->in[i]], limit);
  }
  if (op->range == OPI_RANGE_ADD || op->range == OPI_RANGE_SUB)
    shift(graph, node, op->range == OPI_RANGE_SUB, limit, limits);
  else if (op->range == OPI_RANGE_MUL)
    scale(graph, node, limit, limits);
  else if (op->range == OPI_RANGE_RUNNING_SUM)
    running_sum(graph, node, limit, limits);
}

opipe_status opi_index_limits(const opi_graph *graph, opi_arena *arena, int64_t **out_limits,
                              opipe_error *err) {
  int64_t *limits = OPI_ARENA_ARRAY(arena, int64_t, graph->n_values);
  int64_t *of_inputs = OPI_ARENA_ARRAY(arena, int64_t, graph->n_inputs);
  if (limits == NULL || of_inputs == NULL)
    return opi_fail_nomem(err, (uint64_t)graph->n_values * 8, "index limits");
  for (uint32_t n = graph->n_nodes; n-- > 0;)
    visit(graph, &graph->nodes[n], limits);
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const uint32_t v = graph->inputs[i];
    of_inputs[i] = is_integer(&graph->values[v]) ? limits[v] : 0;
  }
  *out_limits = of_inputs;
  return OPIPE_OK;
}
