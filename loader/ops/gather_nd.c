/* SPDX-License-Identifier: Apache-2.0 */
/* GatherND.
 *
 * Canonical form: GatherND(data, indices), attribute batch_dims; indices int32 or int64, last
 * dimension the components of an index, may be negative. Exporters spell plain broadcasting of a
 * mask as GatherND with indices that count 0, 1, 2, ...: that becomes Reshape and Expand.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"

typedef struct nd_form {
  uint32_t batch, n; /* leading dimensions in common; components of an index */
} nd_form;

static opipe_status read_nd(const opi_builder *b, const opi_node *node, const opi_value *x,
                            const opi_value *at, nd_form *form, opipe_error *err) {
  const int64_t batch = opi_attr_int(node, "batch_dims", 0);
  const int64_t n = at->rank > 0 ? at->shape[at->rank - 1] : 0;
  if (at->rank < 1 || batch < 0 || batch >= at->rank || batch >= x->rank || n < 0 ||
      n > x->rank - batch) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "'%s' of rank %" PRId32 ", '%s' of rank %" PRId32
                         " with indices of %" PRId64 " components and batch_dims %" PRId64
                         " do not fit",
                         x->name, x->rank, at->name, at->rank, n, batch);
  }
  *form = (nd_form){(uint32_t)batch, (uint32_t)n};
  for (uint32_t d = 0; d < form->batch; ++d) {
    if (x->shape[d] == at->shape[d])
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "batch dimension %" PRIu32 " is %" PRId64 " in '%s', %" PRId64 " in '%s'",
                         d, x->shape[d], x->name, at->shape[d], at->name);
  }
  return OPIPE_OK;
}

/* Known indices must lie in [-extent, extent) of the dimensions they pick from. */
static opipe_status check_range(const opi_builder *b, const opi_node *node, const opi_value *x,
                                const opi_value *at, nd_form form, opipe_error *err) {
  const uint64_t elems = at->data != NULL ? opi_elems(at) : 0;
  for (uint64_t i = 0; i < elems; ++i) {
    const uint32_t axis = form.batch + (uint32_t)(i % form.n);
    const int64_t index = opi_index_at(at, i);
    if (index >= -x->shape[axis] && index < x->shape[axis])
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "index %" PRId64 " in '%s' is outside dimension %" PRIu32
                         " of '%s', which has %" PRId64 " entries",
                         index, at->name, axis, x->name, x->shape[axis]);
  }
  return OPIPE_OK;
}

static opipe_status infer_gather_nd(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *at = NULL;
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t rank = 0;
  nd_form form = {0, 0};
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_in(b, node, 1, &at, err));
  OPI_TRY(opi_check_type(b, node, at, OPI_TYPES_INDEX, err));
  OPI_TRY(read_nd(b, node, x, at, &form, err));
  OPI_TRY(check_range(b, node, x, at, form, err));
  for (int32_t d = 0; d + 1 < at->rank; ++d)
    shape[rank++] = at->shape[d];
  for (int32_t d = (int32_t)(form.batch + form.n); d < x->rank; ++d)
    shape[rank++] = x->shape[d];
  return opi_b_set(b, node, 0, x->dtype, shape, rank, err);
}

/* Data holds the axis in an indexed dimension: it stays together when the (known) indices count
 * 0, 1, 2, ... along a dimension of their own, as masks picked by [batch, key] do. */
static opipe_status carry_counted(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  nd_form form, opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
  const uint32_t c = (uint32_t)in[0].axis - form.batch;
  for (uint32_t d = form.batch; at->data != NULL && d + 1 < (uint32_t)at->rank; ++d) {
    if (at->shape[d] != x->shape[in[0].axis] || at->shape[d] == 0)
      continue;
    if (!opi_index_is_coordinate(at, d, c) || !opi_index_others_are_uniform(at, d, c))
      continue;
    out[0] = (opi_carry){(int32_t)d, 0, in[0].outer, in[0].inner};
    return OPIPE_OK;
  }
  return opi_carry_fail(graph, node, err, "entries of dimension %" PRId32 " of '%s' are picked",
                        in[0].axis, x->name);
}

static opipe_status carry_gather_nd(const opi_graph *graph, const opi_node *node,
                                    const opi_carry *in, opi_carry *out, opipe_error *err) {
  const opi_value *at = &graph->values[node->in[1]];
  const nd_form form = {(uint32_t)opi_attr_int(node, "batch_dims", 0),
                        (uint32_t)at->shape[at->rank - 1]};
  const int32_t batch = (int32_t)form.batch, n = (int32_t)form.n;
  out[0] = opi_carries(&in[0]) ? in[0] : in[1];
  if (opi_carries(&in[0]) && opi_carries(&in[1])) {
    if (in[0].axis == in[1].axis && in[0].axis < batch && in[0].outer == in[1].outer &&
        in[0].inner == in[1].inner)
      return OPIPE_OK;
    return opi_carry_fail(graph, node, err, "both data and indices hold it");
  }
  if (opi_carries(&in[1])) {
    if (in[1].axis >= batch && in[1].axis + 1 < at->rank)
      return OPIPE_OK;
    return opi_carry_fail(graph, node, err, "dimension %" PRId32 " of the indices holds it",
                          in[1].axis);
  }
  if (in[0].axis < batch) {
    return opi_carry_fail(graph, node, err, "the indices do not hold batch dimension %" PRId32,
                          in[0].axis);
  }
  if (in[0].axis < batch + n)
    return carry_counted(graph, node, in, form, out, err);
  out[0].axis = at->rank - 1 + in[0].axis - batch - n;
  return OPIPE_OK;
}

