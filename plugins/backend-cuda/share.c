/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU that the host uses too: handles of the driver's in both directions, pinned memory, a word
 * when work is done, and queues that are given up.
 */
#include "share.h"

/* ---- handles ---- */

opipe_status cuda_native(opipe_device *device, uint32_t what, const void *object,
                         uint64_t *out_native, opipe_error *err) {
  const opipe_device *owner = device;
  uint64_t native = 0;
  if ((what == OPIPE_NATIVE_DEVICE || what == OPIPE_NATIVE_KIND) != (object == NULL)) {
    return opipe_fail(err, OPIPE_E_INVALID, "native: what %u %s an object", what,
                      object == NULL ? "needs" : "takes no");
  }
  if (what == OPIPE_NATIVE_DEVICE) {
    native = (uint64_t)device->place->ordinal;
  } else if (what == OPIPE_NATIVE_KIND) {
    native = OPIPE_DL_CUDA;
  } else if (what == OPIPE_NATIVE_QUEUE) {
    const opipe_queue *queue = object;
    owner = queue->device;
    native = (uintptr_t)queue->stream;
  } else if (what == OPIPE_NATIVE_BUFFER) {
    const opipe_buffer *buffer = object;
    owner = buffer->device;
    native = buffer->address;
  } else if (what == OPIPE_NATIVE_EVENT) {
    const opipe_event *event = object;
    if (event->imported || event->opened) {
      return opipe_fail(err, OPIPE_E_STATE, "native: the event was %s",
                        event->opened ? "opened" : "imported");
    }
    owner = event->device;
    native = (uintptr_t)event->event;
  } else {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "native: %u is no kind of object", what);
  }
  if (owner != device)
    return opipe_fail(err, OPIPE_E_INVALID, "native: the object is of another opening");
  *out_native = native;
  return OPIPE_OK;
}

/* Asks the driver which device's memory an address is. Pinned host memory belongs to one
 * as well. *out_peer: the context of another device, which this one reaches; NULL: it is this one.
 */
static opipe_status check_address(const opipe_device *device, uint64_t native, CUcontext *out_peer,
                                  opipe_error *err) {
  const cuda_place *place = device->place;
  int ordinal = 0;
  unsigned int type = CUDA_MEMORY_DEVICE;
  CUresult result = place->driver->pointer_attribute(
      &ordinal, (CUpointer_attribute)CUDA_POINTER_DEVICE_ORDINAL, native);
  if (result == CUDA_OK) {
    result = place->driver->pointer_attribute(&type, (CUpointer_attribute)CUDA_POINTER_MEMORY_TYPE,
                                              native);
  }
  if (result == CUDA_OK && type == CUDA_MEMORY_HOST) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "buffer_import: 0x%llx is pinned host memory, not of GPU %d "
                      "(cuda:%u)",
                      (unsigned long long)native, place->ordinal, place->index);
  }
  if (result == CUDA_OK && ordinal == place->ordinal)
    return OPIPE_OK;
  if (result == CUDA_OK && cuda_peer_take(device, ordinal, out_peer, NULL) >= 0)
    return OPIPE_OK;
  if (result == CUDA_OK) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "buffer_import: 0x%llx is memory of GPU %d, not of %d (cuda:%u), which does "
                      "not reach it",
                      (unsigned long long)native, ordinal, place->ordinal, place->index);
  }
  return result == CUDA_INVALID_VALUE
             ? opipe_fail(err, OPIPE_E_INVALID, "buffer_import: 0x%llx is no memory of CUDA's",
                          (unsigned long long)native)
             : cuda_result(device->place, result, "buffer_import", err);
}

opipe_status cuda_buffer_import(opipe_device *device, uint64_t native, uint64_t n_bytes,
                                opipe_buffer **out_buffer, opipe_error *err) {
  if (native == 0 || native % CUDA_ALIGN != 0 || n_bytes == 0 ||
      n_bytes > (uint64_t)INT64_MAX - native) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "buffer_import: %llu bytes at 0x%llx, which must be a multiple of %d",
                      (unsigned long long)n_bytes, (unsigned long long)native, CUDA_ALIGN);
  }
  CUcontext peer = NULL;
  CUDA_TRY(cuda_enter(device, "buffer_import", err));
  const opipe_status status = check_address(device, native, &peer, err);
  cuda_leave(device);
  if (status < 0)
    return status;
  opipe_buffer *buffer =
      opipe_zeroed(device->host, "buffer", sizeof *buffer, _Alignof(opipe_buffer), err);
  if (buffer == NULL)
    return OPIPE_E_NOMEM;
  *buffer = (opipe_buffer){
      .device = device, .address = native, .n_bytes = n_bytes, .peer = peer, .imported = true};
  *out_buffer = buffer;
  return OPIPE_OK;
}

