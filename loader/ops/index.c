/* SPDX-License-Identifier: Apache-2.0 */
/* Reading by index: Gather GatherElements OneHot TopK NonZero. (GatherND: gather_nd.c.)
 *
 * Canonical forms left in a bound graph:
 *   Gather(data, indices)           attribute axis >= 0; indices int32 or int64, may be negative.
 *   GatherElements(data, indices)   attribute axis >= 0.
 *   OneHot(indices, depth, values)  depth: known int64 of rank 0; attribute axis >= 0, of the
 * output. TopK(x, k)                      k: known int64 [1]; attributes axis >= 0, largest,
 * sorted; 2 outputs. NonZero needs a known input and becomes a constant.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"

/* -- Gather -- */

static opipe_status lift_gather(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  uint32_t axis = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  const opipe_attr attr = OPI_ATTR_I("axis", axis);
  return opi_b_lift(b, node, node->op, node->in, node->n_in, &attr, 1, err);
}

/* Known indices must lie in [-extent, extent). */
static opipe_status check_range(opi_builder *b, const opi_node *node, uint32_t indices,
                                int64_t extent, opipe_error *err) {
  uint32_t n = 0;
  const int64_t *list = opi_b_ints(b, indices, &n);
  for (uint32_t i = 0; list != NULL && i < n; ++i) {
    if (list[i] >= -extent && list[i] < extent)
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "index %" PRId64 " in '%s' is outside %" PRId64 " entries", list[i],
                         opi_b_value(b, indices)->name, extent);
  }
  return OPIPE_OK;
}

static opipe_status infer_gather(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *at = NULL;
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t axis = 0, rank = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_in(b, node, 1, &at, err));
  OPI_TRY(opi_check_type(b, node, at, OPI_TYPES_INDEX, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  OPI_TRY(check_range(b, node, node->in[1], x->shape[axis], err));
  for (uint32_t d = 0; d < axis; ++d)
    shape[rank++] = x->shape[d];
  for (int32_t d = 0; d < at->rank; ++d)
    shape[rank++] = at->shape[d];
  for (int32_t d = (int32_t)axis + 1; d < x->rank; ++d)
    shape[rank++] = x->shape[d];
  return opi_b_set(b, node, 0, x->dtype, shape, rank, err);
}

/* Do known indices pick, at coordinate c of the part that their dimension d holds before `inner`
 * others, from part c alone, and from the same place in every part? */
static bool picks_own_part(const opi_value *x, const opi_value *at, const opi_carry *carry,
                           uint32_t d, int64_t inner) {
  const int64_t extent = x->shape[carry->axis], length = opi_carry_length(x, carry);
  const uint64_t elems = opi_elems(at);
  uint64_t stride = (uint64_t)inner;
  for (int32_t e = (int32_t)d + 1; e < at->rank; ++e)
    stride *= (uint64_t)at->shape[e];
  for (uint64_t i = 0; i < elems; ++i) {
    const uint64_t c = i / stride % (uint64_t)length;
    const int64_t given = opi_index_at(at, i), first = opi_index_at(at, i - c * stride);
    const int64_t p = given < 0 ? given + extent : given, p0 = first < 0 ? first + extent : first;
    if (p / carry->inner % length != (int64_t)c)
      return false;
    if (p - (int64_t)c * carry->inner != p0)
      return false;
  }
  return elems != 0;
}

/* Data flattened over the axis and picked by [part, ...], [part * rows, ...] or [rows * part, ...]:
 * a mask read by computed positions, windows that overlap (as_strided). */
static opipe_status carry_picked(const opi_graph *graph, const opi_node *node,
                                 const opi_carry *carry, opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
  const int64_t length = opi_carry_length(x, carry);
  for (uint32_t d = 0; at->data != NULL && d < (uint32_t)at->rank; ++d) {
    if (length == 0 || at->shape[d] == 0 || at->shape[d] % length != 0)
      continue;
    const int64_t rows = at->shape[d] / length;
    const bool leads = picks_own_part(x, at, carry, d, rows);
    if (!leads && (rows == 1 || !picks_own_part(x, at, carry, d, 1)))
      continue;
    out[0] = (opi_carry){carry->axis + (int32_t)d, 0, leads ? 1 : rows, leads ? rows : 1, 0};
    return OPIPE_OK;
  }
  return opi_carry_fail(graph, node, err, "entries of dimension %" PRId32 " of '%s' are picked",
                        carry->axis, x->name);
}

static opipe_status carry_gather(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const int32_t axis = (int32_t)opi_attr_int(node, "axis", 0);
  const opi_value *at = &graph->values[node->in[1]];
  if (opi_carries(&in[0]) && opi_carries(&in[1]))
    return opi_carry_fail(graph, node, err, "both data and indices hold it");
  if (opi_carries(&in[0]) && in[0].axis == axis)
    return carry_picked(graph, node, &in[0], out, err);
  out[0] = opi_carries(&in[1]) ? in[1] : in[0];
  if (opi_carries(&in[1]))
    out[0].axis += axis;
  else if (in[0].axis > axis)
    out[0].axis += at->rank - 1;
  return OPIPE_OK;
}

/* -- GatherElements -- */

static opipe_status infer_gather_elements(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *at = NULL;
  uint32_t axis = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_in(b, node, 1, &at, err));
  OPI_TRY(opi_check_type(b, node, at, OPI_TYPES_INDEX, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  if (at->rank != x->rank) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "'%s' has rank %" PRId32 ", '%s' has %" PRId32, x->name, x->rank, at->name,
                         at->rank);
  }
  for (int32_t d = 0; d < x->rank; ++d) {
    if (d == (int32_t)axis || at->shape[d] <= x->shape[d])
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "dimension %" PRId32 " of '%s' is %" PRId64 ", of '%s' %" PRId64, d,
                         at->name, at->shape[d], x->name, x->shape[d]);
  }
  OPI_TRY(check_range(b, node, node->in[1], x->shape[axis], err));
  return opi_b_set(b, node, 0, x->dtype, at->shape, (uint32_t)at->rank, err);
}

