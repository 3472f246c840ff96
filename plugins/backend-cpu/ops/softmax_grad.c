/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.SoftmaxGrad, LogSoftmaxGrad (dY, Y) and SoftmaxCrossEntropyLossGrad (dL, scores, labels,
 * weights?).
 *
 * Softmax: dX = Y (dY - sum(dY Y)); an element with Y == 0 gives 0 whatever dY is, a row of NaN 0.
 * LogSoftmax: dX = dY - exp(Y) sum(dY). Loss: dL ((softmax - one-hot) of its label, weighted and
 * smoothed); a row whose label does not count gives 0. The reference sums in fp64.
 */
#include <math.h>

#include "loop.h"

typedef struct grad_plan {
  int64_t outer, n, inner; /* of the loss: rows, classes, pixels */
  bool log;
  bool sum; /* loss: one gradient for all labels */
  bool ignores;
  int64_t ignored;
  double smoothing;
} grad_plan;

static void softmax_lines(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const grad_plan *plan = call->plan;
  const cpu_tensor *dy = &call->in[0];
  const cpu_tensor *y = &call->in[1];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i / plan->inner * plan->n * plan->inner + i % plan->inner;
    double sum = 0;
    for (int64_t k = 0; k < plan->n; ++k) {
      const int64_t at = first + k * plan->inner;
      const double value = cpu_get(y, at);
      sum += plan->log ? cpu_get(dy, at) : value == 0 || isnan(value) ? 0 : cpu_get(dy, at) * value;
    }
    for (int64_t k = 0; k < plan->n; ++k) {
      const int64_t at = first + k * plan->inner;
      const double value = cpu_get(y, at);
      const double d = plan->log                    ? cpu_get(dy, at) - exp(value) * sum
                       : value == 0 || isnan(value) ? 0
                                                    : value * (cpu_get(dy, at) - sum);
      cpu_put(&call->out[0], at, d);
    }
  }
}

static opipe_status softmax_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->outer * plan->inner, (int64_t)call->out[0].n, softmax_lines,
               &copy);
  return OPIPE_OK;
}

static opipe_status fast_softmax_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  (void)err;
  cpu_softmax_grad(call->exec, plan->log, plan->outer, plan->n, call->in[0].data, call->in[1].data,
                   call->out[0].data);
  return OPIPE_OK;
}

static opipe_status prepare_softmax_grad(cpu_prep *p) {
  const opipe_value *y = cpu_in(p, 1);
  grad_plan *plan = CPU_PLAN(p, grad_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(y->dtype) || cpu_in(p, 0)->dtype != y->dtype ||
      cpu_elems(cpu_in(p, 0)) != cpu_elems(y)) {
    return cpu_refuse(p, "does not take %s, %s", opipe_dtype_name(cpu_in(p, 0)->dtype),
                      opipe_dtype_name(y->dtype));
  }
  CPU_TRY(cpu_expect_like(p, 0, y));
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", -1), y->rank, &axis));
  plan->log = p->op->code == 1;
  plan->outer = 1;
  plan->inner = 1;
  plan->n = y->shape[axis];
  for (uint32_t i = 0; i < y->rank; ++i) {
    if (i != axis)
      *(i < axis ? &plan->outer : &plan->inner) *= y->shape[i];
  }
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  cpu_want_layout(p, 1, CPU_LAYOUT_COPY);
  p->step->inplace = 3;
  p->step->run = softmax_kernel;
  if (p->fast && y->dtype == OPIPE_FLOAT && plan->inner == 1)
    p->step->run = fast_softmax_kernel;
  return OPIPE_OK;
}

/* ---- the loss ---- */

/* Gradient of one column of classes; dl 0 where the label does not count. */
static void loss_line(const cpu_call *call, int64_t first, int64_t label, double dl) {
  const grad_plan *plan = call->plan;
  const cpu_tensor *x = &call->in[1];
  const cpu_tensor *weights = call->n_in > 3 && call->in[3].data != NULL ? &call->in[3] : NULL;
  double top = -(double)INFINITY;
  double sum = 0;
  double total = 0; /* of the weights */
  for (int64_t c = 0; c < plan->n; ++c) {
    const double v = cpu_get(x, first + c * plan->inner);
    top = v > top || isnan(v) ? v : top;
    total += weights != NULL ? cpu_get(weights, c) : 1.0;
  }
  for (int64_t c = 0; c < plan->n; ++c)
    sum += exp(cpu_get(x, first + c * plan->inner) - top);
  const double own = (1.0 - plan->smoothing) * (weights != NULL ? cpu_get(weights, label) : 1.0);
  const double each = plan->smoothing / (double)plan->n;
  for (int64_t c = 0; c < plan->n; ++c) {
    const int64_t at = first + c * plan->inner;
    const double p = exp(cpu_get(x, at) - top) / sum;
    double d = p * (own + each * total) - each * (weights != NULL ? cpu_get(weights, c) : 1.0);
    d -= c == label ? own : 0;
    cpu_put(&call->out[0], at, dl * d);
  }
}

