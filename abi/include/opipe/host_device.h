/* SPDX-License-Identifier: Apache-2.0 */
/* For plugin writers: a ready-made device in host memory. Header only; every plugin gets its own
 * copy.
 *
 * Defines the types opipe_device, opipe_buffer, opipe_queue, opipe_event, opipe_params,
 * opipe_program and opipe_binding, and functions for every slot of opipe_backend that handles them,
 * for devices whose memory is the host's, whose calls return when their work is done, and which use
 * parameters in place. The plugin writes device_count, device_query, device_open (around
 * opipe_host_device_open), support, compile (around opipe_host_program_new) and run. To get it,
 * define OPIPE_HELPERS_HOST_DEVICE before including opipe/helpers.h, or include this header.
 */
#ifndef OPIPE_HOST_DEVICE_H
#define OPIPE_HOST_DEVICE_H

#include "helpers.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPIPE_HOST_ALIGN 64u

struct opipe_device {
  const opipe_host *host;
  opipe_meter meter;
};
struct opipe_buffer {
  opipe_device *device;
  void *data;
  uint64_t n_bytes;
  uint32_t kind;
  uint32_t imported; /* 1: `data` belongs to somebody else */
};
struct opipe_queue {
  opipe_device *device;
};
struct opipe_event {
  opipe_device *device;
  opipe_sync_event event;
};
struct opipe_params {
  opipe_device *device;
  const opipe_param_source *sources;
  uint64_t n;
};

/* Zeroed memory from the host's allocator, NULL when there is none; and its release. */
static inline void *opipe_host_new(const opipe_host *host, size_t n_bytes) {
  void *data = host->realloc(host->ctx, NULL, 0, n_bytes != 0 ? n_bytes : 1, 16);
  if (data != NULL)
    memset(data, 0, n_bytes);
  return data;
}
static inline void opipe_host_delete(const opipe_host *host, void *data, size_t n_bytes) {
  if (data != NULL)
    host->realloc(host->ctx, data, n_bytes != 0 ? n_bytes : 1, 0, 16);
}
static inline opipe_status opipe_host_no_memory(opipe_error *err, const char *what) {
  return opipe_fail(err, OPIPE_E_NOMEM, "the host has no memory for %s", what);
}

/* Opens device 0 of an instance with the host services `host`; options are refused. */
static inline opipe_status opipe_host_device_open(const opipe_host *host,
                                                  const opipe_device_params *params,
                                                  opipe_device **out_device, opipe_error *err) {
  if (params->index != 0)
    return opipe_fail(err, OPIPE_E_NOTFOUND, "there is no device %u, there is 1", params->index);
  if (OPIPE_HAS(params, opipe_device_params, options) && params->options != NULL &&
      params->options[0] != '\0')
    return opipe_fail(err, OPIPE_E_INVALID, "the device has no option '%s'", params->options);
  opipe_device *device = (opipe_device *)opipe_host_new(host, sizeof *device);
  if (device == NULL)
    return opipe_host_no_memory(err, "a device");
  device->host = host;
  device->meter.cap_bytes = params->memory_bytes;
  *out_device = device;
  return OPIPE_OK;
}
static inline void opipe_host_device_close(opipe_device *device) {
  if (device != NULL)
    opipe_host_delete(device->host, device, sizeof *device);
}
static inline opipe_status opipe_host_device_usage(opipe_device *device,
                                                   opipe_device_usage *io_usage, opipe_error *err) {
  return opipe_meter_read(&device->meter, io_usage, err);
}

