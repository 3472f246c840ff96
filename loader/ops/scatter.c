/* SPDX-License-Identifier: Apache-2.0 */
/* Writing by index: ScatterElements (and its old name Scatter), ScatterND, TensorScatter, Append.
 *
 * Canonical forms: ScatterElements(data, indices, updates) with attributes axis >= 0 and reduction;
 * ScatterND(data, indices, updates) with attribute reduction. reduction: none add mul max min.
 * Where indices repeat, updates are applied in row-major order.
 * TensorScatter(past, update, write_indices?) with attributes axis > 0 and mode linear or circular:
 * a cache with one row's updates from that row's own place on.
 * opipe.Append(past [B, H, C, D], fresh [B, H, S, D], before [B]) with attributes axis 2 and rows:
 * [B, H, rows, D], a sequence's before[b] first rows of the past, then its fresh ones; behind them
 * the rest of the past if rows is C, else zeros.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"

static opipe_status check_reduction(const opi_builder *b, const opi_node *node, const char **out,
                                    opipe_error *err) {
  static const char *const known[] = {"none", "add", "mul", "max", "min"};
  *out = opi_attr_string(node, "reduction", "none");
  for (size_t i = 0; i < OPI_COUNT(known); ++i) {
    if (strcmp(*out, known[i]) == 0)
      return OPIPE_OK;
  }
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "reduction '%s' is not known", *out);
}

static opipe_status lift_elements(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const char *reduction = NULL;
  uint32_t axis = 0, out = OPIPE_NONE;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  OPI_TRY(check_reduction(b, node, &reduction, err));
  const opipe_attr attrs[2] = {OPI_ATTR_I("axis", axis), OPI_ATTR_S("reduction", reduction)};
  const opi_emit emit = {.op = "ScatterElements",
                         .in = node->in,
                         .n_in = node->n_in,
                         .n_out = 1,
                         .attrs = attrs,
                         .n_attrs = 2};
  OPI_TRY(opi_b_emit(b, &emit, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

/* Data, indices and updates; indices are integers. */
static opipe_status read_inputs(opi_builder *b, const opi_node *node, const opi_value **out_x,
                                const opi_value **out_at, const opi_value **out_up,
                                opipe_error *err) {
  OPI_TRY(opi_in(b, node, 0, out_x, err));
  OPI_TRY(opi_in(b, node, 1, out_at, err));
  OPI_TRY(opi_in(b, node, 2, out_up, err));
  return opi_check_type(b, node, *out_at, OPI_TYPES_INDEX, err);
}

static opipe_status misfit(const opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0), *at = opi_input(b, node, 1);
  const opi_value *up = opi_input(b, node, 2);
  char shapes[3][80];
  return opi_node_fail(
      b, node, err, OPIPE_E_INVALID, "data %s of %s, indices %s, updates %s of %s do not fit",
      opi_shape_text(shapes[0], 80, x->shape, (uint32_t)x->rank), opi_dtype_name(x->dtype),
      opi_shape_text(shapes[1], 80, at->shape, (uint32_t)at->rank),
      opi_shape_text(shapes[2], 80, up->shape, (uint32_t)up->rank), opi_dtype_name(up->dtype));
}

