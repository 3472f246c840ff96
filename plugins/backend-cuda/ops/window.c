/* SPDX-License-Identifier: Apache-2.0 */
/* Conv, AveragePool, MaxPool and their gradients; BatchNormalization. */
#include "ops/rule.h"

static opipe_status read_list(const cuda_rule *r, const char *name, uint32_t wanted, int64_t low,
                              const int64_t **out) {
  uint32_t n = 0;
  const int64_t *list = opipe_attr_ints(r->node, name, &n);
  *out = list;
  if (list != NULL && n != wanted)
    return cuda_refuse(r, OPIPE_E_INVALID, "%s has %u entries, not %u", name, n, wanted);
  for (uint32_t i = 0; i < n; ++i) {
    if (list[i] < low || list[i] > INT32_MAX)
      return cuda_refuse(r, OPIPE_E_INVALID, "%s holds %lld", name, (long long)list[i]);
  }
  return OPIPE_OK;
}

/* x [N, C, in...], y [N, M, out...]; kernel: where the node does not say (NULL: it must). */
static opipe_status read_windows(const cuda_rule *r, const opipe_value *x, const opipe_value *y,
                                 const int64_t *kernel, cuda_window_args *a) {
  const int64_t *said = NULL, *strides = NULL, *dilations = NULL, *pads = NULL;
  if (!cuda_is_float(x->dtype) || y->dtype != x->dtype || x->rank < 3 ||
      x->rank > 2 + CUDA_WINDOW_AXES || y->rank != x->rank || y->shape[0] != x->shape[0]) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "windows over %s of rank %u",
                       opipe_dtype_name(x->dtype), x->rank);
  }
  const uint32_t axes = x->rank - 2, missing = CUDA_WINDOW_AXES - axes;
  CUDA_TRY(read_list(r, "kernel_shape", axes, 1, &said));
  CUDA_TRY(read_list(r, "strides", axes, 1, &strides));
  CUDA_TRY(read_list(r, "dilations", axes, 1, &dilations));
  CUDA_TRY(read_list(r, "pads", 2 * axes, INT32_MIN, &pads));
  said = said != NULL ? said : kernel;
  if (said == NULL)
    return cuda_refuse(r, OPIPE_E_INVALID, "it has no kernel_shape");
  a->batch = x->shape[0];
  a->channels = x->shape[1];
  a->outputs = y->shape[1];
  a->groups = opipe_attr_int(r->node, "group", 1);
  a->count_pads = opipe_attr_int(r->node, "count_include_pad", 0) != 0;
  for (uint32_t i = 0; i < CUDA_WINDOW_AXES; ++i) {
    const bool there = i >= missing;
    const uint32_t k = there ? i - missing : 0;
    a->in[i] = there ? x->shape[2 + k] : 1;
    a->out[i] = there ? y->shape[2 + k] : 1;
    a->kernel[i] = there ? said[k] : 1;
    a->stride[i] = there && strides != NULL ? strides[k] : 1;
    a->dilation[i] = there && dilations != NULL ? dilations[k] : 1;
    a->begin[i] = there && pads != NULL ? pads[k] : 0;
    a->end[i] = there && pads != NULL ? pads[axes + k] : 0;
  }
  return OPIPE_OK;
}

static opipe_status check_weight(const cuda_rule *r, const opipe_value *w,
                                 const cuda_window_args *a, uint32_t dtype) {
  bool fits = w->dtype == dtype && a->groups > 0 && a->channels % a->groups == 0 &&
              a->outputs % a->groups == 0 && w->shape[0] == a->outputs &&
              w->shape[1] == a->channels / a->groups;
  for (uint32_t i = 2; fits && i < w->rank; ++i)
    fits = w->shape[i] == a->kernel[CUDA_WINDOW_AXES - w->rank + i];
  return fits ? OPIPE_OK
              : cuda_refuse(r, OPIPE_E_INVALID,
                            "its weight does not fit %lld channels to %lld in %lld groups",
                            (long long)a->channels, (long long)a->outputs, (long long)a->groups);
}

