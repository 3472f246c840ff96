/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins that are the project's own with faults in them: a backend over "cpu", a transport over
 * "local". Their objects are the real ones', every slot asks first whether this call of it goes
 * wrong. A slot's number in a fault is its place in the table.
 */
#ifndef TESTS_FUZZ_PLUGIN_DEVICES_H
#define TESTS_FUZZ_PLUGIN_DEVICES_H

#include "tests/fuzz/plugin_bytes.h"

struct opipe_instance {
  opipe_instance *real;
  void *table;
};

static const opipe_backend *real_backend;
static const opipe_transport *real_transport;

#define AT(type, slot) ((uint32_t)((offsetof(opipe_##type, slot) - 8) / sizeof(void *)))
#define PASS(type, slot, params, args)           \
  static opipe_status type##_##slot params {     \
    const fault *f = next_fault(AT(type, slot)); \
    if (fails(f))                                \
      return answer(f, err);                     \
    return named(real_##type->slot args, err);   \
  }

/* ---- backend ---- */

enum { DEVICE_BYTES = 16 << 20 };

static opipe_status backend_device_count(opipe_instance *self, uint32_t *out_count,
                                         opipe_error *err) {
  const fault *f = next_fault(AT(backend, device_count));
  return fails(f) ? answer(f, err)
                  : named(real_backend->device_count(self->real, out_count, err), err);
}

/* Flags of the real device may be denied, but flags that it lacks are not claimed. */
static void lie_of_device(const fault *f, opipe_device_info *info) {
  const uint32_t known = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  input in = f->bytes;
  switch (f->field % 8) {
    case 0:
      info->flags = (uint32_t)take_number(&in, info->flags) & (info->flags | ~known);
      break;
    case 1:
      info->memory_bytes = take_number(&in, info->memory_bytes);
      break;
    case 2:
      info->peak_flops = take_double(&in);
      break;
    case 3:
      info->bandwidth = take_double(&in);
      break;
    case 4:
      info->launch_ns = take_double(&in);
      break;
    case 5:
      info->max_threads = (uint32_t)take_number(&in, info->max_threads);
      break;
    case 6:
      info->alignment = (uint32_t)take_number(&in, info->alignment);
      break;
    default:
      memset(info->name, 'x', sizeof info->name);
      info->struct_size = (uint32_t)take_number(&in, info->struct_size);
  }
}

static opipe_status backend_device_query(opipe_instance *self, uint32_t index,
                                         opipe_device_info *io_info, opipe_error *err) {
  const fault *f = next_fault(AT(backend, device_query));
  if (fails(f))
    return answer(f, err);
  const opipe_status status =
      named(real_backend->device_query(self->real, index, io_info, err), err);
  if (status == OPIPE_OK && lies(f))
    lie_of_device(f, io_info);
  return status;
}

static opipe_status backend_device_open(opipe_instance *self, const opipe_device_params *params,
                                        opipe_device **out_device, opipe_error *err) {
  const fault *f = next_fault(AT(backend, device_open));
  return fails(f) ? answer(f, err)
                  : named(real_backend->device_open(self->real, params, out_device, err), err);
}

static opipe_status backend_device_usage(opipe_device *device, opipe_device_usage *io_usage,
                                         opipe_error *err) {
  const fault *f = next_fault(AT(backend, device_usage));
  if (fails(f))
    return answer(f, err);
  const opipe_status status = named(real_backend->device_usage(device, io_usage, err), err);
  if (status == OPIPE_OK && lies(f)) {
    const uint32_t which = f->field % (OPIPE_BUFFER_KINDS + 2);
    uint64_t *field = which < OPIPE_BUFFER_KINDS    ? &io_usage->live_bytes[which]
                      : which == OPIPE_BUFFER_KINDS ? &io_usage->mapped_bytes
                                                    : &io_usage->peak_bytes;
    input in = f->bytes;
    *field = take_number(&in, *field);
  }
  return status;
}

