/* SPDX-License-Identifier: Apache-2.0 */
/* Cast and CastLike between all numeric types.
 *
 * A run of elements becomes fp64 (from floats: exact) or 64-bit integers, then the target type:
 * every conversion rounds once. Floats out of an integer type's range give the most negative 64-bit
 * integer cut to the type; integers wrap. To a bool: not equal to zero.
 */
#include <math.h>

#include "../kernels/half.h"
#include "loop.h"
#include "small_types.h"

typedef struct cast_plan {
  uint32_t from, to;
  bool saturate;
  cpu_round round;
} cast_plan;

typedef enum wide_class { WIDE_F64, WIDE_I64, WIDE_U64 } wide_class;

static bool castable(uint32_t dtype) {
  const uint32_t elements = opipe_dtype_row_of(dtype)->elements;
  return elements != OPIPE_ELEM_NONE && elements != OPIPE_ELEM_COMPLEX;
}

static uint8_t small_code(uint32_t dtype, const void *data, int64_t i) {
  const uint32_t bits = opipe_dtype_bits(dtype);
  return bits < 8 ? cpu_packed_get(data, bits, i) : ((const uint8_t *)data)[i];
}

/* The run as wide numbers in `buffer`. */
static wide_class load_wide(uint32_t dtype, const void *data, int64_t first, int64_t n,
                            cpu_run_buffer *buffer) {
  if (cpu_is_small_float(dtype)) {
    for (int64_t k = 0; k < n; ++k)
      buffer->f64[k] = cpu_small_decode(dtype, small_code(dtype, data, first + k));
    return WIDE_F64;
  }
  const uint32_t bits = opipe_dtype_bits(dtype);
  if (bits < 8) {
    const bool is_signed = opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_INT;
    const int64_t half = INT64_C(1) << (bits - 1);
    for (int64_t k = 0; k < n; ++k) {
      const int64_t code = small_code(dtype, data, first + k);
      buffer->i64[k] = is_signed && code >= half ? code - 2 * half : code;
    }
    return WIDE_I64;
  }
  const cpu_class to = cpu_is_float(dtype)     ? CPU_CLASS_F64
                       : dtype == OPIPE_UINT64 ? CPU_CLASS_U64
                                               : CPU_CLASS_I64;
  const void *run = cpu_fetch(to, dtype, data, first, 1, n, buffer);
  if (run != buffer)
    memcpy(buffer, run, (size_t)n * 8);
  return to == CPU_CLASS_F64 ? WIDE_F64 : to == CPU_CLASS_U64 ? WIDE_U64 : WIDE_I64;
}

/* fp32 with the last bit set when the conversion was not exact: rounding it again to a narrower
 * type gives what rounding the fp64 value once would. */
static float to_odd(double value) {
  float narrow = (float)value;
  uint32_t bits;
  if ((double)narrow == value || isnan(value) || isinf(narrow))
    return narrow;
  if (fabs((double)narrow) > fabs(value))
    narrow = nextafterf(narrow, 0.0f);
  memcpy(&bits, &narrow, sizeof bits);
  bits |= 1u;
  memcpy(&narrow, &bits, sizeof narrow);
  return narrow;
}

static int64_t to_integer(double value, bool to_u64) {
  if (to_u64 && value >= 0x1p63 && value < 0x1p64)
    return (int64_t)(uint64_t)value;
  return value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}

static double wide_number(wide_class kind, const cpu_run_buffer *run, int64_t k) {
  return kind == WIDE_F64   ? run->f64[k]
         : kind == WIDE_I64 ? (double)run->i64[k]
                            : (double)run->u64[k];
}

static void store_float(uint32_t dtype, wide_class kind, const cpu_run_buffer *run, void *data,
                        int64_t first, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    const double value = wide_number(kind, run, k);
    switch (dtype) {
      case OPIPE_DOUBLE:
        ((double *)data)[first + k] = value;
        break;
      case OPIPE_FLOAT16:
        ((uint16_t *)data)[first + k] = cpu_f32_to_f16(to_odd(value));
        break;
      case OPIPE_BFLOAT16:
        ((uint16_t *)data)[first + k] = cpu_f32_to_bf16(to_odd(value));
        break;
      default:
        ((float *)data)[first + k] = kind == WIDE_I64   ? (float)run->i64[k]
                                     : kind == WIDE_U64 ? (float)run->u64[k]
                                                        : (float)value;
        break;
    }
  }
}

static void store_small(const cast_plan *plan, wide_class kind, const cpu_run_buffer *run,
                        void *data, int64_t first, int64_t n) {
  const uint32_t bits = opipe_dtype_bits(plan->to);
  const bool is_float = cpu_is_small_float(plan->to);
  for (int64_t k = 0; k < n; ++k) {
    uint8_t code = 0;
    if (is_float)
      code = cpu_small_encode(plan->to, wide_number(kind, run, k), plan->saturate, plan->round);
    else
      code = (uint8_t)(kind == WIDE_F64 ? to_integer(run->f64[k], false) : run->i64[k]);
    if (bits < 8)
      cpu_packed_set(data, bits, first + k, code);
    else
      ((uint8_t *)data)[first + k] = code;
  }
}

