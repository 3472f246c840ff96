/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by the fast kernels: packed parameters, or products of activations.
 *
 *   packed  B is a 2-D parameter: panels made once per set, the batch is rows, work that follows is
 *           done on the finished tile.
 *   stack   B is a parameter of several matrices, as of experts: panels of each.
 *   batch   everything else in fp32 and fp64; B is packed per call into the workspace.
 * A stored transposed is turned into the workspace first.
 */
#include "../codes.h"
#include "linear.h"

/* C as a bias [N] or a dense [M,N], times beta where that is not 1. Returns the row stride. */
static const float *addend_of(const cpu_call *call, const cpu_linear_plan *plan, int64_t rows,
                              int64_t *out_stride) {
  if (plan->c < 0) {
    *out_stride = 0;
    return NULL;
  }
  const float *c = call->in[plan->c].data;
  *out_stride = plan->c_m;
  if (!plan->scale_c)
    return c;
  float *to = (float *)(void *)((char *)call->workspace + plan->c_at);
  const int64_t n_rows = plan->c_m == 0 ? 1 : rows;
  const float beta = (float)plan->beta;
  for (int64_t m = 0; m < n_rows; ++m) {
    for (int64_t j = 0; j < plan->n; ++j)
      to[m * plan->n + j] = beta * c[m * plan->c_m + j * plan->c_n];
  }
  *out_stride = plan->c_m == 0 ? 0 : plan->n;
  return to;
}

static const float *fused_operand(const cpu_call *call, int index) {
  return index < 0 ? NULL : call->in[index].data;
}

static void set_epilogue(const cpu_call *call, const cpu_linear_plan *plan, int64_t rows,
                         cpu_epilogue *e) {
  int64_t stride = 0;
  const float *c = addend_of(call, plan, rows, &stride);
  memset(e, 0, sizeof *e);
  e->alpha = (float)plan->alpha;
  e->activation = plan->fusion.activation;
  e->bias = fused_operand(call, plan->fusion.bias);
  e->multiplier = fused_operand(call, plan->fusion.multiplier);
  e->multiplier_stride = plan->n;
  e->residual = fused_operand(call, plan->fusion.residual);
  e->residual_stride = plan->n;
  if (c != NULL && stride == 0) {
    e->bias = c;
  } else if (c != NULL) {
    e->residual = c;
    e->residual_stride = stride;
  }
}

static opipe_status packed_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_linear_plan *plan = call->plan;
  const int64_t rows = plan->batch.rows * plan->batch.columns * plan->m;
  const float *a = call->in[0].data; /* of bf16 with dots */
  cpu_epilogue epilogue;
  (void)err;
  if (plan->turn_a) {
    float *turned = (float *)(void *)((char *)call->workspace + plan->a_at);
    cpu_transpose(call->exec, a, plan->m, plan->k, plan->m, turned, plan->k);
    a = turned;
  }
  set_epilogue(call, plan, rows, &epilogue);
  if (cpu_layout_is_turned(call->in[1].layout) != plan->b_turned) {
    const cpu_matmul_dx_args args = {
        .m = rows,
        .dy = a,
        .dy_stride = plan->k,
        .w = {CPU_PACK_F32_PANEL, plan->n, plan->k, call->in[1].data},
        .dx = call->out[0].data,
        .dx_stride = plan->n,
        .epilogue = &epilogue,
        .workspace = (char *)call->workspace + plan->scratch_at,
        .dots = plan->dots,
        .dy_half = call->in[0].data,
    };
    cpu_matmul_dx(call->exec, &args);
    return OPIPE_OK;
  }
  const cpu_matmul_args args = {
      .m = rows,
      .a = a,
      .a_stride = plan->k,
      .b = {plan->format, plan->k, plan->n, call->in[1].data},
      .c = call->out[0].data,
      .c_stride = plan->n,
      .epilogue = &epilogue,
      .workspace = (char *)call->workspace + plan->scratch_at,
      .dots = plan->dots,
      .a_half = call->in[0].data,
  };
  cpu_matmul(call->exec, &args);
  return OPIPE_OK;
}

