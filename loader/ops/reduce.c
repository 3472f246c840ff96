/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions along axes: ReduceMean Sum Max Min Prod L1 L2 SumSquare LogSum LogSumExp, ArgMax,
 * ArgMin, CumSum.
 *
 * Canonical forms left in a bound graph:
 *   Reduce*(x, axes)   axes: known int64, rising, >= 0, each once (all of them when the file gives
 * none); attribute keepdims. Empty axes with noop_with_empty_axes: nothing is reduced, but the
 * function of one element still applies (ReduceL1 becomes |x|); ReduceSum, Mean, Max, Min, Prod
 * then vanish. ArgMax, ArgMin(x)  attributes axis >= 0, keepdims, select_last_index; output int64.
 *   CumSum(x, axis)    axis: known int64 of rank 0, >= 0; attributes exclusive, reverse.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"

/* -- Reduce* -- */

static opipe_status mark_axes(opi_builder *b, const opi_node *node, const opi_value *x,
                              bool *marked, opipe_error *err) {
  const int64_t *axes = NULL;
  uint32_t n = 0;
  OPI_TRY(opi_attr_or_input(b, node, "axes", 1, &axes, &n, err));
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t axis = 0;
    if (!opi_axis(axes[i], (uint32_t)x->rank, &axis)) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "axis %" PRId64 " is outside rank %" PRId32 " of '%s'", axes[i], x->rank,
                           x->name);
    }
    marked[axis] = true;
  }
  if (n == 0 && opi_attr_int(node, "noop_with_empty_axes", 0) == 0) {
    for (int32_t d = 0; d < x->rank; ++d)
      marked[d] = true;
  }
  return OPIPE_OK;
}

static bool keeps_single(const char *op) {
  static const char *const names[] = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin",
                                      "ReduceProd"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    if (strcmp(op, names[i]) == 0)
      return true;
  }
  return false;
}

static opipe_status lift_reduce(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  bool marked[OPIPE_MAX_RANK] = {false};
  int64_t axes[OPIPE_MAX_RANK];
  uint32_t n = 0, in[2] = {node->in[0], OPIPE_NONE};
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(mark_axes(b, node, x, marked, err));
  for (int32_t d = 0; d < x->rank; ++d) {
    if (marked[d])
      axes[n++] = d;
  }
  if (n == 0 && keeps_single(node->op))
    return opi_b_result(b, node, 0, node->in[0], err);
  OPI_TRY(opi_ints_value(b, axes, n, &in[1], err));
  const opipe_attr attrs[2] = {OPI_ATTR_I("keepdims", opi_attr_int(node, "keepdims", 1) != 0),
                               OPI_ATTR_I("noop_with_empty_axes", 1)};
  return opi_b_lift(b, node, node->op, in, 2, attrs, 2, err);
}

static opipe_status infer_reduce(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  bool marked[OPIPE_MAX_RANK] = {false};
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  const bool order = strcmp(node->op, "ReduceMax") == 0 || strcmp(node->op, "ReduceMin") == 0;
  OPI_TRY(opi_check_type(b, node, x,
                         OPI_TYPES_FLOAT | OPI_TYPES_INTEGER | (order ? OPI_TYPES_BOOL : 0), err));
  OPI_TRY(mark_axes(b, node, x, marked, err));
  const bool keep = opi_attr_int(node, "keepdims", 1) != 0;
  for (int32_t d = 0; d < x->rank; ++d) {
    if (!marked[d])
      shape[rank++] = x->shape[d];
    else if (keep)
      shape[rank++] = 1;
  }
  return opi_b_set(b, node, 0, x->dtype, shape, rank, err);
}

