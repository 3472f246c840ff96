/* SPDX-License-Identifier: Apache-2.0 */
/* Slice, in every form: attributes (opset < 10), inputs with steps (10 and later).
 *
 * Canonical form: Slice(x, starts, ends, axes, steps), all known int64 of one length, axes rising
 * and
 * >= 0, numbers clamped to the dimension: for a positive step 0 <= start <= end <= extent; for a
 * negative one extent > start >= end, where an end before the first element is INT64_MIN. Axes that
 * are taken whole are left out; a slice that takes everything vanishes.
 */
#include "loader/ops/slice.h"
#include "loader/ops/gradients.h"

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

/* One axis as given -> clamped; the number of elements taken. */
static opi_slice_axis clamp_axis(uint32_t axis, int64_t extent, int64_t start, int64_t end,
                                 int64_t step) {
  opi_slice_axis s = {.axis = axis, .step = step};
  if (start < 0)
    start = start < -extent ? -1 : start + extent;
  if (end < 0)
    end = end < -extent ? -1 : end + extent;
  if (step > 0) {
    s.start = clamp(start, 0, extent);
    s.end = clamp(end, s.start, extent);
    const uint64_t span = (uint64_t)(s.end - s.start);
    s.count = (int64_t)(span / (uint64_t)step + (span % (uint64_t)step != 0));
  } else {
    s.start = clamp(start, extent > 0 ? 0 : -1, extent - 1);
    s.end = clamp(end, -1, s.start);
    const uint64_t span = (uint64_t)(s.start - s.end), stride = 0 - (uint64_t)step;
    s.count = (int64_t)(span / stride + (span % stride != 0));
    if (s.start < 0)
      s.start = 0;
    if (s.end < 0)
      s.end = INT64_MIN;
    if (s.count == 0)
      s = (opi_slice_axis){.axis = axis, .step = 1};
  }
  return s;
}

typedef struct slice_inputs {
  const int64_t *starts, *ends, *axes, *steps; /* axes, steps: NULL when absent */
  uint32_t n;
} slice_inputs;

static opipe_status read_lists(opi_builder *b, const opi_node *node, slice_inputs *s,
                               opipe_error *err) {
  uint32_t n_ends = 0, n_axes = 0, n_steps = 0;
  OPI_TRY(opi_attr_or_input(b, node, "starts", 1, &s->starts, &s->n, err));
  OPI_TRY(opi_attr_or_input(b, node, "ends", 2, &s->ends, &n_ends, err));
  OPI_TRY(opi_attr_or_input(b, node, "axes", 3, &s->axes, &n_axes, err));
  OPI_TRY(opi_attr_or_input(b, node, "steps", 4, &s->steps, &n_steps, err));
  const bool fits = s->starts != NULL && s->ends != NULL && n_ends == s->n &&
                    (s->axes == NULL || n_axes == s->n) && (s->steps == NULL || n_steps == s->n);
  if (fits && s->n <= OPIPE_MAX_RANK)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "starts, ends, axes, steps have %" PRIu32 ", %" PRIu32 ", %" PRIu32
                       ", %" PRIu32 " entries",
                       s->n, n_ends, n_axes, n_steps);
}

opipe_status opi_slice_read(opi_builder *b, const opi_node *node, const opi_value *x,
                            opi_slice_axis *out_axes, uint32_t *out_n, opipe_error *err) {
  slice_inputs s = {0};
  bool seen[OPIPE_MAX_RANK] = {false};
  OPI_TRY(read_lists(b, node, &s, err));
  for (uint32_t i = 0; i < s.n; ++i) {
    uint32_t axis = 0;
    const int64_t given = s.axes != NULL ? s.axes[i] : (int64_t)i;
    const int64_t step = s.steps != NULL ? s.steps[i] : 1;
    if (!opi_axis(given, (uint32_t)x->rank, &axis) || seen[axis]) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "axis %" PRId64 " is outside rank %" PRId32 " or listed twice", given,
                           x->rank);
    }
    if (step == 0) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "the step of axis %" PRIu32 " is 0",
                           axis);
    }
    seen[axis] = true;
    out_axes[i] = clamp_axis(axis, x->shape[axis], s.starts[i], s.ends[i], step);
  }
  *out_n = s.n;
  return OPIPE_OK;
}

static void sort_axes(opi_slice_axis *axes, uint32_t n) {
  for (uint32_t i = 1; i < n; ++i) {
    const opi_slice_axis moved = axes[i];
    uint32_t k = i;
    for (; k > 0 && axes[k - 1].axis > moved.axis; --k)
      axes[k] = axes[k - 1];
    axes[k] = moved;
  }
}

static opipe_status lift_slice(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  opi_slice_axis axes[OPIPE_MAX_RANK];
  int64_t lists[4][OPIPE_MAX_RANK];
  uint32_t n = 0, kept = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_slice_read(b, node, x, axes, &n, err));
  sort_axes(axes, n);
  for (uint32_t i = 0; i < n; ++i) {
    const opi_slice_axis *s = &axes[i];
    if (s->step == 1 && s->count == x->shape[s->axis])
      continue;
    lists[0][kept] = s->start;
    lists[1][kept] = s->end;
    lists[2][kept] = s->axis;
    lists[3][kept++] = s->step;
  }
  if (kept == 0)
    return opi_b_result(b, node, 0, node->in[0], err);
  uint32_t in[5] = {node->in[0]};
  for (uint32_t l = 0; l < 4; ++l)
    OPI_TRY(opi_ints_value(b, lists[l], kept, &in[l + 1], err));
  return opi_b_lift(b, node, "Slice", in, 5, NULL, 0, err);
}

static opipe_status infer_slice(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  opi_slice_axis axes[OPIPE_MAX_RANK];
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t n = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_slice_read(b, node, x, axes, &n, err));
  for (int32_t d = 0; d < x->rank; ++d)
    shape[d] = x->shape[d];
  for (uint32_t i = 0; i < n; ++i)
    shape[axes[i].axis] = axes[i].count;
  return opi_b_set(b, node, 0, x->dtype, shape, (uint32_t)x->rank, err);
}

static opipe_status carry_slice(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  const opi_value *axes = &graph->values[node->in[3]];
  const int64_t *list = axes->data;
  OPI_TRY(opi_carry_same(graph, node, in, out, err));
  if (!opi_carries(&in[0]))
    return OPIPE_OK;
  for (int64_t i = 0; list != NULL && i < axes->shape[0]; ++i) {
    if (list[i] != in[0].axis)
      continue;
    return opi_carry_fail(graph, node, err, "dimension %" PRId64 " of '%s' is sliced", list[i],
                          graph->values[node->in[0]].name);
  }
  return OPIPE_OK;
}

static const opi_op ops[] = {
    {OPI_OP("Slice", "", 1, OPI_NEWEST_ONNX, 1, 5, 1, 1),
     OPI_ATTRS(13, OPI_A(INTS, "ends", .until = 9, .input = 2),
               OPI_A(INTS, "starts", .until = 9, .input = 1),
               OPI_A(INTS, "axes", .until = 9, .input = 3)),
     .lift = lift_slice, .infer = infer_slice, .work = opi_work_move, .carry = carry_slice,
     .gradient = opi_gradient_slice, .stops_gradient = 0x1e,
     OPI_COLUMNS(PART, COMMON, OTHER, RISING, NONE, PLAIN, FIRST)},
};
extern const opi_op_family opi_ops_slice;
const opi_op_family opi_ops_slice = {ops, OPI_COUNT(ops)};