static opipe_status infer_elements(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *at = NULL, *up = NULL;
  uint32_t axis = 0;
  OPI_TRY(read_inputs(b, node, &x, &at, &up, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  bool fits = at->rank == x->rank && up->rank == x->rank && up->dtype == x->dtype;
  for (int32_t d = 0; fits && d < x->rank; ++d)
    fits = at->shape[d] == up->shape[d] && (d == (int32_t)axis || at->shape[d] <= x->shape[d]);
  if (fits)
    return opi_infer_same(b, node, err);
  return misfit(b, node, err);
}

static opipe_status carry_elements(const opi_graph *graph, const opi_node *node,
                                   const opi_carry *in, opi_carry *out, opipe_error *err) {
  const int32_t axis = (int32_t)opi_attr_int(node, "axis", 0);
  for (uint32_t i = 0; i < 3; ++i) {
    if (!opi_carries(&in[i]) || in[i].axis != axis)
      continue;
    return opi_carry_fail(graph, node, err, "entries of dimension %" PRId32 " are written", axis);
  }
  OPI_TRY(opi_carry_broadcast(graph, node, in, out, err));
  const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
  if (!opi_carries(&out[0]) || x->shape[out[0].axis] == at->shape[out[0].axis])
    return OPIPE_OK;
  return opi_carry_fail(graph, node, err, "only %" PRId64 " of %" PRId64 " entries are written",
                        at->shape[out[0].axis], x->shape[out[0].axis]);
}

static opipe_status lift_nd(opi_builder *b, const opi_node *node, opipe_error *err) {
  const char *reduction = NULL;
  OPI_TRY(check_reduction(b, node, &reduction, err));
  const opipe_attr attr = OPI_ATTR_S("reduction", reduction);
  return opi_b_lift(b, node, "ScatterND", node->in, node->n_in, &attr, 1, err);
}

static opipe_status infer_nd(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *at = NULL, *up = NULL;
  OPI_TRY(read_inputs(b, node, &x, &at, &up, err));
  const int64_t n = at->rank > 0 ? at->shape[at->rank - 1] : -1;
  bool fits = n >= 0 && n <= x->rank && up->dtype == x->dtype &&
              up->rank == at->rank - 1 + x->rank - (int32_t)n;
  for (int32_t d = 0; fits && d < up->rank; ++d)
    fits = up->shape[d] == (d + 1 < at->rank ? at->shape[d] : x->shape[n + d - at->rank + 1]);
  if (fits)
    return opi_infer_same(b, node, err);
  return misfit(b, node, err);
}

/* Does input i hold the axis in dimension d alone, or is it the same all along it? */
static bool holds(const opi_graph *graph, const opi_node *node, const opi_carry *in, uint32_t i,
                  uint32_t d, int64_t length) {
  if (!opi_carries(&in[i]))
    return opi_is_uniform(graph, node->in[i], d, 1, length, 1);
  return in[i].axis == (int32_t)d && in[i].outer == 1 && in[i].inner == 1;
}

/* The axis is an indexed dimension c, and known indices count it along a dimension of their own
 * (an assignment to part of every row, as the older exporter writes it): each row's updates go to
 * that row. */
static opipe_status carry_counted(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
  const uint32_t n = (uint32_t)at->shape[at->rank - 1];
  for (uint32_t d = 0; at->data != NULL && d + 1 < (uint32_t)at->rank; ++d) {
    for (uint32_t c = 0; c < n; ++c) {
      const int64_t length = at->shape[d];
      if (length != x->shape[c] || length == 0 || !holds(graph, node, in, 0, c, length) ||
          !holds(graph, node, in, 2, d, length) || !opi_index_is_coordinate(at, d, c) ||
          !opi_index_others_are_uniform(at, d, c))
        continue;
      out[0] = (opi_carry){(int32_t)c, 0, 1, 1, 0};
      return OPIPE_OK;
    }
  }
  if (opi_carries(&in[0]) && in[0].axis < (int32_t)n) {
    return opi_carry_fail(graph, node, err, "entries of dimension %" PRId32 " are written",
                          in[0].axis);
  }
  return opi_carry_fail(
      graph, node, err,
      "the updates hold it in dimension %" PRId32 ", which goes where indices say", in[2].axis);
}

/* Data and updates may hold the axis in the dimensions that are written whole. */
static opipe_status carry_nd(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                             opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]], *at = &graph->values[node->in[1]];
  const opi_value *up = &graph->values[node->in[2]];
  const int32_t n = (int32_t)at->shape[at->rank - 1];
  const int32_t shift = n - (at->rank - 1); /* dimension of updates -> dimension of data */
  out[0] = in[0];
  if (opi_carries(&in[1]))
    return opi_carry_fail(graph, node, err, "the indices hold it");
  if ((opi_carries(&in[2]) && in[2].axis < at->rank - 1) || (opi_carries(&in[0]) && in[0].axis < n))
    return carry_counted(graph, node, in, out, err);
  if (opi_carries(&in[0]) && opi_carries(&in[2])) {
    if (in[0].axis == in[2].axis + shift && in[0].outer == in[2].outer)
      return OPIPE_OK;
    return opi_carry_fail(graph, node, err, "data and updates hold it in different places");
  }
  const bool from_data = opi_carries(&in[0]);
  const opi_carry *held = from_data ? &in[0] : &in[2];
  const opi_value *holder = from_data ? x : up;
  const int32_t axis = from_data ? in[0].axis - shift : in[2].axis + shift;
  if (!from_data) {
    out[0] = in[2];
    out[0].axis = axis;
  }
  if (opi_is_uniform(graph, node->in[from_data ? 2 : 0], (uint32_t)axis, held->outer,
                     opi_carry_length(holder, held), held->inner))
    return OPIPE_OK;
  return opi_carry_fail(graph, node, err, "'%s' differs along it", from_data ? up->name : x->name);
}

/* -- TensorScatter -- */

enum { IN_PAST, IN_UPDATE, IN_WHERE };

static bool is_circular(const opi_node *node) {
  return strcmp(opi_attr_string(node, "mode", "linear"), "circular") == 0;
}

