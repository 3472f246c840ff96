/* SPDX-License-Identifier: Apache-2.0 */
/* See pinned.h. */
#include "runtime/device/pinned.h"

static bool pins(const opi_backend_ref *backend) {
  return OPIPE_HAS(backend->table, opipe_backend, host_free) &&
         backend->table->host_alloc != NULL && backend->table->host_free != NULL;
}

opipe_status opi_pinned_take(const opi_backend_ref *backend, opipe_device *device,
                             const opipe_allocator *allocator, uint64_t n_bytes, const char *what,
                             opi_pinned *out, opipe_error *err) {
  void *data = NULL;
  *out = (opi_pinned){.data = NULL};
  const bool pinned = pins(backend) && n_bytes != 0;
  if (pinned)
    OPI_TRY(OPI_MAKE("backend", backend, host_alloc, &data, err, device, n_bytes));
  else
    data = opi_alloc(allocator, (size_t)n_bytes);
  if (data == NULL)
    return opi_fail_nomem(err, n_bytes, what);
  *out = (opi_pinned){.data = data, .n_bytes = n_bytes, .pinned = pinned};
  return OPIPE_OK;
}

void opi_pinned_give(const opi_backend_ref *backend, opipe_device *device,
                     const opipe_allocator *allocator, opi_pinned *memory) {
  if (memory->pinned)
    backend->table->host_free(device, memory->data);
  else
    opi_free(allocator, memory->data, (size_t)memory->n_bytes);
  *memory = (opi_pinned){.data = NULL};
}
