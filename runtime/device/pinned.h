/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that a device copies to and from. It is pinned where the backend can pin memory, so
 * that a copy is queued like other work and its caller goes on; else it is ordinary memory. */
#ifndef OPI_PINNED_H
#define OPI_PINNED_H

#include "partition/plan/plan.h"

typedef struct opi_pinned {
  char *data; /* NULL: none */
  uint64_t n_bytes;
  bool pinned; /* counted by the device, in host_bytes */
} opi_pinned;

/* Messages say `what`. [control] */
opipe_status opi_pinned_take(const opi_backend_ref *backend, opipe_device *device,
                             const opipe_allocator *allocator, uint64_t n_bytes, const char *what,
                             opi_pinned *out, opipe_error *err);
/* The work that uses it must be done and the device open. Accepts memory that was never taken.
 * [control] */
void opi_pinned_give(const opi_backend_ref *backend, opipe_device *device,
                     const opipe_allocator *allocator, opi_pinned *memory);

static inline uint64_t opi_pinned_bytes(const opi_pinned *memory) {
  return memory->pinned ? memory->n_bytes : 0;
}

#endif /* OPI_PINNED_H */
