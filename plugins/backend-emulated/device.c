/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and buffers: the inner backend's, under the declared cap. */
#include "emulated.h"

void *emudev_alloc(const opipe_device *device, size_t n_bytes) {
  const opipe_host *host = device->self->host;
  void *ptr = host->realloc(host->ctx, NULL, 0, n_bytes, 16);
  if (ptr != NULL)
    memset(ptr, 0, n_bytes);
  return ptr;
}

void emudev_give(const opipe_instance *self, void *ptr, size_t n_bytes) {
  if (ptr != NULL)
    (void)self->host->realloc(self->host->ctx, ptr, n_bytes, 0, 16);
}

void emudev_free(const opipe_device *device, void *ptr, size_t n_bytes) {
  emudev_give(device->self, ptr, n_bytes);
}

opipe_status emudev_nomem(size_t n_bytes, opipe_error *err) {
  return opipe_fail(err, OPIPE_E_NOMEM, "backend 'emulated': the host cannot provide %zu bytes",
                    n_bytes);
}

opipe_status emudev_device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_count = DEVICES;
  return OPIPE_OK;
}

static opipe_status check_index(uint32_t index, opipe_error *err) {
  if (index < DEVICES)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_NOTFOUND,
                    "backend 'emulated' has devices 0 to %d, %u was asked for", DEVICES - 1, index);
}

opipe_status emudev_device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                                 opipe_error *err) {
  opipe_status status = check_index(index, err);
  if (status == OPIPE_OK)
    status = self->inner->device_query(self->inner_self, 0, io_info, err);
  if (status < 0)
    return status;
  io_info->flags &= ~(uint32_t)OPIPE_DEVICE_SYNCHRONOUS;
  io_info->flags |= OPIPE_DEVICE_EMULATED;
  if (index >= HOST_DEVICES)
    io_info->flags &= ~(uint32_t)OPIPE_DEVICE_HOST_MEMORY;
  if (io_info->struct_size >= OPIPE_END(opipe_device_info, name))
    (void)snprintf(io_info->name, sizeof io_info->name, "emulated device %u", index);
  return OPIPE_OK;
}

static uint64_t smaller_cap(uint64_t a, uint64_t b) {
  if (a == 0 || b == 0)
    return a == 0 ? b : a;
  return a < b ? a : b;
}

opipe_status emudev_device_open(opipe_instance *self, const opipe_device_params *params,
                                opipe_device **out_device, opipe_error *err) {
  options wanted;
  if (params->struct_size < OPIPE_END(opipe_device_params, options)) {
    return opipe_fail(err, OPIPE_E_ABI, "device_open: struct_size %u is too small",
                      params->struct_size);
  }
  opipe_status status = check_index(params->index, err);
  if (status == OPIPE_OK)
    status = emudev_options(params->options, &wanted, err);
  if (status < 0)
    return status;
  opipe_device *device = self->host->realloc(self->host->ctx, NULL, 0, sizeof *device, 16);
  if (device == NULL)
    return emudev_nomem(sizeof *device, err);
  memset(device, 0, sizeof *device);
  device->self = self;
  device->index = params->index;
  device->options = wanted;
  opipe_device_params inner = *params;
  inner.index = 0;
  inner.memory_bytes = smaller_cap(params->memory_bytes, wanted.memory_bytes);
  inner.options = device->options.inner[0] == '\0' ? NULL : device->options.inner;
  status = self->inner->device_open(self->inner_self, &inner, &device->inner, err);
  if (status < 0) {
    emudev_free(device, device, sizeof *device);
    return status;
  }
  *out_device = device;
  return OPIPE_OK;
}

void emudev_device_close(opipe_device *device) {
  if (device == NULL)
    return;
  device->self->inner->device_close(device->inner);
  emudev_free(device, device, sizeof *device);
}

opipe_status emudev_device_usage(opipe_device *device, opipe_device_usage *io_usage,
                                 opipe_error *err) {
  const opipe_status status = device->self->inner->device_usage(device->inner, io_usage, err);
  if (status == OPIPE_OK && OPIPE_HAS(io_usage, opipe_device_usage, host_bytes))
    io_usage->host_bytes += atomic_load(&device->host_bytes);
  return status;
}

/* Where nothing is computed, what is read is zeros and not what the memory was used for before. */
static opipe_status clear(opipe_device *device, opipe_buffer *inner, uint64_t n_bytes,
                          opipe_error *err) {
  void *data = NULL;
  const opipe_status status = device->self->inner->buffer_host(inner, &data, err);
  if (status == OPIPE_OK && data != NULL)
    memset(data, 0, (size_t)n_bytes);
  return status;
}

opipe_status emudev_buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                                 opipe_buffer **out_buffer, opipe_error *err) {
  const uint64_t count = atomic_fetch_add(&device->n_allocs, 1) + 1;
  if (count == device->options.fail_alloc) {
    return opipe_fail(err, OPIPE_E_NOMEM,
                      "emulated device: buffer %llu (%llu bytes) is refused, as its options say",
                      (unsigned long long)count, (unsigned long long)n_bytes);
  }
  opipe_buffer *buffer = emudev_alloc(device, sizeof *buffer);
  if (buffer == NULL)
    return emudev_nomem(sizeof *buffer, err);
  buffer->device = device;
  opipe_status status =
      device->self->inner->buffer_alloc(device->inner, n_bytes, kind, &buffer->inner, err);
  if (status == OPIPE_OK && !device->options.compute) {
    status = clear(device, buffer->inner, n_bytes, err);
    if (status < 0)
      device->self->inner->buffer_free(buffer->inner);
  }
  if (status < 0) {
    emudev_free(device, buffer, sizeof *buffer);
    return status;
  }
  *out_buffer = buffer;
  return OPIPE_OK;
}

void emudev_buffer_free(opipe_buffer *buffer) {
  if (buffer == NULL)
    return;
  emudev_expect_idle(buffer->device, &(target){.buffer = buffer->inner}, "buffer_free");
  buffer->device->self->inner->buffer_free(buffer->inner);
  emudev_free(buffer->device, buffer, sizeof *buffer);
}

/* Counted by nobody here, as the inner backend does not count it. */
opipe_status emudev_buffer_import(opipe_device *device, uint64_t native, uint64_t n_bytes,
                                  opipe_buffer **out_buffer, opipe_error *err) {
  const opipe_backend *inner = device->self->inner;
  if (device->index >= HOST_DEVICES || !OPIPE_HAS(inner, opipe_backend, buffer_import) ||
      inner->buffer_import == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "emulated device %u: host memory cannot be a buffer of it", device->index);
  }
  opipe_buffer *buffer = emudev_alloc(device, sizeof *buffer);
  if (buffer == NULL)
    return emudev_nomem(sizeof *buffer, err);
  buffer->device = device;
  const opipe_status status =
      inner->buffer_import(device->inner, native, n_bytes, &buffer->inner, err);
  if (status < 0)
    emudev_free(device, buffer, sizeof *buffer);
  else
    *out_buffer = buffer;
  return status;
}

opipe_status emudev_buffer_host(opipe_buffer *buffer, void **out_data, opipe_error *err) {
  if (buffer->device->index >= HOST_DEVICES) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "emulated device %u: its memory has no host addresses (that of devices 0 to "
                      "%d has)",
                      buffer->device->index, HOST_DEVICES - 1);
  }
  return buffer->device->self->inner->buffer_host(buffer->inner, out_data, err);
}

opipe_region emudev_region(const opipe_region *region) {
  opipe_region inner = *region;
  inner.buffer = region->buffer == NULL ? NULL : region->buffer->inner;
  return inner;
}