static void store_integer(uint32_t dtype, wide_class kind, cpu_run_buffer *run, void *data,
                          int64_t first, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    if (dtype == OPIPE_BOOL)
      run->i64[k] = kind == WIDE_F64 ? run->f64[k] != 0 : run->i64[k] != 0;
    else if (kind == WIDE_F64)
      run->i64[k] = to_integer(run->f64[k], dtype == OPIPE_UINT64);
  }
  cpu_store(CPU_CLASS_I64, dtype, run, data, first, n);
}

/* Sums of products of bytes, which are many, go straight to what is made of them. */
static void cast_sums(const int32_t *from, float *to, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = (float)from[i];
}

static void cast_runs(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const cast_plan *plan = call->plan;
  const int64_t total = (int64_t)call->out[0].n;
  for (int64_t run = begin; run < end; ++run) {
    cpu_run_buffer buffer;
    const int64_t first = run * CPU_RUN;
    const int64_t n = total - first < CPU_RUN ? total - first : CPU_RUN;
    if (plan->from == OPIPE_INT32 && plan->to == OPIPE_FLOAT) {
      cast_sums((const int32_t *)call->in[0].data + first, (float *)call->out[0].data + first, n);
      continue;
    }
    const wide_class kind = load_wide(plan->from, call->in[0].data, first, n, &buffer);
    if (cpu_is_float(plan->to))
      store_float(plan->to, kind, &buffer, call->out[0].data, first, n);
    else if (cpu_is_small_float(plan->to) || opipe_dtype_bits(plan->to) < 8)
      store_small(plan, kind, &buffer, call->out[0].data, first, n);
    else
      store_integer(plan->to, kind, &buffer, call->out[0].data, first, n);
  }
}

static opipe_status cast_kernel(const cpu_call *call, opipe_error *err) {
  cpu_call copy = *call;
  const int64_t n = (int64_t)call->out[0].n;
  (void)err;
  cpu_parallel(call->exec, (n + CPU_RUN - 1) / CPU_RUN, n, cast_runs, &copy);
  return OPIPE_OK;
}

/* Between fp32, fp16 and bf16. */
static opipe_status convert_kernel(const cpu_call *call, opipe_error *err) {
  const cast_plan *plan = call->plan;
  (void)err;
  cpu_convert(call->exec, cpu_storage_type(plan->from), call->in[0].data,
              cpu_storage_type(plan->to), call->out[0].data, (int64_t)call->out[0].n);
  return OPIPE_OK;
}

static opipe_status prepare_cast(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  const char *round = opipe_attr_string(p->node, "round_mode", "up");
  cast_plan *plan = CPU_PLAN(p, cast_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (out == NULL || !castable(in->dtype) || !castable(out->dtype)) {
    return cpu_refuse(p, "does not cast %s to %s", opipe_dtype_name(in->dtype),
                      opipe_dtype_name(out == NULL ? 0 : out->dtype));
  }
  if (strcmp(p->node->op, "Cast") == 0 && opipe_attr_int(p->node, "to", 0) != out->dtype) {
    return cpu_invalid(p, "casts to type %lld, its output is %s",
                       (long long)opipe_attr_int(p->node, "to", 0), opipe_dtype_name(out->dtype));
  }
  CPU_TRY(cpu_expect(p, 0, out->dtype, in->shape, in->rank));
  plan->from = in->dtype;
  plan->to = out->dtype;
  plan->saturate = opipe_attr_int(p->node, "saturate", 1) != 0;
  plan->round = strcmp(round, "down") == 0      ? CPU_ROUND_DOWN
                : strcmp(round, "nearest") == 0 ? CPU_ROUND_NEAREST
                                                : CPU_ROUND_UP;
  if (in->dtype == out->dtype) {
    p->step->is_view = true;
    return OPIPE_OK;
  }
  const bool halves = (cpu_is_half(in->dtype) || in->dtype == OPIPE_FLOAT) &&
                      (cpu_is_half(out->dtype) || out->dtype == OPIPE_FLOAT);
  p->step->run = cast_kernel;
  if (p->fast && halves && !cpu_is_param(p, 0))
    p->step->run = convert_kernel;
  if (opipe_dtype_bits(in->dtype) == opipe_dtype_bits(out->dtype))
    p->step->inplace = 1;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Cast", NULL, prepare_cast, 1, 1, 1, 0, 0},
    {"CastLike", NULL, prepare_cast, 2, 2, 1, 0, 0},
};

const cpu_op_family cpu_family_cast = {ops, CPU_COUNT_OF(ops)};
