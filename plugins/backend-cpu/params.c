/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter sets: the sources, and one copy of each layout that some program wanted.
 *
 * Layout RAW is the source itself (often a mapped file), until the parameter is written: then the
 * set owns a dense copy of it, and RAW is that copy. With the device's mapped=0 it owns one from
 * the start, and the source is not read again once the set has been prepared. Other layouts are
 * made from whichever of the two holds. `version` grows whenever an address may have changed, so
 * that bindings look again.
 */
#include "params.h"

const void *cpu_params_dense(const param_state *state) {
  const void *data = state->own != NULL ? state->own : state->source.data;
  return data != NULL ? data : state;
}

const void *cpu_params_data(const opipe_params *params, uint32_t slot, uint32_t kind) {
  const param_state *state = &params->states[slot];
  if (!state->copies[kind].present)
    return NULL;
  return kind == CPU_LAYOUT_RAW && !params->owned ? cpu_params_dense(state)
                                                  : state->copies[kind].buffer.data;
}

uint32_t cpu_params_master_kind(const opipe_params *params, uint32_t slot) {
  return params->states[slot].master;
}

uint64_t cpu_params_version(const opipe_params *params) {
  return params->version;
}

uint32_t cpu_params_count(const opipe_params *params) {
  return params->n;
}

static opipe_status alloc_bytes(opipe_params *params, uint64_t n_bytes, void **out_data,
                                uint64_t *out_bytes, opipe_error *err) {
  *out_bytes = n_bytes;
  return opipe_host_alloc(params->device->host, &params->device->meter, OPIPE_BUFFER_PARAMS,
                          out_bytes, CPU_ALIGN_BYTES, out_data, err);
}

static void free_bytes(opipe_params *params, void *data, uint64_t n_bytes) {
  opipe_host_free(params->device->host, &params->device->meter, OPIPE_BUFFER_PARAMS, data, n_bytes,
                  CPU_ALIGN_BYTES);
}

static void count_mapped(opipe_params *params, const param_state *state, bool more) {
  const int64_t bytes = (int64_t)state->source.n_bytes;
  opipe_meter_map(&params->device->meter, more ? bytes : -bytes);
}

static bool is_mapped(const opipe_params *params, const param_state *state) {
  return !params->owned && state->copies[CPU_LAYOUT_RAW].present && state->own == NULL;
}

opipe_status cpu_params_take(opipe_params *params, uint32_t slot, const opipe_param_source *source,
                             opipe_error *err) {
  param_state *state = &params->states[slot];
  uint64_t n_bytes = 0;
  const char *name = source->name != NULL ? source->name : "?";
  if (source->rank > OPIPE_MAX_RANK || (source->rank > 0 && source->shape == NULL) ||
      !opipe_tensor_bytes(source->dtype, source->shape, source->rank, &n_bytes) ||
      n_bytes != source->n_bytes || (source->data == NULL && n_bytes > 0 && params->of == NULL)) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "parameter '%.80s': no data, or %llu bytes do not fit shape and type", name,
                      (unsigned long long)source->n_bytes);
  }
  char *text = cpu_pool_array(&params->pool, strlen(name) + 1, 1);
  int64_t *shape = CPU_POOL_ARRAY(&params->pool, int64_t, source->rank);
  if (text == NULL || shape == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for parameter '%.80s'", name);
  memcpy(text, name, strlen(name) + 1);
  if (source->rank > 0)
    memcpy(shape, source->shape, source->rank * sizeof shape[0]);
  state->source = *source;
  state->source.name = text;
  state->source.shape = shape;
  state->master = CPU_LAYOUT_MASTER;
  return OPIPE_OK;
}

opipe_status cpu_params_new(opipe_device *device, uint32_t n, opipe_params **out_params,
                            opipe_error *err) {
  opipe_params *params = cpu_acquire(device->host, sizeof *params, "parameter set", err);
  if (params == NULL)
    return OPIPE_E_NOMEM;
  params->device = device;
  cpu_pool_init(&params->pool, device->host);
  params->states = CPU_POOL_ARRAY(&params->pool, param_state, n);
  if (params->states == NULL) {
    cpu_params_free(params);
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for a set of %u parameters", n);
  }
  *out_params = params;
  return OPIPE_OK;
}

static opipe_status create_set(opipe_device *device, const opipe_param_source *sources, uint32_t n,
                               bool owned, opipe_params **out_params, opipe_error *err) {
  const opipe_status known = opipe_check_sources(sources, n, err);
  if (known < 0)
    return known;
  opipe_params *params = NULL;
  opipe_status status = cpu_params_new(device, n, &params, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    params->n = i + 1;
    params->owned = owned;
    status = cpu_params_take(params, i, &sources[i], err);
  }
  if (status < 0) {
    cpu_params_free(params);
    return status;
  }
  params->owned = owned;
  *out_params = params;
  return OPIPE_OK;
}

