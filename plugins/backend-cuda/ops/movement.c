/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move elements. Reshape and its kin cost nothing; the others are strided copies.
 */
#include "ops/rule.h"

/* A copy of the elements that `loop` walks: operand 0 of value `from`, 1 of value `to`, with their
 * first elements at byte offsets. */
static opipe_status emit_move(cuda_rule *r, cuda_loop *loop, uint32_t to, int64_t to_bytes,
                              uint32_t from, int64_t from_bytes) {
  const opipe_value *value = &r->program->graph->values[from];
  cuda_move_args args = {.n = 1, .size = cuda_size(value)};
  cuda_launch launch;
  if (args.size == 0)
    return cuda_no_kernel(r, value);
  for (uint32_t i = 0; i < loop->rank; ++i)
    args.n *= loop->shape[i];
  if (args.n == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_loop_merge(r, loop));
  args.rank = loop->rank;
  for (uint32_t i = 0; i < loop->rank; ++i) {
    args.shape[i] = loop->shape[i];
    args.in_stride[i] = loop->stride[0][i];
    args.out_stride[i] = loop->stride[1][i];
  }
  args.in = cuda_at(r, from, from_bytes);
  args.out = cuda_at(r, to, to_bytes);
  return cuda_plan_move(&args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, value);
}

/* A loop over `shape` with dense operands. */
static cuda_loop dense_loop(const int64_t *shape, uint32_t rank) {
  cuda_loop loop = {.rank = rank, .n_operands = 2};
  if (rank > 0)
    memcpy(loop.shape, shape, rank * sizeof loop.shape[0]);
  opipe_dense_strides(shape, rank, loop.stride[0]);
  opipe_dense_strides(shape, rank, loop.stride[1]);
  return loop;
}

static opipe_status check_type(const cuda_rule *r, uint32_t i) {
  const opipe_value *x = cuda_in(r, 0), *y = cuda_out(r, i);
  return y == NULL || y->dtype == x->dtype
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_INVALID, "it makes %s of %s", opipe_dtype_name(y->dtype),
                           opipe_dtype_name(x->dtype));
}

/* Identity, Reshape: the same bytes. */
static opipe_status rule_view(cuda_rule *r) {
  const opipe_value *y = cuda_out(r, 0);
  if (y == NULL || cuda_elems(y) != cuda_elems(cuda_in(r, 0)))
    return cuda_refuse(r, OPIPE_E_INVALID, "its output has another number of elements");
  CUDA_TRY(check_type(r, 0));
  return cuda_view(r, 0, r->node->in[0]);
}

static opipe_status rule_expand(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *y = cuda_out(r, 0);
  CUDA_TRY(check_type(r, 0));
  cuda_loop loop = dense_loop(y->shape, y->rank);
  if (!opipe_broadcast_strides(x->shape, x->rank, y->shape, y->rank, loop.stride[0]))
    return cuda_refuse(r, OPIPE_E_INVALID, "its input does not broadcast to its output");
  if (x->n_bytes == y->n_bytes)
    return cuda_view(r, 0, r->node->in[0]);
  return emit_move(r, &loop, r->node->out[0], 0, r->node->in[0], 0);
}

static opipe_status rule_transpose(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  int64_t strides[OPIPE_MAX_RANK], shape[OPIPE_MAX_RANK];
  uint32_t n = 0, seen = 0;
  const int64_t *perm = opipe_attr_ints(r->node, "perm", &n);
  if (n != x->rank)
    return cuda_refuse(r, OPIPE_E_INVALID, "perm has %u entries for rank %u", n, x->rank);
  opipe_dense_strides(x->shape, x->rank, strides);
  for (uint32_t i = 0; i < n; ++i) {
    if (perm[i] < 0 || perm[i] >= (int64_t)n || (seen >> perm[i] & 1u) != 0)
      return cuda_refuse(r, OPIPE_E_INVALID, "perm is no permutation");
    seen |= 1u << perm[i];
    shape[i] = x->shape[perm[i]];
  }
  CUDA_TRY(cuda_expect(r, 0, x->dtype, shape, n));
  cuda_loop loop = dense_loop(shape, n);
  for (uint32_t i = 0; i < n; ++i)
    loop.stride[0][i] = strides[perm[i]];
  return emit_move(r, &loop, r->node->out[0], 0, r->node->in[0], 0);
}

