/* SPDX-License-Identifier: Apache-2.0 */
/* Normalisations: LayerNormalization, RMSNormalization, SimplifiedLayerNormalization,
 * GroupNormalization, InstanceNormalization, BatchNormalization (inference), LpNormalization.
 *
 * The reference works in fp64. Scale and bias are of the input's type or fp32.
 */
#include <math.h>

#include "loop.h"

typedef struct norm_plan {
  int64_t rows, columns;
  double epsilon;
  bool rms;
  int64_t groups, channels, pixels; /* group and batch forms; LpNormalization: pixels = inner */
  int64_t p;
  int bias, skip; /* operands, -1: none */
  int sum_out;    /* output that takes input + skip, -1: none */
} norm_plan;

static double value_at(const cpu_call *call, int operand, int64_t i, double absent) {
  return operand < 0 || call->in[operand].data == NULL
             ? absent
             : cpu_number(&call->in[operand], (uint64_t)i);
}

static void put(const cpu_tensor *out, int64_t i, double value) {
  if (out->dtype == OPIPE_FLOAT)
    ((float *)out->data)[i] = (float)value;
  else
    ((double *)out->data)[i] = value;
}

/* ---- over the last axes ---- */

static void layer_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const norm_plan *plan = call->plan;
  const double n = (double)plan->columns;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t first = r * plan->columns;
    double mean = 0;
    double square = 0;
    for (int64_t c = 0; c < plan->columns; ++c)
      mean += cpu_number(&call->in[0], (uint64_t)(first + c));
    mean = plan->rms ? 0 : mean / n;
    for (int64_t c = 0; c < plan->columns; ++c) {
      const double d = cpu_number(&call->in[0], (uint64_t)(first + c)) - mean;
      square += d * d;
    }
    const double inverse = 1.0 / sqrt(square / n + plan->epsilon);
    for (int64_t c = 0; c < plan->columns; ++c) {
      const double d = cpu_number(&call->in[0], (uint64_t)(first + c)) - mean;
      const double scaled = d * inverse * value_at(call, 1, c, 1.0);
      put(&call->out[0], first + c, scaled + value_at(call, plan->bias, c, 0.0));
    }
    if (call->n_out > 1 && call->out[1].data != NULL)
      put(&call->out[1], r, mean);
    if (call->n_out > 2 && call->out[2].data != NULL)
      put(&call->out[2], r, inverse);
  }
}

static opipe_status layer_kernel(const cpu_call *call, opipe_error *err) {
  const norm_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->rows, (int64_t)call->out[0].n, layer_rows, &copy);
  return OPIPE_OK;
}

static const float *operand_f32(const cpu_call *call, int operand) {
  return operand < 0 || operand >= (int)call->n_in ? NULL : call->in[operand].data;
}

static float *output_f32(const cpu_call *call, int output) {
  return output < 0 || output >= (int)call->n_out ? NULL : call->out[output].data;
}

static opipe_status fast_layer_kernel(const cpu_call *call, opipe_error *err) {
  const norm_plan *plan = call->plan;
  const cpu_norm_args args = {.rows = plan->rows,
                              .columns = plan->columns,
                              .rms = plan->rms,
                              .epsilon = (float)plan->epsilon,
                              .in = call->in[0].data,
                              .in_row = plan->columns,
                              .skip = operand_f32(call, plan->skip),
                              .skip_row = plan->columns,
                              .scale = operand_f32(call, 1),
                              .bias = operand_f32(call, plan->bias),
                              .out = call->out[0].data,
                              .out_row = plan->columns,
                              .sum = output_f32(call, plan->sum_out),
                              .sum_row = plan->columns,
                              .mean = plan->sum_out == 1 ? NULL : output_f32(call, 1),
                              .inv_std = plan->sum_out == 2 ? NULL : output_f32(call, 2)};
  (void)err;
  cpu_norm(call->exec, &args);
  return OPIPE_OK;
}

