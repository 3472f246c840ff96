/* SPDX-License-Identifier: Apache-2.0 */
/* When a rank's programs ran, by the clock of its device: for traces.
 *
 *   queue:   ──■begun──[ program ]──■event──■begun──[ program ]──■event──►
 *              └── a timed event on either side; asked how long after the mark they came
 *   mark     a timed event of the rank's whose time is taken for known. Long times are inexact, so
 *            one that has become old gives way to the end of a program
 *   met      when a trace is written, the device's first rank records an event of which the host
 *            knows when it was done, and how long after each rank's mark: their spans are shifted
 *            by what that is off. So ranks of one device are on one scale, whatever came before
 *
 * There are stamps where the session asks for them (OPIPE_SESSION_TRACE), the device is
 * asynchronous and the backend has the slots; elsewhere rank->stamps is NULL, and the host's clock
 * holds.
 */
#ifndef OPI_STAMPS_H
#define OPI_STAMPS_H

#include "runtime/executor/executor.h"

struct opi_stamps {
  opipe_event *mark;
  uint64_t mark_ns; /* its time, which shift_ns is off */
  int64_t shift_ns;
  /* of the device's first rank: */
  opipe_queue *queue; /* of their own: programs are not waited for */
  opipe_event *met, *spare;
  uint64_t met_ns;
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
