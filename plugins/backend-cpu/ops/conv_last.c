/* SPDX-License-Identifier: Apache-2.0 */
/* Conv and pools of tensors whose channels stand last, [N, spatial..., C]: what the layout pass
 * (channels_last.c) makes of convolutional parts of a graph. fp32, one or two spatial axes. Weights
 * are as the operator has them, [C_out, C_in / groups, kernel...].
 */
#include "window.h"

/* [N, spatial..., C] as [N, C, spatial...], for checks that know that form. */
static opipe_value as_first(const opipe_value *value, int64_t *shape) {
  opipe_value first = *value;
  shape[0] = value->shape[0];
  shape[1] = value->shape[value->rank - 1];
  for (uint32_t d = 1; d + 1 < value->rank; ++d)
    shape[d + 1] = value->shape[d];
  first.shape = shape;
  return first;
}

/* Both tensors fp32 of one rank, 3 or 4. */
static opipe_status read_window(cpu_prep *p, const int64_t *kernel, cpu_window *window,
                                opipe_value *in, opipe_value *out, int64_t (*shapes)[4]) {
  const opipe_value *x = cpu_in(p, 0), *y = cpu_out(p, 0);
  if (x->dtype != OPIPE_FLOAT || y->dtype != OPIPE_FLOAT || x->rank < 3 || x->rank > 4 ||
      y->rank != x->rank) {
    return cpu_refuse(p, "does not take %s of rank %u with channels last",
                      opipe_dtype_name(x->dtype), x->rank);
  }
  *in = as_first(x, shapes[0]);
  *out = as_first(y, shapes[1]);
  return cpu_window_init(p, window, in, out, kernel);
}

/* ---- Conv ---- */

typedef struct conv_plan {
  cpu_conv_last_args args;        /* without pointers */
  int bias, multiplier, residual; /* inputs; -1: none */
} conv_plan;

static const float *operand(const cpu_call *call, int i) {
  return i < 0 || (uint32_t)i >= call->n_in ? NULL : call->in[i].data;
}

static opipe_status conv_kernel(const cpu_call *call, opipe_error *err) {
  const conv_plan *plan = call->plan;
  cpu_conv_last_args args = plan->args;
  const bool packed = call->in[1].layout == CPU_LAYOUT_CONV;
  (void)err;
  args.in = call->in[0].data;
  args.weight = packed ? NULL : call->in[1].data;
  args.packed = packed ? call->in[1].data : NULL;
  args.bias = operand(call, plan->bias);
  args.multiplier = operand(call, plan->multiplier);
  args.residual = operand(call, plan->residual);
  args.out = call->out[0].data;
  args.workspace = call->workspace;
  cpu_conv_last(call->exec, &args);
  return OPIPE_OK;
}

static opipe_status check_conv(cpu_prep *p, const opipe_value *in, const opipe_value *out,
                               const cpu_window *w, int64_t groups) {
  const opipe_value *weight = cpu_in(p, 1), *bias = p->node->n_in > 2 ? cpu_in(p, 2) : NULL;
  const int64_t c_in = in->shape[1], c_out = weight->shape[0];
  int64_t shape[4] = {in->shape[0]};
  if (weight->dtype != OPIPE_FLOAT || groups < 1 || c_in % groups != 0 || c_out % groups != 0 ||
      weight->shape[1] != c_in / groups) {
    return cpu_invalid(p, "weight '%.80s' does not fit %lld channels in %lld groups", weight->name,
                       (long long)c_in, (long long)groups);
  }
  if (bias != NULL && (bias->dtype != OPIPE_FLOAT || (int64_t)cpu_elems(bias) != c_out)) {
    return cpu_invalid(p, "bias '%.80s' is not one value for each of %lld channels", bias->name,
                       (long long)c_out);
  }
  for (uint32_t i = 0; i < w->axes; ++i) {
    const uint32_t a = 3 - w->axes + i;
    const int64_t span = w->in[a] + w->begin[a] + w->end[a] - w->dilation[a] * (w->kernel[a] - 1);
    shape[1 + i] = span < 1 ? 0 : (span - 1) / w->stride[a] + 1;
    if (w->kernel[a] != weight->shape[2 + i])
      return cpu_invalid(p, "kernel_shape and weight '%.80s' differ", weight->name);
  }
  shape[1 + w->axes] = c_out;
  return cpu_expect(p, 0, out->dtype, shape, in->rank);
}

