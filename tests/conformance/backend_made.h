/* SPDX-License-Identifier: Apache-2.0 */
/* A backend's slots that make objects, checked at every call (made.h). */
#ifndef BACKEND_MADE_H
#define BACKEND_MADE_H

#include <opipe/backend.h>

#include "made.h"

static const opipe_backend *backend_tested;
static opipe_backend backend_made;

CONF_MADE(backend_tested, device_open,
          (opipe_instance * self, const opipe_device_params *params, opipe_device **out,
           opipe_error *err),
          (self, params, out, err))
CONF_MADE(backend_tested, buffer_alloc,
          (opipe_device * device, uint64_t n_bytes, uint32_t kind, opipe_buffer **out,
           opipe_error *err),
          (device, n_bytes, kind, out, err))
CONF_MADE(backend_tested, queue_open, (opipe_device * device, opipe_queue **out, opipe_error *err),
          (device, out, err))
CONF_MADE(backend_tested, event_create,
          (opipe_device * device, opipe_event **out, opipe_error *err), (device, out, err))
CONF_MADE(backend_tested, compile,
          (opipe_device * device, const opipe_compile_params *params, opipe_program **out,
           opipe_error *err),
          (device, params, out, err))
CONF_MADE(backend_tested, params_create,
          (opipe_device * device, const opipe_param_source *sources, uint32_t n, opipe_params **out,
           opipe_error *err),
          (device, sources, n, out, err))
CONF_MADE(backend_tested, params_clone,
          (const opipe_params *params, opipe_params **out, opipe_error *err), (params, out, err))
CONF_MADE(backend_tested, bind,
          (opipe_device * device, const opipe_bind_params *params, opipe_binding **out,
           opipe_error *err),
          (device, params, out, err))
CONF_MADE(backend_tested, params_create_owned,
          (opipe_device * device, const opipe_param_source *sources, uint32_t n, opipe_params **out,
           opipe_error *err),
          (device, sources, n, out, err))
CONF_MADE(backend_tested, gradients_create,
          (opipe_params * params, opipe_params **out, opipe_error *err), (params, out, err))

static const opipe_backend *backend_checked(const opipe_backend *table) {
  backend_tested = table;
  CONF_COPY(backend_made, table);
  backend_made.device_open = made_device_open;
  backend_made.buffer_alloc = made_buffer_alloc;
  backend_made.queue_open = made_queue_open;
  backend_made.event_create = made_event_create;
  backend_made.compile = made_compile;
  backend_made.params_create = made_params_create;
  backend_made.params_clone = made_params_clone;
  backend_made.bind = made_bind;
  if (OPIPE_HAS(table, opipe_backend, update) && table->params_create_owned != NULL) {
    backend_made.params_create_owned = made_params_create_owned;
    backend_made.gradients_create = made_gradients_create;
  }
  return &backend_made;
}

#endif /* BACKEND_MADE_H */