static opipe_status rule_conv(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *w = cuda_in(r, 1), *bias = cuda_in(r, 2);
  const opipe_value *y = cuda_out(r, 0);
  cuda_window_args args = {.to = NULL};
  cuda_launch launch;
  if (w->rank < 3 || w->rank != x->rank)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a weight of rank %u", w->rank);
  CUDA_TRY(read_windows(r, x, y, w->shape + 2, &args));
  CUDA_TRY(check_weight(r, w, &args, x->dtype));
  if (bias != NULL && (bias->dtype != x->dtype || (int64_t)cuda_elems(bias) != args.outputs))
    return cuda_refuse(r, OPIPE_E_INVALID, "its bias is not of its outputs");
  args.to = cuda_at_out(r, 0);
  args.x = cuda_at_in(r, 0);
  args.w = cuda_at_in(r, 1);
  args.bias = cuda_at_in(r, 2);
  return cuda_plan_conv(&args, x->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

/* The output has the attribute's shape. */
static opipe_status expect_shape(const cuda_rule *r) {
  uint32_t n = 0;
  const int64_t *shape = opipe_attr_ints(r->node, "shape", &n);
  return shape == NULL ? cuda_refuse(r, OPIPE_E_INVALID, "it has no shape")
                       : cuda_expect(r, 0, cuda_in(r, 0)->dtype, shape, n);
}

static opipe_status rule_conv_grad(cuda_rule *r) {
  const bool to_weight = strcmp(r->node->op, "ConvGradW") == 0;
  const opipe_value *dy = cuda_in(r, 0);
  cuda_window_args args = {.to = NULL};
  cuda_launch launch;
  CUDA_TRY(expect_shape(r));
  const opipe_value *x = to_weight ? cuda_in(r, 1) : cuda_out(r, 0);
  const opipe_value *w = to_weight ? cuda_out(r, 0) : cuda_in(r, 1);
  if (w->rank < 3 || w->rank != x->rank)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a weight of rank %u", w->rank);
  CUDA_TRY(read_windows(r, x, dy, w->shape + 2, &args));
  CUDA_TRY(check_weight(r, w, &args, dy->dtype));
  args.to = cuda_at_out(r, 0);
  args.dy = cuda_at_in(r, 0);
  if (to_weight)
    args.x = cuda_at_in(r, 1);
  else
    args.w = cuda_at_in(r, 1);
  const bool known = to_weight ? cuda_plan_conv_grad_w(&args, dy->dtype, &launch)
                               : cuda_plan_conv_grad_x(&args, dy->dtype, &launch);
  return known ? cuda_emit(r, &launch) : cuda_no_kernel(r, dy);
}

static opipe_status check_planes(const cuda_rule *r, const cuda_window_args *a) {
  return a->outputs == a->channels ? OPIPE_OK
                                   : cuda_refuse(r, OPIPE_E_INVALID, "%lld channels and %lld",
                                                 (long long)a->channels, (long long)a->outputs);
}

static opipe_status rule_pool(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_window_args args = {.mean = strcmp(r->node->op, "AveragePool") == 0};
  cuda_launch launch;
  CUDA_TRY(read_windows(r, x, cuda_out(r, 0), NULL, &args));
  CUDA_TRY(check_planes(r, &args));
  args.to = cuda_at_out(r, 0);
  args.x = cuda_at_in(r, 0);
  return cuda_plan_pool(&args, x->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

static opipe_status rule_pool_grad(cuda_rule *r) {
  const opipe_value *dy = cuda_in(r, 0);
  cuda_window_args args = {.mean = strcmp(r->node->op, "AveragePoolGrad") == 0};
  cuda_launch launch;
  CUDA_TRY(expect_shape(r));
  if (!args.mean && cuda_in(r, 1) == NULL)
    return cuda_refuse(r, OPIPE_E_INVALID, "input 1 is absent");
  if (!args.mean)
    CUDA_TRY(cuda_expect_like(r, 0, cuda_in(r, 1)));
  CUDA_TRY(read_windows(r, cuda_out(r, 0), dy, NULL, &args));
  CUDA_TRY(check_planes(r, &args));
  args.to = cuda_at_out(r, 0);
  args.dy = cuda_at_in(r, 0);
  args.x = args.mean ? NULL : cuda_at_in(r, 1);
  return cuda_plan_pool_grad(&args, dy->dtype, &launch) ? cuda_emit(r, &launch)
                                                        : cuda_no_kernel(r, dy);
}

static opipe_status rule_batch_norm(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  for (uint32_t i = 1; i < 5; ++i) {
    if (x->rank < 2 || cuda_in(r, i)->dtype != x->dtype ||
        (int64_t)cuda_elems(cuda_in(r, i)) != x->shape[1])
      return cuda_refuse(r, OPIPE_E_INVALID, "input %u is not of its channels", i);
  }
  const cuda_batch_norm_args args = {.y = cuda_at_out(r, 0),
                                     .x = cuda_at_in(r, 0),
                                     .scale = cuda_at_in(r, 1),
                                     .bias = cuda_at_in(r, 2),
                                     .mean = cuda_at_in(r, 3),
                                     .variance = cuda_at_in(r, 4),
                                     .n = (int64_t)cuda_elems(x),
                                     .channels = x->shape[1],
                                     .inner = cuda_extent(x, 2, x->rank),
                                     .epsilon = opipe_attr_float(r->node, "epsilon", 1e-5)};
  return cuda_plan_batch_norm(&args, x->dtype, &launch) ? cuda_emit(r, &launch)
                                                        : cuda_no_kernel(r, x);
}

static const cuda_row rows[] = {{"Conv", rule_conv, 2, 3, 1},
                                {"AveragePool", rule_pool, 1, 1, 1},
                                {"MaxPool", rule_pool, 1, 1, 1},
                                {"BatchNormalization", rule_batch_norm, 5, 5, 1}};
static const cuda_row gradient_rows[] = {{"ConvGradX", rule_conv_grad, 2, 2, 1},
                                         {"ConvGradW", rule_conv_grad, 2, 2, 1},
                                         {"AveragePoolGrad", rule_pool_grad, 1, 1, 1},
                                         {"MaxPoolGrad", rule_pool_grad, 2, 2, 1}};

const cuda_family cuda_window_family = {"", CUDA_ROWS(rows)};
const cuda_family cuda_window_gradient_family = {"opipe", CUDA_ROWS(gradient_rows)};