/* One vector of the normalised elements. */
static opipe_status check_vector(cpu_prep *p, uint32_t i, const opipe_value *in, int64_t n) {
  const opipe_value *vector = cpu_in(p, i);
  if (vector == NULL)
    return OPIPE_OK;
  if ((int64_t)cpu_elems(vector) != n ||
      (vector->dtype != in->dtype && vector->dtype != OPIPE_FLOAT)) {
    return cpu_refuse(p, "input '%.80s' is %s of %llu elements, not %lld", vector->name,
                      opipe_dtype_name(vector->dtype), (unsigned long long)cpu_elems(vector),
                      (long long)n);
  }
  return OPIPE_OK;
}

static opipe_status prepare_layer(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  norm_plan *plan = CPU_PLAN(p, norm_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(in->dtype))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  plan->rms = p->op->code == 1;
  plan->bias = plan->rms || p->node->n_in < 3 ? -1 : 2;
  plan->skip = p->fusion != NULL ? p->fusion->skip : -1;
  plan->sum_out = p->fusion != NULL ? p->fusion->sum : -1;
  plan->epsilon = opipe_attr_float(p->node, "epsilon", 1e-5);
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", -1), in->rank, &axis));
  plan->rows = 1;
  plan->columns = 1;
  for (uint32_t i = 0; i < in->rank; ++i)
    *(i < axis ? &plan->rows : &plan->columns) *= in->shape[i];
  CPU_TRY(cpu_expect(p, 0, cpu_out(p, 0) != NULL ? cpu_out(p, 0)->dtype : 0, in->shape, in->rank));
  CPU_TRY(check_vector(p, 1, in, plan->columns));
  if (plan->skip != 2) /* a fused residual is a whole tensor */
    CPU_TRY(check_vector(p, 2, in, plan->columns));
  bool all_f32 = in->dtype == OPIPE_FLOAT && cpu_out(p, 0)->dtype == OPIPE_FLOAT &&
                 opipe_attr_int(p->node, "stash_type", OPIPE_FLOAT) == OPIPE_FLOAT;
  for (uint32_t i = 1; i < p->node->n_out; ++i) {
    const opipe_value *out = cpu_out(p, i);
    if (out != NULL && ((int64_t)cpu_elems(out) != plan->rows ||
                        (out->dtype != OPIPE_FLOAT && out->dtype != OPIPE_DOUBLE))) {
      return cpu_refuse(p, "output %u is %s of %llu elements", i, opipe_dtype_name(out->dtype),
                        (unsigned long long)cpu_elems(out));
    }
    all_f32 = all_f32 && (out == NULL || out->dtype == OPIPE_FLOAT);
  }
  p->step->run = layer_kernel;
  if (p->fast && all_f32 && cpu_in(p, 1)->dtype == OPIPE_FLOAT) {
    for (uint32_t i = 0; i < p->step->n_in; ++i)
      cpu_want_layout(p, i, CPU_LAYOUT_F32);
    p->step->run = fast_layer_kernel;
    p->step->inplace = 1;
  } else if (p->fusion != NULL) {
    return opipe_fail(p->err, OPIPE_E_INTERNAL, "node '%.80s': fused without its fast kernel",
                      p->node->name);
  }
  return OPIPE_OK;
}

/* ---- over groups of channels ---- */

static void group_range(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const norm_plan *plan = call->plan;
  const int64_t per_group = plan->channels / plan->groups;
  const int64_t n = per_group * plan->pixels;
  for (int64_t g = begin; g < end; ++g) {
    const int64_t first = g * n;
    double mean = 0;
    double square = 0;
    for (int64_t i = 0; i < n; ++i)
      mean += cpu_number(&call->in[0], (uint64_t)(first + i));
    mean /= (double)n;
    for (int64_t i = 0; i < n; ++i) {
      const double d = cpu_number(&call->in[0], (uint64_t)(first + i)) - mean;
      square += d * d;
    }
    const double inverse = 1.0 / sqrt(square / (double)n + plan->epsilon);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t channel = g % plan->groups * per_group + i / plan->pixels;
      const double d = cpu_number(&call->in[0], (uint64_t)(first + i)) - mean;
      put(&call->out[0], first + i,
          d * inverse * value_at(call, 1, channel, 1.0) + value_at(call, 2, channel, 0.0));
    }
  }
}

