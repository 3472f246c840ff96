/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other GPUs of the process (peer access), and of other processes (the driver's handles
 * of memory and events). A handle goes with what opening it is checked by: the driver's version,
 * the GPU, the size. A process cannot open its own handles: there its address is taken.
 */
#include <unistd.h>

#include "cuda.h"

/* ---- GPUs of the process ---- */

static bool can_reach(const cuda_driver *driver, CUdevice device, CUdevice other) {
  int can = 0;
  return device == other || (driver->peer_can(&can, device, other) == CUDA_OK && can != 0);
}

opipe_status cuda_device_reach(opipe_instance *self, uint32_t index, uint32_t other,
                               uint32_t *out_reach, opipe_error *err) {
  const cuda_driver *driver = &self->libraries->driver;
  CUdevice here = 0, there = 0;
  uint32_t reach = 0;
  CUDA_TRY(cuda_check_index(self, index, "device_reach", err));
  CUDA_TRY(cuda_check_index(self, other, "device_reach", err));
  if (driver->device_get(&here, (int)index) != CUDA_OK ||
      driver->device_get(&there, (int)other) != CUDA_OK) {
    return opipe_fail(err, OPIPE_E_DEVICE, "backend cuda: devices %u and %u cannot be described",
                      index, other);
  }
  if (can_reach(driver, here, there))
    reach |= OPIPE_REACH_PEER;
  if (reach != 0 && cuda_attribute(driver, here, CUDA_ATTRIBUTE_IPC) != 0 &&
      cuda_attribute(driver, there, CUDA_ATTRIBUTE_IPC) != 0)
    reach |= OPIPE_REACH_SHARED;
  *out_reach = reach;
  return OPIPE_OK;
}

static pthread_mutex_t peers_lock = PTHREAD_MUTEX_INITIALIZER; /* of all places' peers */

opipe_status cuda_peer_take(const opipe_device *device, CUdevice ordinal, CUcontext *out_peer,
                            opipe_error *err) {
  cuda_place *place = device->place;
  const cuda_driver *driver = place->driver;
  CUcontext peer = NULL;
  opipe_status status = OPIPE_OK;
  if (ordinal < 0 || ordinal >= CUDA_PLACES || !can_reach(driver, place->ordinal, ordinal)) {
    return opipe_fail(err, OPIPE_E_INVALID, "cuda:%u does not reach memory of GPU %d", place->index,
                      (int)ordinal);
  }
  (void)pthread_mutex_lock(&peers_lock);
  if (place->peers[ordinal] == NULL) {
    status = cuda_result(place, driver->context_retain(&peer, ordinal), "a peer's context", err);
    if (status >= 0) {
      const CUresult enabled = driver->peer_enable(peer, 0);
      if (enabled != CUDA_PEER_ALREADY_ENABLED)
        status = cuda_result(place, enabled, "peer access", err);
      if (status < 0)
        (void)driver->context_release(ordinal);
      else
        place->peers[ordinal] = peer;
    }
  }
  if (status >= 0)
    *out_peer = place->peers[ordinal];
  (void)pthread_mutex_unlock(&peers_lock);
  return status;
}

void cuda_peers_give(cuda_place *place) {
  (void)pthread_mutex_lock(&peers_lock);
  for (int i = 0; i < CUDA_PLACES; ++i) {
    if (place->peers[i] != NULL)
      (void)place->driver->context_release(i);
    place->peers[i] = NULL;
  }
  (void)pthread_mutex_unlock(&peers_lock);
}

/* ---- handles ---- */

_Static_assert(sizeof(CUipcMemHandle) == sizeof(((opipe_shared *)NULL)->handle), "a handle's size");
_Static_assert(sizeof(CUipcEventHandle) == sizeof(((opipe_shared *)NULL)->handle),
               "a handle's size");

static opipe_status check_shares(const opipe_device *device, const char *what, opipe_error *err) {
  const cuda_place *place = device->place;
  return cuda_attribute(place->driver, place->ordinal, CUDA_ATTRIBUTE_IPC) != 0
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_UNSUPPORTED,
                          "cuda:%u: %s: the GPU shares nothing with other processes", place->index,
                          what);
}

