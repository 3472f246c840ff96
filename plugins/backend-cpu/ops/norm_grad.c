/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LayerNormalizationGrad, RMSNormalizationGrad (dY, X, Scale -> dX) and their GradScale forms
 * (dY, X -> dScale, dBias).
 *
 * With h = (x - mean) / s the normalised element and g = dY Scale:
 *   layer  dX = (g - mean(g) - h mean(g h)) / s        RMS: the same without the means of x and g
 *   dScale = sum over rows of dY h, dBias = sum of dY
 * Statistics are made again from X. The reference works in fp64.
 */
#include <math.h>

#include "loop.h"

typedef struct grad_plan {
  int64_t rows, columns;
  double epsilon;
  bool rms;
  bool adds[2]; /* the output is an accumulator */
} grad_plan;

static void statistics(const grad_plan *plan, const cpu_tensor *x, int64_t first, double *out_mean,
                       double *out_inverse) {
  const double n = (double)plan->columns;
  double mean = 0;
  double square = 0;
  for (int64_t c = 0; !plan->rms && c < plan->columns; ++c)
    mean += cpu_get(x, first + c);
  mean /= n;
  for (int64_t c = 0; c < plan->columns; ++c) {
    const double d = cpu_get(x, first + c) - mean;
    square += d * d;
  }
  *out_mean = mean;
  *out_inverse = 1.0 / sqrt(square / n + plan->epsilon);
}

static void input_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const grad_plan *plan = call->plan;
  const cpu_tensor *dy = &call->in[0];
  const cpu_tensor *x = &call->in[1];
  const cpu_tensor *scale = &call->in[2];
  const double n = (double)plan->columns;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t first = r * plan->columns;
    double mean = 0;
    double inverse = 0;
    double sum = 0;
    double dot = 0;
    statistics(plan, x, first, &mean, &inverse);
    for (int64_t c = 0; c < plan->columns; ++c) {
      const double g = cpu_get(dy, first + c) * cpu_get(scale, c);
      sum += plan->rms ? 0 : g;
      dot += g * (cpu_get(x, first + c) - mean) * inverse;
    }
    for (int64_t c = 0; c < plan->columns; ++c) {
      const double g = cpu_get(dy, first + c) * cpu_get(scale, c);
      const double h = (cpu_get(x, first + c) - mean) * inverse;
      cpu_put(&call->out[0], first + c, (g - sum / n - h * (dot / n)) * inverse);
    }
  }
}

static opipe_status input_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->rows, (int64_t)call->out[0].n, input_rows, &copy);
  return OPIPE_OK;
}

/* Sums over rows in rising order, for all columns at once in the workspace. */
static opipe_status scale_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  double *scale = call->workspace;
  double *bias = scale + plan->columns;
  (void)err;
  for (int64_t c = 0; c < plan->columns; ++c) {
    scale[c] = 0;
    bias[c] = 0;
  }
  for (int64_t r = 0; r < plan->rows; ++r) {
    const int64_t first = r * plan->columns;
    double mean = 0;
    double inverse = 0;
    statistics(plan, &call->in[1], first, &mean, &inverse);
    for (int64_t c = 0; c < plan->columns; ++c) {
      const double dy = cpu_get(&call->in[0], first + c);
      scale[c] += dy * (cpu_get(&call->in[1], first + c) - mean) * inverse;
      bias[c] += dy;
    }
  }
  for (int64_t c = 0; c < plan->columns; ++c) {
    if (call->out[0].data != NULL)
      cpu_put(&call->out[0], c, scale[c]);
    if (call->n_out > 1 && call->out[1].data != NULL)
      cpu_put(&call->out[1], c, bias[c]);
  }
  return OPIPE_OK;
}

static opipe_status fast_input_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  const cpu_norm_grad_args args = {.rows = plan->rows,
                                   .columns = plan->columns,
                                   .rms = plan->rms,
                                   .epsilon = (float)plan->epsilon,
                                   .dy = call->in[0].data,
                                   .x = call->in[1].data,
                                   .scale = call->in[2].data,
                                   .dx = call->out[0].data};
  (void)err;
  cpu_norm_grad(call->exec, &args);
  return OPIPE_OK;
}

/* Where output i is summed up: in place, or beside it (in `room`) when its layout is not dense. */
static float *sum_place(const cpu_call *call, uint32_t i, float *room) {
  const grad_plan *plan = call->plan;
  if (i >= call->n_out || call->out[i].data == NULL)
    return NULL;
  float *to = call->out[i].layout >= CPU_LAYOUT_PANEL ? room : call->out[i].data;
  if (to == room || !plan->adds[i])
    memset(to, 0, (size_t)plan->columns * sizeof *to);
  return to;
}

