/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.ConvGradX (dY, W -> dX) and ConvGradW (dY, X -> dW): in fp32 as matrix products
 * (kernels/conv_grad.h), else plain loops in fp64.
 *
 * There every output element gathers what it takes part in, so that threads share nothing: dX over
 * the kernel and the output channels of its group, dW over images and output positions.
 */
#include "window.h"

typedef struct grad_plan {
  cpu_window window;
  int64_t images, groups, c_in, c_out; /* channels of all groups */
} grad_plan;

static void split3(int64_t i, const int64_t *extent, int64_t *out) {
  out[2] = i % extent[2];
  out[1] = i / extent[2] % extent[1];
  out[0] = i / extent[2] / extent[1];
}

/* Position in the input that kernel element k of output position o reads; -1: padding. */
static int64_t input_at(const cpu_window *w, const int64_t *o, const int64_t *k) {
  int64_t at = 0;
  for (int a = 0; a < 3; ++a) {
    const int64_t i = o[a] * w->stride[a] - w->begin[a] + k[a] * w->dilation[a];
    if (i < 0 || i >= w->in[a])
      return -1;
    at = at * w->in[a] + i;
  }
  return at;
}

/* Output position whose kernel element k reads input position i; -1: none. */
static int64_t output_at(const cpu_window *w, const int64_t *i, const int64_t *k) {
  int64_t at = 0;
  for (int a = 0; a < 3; ++a) {
    const int64_t o = i[a] + w->begin[a] - k[a] * w->dilation[a];
    if (o < 0 || o % w->stride[a] != 0 || o / w->stride[a] >= w->out[a])
      return -1;
    at = at * w->out[a] + o / w->stride[a];
  }
  return at;
}

/* Planes of dX: (image, input channel). */
static void input_planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const grad_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const int64_t in_group = plan->c_in / plan->groups;
  const int64_t out_group = plan->c_out / plan->groups;
  for (int64_t plane = begin; plane < end; ++plane) {
    const int64_t image = plane / plan->c_in;
    const int64_t c = plane % plan->c_in;
    const int64_t first = c / in_group * out_group; /* output channel of the group */
    for (int64_t p = 0; p < w->n_in; ++p) {
      int64_t i[3];
      int64_t k[3];
      double sum = 0;
      split3(p, w->in, i);
      for (int64_t q = 0; q < w->n_kernel; ++q) {
        split3(q, w->kernel, k);
        const int64_t o = output_at(w, i, k);
        for (int64_t m = first; o >= 0 && m < first + out_group; ++m) {
          sum += cpu_get(&call->in[0], (image * plan->c_out + m) * w->n_out + o) *
                 cpu_get(&call->in[1], (m * in_group + c % in_group) * w->n_kernel + q);
        }
      }
      cpu_put(&call->out[0], plane * w->n_in + p, sum);
    }
  }
}

/* Elements of dW: (output channel, input channel of the group, kernel). */
static void weight_elements(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const grad_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const int64_t in_group = plan->c_in / plan->groups;
  for (int64_t e = begin; e < end; ++e) {
    const int64_t m = e / w->n_kernel / in_group;
    const int64_t c = m / (plan->c_out / plan->groups) * in_group + e / w->n_kernel % in_group;
    int64_t k[3];
    double sum = 0;
    split3(e % w->n_kernel, w->kernel, k);
    for (int64_t image = 0; image < plan->images; ++image) {
      for (int64_t p = 0; p < w->n_out; ++p) {
        int64_t o[3];
        split3(p, w->out, o);
        const int64_t i = input_at(w, o, k);
        sum += i < 0 ? 0
                     : cpu_get(&call->in[0], (image * plan->c_out + m) * w->n_out + p) *
                           cpu_get(&call->in[1], (image * plan->c_in + c) * w->n_in + i);
      }
    }
    cpu_put(&call->out[0], e, sum);
  }
}

static opipe_status input_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->images * plan->c_in,
               (int64_t)call->out[0].n * plan->window.n_kernel, input_planes, &copy);
  return OPIPE_OK;
}

static opipe_status weight_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, (int64_t)call->out[0].n,
               (int64_t)call->out[0].n * plan->images * plan->window.n_out, weight_elements, &copy);
  return OPIPE_OK;
}

