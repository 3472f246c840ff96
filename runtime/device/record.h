/* SPDX-License-Identifier: Apache-2.0 */
/* Records an event and waits while the queue is full, for callers that wait for the event anyway.
 */
#ifndef OPI_RECORD_H
#define OPI_RECORD_H

#include "partition/plan/plan.h"

/* Queued work may borrow the caller's memory, so that the event behind it is worth this wait. */
#define OPI_RECORD_NS UINT64_C(10000000000)

/* The backend's event_record, repeated while it answers NOMEM, for patience_ns at most. Sleeps in
 * between. [step:queue] */
opipe_status opi_record(const opi_backend_ref *backend, opipe_queue *queue, opipe_event *event,
                        uint64_t patience_ns, opipe_error *err);

#endif /* OPI_RECORD_H */
