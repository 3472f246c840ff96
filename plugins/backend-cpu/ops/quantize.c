/* SPDX-License-Identifier: Apache-2.0 */
/* DequantizeLinear and opipe.DequantizeNBits by themselves: (code - zero) * scale, the difference
 * exact for integers, one rounding to fp32 and one to the output's type. Products unpack such
 * matrices in registers (../codes.h), with the same bits in fp32.
 */
#include "loop.h"
#include "small_types.h"

enum { RUN_LEAST = 16 }; /* elements with one scale that are worth a kernel's call */

/* Output element (o, d, i) of [outer, depth, inner] is made of code
 * o * code_outer + d * inner + i, and of scale o * scale_outer + d / block * scale_block + i *
 * scale_inner, likewise the zero point. */
typedef struct dequantize_plan {
  int64_t outer, depth, inner;
  int64_t code_outer;
  int64_t block;
  int64_t scale_outer, scale_block, scale_inner;
  int64_t zero_outer;
  uint32_t bits, zero_bits; /* zero_bits 0: numbers */
  bool is_signed;
  int32_t zero; /* where there is no input for it */
} dequantize_plan;

/* Number `at` of packed or whole integers of `bits`. */
static int64_t integer_at(const void *data, uint32_t bits, bool is_signed, int64_t at) {
  if (bits == 32) {
    int32_t wide = 0;
    memcpy(&wide, (const char *)data + at * 4, sizeof wide);
    return wide;
  }
  uint32_t code = 0;
  if (bits == 16) {
    uint16_t half = 0;
    memcpy(&half, (const char *)data + at * 2, sizeof half);
    code = half;
  } else {
    code = bits == 8 ? ((const uint8_t *)data)[at] : cpu_packed_get(data, bits, at);
  }
  const uint32_t sign = is_signed ? 1u << (bits - 1) : 0;
  return (int64_t)(code ^ sign) - (int64_t)sign;
}

static float float_at(const cpu_tensor *t, int64_t at) {
  cpu_run_buffer one;
  return *(const float *)cpu_fetch(CPU_CLASS_F32, t->dtype, t->data, at, 1, 1, &one);
}

/* code - zero of one element. */
static float difference(const cpu_call *call, const dequantize_plan *plan, int64_t code,
                        int64_t zero_at) {
  const bool given = call->n_in > 2 && call->in[2].data != NULL;
  if (!given)
    return (float)(code - plan->zero);
  if (plan->zero_bits == 0)
    return (float)code - float_at(&call->in[2], zero_at);
  return (float)(code - integer_at(call->in[2].data, plan->zero_bits, plan->is_signed, zero_at));
}

/* Rows [begin, end) of outer * depth. */
static void dequantize_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const dequantize_plan *plan = call->plan;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t o = row / plan->depth, d = row % plan->depth;
    const int64_t code = o * plan->code_outer + d * plan->inner;
    const int64_t scale = o * plan->scale_outer + d / plan->block * plan->scale_block;
    const int64_t zero = o * plan->zero_outer + d / plan->block * plan->scale_block;
    for (int64_t i = 0; i < plan->inner; i += CPU_RUN) {
      const int64_t n = plan->inner - i < CPU_RUN ? plan->inner - i : CPU_RUN;
      cpu_run_buffer buffer;
      float *y = cpu_stage(CPU_CLASS_F32, call->out[0].dtype, call->out[0].data,
                           row * plan->inner + i, &buffer);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t along = (i + k) * plan->scale_inner;
        const int64_t q = integer_at(call->in[0].data, plan->bits, plan->is_signed, code + i + k);
        y[k] = difference(call, plan, q, zero + along) * float_at(&call->in[1], scale + along);
      }
      cpu_store(CPU_CLASS_F32, call->out[0].dtype, y, call->out[0].data, row * plan->inner + i, n);
    }
  }
}

