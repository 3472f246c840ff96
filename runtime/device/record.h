/* SPDX-License-Identifier: Apache-2.0 */
/* Events for who waits anyway: a queue that is full has room again when its device has moved on. */
#ifndef OPI_RECORD_H
#define OPI_RECORD_H

#include "partition/plan/plan.h"

/* As long as what is queued may borrow memory of the caller's, an event behind it is not done
 * without. */
#define OPI_RECORD_NS UINT64_C(10000000000)

/* The backend's event_record, asked again while it answers NOMEM, for patience_ns at most. Not for
 * who must not sleep. [step:queue] */
opipe_status opi_record(const opi_backend_ref *backend, opipe_queue *queue, opipe_event *event,
                        uint64_t patience_ns, opipe_error *err);

#endif /* OPI_RECORD_H */