static opipe_status rule_tile(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *y = cuda_out(r, 0);
  const int64_t *repeats = NULL;
  uint32_t n = 0;
  cuda_loop loop = {.rank = 0, .n_operands = 2};
  int64_t in_stride = 1, out_stride = 1;
  CUDA_TRY(check_type(r, 0));
  CUDA_TRY(cuda_known_ints(r, 1, &repeats, &n));
  if (n != x->rank || y->rank != n || 2 * n > OPIPE_MAX_RANK)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%u repeats of rank %u", n, x->rank);
  loop.rank = 2 * n;
  for (uint32_t i = n; i > 0; --i) {
    const uint32_t at = 2 * (i - 1);
    if (y->shape[i - 1] != repeats[i - 1] * x->shape[i - 1])
      return cuda_refuse(r, OPIPE_E_INVALID, "axis %u of its output has another extent", i - 1);
    loop.shape[at] = repeats[i - 1];
    loop.shape[at + 1] = x->shape[i - 1];
    loop.stride[0][at] = 0;
    loop.stride[0][at + 1] = in_stride;
    loop.stride[1][at] = out_stride * x->shape[i - 1];
    loop.stride[1][at + 1] = out_stride;
    in_stride *= x->shape[i - 1];
    out_stride *= y->shape[i - 1];
  }
  return emit_move(r, &loop, r->node->out[0], 0, r->node->in[0], 0);
}

/* Part [first, first + part.shape[axis]) along the axis of `whole`, as a loop over the part. */
static cuda_loop part_loop(const opipe_value *part, const opipe_value *whole, uint32_t axis,
                           uint32_t whole_operand, int64_t first, int64_t *out_bytes) {
  cuda_loop loop = dense_loop(part->shape, part->rank);
  opipe_dense_strides(whole->shape, whole->rank, loop.stride[whole_operand]);
  *out_bytes = first * loop.stride[whole_operand][axis] * (int64_t)cuda_size(whole);
  return loop;
}

static opipe_status rule_concat(cuda_rule *r) {
  const opipe_value *y = cuda_out(r, 0);
  uint32_t axis = 0;
  int64_t first = 0;
  CUDA_TRY(check_type(r, 0));
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", 0), y->rank, &axis));
  for (uint32_t i = 0; i < r->node->n_in; ++i) {
    const opipe_value *x = cuda_in(r, i);
    int64_t bytes = 0;
    if (x == NULL || x->rank != y->rank || x->dtype != y->dtype)
      return cuda_refuse(r, OPIPE_E_INVALID, "input %u is of another rank or type", i);
    for (uint32_t d = 0; d < x->rank; ++d) {
      if (d != axis && x->shape[d] != y->shape[d])
        return cuda_refuse(r, OPIPE_E_INVALID, "input %u has another extent along axis %u", i, d);
    }
    cuda_loop loop = part_loop(x, y, axis, 1, first, &bytes);
    first += x->shape[axis];
    if (first > y->shape[axis])
      break;
    CUDA_TRY(emit_move(r, &loop, r->node->out[0], bytes, r->node->in[i], 0));
  }
  return first == y->shape[axis]
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_INVALID, "its inputs do not add up to %lld along the axis",
                           (long long)y->shape[axis]);
}