static opipe_status carry_gather_elements(const opi_graph *graph, const opi_node *node,
                                          const opi_carry *in, opi_carry *out, opipe_error *err) {
  const int32_t axis = (int32_t)opi_attr_int(node, "axis", 0);
  for (uint32_t i = 0; i < 2; ++i) {
    if (!opi_carries(&in[i]) || in[i].axis != axis)
      continue;
    return opi_carry_fail(graph, node, err, "entries of dimension %" PRId32 " are picked", axis);
  }
  OPI_TRY(opi_carry_broadcast(graph, node, in, out, err));
  const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
  if (!opi_carries(&out[0]) || x->shape[out[0].axis] == at->shape[out[0].axis])
    return OPIPE_OK;
  return opi_carry_fail(
      graph, node, err, "dimension %" PRId32 " is %" PRId64 " in '%s', %" PRId64 " in '%s'",
      out[0].axis, x->shape[out[0].axis], x->name, at->shape[out[0].axis], at->name);
}

/* -- OneHot -- */

static opipe_status lift_one_hot(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *at = NULL, *given = NULL;
  uint32_t axis = 0, n = 0;
  const int64_t *depth = NULL;
  int64_t whole = 0;
  OPI_TRY(opi_in(b, node, 0, &at, err));
  OPI_TRY(opi_in(b, node, 1, &given, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", -1, (uint32_t)at->rank + 1, &axis, err));
  if (opi_dtype_is_float(given->dtype)) {
    uint32_t as_int = OPIPE_NONE;
    const opipe_attr to = OPI_ATTR_I("to", OPIPE_INT64);
    const opi_emit emit = {
        .op = "Cast", .in = &node->in[1], .n_in = 1, .n_out = 1, .attrs = &to, .n_attrs = 1};
    OPI_TRY(opi_b_emit(b, &emit, &as_int, err));
    depth = opi_b_ints(b, as_int, &n);
    if (depth == NULL)
      return opi_need_value(b, node, node->in[1], err);
  } else {
    OPI_TRY(opi_known_ints(b, node, 1, &depth, &n, err));
  }
  if (n != 1 || depth[0] < 1) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "depth '%s' is not one number above 0",
                         given->name);
  }
  whole = depth[0];
  uint32_t in[3] = {node->in[0], opi_b_const(b, OPIPE_INT64, NULL, 0, &whole), node->in[2]};
  if (in[1] == OPIPE_NONE)
    return opi_fail_nomem(err, 8, "a constant");
  const opipe_attr attr = OPI_ATTR_I("axis", axis);
  return opi_b_lift(b, node, "OneHot", in, 3, &attr, 1, err);
}

