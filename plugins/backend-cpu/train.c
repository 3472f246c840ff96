/* SPDX-License-Identifier: Apache-2.0 */
/* Sets whose values change: owned parameter sets, gradient sets, and the element-wise work of an
 * optimizer step.
 *
 * The master of a parameter is the copy of the highest layout that holds fp32 elements, chosen when
 * it is first asked for; an accumulator has its layout. So a gradient set has one accumulator per
 * parameter, there is nothing to fold, and the optimizer walks through four arrays side by side.
 */
#include "ops/loop.h"
#include "params.h"

/* ---- masters ---- */

static bool holds_f32(const param_state *state, uint32_t kind) {
  return state->copies[kind].present &&
         (state->source.dtype == OPIPE_FLOAT || kind >= CPU_LAYOUT_F32) &&
         state->source.dtype != OPIPE_DOUBLE;
}

/* The copy that holds the truth; CPU_LAYOUT_MASTER: there is none. */
static uint32_t truth_of(const param_state *state) {
  if (state->master != CPU_LAYOUT_MASTER)
    return state->master;
  for (uint32_t kind = CPU_LAYOUT_COUNT; kind > 0; --kind) {
    if (holds_f32(state, kind - 1))
      return kind - 1;
  }
  for (uint32_t kind = 0; kind < CPU_LAYOUT_COUNT; ++kind) {
    if (state->copies[kind].present)
      return kind;
  }
  return CPU_LAYOUT_MASTER;
}

static uint32_t choose_master(param_state *state) {
  const uint32_t kind = truth_of(state);
  if (state->master == CPU_LAYOUT_MASTER && kind != CPU_LAYOUT_MASTER && holds_f32(state, kind))
    state->master = kind; /* once: programs may be bound while it is read */
  return state->master;
}

/* Elements [first, first + n) in dense order of what stands in a layout of fp32. */
static void fetch_dense(const param_state *state, uint32_t kind, uint64_t first, uint64_t n,
                        float *out) {
  const float *data = state->copies[kind].buffer.data;
  if (kind < CPU_LAYOUT_PANEL) {
    memcpy(out, data + first, (size_t)n * sizeof *out);
    return;
  }
  const uint64_t columns = (uint64_t)state->source.shape[1];
  const uint64_t rows = (uint64_t)state->source.shape[0];
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t row = (first + i) / columns;
    const uint64_t column = (first + i) % columns;
    const uint64_t k = kind == CPU_LAYOUT_PANEL ? row : column;
    const uint64_t j = kind == CPU_LAYOUT_PANEL ? column : row;
    const uint64_t depth = kind == CPU_LAYOUT_PANEL ? rows : columns;
    out[i] = data[j / CPU_PANEL * CPU_PANEL * depth + k * CPU_PANEL + j % CPU_PANEL];
  }
}

/* Dense bytes of the source's own type from the copy of layout `kind`. */
static void export_typed(const cpu_exec *exec, const param_state *state, uint32_t kind, void *dst) {
  enum { CHUNK = 1024 };
  const opipe_param_source *source = &state->source;
  const uint32_t size = cpu_dtype_bytes(source->dtype);
  uint64_t n = 0;
  if (!holds_f32(state, kind)) {
    if (source->n_bytes > 0)
      memcpy(dst, state->copies[kind].buffer.data, (size_t)source->n_bytes);
    return;
  }
  if (source->dtype == OPIPE_FLOAT) {
    cpu_layout_export(exec, kind, source->shape, source->rank, state->copies[kind].buffer.data,
                      dst);
    return;
  }
  _Alignas(CPU_ALIGN_BYTES) float chunk[CHUNK];
  _Alignas(CPU_ALIGN_BYTES) uint16_t half[CHUNK];
  (void)opipe_shape_elems(source->shape, source->rank, &n);
  for (uint64_t i = 0; i < n; i += CHUNK) {
    const uint64_t count = n - i < CHUNK ? n - i : CHUNK;
    const cpu_exec alone = cpu_alone(exec);
    fetch_dense(state, kind, i, count, chunk);
    cpu_convert(&alone, CPU_F32, chunk, cpu_storage_type(source->dtype), half, (int64_t)count);
    memcpy((char *)dst + i * size, half, (size_t)(count * size));
  }
}