static opipe_status lift_tensor(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const char *mode = opi_attr_string(node, "mode", "linear");
  uint32_t axis = 0;
  OPI_TRY(opi_in(b, node, IN_PAST, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", -2, (uint32_t)x->rank, &axis, err));
  if (strcmp(mode, "linear") != 0 && !is_circular(node))
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "mode '%s' is not known", mode);
  const opipe_attr attrs[2] = {OPI_ATTR_I("axis", axis), OPI_ATTR_S("mode", mode)};
  return opi_b_lift(b, node, "TensorScatter", node->in, node->n_in, attrs, 2, err);
}

/* Places that are known are there. */
static opipe_status check_places(const opi_builder *b, const opi_node *node, const opi_value *at,
                                 int64_t most, opipe_error *err) {
  for (uint64_t i = 0; at->data != NULL && i < opi_elems(at) && !is_circular(node); ++i) {
    const int64_t first = opi_index_at(at, i);
    if (first < 0 || first > most) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "row %" PRIu64 " is written from %" PRId64 " on, 0 to %" PRId64
                           " are there",
                           i, first, most);
    }
  }
  return OPIPE_OK;
}

static opipe_status infer_tensor(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *up = NULL, *at = opi_in_optional(b, node, IN_WHERE);
  uint32_t axis = 0;
  char of[80], has[80];
  OPI_TRY(opi_in(b, node, IN_PAST, &x, err));
  OPI_TRY(opi_in(b, node, IN_UPDATE, &up, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", -2, (uint32_t)x->rank, &axis, err));
  if (axis == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "axis is 0, which holds the rows of '%s'",
                         x->name);
  }
  bool fits = up->rank == x->rank && up->dtype == x->dtype;
  for (uint32_t d = 0; fits && d < (uint32_t)x->rank; ++d)
    fits = d == axis ? up->shape[d] <= x->shape[d] : up->shape[d] == x->shape[d];
  if (!fits) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "past %s of %s and update %s of %s do not fit along axis %" PRIu32,
                         opi_shape_text(of, sizeof(of), x->shape, (uint32_t)x->rank),
                         opi_dtype_name(x->dtype),
                         opi_shape_text(has, sizeof(has), up->shape, (uint32_t)up->rank),
                         opi_dtype_name(up->dtype), axis);
  }
  if (at == NULL)
    return opi_infer_same(b, node, err);
  OPI_TRY(opi_check_type(b, node, at, OPI_TYPES_INDEX, err));
  if (at->rank != 1 || at->shape[0] != x->shape[0]) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "write_indices '%s' are %s, past '%s' has %" PRId64 " rows", at->name,
                         opi_shape_text(has, sizeof(has), at->shape, (uint32_t)at->rank), x->name,
                         x->shape[0]);
  }
  OPI_TRY(check_places(b, node, at, x->shape[axis] - up->shape[axis], err));
  return opi_infer_same(b, node, err);
}

/* -- Append -- */

/* Lengths that are known are possible. */
static opipe_status check_before(const opi_builder *b, const opi_node *node, const opi_value *at,
                                 int64_t most, opipe_error *err) {
  for (uint64_t i = 0; at->data != NULL && i < opi_elems(at); ++i) {
    const int64_t n = opi_index_at(at, i);
    if (n < 0 || n > most) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "sequence %" PRIu64 " has %" PRId64
                           " rows before the new ones, 0 to "
                           "%" PRId64 " are possible",
                           i, n, most);
    }
  }
  return OPIPE_OK;
}

static opipe_status infer_append(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *past = NULL, *fresh = NULL, *at = NULL;
  const int64_t rows = opi_attr_int(node, "rows", 0);
  OPI_TRY(opi_in(b, node, IN_PAST, &past, err));
  OPI_TRY(opi_in(b, node, IN_UPDATE, &fresh, err));
  OPI_TRY(opi_in(b, node, IN_WHERE, &at, err));
  OPI_TRY(opi_check_type(b, node, at, OPI_TYPES_INDEX, err));
  bool fits = past->rank == 4 && fresh->rank == 4 && fresh->dtype == past->dtype && at->rank == 1 &&
              at->shape[0] == past->shape[0];
  for (uint32_t d = 0; fits && d < 4; ++d) {
    fits = d == 2 ? past->shape[d] <= rows && fresh->shape[d] <= rows
                  : past->shape[d] == fresh->shape[d];
  }
  if (!fits) {
    char of[80], has[80];
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID, "past %s and new rows %s do not make %" PRId64 " rows",
        opi_shape_text(of, sizeof(of), past->shape, (uint32_t)past->rank),
        opi_shape_text(has, sizeof(has), fresh->shape, (uint32_t)fresh->rank), rows);
  }
  const int64_t room = rows - fresh->shape[2];
  const int64_t shape[4] = {past->shape[0], past->shape[1], rows, past->shape[3]};
  OPI_TRY(check_before(b, node, at, past->shape[2] < room ? past->shape[2] : room, err));
  return opi_b_set(b, node, 0, past->dtype, shape, 4, err);
}

