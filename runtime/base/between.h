/* SPDX-License-Identifier: Apache-2.0 */
/* The latency and bandwidth of messages between two threads of this process, measured. */
#ifndef OPI_BETWEEN_H
#define OPI_BETWEEN_H

#include "loader/base/base.h"

typedef struct opi_between {
  double latency_ns;   /* half a round trip between a thread that stores and one that waits */
  double bytes_per_ns; /* of copying what another thread just wrote; larger than the caches */
} opi_between;

/* Takes medians over many rounds: about a second, on two cores. Errors: NOMEM; INTERNAL if no
 * thread can be started. */
opipe_status opi_between_measure(const opipe_allocator *allocator, opi_between *out,
                                 opipe_error *err);

#endif /* OPI_BETWEEN_H */