/* PANEL <-> PANEL_T, a block of 64 by 64 at a time. */
static void turn_panels(const cpu_exec *exec, const opipe_param_source *source, uint32_t from_kind,
                        const float *from, float *to) {
  const bool turned = from_kind == CPU_LAYOUT_PANEL_T;
  const int64_t depth = source->shape[turned ? 1 : 0]; /* rows of a panel of `from` */
  const int64_t width = source->shape[turned ? 0 : 1];
  for (int64_t j = 0; j < width; j += CPU_PANEL) {
    for (int64_t k = 0; k < depth; k += CPU_PANEL) {
      const int64_t rows = depth - k < CPU_PANEL ? depth - k : CPU_PANEL;
      const int64_t columns = width - j < CPU_PANEL ? width - j : CPU_PANEL;
      cpu_transpose(exec, from + j * depth + k * CPU_PANEL, CPU_PANEL, rows, columns,
                    to + k * width + j * CPU_PANEL, CPU_PANEL);
    }
  }
}

/* Makes the copy of layout `kind` anew from the one of layout `from`. */
static void derive_copy(const cpu_exec *exec, param_state *state, uint32_t from, uint32_t kind) {
  const opipe_param_source *source = &state->source;
  void *data = state->copies[kind].buffer.data;
  const void *truth = state->copies[from].buffer.data;
  if (kind <= CPU_LAYOUT_COPY)
    export_typed(exec, state, from, data);
  else if (from < CPU_LAYOUT_PANEL && holds_f32(state, from))
    cpu_layout_import(exec, kind, source->shape, source->rank, truth, data);
  else if (kind == CPU_LAYOUT_F32 && holds_f32(state, from))
    cpu_layout_export(exec, from, source->shape, source->rank, truth, data);
  else if (from >= CPU_LAYOUT_PANEL)
    turn_panels(exec, source, from, truth, data);
  else
    cpu_layout_fill(NULL, exec, kind, source, truth, data); /* from a dense copy of half type */
}

/* ---- copies of an owned set ---- */

opipe_status cpu_owned_make_copy(opipe_params *params, uint32_t slot, uint32_t kind,
                                 uint64_t n_bytes, opipe_error *err) {
  param_state *state = &params->states[slot];
  const uint32_t truth = truth_of(state);
  const uint64_t wanted = kind == CPU_LAYOUT_RAW ? state->source.n_bytes : n_bytes;
  CPU_TRY(cpu_params_alloc_copy(params, slot, kind, wanted > 0 ? wanted : CPU_ALIGN_BYTES, err));
  opipe_buffer *buffer = &state->copies[kind].buffer;
  cpu_prefer_huge_pages(buffer->data, buffer->n_bytes);
  memset(buffer->data, 0, (size_t)buffer->n_bytes);
  state->copies[kind].present = true;
  const cpu_exec exec = cpu_take_exec(params->device);
  if (truth != CPU_LAYOUT_MASTER) {
    derive_copy(&exec, state, truth, kind);
  } else {
    cpu_layout_fill(params->device, &exec, kind == CPU_LAYOUT_RAW ? CPU_LAYOUT_COPY : kind,
                    &state->source, cpu_params_dense(state), buffer->data);
  }
  cpu_give_exec(params->device, &exec);
  return OPIPE_OK;
}

opipe_status cpu_owned_settle(opipe_params *params, uint32_t slot, opipe_error *err) {
  param_state *state = &params->states[slot];
  if (!state->followed)
    return OPIPE_OK;
  if (truth_of(state) == CPU_LAYOUT_MASTER) {
    const uint64_t n_bytes = cpu_align_up(state->source.n_bytes, CPU_ALIGN_BYTES);
    CPU_TRY(cpu_owned_make_copy(params, slot, CPU_LAYOUT_COPY, n_bytes, err));
  }
  (void)choose_master(state);
  return OPIPE_OK;
}

opipe_status cpu_owned_write(opipe_params *params, uint32_t slot, const void *src,
                             opipe_error *err) {
  param_state *state = &params->states[slot];
  const opipe_param_source *source = &state->source;
  bool any = false;
  const cpu_exec exec = cpu_take_exec(params->device);
  for (uint32_t kind = 0; kind < CPU_LAYOUT_COUNT; ++kind) {
    if (state->copies[kind].present) {
      cpu_layout_fill(params->device, &exec, kind == CPU_LAYOUT_RAW ? CPU_LAYOUT_COPY : kind,
                      source, src, state->copies[kind].buffer.data);
      any = true;
    }
  }
  cpu_give_exec(params->device, &exec);
  if (any || source->n_bytes == 0)
    return OPIPE_OK;
  if (state->own == NULL) {
    state->own_bytes = source->n_bytes;
    CPU_TRY(opipe_host_alloc(params->device->host, &params->device->meter, OPIPE_BUFFER_PARAMS,
                             &state->own_bytes, CPU_ALIGN_BYTES, &state->own, err));
  }
  memcpy(state->own, src, (size_t)source->n_bytes);
  return OPIPE_OK;
}

