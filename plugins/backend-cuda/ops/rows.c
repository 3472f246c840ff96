/* SPDX-License-Identifier: Apache-2.0 */
/* Operators along rows: softmax and norms. */
#include "ops/rule.h"

static opipe_status rule_softmax(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  const char *op = r->node->op;
  uint32_t axis = 0;
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", -1), x->rank, &axis));
  const cuda_softmax_args args = {.y = cuda_at_out(r, 0),
                                  .x = cuda_at_in(r, 0),
                                  .outer = cuda_extent(x, 0, axis),
                                  .n = x->shape[axis],
                                  .inner = cuda_extent(x, axis + 1, x->rank),
                                  .mode = strcmp(op, "Softmax") == 0      ? 0
                                          : strcmp(op, "LogSoftmax") == 0 ? 1
                                                                          : 2};
  return cuda_plan_softmax(&args, x->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

/* Rows of a norm: X.shape[axis:] each; scale and bias have as many elements. */
static opipe_status read_norm(cuda_rule *r, cuda_norm_args *args, uint32_t *out_axis) {
  const opipe_value *x = cuda_in(r, 0);
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", -1), x->rank, out_axis));
  args->rows = cuda_extent(x, 0, *out_axis);
  args->n = cuda_extent(x, *out_axis, x->rank);
  args->epsilon = opipe_attr_float(r->node, "epsilon", 1e-5);
  for (uint32_t i = 1; i < r->node->n_in; ++i) {
    const opipe_value *weight = cuda_in(r, i);
    if (weight != NULL &&
        ((int64_t)cuda_elems(weight) != args->n || weight->dtype != cuda_in(r, 1)->dtype)) {
      return cuda_refuse(r, OPIPE_E_INVALID, "input %u has %llu elements of %s, rows have %lld", i,
                         (unsigned long long)cuda_elems(weight), opipe_dtype_name(weight->dtype),
                         (long long)args->n);
    }
  }
  return OPIPE_OK;
}

/* Mean and deviation: shape X.shape[:axis] and ones. */
static opipe_status check_statistics(const cuda_rule *r, uint32_t axis) {
  const opipe_value *x = cuda_in(r, 0);
  int64_t shape[OPIPE_MAX_RANK];
  for (uint32_t i = 0; i < x->rank; ++i)
    shape[i] = i < axis ? x->shape[i] : 1;
  for (uint32_t i = 1; i < r->node->n_out; ++i) {
    if (cuda_out(r, i) != NULL) {
      CUDA_TRY(
          cuda_expect(r, i, x->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT, shape, x->rank));
    }
  }
  return OPIPE_OK;
}

/* The norm of an input, or of a sum that is made along. */
static opipe_status emit_norm(cuda_rule *r, cuda_norm_args *args) {
  const opipe_value *x = cuda_in(r, 0);
  const opipe_node *sum = cuda_front_of(r->program, r->node);
  cuda_launch launch;
  args->x = cuda_at(r, sum != NULL ? sum->in[0] : r->node->in[0], 0);
  args->residual = cuda_at(r, sum != NULL ? sum->in[1] : OPIPE_NONE, 0);
  const bool keeps = sum != NULL && cuda_keeps_front(r->program, r->node);
  args->sum = cuda_at(r, keeps ? sum->out[0] : OPIPE_NONE, 0);
  args->scale = cuda_at_in(r, 1);
  args->bias = cuda_at_in(r, 2);
  args->y = cuda_at_out(r, 0);
  args->mean = cuda_at_out(r, 1);
  args->inv_std = cuda_at_out(r, 2);
  if (!cuda_plan_norm(args, x->dtype, cuda_in(r, 1)->dtype, &launch))
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit(r, &launch));
  if (keeps && cuda_root(r->program, sum->in[0]) != cuda_root(r->program, sum->in[1])) {
    r->step->overwrites = sum->in[0];
    r->step->result = sum->out[0];
  }
  return OPIPE_OK;
}

static opipe_status rule_layer_norm(cuda_rule *r) {
  cuda_norm_args args = {.rms = 0};
  uint32_t axis = 0;
  CUDA_TRY(cuda_expect_like(r, 0, cuda_in(r, 0)));
  CUDA_TRY(read_norm(r, &args, &axis));
  CUDA_TRY(check_statistics(r, axis));
  return emit_norm(r, &args);
}

static opipe_status rule_rms_norm(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_norm_args args = {.rms = 1};
  uint32_t axis = 0;
  if (cuda_in(r, 1)->dtype != x->dtype) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a scale of %s for %s",
                       opipe_dtype_name(cuda_in(r, 1)->dtype), opipe_dtype_name(x->dtype));
  }
  CUDA_TRY(cuda_expect_like(r, 0, x));
  CUDA_TRY(read_norm(r, &args, &axis));
  return emit_norm(r, &args);
}

static opipe_status rule_group_norm(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *scale = cuda_in(r, 1), *bias = cuda_in(r, 2);
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  if (x->rank < 2 || (int64_t)cuda_elems(scale) != x->shape[1] ||
      (int64_t)cuda_elems(bias) != x->shape[1] || scale->dtype != bias->dtype)
    return cuda_refuse(r, OPIPE_E_INVALID, "scale and bias are not of its channels");
  const cuda_group_norm_args args = {.y = cuda_at_out(r, 0),
                                     .x = cuda_at_in(r, 0),
                                     .scale = cuda_at_in(r, 1),
                                     .bias = cuda_at_in(r, 2),
                                     .batch = x->shape[0],
                                     .channels = x->shape[1],
                                     .pixels = cuda_extent(x, 2, x->rank),
                                     .groups = opipe_attr_int(r->node, "num_groups", 1),
                                     .epsilon = opipe_attr_float(r->node, "epsilon", 1e-5)};
  if (args.groups <= 0 || args.channels % args.groups != 0) {
    return cuda_refuse(r, OPIPE_E_INVALID, "%lld channels in %lld groups", (long long)args.channels,
                       (long long)args.groups);
  }
  return cuda_plan_group_norm(&args, x->dtype, scale->dtype, &launch) ? cuda_emit(r, &launch)
                                                                      : cuda_no_kernel(r, x);
}

static const cuda_row rows[] = {
    {"Softmax", rule_softmax, 1, 1, 1},           {"LogSoftmax", rule_softmax, 1, 1, 1},
    {"Hardmax", rule_softmax, 1, 1, 1},           {"LayerNormalization", rule_layer_norm, 2, 3, 3},
    {"RMSNormalization", rule_rms_norm, 2, 2, 1}, {"GroupNormalization", rule_group_norm, 3, 3, 1},
};

const cuda_family cuda_rows_family = {"", CUDA_ROWS(rows)};