static inline opipe_status opipe_host_buffer_alloc(opipe_device *device, uint64_t n_bytes,
                                                   uint32_t kind, opipe_buffer **out_buffer,
                                                   opipe_error *err) {
  void *data = NULL;
  opipe_buffer *buffer = (opipe_buffer *)opipe_host_new(device->host, sizeof *buffer);
  if (buffer == NULL)
    return opipe_host_no_memory(err, "a buffer");
  const opipe_status status =
      opipe_host_alloc(device->host, &device->meter, kind, &n_bytes, OPIPE_HOST_ALIGN, &data, err);
  if (status < 0) {
    opipe_host_delete(device->host, buffer, sizeof *buffer);
    return status;
  }
  buffer->device = device;
  buffer->data = data;
  buffer->n_bytes = n_bytes;
  buffer->kind = kind;
  *out_buffer = buffer;
  return OPIPE_OK;
}
static inline void opipe_host_buffer_free(opipe_buffer *buffer) {
  if (buffer != NULL) {
    opipe_device *device = buffer->device;
    if (buffer->imported == 0) {
      opipe_host_free(device->host, &device->meter, buffer->kind, buffer->data, buffer->n_bytes,
                      OPIPE_HOST_ALIGN);
    }
    opipe_host_delete(device->host, buffer, sizeof *buffer);
  }
}
/* Is there memory at `native` that could be a buffer? Errors: INVALID. */
static inline opipe_status opipe_host_check_import(uint64_t native, uint64_t n_bytes,
                                                   uint64_t align, opipe_error *err) {
  if (native != 0 && native % align == 0 && native <= UINTPTR_MAX &&
      n_bytes <= UINTPTR_MAX - native)
    return OPIPE_OK;
  return opipe_fail(
      err, OPIPE_E_INVALID, "buffer_import: %llu bytes at 0x%llx, which must be a multiple of %llu",
      (unsigned long long)n_bytes, (unsigned long long)native, (unsigned long long)align);
}
static inline opipe_status opipe_host_buffer_import(opipe_device *device, uint64_t native,
                                                    uint64_t n_bytes, opipe_buffer **out_buffer,
                                                    opipe_error *err) {
  const opipe_status status = opipe_host_check_import(native, n_bytes, OPIPE_HOST_ALIGN, err);
  if (status < 0)
    return status;
  opipe_buffer *buffer = (opipe_buffer *)opipe_host_new(device->host, sizeof *buffer);
  if (buffer == NULL)
    return opipe_host_no_memory(err, "a buffer");
  buffer->device = device;
  buffer->data = (void *)(uintptr_t)native;
  buffer->n_bytes = n_bytes;
  buffer->imported = 1;
  *out_buffer = buffer;
  return OPIPE_OK;
}
static inline opipe_status opipe_host_buffer_host(opipe_buffer *buffer, void **out_data,
                                                  opipe_error *err) {
  (void)err;
  *out_data = buffer->data;
  return OPIPE_OK;
}
/* Address of a region's first byte. */
static inline void *opipe_host_at(const opipe_region *region) {
  return (char *)region->buffer->data + region->offset_bytes;
}

static inline opipe_status opipe_host_queue_open(opipe_device *device, opipe_queue **out_queue,
                                                 opipe_error *err) {
  opipe_queue *queue = (opipe_queue *)opipe_host_new(device->host, sizeof *queue);
  if (queue == NULL)
    return opipe_host_no_memory(err, "a queue");
  queue->device = device;
  *out_queue = queue;
  return OPIPE_OK;
}
static inline void opipe_host_queue_close(opipe_queue *queue) {
  if (queue != NULL)
    opipe_host_delete(queue->device->host, queue, sizeof *queue);
}
static inline opipe_status opipe_host_event_create(opipe_device *device, opipe_event **out_event,
                                                   opipe_error *err) {
  opipe_event *event = (opipe_event *)opipe_host_new(device->host, sizeof *event);
  if (event == NULL)
    return opipe_host_no_memory(err, "an event");
  event->device = device;
  *out_event = event;
  return OPIPE_OK;
}
static inline void opipe_host_event_destroy(opipe_event *event) {
  if (event != NULL)
    opipe_host_delete(event->device->host, event, sizeof *event);
}
static inline opipe_status opipe_host_event_record(opipe_queue *queue, opipe_event *event,
                                                   opipe_error *err) {
  (void)queue;
  (void)err;
  opipe_sync_event_record(&event->event);
  return OPIPE_OK;
}
static inline opipe_status opipe_host_event_wait(opipe_queue *queue, opipe_event *event,
                                                 opipe_error *err) {
  (void)queue;
  (void)err;
  return opipe_sync_event_poll(&event->event);
}
static inline opipe_status opipe_host_event_poll(opipe_event *event, opipe_error *err) {
  (void)err;
  return opipe_sync_event_poll(&event->event);
}
static inline opipe_status opipe_host_event_sync(opipe_event *event, uint64_t timeout_ns,
                                                 opipe_error *err) {
  (void)timeout_ns;
  (void)err;
  return opipe_sync_event_poll(&event->event);
}

