/* SPDX-License-Identifier: Apache-2.0 */
/* QuantizeLinear and DynamicQuantizeLinear: round(x / scale) to even, plus the zero point, kept
 * within the type.
 *
 *   runs   fp32 to 8 bits, many elements with one scale; plain: everything else
 */
#include <math.h>

#include "loop.h"
#include "small_types.h"

enum { RUN_LEAST = 16 }; /* elements with one scale that are worth a kernel's call */

/* Element (o, d, i) of [outer, depth, inner] has scale and zero point o * scale_outer + d / block *
 * scale_block + i * scale_inner. */
typedef struct quantize_plan {
  int64_t outer, depth, inner, block;
  int64_t scale_outer, scale_block, scale_inner;
  float low, high;
} quantize_plan;

static float clamp(float v, float low, float high) {
  return v >= low ? (v <= high ? v : high) : low; /* a NaN becomes the lowest */
}

static float real_at(const cpu_tensor *t, int64_t at) {
  cpu_run_buffer one;
  return *(const float *)cpu_fetch(CPU_CLASS_F32, t->dtype, t->data, at, 1, 1, &one);
}

static int32_t zero_at(const cpu_tensor *t, int64_t at) {
  const uint32_t bits = opipe_dtype_bits(t->dtype);
  const bool is_signed = opipe_dtype_row_of(t->dtype)->elements == OPIPE_ELEM_INT;
  uint32_t code = 0;
  if (bits == 16) {
    uint16_t half = 0;
    memcpy(&half, (const char *)t->data + at * 2, sizeof half);
    code = half;
  } else {
    code = bits == 8 ? ((const uint8_t *)t->data)[at] : cpu_packed_get(t->data, bits, at);
  }
  const uint32_t sign = is_signed ? 1u << (bits - 1) : 0;
  return (int32_t)(code ^ sign) - (int32_t)sign;
}

static void put(const cpu_tensor *t, int64_t at, float value) {
  const uint32_t bits = opipe_dtype_bits(t->dtype);
  const uint32_t code = (uint32_t)(int32_t)value;
  if (bits == 16)
    ((uint16_t *)t->data)[at] = (uint16_t)code;
  else if (bits == 8)
    ((uint8_t *)t->data)[at] = (uint8_t)code;
  else
    cpu_packed_set(t->data, bits, at, (uint8_t)(code & ((1u << bits) - 1u)));
}

static int64_t first_scale(const quantize_plan *plan, int64_t row) {
  return row / plan->depth * plan->scale_outer +
         row % plan->depth / plan->block * plan->scale_block;
}

static opipe_status runs_kernel(const cpu_call *call, opipe_error *err) {
  const quantize_plan *plan = call->plan;
  const bool zeros = call->n_in > 2 && call->in[2].data != NULL;
  (void)err;
  for (int64_t row = 0; row < plan->outer * plan->depth; ++row) {
    const int64_t s = first_scale(plan, row), at = row * plan->inner;
    const cpu_quantize_args args = {.x = (const float *)call->in[0].data + at,
                                    .n = plan->inner,
                                    .scale = real_at(&call->in[1], s),
                                    .zero = zeros ? (float)zero_at(&call->in[2], s) : 0.0f,
                                    .low = plan->low,
                                    .high = plan->high,
                                    .y = (uint8_t *)call->out[0].data + at};
    cpu_quantize(call->exec, &args);
  }
  return OPIPE_OK;
}

static opipe_status quantize_kernel(const cpu_call *call, opipe_error *err) {
  const quantize_plan *plan = call->plan;
  const bool zeros = call->n_in > 2 && call->in[2].data != NULL;
  (void)err;
  for (int64_t row = 0; row < plan->outer * plan->depth; ++row) {
    const int64_t first = first_scale(plan, row);
    for (int64_t i = 0; i < plan->inner; ++i) {
      const int64_t at = row * plan->inner + i, s = first + i * plan->scale_inner;
      const float zero = zeros ? (float)zero_at(&call->in[2], s) : 0.0f;
      const float steps = nearbyintf(real_at(&call->in[0], at) / real_at(&call->in[1], s));
      put(&call->out[0], at, clamp(steps + zero, plan->low, plan->high));
    }
  }
  return OPIPE_OK;
}

