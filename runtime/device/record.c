/* SPDX-License-Identifier: Apache-2.0 */
/* See record.h. */
#include "runtime/device/record.h"

#include <time.h>

#include "runtime/base/base.h"

static const long AGAIN_NS = 50000;

opipe_status opi_record(const opi_backend_ref *backend, opipe_queue *queue, opipe_event *event,
                        uint64_t patience_ns, opipe_error *err) {
  const struct timespec again = {.tv_nsec = AGAIN_NS};
  const uint64_t until = opi_later_ns(opi_clock_ns(), patience_ns);
  opipe_status status = OPI_ASK("backend", backend, event_record, err, queue, event);
  while (status == OPIPE_E_NOMEM && opi_clock_ns() < until) {
    (void)nanosleep(&again, NULL);
    status = OPI_ASK("backend", backend, event_record, err, queue, event);
  }
  return status;
}

bool opi_queue_give_up(const opipe_backend *backend, opipe_queue **io_queue) {
  opipe_error unused = OPIPE_ERROR_INIT;
  if (*io_queue == NULL || !OPIPE_HAS(backend, opipe_backend, queue_abort) ||
      backend->queue_abort == NULL || backend->queue_abort(*io_queue, &unused) < 0)
    return false;
  backend->queue_close(*io_queue);
  *io_queue = NULL;
  return true;
}