opipe_status cpu_params_create(opipe_device *device, const opipe_param_source *sources, uint32_t n,
                               opipe_params **out_params, opipe_error *err) {
  return create_set(device, sources, n, false, out_params, err);
}

opipe_status cpu_params_create_owned(opipe_device *device, const opipe_param_source *sources,
                                     uint32_t n, opipe_params **out_params, opipe_error *err) {
  return create_set(device, sources, n, true, out_params, err);
}

void cpu_params_free(opipe_params *params) {
  if (params == NULL)
    return;
  for (uint32_t i = 0; params->states != NULL && i < params->n; ++i) {
    param_state *state = &params->states[i];
    if (is_mapped(params, state))
      count_mapped(params, state, false);
    for (uint32_t kind = 0; kind < CPU_LAYOUT_COUNT; ++kind)
      free_bytes(params, state->copies[kind].buffer.data, state->copies[kind].buffer.n_bytes);
    free_bytes(params, state->own, state->own_bytes);
  }
  cpu_params_free_packed(params);
  const opipe_host *host = params->device->host;
  cpu_pool_release(&params->pool);
  cpu_release(host, params, sizeof *params);
}

/* The parameter must be what the program was compiled for. */
opipe_status cpu_params_match(const opipe_program *program, const cpu_layout *layout,
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

opipe_status cpu_params_alloc_copy(opipe_params *params, uint32_t slot, uint32_t kind,
                                   uint64_t n_bytes, opipe_error *err) {
  opipe_buffer *buffer = &params->states[slot].copies[kind].buffer;
  CPU_TRY(alloc_bytes(params, n_bytes, &buffer->data, &buffer->n_bytes, err));
  buffer->device = params->device;
  buffer->kind = OPIPE_BUFFER_PARAMS;
  if (params->owned || params->of != NULL)
    ++params->version; /* the master may be another copy now; else programs may be running */
  return OPIPE_OK;
}

/* A dense copy of what the parameter holds now. */
static opipe_status own_dense(opipe_params *params, param_state *state, opipe_error *err) {
  const void *held = cpu_params_dense(state);
  const uint64_t n_bytes = state->source.n_bytes;
  if (state->own != NULL)
    return OPIPE_OK;
  CPU_TRY(alloc_bytes(params, n_bytes, &state->own, &state->own_bytes, err));
  const cpu_exec exec = cpu_alone(&params->device->exec);
  cpu_layout_fill(params->device, &exec, CPU_LAYOUT_COPY, &state->source, held, state->own);
  return OPIPE_OK;
}

static opipe_status make_copy(opipe_params *params, const cpu_layout *layout, opipe_error *err) {
  const uint32_t slot = layout->slot;
  const uint32_t kind = layout->kind;
  const uint64_t n_bytes = layout->n_bytes;
  if (kind == CPU_LAYOUT_CODES)
    return cpu_params_pack(params, layout->matrix, err);
  param_state *state = &params->states[slot];
  param_copy *copy = &state->copies[kind == CPU_LAYOUT_MASTER ? 0 : kind];
  if (kind == CPU_LAYOUT_MASTER) {
    state->followed = true;
    return OPIPE_OK;
  }
  if (copy->present)
    return OPIPE_OK;
  if (params->owned)
    return cpu_owned_make_copy(params, slot, kind, n_bytes, err);
  if (kind == CPU_LAYOUT_RAW) {
    if (params->device->copies)
      CPU_TRY(own_dense(params, state, err));
    copy->present = true;
    if (is_mapped(params, state))
      count_mapped(params, state, true);
    return OPIPE_OK;
  }
  CPU_TRY(cpu_params_alloc_copy(params, slot, kind, n_bytes, err));
  const cpu_exec exec = cpu_take_exec(params->device);
  cpu_layout_fill(params->device, &exec, kind, &state->source, cpu_params_dense(state),
                  copy->buffer.data);
  cpu_give_exec(params->device, &exec);
  copy->present = true;
  return OPIPE_OK;
}

opipe_status cpu_params_prepare(opipe_params *params, const opipe_program *program,
                                opipe_error *err) {
  if (params->of != NULL)
    return cpu_gradients_prepare(params, program, err);
  for (uint32_t i = 0; i < program->n_layouts; ++i)
    CPU_TRY(cpu_params_match(program, &program->layouts[i], params, err));
  for (uint32_t i = 0; i < program->n_layouts; ++i) {
    const cpu_layout *layout = &program->layouts[i];
    const opipe_status status = make_copy(params, layout, err);
    if (status < 0 && err != NULL) {
      char text[sizeof err->message];
      (void)snprintf(text, sizeof text, "%s", err->message);
      opipe_fail(err, status, "parameter '%.80s': %s", params->states[layout->slot].source.name,
                 text);
    }
    CPU_TRY(status);
  }
  return OPIPE_OK;
}

static opipe_status clone_state(opipe_params *copy, uint32_t slot, const param_state *state,
                                opipe_error *err) {
  param_state *fresh = &copy->states[slot];
  if (state->own != NULL) {
    CPU_TRY(alloc_bytes(copy, state->own_bytes, &fresh->own, &fresh->own_bytes, err));
    memcpy(fresh->own, state->own, (size_t)state->own_bytes);
  }
  fresh->dirty = state->dirty;
  fresh->followed = state->followed;
  fresh->master = state->master;
  for (uint32_t kind = 0; kind < CPU_LAYOUT_COUNT; ++kind) {
    const param_copy *from = &state->copies[kind];
    param_copy *to = &fresh->copies[kind];
    if (!from->present)
      continue;
    if (from->buffer.data != NULL) {
      CPU_TRY(cpu_params_alloc_copy(copy, slot, kind, from->buffer.n_bytes, err));
      memcpy(to->buffer.data, from->buffer.data, (size_t)from->buffer.n_bytes);
    }
    to->present = true;
  }
  if (is_mapped(copy, fresh))
    count_mapped(copy, fresh, true);
  return OPIPE_OK;
}

opipe_status cpu_params_clone(const opipe_params *params, opipe_params **out_params,
                              opipe_error *err) {
  opipe_params *copy = NULL;
  opipe_status status = cpu_params_new(params->device, params->n, &copy, err);
  if (status < 0)
    return status;
  copy->owned = params->owned;
  copy->of = params->of;
  for (uint32_t i = 0; status >= 0 && i < params->n; ++i) {
    copy->n = i + 1;
    status = cpu_params_take(copy, i, &params->states[i].source, err);
    if (status >= 0)
      status = clone_state(copy, i, &params->states[i], err);
  }
  if (status >= 0)
    status = cpu_params_clone_packed(copy, params, err);
  if (status < 0) {
    cpu_params_free(copy);
    return status;
  }
  *out_params = copy;
  return OPIPE_OK;
}

opipe_status cpu_params_check(const opipe_params *params, uint32_t slot, uint64_t n_bytes,
                              const char *what, opipe_error *err) {
  if (slot >= params->n)
    return opipe_fail(err, OPIPE_E_INVALID, "%s: slot %u of a set of %u", what, slot, params->n);
  const opipe_param_source *source = &params->states[slot].source;
  if (n_bytes != source->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s: parameter '%.80s' has %llu bytes, not %llu", what,
                      source->name, (unsigned long long)source->n_bytes,
                      (unsigned long long)n_bytes);
  }
  return OPIPE_OK;
}

