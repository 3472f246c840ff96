/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that make elements: Range, ConstantOfShape, EyeLike, Pad.
 */
#include "loop.h"

/* ---- Range ---- */

static opipe_status range_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_tensor *out = &call->out[0];
  const cpu_class kind = cpu_is_float(out->dtype) ? CPU_CLASS_F64 : CPU_CLASS_I64;
  cpu_run_buffer start;
  cpu_run_buffer delta;
  cpu_run_buffer value;
  (void)err;
  memcpy(&start, cpu_fetch(kind, out->dtype, call->in[0].data, 0, 1, 1, &value), 8);
  memcpy(&delta, cpu_fetch(kind, out->dtype, call->in[2].data, 0, 1, 1, &value), 8);
  for (uint64_t i = 0; i < out->n; ++i) {
    if (kind == CPU_CLASS_I64) {
      value.u64[0] = start.u64[0] + i * delta.u64[0];
      cpu_store(kind, out->dtype, &value, out->data, (int64_t)i, 1);
      continue;
    }
    value.f64[0] = start.f64[0] + (double)i * delta.f64[0];
    const float narrow = (float)value.f64[0];
    if (out->dtype == OPIPE_DOUBLE)
      cpu_store(kind, out->dtype, &value, out->data, (int64_t)i, 1);
    else
      cpu_store(CPU_CLASS_F32, out->dtype, &narrow, out->data, (int64_t)i, 1);
  }
  return OPIPE_OK;
}

static opipe_status prepare_range(cpu_prep *p) {
  const opipe_value *out = cpu_out(p, 0);
  if (out->rank != 1 || (!cpu_is_float(out->dtype) && !cpu_is_int(out->dtype)))
    return cpu_refuse(p, "does not make %s of rank %u", opipe_dtype_name(out->dtype), out->rank);
  for (uint32_t i = 0; i < 3; ++i) {
    if (cpu_in(p, i)->dtype != out->dtype || cpu_elems(cpu_in(p, i)) != 1)
      return cpu_invalid(p, "input %u is not one %s", i, opipe_dtype_name(out->dtype));
  }
  p->step->run = range_kernel;
  return OPIPE_OK;
}

/* ---- one value everywhere, or on a diagonal ---- */

typedef struct fill_plan {
  uint32_t size;
  unsigned char element[16];
  int64_t k;
} fill_plan;

static opipe_status fill_kernel(const cpu_call *call, opipe_error *err) {
  const fill_plan *plan = call->plan;
  char *out = call->out[0].data;
  (void)err;
  for (uint64_t i = 0; i < call->out[0].n; ++i)
    memcpy(out + i * plan->size, plan->element, plan->size);
  return OPIPE_OK;
}

static opipe_status prepare_constant(cpu_prep *p) {
  const opipe_value *out = cpu_out(p, 0);
  const opipe_attr *attr = opipe_attr_find(p->node, "value");
  fill_plan *plan = CPU_PLAN(p, fill_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->size = cpu_dtype_bytes(out->dtype);
  if (plan->size == 0)
    return cpu_refuse(p, "does not make %s", opipe_dtype_name(out->dtype));
  if (attr != NULL) {
    const opipe_literal *value = attr->data;
    if (attr->kind != OPIPE_ATTR_TENSOR || value->dtype != out->dtype ||
        value->n_bytes != plan->size)
      return cpu_invalid(p, "its value is not one %s", opipe_dtype_name(out->dtype));
    memcpy(plan->element, value->data, plan->size);
  } else if (out->dtype != OPIPE_FLOAT) {
    return cpu_invalid(p, "without a value it makes float32, not %s", opipe_dtype_name(out->dtype));
  }
  p->step->run = fill_kernel;
  return OPIPE_OK;
}

static opipe_status eye_kernel(const cpu_call *call, opipe_error *err) {
  const fill_plan *plan = call->plan;
  const cpu_tensor *out = &call->out[0];
  const int64_t columns = out->shape[1];
  (void)err;
  memset(out->data, 0, (size_t)out->n_bytes);
  for (int64_t r = 0; r < out->shape[0]; ++r) {
    const int64_t c = r + plan->k;
    if (c >= 0 && c < columns)
      memcpy((char *)out->data + (r * columns + c) * plan->size, plan->element, plan->size);
  }
  return OPIPE_OK;
}

static opipe_status prepare_eye(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  const double one = 1.0;
  const float one_f32 = 1.0f;
  const int64_t one_i64 = 1;
  fill_plan *plan = CPU_PLAN(p, fill_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (in->rank != 2 ||
      !(cpu_is_float(out->dtype) || cpu_is_int(out->dtype) || out->dtype == OPIPE_BOOL))
    return cpu_refuse(p, "does not make %s of rank %u", opipe_dtype_name(out->dtype), in->rank);
  CPU_TRY(cpu_expect(p, 0, out->dtype, in->shape, 2));
  plan->size = cpu_dtype_bytes(out->dtype);
  plan->k = opipe_attr_int(p->node, "k", 0);
  const int64_t reach = in->shape[0] + in->shape[1];
  plan->k = plan->k < -reach ? -reach : plan->k > reach ? reach : plan->k;
  if (out->dtype == OPIPE_DOUBLE)
    memcpy(plan->element, &one, sizeof one);
  else if (cpu_is_float(out->dtype))
    cpu_store(CPU_CLASS_F32, out->dtype, &one_f32, plan->element, 0, 1);
  else
    cpu_store(CPU_CLASS_I64, out->dtype, &one_i64, plan->element, 0, 1);
  p->step->run = eye_kernel;
  return OPIPE_OK;
}

/* ---- Pad ---- */

typedef struct pad_plan {
  int64_t *from[OPIPE_MAX_RANK]; /* per axis [out extent]: input index, -1 for the constant */
  int64_t strides[OPIPE_MAX_RANK];
  uint32_t size;
} pad_plan;

static void pad_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const pad_plan *plan = call->plan;
  const cpu_tensor *out = &call->out[0];
  const uint32_t inner = out->rank - 1;
  const int64_t columns = out->shape[inner];
  static const unsigned char zero[16] = {0};
  const void *constant = call->n_in > 2 && call->in[2].data != NULL ? call->in[2].data : zero;
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row;
    int64_t base = 0;
    bool outside = false;
    for (uint32_t a = inner; a > 0; --a) {
      const int64_t at = plan->from[a - 1][rest % out->shape[a - 1]];
      rest /= out->shape[a - 1];
      outside = outside || at < 0;
      base += at * plan->strides[a - 1];
    }
    char *to = (char *)out->data + row * columns * plan->size;
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = plan->from[inner][c];
      memcpy(
          to + c * plan->size,
          outside || at < 0 ? constant : (const char *)call->in[0].data + (base + at) * plan->size,
          plan->size);
    }
  }
}

