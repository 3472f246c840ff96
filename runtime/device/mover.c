/* SPDX-License-Identifier: Apache-2.0 */
/* See mover.h. */
#include "runtime/device/mover.h"

#include "runtime/device/record.h"

opipe_status opi_mover_open(opi_rank *rank, opipe_error *err) {
  opi_mover *m = &rank->mover;
  if ((rank->device_flags & OPIPE_DEVICE_SYNCHRONOUS) != 0) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "the plan offloads stashes, and the device is synchronous: make the plan again");
  }
  OPI_TRY(OPI_MAKE_RANK(rank, queue_open, &m->out, err, rank->device));
  OPI_TRY(OPI_MAKE_RANK(rank, queue_open, &m->in, err, rank->device));
  return OPI_MAKE_RANK(rank, event_create, &m->ready, err, rank->device);
}

static void end_queue(opi_rank *rank, opipe_queue **io_queue, uint64_t patience_ns) {
  opipe_error unused = OPIPE_ERROR_INIT; /* the session has ended */
  if (*io_queue == NULL || rank->mover.ready == NULL)
    return;
  if (opi_record(opi_rank_backend(rank), *io_queue, rank->mover.ready, patience_ns, &unused) ==
      OPIPE_OK) {
    if (rank->backend->event_sync(rank->mover.ready, patience_ns, &unused) == OPIPE_E_TIMEOUT)
      (void)opi_queue_give_up(rank->backend, io_queue);
    return;
  }
  rank->backend->queue_close(*io_queue); /* finishes its work */
  *io_queue = NULL;
}

void opi_mover_end(opi_rank *rank, uint64_t patience_ns) {
  end_queue(rank, &rank->mover.out, patience_ns);
  end_queue(rank, &rank->mover.in, patience_ns);
}

void opi_mover_close(opi_rank *rank) {
  rank->backend->event_destroy(rank->mover.ready);
  rank->backend->queue_close(rank->mover.out);
  rank->backend->queue_close(rank->mover.in);
  rank->mover = (opi_mover){.out = NULL};
}