opipe_status cpu_params_write(opipe_params *params, uint32_t slot, const void *src,
                              uint64_t n_bytes, opipe_error *err) {
  CPU_TRY(cpu_params_check(params, slot, n_bytes, "params_write", err));
  param_state *state = &params->states[slot];
  if (params->owned)
    return cpu_owned_write(params, slot, src, err);
  if (state->own == NULL) {
    const bool mapped = is_mapped(params, state);
    CPU_TRY(alloc_bytes(params, n_bytes, &state->own, &state->own_bytes, err));
    if (mapped)
      count_mapped(params, state, false);
  }
  if (n_bytes > 0)
    memcpy(state->own, src, (size_t)n_bytes);
  state->dirty = true;
  ++params->version;
  return OPIPE_OK;
}

opipe_status cpu_params_read(const opipe_params *params, uint32_t slot, void *dst, uint64_t n_bytes,
                             opipe_error *err) {
  CPU_TRY(cpu_params_check(params, slot, n_bytes, "params_read", err));
  if (params->owned)
    cpu_owned_read(params, slot, dst);
  else if (n_bytes > 0)
    memcpy(dst, cpu_params_dense(&params->states[slot]), (size_t)n_bytes);
  return OPIPE_OK;
}

opipe_status cpu_params_commit(opipe_params *params, opipe_error *err) {
  for (uint32_t i = 0; params->owned && params->of == NULL && i < params->n; ++i)
    CPU_TRY(cpu_owned_settle(params, i, err));
  cpu_params_repack(params);
  const cpu_exec exec = cpu_take_exec(params->device);
  for (uint32_t i = 0; i < params->n; ++i) {
    param_state *state = &params->states[i];
    for (uint32_t kind = CPU_LAYOUT_RAW + 1; state->dirty && kind < CPU_LAYOUT_COUNT; ++kind) {
      if (state->copies[kind].present) {
        cpu_layout_fill(params->device, &exec, kind, &state->source, state->own,
                        state->copies[kind].buffer.data);
      }
    }
    state->dirty = false;
  }
  cpu_give_exec(params->device, &exec);
  return OPIPE_OK;
}