static cpu_conv_args sizes_of(const grad_plan *plan) {
  return cpu_window_sizes(&plan->window, plan->images, plan->groups, plan->c_in, plan->c_out);
}

static cpu_conv_grad_args fast_args(const cpu_call *call) {
  return (cpu_conv_grad_args){.of = sizes_of(call->plan),
                              .dy = call->in[0].data,
                              .other = call->in[1].data,
                              .out = call->out[0].data,
                              .workspace = call->workspace};
}

static opipe_status fast_input_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_conv_grad_args args = fast_args(call);
  (void)err;
  cpu_conv_grad_input(call->exec, &args);
  return OPIPE_OK;
}

static opipe_status fast_weight_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_conv_grad_args args = fast_args(call);
  (void)err;
  cpu_conv_grad_weight(call->exec, &args);
  return OPIPE_OK;
}

static void choose_kernel(cpu_prep *p, const grad_plan *plan, bool to_weight) {
  const cpu_conv_args sizes = sizes_of(plan);
  const int32_t threads = p->device->threads;
  uint64_t bytes = 0;
  p->step->run = to_weight ? weight_kernel : input_kernel;
  if (!p->fast || cpu_in(p, 0)->dtype != OPIPE_FLOAT ||
      !(to_weight ? cpu_conv_grad_weight_workspace : cpu_conv_grad_input_workspace)(threads, &sizes,
                                                                                    &bytes))
    return;
  cpu_want_workspace(p, bytes);
  p->step->run = to_weight ? fast_weight_kernel : fast_input_kernel;
}

static opipe_status prepare_conv_grad(cpu_prep *p) {
  const bool to_weight = p->op->code == 1;
  const opipe_value *dy = cpu_in(p, 0);
  const opipe_value *weight = to_weight ? cpu_out(p, 0) : cpu_in(p, 1);
  const opipe_value *x = to_weight ? cpu_in(p, 1) : cpu_out(p, 0);
  const opipe_attr *shape = opipe_attr_find(p->node, "shape");
  grad_plan *plan = CPU_PLAN(p, grad_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(dy->dtype) || x->dtype != dy->dtype || weight->dtype != dy->dtype ||
      weight->rank < 3 || x->rank != weight->rank || dy->rank != weight->rank) {
    return cpu_refuse(p, "does not take %s of rank %u, weights of rank %u",
                      opipe_dtype_name(dy->dtype), dy->rank, weight->rank);
  }
  if (shape == NULL || shape->kind != OPIPE_ATTR_INTS || shape->n > OPIPE_MAX_RANK)
    return cpu_invalid(p, "it has no shape");
  CPU_TRY(cpu_expect(p, 0, dy->dtype, shape->data, shape->n));
  CPU_TRY(cpu_window_init(p, &plan->window, x, dy, weight->shape + 2));
  plan->images = x->shape[0];
  plan->c_in = x->shape[1];
  plan->c_out = weight->shape[0];
  plan->groups = opipe_attr_int(p->node, "group", 1);
  if (plan->groups < 1 || plan->c_in % plan->groups != 0 || plan->c_out % plan->groups != 0 ||
      weight->shape[1] != plan->c_in / plan->groups || dy->shape[0] != plan->images ||
      dy->shape[1] != plan->c_out) {
    return cpu_invalid(p, "'%.80s' and '%.80s' do not fit %lld channels in %lld groups", dy->name,
                       weight->name, (long long)plan->c_in, (long long)plan->groups);
  }
  for (uint32_t i = 0; i < plan->window.axes; ++i) {
    if (weight->shape[2 + i] != plan->window.kernel[3 - plan->window.axes + i])
      return cpu_invalid(p, "kernel_shape and '%.80s' differ", weight->name);
  }
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  cpu_want_layout(p, 1, CPU_LAYOUT_COPY);
  choose_kernel(p, plan, to_weight);
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"ConvGradX", "opipe", prepare_conv_grad, 2, 2, 1, CPU_OP_WIDEN, 0},
    {"ConvGradW", "opipe", prepare_conv_grad, 2, 2, 1, CPU_OP_WIDEN, 1},
};

const cpu_op_family cpu_family_conv_grad = {ops, CPU_COUNT_OF(ops)};