static inline opipe_status opipe_host_check_region(const opipe_region *region, opipe_error *err) {
  if (region->offset_bytes > region->buffer->n_bytes ||
      region->n_bytes > region->buffer->n_bytes - region->offset_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "a region of %llu bytes at %llu lies outside its buffer of %llu",
                      (unsigned long long)region->n_bytes, (unsigned long long)region->offset_bytes,
                      (unsigned long long)region->buffer->n_bytes);
  }
  return OPIPE_OK;
}
static inline opipe_status opipe_host_write(opipe_queue *queue, const opipe_region *dst,
                                            const void *src, opipe_error *err) {
  (void)queue;
  const opipe_status status = opipe_host_check_region(dst, err);
  if (status == OPIPE_OK && dst->n_bytes != 0)
    memcpy(opipe_host_at(dst), src, (size_t)dst->n_bytes);
  return status;
}
static inline opipe_status opipe_host_read(opipe_queue *queue, void *dst, const opipe_region *src,
                                           opipe_error *err) {
  (void)queue;
  const opipe_status status = opipe_host_check_region(src, err);
  if (status == OPIPE_OK && src->n_bytes != 0)
    memcpy(dst, opipe_host_at(src), (size_t)src->n_bytes);
  return status;
}
static inline opipe_status opipe_host_copy(opipe_queue *queue, const opipe_region *dst,
                                           const opipe_region *src, opipe_error *err) {
  (void)queue;
  opipe_status status = opipe_host_check_region(dst, err);
  if (status == OPIPE_OK)
    status = opipe_host_check_region(src, err);
  if (status == OPIPE_OK && dst->n_bytes != src->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "a copy of %llu bytes to a region of %llu",
                      (unsigned long long)src->n_bytes, (unsigned long long)dst->n_bytes);
  }
  if (status == OPIPE_OK && dst->n_bytes != 0)
    memmove(opipe_host_at(dst), opipe_host_at(src), (size_t)dst->n_bytes);
  return status;
}

