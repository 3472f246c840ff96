/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions, running sums, and what orders elements: ArgMax, ArgMin, TopK. */
#include "ops/rule.h"

static const struct {
  const char *op;
  uint32_t code;
} reductions[] = {{"ReduceSum", CUDA_REDUCE_SUM},       {"ReduceMean", CUDA_REDUCE_MEAN},
                  {"ReduceMax", CUDA_REDUCE_MAX},       {"ReduceMin", CUDA_REDUCE_MIN},
                  {"ReduceProd", CUDA_REDUCE_PROD},     {"ReduceL1", CUDA_REDUCE_L1},
                  {"ReduceL2", CUDA_REDUCE_L2},         {"ReduceSumSquare", CUDA_REDUCE_SUMSQUARE},
                  {"ReduceLogSum", CUDA_REDUCE_LOGSUM}, {"ReduceLogSumExp", CUDA_REDUCE_LOGSUMEXP}};

/* Which axes are reduced, as bits. Written out, or none. */
static opipe_status read_axes(const cuda_rule *r, uint32_t *out_mask) {
  const opipe_value *x = cuda_in(r, 0);
  const int64_t *axes = NULL;
  uint32_t n = 0;
  *out_mask = 0;
  if (cuda_in(r, 1) != NULL)
    CUDA_TRY(cuda_known_ints(r, 1, &axes, &n));
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t axis = 0;
    CUDA_TRY(cuda_axis(r, axes[i], x->rank, &axis));
    *out_mask |= 1u << axis;
  }
  return OPIPE_OK;
}

/* The axes of x that are (not) in the mask, merged. */
static opipe_status loop_over(const cuda_rule *r, uint32_t mask, bool reduced, int64_t *shape,
                              int64_t *strides, uint32_t *out_rank, int64_t *out_n) {
  const opipe_value *x = cuda_in(r, 0);
  int64_t dense[OPIPE_MAX_RANK];
  cuda_loop loop = {.rank = 0, .n_operands = 1};
  opipe_dense_strides(x->shape, x->rank, dense);
  *out_n = 1;
  for (uint32_t i = 0; i < x->rank; ++i) {
    if ((mask >> i & 1u) != (reduced ? 1u : 0u))
      continue;
    loop.shape[loop.rank] = x->shape[i];
    loop.stride[0][loop.rank++] = dense[i];
    *out_n *= x->shape[i];
  }
  CUDA_TRY(cuda_loop_merge(r, &loop));
  memcpy(shape, loop.shape, CUDA_AXES * sizeof shape[0]);
  memcpy(strides, loop.stride[0], CUDA_AXES * sizeof strides[0]);
  *out_rank = loop.rank;
  return OPIPE_OK;
}

static uint32_t reduced_shape(const cuda_rule *r, uint32_t mask, int64_t *shape) {
  const opipe_value *x = cuda_in(r, 0);
  const bool keeps = opipe_attr_int(r->node, "keepdims", 1) != 0;
  uint32_t rank = 0;
  for (uint32_t i = 0; i < x->rank; ++i) {
    if ((mask >> i & 1u) == 0)
      shape[rank++] = x->shape[i];
    else if (keeps)
      shape[rank++] = 1;
  }
  return rank;
}

/* Sums of columns into an accumulator: the leading axes are reduced (fuse.c). */
static opipe_status add_columns(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *y = cuda_out(r, 0);
  cuda_launch launches[CUDA_LAUNCHES];
  const int64_t columns = (int64_t)cuda_elems(y);
  cuda_columns_args args = {
      .rows = columns > 0 ? (int64_t)cuda_elems(x) / columns : 0, .n = columns, .adds = 1};
  args.out = cuda_at_out(r, 0);
  args.x = cuda_at_in(r, 0);
  args.workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  args.distance =
      r->program->matched.pitches != NULL ? r->program->matched.pitches[r->node->in[0]] : 0;
  const uint32_t n = cuda_plan_columns(&args, x->dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_columns_workspace(&args));
  return OPIPE_OK;
}

