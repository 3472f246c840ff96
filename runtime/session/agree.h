/* SPDX-License-Identifier: Apache-2.0 */
/* Checks once, before the first step, that all ranks hold the same plan and the same table of
 * kernels. A peer with another schedule would not stop but train on with wrong sums. */
#ifndef OPI_AGREE_H
#define OPI_AGREE_H

#include "partition/plan/plan.h"
#include "runtime/device/device.h"

/* A rank of this process. All borrowed. */
typedef struct opi_agree_rank {
  const opi_backend_ref *backend;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event; /* NULL: the device is synchronous */
  opipe_endpoint *endpoint;
  uint64_t plan[2];    /* opi_plan.hash of the plan that it holds */
  uint64_t kernels[2]; /* opi_kernels.hash of that plan; 0: it has none */
  uint32_t index;      /* in the world */
  uint32_t alignment;
} opi_agree_rank;

typedef struct opi_agree_params {
  const opi_transport_ref *transport;
  opipe_world *world;
  const opi_agree_rank *ranks; /* [n_ranks_here] */
  uint32_t n_ranks_here, n_ranks;
  uint64_t timeout_ns;
  opi_together together; /* asked meanwhile whether the others are there */
  const opipe_allocator *allocator;
} opi_agree_params;

/* Every rank tells the next one in a ring; if plans differ, they differ between two neighbours.
 * Blocks, while no thread runs these ranks, and leaves nothing behind. Errors: INVALID names both
 * ranks and plans; TIMEOUT the rank that was not heard; the backend's and the transport's. An error
 * aborts the world, so that no rank goes on. */
opipe_status opi_agree(const opi_agree_params *params, opipe_error *err);

#endif /* OPI_AGREE_H */