/* W of few bits, unpacked in registers. */
static opipe_status codes_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_linear_plan *plan = call->plan;
  const int64_t rows = plan->batch.rows * plan->batch.columns * plan->m;
  cpu_epilogue epilogue;
  (void)err;
  set_epilogue(call, plan, rows, &epilogue);
  const cpu_codes_args args = {
      .m = rows,
      .a = call->in[0].data,
      .a_stride = plan->k,
      .form = &plan->matrix->form,
      .packed = call->in[1].data,
      .c = call->out[0].data,
      .c_stride = plan->n,
      .epilogue = &epilogue,
      .int8 = plan->int8,
      .workspace = (char *)call->workspace + plan->scratch_at,
  };
  cpu_codes_matmul(call->exec, &args);
  return OPIPE_OK;
}

/* A's matrices turned one by one into dense [M,K], in the order of the batch. */
static const float *turn_batch(const cpu_call *call, const cpu_linear_plan *plan) {
  float *turned = (float *)(void *)((char *)call->workspace + plan->a_at);
  const int64_t count = plan->batch.rows * plan->batch.columns;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = cpu_loop_offset(&plan->batch, 0, i / plan->batch.columns) +
                       i % plan->batch.columns * plan->batch.stride[0][plan->batch.rank - 1];
    cpu_transpose(call->exec, (const float *)call->in[0].data + at, plan->m, plan->k, plan->m,
                  turned + i * plan->m * plan->k, plan->k);
  }
  return turned;
}

/* Strides of operand i over the two innermost batch axes. */
static void batch_strides(const cpu_linear_plan *plan, uint32_t i, int64_t *out) {
  const uint32_t rank = plan->batch.rank;
  out[0] = rank > 1 ? plan->batch.stride[i][rank - 2] : 0;
  out[1] = plan->batch.stride[i][rank - 1];
}

/* Offset of operand i where outer batch `o` (all axes but the last two) begins. */
static int64_t outer_offset(const cpu_linear_plan *plan, uint32_t i, int64_t o) {
  const uint32_t rank = plan->batch.rank;
  return rank > 2 ? cpu_loop_offset(&plan->batch, i, o * plan->batch.shape[rank - 2]) : 0;
}

static opipe_status batch_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_linear_plan *plan = call->plan;
  const uint32_t rank = plan->batch.rank;
  const int64_t middle = rank > 1 ? plan->batch.shape[rank - 2] : 1;
  const int64_t outer = plan->batch.rows / (middle > 0 ? middle : 1);
  const float *a = plan->turn_a ? turn_batch(call, plan) : call->in[0].data;
  cpu_epilogue epilogue;
  cpu_matmul_batch_args args = {.batch = {middle, plan->batch.columns},
                                .m = plan->m,
                                .n = plan->n,
                                .k = plan->k,
                                .a_stride = plan->turn_a ? plan->k : plan->a_m,
                                .b_k_stride = plan->b_k,
                                .b_n_stride = plan->b_n,
                                .c_stride = plan->n,
                                .epilogue = &epilogue,
                                .workspace = (char *)call->workspace + plan->scratch_at};
  (void)err;
  set_epilogue(call, plan, plan->m, &epilogue);
  const float *addend = epilogue.residual; /* a Gemm's C, added afterwards: there is one matrix */
  const int64_t addend_stride = epilogue.residual_stride;
  epilogue.residual = NULL;
  batch_strides(plan, 0, args.a_batch);
  batch_strides(plan, 1, args.b_batch);
  batch_strides(plan, 2, args.c_batch);
  if (plan->turn_a) {
    args.a_batch[1] = plan->m * plan->k;
    args.a_batch[0] = args.a_batch[1] * plan->batch.columns;
  }
  for (int64_t o = 0; o < outer; ++o) {
    args.a = plan->turn_a ? a + o * middle * args.a_batch[0] : a + outer_offset(plan, 0, o);
    args.b = (const float *)call->in[1].data + outer_offset(plan, 1, o);
    args.c = (float *)call->out[0].data + outer_offset(plan, 2, o);
    cpu_matmul_batch(call->exec, &args);
  }
  if (addend != NULL) {
    const cpu_binary_args sum = {.op = CPU_BINARY_ADD,
                                 .rows = plan->m,
                                 .columns = plan->n,
                                 .a = call->out[0].data,
                                 .a_row = plan->n,
                                 .a_column = 1,
                                 .b = addend,
                                 .b_row = addend_stride,
                                 .b_column = 1,
                                 .out = call->out[0].data,
                                 .out_row = plan->n};
    cpu_binary_f32(call->exec, &sum);
  }
  return OPIPE_OK;
}

