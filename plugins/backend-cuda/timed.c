/* SPDX-License-Identifier: Apache-2.0 */
/* Time between two events by the GPU's clock, which all openings of a GPU share. The driver gives a
 * float of milliseconds.
 */
#include <math.h>

#include "cuda.h"

static opipe_status check_timed(const opipe_event *event, const opipe_event *other,
                                const char *which, opipe_error *err) {
  if (!event->timed)
    return opipe_fail(err, OPIPE_E_INVALID, "event_elapsed: `%s` is not timed", which);
  if (event->device->place != other->device->place) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "event_elapsed: `%s` is of cuda:%u, the other of cuda:%u", which,
                      event->device->place->index, other->device->place->index);
  }
  return OPIPE_OK;
}

opipe_status cuda_event_elapsed(opipe_event *from, opipe_event *to, int64_t *out_ns,
                                opipe_error *err) {
  cuda_place *place = to->device->place;
  float milliseconds = 0;
  CUDA_TRY(check_timed(from, to, "from", err));
  CUDA_TRY(check_timed(to, from, "to", err));
  CUDA_TRY(cuda_enter(to->device, "event_elapsed", err));
  const CUresult result = place->driver->event_elapsed(&milliseconds, from->event, to->event);
  opipe_status status = OPIPE_PENDING;
  if (result == CUDA_INVALID_HANDLE)
    status = opipe_fail(err, OPIPE_E_INVALID, "event_elapsed: an event was never recorded");
  else if (result != CUDA_NOT_READY)
    status = cuda_result(place, result, "event_elapsed", err);
  cuda_leave(to->device);
  if (status == OPIPE_OK)
    *out_ns = llround((double)milliseconds * 1e6);
  return status;
}
