/* SPDX-License-Identifier: Apache-2.0 */
/* MatMulInteger: int32 sums of products of 8-bit integers less their zero points, modulo 2^32.
 *
 *   packed  B a 2-D parameter: panels of codes; A is written as signed bytes, and
 *           sum (a - za)(b - zb) = sum a' b' - zb' sum a' + ca sum b' - K ca zb',
 *           a = a' + ca + za, b = b' - zb' + zb;
 *           fused with what makes them numbers, bias, activation..., integers of 8 bits again;
 *           B may be the transposition of the parameter
 *   plain   everything else
 */
#include "../codes.h"
#include "loop.h"

typedef struct integer_plan {
  int64_t m, n, k;
  cpu_loop batch; /* operands a, b, out */
  bool b_zeros;   /* a zero point for each column of B */
  cpu_codes form; /* packed */
  int32_t b_base; /* difference of codes from B's elements */
  uint32_t n_in;  /* of the node: behind them, what was fused */
  cpu_fusion fusion;
} integer_plan;

static int32_t byte_at(const cpu_tensor *t, int64_t at) {
  return t->dtype == OPIPE_INT8 ? ((const int8_t *)t->data)[at] : ((const uint8_t *)t->data)[at];
}

/* Zero point `at` of input i, 0 where there is none. */
static int32_t zero_at(const cpu_call *call, uint32_t i, int64_t at) {
  const integer_plan *plan = call->plan;
  return i < plan->n_in && call->in[i].data != NULL ? byte_at(&call->in[i], at) : 0;
}

static void plain_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const integer_plan *plan = call->plan;
  const int32_t za = zero_at(call, 2, 0);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row / plan->m, m = row % plan->m;
    int64_t first[3];
    for (uint32_t i = 0; i < 3; ++i) {
      first[i] = cpu_loop_offset(&plan->batch, i, at / plan->batch.columns) +
                 at % plan->batch.columns * plan->batch.stride[i][plan->batch.rank - 1];
    }
    int32_t *y = (int32_t *)call->out[0].data + first[2] + m * plan->n;
    for (int64_t j = 0; j < plan->n; ++j) {
      const int32_t zb = zero_at(call, 3, plan->b_zeros ? j : 0);
      uint32_t sum = 0;
      for (int64_t k = 0; k < plan->k; ++k) {
        const int32_t a = byte_at(&call->in[0], first[0] + m * plan->k + k) - za;
        const int32_t b = byte_at(&call->in[1], first[1] + k * plan->n + j) - zb;
        sum += (uint32_t)(a * b);
      }
      y[j] = (int32_t)sum;
    }
  }
}

static opipe_status plain_kernel(const cpu_call *call, opipe_error *err) {
  const integer_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->batch.rows * plan->batch.columns * plan->m,
               (int64_t)call->out[0].n * (plan->k + 1), plain_rows, &copy);
  return OPIPE_OK;
}

static const float *fused_operand(const cpu_call *call, int index) {
  return index < 0 ? NULL : call->in[index].data;
}

void cpu_fused_quantization(const cpu_call *call, const cpu_fusion *fusion,
                            cpu_codes_integer_args *args) {
  if (fusion->y_scale < 0)
    return;
  const bool is_signed = call->out[0].dtype == OPIPE_INT8;
  args->y_scale = *(const float *)call->in[fusion->y_scale].data;
  args->y_zero = fusion->y_zero < 0 ? 0.0f : (float)byte_at(&call->in[fusion->y_zero], 0);
  args->y_low = is_signed ? -128.0f : 0.0f;
  args->y_high = is_signed ? 127.0f : 255.0f;
}