static opipe_status stack_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_linear_plan *plan = call->plan;
  const cpu_loop *batch = &plan->batch;
  const int64_t count = batch->rows * batch->columns;
  const float *a = plan->turn_a ? turn_batch(call, plan) : call->in[0].data;
  cpu_epilogue epilogue;
  cpu_matmul_args args = {.m = plan->m,
                          .a_stride = plan->k,
                          .b = {plan->format, plan->k, plan->n, NULL},
                          .c_stride = plan->n,
                          .epilogue = &epilogue,
                          .workspace = (char *)call->workspace + plan->scratch_at,
                          .dots = plan->dots};
  (void)err;
  set_epilogue(call, plan, plan->m, &epilogue);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at[3];
    for (uint32_t o = 0; o < 3; ++o) {
      at[o] = cpu_loop_offset(batch, o, i / batch->columns) +
              i % batch->columns * batch->stride[o][batch->rank - 1];
    }
    const uint64_t matrix = (uint64_t)(at[1] / (plan->k * plan->n));
    args.a = a + (plan->turn_a ? i * plan->m * plan->k : at[0]);
    args.a_half = (const uint16_t *)call->in[0].data + at[0];
    args.b.data = (const char *)call->in[1].data + matrix * plan->matrix_bytes;
    args.c = (float *)call->out[0].data + at[2];
    cpu_matmul(call->exec, &args);
  }
  return OPIPE_OK;
}

static opipe_status batch_f64_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_linear_plan *plan = call->plan;
  const uint32_t rank = plan->batch.rank;
  const int64_t middle = rank > 1 ? plan->batch.shape[rank - 2] : 1;
  const int64_t outer = plan->batch.rows / (middle > 0 ? middle : 1);
  cpu_matmul_f64_args args = {.batch = {middle, plan->batch.columns},
                              .m = plan->m,
                              .n = plan->n,
                              .k = plan->k,
                              .alpha = plan->alpha,
                              .a_stride = plan->a_m,
                              .b_k_stride = plan->b_k,
                              .b_n_stride = plan->b_n,
                              .c_stride = plan->n,
                              .workspace = (char *)call->workspace + plan->scratch_at};
  (void)err;
  batch_strides(plan, 0, args.a_batch);
  batch_strides(plan, 1, args.b_batch);
  batch_strides(plan, 2, args.c_batch);
  for (int64_t o = 0; o < outer; ++o) {
    args.a = (const double *)call->in[0].data + outer_offset(plan, 0, o);
    args.b = (const double *)call->in[1].data + outer_offset(plan, 1, o);
    args.c = (double *)call->out[0].data + outer_offset(plan, 2, o);
    cpu_matmul_f64(call->exec, &args);
  }
  return OPIPE_OK;
}

/* Room in the workspace for C times beta and for A turned. */
static bool plan_copies(cpu_linear_plan *plan, uint64_t count, uint64_t *io_at) {
  uint64_t n = 0;
  plan->turn_a = plan->a_k != 1 && plan->k > 1;
  if (plan->turn_a) {
    plan->a_at = *io_at;
    if (__builtin_mul_overflow((uint64_t)(plan->m * plan->k) * 4, count, &n))
      return false;
    *io_at += cpu_align_up(n, CPU_ALIGN_BYTES);
  }
  if (plan->c >= 0) {
    const bool vector = plan->c_m == 0 && plan->c_n == 1;
    const bool full = plan->c_m == plan->n && plan->c_n == 1;
    plan->scale_c = plan->beta != 1.0 || !(vector || full) ||
                    (plan->c_m == 0 && plan->fusion.bias >= 0) ||
                    (plan->c_m != 0 && plan->fusion.residual >= 0);
    if (plan->scale_c) {
      plan->c_at = *io_at;
      *io_at += cpu_align_up((uint64_t)(plan->c_m == 0 ? 1 : plan->m) * (uint64_t)plan->n * 4,
                             CPU_ALIGN_BYTES);
    }
  }
  return true;
}

static opipe_status fast_f64(cpu_prep *p, cpu_linear_plan *plan) {
  uint64_t bytes = 0;
  if ((plan->a_k == 1 || plan->k == 1) && plan->c < 0 &&
      cpu_matmul_f64_workspace(p->device->threads, plan->k, &bytes)) {
    cpu_want_workspace(p, bytes);
    p->step->run = batch_f64_kernel;
  }
  return OPIPE_OK;
}

/* Panels that the product wants of parameter B: of half types as they are stored, but in training.
 */