static opipe_status group_kernel(const cpu_call *call, opipe_error *err) {
  const norm_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->rows * plan->groups, (int64_t)call->out[0].n, group_range, &copy);
  return OPIPE_OK;
}

/* Planes (row, channel), normalised: times the channel's scale, plus its bias. */
static void scale_planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const norm_plan *plan = call->plan;
  for (int64_t plane = begin; plane < end; ++plane) {
    const int64_t c = plane % plan->channels;
    const float scale = ((const float *)call->in[1].data)[c];
    const float bias = ((const float *)call->in[2].data)[c];
    float *y = (float *)call->out[0].data + plane * plan->pixels;
    for (int64_t i = 0; i < plan->pixels; ++i)
      y[i] = y[i] * scale + bias;
  }
}

/* fp32: a group is a row of the normalisation's kernel. */
static opipe_status fast_group_kernel(const cpu_call *call, opipe_error *err) {
  const norm_plan *plan = call->plan;
  const int64_t n = plan->channels / plan->groups * plan->pixels;
  const cpu_norm_args args = {.rows = plan->rows * plan->groups,
                              .columns = n,
                              .epsilon = (float)plan->epsilon,
                              .in = call->in[0].data,
                              .in_row = n,
                              .out = call->out[0].data,
                              .out_row = n};
  cpu_call copy = *call;
  (void)err;
  cpu_norm(call->exec, &args);
  cpu_parallel(call->exec, plan->rows * plan->channels, (int64_t)call->out[0].n, scale_planes,
               &copy);
  return OPIPE_OK;
}

/* [N, C, ...] */
static opipe_status channel_shape(cpu_prep *p, norm_plan *plan) {
  const opipe_value *in = cpu_in(p, 0);
  if (!cpu_is_float(in->dtype) || in->rank < 2)
    return cpu_refuse(p, "does not take %s of rank %u", opipe_dtype_name(in->dtype), in->rank);
  plan->epsilon = opipe_attr_float(p->node, "epsilon", 1e-5);
  plan->rows = in->shape[0];
  plan->channels = in->shape[1];
  plan->pixels = 1;
  for (uint32_t i = 2; i < in->rank; ++i)
    plan->pixels *= in->shape[i];
  CPU_TRY(cpu_expect_like(p, 0, in));
  for (uint32_t i = 1; i < p->step->n_in; ++i)
    CPU_TRY(check_vector(p, i, in, plan->channels));
  return OPIPE_OK;
}

static opipe_status prepare_group(cpu_prep *p) {
  norm_plan *plan = CPU_PLAN(p, norm_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(channel_shape(p, plan));
  plan->groups = p->op->code == 1 ? plan->channels : opipe_attr_int(p->node, "num_groups", 0);
  if (plan->groups <= 0 || plan->channels % plan->groups != 0) {
    return cpu_invalid(p, "%lld groups of %lld channels", (long long)plan->groups,
                       (long long)plan->channels);
  }
  p->step->run = group_kernel;
  if (p->fast && cpu_in(p, 0)->dtype == OPIPE_FLOAT && cpu_in(p, 1)->dtype == OPIPE_FLOAT &&
      cpu_in(p, 2)->dtype == OPIPE_FLOAT && plan->pixels > 0) {
    cpu_want_layout(p, 1, CPU_LAYOUT_COPY);
    cpu_want_layout(p, 2, CPU_LAYOUT_COPY);
    p->step->run = fast_group_kernel;
  }
  return OPIPE_OK;
}

static void batch_planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const norm_plan *plan = call->plan;
  for (int64_t plane = begin; plane < end; ++plane) {
    const int64_t c = plane % plan->channels;
    const double scale =
        value_at(call, 1, c, 1.0) / sqrt(value_at(call, 4, c, 1.0) + plan->epsilon);
    const double shift = value_at(call, 2, c, 0.0) - value_at(call, 3, c, 0.0) * scale;
    for (int64_t i = plane * plan->pixels; i < (plane + 1) * plan->pixels; ++i)
      put(&call->out[0], i, cpu_number(&call->in[0], (uint64_t)i) * scale + shift);
  }
}

