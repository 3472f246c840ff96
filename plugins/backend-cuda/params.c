/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter sets: the sources, and the copies on the device that programs wanted.
 *
 * A program reads a parameter as it is, whatever its product does with it: there is one layout, the
 * source's own bytes, aligned, with zeros up to the alignment. A trained parameter of a half type
 * has a second copy, of fp32; one of fp32 has a second copy that is rounded, where programs read
 * that (train.c). All of this is [control]: it goes through the device's own stream and is waited
 * for, behind what is queued on the device's queues.
 */
#include "params.h"

#include "ops/rule.h"

CUdeviceptr cuda_params_address(const opipe_params *params, uint32_t slot, uint32_t key) {
  return params->states[slot].copies[key - 1].address;
}

uint32_t cuda_params_count(const opipe_params *params) {
  return params->n;
}

/* ---- the device's stream ---- */

opipe_status cuda_params_settle(opipe_device *device, CUresult queued, const char *what,
                                opipe_error *err) {
  const cuda_driver *driver = device->place->driver;
  const CUresult done = driver->stream_sync(device->control);
  return cuda_result(device->place, queued != CUDA_OK ? queued : done, what, err);
}

opipe_status cuda_params_upload(opipe_device *device, const cuda_param_copy *copy, const void *src,
                                uint64_t n_bytes, opipe_error *err) {
  const cuda_driver *driver = device->place->driver;
  CUresult result = CUDA_OK;
  if (src == NULL)
    n_bytes = 0;
  if (copy->n_bytes > n_bytes) {
    result = driver->fill(copy->address + n_bytes, 0, (size_t)(copy->n_bytes - n_bytes),
                          device->control);
  }
  if (result == CUDA_OK && n_bytes > 0)
    result = driver->write(copy->address, src, (size_t)n_bytes, device->control);
  return cuda_params_settle(device, result, "writing a parameter", err);
}

/* ---- sets ---- */

opipe_status cuda_params_take(opipe_params *params, uint32_t slot, const opipe_param_source *source,
                              opipe_error *err) {
  cuda_param_state *state = &params->states[slot];
  uint64_t n_bytes = 0;
  const char *name = source->name != NULL ? source->name : "?";
  if (source->rank > OPIPE_MAX_RANK || (source->rank > 0 && source->shape == NULL) ||
      !opipe_tensor_bytes(source->dtype, source->shape, source->rank, &n_bytes) ||
      n_bytes != source->n_bytes || (source->data == NULL && n_bytes > 0 && params->of == NULL)) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "parameter '%.80s': no data, or %llu bytes do not fit shape and type", name,
                      (unsigned long long)source->n_bytes);
  }
  char *text = CUDA_POOL_ARRAY(&params->pool, char, strlen(name) + 1);
  int64_t *shape = CUDA_POOL_ARRAY(&params->pool, int64_t, source->rank);
  if (text == NULL || shape == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for parameter '%.80s'", name);
  memcpy(text, name, strlen(name) + 1);
  if (source->rank > 0)
    memcpy(shape, source->shape, source->rank * sizeof shape[0]);
  state->source = *source;
  state->source.name = text;
  state->source.shape = shape;
  return OPIPE_OK;
}

opipe_status cuda_params_new(opipe_device *device, uint32_t n, opipe_params **out_params,
                             opipe_error *err) {
  opipe_params *params =
      opipe_zeroed(device->host, "parameter set", sizeof *params, _Alignof(opipe_params), err);
  if (params == NULL)
    return OPIPE_E_NOMEM;
  params->device = device;
  params->pool.host = device->host;
  params->states = CUDA_POOL_ARRAY(&params->pool, cuda_param_state, n);
  if (params->states == NULL) {
    cuda_params_free(params);
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for a set of %u parameters", n);
  }
  params->n = n;
  *out_params = params;
  return OPIPE_OK;
}

static opipe_status create_set(opipe_device *device, const opipe_param_source *sources, uint32_t n,
                               bool owned, opipe_params **out_params, opipe_error *err) {
  opipe_params *params = NULL;
  CUDA_TRY(opipe_check_sources(sources, n, err));
  opipe_status status = cuda_params_new(device, n, &params, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i)
    status = cuda_params_take(params, i, &sources[i], err);
  if (status < 0) {
    cuda_params_free(params);
    return status;
  }
  params->owned = owned;
  *out_params = params;
  return OPIPE_OK;
}

opipe_status cuda_params_create(opipe_device *device, const opipe_param_source *sources, uint32_t n,
                                opipe_params **out_params, opipe_error *err) {
  return create_set(device, sources, n, false, out_params, err);
}