/* A fused operand must have the result's shape. */
static opipe_status check_fused(cpu_prep *p, int i) {
  const opipe_value *x = i < 0 ? NULL : cpu_in(p, (uint32_t)i);
  if (x == NULL || (x->dtype == OPIPE_FLOAT && cpu_elems(x) == cpu_elems(cpu_out(p, 0))))
    return OPIPE_OK;
  return cpu_invalid(p, "'%.80s' is not of its result's shape", x->name);
}

opipe_status cpu_prepare_conv_last(cpu_prep *p) {
  const opipe_value *weight = cpu_in(p, 1);
  const int64_t groups = opipe_attr_int(p->node, "group", 1);
  conv_plan *plan = CPU_PLAN(p, conv_plan);
  opipe_value in, out;
  int64_t shapes[2][4];
  cpu_window w;
  uint64_t bytes = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (weight->rank != cpu_in(p, 0)->rank || weight->rank < 3)
    return cpu_invalid(p, "weight '%.80s' is of rank %u", weight->name, weight->rank);
  CPU_TRY(read_window(p, weight->shape + 2, &w, &in, &out, shapes));
  CPU_TRY(check_conv(p, &in, &out, &w, groups));
  plan->bias = p->node->n_in > 2 ? 2 : -1; /* fused operands stand behind the node's own inputs */
  plan->multiplier = p->fusion != NULL ? p->fusion->multiplier : -1;
  plan->residual = p->fusion != NULL ? p->fusion->residual : -1;
  CPU_TRY(check_fused(p, plan->multiplier));
  CPU_TRY(check_fused(p, plan->residual));
  plan->args =
      (cpu_conv_last_args){.images = in.shape[0],
                           .groups = groups,
                           .c_in = in.shape[1],
                           .c_out = weight->shape[0],
                           .in_size = {w.in[1], w.in[2]},
                           .out_size = {w.out[1], w.out[2]},
                           .kernel = {w.kernel[1], w.kernel[2]},
                           .stride = {w.stride[1], w.stride[2]},
                           .dilation = {w.dilation[1], w.dilation[2]},
                           .pad_begin = {w.begin[1], w.begin[2]},
                           .activation = p->fusion != NULL ? p->fusion->activation : CPU_ACT_NONE,
                           .relu_last = p->fusion != NULL && p->fusion->relu_last};
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  const bool depthwise = groups == in.shape[1] && groups == weight->shape[0];
  if ((groups == 1 || depthwise) && cpu_is_param(p, 1) && (p->flags & OPIPE_COMPILE_OWNED) == 0) {
    cpu_want_layout(p, 1, CPU_LAYOUT_CONV);
    plan->args.packed = weight; /* there: no room for it in the workspace */
  }
  if (!cpu_conv_last_workspace(p->device->threads, &plan->args, &bytes))
    return cpu_refuse(p, "weights '%.80s' are too large", weight->name);
  cpu_want_workspace(p, bytes);
  p->step->run = conv_kernel;
  return OPIPE_OK;
}

/* ---- pools ---- */

static opipe_status pool_kernel(const cpu_call *call, opipe_error *err) {
  cpu_pool_last_args args = *(const cpu_pool_last_args *)call->plan;
  (void)err;
  args.in = call->in[0].data;
  args.out = call->out[0].data;
  cpu_pool_last(call->exec, &args);
  return OPIPE_OK;
}

opipe_status cpu_prepare_pool_last(cpu_prep *p) {
  cpu_pool_last_args *plan = CPU_PLAN(p, cpu_pool_last_args);
  opipe_value in, out;
  int64_t shapes[2][4];
  cpu_window w;
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(read_window(p, NULL, &w, &in, &out, shapes));
  if (out.shape[0] != in.shape[0] || out.shape[1] != in.shape[1])
    return cpu_invalid(p, "input and output differ in batch or channels");
  *plan = (cpu_pool_last_args){.images = in.shape[0],
                               .channels = in.shape[1],
                               .in_size = {w.in[1], w.in[2]},
                               .out_size = {w.out[1], w.out[2]},
                               .kernel = {w.kernel[1], w.kernel[2]},
                               .stride = {w.stride[1], w.stride[2]},
                               .dilation = {w.dilation[1], w.dilation[2]},
                               .pad_begin = {w.begin[1], w.begin[2]},
                               .pad_end = {w.end[1], w.end[2]},
                               .average = (p->op->code & 1u) != 0,
                               .count_pads = opipe_attr_int(p->node, "count_include_pad", 0) != 0};
  p->step->run = pool_kernel;
  return OPIPE_OK;
}