static opipe_status prepare_quantize(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0), *scale = cpu_in(p, 1), *zero = cpu_in(p, 2);
  const opipe_value *y = cpu_out(p, 0);
  const uint32_t bits = opipe_dtype_bits(y->dtype);
  const uint32_t elements = opipe_dtype_row_of(y->dtype)->elements;
  const bool one = cpu_elems(scale) == 1;
  const int64_t block = one ? 0 : opipe_attr_int(p->node, "block_size", 0);
  uint32_t axis = 0;
  quantize_plan *plan = CPU_PLAN(p, quantize_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(x->dtype) || x->dtype == OPIPE_DOUBLE || !cpu_is_float(scale->dtype) ||
      scale->dtype == OPIPE_DOUBLE || (elements != OPIPE_ELEM_INT && elements != OPIPE_ELEM_UINT) ||
      bits > 16) {
    return cpu_refuse(p, "does not make %s of %s", opipe_dtype_name(y->dtype),
                      opipe_dtype_name(x->dtype));
  }
  if (zero != NULL && (zero->dtype != y->dtype || cpu_elems(zero) != cpu_elems(scale)))
    return cpu_invalid(p, "'%.80s' does not fit '%.80s'", zero->name, scale->name);
  if (!one)
    CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 1), x->rank, &axis));
  CPU_TRY(cpu_expect(p, 0, y->dtype, x->shape, x->rank));
  plan->outer = plan->inner = 1;
  plan->depth = x->rank > 0 ? x->shape[axis] : 1;
  for (uint32_t a = 0; a < x->rank; ++a) {
    plan->outer *= a < axis ? x->shape[a] : 1;
    plan->inner *= a > axis ? x->shape[a] : 1;
  }
  plan->block = block > 0 ? block : 1;
  const int64_t blocks = (plan->depth + plan->block - 1) / plan->block;
  const int64_t wanted = one ? 1 : block > 0 ? plan->outer * blocks * plan->inner : plan->depth;
  if (block < 0 || cpu_elems(scale) != (uint64_t)wanted) {
    return cpu_invalid(p, "'%.80s' has %llu elements, %lld are needed", scale->name,
                       (unsigned long long)cpu_elems(scale), (long long)wanted);
  }
  if (one) {
    plan->inner = (int64_t)cpu_elems(x);
    plan->outer = plan->depth = 1;
  } else {
    plan->scale_block = block > 0 ? plan->inner : 1;
    plan->scale_outer = block > 0 ? blocks * plan->inner : 0;
    plan->scale_inner = block > 0;
  }
  plan->low = elements == OPIPE_ELEM_INT ? -(float)(1 << (bits - 1)) : 0.0f;
  plan->high = (float)((1 << (elements == OPIPE_ELEM_INT ? bits - 1 : bits)) - 1);
  const bool runs = plan->scale_inner == 0 && plan->inner >= RUN_LEAST;
  p->step->run =
      p->fast && runs && x->dtype == OPIPE_FLOAT && bits == 8 ? runs_kernel : quantize_kernel;
  return OPIPE_OK;
}

/* ---- by the range of the data ---- */

typedef struct dynamic_job {
  const float *x;
  uint8_t *y;
  float scale, zero;
} dynamic_job;

static void dynamic_range(void *ctx, int64_t begin, int64_t end) {
  const dynamic_job *job = ctx;
  for (int64_t i = begin; i < end; ++i) {
    const float steps = nearbyintf(job->x[i] / job->scale);
    job->y[i] = (uint8_t)(int32_t)clamp(steps + job->zero, 0.0f, 255.0f);
  }
}

static void range_of(const float *x, uint64_t n, float *out_low, float *out_high) {
  for (uint64_t i = 0; i < n; ++i) {
    *out_low = x[i] < *out_low ? x[i] : *out_low;
    *out_high = x[i] > *out_high ? x[i] : *out_high;
  }
}

/* Scale and zero point from the range, into the outputs. */
static void set_range(const cpu_call *call, float low, float high, dynamic_job *io_job) {
  io_job->scale = low == high ? 1.0f : (high - low) / 255.0f;
  io_job->zero = clamp(nearbyintf(0.0f - low / io_job->scale), 0.0f, 255.0f);
  *(float *)call->out[1].data = io_job->scale;
  *(uint8_t *)call->out[2].data = (uint8_t)io_job->zero;
}

static opipe_status dynamic_kernel(const cpu_call *call, opipe_error *err) {
  dynamic_job job = {call->in[0].data, call->out[0].data, 1.0f, 0.0f};
  const int64_t n = (int64_t)call->in[0].n;
  float low = 0, high = 0;
  (void)err;
  range_of(job.x, call->in[0].n, &low, &high);
  set_range(call, low, high, &job);
  cpu_parallel(call->exec, n, n, dynamic_range, &job);
  return OPIPE_OK;
}

static opipe_status dynamic_runs_kernel(const cpu_call *call, opipe_error *err) {
  dynamic_job job = {call->in[0].data, call->out[0].data, 1.0f, 0.0f};
  const int64_t n = (int64_t)call->in[0].n;
  float low = 0, high = 0;
  (void)err;
  cpu_range_f32(call->exec, job.x, n, &low, &high);
  set_range(call, low, high, &job);
  cpu_quantize(call->exec, &(cpu_quantize_args){.x = job.x,
                                                .n = n,
                                                .scale = job.scale,
                                                .zero = job.zero,
                                                .low = 0.0f,
                                                .high = 255.0f,
                                                .y = job.y});
  return OPIPE_OK;
}

static opipe_status prepare_dynamic(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0);
  if (x->dtype != OPIPE_FLOAT)
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(x->dtype));
  if (cpu_out(p, 0) == NULL || cpu_out(p, 1) == NULL || cpu_out(p, 2) == NULL)
    return cpu_refuse(p, "an output is absent");
  CPU_TRY(cpu_expect(p, 0, OPIPE_UINT8, x->shape, x->rank));
  CPU_TRY(cpu_expect(p, 1, OPIPE_FLOAT, NULL, 0));
  CPU_TRY(cpu_expect(p, 2, OPIPE_UINT8, NULL, 0));
  p->step->run = p->fast ? dynamic_runs_kernel : dynamic_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"QuantizeLinear", NULL, prepare_quantize, 2, 3, 1, 0, 0},
    {"DynamicQuantizeLinear", NULL, prepare_dynamic, 1, 1, 3, 0, 0},
};

const cpu_op_family cpu_family_quantize_linear = {ops, CPU_COUNT_OF(ops)};