void cpu_owned_read(const opipe_params *params, uint32_t slot, void *dst) {
  const param_state *state = &params->states[slot];
  const uint32_t kind = truth_of(state);
  if (state->source.n_bytes == 0)
    return;
  if (kind == CPU_LAYOUT_MASTER && params->of != NULL) {
    memset(dst, 0, (size_t)state->source.n_bytes); /* nothing accumulates in it */
  } else if (kind == CPU_LAYOUT_MASTER) {
    memcpy(dst, cpu_params_dense(state), (size_t)state->source.n_bytes);
  } else {
    const cpu_exec exec = cpu_take_exec(params->device);
    export_typed(&exec, state, kind, dst);
    cpu_give_exec(params->device, &exec);
  }
}

/* ---- gradient sets ---- */

opipe_status cpu_gradients_create(opipe_params *params, opipe_params **out_gradients,
                                  opipe_error *err) {
  opipe_params *gradients = NULL;
  if (!params->owned || params->of != NULL)
    return opipe_fail(err, OPIPE_E_STATE, "gradients_create: the set is not an owned one");
  for (uint32_t i = 0; i < params->n; ++i)
    CPU_TRY(cpu_owned_settle(params, i, err));
  opipe_status status = cpu_params_new(params->device, params->n, &gradients, err);
  for (uint32_t i = 0; status >= 0 && i < params->n; ++i) {
    opipe_param_source source = params->states[i].source;
    uint64_t n = 0;
    gradients->owned = true;
    gradients->of = params;
    gradients->n = i + 1;
    (void)opipe_shape_elems(source.shape, source.rank, &n);
    source.dtype = OPIPE_FLOAT;
    source.data = NULL;
    if (__builtin_mul_overflow(n, 4ull, &source.n_bytes)) {
      status = opipe_fail(err, OPIPE_E_LIMIT, "parameter '%.80s' is too large", source.name);
      break;
    }
    status = cpu_params_take(gradients, i, &source, err);
  }
  if (status < 0) {
    cpu_params_free(gradients);
    return status;
  }
  gradients->owned = true;
  gradients->of = params;
  *out_gradients = gradients;
  return OPIPE_OK;
}

static opipe_status prepare_accumulator(opipe_params *gradients, const cpu_layout *layout,
                                        opipe_error *err) {
  param_state *weight = &gradients->of->states[layout->slot];
  param_state *state = &gradients->states[layout->slot];
  uint64_t n_bytes = 0;
  if (state->master != CPU_LAYOUT_MASTER)
    return OPIPE_OK;
  CPU_TRY(cpu_owned_settle(gradients->of, layout->slot, err));
  if (choose_master(weight) == CPU_LAYOUT_MASTER) {
    /* no program reads it, or as half type only: a dense master of its own */
    if (!cpu_layout_bytes(CPU_LAYOUT_F32, weight->source.shape, weight->source.rank, OPIPE_FLOAT,
                          &n_bytes) ||
        weight->source.dtype == OPIPE_DOUBLE || !cpu_is_float(weight->source.dtype)) {
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "parameter '%.80s' is %s: it has no master",
                        weight->source.name, opipe_dtype_name(weight->source.dtype));
    }
    CPU_TRY(cpu_owned_make_copy(gradients->of, layout->slot, CPU_LAYOUT_F32, n_bytes, err));
    (void)choose_master(weight);
  }
  const uint32_t kind = weight->master;
  n_bytes = weight->copies[kind].buffer.n_bytes;
  CPU_TRY(cpu_params_alloc_copy(gradients, layout->slot, kind, n_bytes, err));
  opipe_buffer *buffer = &state->copies[kind].buffer;
  cpu_prefer_huge_pages(buffer->data, buffer->n_bytes);
  memset(buffer->data, 0, (size_t)buffer->n_bytes);
  state->copies[kind].present = true;
  state->master = kind;
  return OPIPE_OK;
}

opipe_status cpu_gradients_prepare(opipe_params *gradients, const opipe_program *program,
                                   opipe_error *err) {
  for (uint32_t i = 0; i < program->n_gradients; ++i)
    CPU_TRY(cpu_params_match(program, &program->gradients[i], gradients, err));
  for (uint32_t i = 0; i < program->n_gradients; ++i)
    CPU_TRY(prepare_accumulator(gradients, &program->gradients[i], err));
  return OPIPE_OK;
}