static opipe_status fast_scale_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *plan = call->plan;
  float *room = call->workspace;
  const cpu_norm_grad_scale_args args = {.rows = plan->rows,
                                         .columns = plan->columns,
                                         .rms = plan->rms,
                                         .epsilon = (float)plan->epsilon,
                                         .dy = call->in[0].data,
                                         .x = call->in[1].data,
                                         .dscale = sum_place(call, 0, room),
                                         .dbias = sum_place(call, 1, room + plan->columns),
                                         .workspace = room + 2 * plan->columns};
  (void)err;
  cpu_norm_grad_scale(call->exec, &args);
  for (uint32_t i = 0; i < call->n_out; ++i) {
    const cpu_tensor *out = &call->out[i];
    if (out->data != NULL && out->layout >= CPU_LAYOUT_PANEL) {
      cpu_layout_add(call->exec, out->layout, out->shape, out->rank,
                     room + (int64_t)i * plan->columns, out->data);
    }
  }
  return OPIPE_OK;
}

/* fp32 throughout, or an accumulator among the outputs. */
static bool all_f32(const cpu_prep *p) {
  for (uint32_t i = 0; i < p->step->n_in; ++i) {
    if (cpu_in(p, i) != NULL && cpu_in(p, i)->dtype != OPIPE_FLOAT)
      return false;
  }
  for (uint32_t i = 0; i < p->step->n_out; ++i) {
    if (cpu_out(p, i) != NULL && cpu_out(p, i)->dtype != OPIPE_FLOAT)
      return false;
  }
  return true;
}

static void choose_scale_kernel(cpu_prep *p, grad_plan *plan) {
  for (uint32_t i = 0; i < 2; ++i)
    plan->adds[i] = cpu_out(p, i) != NULL && cpu_out(p, i)->role == OPIPE_VALUE_GRADIENT;
  if ((p->fast || plan->adds[0] || plan->adds[1]) && all_f32(p)) {
    cpu_want_workspace(p, 2 * (uint64_t)(plan->columns + plan->rows) * sizeof(float));
    p->step->run = fast_scale_kernel;
  }
}

static opipe_status check_vector(cpu_prep *p, const opipe_value *vector, int64_t n) {
  return vector == NULL || ((int64_t)cpu_elems(vector) == n && cpu_is_float(vector->dtype))
             ? OPIPE_OK
             : cpu_invalid(p, "'%.80s' is %s of %llu elements, not %lld", vector->name,
                           opipe_dtype_name(vector->dtype), (unsigned long long)cpu_elems(vector),
                           (long long)n);
}

static opipe_status prepare_norm_grad(cpu_prep *p) {
  const opipe_value *dy = cpu_in(p, 0);
  const opipe_value *x = cpu_in(p, 1);
  const bool to_scale = (p->op->code & 2u) != 0;
  grad_plan *plan = CPU_PLAN(p, grad_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(x->dtype) || !cpu_is_float(dy->dtype) || cpu_elems(dy) != cpu_elems(x)) {
    return cpu_refuse(p, "does not take %s, %s", opipe_dtype_name(dy->dtype),
                      opipe_dtype_name(x->dtype));
  }
  plan->rms = (p->op->code & 1u) != 0;
  plan->epsilon = opipe_attr_float(p->node, "epsilon", 1e-5);
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", -1), x->rank, &axis));
  plan->rows = 1;
  plan->columns = 1;
  for (uint32_t i = 0; i < x->rank; ++i)
    *(i < axis ? &plan->rows : &plan->columns) *= x->shape[i];
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  if (to_scale) {
    CPU_TRY(check_vector(p, cpu_out(p, 0), plan->columns));
    CPU_TRY(check_vector(p, cpu_out(p, 1), plan->columns));
    cpu_want_workspace(p, 2 * (uint64_t)plan->columns * sizeof(double));
    p->step->run = scale_kernel;
    choose_scale_kernel(p, plan);
    return OPIPE_OK;
  }
  CPU_TRY(check_vector(p, cpu_in(p, 2), plan->columns));
  CPU_TRY(cpu_expect(p, 0, cpu_is_float(cpu_out(p, 0)->dtype) ? cpu_out(p, 0)->dtype : 0, x->shape,
                     x->rank));
  p->step->run = input_kernel;
  if (p->fast && all_f32(p)) {
    p->step->run = fast_input_kernel;
    p->step->inplace = 3;
  }
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"LayerNormalizationGrad", "opipe", prepare_norm_grad, 3, 3, 1, CPU_OP_WIDEN, 0},
    {"RMSNormalizationGrad", "opipe", prepare_norm_grad, 3, 3, 1, CPU_OP_WIDEN, 1},
    {"LayerNormalizationGradScale", "opipe", prepare_norm_grad, 2, 2, 2, CPU_OP_WIDEN, 2},
    {"RMSNormalizationGradScale", "opipe", prepare_norm_grad, 2, 2, 1, CPU_OP_WIDEN, 3},
};

const cpu_op_family cpu_family_norm_grad = {ops, CPU_COUNT_OF(ops)};
