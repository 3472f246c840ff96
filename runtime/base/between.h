/* SPDX-License-Identifier: Apache-2.0 */
/* What a message between two threads of this process takes: measured. */
#ifndef OPI_BETWEEN_H
#define OPI_BETWEEN_H

#include "loader/base/base.h"

typedef struct opi_between {
  double latency_ns;   /* from a thread that says so to one that waits for it: half a round trip */
  double bytes_per_ns; /* of a copy of what another thread has just written, larger than caches */
} opi_between;

/* Medians of many rounds; takes about a second, and two cores. Errors: NOMEM; INTERNAL, no thread.
 */
opipe_status opi_between_measure(const opipe_allocator *allocator, opi_between *out,
                                 opipe_error *err);

#endif /* OPI_BETWEEN_H */