static opipe_status pad_kernel(const cpu_call *call, opipe_error *err) {
  cpu_call copy = *call;
  const cpu_tensor *out = &call->out[0];
  (void)err;
  if (out->n > 0) {
    cpu_parallel(call->exec, (int64_t)out->n / out->shape[out->rank - 1], (int64_t)out->n, pad_rows,
                 &copy);
  }
  return OPIPE_OK;
}

/* Input index of output index i - begin, by mode; -1: the constant. */
static int64_t pad_source(const char *mode, int64_t at, int64_t n) {
  if (at >= 0 && at < n)
    return at;
  if (strcmp(mode, "edge") == 0)
    return at < 0 ? 0 : n - 1;
  if (strcmp(mode, "wrap") == 0)
    return (at % n + n) % n;
  if (strcmp(mode, "reflect") == 0) {
    const int64_t period = n > 1 ? 2 * (n - 1) : 1;
    const int64_t phase = (at % period + period) % period;
    return phase < n ? phase : period - phase;
  }
  return -1;
}

static opipe_status pad_axes(cpu_prep *p, const opipe_value *in, int64_t *begin, int64_t *end) {
  const int64_t *pads = NULL;
  const int64_t *axes = NULL;
  uint32_t n_pads = 0;
  uint32_t n_axes = 0;
  CPU_TRY(cpu_ints(p, 1, &pads, &n_pads));
  CPU_TRY(cpu_ints(p, 3, &axes, &n_axes));
  const uint32_t n = cpu_in(p, 3) != NULL ? n_axes : in->rank;
  if (n_pads != 2 * n)
    return cpu_invalid(p, "%u pads for %u axes", n_pads, n);
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t axis = i;
    if (axes != NULL)
      CPU_TRY(cpu_axis(p, axes[i], in->rank, &axis));
    begin[axis] = pads[i];
    end[axis] = pads[n + i];
  }
  return OPIPE_OK;
}

static opipe_status prepare_pad(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  const opipe_value *constant = cpu_in(p, 2);
  const char *mode = opipe_attr_string(p->node, "mode", "constant");
  pad_plan *plan = CPU_PLAN(p, pad_plan);
  int64_t begin[OPIPE_MAX_RANK] = {0};
  int64_t end[OPIPE_MAX_RANK] = {0};
  if (plan == NULL)
    return cpu_nomem(p);
  plan->size = cpu_dtype_bytes(in->dtype);
  if (plan->size == 0 || in->rank == 0 || out->dtype != in->dtype || out->rank != in->rank)
    return cpu_refuse(p, "does not pad %s of rank %u", opipe_dtype_name(in->dtype), in->rank);
  if (constant != NULL && (constant->dtype != in->dtype || cpu_elems(constant) != 1))
    return cpu_invalid(p, "its constant is not one %s", opipe_dtype_name(in->dtype));
  CPU_TRY(pad_axes(p, in, begin, end));
  opipe_dense_strides(in->shape, in->rank, plan->strides);
  for (uint32_t a = 0; a < in->rank; ++a) {
    const int64_t n = in->shape[a];
    int64_t extent = 0;
    if (__builtin_add_overflow(n, begin[a], &extent) ||
        __builtin_add_overflow(extent, end[a], &extent) || extent != out->shape[a]) {
      return cpu_invalid(p, "axis %u of %lld elements padded by %lld and %lld is not %lld", a,
                         (long long)n, (long long)begin[a], (long long)end[a],
                         (long long)out->shape[a]);
    }
    if (n == 0 && extent > 0 && strcmp(mode, "constant") != 0)
      return cpu_invalid(p, "axis %u has nothing to repeat", a);
    plan->from[a] = CPU_POOL_ARRAY(p->pool, int64_t, (uint64_t)extent);
    if (plan->from[a] == NULL)
      return cpu_nomem(p);
    for (int64_t i = 0; i < extent; ++i)
      plan->from[a][i] = pad_source(mode, i - begin[a], n);
  }
  p->step->run = pad_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Range", NULL, prepare_range, 3, 3, 1, 0, 0},
    {"ConstantOfShape", NULL, prepare_constant, 1, 1, 1, 0, 0},
    {"EyeLike", NULL, prepare_eye, 1, 1, 1, 0, 0},
    {"Pad", NULL, prepare_pad, 2, 4, 1, 0, 0},
};

const cpu_op_family cpu_family_generate = {ops, CPU_COUNT_OF(ops)};