opipe_status cuda_params_create_owned(opipe_device *device, const opipe_param_source *sources,
                                      uint32_t n, opipe_params **out_params, opipe_error *err) {
  return create_set(device, sources, n, true, out_params, err);
}

void cuda_params_free(opipe_params *params) {
  if (params == NULL)
    return;
  opipe_device *device = params->device;
  const bool entered = cuda_enter(device, "params_free", NULL) >= 0;
  for (uint32_t i = 0; params->states != NULL && i < params->n; ++i) {
    for (uint32_t key = 0; key < CUDA_COPIES; ++key) {
      const cuda_param_copy *copy = &params->states[i].copies[key];
      cuda_memory_give(device, OPIPE_BUFFER_PARAMS, copy->address, copy->n_bytes);
    }
  }
  if (entered)
    cuda_leave(device);
  cuda_pool_release(&params->pool);
  opipe_free(device->host, params, sizeof *params, _Alignof(opipe_params));
}

/* ---- copies; within an entry ---- */

opipe_status cuda_params_reserve(opipe_params *params, uint32_t slot, uint32_t key,
                                 uint64_t n_bytes, opipe_error *err) {
  char what[120];
  cuda_param_copy *copy = &params->states[slot].copies[key - 1];
  (void)snprintf(what, sizeof what, "%s '%.80s'",
                 params->of != NULL ? "the gradient of parameter" : "parameter",
                 params->states[slot].source.name);
  copy->device = params->device;
  copy->kind = OPIPE_BUFFER_PARAMS;
  copy->n_bytes = n_bytes;
  return cuda_memory_take(params->device, OPIPE_BUFFER_PARAMS, what, &copy->n_bytes, &copy->address,
                          err);
}

opipe_status cuda_params_own_copy(opipe_params *params, uint32_t slot, opipe_error *err) {
  cuda_param_state *state = &params->states[slot];
  cuda_param_copy *copy = &state->copies[CUDA_LAYOUT_OWN - 1];
  if (copy->address != 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_params_reserve(params, slot, CUDA_LAYOUT_OWN, state->source.n_bytes, err));
  return cuda_params_upload(params->device, copy, state->source.data, state->source.n_bytes, err);
}

opipe_status cuda_params_match(const opipe_program *program, const cuda_layout *layout,
                               const opipe_params *params, opipe_error *err) {
  const opipe_value *value = &program->graph->values[layout->value];
  if (layout->slot >= params->n) {
    return opipe_fail(err, OPIPE_E_INVALID, "parameter '%.80s': slot %u of a set of %u",
                      value->name, layout->slot, params->n);
  }
  const opipe_param_source *source = &params->states[layout->slot].source;
  if (source->dtype != value->dtype || source->rank != value->rank ||
      (value->rank > 0 &&
       memcmp(source->shape, value->shape, value->rank * sizeof value->shape[0]) != 0)) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "parameter '%.80s': the set holds '%.80s' of another type or shape",
                      value->name, source->name);
  }
  return OPIPE_OK;
}

/* A copy that is there stays: it knows more than the source. */
static opipe_status prepare_copy(opipe_params *params, const cuda_layout *layout,
                                 opipe_error *err) {
  const cuda_param_copy *copy = &params->states[layout->slot].copies[layout->key - 1];
  if (layout->key == CUDA_LAYOUT_OWN)
    return cuda_params_own_copy(params, layout->slot, err);
  if (copy->address != 0)
    return OPIPE_OK;
  if (layout->key != CUDA_LAYOUT_F32)
    return cuda_train_round(params, layout->slot, layout->key, err);
  return params->owned ? cuda_train_widen(params, layout->slot, err) : OPIPE_OK;
}

opipe_status cuda_params_prepare(opipe_params *params, const opipe_program *program,
                                 opipe_error *err) {
  opipe_status status = OPIPE_OK;
  const bool of_gradients = params->of != NULL;
  const cuda_layout *layouts = of_gradients ? program->gradients : program->layouts;
  const uint32_t n = of_gradients ? program->n_gradients : program->n_layouts;
  for (uint32_t i = 0; i < n; ++i)
    CUDA_TRY(cuda_params_match(program, &layouts[i], params, err));
  CUDA_TRY(cuda_enter(params->device, "params_prepare", err));
  if (of_gradients)
    status = cuda_train_prepare(params, program, err);
  for (uint32_t i = 0; !of_gradients && status >= 0 && i < n; ++i)
    status = prepare_copy(params, &layouts[i], err);
  cuda_leave(params->device);
  return status;
}

