/* SPDX-License-Identifier: Apache-2.0 */
/* Training slots: the inner backend's. The work of an optimizer step takes no modelled time. */
#include <opipe/collect.h>

#include "emulated.h"

static opipe_status check_trains(const opipe_device *device, opipe_error *err) {
  const opipe_backend *inner = device->self->inner;
  return OPIPE_HAS(inner, opipe_backend, update) && inner->update != NULL
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_UNSUPPORTED,
                          "backend 'emulated': the backend that it builds on cannot train");
}

opipe_status emudev_params_create_owned(opipe_device *device, const opipe_param_source *sources,
                                        uint32_t n, opipe_params **out_params, opipe_error *err) {
  const opipe_status status = check_trains(device, err);
  opipe_params *params = status < 0 ? NULL : emudev_params_wrap(device, n, err);
  if (params == NULL)
    return status < 0 ? status : OPIPE_E_NOMEM;
  return emudev_params_keep(
      params,
      device->self->inner->params_create_owned(device->inner, sources, n, &params->inner, err),
      out_params);
}

opipe_status emudev_gradients_create(opipe_params *params, opipe_params **out_gradients,
                                     opipe_error *err) {
  opipe_device *device = params->device;
  const opipe_status status = check_trains(device, err);
  opipe_params *gradients = status < 0 ? NULL : emudev_params_wrap(device, params->n, err);
  if (gradients == NULL)
    return status < 0 ? status : OPIPE_E_NOMEM;
  return emudev_params_keep(
      gradients, device->self->inner->gradients_create(params->inner, &gradients->inner, err),
      out_gradients);
}

opipe_status emudev_program_gradients(const opipe_program *program, opipe_param_layout *out_layouts,
                                      uint32_t *io_count, opipe_error *err) {
  const opipe_status status = check_trains(program->device, err);
  return status < 0 ? status
                    : program->device->self->inner->program_gradients(program->inner, out_layouts,
                                                                      io_count, err);
}

opipe_status emudev_params_master(opipe_params *params, uint32_t slot, opipe_region *out_region,
                                  opipe_error *err) {
  opipe_status status = check_trains(params->device, err);
  if (status == OPIPE_OK)
    status = params->device->self->inner->params_master(params->inner, slot, out_region, err);
  if (status < 0 || out_region->buffer == NULL || slot >= params->n)
    return status;
  params->masters[slot].device = params->device;
  params->masters[slot].inner = out_region->buffer;
  out_region->buffer = &params->masters[slot];
  return status;
}

/* ---- queued work ---- */

static opipe_status fold_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->gradients_fold(w->params->inner, queue->inner, w->slot, err);
}

opipe_status emudev_gradients_fold(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                   opipe_error *err) {
  const work w = {.act = fold_now, .params = gradients, .slot = slot};
  return emudev_do(queue, &w, err);
}

static opipe_status refresh_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->params_refresh(w->params->inner, queue->inner, w->slot, err);
}

opipe_status emudev_params_refresh(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                   opipe_error *err) {
  const work w = {.act = refresh_now, .params = params, .slot = slot};
  return emudev_do(queue, &w, err);
}

static opipe_status export_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->params_export(w->params->inner, queue->inner, w->slot, &w->regions[0],
                                           err);
}

opipe_status emudev_params_export(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                  const opipe_region *dst, opipe_error *err) {
  const work w = {
      .act = export_now, .params = params, .slot = slot, .regions = {emudev_region(dst)}};
  return emudev_do(queue, &w, err);
}

static opipe_status import_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->params_import(w->params->inner, queue->inner, w->slot, &w->regions[0],
                                           err);
}

opipe_status emudev_params_import(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                  const opipe_region *src, opipe_error *err) {
  const work w = {
      .act = import_now, .params = params, .slot = slot, .regions = {emudev_region(src)}};
  return emudev_do(queue, &w, err);
}

static opipe_status zero_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->fill_zero(queue->inner, &w->regions[0], err);
}

opipe_status emudev_fill_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err) {
  const work w = {.act = zero_now, .regions = {emudev_region(dst)}};
  const opipe_status status = check_trains(queue->device, err);
  return status < 0 ? status : emudev_do(queue, &w, err);
}

static opipe_status add_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->add(queue->inner, &w->regions[0], &w->regions[1], err);
}

opipe_status emudev_add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                        opipe_error *err) {
  const work w = {.act = add_now, .regions = {emudev_region(dst), emudev_region(src)}};
  const opipe_status status = check_trains(queue->device, err);
  return status < 0 ? status : emudev_do(queue, &w, err);
}

static opipe_status sum_squares_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->sum_squares(queue->inner, &w->regions[0], &w->regions[1], err);
}

opipe_status emudev_sum_squares(opipe_queue *queue, const opipe_region *dst,
                                const opipe_region *src, opipe_error *err) {
  const work w = {.act = sum_squares_now, .regions = {emudev_region(dst), emudev_region(src)}};
  const opipe_status status = check_trains(queue->device, err);
  return status < 0 ? status : emudev_do(queue, &w, err);
}

/* The regions are the operation's. */
static opipe_status update_now(opipe_queue *queue, const work *w, opipe_error *err) {
  opipe_update inner = w->copied.update;
  inner.weight = w->regions[0];
  inner.gradient = w->regions[1];
  inner.first = w->regions[2];
  inner.second = w->regions[3];
  return queue->self->inner->update(queue->inner, &inner, err);
}

opipe_status emudev_update(opipe_queue *queue, const opipe_update *update, opipe_error *err) {
  work w = {.act = update_now};
  opipe_update *copy = &w.copied.update;
  const size_t known = sizeof *copy < update->struct_size ? sizeof *copy : update->struct_size;
  const opipe_status status = check_trains(queue->device, err);
  if (status < 0)
    return status;
  if (!OPIPE_HAS(update, opipe_update, decay))
    return opipe_fail(err, OPIPE_E_ABI, "update: struct_size %u is too small", update->struct_size);
  memcpy(copy, update, known);
  copy->struct_size = (uint32_t)known;
  w.regions[0] = emudev_region(&update->weight);
  w.regions[1] = emudev_region(&update->gradient);
  w.regions[2] = emudev_region(&update->first);
  w.regions[3] = emudev_region(&update->second);
  return emudev_do(queue, &w, err);
}

/* ---- sums ---- */

static opipe_status sum_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->sum(queue->inner, w->dtype, &w->regions[0], w->sources, w->n_sources,
                                 err);
}

opipe_status emudev_sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                        const opipe_region *src, uint32_t n, opipe_error *err) {
  const opipe_backend *inner = queue->self->inner;
  work w = {.act = sum_now, .regions = {emudev_region(dst)}, .dtype = dtype, .n_sources = n};
  if (!OPIPE_HAS(inner, opipe_backend, sum) || inner->sum == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "backend 'emulated': the backend that it builds on adds no regions");
  }
  if (opipe_sum_size(dtype) == 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "sum of %s: it is no type that is added",
                      opipe_dtype_name(dtype));
  }
  if (n > SOURCES_MOST) {
    return opipe_fail(err, OPIPE_E_LIMIT, "emulated device: a sum of %u regions, at most %d", n,
                      SOURCES_MOST);
  }
  for (uint32_t i = 0; i < n; ++i)
    w.copied.sources[i] = emudev_region(&src[i]);
  w.sources = w.copied.sources;
  return emudev_do(queue, &w, err);
}
