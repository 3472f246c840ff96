/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter sets: the inner backend's. */
#include "emulated.h"

static void discard(opipe_params *params) {
  emudev_free(params->device, params->masters, (params->n + (size_t)1) * sizeof *params->masters);
  emudev_free(params->device, params, sizeof *params);
}

opipe_params *emudev_params_wrap(opipe_device *device, uint32_t n, opipe_error *err) {
  opipe_params *params = emudev_alloc(device, sizeof *params);
  if (params == NULL) {
    (void)emudev_nomem(sizeof *params, err);
    return NULL;
  }
  params->device = device;
  params->n = n;
  params->masters = emudev_alloc(device, (n + (size_t)1) * sizeof *params->masters);
  if (params->masters == NULL) {
    (void)emudev_nomem((n + (size_t)1) * sizeof *params->masters, err);
    emudev_free(device, params, sizeof *params);
    return NULL;
  }
  return params;
}

opipe_status emudev_params_keep(opipe_params *params, opipe_status status,
                                opipe_params **out_params) {
  if (status < 0) {
    discard(params);
    return status;
  }
  *out_params = params;
  return OPIPE_OK;
}

opipe_status emudev_params_create(opipe_device *device, const opipe_param_source *sources,
                                  uint32_t n, opipe_params **out_params, opipe_error *err) {
  opipe_params *params = emudev_params_wrap(device, n, err);
  if (params == NULL)
    return OPIPE_E_NOMEM;
  return emudev_params_keep(
      params, device->self->inner->params_create(device->inner, sources, n, &params->inner, err),
      out_params);
}

void emudev_params_free(opipe_params *params) {
  if (params == NULL)
    return;
  emudev_expect_idle(params->device, &(target){.params = params}, "params_free");
  params->device->self->inner->params_free(params->inner);
  discard(params);
}

opipe_status emudev_params_prepare(opipe_params *params, const opipe_program *program,
                                   opipe_error *err) {
  return params->device->self->inner->params_prepare(params->inner, program->inner, err);
}

opipe_status emudev_params_clone(const opipe_params *params, opipe_params **out_params,
                                 opipe_error *err) {
  opipe_params *copy = emudev_params_wrap(params->device, params->n, err);
  if (copy == NULL)
    return OPIPE_E_NOMEM;
  return emudev_params_keep(
      copy, params->device->self->inner->params_clone(params->inner, &copy->inner, err),
      out_params);
}

opipe_status emudev_params_write(opipe_params *params, uint32_t slot, const void *src,
                                 uint64_t n_bytes, opipe_error *err) {
  emudev_expect_idle(params->device, &(target){.params = params}, "params_write");
  return params->device->self->inner->params_write(params->inner, slot, src, n_bytes, err);
}

opipe_status emudev_params_read(const opipe_params *params, uint32_t slot, void *dst,
                                uint64_t n_bytes, opipe_error *err) {
  emudev_expect_idle(params->device, &(target){.params = params}, "params_read");
  return params->device->self->inner->params_read(params->inner, slot, dst, n_bytes, err);
}

opipe_status emudev_params_commit(opipe_params *params, opipe_error *err) {
  return params->device->self->inner->params_commit(params->inner, err);
}
