/* SPDX-License-Identifier: Apache-2.0 */
/* When a rank's programs ran, by the clock of its device: for traces.
 *
 *   queue:   ──■begun──[ program ]──■event──■begun──[ program ]──■event──►
 *              └── a timed event on either side; asked how long after the mark they came
 *   mark     a timed event of the rank with a known time. Long times are inexact, so an old mark is
 *            replaced by the end of a program
 *   met      when a trace is written, the device's first rank records an event. The host knows when
 *            it was done and how long after each rank's mark, and shifts the ranks' spans by the
 *            difference. So all ranks of a device are on one scale
 *
 * A rank has stamps if the session asks for them (OPIPE_SESSION_TRACE), its device is asynchronous
 * and its backend has the slots. Otherwise worker->stamps is NULL, and times are the host's.
 */
#ifndef OPI_STAMPS_H
#define OPI_STAMPS_H

#include "runtime/executor/executor.h"

struct opi_stamps {
  opipe_event *mark;
  uint64_t mark_ns; /* its presumed time */
  int64_t shift_ns; /* to be added to the rank's times */
  /* only for the device's first rank: */
  opipe_queue *queue; /* of its own, so that `met` does not wait for programs */
  opipe_event *met, *spare;
  uint64_t met_ns;
};

/* Leaves worker->stamps NULL if the rank has none. Other ranks of the device are at rest. [control]
 */
opipe_status opi_stamps_open(opi_rank *rank, opipe_error *err);
void opi_stamps_close(opi_rank *rank);
/* Makes an event, a timed one if the rank has stamps. */
opipe_status opi_stamps_event(const opi_rank *rank, opipe_event **out_event, opipe_error *err);
/* The device's times of a program between two events, both complete. `*io_end` may become the mark,
 * and is then replaced by a free event. */
opipe_status opi_stamps_span(opi_rank *rank, opipe_event *begun, opipe_event **io_end,
                             opi_span *out_span, opipe_error *err);

#endif /* OPI_STAMPS_H */
