/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of element-wise operators (map.h): runs of CPU_RUN elements, split over the team.
 *
 * fp32 operators that have a vector kernel use it where their inputs' strides allow.
 */
#include "map.h"

void cpu_map_inplace(cpu_prep *p) {
  const opipe_value *out = cpu_out(p, 0);
  for (uint32_t i = 0; i < p->step->n_in && i < 32; ++i) {
    const opipe_value *in = cpu_in(p, i);
    if (in != NULL && in->rank == out->rank &&
        opipe_dtype_bits(in->dtype) == opipe_dtype_bits(out->dtype) &&
        (in->rank == 0 || memcmp(in->shape, out->shape, in->rank * sizeof in->shape[0]) == 0))
      p->step->inplace |= 1u << i;
  }
}

typedef struct map_job {
  const cpu_map_plan *plan;
  const cpu_call *call;
  int64_t runs; /* of a row */
} map_job;

static void fold_run(const map_job *job, int64_t row, int64_t column, int64_t n, int64_t at) {
  const cpu_map_plan *plan = job->plan;
  const cpu_call *call = job->call;
  const uint32_t inner = plan->loop.rank - 1;
  const cpu_class kind = plan->class_in[0];
  cpu_run_buffer sum;
  cpu_run_buffer next;
  const void *operands[2] = {NULL, NULL};
  for (uint32_t i = 0; i < plan->n_in; ++i) {
    const int64_t stride = plan->loop.stride[i][inner];
    const int64_t first = cpu_loop_offset(&plan->loop, i, row) + column * stride;
    operands[i == 0 ? 0 : 1] =
        cpu_fetch(kind, call->in[i].dtype, call->in[i].data, first, stride, n, &next);
    if (i == 0) {
      memmove(&sum, operands[0], (size_t)n * (kind == CPU_CLASS_F32 ? 4 : 8));
      operands[0] = &sum;
    } else {
      plan->fn(n, operands, &sum, plan->param);
    }
  }
  for (int64_t k = 0; (plan->flags & CPU_MAP_MEAN) != 0 && k < n; ++k) {
    if (kind == CPU_CLASS_F32)
      sum.f32[k] /= (float)plan->n_in;
    else
      sum.f64[k] /= (double)plan->n_in;
  }
  cpu_store(plan->class_out, call->out[0].dtype, &sum, call->out[0].data, at, n);
}

static void map_run(const map_job *job, int64_t row, int64_t column, int64_t n, int64_t at) {
  const cpu_map_plan *plan = job->plan;
  const cpu_call *call = job->call;
  const uint32_t inner = plan->loop.rank - 1;
  cpu_run_buffer buffers[CPU_MAP_MAX_IN];
  cpu_run_buffer result;
  const void *operands[CPU_MAP_MAX_IN] = {NULL, NULL, NULL};
  const cpu_tensor *out = &call->out[0];
  for (uint32_t i = 0; i < plan->n_in; ++i) {
    const cpu_tensor *in = &call->in[i];
    const int64_t stride = plan->loop.stride[i][inner];
    if (in->data == NULL)
      continue;
    const int64_t first = cpu_loop_offset(&plan->loop, i, row) + column * stride;
    operands[i] = cpu_fetch(plan->class_in[i], in->dtype, in->data, first, stride, n, &buffers[i]);
  }
  void *y = cpu_stage(plan->class_out, out->dtype, out->data, at, &result);
  plan->fn(n, operands, y, plan->param);
  cpu_store(plan->class_out, out->dtype, y, out->data, at, n);
}

static void map_units(void *ctx, int64_t begin, int64_t end) {
  const map_job *job = ctx;
  const cpu_loop *loop = &job->plan->loop;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / job->runs;
    const int64_t column = unit % job->runs * CPU_RUN;
    const int64_t left = loop->columns - column;
    const int64_t n = left < CPU_RUN ? left : CPU_RUN;
    const int64_t at = row * loop->columns + column;
    if ((job->plan->flags & CPU_MAP_FOLD) != 0)
      fold_run(job, row, column, n, at);
    else
      map_run(job, row, column, n, at);
  }
}

