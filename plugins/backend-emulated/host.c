/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side: memory that copies reach without waiting, and the rate of copies. The memory is
 * ordinary: only its bytes are counted. */
#include "emulated.h"

/* In front of each block. */
typedef struct block {
  uint64_t n_bytes;
  uint64_t reserved[7]; /* data begins at a cache line */
} block;

opipe_status emudev_host_alloc(opipe_device *device, uint64_t n_bytes, void **out_data,
                               opipe_error *err) {
  const opipe_host *host = device->self->host;
  block *b = n_bytes > SIZE_MAX - sizeof *b
                 ? NULL
                 : host->realloc(host->ctx, NULL, 0, (size_t)n_bytes + sizeof *b, sizeof *b);
  if (b == NULL) {
    return opipe_fail(err, OPIPE_E_NOMEM, "emulated device %u: the host cannot provide %llu bytes",
                      device->index, (unsigned long long)n_bytes);
  }
  b->n_bytes = n_bytes;
  atomic_fetch_add(&device->host_bytes, n_bytes);
  *out_data = b + 1;
  return OPIPE_OK;
}

void emudev_host_free(opipe_device *device, void *data) {
  const opipe_host *host = device->self->host;
  if (data == NULL)
    return;
  block *b = (block *)data - 1;
  const uint64_t n_bytes = b->n_bytes;
  atomic_fetch_sub(&device->host_bytes, n_bytes);
  (void)host->realloc(host->ctx, b, (size_t)n_bytes + sizeof *b, 0, sizeof *b);
}

opipe_status emudev_host_rate(opipe_device *device, double *out_rate, opipe_error *err) {
  (void)err;
  *out_rate = device->options.host_bandwidth;
  return OPIPE_OK;
}

uint64_t emudev_host_ns(const opipe_device *device, uint64_t n_bytes) {
  const double rate = device->options.host_bandwidth;
  const double ns = rate > 0 ? (double)n_bytes / rate * 1e9 : 0;
  return ns > 1e15 ? (uint64_t)1e15 : (uint64_t)ns;
}