static opipe_status rule_reduce(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_reduce_args args = {.op = CUDA_REDUCE_COUNT};
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t mask = 0;
  cuda_launch launch;
  for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; ++i) {
    if (strcmp(reductions[i].op, r->node->op) == 0)
      args.op = reductions[i].code;
  }
  CUDA_TRY(read_axes(r, &mask));
  const uint32_t rank = reduced_shape(r, mask, shape);
  CUDA_TRY(cuda_expect(r, 0, x->dtype, shape, rank));
  if (cuda_accumulator(r, 0) != OPIPE_NONE)
    return add_columns(r);
  CUDA_TRY(
      loop_over(r, mask, false, args.kept_shape, args.kept_stride, &args.kept_rank, &args.n_out));
  CUDA_TRY(loop_over(r, mask, true, args.reduced_shape, args.reduced_stride, &args.reduced_rank,
                     &args.n_in));
  args.in = cuda_at_in(r, 0);
  args.out = cuda_at_out(r, 0);
  return cuda_plan_reduce(&args, x->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

static opipe_status rule_arg(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis = 0;
  cuda_launch launches[CUDA_LAUNCHES];
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", 0), x->rank, &axis));
  const uint32_t rank = reduced_shape(r, 1u << axis, shape);
  CUDA_TRY(cuda_expect(r, 0, OPIPE_INT64, shape, rank));
  const cuda_order_args args = {.indices = cuda_at_out(r, 0),
                                .x = cuda_at_in(r, 0),
                                .outer = cuda_extent(x, 0, axis),
                                .n = x->shape[axis],
                                .inner = cuda_extent(x, axis + 1, x->rank),
                                .largest = strcmp(r->node->op, "ArgMax") == 0,
                                .last = opipe_attr_int(r->node, "select_last_index", 0) != 0,
                                .workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0)};
  const uint32_t n = cuda_plan_arg(&args, x->dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_arg_workspace(&args, x->dtype));
  return OPIPE_OK;
}

static opipe_status rule_topk(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  const int64_t *k = NULL;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis = 0, n = 0;
  cuda_launch launch;
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", -1), x->rank, &axis));
  CUDA_TRY(cuda_known_ints(r, 1, &k, &n));
  if (n != 1 || k[0] < 0 || k[0] > x->shape[axis]) {
    return cuda_refuse(r, OPIPE_E_INVALID, "it takes %lld of %lld", n == 1 ? (long long)k[0] : -1,
                       (long long)x->shape[axis]);
  }
  memcpy(shape, x->shape, x->rank * sizeof shape[0]);
  shape[axis] = k[0];
  if (cuda_out(r, 0) != NULL)
    CUDA_TRY(cuda_expect(r, 0, x->dtype, shape, x->rank));
  if (cuda_out(r, 1) != NULL)
    CUDA_TRY(cuda_expect(r, 1, OPIPE_INT64, shape, x->rank));
  const cuda_order_args args = {.values = cuda_at_out(r, 0),
                                .indices = cuda_at_out(r, 1),
                                .x = cuda_at_in(r, 0),
                                .outer = cuda_extent(x, 0, axis),
                                .n = x->shape[axis],
                                .inner = cuda_extent(x, axis + 1, x->rank),
                                .k = k[0],
                                .largest = opipe_attr_int(r->node, "largest", 1) != 0};
  return cuda_plan_topk(&args, x->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

static opipe_status rule_cumsum(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  const int64_t *at = NULL;
  uint32_t n = 0, axis = 0;
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  CUDA_TRY(cuda_known_ints(r, 1, &at, &n));
  if (n != 1)
    return cuda_refuse(r, OPIPE_E_INVALID, "%u axes", n);
  CUDA_TRY(cuda_axis(r, at[0], x->rank, &axis));
  const cuda_cumsum_args args = {.y = cuda_at_out(r, 0),
                                 .x = cuda_at_in(r, 0),
                                 .outer = cuda_extent(x, 0, axis),
                                 .n = x->shape[axis],
                                 .inner = cuda_extent(x, axis + 1, x->rank),
                                 .exclusive = opipe_attr_int(r->node, "exclusive", 0) != 0,
                                 .reverse = opipe_attr_int(r->node, "reverse", 0) != 0};
  return cuda_plan_cumsum(&args, x->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

#define REDUCE(name) \
  { name, rule_reduce, 1, 2, 1 }
static const cuda_row rows[] = {
    REDUCE("ReduceSum"),
    REDUCE("ReduceMean"),
    REDUCE("ReduceMax"),
    REDUCE("ReduceMin"),
    REDUCE("ReduceProd"),
    REDUCE("ReduceL1"),
    REDUCE("ReduceL2"),
    REDUCE("ReduceSumSquare"),
    REDUCE("ReduceLogSum"),
    REDUCE("ReduceLogSumExp"),
    {"ArgMax", rule_arg, 1, 1, 1},
    {"ArgMin", rule_arg, 1, 1, 1},
    {"TopK", rule_topk, 2, 2, 2},
    {"CumSum", rule_cumsum, 2, 2, 1},
};

const cuda_family cuda_reduce_family = {"", CUDA_ROWS(rows)};