static opipe_status carry_reduce(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const opi_value *axes = &graph->values[node->in[1]];
  const int64_t *list = axes->data;
  const bool keep = opi_attr_int(node, "keepdims", 1) != 0;
  OPI_TRY(opi_carry_same(graph, node, in, out, err));
  if (!opi_carries(&in[0]))
    return OPIPE_OK;
  for (int64_t i = 0; list != NULL && i < axes->shape[0]; ++i) {
    if (list[i] == in[0].axis) {
      return opi_carry_fail(graph, node, err, "dimension %" PRId64 " of '%s' is reduced", list[i],
                            graph->values[node->in[0]].name);
    }
    if (!keep && list[i] < in[0].axis)
      --out[0].axis;
  }
  return OPIPE_OK;
}

/* One operation per element read. */
static void work_reduce(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  out_work->flops = (double)opi_elems(x);
  out_work->bytes = (double)x->n_bytes + (double)y->n_bytes;
}

/* -- ArgMax, ArgMin -- */

static opipe_status lift_arg(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  uint32_t axis = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  const opipe_attr attrs[3] = {
      OPI_ATTR_I("axis", axis), OPI_ATTR_I("keepdims", opi_attr_int(node, "keepdims", 1) != 0),
      OPI_ATTR_I("select_last_index", opi_attr_int(node, "select_last_index", 0) != 0)};
  return opi_b_lift(b, node, node->op, node->in, node->n_in, attrs, 3, err);
}

static opipe_status infer_arg(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis = 0, rank = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  if (x->shape[axis] == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "dimension %" PRIu32 " of '%s' is empty",
                         axis, x->name);
  }
  const bool keep = opi_attr_int(node, "keepdims", 1) != 0;
  for (uint32_t d = 0; d < (uint32_t)x->rank; ++d) {
    if (d != axis || keep)
      shape[rank++] = d == axis ? 1 : x->shape[d];
  }
  return opi_b_set(b, node, 0, OPIPE_INT64, shape, rank, err);
}

static opipe_status carry_arg(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                              opi_carry *out, opipe_error *err) {
  const uint32_t axis = (uint32_t)opi_attr_int(node, "axis", 0);
  OPI_TRY(opi_carry_mixing(graph, node, in, out, axis, axis + 1, "reduced", err));
  if (opi_attr_int(node, "keepdims", 1) == 0 && in[0].axis > (int32_t)axis)
    --out[0].axis;
  return OPIPE_OK;
}

/* -- CumSum -- */

static opipe_status read_cum_axis(opi_builder *b, const opi_node *node, int64_t *out_axis,
                                  opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *given = NULL;
  uint32_t n = 0, axis = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_known_ints(b, node, 1, &given, &n, err));
  if (n != 1 || !opi_axis(given[0], (uint32_t)x->rank, &axis)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "axis %" PRId64 " is outside rank %" PRId32 " of '%s'",
                         n == 1 ? given[0] : -1, x->rank, x->name);
  }
  *out_axis = axis;
  return OPIPE_OK;
}

static opipe_status lift_cum_sum(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t axis = 0;
  OPI_TRY(read_cum_axis(b, node, &axis, err));
  const uint32_t in[2] = {node->in[0], opi_b_const(b, OPIPE_INT64, NULL, 0, &axis)};
  if (in[1] == OPIPE_NONE)
    return opi_fail_nomem(err, 8, "a constant");
  const opipe_attr attrs[2] = {OPI_ATTR_I("exclusive", opi_attr_int(node, "exclusive", 0) != 0),
                               OPI_ATTR_I("reverse", opi_attr_int(node, "reverse", 0) != 0)};
  return opi_b_lift(b, node, "CumSum", in, 2, attrs, 2, err);
}

static opipe_status infer_cum_sum(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t axis = 0;
  OPI_TRY(read_cum_axis(b, node, &axis, err));
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  return opi_infer_same(b, node, err);
}

static opipe_status carry_cum_sum(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  const opi_value *axis = &graph->values[node->in[1]];
  const uint32_t at = axis->data != NULL ? (uint32_t) * (const int64_t *)axis->data : 0;
  return opi_carry_mixing(graph, node, in, out, at, at + 1, "summed along", err);
}