static opipe_status backend_buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                                         opipe_buffer **out_buffer, opipe_error *err) {
  const fault *f = next_fault(AT(backend, buffer_alloc));
  if (fails(f))
    return answer(f, err);
  if (n_bytes > DEVICE_BYTES) {
    return opipe_fail(err, OPIPE_E_LIMIT, "%s: a buffer of %llu bytes of %d", wrong.id,
                      (unsigned long long)n_bytes, DEVICE_BYTES);
  }
  return named(real_backend->buffer_alloc(device, n_bytes, kind, out_buffer, err), err);
}

static opipe_status backend_buffer_host(opipe_buffer *buffer, void **out_data, opipe_error *err) {
  const fault *f = next_fault(AT(backend, buffer_host));
  if (fails(f))
    return answer(f, err);
  const opipe_status status = named(real_backend->buffer_host(buffer, out_data, err), err);
  if (lies(f))
    *out_data = NULL;
  return status;
}

static opipe_status backend_support(opipe_device *device, const opipe_graph *graph,
                                    opipe_support *out_support, opipe_error *err) {
  const fault *f = next_fault(AT(backend, support));
  if (fails(f))
    return answer(f, err);
  const opipe_status status = named(real_backend->support(device, graph, out_support, err), err);
  if (status == OPIPE_OK && graph->n_nodes > 0 && lies(f)) {
    opipe_support *s = &out_support[f->field % graph->n_nodes];
    s->status = f->status;
    memset(s->reason, f->text == 0 ? 0xff : 'x', sizeof s->reason);
  }
  return status;
}

static opipe_status backend_program_info(const opipe_program *program, opipe_program_info *io_info,
                                         opipe_error *err) {
  const fault *f = next_fault(AT(backend, program_info));
  if (fails(f))
    return answer(f, err);
  const opipe_status status = named(real_backend->program_info(program, io_info, err), err);
  if (status == OPIPE_OK && lies(f)) {
    input in = f->bytes;
    uint64_t *fields[] = {&io_info->arena_bytes, &io_info->temp_bytes, &io_info->workspace_bytes};
    uint64_t *field = fields[f->field % OPI_COUNT(fields)];
    *field = take_number(&in, *field);
    if (f->field > 200)
      io_info->struct_size = io_info->n_kernels = (uint32_t)*field;
  }
  return status;
}

static void lie_of_layouts(const fault *f, opipe_param_layout *layouts, uint32_t room,
                           uint32_t *io_count) {
  const uint32_t n = layouts == NULL ? 0 : room < *io_count ? room : *io_count;
  input in = f->bytes;
  opipe_param_layout *l = n == 0 ? NULL : &layouts[f->field / 5 % n];
  if (l == NULL || f->field % 5 == 0)
    *io_count = (uint32_t)take_number(&in, *io_count);
  else if (f->field % 5 == 1)
    l->slot = (uint32_t)take_number(&in, l->slot);
  else if (f->field % 5 == 2)
    l->key = take_number(&in, l->key);
  else if (f->field % 5 == 3)
    l->n_bytes = take_number(&in, l->n_bytes);
  else
    l->mapped_bytes = take_number(&in, l->mapped_bytes);
}

static opipe_status ask_layouts(uint32_t slot, const opipe_program *program,
                                opipe_param_layout *out_layouts, uint32_t *io_count,
                                opipe_error *err) {
  const uint32_t room = *io_count;
  const fault *f = next_fault(slot);
  if (fails(f)) {
    input in = f->bytes;
    if (f->field % 2 == 1)
      *io_count = (uint32_t)take_number(&in, room);
    return answer(f, err);
  }
  const opipe_status status =
      slot == AT(backend, program_params)
          ? named(real_backend->program_params(program, out_layouts, io_count, err), err)
          : named(real_backend->program_gradients(program, out_layouts, io_count, err), err);
  if (lies(f))
    lie_of_layouts(f, status == OPIPE_OK ? out_layouts : NULL, room, io_count);
  return status;
}

static opipe_status backend_program_params(const opipe_program *program,
                                           opipe_param_layout *out_layouts, uint32_t *io_count,
                                           opipe_error *err) {
  return ask_layouts(AT(backend, program_params), program, out_layouts, io_count, err);
}