static opipe_status rule_split(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  const int64_t *lengths = NULL;
  uint32_t n = 0, axis = 0;
  int64_t first = 0;
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", 0), x->rank, &axis));
  CUDA_TRY(cuda_known_ints(r, 1, &lengths, &n));
  if (n != r->node->n_out)
    return cuda_refuse(r, OPIPE_E_INVALID, "%u lengths for %u outputs", n, r->node->n_out);
  for (uint32_t i = 0; i < n; ++i) {
    int64_t shape[OPIPE_MAX_RANK], bytes = 0;
    const int64_t at = first;
    memcpy(shape, x->shape, x->rank * sizeof shape[0]);
    shape[axis] = lengths[i];
    first += lengths[i];
    if (lengths[i] < 0 || first > x->shape[axis]) {
      return cuda_refuse(r, OPIPE_E_INVALID, "its lengths pass the axis' %lld",
                         (long long)x->shape[axis]);
    }
    if (cuda_out(r, i) == NULL)
      continue;
    CUDA_TRY(cuda_expect(r, i, x->dtype, shape, x->rank));
    cuda_loop loop = part_loop(cuda_out(r, i), x, axis, 0, at, &bytes);
    CUDA_TRY(emit_move(r, &loop, r->node->out[i], 0, r->node->in[0], bytes));
  }
  return OPIPE_OK;
}

static opipe_status rule_slice(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *y = cuda_out(r, 0);
  const int64_t *lists[4] = {NULL}; /* starts, ends, axes, steps */
  uint32_t n[4] = {0}, cut = 0;
  int64_t bytes = 0;
  for (uint32_t i = 0; i < 4; ++i)
    CUDA_TRY(cuda_known_ints(r, i + 1, &lists[i], &n[i]));
  if (n[0] != n[1] || n[0] != n[2] || n[0] != n[3] || y == NULL || y->rank != x->rank)
    return cuda_refuse(r, OPIPE_E_INVALID, "its lists are of different lengths");
  CUDA_TRY(check_type(r, 0));
  cuda_loop loop = dense_loop(y->shape, y->rank);
  opipe_dense_strides(x->shape, x->rank, loop.stride[0]);
  for (uint32_t i = 0; i < n[0]; ++i) {
    uint32_t axis = 0;
    CUDA_TRY(cuda_axis(r, lists[2][i], x->rank, &axis));
    const int64_t start = lists[0][i], step = lists[3][i], count = y->shape[axis];
    const int64_t last = start + (count - 1) * step;
    if (step == 0 ||
        (count > 0 && (start < 0 || start >= x->shape[axis] || last < 0 || last >= x->shape[axis])))
      return cuda_refuse(r, OPIPE_E_INVALID, "axis %u is left", axis);
    bytes += count > 0 ? start * loop.stride[0][axis] * (int64_t)cuda_size(x) : 0;
    loop.stride[0][axis] *= step;
    cut |= 1u << axis;
  }
  for (uint32_t i = 0; i < x->rank; ++i) {
    if ((cut >> i & 1u) == 0 && x->shape[i] != y->shape[i])
      return cuda_refuse(r, OPIPE_E_INVALID, "axis %u of its output has another extent", i);
  }
  return emit_move(r, &loop, r->node->out[0], 0, r->node->in[0], bytes);
}

