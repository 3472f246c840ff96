/* SPDX-License-Identifier: Apache-2.0 */
/* QuantizeLinear and DynamicQuantizeLinear: round(x / scale) to even, plus the zero point, kept
 * within the type.
 */
#include <math.h>

#include "loop.h"
#include "small_types.h"

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

static opipe_status quantize_kernel(const cpu_call *call, opipe_error *err) {
  const quantize_plan *plan = call->plan;
  const bool zeros = call->n_in > 2 && call->in[2].data != NULL;
  (void)err;
  for (int64_t row = 0; row < plan->outer * plan->depth; ++row) {
    const int64_t o = row / plan->depth, d = row % plan->depth;
    const int64_t first = o * plan->scale_outer + d / plan->block * plan->scale_block;
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
  if (!one) {
    plan->scale_block = block > 0 ? plan->inner : 1;
    plan->scale_outer = block > 0 ? blocks * plan->inner : 0;
    plan->scale_inner = block > 0;
  }
  plan->low = elements == OPIPE_ELEM_INT ? -(float)(1 << (bits - 1)) : 0.0f;
  plan->high = (float)((1 << (elements == OPIPE_ELEM_INT ? bits - 1 : bits)) - 1);
  p->step->run = quantize_kernel;
  return OPIPE_OK;
}

/* ---- by the range of the data ---- */

enum { LANES = 16 };

typedef struct dynamic_job {
  const float *x;
  uint8_t *y;
  float scale, zero;
} dynamic_job;

static void dynamic_range(void *ctx, int64_t begin, int64_t end) {
  const dynamic_job job = *(const dynamic_job *)ctx; /* its own: bytes may lie anywhere */
  const float shift =
      12582912.0f; /* 1.5 * 2^23: rounds what is below 2^22, as all of x / scale is */
  for (int64_t i = begin; i < end; ++i) {
    const float steps = job.x[i] / job.scale + shift - shift;
    job.y[i] = (uint8_t)(int32_t)clamp(steps + job.zero, 0.0f, 255.0f);
  }
}

static void range_of(const float *x, uint64_t n, float *out_low, float *out_high) {
  float low[LANES] = {0}, high[LANES] = {0};
  uint64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int l = 0; l < LANES; ++l) {
      low[l] = x[i + (uint64_t)l] < low[l] ? x[i + (uint64_t)l] : low[l];
      high[l] = x[i + (uint64_t)l] > high[l] ? x[i + (uint64_t)l] : high[l];
    }
  }
  for (; i < n; ++i) {
    low[0] = x[i] < low[0] ? x[i] : low[0];
    high[0] = x[i] > high[0] ? x[i] : high[0];
  }
  for (int l = 1; l < LANES; ++l) {
    low[0] = low[l] < low[0] ? low[l] : low[0];
    high[0] = high[l] > high[0] ? high[l] : high[0];
  }
  *out_low = low[0];
  *out_high = high[0];
}

static opipe_status dynamic_kernel(const cpu_call *call, opipe_error *err) {
  dynamic_job job = {call->in[0].data, call->out[0].data, 1.0f, 0.0f};
  float low = 0, high = 0;
  (void)err;
  range_of(job.x, call->in[0].n, &low, &high);
  job.scale = low == high ? 1.0f : (high - low) / 255.0f;
  job.zero = clamp(nearbyintf(0.0f - low / job.scale), 0.0f, 255.0f);
  cpu_parallel(call->exec, (int64_t)call->in[0].n, (int64_t)call->in[0].n, dynamic_range, &job);
  *(float *)call->out[1].data = job.scale;
  *(uint8_t *)call->out[2].data = (uint8_t)job.zero;
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
  p->step->run = dynamic_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"QuantizeLinear", NULL, prepare_quantize, 2, 3, 1, 0, 0},
    {"DynamicQuantizeLinear", NULL, prepare_dynamic, 1, 1, 3, 0, 0},
};

const cpu_op_family cpu_family_quantize_linear = {ops, CPU_COUNT_OF(ops)};