opipe_status cuda_event_import(opipe_device *device, uint64_t native, opipe_event **out_event,
                               opipe_error *err) {
  if (native == 0)
    return opipe_fail(err, OPIPE_E_INVALID, "event_import: no event");
  CUDA_TRY(cuda_check_owner(device->owner, "event_import", err));
  opipe_event *event =
      opipe_zeroed(device->host, "event", sizeof *event, _Alignof(opipe_event), err);
  if (event == NULL)
    return OPIPE_E_NOMEM;
  *event = (opipe_event){.device = device, .event = (CUevent)(uintptr_t)native, .imported = true};
  *out_event = event;
  return OPIPE_OK;
}

/* ---- pinned memory ---- */

typedef struct cuda_host_block {
  struct cuda_host_block *next;
  void *data;
  uint64_t n_bytes;
} cuda_host_block;

opipe_status cuda_host_alloc(opipe_device *device, uint64_t n_bytes, void **out_data,
                             opipe_error *err) {
  void *data = NULL;
  if (n_bytes == 0 || n_bytes > INT64_MAX)
    return opipe_fail(err, OPIPE_E_INVALID, "host_alloc: %llu bytes", (unsigned long long)n_bytes);
  CUDA_TRY(cuda_enter(device, "host_alloc", err));
  cuda_host_block *block =
      opipe_zeroed(device->host, "pinned memory", sizeof *block, _Alignof(cuda_host_block), err);
  const opipe_status status = block == NULL
                                  ? OPIPE_E_NOMEM
                                  : cuda_result(device->place,
                                                device->place->driver->host_alloc(
                                                    &data, (size_t)n_bytes, CUDA_HOST_PORTABLE),
                                                "host_alloc", err);
  cuda_leave(device);
  if (status < 0) {
    if (block != NULL)
      opipe_free(device->host, block, sizeof *block, _Alignof(cuda_host_block));
    return status;
  }
  (void)pthread_mutex_lock(&device->small_lock);
  *block = (cuda_host_block){device->host_blocks, data, n_bytes};
  device->host_blocks = block;
  (void)pthread_mutex_unlock(&device->small_lock);
  (void)__atomic_add_fetch(&device->inner.host_alloced, n_bytes, __ATOMIC_RELAXED);
  *out_data = data;
  return OPIPE_OK;
}

void cuda_host_free(opipe_device *device, void *data) {
  cuda_host_block **link = &device->host_blocks;
  if (data == NULL)
    return;
  (void)pthread_mutex_lock(&device->small_lock);
  while (*link != NULL && (*link)->data != data)
    link = &(*link)->next;
  cuda_host_block *block = *link;
  if (block != NULL)
    *link = block->next;
  (void)pthread_mutex_unlock(&device->small_lock);
  if (block == NULL)
    return;
  if (cuda_enter(device, "host_free", NULL) >= 0) {
    if (cuda_may_give(device))
      (void)device->place->driver->host_free(data);
    cuda_leave(device);
  }
  (void)__atomic_sub_fetch(&device->inner.host_alloced, block->n_bytes, __ATOMIC_RELAXED);
  opipe_free(device->host, block, sizeof *block, _Alignof(cuda_host_block));
}

opipe_status cuda_host_register(opipe_device *device, void *data, uint64_t n_bytes,
                                opipe_error *err) {
  CUDA_TRY(cuda_enter(device, "host_register", err));
  const CUresult result =
      device->place->driver->host_register(data, (size_t)n_bytes, CUDA_HOST_PORTABLE);
  const opipe_status status =
      result == CUDA_ALREADY_REGISTERED || result == CUDA_INVALID_VALUE
          ? opipe_fail(err, OPIPE_E_INVALID, "host_register: %llu bytes%s",
                       (unsigned long long)n_bytes,
                       result == CUDA_ALREADY_REGISTERED ? ", of which some are registered" : "")
          : cuda_result(device->place, result, "host_register", err);
  cuda_leave(device);
  return status;
}

void cuda_host_unregister(opipe_device *device, void *data) {
  if (data == NULL || cuda_enter(device, "host_unregister", NULL) < 0)
    return;
  if (cuda_may_give(device))
    (void)device->place->driver->host_unregister(data);
  cuda_leave(device);
}