/* Runs of 8 bits that share a scale. */
static opipe_status runs_kernel(const cpu_call *call, opipe_error *err) {
  const dequantize_plan *plan = call->plan;
  const bool zeros = call->n_in > 2 && call->in[2].data != NULL;
  (void)err;
  for (int64_t row = 0; row < plan->outer * plan->depth; ++row) {
    const int64_t at =
        row / plan->depth * plan->scale_outer + row % plan->depth / plan->block * plan->scale_block;
    const int64_t zero =
        zeros ? integer_at(call->in[2].data, plan->zero_bits, plan->is_signed, at) : 0;
    const cpu_dequantize_args args = {
        .x = (const uint8_t *)call->in[0].data + row * plan->inner,
        .is_signed = plan->is_signed,
        .zero = (int32_t)zero,
        .scale = float_at(&call->in[1], at),
        .n = plan->inner,
        .y = (float *)call->out[0].data + row * plan->inner,
    };
    cpu_dequantize(call->exec, &args);
  }
  return OPIPE_OK;
}

static opipe_status dequantize_kernel(const cpu_call *call, opipe_error *err) {
  const dequantize_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->outer * plan->depth, (int64_t)call->out[0].n, dequantize_rows,
               &copy);
  return OPIPE_OK;
}

/* Runs of the last axis: where nothing changes along it, it is the inner one. */
static void plan_spread(const cpu_prep *p, dequantize_plan *plan, bool one, uint32_t axis,
                        int64_t block) {
  const opipe_value *x = cpu_in(p, 0);
  plan->outer = 1;
  plan->depth = x->rank > 0 ? x->shape[axis] : 1;
  plan->inner = 1;
  for (uint32_t a = 0; a < x->rank; ++a) {
    plan->outer *= a < axis ? x->shape[a] : 1;
    plan->inner *= a > axis ? x->shape[a] : 1;
  }
  plan->code_outer = plan->depth * plan->inner;
  plan->block = block > 0 ? block : 1;
  if (one) {
    plan->inner *= plan->depth * plan->outer;
    plan->outer = 1;
    plan->depth = 1;
  } else if (block == 0) {
    plan->scale_block = 1;
  } else {
    plan->scale_block = plan->inner;
    plan->scale_outer = (plan->depth + block - 1) / block * plan->inner;
    plan->scale_inner = 1;
  }
  plan->zero_outer = plan->scale_outer;
}

/* The scale's shape for X along `axis` (block 0: one for each place; else one for `block` of them).
 */
static bool spread_fits(const opipe_value *x, const opipe_value *scale, uint32_t axis,
                        int64_t block) {
  if (block == 0)
    return scale->rank == 1 && scale->shape[0] == x->shape[axis];
  bool fits = scale->rank == x->rank;
  for (uint32_t a = 0; fits && a < x->rank; ++a) {
    const int64_t whole = x->shape[a] / block + (x->shape[a] % block != 0);
    fits = scale->shape[a] == (a == axis ? whole : x->shape[a]);
  }
  return fits;
}

static opipe_status prepare_dequantize(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0), *scale = cpu_in(p, 1), *zero = cpu_in(p, 2);
  const uint32_t bits = opipe_dtype_bits(x->dtype);
  const uint32_t elements = opipe_dtype_row_of(x->dtype)->elements;
  const bool one = cpu_elems(scale) == 1;
  const int64_t block = one ? 0 : opipe_attr_int(p->node, "block_size", 0);
  uint32_t axis = 0;
  dequantize_plan *plan = CPU_PLAN(p, dequantize_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if ((elements != OPIPE_ELEM_INT && elements != OPIPE_ELEM_UINT) || bits > 32 ||
      x->dtype == OPIPE_UINT32 || !cpu_is_float(scale->dtype) || scale->dtype == OPIPE_DOUBLE) {
    return cpu_refuse(p, "does not take %s with scales of %s", opipe_dtype_name(x->dtype),
                      opipe_dtype_name(scale->dtype));
  }
  if (zero != NULL && (zero->dtype != x->dtype || cpu_elems(zero) != cpu_elems(scale)))
    return cpu_invalid(p, "'%.80s' does not fit '%.80s'", zero->name, scale->name);
  if (!one)
    CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 1), x->rank, &axis));
  if (block < 0 || (!one && !spread_fits(x, scale, axis, block))) {
    return cpu_invalid(p, "'%.80s' does not fit '%.80s' along axis %u in blocks of %lld",
                       scale->name, x->name, axis, (long long)block);
  }
  CPU_TRY(cpu_expect(p, 0, scale->dtype, x->shape, x->rank));
  plan_spread(p, plan, one, axis, block);
  plan->bits = bits;
  plan->zero_bits = bits;
  plan->is_signed = elements == OPIPE_ELEM_INT;
  const bool runs = p->fast && bits == 8 && scale->dtype == OPIPE_FLOAT && plan->scale_inner == 0 &&
                    plan->inner >= RUN_LEAST;
  p->step->run = runs ? runs_kernel : dequantize_kernel;
  return OPIPE_OK;
}