static opipe_status infer_one_hot(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *at = NULL, *values = NULL;
  const int64_t *depth = NULL;
  int64_t shape[OPIPE_MAX_RANK + 1];
  uint32_t axis = 0, n = 0;
  OPI_TRY(opi_in(b, node, 0, &at, err));
  OPI_TRY(opi_in(b, node, 2, &values, err));
  OPI_TRY(opi_check_type(b, node, at, OPI_TYPES_INTEGER | OPI_TYPES_FLOAT, err));
  OPI_TRY(opi_known_ints(b, node, 1, &depth, &n, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", -1, (uint32_t)at->rank + 1, &axis, err));
  if (n != 1 || values->rank != 1 || values->shape[0] != 2) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "values '%s' is not [off, on]",
                         values->name);
  }
  for (uint32_t d = 0, from = 0; d <= (uint32_t)at->rank; ++d)
    shape[d] = d == axis ? depth[0] : at->shape[from++];
  return opi_b_set(b, node, 0, values->dtype, shape, (uint32_t)at->rank + 1, err);
}

static opipe_status carry_one_hot(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  OPI_TRY(opi_carry_same(graph, node, in, out, err));
  if (in[0].axis >= opi_attr_int(node, "axis", 0))
    ++out[0].axis;
  return OPIPE_OK;
}

/* -- TopK -- */

static opipe_status lift_top_k(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *k = NULL;
  uint32_t axis = 0, n = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", -1, (uint32_t)x->rank, &axis, err));
  OPI_TRY(opi_attr_or_input(b, node, "k", 1, &k, &n, err));
  if (n != 1)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "k is not one number");
  uint32_t in[2] = {node->in[0], OPIPE_NONE};
  OPI_TRY(opi_ints_value(b, k, 1, &in[1], err));
  const opipe_attr attrs[3] = {OPI_ATTR_I("axis", axis),
                               OPI_ATTR_I("largest", opi_attr_int(node, "largest", 1) != 0),
                               OPI_ATTR_I("sorted", opi_attr_int(node, "sorted", 1) != 0)};
  return opi_b_lift(b, node, "TopK", in, 2, attrs, 3, err);
}

static opipe_status infer_top_k(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *k = NULL;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis = 0, n = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", -1, (uint32_t)x->rank, &axis, err));
  OPI_TRY(opi_known_ints(b, node, 1, &k, &n, err));
  if (n != 1 || k[0] < 0 || k[0] > x->shape[axis]) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "k is %" PRId64 ", dimension %" PRIu32 " of '%s' is %" PRId64,
                         n == 1 ? k[0] : -1, axis, x->name, x->shape[axis]);
  }
  memcpy(shape, x->shape, (size_t)x->rank * sizeof(*shape));
  shape[axis] = k[0];
  OPI_TRY(opi_b_set(b, node, 0, x->dtype, shape, (uint32_t)x->rank, err));
  return opi_b_set(b, node, 1, OPIPE_INT64, shape, (uint32_t)x->rank, err);
}

static opipe_status carry_top_k(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  const uint32_t axis = (uint32_t)opi_attr_int(node, "axis", 0);
  return opi_carry_mixing(graph, node, in, out, axis, axis + 1, "sorted", err);
}

/* -- NonZero -- */

static bool is_nonzero(const opi_value *x, uint64_t i) {
  const uint32_t size = opi_dtype_bits(x->dtype) / 8;
  const uint8_t *at = (const uint8_t *)x->data + i * size;
  uint8_t any = 0;
  for (uint32_t k = 0; k < size; ++k) {
    const bool sign_byte = opi_dtype_is_float(x->dtype) && k + 1 == size;
    any |= (uint8_t)(at[k] & (sign_byte ? 0x7f : 0xff)); /* -0.0 is zero */
  }
  return any != 0;
}