/* ---- queues ---- */

/* It is in no list of the opening's: nobody waits for a stream that is not ours. */
opipe_status cuda_queue_import(opipe_device *device, uint64_t native, opipe_queue **out_queue,
                               opipe_error *err) {
  CUDA_TRY(cuda_check_owner(device->owner, "queue_import", err));
  if (native == CUDA_STREAM_PER_THREAD) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "queue_import: %d is CU_STREAM_PER_THREAD, which is another stream on each "
                      "thread: give one that cuStreamCreate made, or 0",
                      (int)CUDA_STREAM_PER_THREAD);
  }
  opipe_queue *queue =
      opipe_zeroed(device->host, "queue", sizeof *queue, _Alignof(opipe_queue), err);
  if (queue == NULL)
    return OPIPE_E_NOMEM;
  *queue = (opipe_queue){.device = device, .stream = (CUstream)(uintptr_t)native, .imported = true};
  *out_queue = queue;
  return OPIPE_OK;
}

opipe_status cuda_event_signal(opipe_queue *queue, uint64_t native, opipe_error *err) {
  opipe_device *device = queue->device;
  if (native == 0)
    return opipe_fail(err, OPIPE_E_INVALID, "event_signal: no event");
  CUDA_TRY(cuda_enter_queue(queue, "event_signal", err));
  const opipe_status status = cuda_result(
      device->place, device->place->driver->event_record((CUevent)(uintptr_t)native, queue->stream),
      "event_signal", err);
  return cuda_leave_queue(queue, status, err);
}

opipe_status cuda_enter_queue(const opipe_queue *queue, const char *what, opipe_error *err) {
  if (queue->imported) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "cuda:%u: %s: the queue was imported: it takes events alone",
                      queue->device->place->index, what);
  }
  return cuda_enter_stream(queue, what, err);
}

opipe_status cuda_enter_stream(const opipe_queue *queue, const char *what, opipe_error *err) {
  if (__atomic_load_n(&queue->aborted, __ATOMIC_ACQUIRE) != 0) {
    return opipe_fail(err, OPIPE_E_CANCELLED, "cuda:%u: %s: the queue was given up",
                      queue->device->place->index, what);
  }
  return cuda_enter(queue->device, what, err);
}

void cuda_name_run(const opipe_queue *queue, char *out, size_t room) {
  const bool has_runs = queue != NULL && !queue->imported;
  const unsigned long long n =
      has_runs ? (unsigned long long)__atomic_load_n(&queue->n_runs, __ATOMIC_RELAXED) : 0;
  const unsigned long long n_done =
      has_runs ? (unsigned long long)__atomic_load_n(&queue->n_done, __ATOMIC_RELAXED) : 0;
  if (n_done < n)
    (void)snprintf(out, room, "in run %llu of the queue, or behind it", n_done + 1);
  else if (n > 0)
    (void)snprintf(out, room, "behind run %llu, the last of the queue, or on another one", n);
  else
    (void)snprintf(out, room, "on another queue, or before its first run");
}

opipe_status cuda_leave_queue(const opipe_queue *queue, opipe_status status, opipe_error *err) {
  char what[96];
  if (status < 0 && err != NULL && err->domain == OPIPE_DOMAIN_CUDA && !queue->device->blocking &&
      cuda_is_fatal((CUresult)err->native)) {
    cuda_name_run(queue, what, sizeof what);
    (void)cuda_result(queue->device->place, (CUresult)err->native, what, err);
  }
  cuda_leave(queue->device);
  return status;
}

opipe_status cuda_event_notify(opipe_queue *queue, void (*fn)(void *ctx), void *ctx,
                               opipe_error *err) {
  opipe_device *device = queue->device;
  if (fn == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "event_notify: no function");
  CUDA_TRY(cuda_enter_queue(queue, "event_notify", err));
  const opipe_status status =
      cuda_result(device->place, device->place->driver->launch_host(queue->stream, fn, ctx),
                  "event_notify", err);
  return cuda_leave_queue(queue, status, err);
}

opipe_status cuda_queue_abort(opipe_queue *queue, opipe_error *err) {
  CUDA_TRY(cuda_check_owner(queue->device->owner, "queue_abort", err));
  if (__atomic_exchange_n(&queue->aborted, 1u, __ATOMIC_ACQ_REL) == 0 && !queue->imported)
    cuda_give_up(queue);
  return OPIPE_OK;
}
