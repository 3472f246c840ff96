/* SPDX-License-Identifier: Apache-2.0 */
/* When a rank's programs ran, by the clock of its device: for traces.
 *
 *   queue:   ──■begun──[ program ]──■event──■begun──[ program ]──■event──►
 *              └── a timed event on either side, both asked how long after the mark they came
 *   mark     a timed event whose time is known. Ranks of one device begin from one mark, so that
 *            their times are of one clock; a mark that has become old gives way to the end of a
 *            program, since long times are inexact
 *   shift    when a trace is written, the host's clock is met once more: the two do not run alike
 *
 * Times are nanoseconds of the host's clock as it was met when the session was opened. There are
 * stamps where the session asks for them (OPIPE_SESSION_TRACE), the device is asynchronous and the
 * backend has the slots; elsewhere rank->stamps is NULL, and the host's clock holds.
 */
#ifndef OPI_STAMPS_H
#define OPI_STAMPS_H

#include "runtime/state.h"

struct opi_stamps {
  opipe_queue *queue; /* of its own: programs are not waited for */
  opipe_event *mark;  /* its time: */
  uint64_t mark_ns;
  opipe_event *spare;  /* [control] */
  const opi_rank *met; /* whose meeting with the host's clock holds: of the device's first rank */
  int64_t shift_ns;    /* of that rank alone */
};

/* Leaves rank->stamps NULL where there are none. Other ranks of the device are at rest. [control]
 */
opipe_status opi_stamps_open(opi_rank *rank, opipe_error *err);
void opi_stamps_close(opi_rank *rank);
/* An event that the stamps are taken from, where there are some. */
opipe_status opi_stamps_event(const opi_rank *rank, opipe_event **out_event, opipe_error *err);
/* When the device was at a program between two events, both complete. `*io_end` may become the
 * mark; then it is another event, which is free. */
opipe_status opi_stamps_span(opi_rank *rank, opipe_event *begun, opipe_event **io_end,
                             opi_span *out_span, opipe_error *err);

#endif /* OPI_STAMPS_H */