/* Parameters used in place: every layout has key 0 and takes no device memory. */
static inline opipe_status opipe_host_params_create(opipe_device *device,
                                                    const opipe_param_source *sources, uint32_t n,
                                                    opipe_params **out_params, opipe_error *err) {
  const opipe_status known = opipe_check_sources(sources, n, err);
  if (known < 0)
    return known;
  opipe_params *params = (opipe_params *)opipe_host_new(device->host, sizeof *params);
  if (params == NULL)
    return opipe_host_no_memory(err, "a parameter set");
  params->device = device;
  params->sources = sources;
  params->n = n;
  *out_params = params;
  return OPIPE_OK;
}
static inline void opipe_host_params_free(opipe_params *params) {
  if (params != NULL)
    opipe_host_delete(params->device->host, params, sizeof *params);
}
static inline opipe_status opipe_host_params_prepare(opipe_params *params,
                                                     const opipe_program *program,
                                                     opipe_error *err) {
  (void)params;
  (void)program;
  (void)err;
  return OPIPE_OK;
}
static inline opipe_status opipe_host_params_clone(const opipe_params *params,
                                                   opipe_params **out_params, opipe_error *err) {
  return opipe_host_params_create(params->device, params->sources, (uint32_t)params->n, out_params,
                                  err);
}
static inline opipe_status opipe_host_params_write(opipe_params *params, uint32_t slot,
                                                   const void *src, uint64_t n_bytes,
                                                   opipe_error *err) {
  (void)params;
  (void)src;
  (void)n_bytes;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "parameter %u is used where it lies and cannot be written", slot);
}
static inline opipe_status opipe_host_params_read(const opipe_params *params, uint32_t slot,
                                                  void *dst, uint64_t n_bytes, opipe_error *err) {
  if (slot >= params->n || n_bytes != params->sources[slot].n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "parameter %u (of %u) does not have %llu bytes", slot,
                      (unsigned)params->n, (unsigned long long)n_bytes);
  }
  if (n_bytes != 0)
    memcpy(dst, params->sources[slot].data, (size_t)n_bytes);
  return OPIPE_OK;
}
static inline opipe_status opipe_host_params_commit(opipe_params *params, opipe_error *err) {
  (void)params;
  (void)err;
  return OPIPE_OK;
}
/* program_params for a graph whose parameters are all used in place. */
static inline opipe_status opipe_host_graph_params(const opipe_graph *graph,
                                                   opipe_param_layout *out_layouts,
                                                   uint32_t *io_count, opipe_error *err) {
  const uint32_t room = *io_count;
  uint32_t n = 0;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (graph->values[v].role != OPIPE_VALUE_PARAMETER)
      continue;
    if (n < room)
      opipe_param_layout_put(out_layouts, n, graph->values[v].slot, 0, 0, graph->values[v].n_bytes);
    ++n;
  }
  *io_count = n;
  return n <= room || room == 0
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_LIMIT, "%u layouts, room for %u", n, room);
}

/* Programs that give each temporary value a place of its own in the arena, bound to a table of
 * addresses. A larger backend places values by lifetime and has its own type. */
struct opipe_program {
  opipe_device *device;
  const opipe_graph *graph;
  uint64_t arena_bytes;
};
struct opipe_binding {
  opipe_device *device;
  const opipe_graph *graph;
  void **values; /* [graph->n_values] address of each value's first byte */
};