/* codes uint8 [N, blocks, block * bits / 8], scales [N, blocks], zero points of the scales' type or
 * packed as the codes; W [N, K] in fp32 */
static opipe_status prepare_nbits(cpu_prep *p) {
  const opipe_value *codes = cpu_in(p, 0), *scales = cpu_in(p, 1), *zeros = cpu_in(p, 2);
  const int64_t k = opipe_attr_int(p->node, "K", 0), n = opipe_attr_int(p->node, "N", 0);
  const int64_t bits = opipe_attr_int(p->node, "bits", 4);
  const int64_t block = opipe_attr_int(p->node, "block_size", 32);
  dequantize_plan *plan = CPU_PLAN(p, dequantize_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (k < 1 || n < 1 || k > INT32_MAX || n > INT32_MAX || block < 16 || block > 1 << 20 ||
      block % 16 != 0 || (bits != 2 && bits != 4 && bits != 8)) {
    return cpu_invalid(p, "%lld bits in blocks of %lld, [%lld, %lld]", (long long)bits,
                       (long long)block, (long long)n, (long long)k);
  }
  const int64_t blocks = (k + block - 1) / block, zero_row = (blocks * bits + 7) / 8;
  const bool numbers = zeros != NULL && cpu_is_float(zeros->dtype);
  const uint64_t wanted = (uint64_t)(n * (numbers ? blocks : zero_row));
  if (codes->dtype != OPIPE_UINT8 ||
      cpu_elems(codes) != (uint64_t)(n * blocks * block * bits / 8) ||
      !cpu_is_float(scales->dtype) || scales->dtype == OPIPE_DOUBLE ||
      cpu_elems(scales) != (uint64_t)(n * blocks) ||
      (zeros != NULL &&
       ((!numbers && zeros->dtype != OPIPE_UINT8) || (numbers && zeros->dtype != scales->dtype) ||
        cpu_elems(zeros) != wanted))) {
    return cpu_invalid(p, "codes, scales or zero points do not fit [%lld, %lld]", (long long)n,
                       (long long)k);
  }
  CPU_TRY(cpu_expect(p, 0, OPIPE_FLOAT, (const int64_t[]){n, k}, 2));
  *plan = (dequantize_plan){.outer = n,
                            .depth = k,
                            .inner = 1,
                            .code_outer = blocks * block,
                            .block = block,
                            .scale_outer = blocks,
                            .scale_block = 1,
                            .zero_outer = numbers ? blocks : zero_row * 8 / bits,
                            .bits = (uint32_t)bits,
                            .zero_bits = numbers ? 0 : (uint32_t)bits,
                            .zero = 1 << (bits - 1)};
  p->step->run = dequantize_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"DequantizeLinear", NULL, prepare_dequantize, 2, 3, 1, 0, 0},
    {"DequantizeNBits", "opipe", prepare_nbits, 2, 3, 1, 0, 0},
};

const cpu_op_family cpu_family_quantize = {ops, CPU_COUNT_OF(ops)};
