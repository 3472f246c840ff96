/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that become nothing over rows.
 *
 * Keys and values of before, joined with new ones. Bound without a past, a concatenation has no
 * other rows than the new ones; a buffer of fixed size has them at the places where the file writes
 * them, and these must be their positions. */
#include "loader/passes/rower.h"

/* Do the indices of a scatter count the entries they stand for? elements: index i of `axis`, else
 * tuples of all leading dimensions. */
static bool counts(const opi_value *at, bool elements, int64_t axis) {
  const int32_t dims = elements ? at->rank : at->rank - 1;
  const int64_t width = elements ? 1 : at->shape[at->rank - 1];
  if (!opi_value_known(at) || dims < 1 || (!elements && width != dims))
    return false;
  for (uint64_t i = 0; i < opi_elems(at) / (uint64_t)width; ++i) {
    uint64_t rest = i;
    for (int32_t d = dims; d-- > 0; rest /= (uint64_t)at->shape[d]) {
      const int64_t own = (int64_t)(rest % (uint64_t)at->shape[d]);
      if (elements && d != axis)
        continue;
      const uint64_t k = elements ? i : i * (uint64_t)width + (uint64_t)d;
      if (opi_index_at(at, k) != own)
        return false;
    }
  }
  return true;
}

/* One scatter: input 0 at the indices of input 1 from input 2. */
static bool scatters(const rower *r, const opi_node *node, uint32_t *out_rows) {
  const opipe_attr *axis = opi_attr_find(node, "axis");
  const opi_value *data = &r->s.whole->values[node->in[0]];
  if (node->n_in < 3 || strcmp(opi_attr_string(node, "reduction", "none"), "none") != 0)
    return false;
  *out_rows = node->in[2];
  const int64_t along = axis == NULL ? 0 : axis->i < 0 ? axis->i + data->rank : axis->i;
  return counts(&r->s.whole->values[node->in[1]], axis != NULL, along);
}

/* Input 1 into input 0, from the place in input 2 on. */
static bool writes(const rower *r, const opi_node *node, uint32_t *out_rows) {
  const uint32_t v = opi_node_in(node, 2);
  const opi_value *at = v == OPIPE_NONE ? NULL : &r->s.whole->values[v];
  *out_rows = node->in[1];
  if (at != NULL && !opi_value_known(at))
    return false;
  for (uint64_t i = 0; at != NULL && i < opi_elems(at); ++i) {
    if (opi_index_at(at, i) != 0)
      return false;
  }
  return true;
}

/* All inputs but one have no entries. */
static bool joins(const rower *r, const opi_node *node, uint32_t *out_rows) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (opi_elems(&r->s.whole->values[node->in[i]]) == 0)
      continue;
    *out_rows = node->in[i];
    ++n;
  }
  return n == 1;
}

opipe_status opi_r_cache(rower *r, const opi_node *node, uint32_t *out_rows, int32_t *out_axis) {
  const opi_op *op = opi_op_of(node);
  uint32_t rows = OPIPE_NONE;
  bool found = false;
  *out_rows = OPIPE_NONE;
  if ((op->takes & OPI_TAKES_JOINED) != 0)
    found = joins(r, node, &rows);
  else if ((op->takes & OPI_TAKES_SCATTERED) != 0 && opi_r_stale(r, node->in[0]))
    found = scatters(r, node, &rows);
  else if (op->index == OPI_INDEX_STARTS && opi_r_stale(r, node->in[0]))
    found = writes(r, node, &rows);
  if (!found || !opi_s_sliced(&r->s, rows))
    return OPIPE_OK;
  *out_rows = rows;
  *out_axis = r->s.carry[rows].axis;
  return OPIPE_OK;
}

bool opi_r_is_last(const rower *r, const opi_node *node, int32_t *out_axis) {
  const opi_graph *g = r->s.whole;
  const uint32_t takes = opi_op_of(node)->takes, v = node->n_in > 0 ? node->in[0] : OPIPE_NONE;
  const int64_t n = r->form->context;
  if ((takes & (OPI_TAKES_PART | OPI_TAKES_ROWS)) == 0 || opi_node_in(node, 1) == OPIPE_NONE ||
      node->n_out != 1 || !opi_s_sliced(&r->s, v))
    return false;
  const opi_carry *carry = &r->s.carry[v];
  const opi_value *x = &g->values[v], *at = &g->values[node->in[1]], *y = &g->values[node->out[0]];
  const opipe_attr *axis = opi_attr_find(node, "axis");
  const bool keeps = y->rank == x->rank; /* the axis, with one entry */
  if (!opi_value_known(at) || opi_elems(at) != 1 || !opi_dtype_is_integer(at->dtype) ||
      carry->outer != 1 || carry->inner != 1 || x->shape[carry->axis] != n ||
      y->rank < x->rank - 1 || y->rank > x->rank || (axis != NULL && axis->i != carry->axis))
    return false;
  for (int32_t d = 0; d < x->rank; ++d) {
    const int32_t to = keeps || d < carry->axis ? d : d - 1;
    if (d == carry->axis ? keeps && y->shape[d] != 1 : y->shape[to] != x->shape[d])
      return false;
  }
  const int64_t index = opi_index_at(at, 0);
  *out_axis = carry->axis;
  return index == n - 1 || index == -1;
}