static opipe_status backend_program_gradients(const opipe_program *program,
                                              opipe_param_layout *out_layouts, uint32_t *io_count,
                                              opipe_error *err) {
  return ask_layouts(AT(backend, program_gradients), program, out_layouts, io_count, err);
}

PASS(backend, queue_open, (opipe_device * device, opipe_queue **out_queue, opipe_error *err),
     (device, out_queue, err))
PASS(backend, event_create, (opipe_device * device, opipe_event **out_event, opipe_error *err),
     (device, out_event, err))
PASS(backend, event_record, (opipe_queue * queue, opipe_event *event, opipe_error *err),
     (queue, event, err))
PASS(backend, event_wait, (opipe_queue * queue, opipe_event *event, opipe_error *err),
     (queue, event, err))
PASS(backend, event_poll, (opipe_event * event, opipe_error *err), (event, err))
PASS(backend, event_sync, (opipe_event * event, uint64_t timeout_ns, opipe_error *err),
     (event, timeout_ns, err))
PASS(backend, write,
     (opipe_queue * queue, const opipe_region *dst, const void *src, opipe_error *err),
     (queue, dst, src, err))
PASS(backend, read, (opipe_queue * queue, void *dst, const opipe_region *src, opipe_error *err),
     (queue, dst, src, err))
PASS(backend, copy,
     (opipe_queue * queue, const opipe_region *dst, const opipe_region *src, opipe_error *err),
     (queue, dst, src, err))
PASS(backend, compile,
     (opipe_device * device, const opipe_compile_params *params, opipe_program **out_program,
      opipe_error *err),
     (device, params, out_program, err))
PASS(backend, params_create,
     (opipe_device * device, const opipe_param_source *sources, uint32_t n,
      opipe_params **out_params, opipe_error *err),
     (device, sources, n, out_params, err))
PASS(backend, params_prepare,
     (opipe_params * params, const opipe_program *program, opipe_error *err),
     (params, program, err))
PASS(backend, params_clone,
     (const opipe_params *params, opipe_params **out_params, opipe_error *err),
     (params, out_params, err))
PASS(backend, params_write,
     (opipe_params * params, uint32_t slot, const void *src, uint64_t n_bytes, opipe_error *err),
     (params, slot, src, n_bytes, err))
PASS(backend, params_read,
     (const opipe_params *params, uint32_t slot, void *dst, uint64_t n_bytes, opipe_error *err),
     (params, slot, dst, n_bytes, err))
PASS(backend, params_commit, (opipe_params * params, opipe_error *err), (params, err))
PASS(backend, bind,
     (opipe_device * device, const opipe_bind_params *params, opipe_binding **out_binding,
      opipe_error *err),
     (device, params, out_binding, err))
PASS(backend, run,
     (opipe_binding * binding, opipe_queue *queue, const int64_t *scalars, uint32_t n_scalars,
      opipe_error *err),
     (binding, queue, scalars, n_scalars, err))
PASS(backend, params_create_owned,
     (opipe_device * device, const opipe_param_source *sources, uint32_t n,
      opipe_params **out_params, opipe_error *err),
     (device, sources, n, out_params, err))
PASS(backend, gradients_create,
     (opipe_params * params, opipe_params **out_gradients, opipe_error *err),
     (params, out_gradients, err))
PASS(backend, params_master,
     (opipe_params * params, uint32_t slot, opipe_region *out_region, opipe_error *err),
     (params, slot, out_region, err))
PASS(backend, gradients_fold,
     (opipe_params * gradients, opipe_queue *queue, uint32_t slot, opipe_error *err),
     (gradients, queue, slot, err))
PASS(backend, params_refresh,
     (opipe_params * params, opipe_queue *queue, uint32_t slot, opipe_error *err),
     (params, queue, slot, err))
PASS(backend, params_export,
     (opipe_params * params, opipe_queue *queue, uint32_t slot, const opipe_region *dst,
      opipe_error *err),
     (params, queue, slot, dst, err))
PASS(backend, params_import,
     (opipe_params * params, opipe_queue *queue, uint32_t slot, const opipe_region *src,
      opipe_error *err),
     (params, queue, slot, src, err))
