/* SPDX-License-Identifier: Apache-2.0 */
/* Events that keep the time: by the modelled clock, on which a run begins and ends to the
 * nanosecond, whenever its arithmetic was done and whenever somebody looked.
 */
#include "emulated.h"

opipe_status emudev_event_create_timed(opipe_device *device, opipe_event **out_event,
                                       opipe_error *err) {
  const opipe_status status = emudev_event_create(device, out_event, err);
  if (status >= 0)
    (*out_event)->timed = true;
  return status;
}

void emudev_event_came(const opipe_queue *queue, opipe_event *event, uint64_t queued_ns) {
  const uint64_t free_ns = atomic_load_explicit(&queue->free_ns, memory_order_relaxed);
  atomic_store_explicit(&event->came_ns, free_ns > queued_ns ? free_ns : queued_ns,
                        memory_order_relaxed);
}

static opipe_status check_timed(const opipe_event *event, const opipe_event *other,
                                const char *which, opipe_error *err) {
  if (!event->timed)
    return opipe_fail(err, OPIPE_E_INVALID, "event_elapsed: `%s` is not timed", which);
  if (event->device->index != other->device->index) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "event_elapsed: `%s` is of emulated device %u, the other of device %u", which,
                      event->device->index, other->device->index);
  }
  return OPIPE_OK;
}

/* When the queue came to it. PENDING: it is not complete. */
static opipe_status came_at(opipe_event *event, const char *which, uint64_t *out_ns,
                            opipe_error *err) {
  pthread_mutex_t *lock = &event->device->self->lock;
  (void)pthread_mutex_lock(lock);
  const uint64_t at = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  const bool pending = event->pending || emudev_now() < at;
  *out_ns = atomic_load_explicit(&event->came_ns, memory_order_relaxed);
  (void)pthread_mutex_unlock(lock);
  if (pending)
    return OPIPE_PENDING;
  return *out_ns != 0
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID, "event_elapsed: `%s` was never recorded", which);
}

opipe_status emudev_event_elapsed(opipe_event *from, opipe_event *to, int64_t *out_ns,
                                  opipe_error *err) {
  uint64_t since = 0, until = 0;
  opipe_status status = check_timed(from, to, "from", err);
  if (status >= 0)
    status = check_timed(to, from, "to", err);
  if (status >= 0)
    status = came_at(from, "from", &since, err);
  if (status == OPIPE_OK)
    status = came_at(to, "to", &until, err);
  if (status == OPIPE_OK)
    *out_ns = (int64_t)(until - since);
  return status;
}