static uint32_t panels_of(const cpu_prep *p, const cpu_linear_plan *plan) {
  const uint32_t dtype = cpu_given(p, 1)->dtype;
  if (!cpu_is_half(dtype) || (p->flags & OPIPE_COMPILE_OWNED) != 0)
    return plan->b_turned ? CPU_LAYOUT_PANEL_T : CPU_LAYOUT_PANEL;
  return plan->b_turned ? CPU_LAYOUT_HALF_T : CPU_LAYOUT_HALF;
}

/* May the product be one of dots? A is bf16 and read as it lies; B is bf16 too, or, where programs
 * train, the fp32 parameter behind a Cast to it. */
static bool takes_dots(const cpu_prep *p, const cpu_linear_plan *plan) {
  const bool owned = (p->flags & OPIPE_COMPILE_OWNED) != 0;
  return cpu_given(p, 0)->dtype == OPIPE_BFLOAT16 && !plan->turn_a &&
         (owned || plan->format == CPU_PACK_BF16_PANEL);
}

/* B is a parameter; `at`: what the workspace holds already. */
static opipe_status plan_panels(cpu_prep *p, cpu_linear_plan *plan, uint64_t at) {
  const bool owned = (p->flags & OPIPE_COMPILE_OWNED) != 0;
  const uint32_t kind = panels_of(p, plan), dtype = cpu_given(p, 1)->dtype;
  const bool one = cpu_in(p, 1)->rank == 2;
  uint64_t bytes = 0;
  plan->format = cpu_layout_format(kind, dtype);
  plan->scratch_at = at;
  if (!cpu_layout_matrix_bytes(kind, dtype, plan->k, plan->n, &plan->matrix_bytes) ||
      !(owned ? cpu_matmul_dx_workspace(p->device->threads, &bytes)
              : cpu_matmul_workspace(p->device->threads, plan->format, &bytes)))
    return OPIPE_OK;
  cpu_want_layout(p, 1, kind);
  cpu_want_workspace(p, at + bytes);
  if (takes_dots(p, plan)) {
    plan->dots = cpu_device_dots(p->device);
    p->step->narrow |= plan->dots != NULL ? 1u : 0u;
  }
  p->step->run = one ? packed_kernel : stack_kernel;
  plan->packed = one;
  return OPIPE_OK;
}

/* B of few bits; false where the kernels do not take it. */
static bool plan_codes(cpu_prep *p, cpu_linear_plan *plan, int64_t rows, uint64_t at) {
  const cpu_matrix *w = p->step->matrix;
  uint64_t bytes = 0;
  plan->int8 = w->int8 && cpu_codes_workspace(p->device->threads, &w->form, rows, true, &bytes);
  if (!plan->int8 && !cpu_codes_workspace(p->device->threads, &w->form, rows, false, &bytes))
    return false;
  plan->matrix = w;
  p->step->rounds = plan->int8;
  p->step->in[1].layout = CPU_LAYOUT_CODES;
  plan->scratch_at = at;
  cpu_want_workspace(p, at + bytes);
  p->step->run = codes_kernel;
  plan->packed = true;
  return true;
}

opipe_status cpu_linear_fast(cpu_prep *p, cpu_linear_plan *plan) {
  const opipe_value *b = cpu_in(p, 1);
  const uint64_t count = (uint64_t)(plan->batch.rows * plan->batch.columns);
  const bool owned = (p->flags & OPIPE_COMPILE_OWNED) != 0;
  uint64_t at = 0;
  uint64_t bytes = 0;
  if (cpu_in(p, 0)->dtype == OPIPE_DOUBLE)
    return fast_f64(p, plan);
  if (cpu_in(p, 0)->dtype != OPIPE_FLOAT || !plan_copies(plan, count, &at))
    return OPIPE_OK;
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_F32);
  if (p->step->matrix != NULL && !plan->turn_a) {
    (void)plan_codes(p, plan, (int64_t)count * plan->m, at);
    return OPIPE_OK;
  }
  const bool stack = b->rank > 2 && p->fusion == NULL && plan->c < 0 && !owned;
  if (cpu_is_param(p, 1) && (stack || (b->rank == 2 && (!plan->turn_a || count == 1))))
    return plan_panels(p, plan, at);
  if (!cpu_matmul_batch_workspace(p->device->threads, plan->k, &bytes))
    return OPIPE_OK;
  plan->scratch_at = at;
  cpu_want_workspace(p, at + bytes);
  p->step->run = batch_kernel;
  return OPIPE_OK;
}