PASS(backend, fill_zero, (opipe_queue * queue, const opipe_region *dst, opipe_error *err),
     (queue, dst, err))
PASS(backend, add,
     (opipe_queue * queue, const opipe_region *dst, const opipe_region *src, opipe_error *err),
     (queue, dst, src, err))
PASS(backend, sum_squares,
     (opipe_queue * queue, const opipe_region *dst, const opipe_region *src, opipe_error *err),
     (queue, dst, src, err))
PASS(backend, update, (opipe_queue * queue, const opipe_update *update, opipe_error *err),
     (queue, update, err))

static const opipe_backend false_backend = {
    .struct_size = (uint32_t)sizeof(opipe_backend),
    .device_count = backend_device_count,
    .device_query = backend_device_query,
    .device_open = backend_device_open,
    .device_usage = backend_device_usage,
    .buffer_alloc = backend_buffer_alloc,
    .buffer_host = backend_buffer_host,
    .queue_open = backend_queue_open,
    .event_create = backend_event_create,
    .event_record = backend_event_record,
    .event_wait = backend_event_wait,
    .event_poll = backend_event_poll,
    .event_sync = backend_event_sync,
    .write = backend_write,
    .read = backend_read,
    .copy = backend_copy,
    .support = backend_support,
    .compile = backend_compile,
    .program_info = backend_program_info,
    .program_params = backend_program_params,
    .params_create = backend_params_create,
    .params_prepare = backend_params_prepare,
    .params_clone = backend_params_clone,
    .params_write = backend_params_write,
    .params_read = backend_params_read,
    .params_commit = backend_params_commit,
    .bind = backend_bind,
    .run = backend_run,
    .params_create_owned = backend_params_create_owned,
    .gradients_create = backend_gradients_create,
    .program_gradients = backend_program_gradients,
    .params_master = backend_params_master,
    .gradients_fold = backend_gradients_fold,
    .params_refresh = backend_params_refresh,
    .params_export = backend_params_export,
    .params_import = backend_params_import,
    .fill_zero = backend_fill_zero,
    .add = backend_add,
    .sum_squares = backend_sum_squares,
    .update = backend_update,
};

/* ---- transport ---- */

/* As with devices: nothing is claimed that the real one cannot do. */
static void lie_of_world(const fault *f, opipe_transport_info *info) {
  const uint32_t known = OPIPE_TRANSPORT_DIRECT | OPIPE_TRANSPORT_REDUCES;
  input in = f->bytes;
  switch (f->field % 8) {
    case 0:
      info->rule = (uint32_t)take_number(&in, info->rule);
      break;
    case 1:
      info->thread_rule = (uint32_t)take_number(&in, info->thread_rule);
      break;
    case 2:
      info->flags = (uint32_t)take_number(&in, info->flags) & (info->flags | ~known);
      break;
    case 3:
      info->fence_kinds = (uint32_t)take_number(&in, info->fence_kinds);
      break;
    case 4:
      info->max_ranks = (uint32_t)take_number(&in, info->max_ranks);
      break;
    case 5:
      info->latency_ns = take_double(&in);
      break;
    case 6:
      info->bandwidth = take_double(&in);
      break;
    default:
      info->struct_size = (uint32_t)take_number(&in, info->struct_size);
  }
}

static opipe_status transport_info(opipe_instance *self, opipe_transport_info *io_info,
                                   opipe_error *err) {
  const fault *f = next_fault(AT(transport, info));
  if (fails(f))
    return answer(f, err);
  const opipe_status status = named(real_transport->info(self->real, io_info, err), err);
  if (status == OPIPE_OK && lies(f))
    lie_of_world(f, io_info);
  return status;
}

static opipe_status transport_world_info(opipe_instance *self, const char *options,
                                         opipe_transport_info *io_info, opipe_error *err) {
  const fault *f = next_fault(AT(transport, world_info));
  if (fails(f))
    return answer(f, err);
  const opipe_status status =
      named(real_transport->world_info(self->real, options, io_info, err), err);
  if (status == OPIPE_OK && lies(f))
    lie_of_world(f, io_info);
  return status;
}