static opipe_status check_divisors(const cpu_call *call, opipe_error *err) {
  const cpu_tensor *divisors = &call->in[1];
  for (uint64_t i = 0; call->out[0].n != 0 && i < divisors->n; ++i) {
    if (cpu_number(divisors, i) == 0) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "division by zero: element %llu of the divisor",
                      (unsigned long long)i);
    }
  }
  return OPIPE_OK;
}

static opipe_status map_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_map_plan *plan = call->plan;
  const cpu_loop *loop = &plan->loop;
  map_job job = {plan, call, (loop->columns + CPU_RUN - 1) / CPU_RUN};
  if ((plan->flags & CPU_MAP_DIVIDES) != 0)
    CPU_TRY(check_divisors(call, err));
  cpu_parallel(call->exec, loop->rows * job.runs, loop->rows * loop->columns, map_units, &job);
  return OPIPE_OK;
}

static opipe_status fast_unary_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_map_plan *plan = call->plan;
  (void)err;
  cpu_unary_f32(call->exec, plan->fast_unary, call->in[0].data, call->out[0].data,
                (int64_t)call->out[0].n);
  return OPIPE_OK;
}

static opipe_status fast_binary_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_map_plan *plan = call->plan;
  const cpu_loop *loop = &plan->loop;
  const uint32_t inner = loop->rank - 1;
  const bool matrix = loop->rank == 2;
  const cpu_binary_args args = {.op = plan->fast_binary,
                                .rows = loop->rows,
                                .columns = loop->columns,
                                .a = call->in[0].data,
                                .a_row = matrix ? loop->stride[0][0] : 0,
                                .a_column = loop->stride[0][inner],
                                .b = call->in[1].data,
                                .b_row = matrix ? loop->stride[1][0] : 0,
                                .b_column = loop->stride[1][inner],
                                .out = call->out[0].data,
                                .out_row = loop->columns};
  (void)err;
  cpu_binary_f32(call->exec, &args);
  return OPIPE_OK;
}

/* fp16 and bf16 by the vector kernels: chunks of a row through fp32. */
enum { HALF_CHUNK = 2048 };

static void half_units(void *ctx, int64_t begin, int64_t end) {
  const map_job *job = ctx;
  const cpu_map_plan *plan = job->plan;
  const cpu_call *call = job->call;
  const cpu_loop *loop = &plan->loop;
  const uint32_t inner = loop->rank - 1;
  const cpu_exec alone = cpu_alone(call->exec);
  _Alignas(CPU_ALIGN_BYTES) float buffer[2][HALF_CHUNK];
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / job->runs;
    const int64_t column = unit % job->runs * HALF_CHUNK;
    const int64_t left = loop->columns - column;
    const int64_t n = left < HALF_CHUNK ? left : HALF_CHUNK;
    for (uint32_t i = 0; i < plan->n_in; ++i) {
      const int64_t stride = loop->stride[i][inner];
      const int64_t first = cpu_loop_offset(loop, i, row) + column * stride;
      cpu_convert(&alone, cpu_storage_type(call->in[i].dtype),
                  (const uint16_t *)call->in[i].data + first, CPU_F32, buffer[i],
                  stride == 0 ? 1 : n);
    }
    if (plan->n_in == 1) {
      cpu_unary_f32(&alone, plan->fast_unary, buffer[0], buffer[0], n);
    } else {
      const bool turned = loop->stride[0][inner] == 0; /* the result goes over a full operand */
      const cpu_binary_args args = {.op = plan->fast_binary,
                                    .rows = 1,
                                    .columns = n,
                                    .a = buffer[0],
                                    .a_column = loop->stride[0][inner],
                                    .b = buffer[1],
                                    .b_column = loop->stride[1][inner],
                                    .out = buffer[turned ? 1 : 0]};
      cpu_binary_f32(&alone, &args);
      if (turned)
        memcpy(buffer[0], buffer[1], (size_t)n * sizeof(float));
    }
    cpu_convert(&alone, CPU_F32, buffer[0], cpu_storage_type(call->out[0].dtype),
                (uint16_t *)call->out[0].data + row * loop->columns + column, n);
  }
}