static opipe_status rule_pad(cuda_rule *r) {
  static const char *const modes[] = {[CUDA_PAD_CONSTANT] = "constant",
                                      [CUDA_PAD_REFLECT] = "reflect",
                                      [CUDA_PAD_EDGE] = "edge",
                                      [CUDA_PAD_WRAP] = "wrap"};
  const opipe_value *x = cuda_in(r, 0), *y = cuda_out(r, 0);
  const char *mode = opipe_attr_string(r->node, "mode", "constant");
  const opipe_value *value = cuda_in(r, 2);
  const int64_t *pads = NULL;
  int64_t extent = 0;
  uint32_t n = 0;
  cuda_pad_args args = {.n = (int64_t)cuda_elems(y), .rank = x->rank, .size = cuda_size(x)};
  cuda_launch launch;
  CUDA_TRY(check_type(r, 0));
  CUDA_TRY(cuda_known_ints(r, 1, &pads, &n));
  if (n != 2 * x->rank || y->rank != x->rank || x->rank > CUDA_AXES)
    return cuda_refuse(r, OPIPE_E_INVALID, "%u pads for rank %u", n, x->rank);
  if (value != NULL && (value->dtype != x->dtype || cuda_elems(value) != 1)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "its constant is not one %s",
                       opipe_dtype_name(x->dtype));
  }
  while (args.mode <= CUDA_PAD_WRAP && strcmp(modes[args.mode], mode) != 0)
    ++args.mode;
  if (args.mode > CUDA_PAD_WRAP)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "mode '%.20s'", mode);
  for (uint32_t i = 0; i < x->rank; ++i) {
    args.begin[i] = pads[i];
    args.x_shape[i] = x->shape[i];
    args.y_shape[i] = y->shape[i];
    if (__builtin_add_overflow(x->shape[i], pads[i], &extent) ||
        __builtin_add_overflow(extent, pads[x->rank + i], &extent) || extent != y->shape[i])
      return cuda_refuse(r, OPIPE_E_INVALID, "axis %u of its output has another extent", i);
    if (args.mode != CUDA_PAD_CONSTANT && x->shape[i] == 0 && y->shape[i] != 0)
      return cuda_refuse(r, OPIPE_E_INVALID, "axis %u has nothing to repeat", i);
  }
  args.y = cuda_at_out(r, 0);
  args.x = cuda_at_in(r, 0);
  args.value = cuda_at_in(r, 2);
  return cuda_plan_pad(&args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

static opipe_status rule_trilu(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  const int64_t *k = NULL, zero = 0;
  uint32_t n = 0;
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  if (cuda_in(r, 1) != NULL)
    CUDA_TRY(cuda_known_ints(r, 1, &k, &n));
  if (x->rank < 2 || cuda_size(x) == 0 || (k != NULL && n != 1)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s of rank %u", opipe_dtype_name(x->dtype),
                       x->rank);
  }
  const cuda_trilu_args args = {.out = cuda_at_out(r, 0),
                                .in = cuda_at_in(r, 0),
                                .matrices = cuda_extent(x, 0, x->rank - 2),
                                .rows = x->shape[x->rank - 2],
                                .columns = x->shape[x->rank - 1],
                                .k = *(k != NULL ? k : &zero),
                                .upper = opipe_attr_int(r->node, "upper", 1) != 0,
                                .size = cuda_size(x)};
  return cuda_plan_trilu(&args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

static opipe_status rule_gather(cuda_rule *r) {
  const opipe_value *data = cuda_in(r, 0), *indices = cuda_in(r, 1);
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t axis = 0, rank = 0;
  cuda_launch launch;
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", 0), data->rank, &axis));
  if ((indices->dtype != OPIPE_INT32 && indices->dtype != OPIPE_INT64) || cuda_size(data) == 0) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s indices of %s", opipe_dtype_name(indices->dtype),
                       opipe_dtype_name(data->dtype));
  }
  for (uint32_t i = 0; i < axis; ++i)
    shape[rank++] = data->shape[i];
  for (uint32_t i = 0; i < indices->rank; ++i)
    shape[rank++] = indices->shape[i];
  for (uint32_t i = axis + 1; i < data->rank; ++i)
    shape[rank++] = data->shape[i];
  CUDA_TRY(cuda_expect(r, 0, data->dtype, shape, rank));
  cuda_gather_args args = {.out = cuda_at_out(r, 0),
                           .data = cuda_at_in(r, 0),
                           .indices = cuda_at_in(r, 1),
                           .outer = cuda_extent(data, 0, axis),
                           .extent = data->shape[axis],
                           .n_indices = (int64_t)cuda_elems(indices),
                           .inner = cuda_extent(data, axis + 1, data->rank),
                           .size = cuda_size(data),
                           .index_bytes = cuda_size(indices)};
  CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  return cuda_plan_gather(&args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, data);
}

static const cuda_row rows[] = {
    {"Identity", rule_view, 1, 1, 1}, {"Reshape", rule_view, 1, 2, 1},
    {"Expand", rule_expand, 2, 2, 1}, {"Transpose", rule_transpose, 1, 1, 1},
    {"Tile", rule_tile, 2, 2, 1},     {"Concat", rule_concat, 1, 255, 1},
    {"Split", rule_split, 2, 2, 255}, {"Slice", rule_slice, 5, 5, 1},
    {"Pad", rule_pad, 2, 3, 1},       {"Trilu", rule_trilu, 1, 2, 1},
    {"Gather", rule_gather, 2, 2, 1},
};

const cuda_family cuda_movement_family = {"", CUDA_ROWS(rows)};