static opipe_status batch_kernel(const cpu_call *call, opipe_error *err) {
  const norm_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->rows * plan->channels, (int64_t)call->out[0].n, batch_planes,
               &copy);
  return OPIPE_OK;
}

static opipe_status prepare_batch(cpu_prep *p) {
  norm_plan *plan = CPU_PLAN(p, norm_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (opipe_attr_int(p->node, "training_mode", 0) != 0)
    return cpu_refuse(p, "training_mode is 1; only the inference form is supported");
  CPU_TRY(channel_shape(p, plan));
  p->step->run = batch_kernel;
  return OPIPE_OK;
}

/* ---- LpNormalization: divided by the norm along an axis; a norm of 0 leaves 0 ---- */

static opipe_status lp_kernel(const cpu_call *call, opipe_error *err) {
  const norm_plan *plan = call->plan;
  (void)err;
  for (int64_t line = 0; line < plan->rows * plan->pixels; ++line) {
    const int64_t first = line / plan->pixels * plan->columns * plan->pixels + line % plan->pixels;
    double norm = 0;
    for (int64_t c = 0; c < plan->columns; ++c) {
      const double v = cpu_number(&call->in[0], (uint64_t)(first + c * plan->pixels));
      norm += plan->p == 1 ? fabs(v) : v * v;
    }
    norm = plan->p == 1 ? norm : sqrt(norm);
    for (int64_t c = 0; c < plan->columns; ++c) {
      const int64_t at = first + c * plan->pixels;
      put(&call->out[0], at, norm == 0 ? 0 : cpu_number(&call->in[0], (uint64_t)at) / norm);
    }
  }
  return OPIPE_OK;
}

static opipe_status prepare_lp(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  norm_plan *plan = CPU_PLAN(p, norm_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  plan->p = opipe_attr_int(p->node, "p", 2);
  if (!cpu_is_float(in->dtype) || plan->p < 1 || plan->p > 2) {
    return cpu_refuse(p, "does not take %s with p %lld", opipe_dtype_name(in->dtype),
                      (long long)plan->p);
  }
  CPU_TRY(cpu_expect_like(p, 0, in));
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", -1), in->rank, &axis));
  plan->rows = 1;
  plan->pixels = 1;
  plan->columns = in->shape[axis];
  for (uint32_t i = 0; i < in->rank; ++i) {
    if (i != axis)
      *(i < axis ? &plan->rows : &plan->pixels) *= in->shape[i];
  }
  p->step->run = lp_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"LayerNormalization", NULL, prepare_layer, 2, 3, 3, CPU_OP_WIDEN, 0},
    {"RMSNormalization", NULL, prepare_layer, 2, 2, 1, CPU_OP_WIDEN, 1},
    {"SimplifiedLayerNormalization", NULL, prepare_layer, 2, 2, 1, CPU_OP_WIDEN, 1},
    {"GroupNormalization", NULL, prepare_group, 3, 3, 1, CPU_OP_WIDEN, 0},
    {"InstanceNormalization", NULL, prepare_group, 3, 3, 1, CPU_OP_WIDEN, 1},
    {"BatchNormalization", NULL, prepare_batch, 5, 5, 1, CPU_OP_WIDEN, 0},
    {"LpNormalization", NULL, prepare_lp, 1, 1, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_norm = {ops, CPU_COUNT_OF(ops)};