#define REDUCE(name_, range_, kind_, sums_, attrs_)                                             \
  {                                                                                             \
    OPI_OP(name_, "", 1, OPI_NEWEST_ONNX, 1, 2, 1, 1), attrs_,                                  \
        .lift = lift_reduce, .infer = infer_reduce, .work = work_reduce, .carry = carry_reduce, \
        .gradient = opi_gradient_reduce, .stops_gradient = 0x2,                                 \
        OPI_COLUMNS(NONE, WIDE, OTHER, range_, NONE, kind_, sums_)                              \
  }

/* axes are an attribute up to opset last_, an input behind it. */
#define AXES(schema_, last_)                                            \
  OPI_ATTRS(schema_, OPI_A(INTS, "axes", .until = (last_), .input = 1), \
            OPI_A(INT, "keepdims", OPI_PRESET(1)),                      \
            OPI_A(INT, "noop_with_empty_axes", .since = (last_) + 1, OPI_PRESET(0)))

static const opi_op ops[] = {
    REDUCE("ReduceMean", ANY, MEAN, FIRST, AXES(18, 17)),
    REDUCE("ReduceSum", RISING, SUM, AXES, AXES(13, 12)),
    REDUCE("ReduceMax", RISING, REDUCTION, NEVER, AXES(20, 17)),
    REDUCE("ReduceMin", RISING, REDUCTION, NEVER, AXES(20, 17)),
    REDUCE("ReduceProd", ANY, REDUCTION, NEVER, AXES(18, 17)),
    REDUCE("ReduceL1", ANY, REDUCTION, NEVER, AXES(18, 17)),
    REDUCE("ReduceL2", ANY, REDUCTION, NEVER, AXES(18, 17)),
    REDUCE("ReduceSumSquare", ANY, REDUCTION, NEVER, AXES(18, 17)),
    REDUCE("ReduceLogSum", ANY, REDUCTION, NEVER, AXES(28, 17)),
    REDUCE("ReduceLogSumExp", ANY, REDUCTION, NEVER, AXES(28, 17)),
    {OPI_OP("ArgMax", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(13, OPI_A(INT, "keepdims", OPI_PRESET(1)), OPI_A(INT, "axis", OPI_PRESET(0)),
               OPI_A(INT, "select_last_index", .since = 12, OPI_PRESET(0))),
     .lift = lift_arg, .infer = infer_arg, .work = work_reduce, .carry = carry_arg,
     .stops_gradient = UINT64_MAX, OPI_COLUMNS(NONE, COMMON, OTHER, PLACE, NONE, PLAIN, NEVER)},
    {OPI_OP("ArgMin", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(13, OPI_A(INT, "keepdims", OPI_PRESET(1)), OPI_A(INT, "axis", OPI_PRESET(0)),
               OPI_A(INT, "select_last_index", .since = 12, OPI_PRESET(0))),
     .lift = lift_arg, .infer = infer_arg, .work = work_reduce, .carry = carry_arg,
     .stops_gradient = UINT64_MAX, OPI_COLUMNS(NONE, COMMON, OTHER, PLACE, NONE, PLAIN, NEVER)},
    {OPI_OP("CumSum", "", 11, OPI_NEWEST_ONNX, 2, 2, 1, 1),
     OPI_ATTRS(14, OPI_A(INT, "reverse", OPI_PRESET(0)), OPI_A(INT, "exclusive", OPI_PRESET(0))),
     .lift = lift_cum_sum, .infer = infer_cum_sum, .work = work_reduce, .carry = carry_cum_sum,
     .gradient = opi_gradient_cum_sum, .stops_gradient = 0x2,
     OPI_COLUMNS(NONE, WIDE, OTHER, RUNNING_SUM, NONE, PLAIN, FIRST)},
};
extern const opi_op_family opi_ops_reduce;
const opi_op_family opi_ops_reduce = {ops, OPI_COUNT(ops)};