static opipe_status packed_kernel(const cpu_call *call, opipe_error *err) {
  static const float one = 1.0f;
  const integer_plan *plan = call->plan;
  const cpu_fusion *fusion = &plan->fusion;
  const bool zeros = plan->n_in > 3;
  (void)err;
  const cpu_epilogue epilogue = {.alpha = 1.0f,
                                 .activation = fusion->activation,
                                 .bias = fused_operand(call, fusion->bias),
                                 .multiplier = fused_operand(call, fusion->multiplier),
                                 .multiplier_stride = plan->n,
                                 .residual = fused_operand(call, fusion->residual),
                                 .residual_stride = plan->n};
  cpu_codes_integer_args args = {
      .m = plan->batch.rows * plan->batch.columns * plan->m,
      .a = call->in[0].data,
      .a_signed = call->in[0].dtype == OPIPE_INT8,
      .a_zero = zero_at(call, 2, 0),
      .form = &plan->form,
      .packed = call->in[1].data,
      .b_base = plan->b_base,
      .b_zeros = zeros ? call->in[3].data : NULL,
      .b_zeros_signed = zeros && call->in[3].dtype == OPIPE_INT8,
      .b_zero_each = plan->b_zeros,
      .c = fusion->numbers ? NULL : call->out[0].data,
      .numbers = fusion->numbers && fusion->y_scale < 0 ? call->out[0].data : NULL,
      .bytes = fusion->y_scale < 0 ? NULL : call->out[0].data,
      .scale = fusion->scale < 0 ? &one : call->in[fusion->scale].data,
      .scale_each = fusion->scale >= 0 && call->in[fusion->scale].n != 1,
      .epilogue = &epilogue,
      .workspace = call->workspace,
  };
  cpu_fused_quantization(call, fusion, &args);
  cpu_codes_integer(call->exec, &args);
  return OPIPE_OK;
}

static bool is_byte(const opipe_value *value) {
  return value->dtype == OPIPE_INT8 || value->dtype == OPIPE_UINT8;
}

/* B is packed for a node that `prepare` accepts. */
bool cpu_integer_packs(const opipe_value *b, uint32_t flags) {
  return b->role == OPIPE_VALUE_PARAMETER && is_byte(b) && b->rank == 2 && cpu_elems(b) > 0 &&
         (flags & OPIPE_COMPILE_OWNED) == 0;
}

/* The matrix for the packed kernel, and room; false: not for it. */
static bool plan_packed(cpu_prep *p, integer_plan *plan) {
  const opipe_value *b = p->turned != NULL ? p->turned : cpu_in(p, 1);
  const bool is_signed = b->dtype == OPIPE_INT8;
  uint64_t bytes = 0;
  cpu_matrix *matrix = CPU_POOL_ARRAY(p->pool, cpu_matrix, 1);
  if (matrix == NULL || !p->fast || !cpu_integer_packs(b, p->flags))
    return false;
  plan->form =
      (cpu_codes){.k = plan->k, .n = plan->n, .block = plan->k > 0 ? plan->k : 1, .bits = 8};
  plan->b_base = is_signed ? 128 : 0;
  const cpu_code_source source = {.bits = 8,
                                  .is_signed = is_signed,
                                  .type = CPU_F32,
                                  .i_stride = p->turned != NULL ? 1 : plan->n,
                                  .j_stride = p->turned != NULL ? plan->k : 1};
  if (!cpu_matrix_of_bytes(&plan->form, b, &source, matrix) ||
      !cpu_codes_integer_workspace(&plan->form, plan->batch.rows * plan->batch.columns * plan->m,
                                   &bytes))
    return false;
  p->step->matrix = matrix;
  p->step->in[1].layout = CPU_LAYOUT_CODES;
  cpu_want_workspace(p, bytes);
  return true;
}

static opipe_status set_batch(cpu_prep *p, integer_plan *plan, int64_t *shape, uint32_t *out_rank) {
  const opipe_value *values[2] = {cpu_in(p, 0), cpu_in(p, 1)};
  uint32_t n_batch[2], rank = 0;
  int64_t(*strides)[OPIPE_MAX_RANK] = cpu_pool_array(p->pool, 3, sizeof *strides);
  if (strides == NULL)
    return cpu_nomem(p);
  for (int k = 0; k < 2; ++k) {
    n_batch[k] = values[k]->rank - 2;
    rank = n_batch[k] > rank ? n_batch[k] : rank;
  }
  for (uint32_t i = 0; i < rank; ++i) {
    shape[i] = 1;
    for (int k = 0; k < 2; ++k) {
      const uint32_t missing = rank - n_batch[k];
      const int64_t n = i >= missing ? values[k]->shape[i - missing] : 1;
      if (n != 1 && shape[i] != 1 && shape[i] != n) {
        return cpu_invalid(p, "batch axis %u has %lld and %lld", i, (long long)shape[i],
                           (long long)n);
      }
      shape[i] = n != 1 ? n : shape[i];
    }
  }
  const int64_t sizes[2] = {plan->m * plan->k, plan->k * plan->n};
  for (int k = 0; k < 2; ++k) {
    (void)opipe_broadcast_strides(values[k]->shape, n_batch[k], shape, rank, strides[k]);
    for (uint32_t i = 0; i < rank; ++i)
      strides[k][i] *= sizes[k];
  }
  opipe_dense_strides(shape, rank, strides[2]);
  for (uint32_t i = 0; i < rank; ++i)
    strides[2][i] *= plan->m * plan->n;
  cpu_loop_init(&plan->batch, shape, rank, 3, strides);
  *out_rank = rank;
  return OPIPE_OK;
}

