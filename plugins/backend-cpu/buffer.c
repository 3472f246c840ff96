/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: 64-byte aligned host memory, counted by kind under the device's cap.
 */
#include <sys/mman.h>

#include "cpu.h"

/* Asks for huge pages inside a large buffer: weights are streamed through once a token, and small
 * pages cost 10-17 % of that. Never touches memory outside of the buffer; a refusal changes
 * nothing. */
void cpu_prefer_huge_pages(void *data, uint64_t n_bytes) {
  const uint64_t page = UINT64_C(1) << 21;
  const uint64_t skip = (page - (uint64_t)(uintptr_t)data % page) % page;
  if (n_bytes >= 2 * page)
    (void)madvise((char *)data + skip, (size_t)((n_bytes - skip) / page * page), MADV_HUGEPAGE);
}

opipe_status cpu_buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                              opipe_buffer **out_buffer, opipe_error *err) {
  const opipe_host *host = device->host;
  opipe_buffer *buffer = cpu_acquire(host, sizeof *buffer, "buffer", err);
  if (buffer == NULL)
    return OPIPE_E_NOMEM;
  buffer->device = device;
  buffer->kind = kind;
  buffer->n_bytes = n_bytes;
  const opipe_status status = opipe_host_alloc(host, &device->meter, kind, &buffer->n_bytes,
                                               CPU_ALIGN_BYTES, &buffer->data, err);
  if (status < 0) {
    cpu_release(host, buffer, sizeof *buffer);
    return status;
  }
  cpu_prefer_huge_pages(buffer->data, buffer->n_bytes);
  *out_buffer = buffer;
  return OPIPE_OK;
}

void cpu_buffer_free(opipe_buffer *buffer) {
  if (buffer != NULL) {
    opipe_device *device = buffer->device;
    if (!buffer->imported) {
      opipe_host_free(device->host, &device->meter, buffer->kind, buffer->data, buffer->n_bytes,
                      CPU_ALIGN_BYTES);
    }
    cpu_release(device->host, buffer, sizeof *buffer);
  }
}

opipe_status cpu_buffer_import(opipe_device *device, uint64_t native, uint64_t n_bytes,
                               opipe_buffer **out_buffer, opipe_error *err) {
  if (native == 0 || native % CPU_ALIGN_BYTES != 0 || n_bytes > UINTPTR_MAX - native) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "buffer_import: %llu bytes at 0x%llx, which must be a multiple of %d",
                      (unsigned long long)n_bytes, (unsigned long long)native, CPU_ALIGN_BYTES);
  }
  opipe_buffer *buffer = cpu_acquire(device->host, sizeof *buffer, "buffer", err);
  if (buffer == NULL)
    return OPIPE_E_NOMEM;
  *buffer = (opipe_buffer){
      .device = device, .data = (void *)(uintptr_t)native, .n_bytes = n_bytes, .imported = true};
  *out_buffer = buffer;
  return OPIPE_OK;
}

opipe_status cpu_buffer_host(opipe_buffer *buffer, void **out_data, opipe_error *err) {
  (void)err;
  *out_data = buffer->data;
  return OPIPE_OK;
}

opipe_status cpu_region_data(const opipe_region *region, const char *what, void **out_data,
                             opipe_error *err) {
  const opipe_buffer *buffer = region->buffer;
  if (buffer == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "%s: the region has no buffer", what);
  if (region->offset_bytes > buffer->n_bytes ||
      region->n_bytes > buffer->n_bytes - region->offset_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "%s: %llu bytes at %llu reach beyond the buffer's %llu bytes", what,
                      (unsigned long long)region->n_bytes, (unsigned long long)region->offset_bytes,
                      (unsigned long long)buffer->n_bytes);
  }
  *out_data = (char *)buffer->data + region->offset_bytes;
  return OPIPE_OK;
}
