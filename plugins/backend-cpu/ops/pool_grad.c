/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.AveragePoolGrad (dY -> dX) and MaxPoolGrad (dY, X -> dX): plain loops, plane by plane.
 *
 * A window's gradient is spread over the elements that it averages (counting pads as the forward
 * does), or goes to the first largest one in row-major order; NaN counts as larger than any number.
 */
#include <math.h>

#include "window.h"

typedef struct grad_plan {
  cpu_window window;
  int64_t planes;
  bool average, count_pads;
} grad_plan;

static void add(const cpu_tensor *t, int64_t i, double value) {
  if (t->dtype == OPIPE_DOUBLE)
    ((double *)t->data)[i] += value;
  else
    ((float *)t->data)[i] += (float)value;
}

/* Where element k of the window at o lies in the plane; -1: outside. Counts it in *io_padded when
 * the padded plane has it. */
static int64_t element(const cpu_window *w, int64_t o, int64_t k, int64_t *io_padded) {
  const int64_t at[3] = {o / w->out[2] / w->out[1], o / w->out[2] % w->out[1], o % w->out[2]};
  const int64_t in_window[3] = {k / w->kernel[2] / w->kernel[1], k / w->kernel[2] % w->kernel[1],
                                k % w->kernel[2]};
  bool inside = true;
  bool in_padded = true;
  int64_t index = 0;
  for (int a = 0; a < 3; ++a) {
    const int64_t i = at[a] * w->stride[a] - w->begin[a] + in_window[a] * w->dilation[a];
    inside = inside && i >= 0 && i < w->in[a];
    in_padded = in_padded && i < w->in[a] + w->end[a];
    index = index * w->in[a] + i;
  }
  *io_padded += in_padded ? 1 : 0;
  return inside ? index : -1;
}

static void spread(const cpu_call *call, int64_t first, int64_t o, double dy) {
  const grad_plan *plan = call->plan;
  int64_t padded = 0;
  int64_t inside = 0;
  for (int64_t k = 0; k < plan->window.n_kernel; ++k)
    inside += element(&plan->window, o, k, &padded) >= 0 ? 1 : 0;
  const double share = dy / (double)(plan->count_pads ? padded : inside);
  for (int64_t k = 0; k < plan->window.n_kernel; ++k) {
    const int64_t at = element(&plan->window, o, k, &padded);
    if (at >= 0)
      add(&call->out[0], first + at, share);
  }
}

static void to_largest(const cpu_call *call, int64_t first, int64_t o, double dy) {
  const grad_plan *plan = call->plan;
  int64_t padded = 0;
  int64_t best = -1;
  double top = 0;
  for (int64_t k = 0; k < plan->window.n_kernel; ++k) {
    const int64_t at = element(&plan->window, o, k, &padded);
    const double value = at < 0 ? 0 : cpu_get(&call->in[1], first + at);
    if (at >= 0 && (best < 0 || value > top || (isnan(value) && !isnan(top)))) {
      best = at;
      top = value;
    }
  }
  if (best >= 0)
    add(&call->out[0], first + best, dy);
}

static void planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const grad_plan *plan = call->plan;
  for (int64_t plane = begin; plane < end; ++plane) {
    for (int64_t o = 0; o < plan->window.n_out; ++o) {
      const double dy = cpu_get(&call->in[0], plane * plan->window.n_out + o);
      if (plan->average)
        spread(call, plane * plan->window.n_in, o, dy);
      else
        to_largest(call, plane * plan->window.n_in, o, dy);
    }
  }
}

static opipe_status pool_grad_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  if (call->out[0].n_bytes > 0)
    memset(call->out[0].data, 0, (size_t)call->out[0].n_bytes);
  cpu_parallel(call->exec, plan->planes, (int64_t)call->in[0].n * plan->window.n_kernel, planes,
               &copy);
  return OPIPE_OK;
}

static opipe_status prepare_pool_grad(cpu_prep *p) {
  const opipe_value *dy = cpu_in(p, 0);
  const opipe_value *dx = cpu_out(p, 0);
  grad_plan *plan = CPU_PLAN(p, grad_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->average = p->op->code == 1;
  if (!cpu_is_float(dy->dtype) || dx->dtype != dy->dtype || dx->rank < 3 || dy->rank != dx->rank)
    return cpu_refuse(p, "does not take %s of rank %u", opipe_dtype_name(dy->dtype), dy->rank);
  if (!plan->average)
    CPU_TRY(cpu_expect_like(p, 0, cpu_in(p, 1)));
  CPU_TRY(cpu_window_init(p, &plan->window, dx, dy, NULL));
  plan->count_pads = opipe_attr_int(p->node, "count_include_pad", 0) != 0;
  plan->planes = dx->shape[0] * dx->shape[1];
  if (dy->shape[0] != dx->shape[0] || dy->shape[1] != dx->shape[1])
    return cpu_invalid(p, "gradient and input differ in batch or channels");
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  p->step->run = pool_grad_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"MaxPoolGrad", "opipe", prepare_pool_grad, 2, 2, 1, CPU_OP_WIDEN, 0},
    {"AveragePoolGrad", "opipe", prepare_pool_grad, 1, 1, 1, CPU_OP_WIDEN, 1},
};

const cpu_op_family cpu_family_pool_grad = {ops, CPU_COUNT_OF(ops)};