static opipe_status transport_world_open(opipe_instance *self, const opipe_world_params *params,
                                         opipe_world **out_world, opipe_error *err) {
  const fault *f = next_fault(AT(transport, world_open));
  return fails(f) ? answer(f, err)
                  : named(real_transport->world_open(self->real, params, out_world, err), err);
}

PASS(transport, endpoint_open,
     (opipe_world * world, const opipe_endpoint_params *params, opipe_endpoint **out_endpoint,
      opipe_error *err),
     (world, params, out_endpoint, err))
PASS(transport, stream_open,
     (opipe_endpoint * endpoint, const opipe_stream_params *params, opipe_stream **out_stream,
      opipe_error *err),
     (endpoint, params, out_stream, err))
PASS(transport, memory_register,
     (opipe_endpoint * endpoint, opipe_buffer *buffer, uint64_t n_bytes, opipe_memory **out_memory,
      opipe_error *err),
     (endpoint, buffer, n_bytes, out_memory, err))
PASS(transport, reserve, (opipe_stream * stream, uint64_t sequence, opipe_error *err),
     (stream, sequence, err))
PASS(transport, send,
     (opipe_stream * stream, uint64_t sequence, const opipe_region *region, opipe_event *ready,
      opipe_event *done, opipe_error *err),
     (stream, sequence, region, ready, done, err))
PASS(transport, recv,
     (opipe_stream * stream, uint64_t sequence, const opipe_region *region, opipe_event *done,
      opipe_error *err),
     (stream, sequence, region, done, err))
PASS(transport, test, (opipe_stream * stream, uint64_t sequence, opipe_error *err),
     (stream, sequence, err))
PASS(transport, wait,
     (opipe_endpoint * endpoint, uint32_t seen, uint64_t timeout_ns, opipe_error *err),
     (endpoint, seen, timeout_ns, err))
PASS(transport, group_open,
     (opipe_endpoint * endpoint, const uint32_t *ranks, uint32_t n_ranks, uint64_t n_bytes,
      opipe_group **out_group, opipe_error *err),
     (endpoint, ranks, n_ranks, n_bytes, out_group, err))
PASS(transport, all_reduce,
     (opipe_group * group, uint64_t sequence, const opipe_region *region, uint64_t n_elems,
      uint32_t dtype, opipe_event *ready, opipe_event *done, opipe_error *err),
     (group, sequence, region, n_elems, dtype, ready, done, err))
PASS(transport, group_test, (opipe_group * group, uint64_t sequence, opipe_error *err),
     (group, sequence, err))

static const opipe_transport false_transport = {
    .struct_size = (uint32_t)sizeof(opipe_transport),
    .info = transport_info,
    .world_open = transport_world_open,
    .endpoint_open = transport_endpoint_open,
    .stream_open = transport_stream_open,
    .memory_register = transport_memory_register,
    .reserve = transport_reserve,
    .send = transport_send,
    .recv = transport_recv,
    .test = transport_test,
    .wait = transport_wait,
    .group_open = transport_group_open,
    .all_reduce = transport_all_reduce,
    .group_test = transport_group_test,
    .world_info = transport_world_info,
};

/* Slots that answer with no status are the real ones'. */
static void fill_void_slots(opipe_backend *backend, opipe_transport *transport) {
  if (backend != NULL) {
    backend->device_close = real_backend->device_close;
    backend->buffer_free = real_backend->buffer_free;
    backend->queue_close = real_backend->queue_close;
    backend->event_destroy = real_backend->event_destroy;
    backend->program_free = real_backend->program_free;
    backend->params_free = real_backend->params_free;
    backend->binding_free = real_backend->binding_free;
  }
  if (transport != NULL) {
    transport->world_close = real_transport->world_close;
    transport->endpoint_close = real_transport->endpoint_close;
    transport->stream_close = real_transport->stream_close;
    transport->memory_drop = real_transport->memory_drop;
    transport->doorbell = real_transport->doorbell;
    transport->ring = real_transport->ring;
    transport->notify = real_transport->notify;
    transport->group_close = real_transport->group_close;
    transport->abort = real_transport->abort;
  }
}

#endif /* TESTS_FUZZ_PLUGIN_DEVICES_H */
