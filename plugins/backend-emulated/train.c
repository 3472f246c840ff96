/* SPDX-License-Identifier: Apache-2.0 */
/* Training slots: the inner backend's. The work of an optimizer step takes no modelled time. */
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

opipe_status emudev_gradients_fold(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                   opipe_error *err) {
  return gradients->device->self->inner->gradients_fold(gradients->inner, queue->inner, slot, err);
}

opipe_status emudev_params_refresh(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                   opipe_error *err) {
  return params->device->self->inner->params_refresh(params->inner, queue->inner, slot, err);
}

opipe_status emudev_params_export(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                  const opipe_region *dst, opipe_error *err) {
  const opipe_region to = emudev_region(dst);
  return params->device->self->inner->params_export(params->inner, queue->inner, slot, &to, err);
}

opipe_status emudev_params_import(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                  const opipe_region *src, opipe_error *err) {
  const opipe_region from = emudev_region(src);
  return params->device->self->inner->params_import(params->inner, queue->inner, slot, &from, err);
}

opipe_status emudev_fill_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err) {
  const opipe_region to = emudev_region(dst);
  const opipe_status status = check_trains(queue->device, err);
  return status < 0 ? status : queue->device->self->inner->fill_zero(queue->inner, &to, err);
}

opipe_status emudev_add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                        opipe_error *err) {
  const opipe_region to = emudev_region(dst), from = emudev_region(src);
  const opipe_status status = check_trains(queue->device, err);
  return status < 0 ? status : queue->device->self->inner->add(queue->inner, &to, &from, err);
}

opipe_status emudev_sum_squares(opipe_queue *queue, const opipe_region *dst,
                                const opipe_region *src, opipe_error *err) {
  const opipe_region to = emudev_region(dst), from = emudev_region(src);
  const opipe_status status = check_trains(queue->device, err);
  return status < 0 ? status
                    : queue->device->self->inner->sum_squares(queue->inner, &to, &from, err);
}

opipe_status emudev_update(opipe_queue *queue, const opipe_update *update, opipe_error *err) {
  opipe_update inner;
  const size_t known = sizeof inner < update->struct_size ? sizeof inner : update->struct_size;
  const opipe_status status = check_trains(queue->device, err);
  if (status < 0)
    return status;
  if (!OPIPE_HAS(update, opipe_update, decay))
    return opipe_fail(err, OPIPE_E_ABI, "update: struct_size %u is too small", update->struct_size);
  memcpy(&inner, update, known);
  inner.struct_size = (uint32_t)known;
  inner.weight = emudev_region(&update->weight);
  inner.gradient = emudev_region(&update->gradient);
  inner.first = emudev_region(&update->first);
  inner.second = emudev_region(&update->second);
  return queue->device->self->inner->update(queue->inner, &inner, err);
}
