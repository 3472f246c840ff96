/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise slots of training: zeros, sums, norms and updates on regions.
 */
#include "ops/op.h"

/* Address of a region of n_bytes of fp32. */
static opipe_status region_f32(const opipe_region *region, const char *what, uint64_t n_bytes,
                               float **out_data, opipe_error *err) {
  void *data = NULL;
  CPU_TRY(cpu_region_data(region, what, &data, err));
  if (region->n_bytes != n_bytes || n_bytes % sizeof(float) != 0 ||
      (uintptr_t)data % CPU_ALIGN_BYTES != 0) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s: %llu bytes at offset %llu, not %llu aligned to %d",
                      what, (unsigned long long)region->n_bytes,
                      (unsigned long long)region->offset_bytes, (unsigned long long)n_bytes,
                      CPU_ALIGN_BYTES);
  }
  *out_data = data;
  return OPIPE_OK;
}

opipe_status cpu_fill_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err) {
  float *data = NULL;
  (void)queue;
  CPU_TRY(region_f32(dst, "fill_zero", dst->n_bytes, &data, err));
  if (dst->n_bytes > 0)
    memset(data, 0, (size_t)dst->n_bytes);
  return OPIPE_OK;
}

opipe_status cpu_add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                     opipe_error *err) {
  float *to = NULL;
  float *from = NULL;
  CPU_TRY(region_f32(dst, "add: destination", dst->n_bytes, &to, err));
  CPU_TRY(region_f32(src, "add: source", dst->n_bytes, &from, err));
  const cpu_exec exec = cpu_take_exec(queue->device);
  cpu_add_f32(&exec, from, to, (int64_t)(dst->n_bytes / sizeof(float)));
  cpu_give_exec(queue->device, &exec);
  return OPIPE_OK;
}

opipe_status cpu_sum_squares(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                             opipe_error *err) {
  void *to = NULL;
  float *from = NULL;
  CPU_TRY(cpu_region_data(dst, "sum_squares: destination", &to, err));
  CPU_TRY(region_f32(src, "sum_squares: source", src->n_bytes, &from, err));
  if (dst->n_bytes < sizeof(double)) {
    return opipe_fail(err, OPIPE_E_INVALID, "sum_squares: a destination of %llu bytes, not 8",
                      (unsigned long long)dst->n_bytes);
  }
  const cpu_exec exec = cpu_take_exec(queue->device);
  const double sum = cpu_sum_squares_f32(&exec, from, (int64_t)(src->n_bytes / sizeof(float)));
  cpu_give_exec(queue->device, &exec);
  memcpy(to, &sum, sizeof sum);
  return OPIPE_OK;
}

/* first, second: those that the kind must have, or that are given. */
static opipe_status update_operands(const opipe_update *u, cpu_update_args *args,
                                    opipe_error *err) {
  const uint64_t n_bytes = u->n_elems * sizeof(float);
  const uint32_t n_moments = opipe_optimizer_row_of(u->kind)->moments;
  if (u->n_elems > INT64_MAX / 8) {
    return opipe_fail(err, OPIPE_E_INVALID, "update: %llu elements",
                      (unsigned long long)u->n_elems);
  }
  CPU_TRY(region_f32(&u->weight, "update: weight", n_bytes, &args->weight, err));
  CPU_TRY(region_f32(&u->gradient, "update: gradient", n_bytes, &args->gradient, err));
  if (n_moments > 0 || u->first.buffer != NULL)
    CPU_TRY(region_f32(&u->first, "update: first moment", n_bytes, &args->first, err));
  if (n_moments > 1)
    CPU_TRY(region_f32(&u->second, "update: second moment", n_bytes, &args->second, err));
  args->n = (int64_t)u->n_elems;
  return OPIPE_OK;
}

opipe_status cpu_update(opipe_queue *queue, const opipe_update *update, opipe_error *err) {
  const uint32_t flags = OPIPE_UPDATE_NESTEROV | OPIPE_UPDATE_EPS_INNER | OPIPE_UPDATE_CLEAR;
  const opipe_update *u = update;
  if (!OPIPE_HAS(u, opipe_update, decay))
    return opipe_fail(err, OPIPE_E_ABI, "update: struct_size %u is too small", u->struct_size);
  if (u->kind >= OPIPE_N_OPTIMIZERS || (u->flags & ~flags) != 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "update: kind %u, flags 0x%x are not known",
                      u->kind, u->flags);
  }
  const bool decoupled = opipe_optimizer_row_of(u->kind)->decoupled != 0;
  cpu_update_args args = {.kind = u->kind,
                          .nesterov = (u->flags & OPIPE_UPDATE_NESTEROV) != 0,
                          .inner = (u->flags & OPIPE_UPDATE_EPS_INNER) != 0,
                          .clear = (u->flags & OPIPE_UPDATE_CLEAR) != 0,
                          .lr = u->lr,
                          .correction1 = u->correction1,
                          .correction2 = u->correction2,
                          .gradient_scale = (float)u->gradient_scale,
                          .l2 = decoupled ? 0.0f : (float)u->decay,
                          .momentum = (float)u->momentum,
                          .beta1 = (float)u->beta1,
                          .beta2 = (float)u->beta2,
                          .rest1 = (float)(1.0 - u->beta1),
                          .rest2 = (float)(1.0 - u->beta2),
                          .keep = decoupled ? (float)(1.0 - u->lr * u->decay) : 1.0f,
                          .step = (float)u->lr,
                          .root = 1.0f,
                          .epsilon = (float)u->epsilon};
  CPU_TRY(update_operands(u, &args, err));
  const cpu_exec exec = cpu_take_exec(queue->device);
  cpu_update_f32(&exec, &args);
  cpu_give_exec(queue->device, &exec);
  return OPIPE_OK;
}