static opipe_status check_slot(const opipe_params *params, uint32_t slot, const char *what,
                               opipe_error *err) {
  return slot < params->n && params->owned
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID, "%s: slot %u of %s set of %u", what, slot,
                          params->owned ? "a" : "a read-only", params->n);
}

opipe_status cpu_params_master(opipe_params *params, uint32_t slot, opipe_region *out_region,
                               opipe_error *err) {
  CPU_TRY(check_slot(params, slot, "params_master", err));
  CPU_TRY(cpu_owned_settle(params, slot, err));
  param_state *state = &params->states[slot];
  const uint32_t kind = choose_master(state);
  memset(out_region, 0, sizeof *out_region);
  if (kind != CPU_LAYOUT_MASTER) {
    const param_state *weight = params->of != NULL ? &params->of->states[slot] : state;
    out_region->buffer = &state->copies[kind].buffer;
    out_region->n_bytes = weight->copies[kind].buffer.n_bytes;
  }
  return OPIPE_OK;
}

opipe_status cpu_gradients_fold(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                opipe_error *err) {
  (void)queue;
  return check_slot(gradients, slot, "gradients_fold", err);
}

opipe_status cpu_params_refresh(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                opipe_error *err) {
  CPU_TRY(check_slot(params, slot, "params_refresh", err));
  param_state *state = &params->states[slot];
  const uint32_t master = truth_of(state);
  (void)queue;
  const cpu_exec exec = cpu_take_exec(params->device);
  for (uint32_t kind = 0; master != CPU_LAYOUT_MASTER && kind < CPU_LAYOUT_COUNT; ++kind) {
    if (kind != master && state->copies[kind].present)
      derive_copy(&exec, state, master, kind);
  }
  cpu_give_exec(params->device, &exec);
  return OPIPE_OK;
}

/* The dense fp32 region on the other side of an export or import. */
static opipe_status dense_region(opipe_params *params, uint32_t slot, const opipe_region *region,
                                 const char *what, float **out_data, uint32_t *out_kind,
                                 opipe_error *err) {
  void *data = NULL;
  uint64_t n = 0;
  CPU_TRY(check_slot(params, slot, what, err));
  param_state *state = &params->states[slot];
  CPU_TRY(cpu_region_data(region, what, &data, err));
  *out_kind = choose_master(state);
  if (*out_kind == CPU_LAYOUT_MASTER) {
    return opipe_fail(err, OPIPE_E_STATE, "%s: parameter '%.80s' has no master", what,
                      state->source.name);
  }
  if (!opipe_shape_elems(state->source.shape, state->source.rank, &n) ||
      region->n_bytes < n * sizeof(float) || (uintptr_t)data % CPU_ALIGN_BYTES != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "%s: '%.80s' needs %llu aligned bytes, the region has %llu", what,
                      state->source.name, (unsigned long long)n * sizeof(float),
                      (unsigned long long)region->n_bytes);
  }
  *out_data = data;
  return OPIPE_OK;
}

opipe_status cpu_params_export(opipe_params *params, opipe_queue *queue, uint32_t slot,
                               const opipe_region *dst, opipe_error *err) {
  float *data = NULL;
  uint32_t kind = 0;
  (void)queue;
  CPU_TRY(dense_region(params, slot, dst, "params_export", &data, &kind, err));
  const param_state *state = &params->states[slot];
  const cpu_exec exec = cpu_take_exec(params->device);
  cpu_layout_export(&exec, kind, state->source.shape, state->source.rank,
                    state->copies[kind].buffer.data, data);
  cpu_give_exec(params->device, &exec);
  return OPIPE_OK;
}

opipe_status cpu_params_import(opipe_params *params, opipe_queue *queue, uint32_t slot,
                               const opipe_region *src, opipe_error *err) {
  float *data = NULL;
  uint32_t kind = 0;
  (void)queue;
  CPU_TRY(dense_region(params, slot, src, "params_import", &data, &kind, err));
  const param_state *state = &params->states[slot];
  const cpu_exec exec = cpu_take_exec(params->device);
  cpu_layout_import(&exec, kind, state->source.shape, state->source.rank, data,
                    state->copies[kind].buffer.data);
  cpu_give_exec(params->device, &exec);
  return OPIPE_OK;
}
