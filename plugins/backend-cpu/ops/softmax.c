/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax, LogSoftmax and Hardmax along one axis.
 *
 * The reference works in fp64. A row of minus infinities gives NaN, as the formula does.
 */
#include <math.h>

#include "loop.h"

enum { SOFTMAX, LOG_SOFTMAX, HARDMAX };

typedef struct softmax_plan {
  int64_t outer, n, inner;
  uint32_t code;
} softmax_plan;

#define SOFTMAX_LINE(NAME, T)                                             \
  static void NAME(const softmax_plan *plan, const T *x, T *y) {          \
    const int64_t step = plan->inner;                                     \
    double top = -(double)INFINITY;                                       \
    double sum = 0;                                                       \
    int64_t at = 0;                                                       \
    for (int64_t k = 0; k < plan->n; ++k) {                               \
      const double v = (double)x[k * step];                               \
      at = v > top || isnan(v) ? k : at;                                  \
      top = v > top || isnan(v) ? v : top;                                \
    }                                                                     \
    for (int64_t k = 0; k < plan->n; ++k) {                               \
      sum += exp((double)x[k * step] - top);                              \
    }                                                                     \
    for (int64_t k = 0; k < plan->n; ++k) {                               \
      const double v = (double)x[k * step] - top;                         \
      y[k * step] = (T)(plan->code == SOFTMAX       ? exp(v) / sum        \
                        : plan->code == LOG_SOFTMAX ? v - log(sum)        \
                                                    : (double)(k == at)); \
    }                                                                     \
  }

SOFTMAX_LINE(line_f32, float)
SOFTMAX_LINE(line_f64, double)

static void softmax_lines(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const softmax_plan *plan = call->plan;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i / plan->inner * plan->n * plan->inner + i % plan->inner;
    if (call->in[0].dtype == OPIPE_FLOAT)
      line_f32(plan, (const float *)call->in[0].data + first, (float *)call->out[0].data + first);
    else
      line_f64(plan, (const double *)call->in[0].data + first, (double *)call->out[0].data + first);
  }
}

static opipe_status softmax_kernel(const cpu_call *call, opipe_error *err) {
  const softmax_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->outer * plan->inner, (int64_t)call->out[0].n, softmax_lines,
               &copy);
  return OPIPE_OK;
}

static opipe_status rows_kernel(const cpu_call *call, opipe_error *err) {
  const softmax_plan *plan = call->plan;
  const cpu_softmax_args args = {.rows = plan->outer,
                                 .columns = plan->n,
                                 .log = plan->code == LOG_SOFTMAX,
                                 .in = call->in[0].data,
                                 .in_row = plan->n,
                                 .out = call->out[0].data,
                                 .out_row = plan->n};
  (void)err;
  cpu_softmax(call->exec, &args);
  return OPIPE_OK;
}

static opipe_status prepare_softmax(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  softmax_plan *plan = CPU_PLAN(p, softmax_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(in->dtype))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  CPU_TRY(cpu_expect_like(p, 0, in));
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", -1), in->rank, &axis));
  plan->code = p->op->code;
  plan->outer = 1;
  plan->inner = 1;
  plan->n = in->shape[axis];
  for (uint32_t i = 0; i < in->rank; ++i) {
    if (i != axis)
      *(i < axis ? &plan->outer : &plan->inner) *= in->shape[i];
  }
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  p->step->inplace = plan->code != HARDMAX;
  p->step->run = softmax_kernel;
  if (p->fast && in->dtype == OPIPE_FLOAT && plan->inner == 1 && plan->code != HARDMAX)
    p->step->run = rows_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Softmax", NULL, prepare_softmax, 1, 1, 1, CPU_OP_WIDEN, SOFTMAX},
    {"LogSoftmax", NULL, prepare_softmax, 1, 1, 1, CPU_OP_WIDEN, LOG_SOFTMAX},
    {"Hardmax", NULL, prepare_softmax, 1, 1, 1, CPU_OP_WIDEN, HARDMAX},
};

const cpu_op_family cpu_family_softmax = {ops, CPU_COUNT_OF(ops)};