/* All but the handle. */
static opipe_shared describe(const opipe_device *device, uint64_t native, uint64_t n_bytes) {
  const cuda_place *place = device->place;
  opipe_shared shared;
  memset(&shared, 0, sizeof shared);
  shared.n_bytes = n_bytes;
  shared.process = (uint64_t)getpid();
  shared.native = native;
  shared.driver = (uint64_t)place->libraries->driver_version;
  cuda_uuid_text(place->driver, place->ordinal, shared.uuid, sizeof shared.uuid);
  return shared;
}

/* The driver may refuse what it has promised, in a container for example: that is no fault of the
 * device. */
static opipe_status refused(const opipe_device *device, CUresult result, const char *what,
                            opipe_error *err) {
  const opipe_status status = cuda_result(device->place, result, what, err);
  return status == OPIPE_E_DEVICE && !cuda_is_fatal(result) ? OPIPE_E_UNSUPPORTED : status;
}

opipe_status cuda_buffer_share(opipe_buffer *buffer, opipe_shared *out_shared, opipe_error *err) {
  opipe_device *device = buffer->device;
  CUipcMemHandle handle;
  if (buffer->imported || buffer->opened)
    return opipe_fail(err, OPIPE_E_STATE, "buffer_share: the memory is somebody else's");
  CUDA_TRY(cuda_enter(device, "buffer_share", err));
  opipe_status status = check_shares(device, "buffer_share", err);
  if (status >= 0) {
    status = refused(device, device->place->driver->ipc_memory_get(&handle, buffer->address),
                     "buffer_share", err);
  }
  if (status >= 0) {
    buffer->shared = true;
    *out_shared = describe(device, buffer->address, buffer->n_bytes);
    memcpy(out_shared->handle, &handle, sizeof handle);
  } else if (err != NULL) {
    err->status = status;
  }
  cuda_leave(device);
  return status;
}

void cuda_buffer_unshare(opipe_buffer *buffer, uint32_t all_closed) {
  if (buffer != NULL && buffer->shared)
    buffer->kept = buffer->kept || all_closed == 0;
}

/* The GPU of that name, as it is numbered here. */
static opipe_status find_gpu(const cuda_place *place, const char *uuid, CUdevice *out_ordinal,
                             opipe_error *err) {
  int count = 0;
  (void)place->driver->device_count(&count);
  for (int i = 0; i < count; ++i) {
    char text[sizeof((opipe_shared *)NULL)->uuid];
    CUdevice device = 0;
    if (place->driver->device_get(&device, i) != CUDA_OK)
      continue;
    cuda_uuid_text(place->driver, device, text, sizeof text);
    if (strcmp(text, uuid) == 0) {
      *out_ordinal = device;
      return OPIPE_OK;
    }
  }
  return opipe_fail(err, OPIPE_E_INVALID,
                    "cuda:%u: memory of %.47s, which this process does not see", place->index,
                    uuid);
}

/* May it be opened here? *out_ordinal: its GPU. */
static opipe_status check_shared(const opipe_device *device, const opipe_shared *shared,
                                 const char *what, CUdevice *out_ordinal, opipe_error *err) {
  const cuda_place *place = device->place;
  if (memchr(shared->uuid, '\0', sizeof shared->uuid) == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "cuda:%u: %s: the handle names no device", place->index,
                      what);
  }
  if (shared->driver != (uint64_t)place->libraries->driver_version) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "cuda:%u: %s: process %llu has a driver of CUDA %llu, this one of %d",
                      place->index, what, (unsigned long long)shared->process,
                      (unsigned long long)shared->driver, place->libraries->driver_version);
  }
  CUDA_TRY(find_gpu(place, shared->uuid, out_ordinal, err));
  return can_reach(place->driver, place->ordinal, *out_ordinal)
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID,
                          "cuda:%u: %s: it does not reach memory of %s (GPU %d)", place->index,
                          what, shared->uuid, (int)*out_ordinal);
}

/* A handle may outlive what it names, and the driver has no word of its own for that. */
static opipe_status opened(const opipe_device *device, CUresult result, const char *what,
                           const opipe_shared *shared, opipe_error *err) {
  char text[96];
  (void)snprintf(text, sizeof text, "%s of process %llu (freed there, or has it ended?)", what,
                 (unsigned long long)shared->process);
  return cuda_result(device->place, result, text, err);
}