static inline uint64_t opipe_host_padded(uint64_t n_bytes) {
  return (n_bytes + OPIPE_HOST_ALIGN - 1) & ~(uint64_t)(OPIPE_HOST_ALIGN - 1);
}
/* For compile, after every node is known to be supported. */
static inline opipe_status opipe_host_program_new(opipe_device *device, const opipe_graph *graph,
                                                  opipe_program **out_program, opipe_error *err) {
  const opipe_status known = opipe_check_graph(graph, err);
  if (known < 0)
    return known;
  opipe_program *program = (opipe_program *)opipe_host_new(device->host, sizeof *program);
  if (program == NULL)
    return opipe_host_no_memory(err, "a program");
  program->device = device;
  program->graph = graph;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if (value->role == OPIPE_VALUE_SCALAR || value->role == OPIPE_VALUE_GRADIENT) {
      opipe_host_delete(device->host, program, sizeof *program);
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "value '%s' has role %u, of training",
                        value->name, value->role);
    }
    if (value->role == OPIPE_VALUE_TEMP)
      program->arena_bytes += opipe_host_padded(graph->values[v].n_bytes);
  }
  *out_program = program;
  return OPIPE_OK;
}
static inline void opipe_host_program_free(opipe_program *program) {
  if (program != NULL)
    opipe_host_delete(program->device->host, program, sizeof *program);
}
static inline opipe_status opipe_host_program_info(const opipe_program *program,
                                                   opipe_program_info *io_info, opipe_error *err) {
  opipe_program_info info;
  (void)err;
  memset(&info, 0, sizeof info);
  info.struct_size = io_info->struct_size;
  info.n_kernels = program->graph->n_nodes;
  info.temp_bytes = program->arena_bytes;
  info.arena_bytes = program->arena_bytes;
  memcpy(io_info, &info, info.struct_size < sizeof info ? info.struct_size : sizeof info);
  return OPIPE_OK;
}
static inline opipe_status opipe_host_program_params(const opipe_program *program,
                                                     opipe_param_layout *out_layouts,
                                                     uint32_t *io_count, opipe_error *err) {
  return opipe_host_graph_params(program->graph, out_layouts, io_count, err);
}
static inline void opipe_host_binding_free(opipe_binding *binding) {
  if (binding != NULL) {
    opipe_host_delete(binding->device->host, binding->values,
                      binding->graph->n_values * sizeof(void *));
    opipe_host_delete(binding->device->host, binding, sizeof *binding);
  }
}
static inline opipe_status opipe_host_bind(opipe_device *device, const opipe_bind_params *params,
                                           opipe_binding **out_binding, opipe_error *err) {
  const opipe_graph *graph = params->program->graph;
  uint64_t used = 0;
  if (params->arena.n_bytes < params->program->arena_bytes ||
      params->n_boundaries < graph->n_boundaries) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "the program needs an arena of %llu bytes and %u boundaries, %llu and %u were given",
        (unsigned long long)params->program->arena_bytes, graph->n_boundaries,
        (unsigned long long)params->arena.n_bytes, params->n_boundaries);
  }
  opipe_binding *binding = (opipe_binding *)opipe_host_new(device->host, sizeof *binding);
  void **values = (void **)opipe_host_new(device->host, graph->n_values * sizeof(void *));
  if (binding == NULL || values == NULL) {
    opipe_host_delete(device->host, binding, sizeof *binding);
    opipe_host_delete(device->host, values, graph->n_values * sizeof(void *));
    return opipe_host_no_memory(err, "a binding");
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if (value->role == OPIPE_VALUE_CONSTANT) {
      values[v] = (void *)(uintptr_t)value->data;
    } else if (value->role == OPIPE_VALUE_PARAMETER) {
      values[v] = (void *)(uintptr_t)params->params->sources[value->slot].data;
    } else if (value->role == OPIPE_VALUE_TEMP) {
      values[v] = (char *)opipe_host_at(&params->arena) + used;
      used += opipe_host_padded(value->n_bytes);
    } else {
      values[v] = opipe_host_at(&params->boundaries[value->slot]);
    }
  }
  binding->device = device;
  binding->graph = graph;
  binding->values = values;
  *out_binding = binding;
  return OPIPE_OK;
}

/* Slots of opipe_backend from device_close on: those before the programs', and those from the
 * parameters' on. */
#define OPIPE_HOST_MEMORY_SLOTS                                                  \
  opipe_host_device_close, opipe_host_device_usage, opipe_host_buffer_alloc,     \
      opipe_host_buffer_free, opipe_host_buffer_host, opipe_host_queue_open,     \
      opipe_host_queue_close, opipe_host_event_create, opipe_host_event_destroy, \
      opipe_host_event_record, opipe_host_event_wait, opipe_host_event_poll,     \
      opipe_host_event_sync, opipe_host_write, opipe_host_read, opipe_host_copy
#define OPIPE_HOST_PARAMS_SLOTS                                                 \
  opipe_host_params_create, opipe_host_params_free, opipe_host_params_prepare,  \
      opipe_host_params_clone, opipe_host_params_write, opipe_host_params_read, \
      opipe_host_params_commit
/* Slots after `run`, for a backend that cannot train and shares no device with others. */
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_HOST_NO_TRAINING_SLOTS                                                              \
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
      NULL, NULL, opipe_host_buffer_import, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
      NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
#elif OPIPE_TARGET_MINOR >= 3
#define OPIPE_HOST_NO_TRAINING_SLOTS                                                              \
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
      NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
#else
#define OPIPE_HOST_NO_TRAINING_SLOTS \
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
#endif

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_HOST_DEVICE_H */