static opipe_status lift_non_zero(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  if (x->data == NULL)
    return opi_need_value(b, node, node->in[0], err);
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER | OPI_TYPES_BOOL, err));
  const uint64_t elems = opi_elems(x);
  uint64_t n = 0, k = 0;
  for (uint64_t i = 0; i < elems; ++i)
    n += is_nonzero(x, i);
  const int64_t shape[2] = {x->rank, (int64_t)n};
  int64_t *found = OPI_ARENA_ARRAY(b->scratch, int64_t, (size_t)((uint64_t)x->rank * n));
  if (found == NULL)
    return opi_fail_nomem(err, (uint64_t)x->rank * n * 8, "found indices");
  for (uint64_t i = 0; i < elems; ++i) {
    if (!is_nonzero(x, i))
      continue;
    uint64_t rest = i;
    for (int32_t d = x->rank; d-- > 0;) {
      found[(uint64_t)d * n + k] = (int64_t)(rest % (uint64_t)x->shape[d]);
      rest /= (uint64_t)x->shape[d];
    }
    ++k;
  }
  const uint32_t out = opi_b_const(b, OPIPE_INT64, shape, 2, found);
  if (out == OPIPE_NONE)
    return opi_fail_nomem(err, (uint64_t)x->rank * n * 8, "found indices");
  return opi_b_result(b, node, 0, out, err);
}

static opipe_status infer_non_zero(opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_need_value(b, node, node->in[0], err);
}

static const opi_op ops[] = {
    {OPI_OP("Gather", "", 1, OPI_NEWEST_ONNX, 2, 2, 1, 1),
     OPI_ATTRS(13, OPI_A(INT, "axis", OPI_PRESET(0))), .lift = lift_gather, .infer = infer_gather,
     .work = opi_work_move, .carry = carry_gather, .gradient = opi_gradient_gather,
     .stops_gradient = 0x2, OPI_COLUMNS(ROWS, PICKS, ROWS, RISING, AXIS, PLAIN, FIRST)},
    {OPI_OP("GatherElements", "", 11, OPI_NEWEST_ONNX, 2, 2, 1, 1),
     OPI_ATTRS(13, OPI_A(INT, "axis", OPI_PRESET(0))), .lift = lift_gather,
     .infer = infer_gather_elements, .work = opi_work_move, .carry = carry_gather_elements,
     .gradient = opi_gradient_gather_elements, .stops_gradient = 0x2,
     OPI_COLUMNS(ENTRIES, PICKS, ROWS, RISING, AXIS, PLAIN, FIRST)},
    {OPI_OP("OneHot", "", 9, OPI_NEWEST_ONNX, 3, 3, 1, 1),
     OPI_ATTRS(28, OPI_A(INT, "axis", OPI_PRESET(-1))), .lift = lift_one_hot,
     .infer = infer_one_hot, .work = opi_work_move, .carry = carry_one_hot,
     .gradient = opi_gradient_one_hot, .stops_gradient = 0x3,
     OPI_COLUMNS(NONE, COMMON, NUMBERS, ANY, DEPTH, PLAIN, NEVER)},
    {OPI_OP("TopK", "", 1, OPI_NEWEST_ONNX, 1, 2, 1, 2),
     OPI_ATTRS(24, OPI_A(INT, "axis", OPI_PRESET(-1)), OPI_A(INT, "k", .until = 9),
               OPI_A(INT, "sorted", .since = 11, OPI_NO_EFFECT),
               OPI_A(INT, "largest", .since = 11, OPI_PRESET(1))),
     .lift = lift_top_k, .infer = infer_top_k, .carry = carry_top_k, .gradient = opi_gradient_top_k,
     .stops_gradient = 0x2, OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, PLAIN, NEVER)},
    {OPI_OP("NonZero", "", 9, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_NO_ATTRS(13), .lift = lift_non_zero,
     .infer = infer_non_zero, .stops_gradient = UINT64_MAX,
     OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, PLAIN, NEVER)},
};
extern const opi_op_family opi_ops_index;
const opi_op_family opi_ops_index = {ops, OPI_COUNT(ops)};
