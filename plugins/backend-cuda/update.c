/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise slots of training: zeros, sums, norms and updates on regions of fp32; sums of
 * several regions of any floating-point type. Norms and updates of many parameters are a launch or
 * two, whatever their number: a table in the argument block. */
#include <opipe/collect.h>

#include "params.h"

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
      status = cuda_launch_on(device, kernel, &launches[i], cuda_launch_args(&launches[i]),
                              queue->stream, err);
    }
  }
  return cuda_leave_queue(queue, status, err);
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
  return cuda_leave_queue(queue, status, err);
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

/* ---- sums of squares ---- */

static opipe_status squares_operands(const opipe_queue *queue, const opipe_region *dst,
                                     const opipe_region *src, cuda_squares_item *out,
                                     opipe_error *err) {
  CUdeviceptr to = 0;
  float *from = NULL;
  CUDA_TRY(cuda_region(queue->device, dst, "sum_squares: destination", &to, err));
  CUDA_TRY(floats_of(queue, src, "sum_squares: source", src->n_bytes, &from, err));
  if (dst->n_bytes < sizeof(double) || to % sizeof(double) != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "sum_squares: a destination of %llu bytes at offset %llu, not 8 at a "
                      "multiple of 8",
                      (unsigned long long)dst->n_bytes, (unsigned long long)dst->offset_bytes);
  }
  *out = (cuda_squares_item){
      .x = from, .sum = (double *)(uintptr_t)to, .n = (int64_t)(src->n_bytes / sizeof(float))};
  return OPIPE_OK;
}

static opipe_status launch_squares(opipe_queue *queue, cuda_squares_args *io_args,
                                   opipe_error *err) {
  cuda_launch launches[2];
  const uint32_t n = io_args->n_items;
  io_args->workspace = queue->sums;
  return n == 0 ? OPIPE_OK
                : launch_all(queue, launches, cuda_plan_squares(io_args, launches), "sum_squares",
                             err);
}

/* The sum over nothing. */
static opipe_status zero_sum(opipe_queue *queue, const double *sum, opipe_error *err) {
  opipe_device *device = queue->device;
  CUDA_TRY(cuda_enter_queue(queue, "sum_squares", err));
  const opipe_status status = cuda_result(
      device->place,
      device->place->driver->fill((CUdeviceptr)(uintptr_t)sum, 0, sizeof *sum, queue->stream),
      "sum_squares", err);
  return cuda_leave_queue(queue, status, err);
}

opipe_status cuda_sum_squares_many(opipe_queue *queue, const opipe_region *dst,
                                   const opipe_region *src, uint32_t n, opipe_error *err) {
  cuda_squares_args args = {.n_items = 0};
  uint32_t n_parts = 0;
  for (uint32_t i = 0; i < n; ++i) {
    cuda_squares_item item;
    CUDA_TRY(squares_operands(queue, &dst[i], &src[i], &item, err));
    if (item.n == 0) {
      CUDA_TRY(zero_sum(queue, item.sum, err));
      continue;
    }
    const uint32_t parts = cuda_squares_parts(item.n);
    if (args.n_items == CUDA_MANY || n_parts + parts > CUDA_SUMS_ROOM) {
      CUDA_TRY(launch_squares(queue, &args, err));
      args.n_items = n_parts = 0;
    }
    args.items[args.n_items++] = item;
    n_parts += parts;
  }
  return launch_squares(queue, &args, err);
}

opipe_status cuda_sum_squares(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                              opipe_error *err) {
  return cuda_sum_squares_many(queue, dst, src, 1, err);
}

/* ---- updates ---- */

/* Moments that the kind must have, or that are given. */
static opipe_status update_operands(const opipe_queue *queue, uint32_t kind,
                                    const opipe_update_part *p, cuda_update_item *out,
                                    opipe_error *err) {
  const uint64_t n_bytes = p->n_elems * sizeof(float);
  const uint32_t n_moments = opipe_optimizer_row_of(kind)->moments;
  memset(out, 0, sizeof *out);
  if (p->n_elems > INT64_MAX / 8) {
    return opipe_fail(err, OPIPE_E_INVALID, "update: %llu elements",
                      (unsigned long long)p->n_elems);
  }
  CUDA_TRY(floats_of(queue, &p->weight, "update: weight", n_bytes, &out->weight, err));
  CUDA_TRY(floats_of(queue, &p->gradient, "update: gradient", n_bytes, &out->gradient, err));
  if (n_moments > 0 || p->first.buffer != NULL)
    CUDA_TRY(floats_of(queue, &p->first, "update: first moment", n_bytes, &out->first, err));
  if (n_moments > 1)
    CUDA_TRY(floats_of(queue, &p->second, "update: second moment", n_bytes, &out->second, err));
  out->n = (int64_t)p->n_elems;
  out->decay = p->decay;
  return p->params == NULL ? OPIPE_OK
                           : cuda_train_follow(p->params, p->slot, out->weight, p->n_elems,
                                               &out->half, &out->half_dtype, err);
}

