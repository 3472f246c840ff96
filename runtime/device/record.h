/* SPDX-License-Identifier: Apache-2.0 */
/* Records an event and waits while the queue is full, for callers that wait for the event anyway;
 * and gives up queues whose work does not end.
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

/* Closes a queue without waiting for its work, which may still run: whatever is freed later, the
 * backend keeps the memory that this work may touch. *io_queue becomes NULL. False: there is no
 * queue, or the backend gives up none, and nothing has changed. [control] */
bool opi_queue_give_up(const opipe_backend *backend, opipe_queue **io_queue);

#endif /* OPI_RECORD_H */