/* Finds the dimension of the indices that component c counts along; OPIPE_NONE: none. */
static uint32_t counted_along(const opi_value *x, const opi_value *at, uint32_t c, uint32_t first) {
  for (uint32_t d = first; d + 1 < (uint32_t)at->rank; ++d) {
    if (at->shape[d] == x->shape[c] && at->shape[d] != 0 && opi_index_is_coordinate(at, d, c))
      return d;
  }
  return OPIPE_NONE;
}

/* Known indices whose every component counts 0, 1, 2, ... along a dimension of its own, in rising
 * order, pick everything in its place: data gets dimensions of 1 where no component counts, and is
 * expanded. */
static opipe_status lift_counted(opi_builder *b, const opi_node *node, bool *out_done,
                                 opipe_error *err) {
  const opi_value *x = opi_b_value(b, node->in[0]), *at = opi_b_value(b, node->in[1]);
  int64_t narrow[2 * OPIPE_MAX_RANK], wide[2 * OPIPE_MAX_RANK], kept[OPIPE_MAX_RANK];
  const uint32_t n = (uint32_t)at->shape[at->rank - 1];
  uint32_t rank = (uint32_t)at->rank - 1, next = 0, out = node->in[0];
  if (at->data == NULL || n == 0 || rank + (uint32_t)x->rank - n > OPIPE_MAX_RANK)
    return OPIPE_OK;
  for (uint32_t d = 0; d < rank; ++d) {
    narrow[d] = 1;
    wide[d] = at->shape[d];
  }
  for (uint32_t c = 0; c < n; ++c) {
    const uint32_t d = counted_along(x, at, c, next);
    if (d == OPIPE_NONE)
      return OPIPE_OK;
    narrow[d] = x->shape[c];
    kept[c] = d;
    next = d + 1;
  }
  for (int32_t d = (int32_t)n; d < x->rank; ++d, ++rank) {
    narrow[rank] = wide[rank] = x->shape[d];
    kept[d] = rank;
  }
  OPI_TRY(opi_emit_reshape(b, node->in[0], narrow, rank, kept, &out, err));
  if (memcmp(narrow, wide, rank * sizeof(*wide)) != 0) {
    uint32_t in[2] = {out, OPIPE_NONE};
    OPI_TRY(opi_ints_value(b, wide, rank, &in[1], err));
    const opi_emit emit = {.op = "Expand", .in = in, .n_in = 2, .n_out = 1};
    OPI_TRY(opi_b_emit(b, &emit, &out, err));
  }
  *out_done = true;
  return opi_b_result(b, node, 0, out, err);
}

/* Indices that are put together from parts, of which the first counts 0, 1, 2, ... along the next
 * dimension: that dimension is one of the batch, and the other parts index the rest. So
 * x[arange(n), at] picks from every row its own. */
static opipe_status lift_batched(opi_builder *b, const opi_node *node, uint32_t *io_indices,
                                 uint32_t *io_batch, opipe_error *err) {
  const opi_value *x = opi_b_value(b, node->in[0]);
  for (;;) {
    const opi_value *at = opi_b_value(b, *io_indices);
    const uint32_t d = *io_batch, last = (uint32_t)at->rank - 1;
    if (at->producer == OPIPE_NONE || d >= last || d + 1 >= (uint32_t)x->rank)
      return OPIPE_OK;
    const opi_node *join = &b->graph->nodes[at->producer];
    if (strcmp(join->op, "Concat") != 0 || opi_attr_int(join, "axis", -1) != (int64_t)last)
      return OPIPE_OK;
    const opi_value *first = opi_b_value(b, join->in[0]);
    if (first->data == NULL || first->shape[last] != 1 || first->shape[d] != x->shape[d] ||
        !opi_index_is_coordinate(first, d, 0))
      return OPIPE_OK;
    uint32_t rest = join->in[1];
    if (join->n_in > 2) {
      const opipe_attr axis = OPI_ATTR_I("axis", last);
      const opi_emit emit = {.op = "Concat",
                             .in = join->in + 1,
                             .n_in = join->n_in - 1,
                             .n_out = 1,
                             .attrs = &axis,
                             .n_attrs = 1};
      OPI_TRY(opi_b_emit(b, &emit, &rest, err));
    }
    *io_indices = rest;
    ++*io_batch;
  }
}

static opipe_status lift_gather_nd(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *at = NULL;
  nd_form form = {0, 0};
  bool done = false;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_in(b, node, 1, &at, err));
  OPI_TRY(opi_check_type(b, node, at, OPI_TYPES_INDEX, err));
  OPI_TRY(read_nd(b, node, x, at, &form, err));
  if (form.batch == 0)
    OPI_TRY(lift_counted(b, node, &done, err));
  if (done)
    return OPIPE_OK;
  uint32_t in[2] = {node->in[0], node->in[1]};
  OPI_TRY(lift_batched(b, node, &in[1], &form.batch, err));
  const opipe_attr attr = OPI_ATTR_I("batch_dims", form.batch);
  return opi_b_lift(b, node, "GatherND", in, 2, &attr, 1, err);
}

static const opi_op ops[] = {
    {OPI_OP("GatherND", "", 11, OPI_NEWEST_ONNX, 2, 2, 1, 1),
     OPI_ATTRS(13, OPI_A(INT, "batch_dims", .since = 12, OPI_PRESET(0))), .lift = lift_gather_nd,
     .infer = infer_gather_nd, .work = opi_work_move, .carry = carry_gather_nd,
     .gradient = opi_gradient_gather_nd, .stops_gradient = 0x2,
     OPI_COLUMNS(TUPLES, PICKS, ROWS, RISING, TUPLES, PLAIN, FIRST)},
};
extern const opi_op_family opi_ops_gather_nd;
const opi_op_family opi_ops_gather_nd = {ops, OPI_COUNT(ops)};