static opipe_status update_numbers(const opipe_update *u, cuda_update_args *out, opipe_error *err) {
  const uint32_t flags = OPIPE_UPDATE_NESTEROV | OPIPE_UPDATE_EPS_INNER | OPIPE_UPDATE_CLEAR;
  if (!OPIPE_HAS(u, opipe_update, decay))
    return opipe_fail(err, OPIPE_E_ABI, "update: struct_size %u is too small", u->struct_size);
  if (u->kind >= OPIPE_N_OPTIMIZERS || (u->flags & ~flags) != 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "update: kind %u, flags 0x%x are not known",
                      u->kind, u->flags);
  }
  out->gradient_scale = u->gradient_scale;
  out->lr = u->lr;
  out->momentum = u->momentum;
  out->beta1 = u->beta1;
  out->beta2 = u->beta2;
  out->correction1 = u->correction1;
  out->correction2 = u->correction2;
  out->epsilon = u->epsilon;
  out->kind = u->kind;
  out->flags = u->flags;
  return OPIPE_OK;
}

/* Launches the updates that the argument block has gathered so far. */
static opipe_status launch_updates(opipe_queue *queue, cuda_update_args *io_args,
                                   opipe_error *err) {
  cuda_launch launch;
  if (io_args->n_items == 0)
    return OPIPE_OK;
  const opipe_status status =
      launch_all(queue, &launch, cuda_plan_update(io_args, &launch) ? 1 : 0, "update", err);
  io_args->n_items = 0; /* the launch has read it */
  return status;
}

opipe_status cuda_update_many(opipe_queue *queue, const opipe_update *update,
                              const opipe_update_part *parts, uint32_t n, opipe_error *err) {
  cuda_update_args args = {.n_items = 0};
  CUDA_TRY(update_numbers(update, &args, err));
  for (uint32_t i = 0; i < n; ++i) {
    cuda_update_item *item = &args.items[args.n_items];
    CUDA_TRY(update_operands(queue, update->kind, &parts[i], item, err));
    args.n_items += item->n != 0;
    if (args.n_items == CUDA_MANY)
      CUDA_TRY(launch_updates(queue, &args, err));
  }
  CUDA_TRY(launch_updates(queue, &args, err));
  for (uint32_t i = 0; i < n; ++i) {
    if (parts[i].params != NULL && cuda_train_rounds_twice(parts[i].params, parts[i].slot))
      CUDA_TRY(cuda_params_refresh(parts[i].params, queue, parts[i].slot, err));
  }
  return OPIPE_OK;
}

opipe_status cuda_update(opipe_queue *queue, const opipe_update *update, opipe_error *err) {
  if (!OPIPE_HAS(update, opipe_update, decay))
    return opipe_fail(err, OPIPE_E_ABI, "update: struct_size %u is too small", update->struct_size);
  const opipe_update_part part = {.weight = update->weight,
                                  .gradient = update->gradient,
                                  .first = update->first,
                                  .second = update->second,
                                  .n_elems = update->n_elems,
                                  .decay = update->decay};
  return cuda_update_many(queue, update, &part, 1, err);
}

/* ---- sums of regions ---- */

/* Address of a region of n_bytes of whole elements of `size` bytes. */
static opipe_status elements_of(const opipe_queue *queue, const opipe_region *region,
                                const char *what, uint64_t n_bytes, uint64_t size, void **out_data,
                                opipe_error *err) {
  CUdeviceptr address = 0;
  CUDA_TRY(cuda_region(queue->device, region, what, &address, err));
  if (region->n_bytes != n_bytes || n_bytes % size != 0 || address % size != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "%s: %llu bytes at offset %llu, not %llu of whole elements of %llu", what,
                      (unsigned long long)region->n_bytes, (unsigned long long)region->offset_bytes,
                      (unsigned long long)n_bytes, (unsigned long long)size);
  }
  *out_data = (void *)(uintptr_t)address;
  return OPIPE_OK;
}

opipe_status cuda_sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                      const opipe_region *src, uint32_t n, opipe_error *err) {
  const uint64_t size = opipe_sum_size(dtype);
  cuda_sum_args args = {.n_src = n};
  cuda_launch launch;
  if (size == 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "sum of %s: it is no type that is added",
                      opipe_dtype_name(dtype));
  }
  if (n == 0 || n > CUDA_SUM_REGIONS) {
    return opipe_fail(err, n == 0 ? OPIPE_E_INVALID : OPIPE_E_LIMIT,
                      "sum of %u regions, 1 is the least and %d the most", n, CUDA_SUM_REGIONS);
  }
  CUDA_TRY(elements_of(queue, dst, "sum: destination", dst->n_bytes, size, &args.dst, err));
  for (uint32_t i = 0; i < n; ++i) {
    void *from = NULL;
    CUDA_TRY(elements_of(queue, &src[i], "sum: source", dst->n_bytes, size, &from, err));
    args.src[i] = from;
  }
  args.n = (int64_t)(dst->n_bytes / size);
  return args.n == 0
             ? OPIPE_OK
             : launch_all(queue, &launch, cuda_plan_sum(&args, dtype, &launch) ? 1 : 0, "sum", err);
}
