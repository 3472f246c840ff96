/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter sets: the inner backend's. */
#include "emulated.h"

static opipe_params *wrap(opipe_device *device, opipe_error *err) {
  opipe_params *params = emudev_alloc(device, sizeof *params);
  if (params == NULL) {
    (void)emudev_nomem(sizeof *params, err);
    return NULL;
  }
  params->device = device;
  return params;
}

static opipe_status keep(opipe_params *params, opipe_status status, opipe_params **out_params) {
  if (status < 0) {
    emudev_free(params->device, params, sizeof *params);
    return status;
  }
  *out_params = params;
  return OPIPE_OK;
}

opipe_status emudev_params_create(opipe_device *device, const opipe_param_source *sources,
                                  uint32_t n, opipe_params **out_params, opipe_error *err) {
  opipe_params *params = wrap(device, err);
  if (params == NULL) {
    return OPIPE_E_NOMEM;
  }
  return keep(params,
              device->self->inner->params_create(device->inner, sources, n, &params->inner, err),
              out_params);
}

void emudev_params_free(opipe_params *params) {
  if (params == NULL) {
    return;
  }
  params->device->self->inner->params_free(params->inner);
  emudev_free(params->device, params, sizeof *params);
}

opipe_status emudev_params_prepare(opipe_params *params, const opipe_program *program,
                                   opipe_error *err) {
  return params->device->self->inner->params_prepare(params->inner, program->inner, err);
}

opipe_status emudev_params_clone(const opipe_params *params, opipe_params **out_params,
                                 opipe_error *err) {
  opipe_params *copy = wrap(params->device, err);
  if (copy == NULL) {
    return OPIPE_E_NOMEM;
  }
  return keep(copy, params->device->self->inner->params_clone(params->inner, &copy->inner, err),
              out_params);
}

opipe_status emudev_params_write(opipe_params *params, uint32_t slot, const void *src,
                                 uint64_t n_bytes, opipe_error *err) {
  return params->device->self->inner->params_write(params->inner, slot, src, n_bytes, err);
}

opipe_status emudev_params_read(const opipe_params *params, uint32_t slot, void *dst,
                                uint64_t n_bytes, opipe_error *err) {
  return params->device->self->inner->params_read(params->inner, slot, dst, n_bytes, err);
}

opipe_status emudev_params_commit(opipe_params *params, opipe_error *err) {
  return params->device->self->inner->params_commit(params->inner, err);
}
