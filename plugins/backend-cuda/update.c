/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise slots of training: zeros, sums, norms and updates on regions of fp32. */
#include "cuda.h"

/* Address of a region of n_bytes of fp32; NULL: not this way (*err). */
static opipe_status floats_of(const opipe_queue *queue, const opipe_region *region,
                              const char *what, uint64_t n_bytes, float **out_data,
                              opipe_error *err) {
  CUdeviceptr address = 0;
  CUDA_TRY(cuda_region(queue->device, region, what, &address, err));
  if (region->n_bytes != n_bytes || n_bytes % sizeof(float) != 0 || address % sizeof(float) != 0) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s: %llu bytes at offset %llu, not %llu of fp32", what,
                      (unsigned long long)region->n_bytes, (unsigned long long)region->offset_bytes,
                      (unsigned long long)n_bytes);
  }
  *out_data = (float *)(uintptr_t)address;
  return OPIPE_OK;
}

static opipe_status launch_all(opipe_queue *queue, const cuda_launch *launches, uint32_t n,
                               const char *what, opipe_error *err) {
  opipe_device *device = queue->device;
  opipe_status status = OPIPE_OK;
  if (n == 0)
    return opipe_fail(err, OPIPE_E_INTERNAL, "backend cuda: no kernel for %s", what);
  CUDA_TRY(cuda_enter_queue(queue, what, err));
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    CUfunction kernel = NULL;
    status = cuda_find_kernel(device, &launches[i], &kernel, err);
    if (status >= 0) {
      status = cuda_launch_on(device, kernel, &launches[i], launches[i].block_args.args,
                              queue->stream, err);
    }
  }
  cuda_leave(device);
  return status;
}

opipe_status cuda_fill_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err) {
  opipe_device *device = queue->device;
  float *to = NULL;
  CUDA_TRY(floats_of(queue, dst, "fill_zero", dst->n_bytes, &to, err));
  if (dst->n_bytes == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_enter_queue(queue, "fill_zero", err));
  const opipe_status status =
      cuda_result(device->place,
                  device->place->driver->fill((CUdeviceptr)(uintptr_t)to, 0, (size_t)dst->n_bytes,
                                              queue->stream),
                  "fill_zero", err);
  cuda_leave(device);
  return status;
}

opipe_status cuda_add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                      opipe_error *err) {
  float *to = NULL, *from = NULL;
  cuda_launch launch;
  CUDA_TRY(floats_of(queue, dst, "add: destination", dst->n_bytes, &to, err));
  CUDA_TRY(floats_of(queue, src, "add: source", dst->n_bytes, &from, err));
  if (dst->n_bytes == 0)
    return OPIPE_OK;
  const cuda_accumulate_args args = {to, from, (int64_t)(dst->n_bytes / sizeof(float))};
  return launch_all(queue, &launch, cuda_plan_accumulate(&args, OPIPE_FLOAT, &launch) ? 1 : 0,
                    "add", err);
}

opipe_status cuda_sum_squares(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                              opipe_error *err) {
  CUdeviceptr to = 0;
  float *from = NULL;
  cuda_launch launches[2];
  CUDA_TRY(cuda_region(queue->device, dst, "sum_squares: destination", &to, err));
  CUDA_TRY(floats_of(queue, src, "sum_squares: source", src->n_bytes, &from, err));
  if (dst->n_bytes < sizeof(double) || to % sizeof(double) != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "sum_squares: a destination of %llu bytes at offset %llu, not 8 at a "
                      "multiple of 8",
                      (unsigned long long)dst->n_bytes, (unsigned long long)dst->offset_bytes);
  }
  const cuda_squares_args args = {
      .own = {.gradient = from, .n = (int64_t)(src->n_bytes / sizeof(float))},
      .sum = (double *)(uintptr_t)to,
      .workspace = queue->sums};
  return launch_all(queue, launches, cuda_plan_squares(&args, launches), "sum_squares", err);
}

/* Moments that the kind must have, or that are given. */
static opipe_status update_operands(const opipe_queue *queue, const opipe_update *u,
                                    cuda_update_item *out, opipe_error *err) {
  const uint64_t n_bytes = u->n_elems * sizeof(float);
  const uint32_t n_moments = opipe_optimizer_row_of(u->kind)->moments;
  if (u->n_elems > INT64_MAX / 8) {
    return opipe_fail(err, OPIPE_E_INVALID, "update: %llu elements",
                      (unsigned long long)u->n_elems);
  }
  CUDA_TRY(floats_of(queue, &u->weight, "update: weight", n_bytes, &out->weight, err));
  CUDA_TRY(floats_of(queue, &u->gradient, "update: gradient", n_bytes, &out->gradient, err));
  if (n_moments > 0 || u->first.buffer != NULL)
    CUDA_TRY(floats_of(queue, &u->first, "update: first moment", n_bytes, &out->first, err));
  if (n_moments > 1)
    CUDA_TRY(floats_of(queue, &u->second, "update: second moment", n_bytes, &out->second, err));
  out->n = (int64_t)u->n_elems;
  out->decay = u->decay;
  return OPIPE_OK;
}

opipe_status cuda_update(opipe_queue *queue, const opipe_update *update, opipe_error *err) {
  const uint32_t flags = OPIPE_UPDATE_NESTEROV | OPIPE_UPDATE_EPS_INNER | OPIPE_UPDATE_CLEAR;
  const opipe_update *u = update;
  cuda_launch launch;
  if (!OPIPE_HAS(u, opipe_update, decay))
    return opipe_fail(err, OPIPE_E_ABI, "update: struct_size %u is too small", u->struct_size);
  if (u->kind >= OPIPE_N_OPTIMIZERS || (u->flags & ~flags) != 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "update: kind %u, flags 0x%x are not known",
                      u->kind, u->flags);
  }
  cuda_update_args args = {.gradient_scale = u->gradient_scale,
                           .lr = u->lr,
                           .momentum = u->momentum,
                           .beta1 = u->beta1,
                           .beta2 = u->beta2,
                           .correction1 = u->correction1,
                           .correction2 = u->correction2,
                           .epsilon = u->epsilon,
                           .kind = u->kind,
                           .flags = u->flags};
  CUDA_TRY(update_operands(queue, u, &args.own, err));
  if (args.own.n == 0)
    return OPIPE_OK;
  return launch_all(queue, &launch, cuda_plan_update(&args, &launch) ? 1 : 0, "update", err);
}