/* The output's shape; of numbers, which may end in a view, its size. */
static opipe_status check_output(cpu_prep *p, const integer_plan *plan, const int64_t *shape,
                                 uint32_t rank) {
  const opipe_value *out = cpu_out(p, 0);
  uint64_t n = 0;
  if (!plan->fusion.numbers)
    return cpu_expect(p, 0, OPIPE_INT32, shape, rank);
  for (uint32_t i = plan->n_in; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  return opipe_shape_elems(shape, rank, &n) && cpu_elems(out) == n &&
                 (plan->fusion.y_scale < 0 ? out->dtype == OPIPE_FLOAT : is_byte(out))
             ? OPIPE_OK
             : cpu_invalid(p, "'%.80s' is not as large as the product", out->name);
}

static opipe_status prepare(cpu_prep *p) {
  const opipe_value *a = cpu_in(p, 0), *b = cpu_in(p, 1);
  const uint32_t n_in = p->node->n_in;
  const opipe_value *za = n_in > 2 ? cpu_in(p, 2) : NULL, *zb = n_in > 3 ? cpu_in(p, 3) : NULL;
  integer_plan *plan = CPU_PLAN(p, integer_plan);
  int64_t shape[OPIPE_MAX_RANK + 2];
  uint32_t rank = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!is_byte(a) || !is_byte(b) || (za != NULL && za->dtype != a->dtype) ||
      (zb != NULL && zb->dtype != b->dtype)) {
    return cpu_refuse(p, "does not take %s and %s", opipe_dtype_name(a->dtype),
                      opipe_dtype_name(b->dtype));
  }
  if (a->rank < 2 || b->rank < 2)
    return cpu_invalid(p, "operands of ranks %u and %u", a->rank, b->rank);
  plan->n_in = n_in;
  plan->fusion = p->fusion != NULL ? *p->fusion : (cpu_fusion)CPU_FUSION_NONE;
  plan->m = a->shape[a->rank - 2];
  plan->k = a->shape[a->rank - 1];
  plan->n = b->shape[b->rank - 1];
  plan->b_zeros = zb != NULL && cpu_elems(zb) != 1;
  if (b->shape[b->rank - 2] != plan->k || (za != NULL && cpu_elems(za) != 1) ||
      (plan->b_zeros && cpu_elems(zb) != (uint64_t)plan->n)) {
    return cpu_invalid(p, "[%lld, %lld] by [%lld, %lld], or its zero points", (long long)plan->m,
                       (long long)plan->k, (long long)b->shape[b->rank - 2], (long long)plan->n);
  }
  CPU_TRY(set_batch(p, plan, shape, &rank));
  shape[rank++] = plan->m;
  shape[rank++] = plan->n;
  CPU_TRY(check_output(p, plan, shape, rank));
  const bool packed = plan_packed(p, plan);
  p->step->run = packed ? packed_kernel : plain_kernel;
  return packed || (p->fusion == NULL && p->turned == NULL)
             ? OPIPE_OK
             : opipe_fail(p->err, OPIPE_E_INTERNAL, "node '%.80s': fused without packed codes",
                          p->node->name);
}

static const cpu_op ops[] = {{"MatMulInteger", NULL, prepare, 2, 4, 1, 0, 0}};

const cpu_op_family cpu_family_integer = {ops, CPU_COUNT_OF(ops)};