/* Rows and all dimensions but the one that is written; places go with the rows. */
static opipe_status carry_tensor(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const int32_t axis = (int32_t)opi_attr_int(node, "axis", 0);
  const uint32_t first = opi_carries(&in[IN_PAST]) ? IN_PAST : IN_UPDATE;
  const bool placed = opi_node_in(node, IN_WHERE) != OPIPE_NONE;
  opi_carry held = in[first];
  int64_t length = 0;
  if (!opi_carries(&held) && placed && opi_carries(&in[IN_WHERE]))
    held = in[IN_WHERE];
  out[0] = held;
  if (!opi_carries(&held))
    return OPIPE_OK;
  if (held.axis == axis || held.count != 0) {
    return opi_carry_fail(graph, node, err,
                          "entries of dimension %" PRId32
                          " are written where "
                          "write_indices say",
                          held.axis);
  }
  length = graph->values[node->in[IN_PAST]].shape[held.axis] / (held.outer * held.inner);
  for (uint32_t i = IN_PAST; i <= IN_WHERE; ++i) {
    const uint32_t v = opi_node_in(node, i);
    if (v == OPIPE_NONE || (i == IN_WHERE && held.axis != 0 && !opi_carries(&in[i])))
      continue;
    const bool alike = opi_carries(&in[i]) ? in[i].axis == held.axis && in[i].outer == held.outer &&
                                                 in[i].inner == held.inner && in[i].count == 0
                                           : opi_is_uniform(graph, v, (uint32_t)held.axis,
                                                            held.outer, length, held.inner);
    if (!alike)
      return opi_carry_fail(graph, node, err, "'%s' differs along it", graph->values[v].name);
  }
  return OPIPE_OK;
}

static const opi_op ops[] = {
    {OPI_OP("Scatter", "", 9, 10, 3, 3, 1, 1), OPI_ATTRS(9, OPI_A(INT, "axis", OPI_PRESET(0))),
     .lift = lift_elements},
    {OPI_OP("ScatterElements", "", 11, OPI_NEWEST_ONNX, 3, 3, 1, 1),
     OPI_ATTRS(18, OPI_A(INT, "axis", OPI_PRESET(0)),
               OPI_A(STRING, "reduction", .since = 16, OPI_TEXTS("none add mul max min"))),
     .lift = lift_elements, .infer = infer_elements, .work = opi_work_move, .carry = carry_elements,
     .gradient = opi_gradient_scatter_elements, .stops_gradient = 0x2,
     OPI_COLUMNS(SCATTERED, COMMON, OTHER, RISING, NONE, PLAIN, NEVER)},
    {OPI_OP("ScatterND", "", 11, OPI_NEWEST_ONNX, 3, 3, 1, 1),
     OPI_ATTRS(18, OPI_A(STRING, "reduction", .since = 16, OPI_TEXTS("none add mul max min"))),
     .lift = lift_nd, .infer = infer_nd, .work = opi_work_move, .carry = carry_nd,
     .gradient = opi_gradient_scatter_nd, .stops_gradient = 0x2,
     OPI_COLUMNS(SCATTERED, COMMON, OTHER, RISING, NONE, PLAIN, NEVER)},
    {OPI_OP("TensorScatter", "", 24, OPI_NEWEST_ONNX, 2, 3, 1, 1),
     OPI_ATTRS(24, OPI_A(INT, "axis", OPI_PRESET(-2)),
               OPI_A(STRING, "mode", OPI_TEXTS("linear circular"))),
     .lift = lift_tensor, .infer = infer_tensor, .work = opi_work_move, .carry = carry_tensor,
     .gradient = opi_gradient_tensor_scatter, .stops_gradient = 0x4,
     OPI_COLUMNS(NONE, COMMON, OTHER, ANY, STARTS, PLAIN, NEVER)},
    {OPI_OP("Append", "opipe", 1, 1, 3, 3, 1, 1), .infer = infer_append, .work = opi_work_move,
     .carry = carry_tensor, OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, PLAIN, NEVER)},
};
extern const opi_op_family opi_ops_scatter;
const opi_op_family opi_ops_scatter = {ops, OPI_COUNT(ops)};