static opipe_status half_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_map_plan *plan = call->plan;
  const cpu_loop *loop = &plan->loop;
  map_job job = {plan, call, (loop->columns + HALF_CHUNK - 1) / HALF_CHUNK};
  (void)err;
  cpu_parallel(call->exec, loop->rows * job.runs, loop->rows * loop->columns, half_units, &job);
  return OPIPE_OK;
}

opipe_status cpu_map_init(cpu_prep *p, cpu_map_plan *plan) {
  CPU_TRY(cpu_loop_broadcast(p, cpu_out(p, 0), plan->n_in, &plan->loop));
  cpu_map_inplace(p);
  p->step->run = map_kernel;
  return OPIPE_OK;
}

static void choose_fast(cpu_prep *p, cpu_map_plan *plan, const cpu_map *map) {
  const cpu_loop *loop = &plan->loop;
  const uint32_t inner = loop->rank - 1;
  const bool half = cpu_is_half(cpu_out(p, 0)->dtype);
  if (!p->fast || map->fast == CPU_NO_FAST || plan->flags != 0 ||
      (cpu_out(p, 0)->dtype != OPIPE_FLOAT && !half))
    return;
  for (uint32_t i = 0; half && i < plan->n_in; ++i) {
    if (cpu_is_param(p, i))
      return; /* may lie at any address */
  }
  if (plan->n_in == 1) {
    plan->fast_unary = (cpu_unary)map->fast;
    p->step->run = half ? half_kernel : fast_unary_kernel;
    cpu_want_layout(p, 0, CPU_LAYOUT_F32);
    return;
  }
  if (plan->n_in != 2 || (loop->rank > 2 && !half))
    return;
  for (uint32_t i = 0; i < 2; ++i) {
    if (loop->stride[i][inner] != 0 && loop->stride[i][inner] != 1)
      return;
  }
  plan->fast_binary = (cpu_binary)map->fast;
  p->step->run = half ? half_kernel : fast_binary_kernel;
  cpu_want_layout(p, 0, CPU_LAYOUT_F32);
  cpu_want_layout(p, 1, CPU_LAYOUT_F32);
}

opipe_status cpu_prepare_map(cpu_prep *p, const cpu_map *map, uint32_t flags) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  const cpu_class kind = cpu_class_of(in->dtype);
  cpu_map_plan *plan = CPU_PLAN(p, cpu_map_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (map->fn[kind] == NULL ||
      !(cpu_is_float(in->dtype) || cpu_is_int(in->dtype) || in->dtype == OPIPE_BOOL))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  const uint32_t wanted = (flags & CPU_MAP_TO_BOOL) != 0 ? OPIPE_BOOL : in->dtype;
  if (out == NULL || out->dtype != wanted)
    return cpu_invalid(p, "its output is not %s", opipe_dtype_name(wanted));
  plan->n_in = p->step->n_in;
  if (plan->n_in > CPU_MAP_MAX_IN && (flags & CPU_MAP_FOLD) == 0)
    return cpu_refuse(p, "takes %u inputs at most", (unsigned)CPU_MAP_MAX_IN);
  for (uint32_t i = 0; i < plan->n_in; ++i) {
    const opipe_value *other = cpu_in(p, i);
    if (other == NULL || other->dtype != in->dtype)
      return cpu_invalid(p, "input %u is absent or of another type than input 0", i);
    if (i < CPU_MAP_MAX_IN)
      plan->class_in[i] = kind;
  }
  plan->class_out = (flags & CPU_MAP_TO_BOOL) != 0 ? CPU_CLASS_RAW1 : kind;
  plan->fn = map->fn[kind];
  plan->flags = flags & (CPU_MAP_FOLD | CPU_MAP_MEAN);
  if (cpu_is_int(in->dtype))
    plan->flags |= flags & CPU_MAP_DIVIDES;
  for (int i = 0; i < 2; ++i) {
    plan->param[i] = map->attr[i] != NULL
                         ? opipe_attr_float(p->node, map->attr[i], map->fallback[i])
                         : map->fallback[i];
  }
  CPU_TRY(cpu_map_init(p, plan));
  if ((flags & CPU_MAP_TO_BOOL) == 0)
    choose_fast(p, plan, map);
  return OPIPE_OK;
}
