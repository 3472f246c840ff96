/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution over one to three spatial axes, with groups.
 *
 * The reference sums in fp64, channel by channel. fp32 over one or two axes runs as a packed matrix
 * product.
 */
#include "window.h"

typedef struct conv_plan {
  cpu_window window;
  int64_t images, groups, c_in, c_out; /* channels of all groups */
} conv_plan;

#define POINT(NAME, T)                                                                           \
  /* One output element: the window at (o0, o1, o2) over the channels of one group. */           \
  static double NAME(const conv_plan *plan, const T *image, const T *weight, const int64_t *o) { \
    const cpu_window *w = &plan->window;                                                         \
    const int64_t channels = plan->c_in / plan->groups;                                          \
    double sum = 0;                                                                              \
    for (int64_t c = 0; c < channels; ++c) {                                                     \
      for (int64_t k = 0; k < w->n_kernel; ++k) {                                                \
        const int64_t k2 = k % w->kernel[2];                                                     \
        const int64_t k1 = k / w->kernel[2] % w->kernel[1];                                      \
        const int64_t k0 = k / w->kernel[2] / w->kernel[1];                                      \
        const int64_t i0 = o[0] * w->stride[0] - w->begin[0] + k0 * w->dilation[0];              \
        const int64_t i1 = o[1] * w->stride[1] - w->begin[1] + k1 * w->dilation[1];              \
        const int64_t i2 = o[2] * w->stride[2] - w->begin[2] + k2 * w->dilation[2];              \
        if (i0 >= 0 && i0 < w->in[0] && i1 >= 0 && i1 < w->in[1] && i2 >= 0 && i2 < w->in[2]) {  \
          sum += (double)image[c * w->n_in + (i0 * w->in[1] + i1) * w->in[2] + i2] *             \
                 (double)weight[c * w->n_kernel + k];                                            \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
    return sum;                                                                                  \
  }
POINT(point_f32, float)
POINT(point_f64, double)

/* Planes of the output: (image, channel). */
static void conv_planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const conv_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const bool wide = call->in[0].dtype == OPIPE_DOUBLE;
  const int64_t channels = plan->c_in / plan->groups;
  for (int64_t plane = begin; plane < end; ++plane) {
    const int64_t image = plane / plan->c_out;
    const int64_t c = plane % plan->c_out;
    const int64_t group = c / (plan->c_out / plan->groups);
    const int64_t x_at = (image * plan->c_in + group * channels) * w->n_in;
    const int64_t w_at = c * channels * w->n_kernel;
    const bool has_bias = call->n_in > 2 && call->in[2].data != NULL;
    const double bias = has_bias ? cpu_number(&call->in[2], (uint64_t)c) : 0.0;
    for (int64_t i = 0; i < w->n_out; ++i) {
      const int64_t o[3] = {i / w->out[2] / w->out[1], i / w->out[2] % w->out[1], i % w->out[2]};
      const int64_t at = plane * w->n_out + i;
      if (wide) {
        ((double *)call->out[0].data)[at] =
            bias + point_f64(plan, (const double *)call->in[0].data + x_at,
                             (const double *)call->in[1].data + w_at, o);
      } else {
        ((float *)call->out[0].data)[at] =
            (float)(bias + point_f32(plan, (const float *)call->in[0].data + x_at,
                                     (const float *)call->in[1].data + w_at, o));
      }
    }
  }
}

static opipe_status conv_kernel(const cpu_call *call, opipe_error *err) {
  const conv_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->images * plan->c_out,
               (int64_t)call->out[0].n * plan->window.n_kernel, conv_planes, &copy);
  return OPIPE_OK;
}

static opipe_status fast_kernel(const cpu_call *call, opipe_error *err) {
  const conv_plan *plan = call->plan;
  cpu_conv_args args =
      cpu_window_sizes(&plan->window, plan->images, plan->groups, plan->c_in, plan->c_out);
  args.in = call->in[0].data;
  args.weight = call->in[1].data;
  args.bias = call->n_in > 2 ? call->in[2].data : NULL;
  args.out = call->out[0].data;
  args.workspace = call->workspace;
  (void)err;
  cpu_conv(call->exec, &args);
  return OPIPE_OK;
}

static opipe_status check_shapes(cpu_prep *p, conv_plan *plan) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *weight = cpu_in(p, 1);
  const opipe_value *bias = cpu_in(p, 2);
  const opipe_value *out = cpu_out(p, 0);
  const cpu_window *w = &plan->window;
  int64_t shape[5];
  if (weight->rank != in->rank || weight->dtype != in->dtype || plan->groups < 1 ||
      plan->c_in % plan->groups != 0 || plan->c_out % plan->groups != 0 ||
      weight->shape[1] != plan->c_in / plan->groups) {
    return cpu_invalid(p, "weight '%.80s' does not fit %lld channels in %lld groups", weight->name,
                       (long long)plan->c_in, (long long)plan->groups);
  }
  if (bias != NULL && (bias->dtype != in->dtype || (int64_t)cpu_elems(bias) != plan->c_out)) {
    return cpu_invalid(p, "bias '%.80s' is not one value for each of %lld channels", bias->name,
                       (long long)plan->c_out);
  }
  shape[0] = plan->images;
  shape[1] = plan->c_out;
  for (uint32_t i = 3 - w->axes; i < 3; ++i) {
    const int64_t span = w->in[i] + w->begin[i] + w->end[i] - w->dilation[i] * (w->kernel[i] - 1);
    shape[i + w->axes - 1] = span < 1 ? 0 : (span - 1) / w->stride[i] + 1;
    if (w->kernel[i] != weight->shape[i + w->axes - 1])
      return cpu_invalid(p, "kernel_shape and weight '%.80s' differ", weight->name);
  }
  return cpu_expect(p, 0, out->dtype == in->dtype ? in->dtype : 0, shape, in->rank);
}

static opipe_status prepare_conv(cpu_prep *p) {
  if (cpu_is_last(p->node))
    return cpu_prepare_conv_last(p);
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *weight = cpu_in(p, 1);
  conv_plan *plan = CPU_PLAN(p, conv_plan);
  uint64_t bytes = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(in->dtype) || weight->rank < 3) {
    return cpu_refuse(p, "does not take %s, weights of rank %u", opipe_dtype_name(in->dtype),
                      weight->rank);
  }
  CPU_TRY(cpu_window_init(p, &plan->window, in, cpu_out(p, 0), weight->shape + 2));
  plan->images = in->shape[0];
  plan->c_in = in->shape[1];
  plan->c_out = weight->shape[0];
  plan->groups = opipe_attr_int(p->node, "group", 1);
  CPU_TRY(check_shapes(p, plan));
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  p->step->run = conv_kernel;
  const int64_t k = plan->c_in / plan->groups * plan->window.n_kernel;
  if (p->fast && in->dtype == OPIPE_FLOAT && cpu_conv_workspace(p->device->threads, k, &bytes)) {
    cpu_want_workspace(p, bytes);
    p->step->run = fast_kernel;
  }
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Conv", NULL, prepare_conv, 2, 3, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_conv = {ops, CPU_COUNT_OF(ops)};