static opipe_status open_memory(opipe_device *device, const opipe_shared *shared, uint64_t n_bytes,
                                CUdeviceptr *out_address, opipe_error *err) {
  CUdevice ordinal = 0;
  CUipcMemHandle handle;
  CUDA_TRY(check_shared(device, shared, "buffer_open", &ordinal, err));
  if (n_bytes == 0 || n_bytes > shared->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "cuda:%u: buffer_open: %llu bytes of a buffer of %llu",
                      device->place->index, (unsigned long long)n_bytes,
                      (unsigned long long)shared->n_bytes);
  }
  memcpy(&handle, shared->handle, sizeof handle);
  const CUresult result =
      device->place->driver->ipc_memory_open(out_address, handle, CUDA_IPC_LAZY_PEERS);
  return opened(device, result, "buffer_open", shared, err);
}

opipe_status cuda_buffer_open(opipe_device *device, const opipe_shared *shared, uint64_t n_bytes,
                              opipe_buffer **out_buffer, opipe_error *err) {
  CUdeviceptr address = 0;
  if (shared->process == (uint64_t)getpid())
    return cuda_buffer_import(device, shared->native, n_bytes, out_buffer, err);
  CUDA_TRY(cuda_enter(device, "buffer_open", err));
  const opipe_status status = open_memory(device, shared, n_bytes, &address, err);
  opipe_buffer *buffer = NULL;
  if (status >= 0) {
    buffer = opipe_zeroed(device->host, "buffer", sizeof *buffer, _Alignof(opipe_buffer), err);
    if (buffer == NULL)
      (void)device->place->driver->ipc_memory_close(address);
  }
  cuda_leave(device);
  if (status < 0 || buffer == NULL)
    return status < 0 ? status : OPIPE_E_NOMEM;
  *buffer =
      (opipe_buffer){.device = device, .address = address, .n_bytes = n_bytes, .opened = true};
  *out_buffer = buffer;
  return OPIPE_OK;
}

opipe_status cuda_event_create_shared(opipe_device *device, opipe_event **out_event,
                                      opipe_shared *out_shared, opipe_error *err) {
  opipe_event *event = NULL;
  CUipcEventHandle handle;
  CUDA_TRY(cuda_enter(device, "event_create_shared", err));
  opipe_status status = check_shares(device, "event_create_shared", err);
  if (status >= 0) {
    status =
        cuda_event_make(device, CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_INTERPROCESS, &event, err);
  }
  if (status >= 0) {
    status = refused(device, device->place->driver->ipc_event_get(&handle, event->event),
                     "event_create_shared", err);
  }
  if (status >= 0) {
    *out_shared = describe(device, (uintptr_t)event->event, 0);
    memcpy(out_shared->handle, &handle, sizeof handle);
    *out_event = event;
  } else {
    cuda_event_destroy(event);
    if (err != NULL)
      err->status = status;
  }
  cuda_leave(device);
  return status;
}

opipe_status cuda_event_open(opipe_device *device, const opipe_shared *shared,
                             opipe_event **out_event, opipe_error *err) {
  CUdevice ordinal = 0;
  CUipcEventHandle handle;
  CUevent native = NULL;
  if (shared->process == (uint64_t)getpid())
    return cuda_event_import(device, shared->native, out_event, err);
  opipe_event *event =
      opipe_zeroed(device->host, "event", sizeof *event, _Alignof(opipe_event), err);
  if (event == NULL)
    return OPIPE_E_NOMEM;
  memcpy(&handle, shared->handle, sizeof handle);
  opipe_status status = cuda_enter(device, "event_open", err);
  if (status >= 0) {
    status = check_shared(device, shared, "event_open", &ordinal, err);
    if (status >= 0) {
      status = opened(device, device->place->driver->ipc_event_open(&native, handle), "event_open",
                      shared, err);
    }
    cuda_leave(device);
  }
  if (status < 0) {
    opipe_free(device->host, event, sizeof *event, _Alignof(opipe_event));
    return status;
  }
  *event = (opipe_event){.device = device, .event = native, .opened = true};
  *out_event = event;
  return OPIPE_OK;
}