static opipe_status loss_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  for (int64_t i = 0; i < plan->outer * plan->inner; ++i) {
    const int64_t first = i / plan->inner * plan->n * plan->inner + i % plan->inner;
    const int64_t label = cpu_index(&call->in[2], (uint64_t)i);
    if (plan->ignores && label == plan->ignored) {
      for (int64_t c = 0; c < plan->n; ++c)
        cpu_put(&call->out[0], first + c * plan->inner, 0);
      continue;
    }
    if (label < 0 || label >= plan->n) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "label %lld is outside [0, %lld)",
                      (long long)label, (long long)plan->n);
    }
    loss_line(call, first, label, cpu_get(&call->in[0], plan->sum ? 0 : i));
  }
  return OPIPE_OK;
}

/* fp32 rows without weights. */
static opipe_status fast_loss_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  int64_t *labels = call->workspace;
  const cpu_loss_grad_args args = {.rows = plan->outer,
                                   .columns = plan->n,
                                   .dl = call->in[0].data,
                                   .dl_rows = !plan->sum,
                                   .smoothing = (float)plan->smoothing,
                                   .x = call->in[1].data,
                                   .label = labels,
                                   .dx = call->out[0].data};
  for (int64_t i = 0; i < plan->outer; ++i) {
    const int64_t label = cpu_index(&call->in[2], (uint64_t)i);
    const bool counts = !plan->ignores || label != plan->ignored;
    if (counts && (label < 0 || label >= plan->n)) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "label %lld is outside [0, %lld)",
                      (long long)label, (long long)plan->n);
    }
    labels[i] = counts ? label : -1;
  }
  cpu_loss_grad(call->exec, &args);
  return OPIPE_OK;
}

static opipe_status loss_shapes(cpu_prep *p, grad_plan *plan) {
  const opipe_value *dl = cpu_in(p, 0);
  const opipe_value *x = cpu_in(p, 1);
  const opipe_value *labels = cpu_in(p, 2);
  const opipe_value *weights = cpu_in(p, 3);
  if (!cpu_is_float(x->dtype) || x->rank < 2 || labels->rank + 1 != x->rank ||
      dl->dtype != x->dtype || (labels->dtype != OPIPE_INT64 && labels->dtype != OPIPE_INT32)) {
    return cpu_refuse(p, "scores %s of rank %u, labels %s of rank %u, gradient %s",
                      opipe_dtype_name(x->dtype), x->rank, opipe_dtype_name(labels->dtype),
                      labels->rank, opipe_dtype_name(dl->dtype));
  }
  plan->outer = x->shape[0];
  plan->n = x->shape[1];
  plan->inner = 1;
  bool fits = labels->shape[0] == plan->outer;
  for (uint32_t i = 2; i < x->rank; ++i) {
    plan->inner *= x->shape[i];
    fits = fits && labels->shape[i - 1] == x->shape[i];
  }
  if (!fits || cpu_elems(dl) != (plan->sum ? 1 : cpu_elems(labels)) ||
      (weights != NULL && (weights->dtype != x->dtype || (int64_t)cpu_elems(weights) != plan->n)))
    return cpu_invalid(p, "gradient, scores, labels and weights differ in shape or type");
  return OPIPE_OK;
}

static opipe_status prepare_loss_grad(cpu_prep *p) {
  const opipe_attr *ignored = opipe_attr_find(p->node, "ignore_index");
  const char *reduction = opipe_attr_string(p->node, "reduction", "sum");
  grad_plan *plan = CPU_PLAN(p, grad_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->sum = strcmp(reduction, "sum") == 0;
  if (!plan->sum && strcmp(reduction, "none") != 0)
    return cpu_refuse(p, "reduction '%.20s' is not known", reduction);
  CPU_TRY(loss_shapes(p, plan));
  CPU_TRY(cpu_expect_like(p, 0, cpu_in(p, 1)));
  plan->ignores = ignored != NULL && ignored->kind == OPIPE_ATTR_INT;
  plan->ignored = plan->ignores ? ignored->i : 0;
  plan->smoothing = opipe_attr_float(p->node, "smoothing", 0.0);
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  p->step->run = loss_kernel;
  if (p->fast && plan->inner == 1 && cpu_in(p, 1)->dtype == OPIPE_FLOAT && cpu_in(p, 3) == NULL) {
    p->step->run = fast_loss_kernel;
    p->step->inplace = 2;
    cpu_want_workspace(p, (uint64_t)plan->outer * sizeof(int64_t));
  }
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"SoftmaxGrad", "opipe", prepare_softmax_grad, 2, 2, 1, CPU_OP_WIDEN, 0},
    {"LogSoftmaxGrad", "opipe", prepare_softmax_grad, 2, 2, 1, CPU_OP_WIDEN, 1},
    {"SoftmaxCrossEntropyLossGrad", "opipe", prepare_loss_grad, 3, 4, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_softmax_grad = {ops, CPU_COUNT_OF(ops)};