static opipe_status clone_copy(opipe_params *to, const opipe_params *from, uint32_t slot,
                               uint32_t key, opipe_error *err) {
  const cuda_param_copy *old = &from->states[slot].copies[key - 1];
  const cuda_driver *driver = to->device->place->driver;
  if (old->address == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_params_reserve(to, slot, key, old->n_bytes, err));
  return cuda_params_settle(to->device,
                            driver->copy(to->states[slot].copies[key - 1].address, old->address,
                                         (size_t)old->n_bytes, to->device->control),
                            "params_clone", err);
}

opipe_status cuda_params_clone(const opipe_params *params, opipe_params **out_params,
                               opipe_error *err) {
  opipe_params *copy = NULL;
  CUDA_TRY(cuda_enter(params->device, "params_clone", err));
  opipe_status status = cuda_queues_settle(params->device, "params_clone", err);
  if (status >= 0)
    status = cuda_params_new(params->device, params->n, &copy, err);
  if (status >= 0) {
    copy->owned = params->owned;
    copy->of = params->of;
  }
  for (uint32_t i = 0; status >= 0 && i < params->n; ++i) {
    status = cuda_params_take(copy, i, &params->states[i].source, err);
    for (uint32_t key = 1; status >= 0 && key <= CUDA_COPIES; ++key)
      status = clone_copy(copy, params, i, key, err);
  }
  cuda_leave(params->device);
  if (status < 0)
    cuda_params_free(copy);
  else
    *out_params = copy;
  return status;
}

static opipe_status check_slot(const opipe_params *params, uint32_t slot, uint64_t n_bytes,
                               const char *what, opipe_error *err) {
  if (slot >= params->n)
    return opipe_fail(err, OPIPE_E_INVALID, "%s: slot %u of a set of %u", what, slot, params->n);
  const opipe_param_source *source = &params->states[slot].source;
  return n_bytes == source->n_bytes
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID, "%s: parameter '%.80s' has %llu bytes, not %llu",
                          what, source->name, (unsigned long long)source->n_bytes,
                          (unsigned long long)n_bytes);
}

opipe_status cuda_params_write(opipe_params *params, uint32_t slot, const void *src,
                               uint64_t n_bytes, opipe_error *err) {
  CUDA_TRY(check_slot(params, slot, n_bytes, "params_write", err));
  CUDA_TRY(cuda_enter(params->device, "params_write", err));
  opipe_status status = cuda_queues_settle(params->device, "params_write", err);
  if (status >= 0)
    status = cuda_params_own_copy(params, slot, err);
  if (status >= 0) {
    status = cuda_params_upload(params->device, &params->states[slot].copies[CUDA_LAYOUT_OWN - 1],
                                src, n_bytes, err);
  }
  if (status >= 0 && params->states[slot].copies[CUDA_LAYOUT_F32 - 1].address != 0)
    status = cuda_train_widen(params, slot, err);
  if (status >= 0)
    status = cuda_train_round_all(params, slot, params->device->control, err);
  if (status >= 0)
    status = cuda_params_settle(params->device, CUDA_OK, "rounding a parameter", err);
  cuda_leave(params->device);
  return status;
}

opipe_status cuda_params_read(const opipe_params *params, uint32_t slot, void *dst,
                              uint64_t n_bytes, opipe_error *err) {
  opipe_device *device = params->device;
  const cuda_driver *driver = device->place->driver;
  CUDA_TRY(check_slot(params, slot, n_bytes, "params_read", err));
  const cuda_param_copy *copy = &params->states[slot].copies[CUDA_LAYOUT_OWN - 1];
  if (n_bytes == 0)
    return OPIPE_OK;
  if (copy->address == 0 && params->of != NULL) {
    memset(dst, 0, (size_t)n_bytes); /* nothing accumulates in it */
    return OPIPE_OK;
  }
  if (copy->address == 0) {
    memcpy(dst, params->states[slot].source.data, (size_t)n_bytes);
    return OPIPE_OK;
  }
  CUDA_TRY(cuda_enter(device, "params_read", err));
  opipe_status status = cuda_queues_settle(device, "params_read", err);
  if (status >= 0 && params->states[slot].copies[CUDA_LAYOUT_F32 - 1].address != 0)
    status = cuda_train_narrow(params, slot, device->control, err);
  if (status >= 0) {
    status = cuda_params_settle(device,
                                driver->read(dst, copy->address, (size_t)n_bytes, device->control),
                                "params_read", err);
  }
  cuda_leave(device);
  return status;
}

opipe_status cuda_params_commit(opipe_params *params, opipe_error *err) {
  (void)params; /* a write has reached its copy when it returns */
  (void)err;
  return OPIPE_OK;
}
