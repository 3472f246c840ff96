/* SPDX-License-Identifier: Apache-2.0 */
/* Events of asynchronous devices. A record is an operation of its queue; the thread that comes to
 * it hands the queue's late errors and its modelled end over to the event, unless the event means
 * another place by then, or is nobody's any more. A wait is an operation too, and names queue and
 * place, so that it holds when the event is recorded again.
 */
#include "emulated.h"

/* ---- by the thread ---- */

static opipe_status record_now(opipe_queue *queue, const work *w, opipe_error *err) {
  const uint64_t at = atomic_load_explicit(&queue->free_ns, memory_order_relaxed);
  opipe_event *event = w->event;
  opipe_late nobodys;
  (void)err;
  (void)pthread_mutex_lock(&queue->self->lock);
  const bool meant = event->queue == queue && event->place == queue->n_done;
  opipe_late_record(&queue->late, meant ? &event->late : &nobodys);
  if (meant) {
    if (event->timed)
      emudev_event_came(queue, event, w->queued_ns);
    atomic_store_explicit(&event->at_ns, at, memory_order_relaxed);
    event->pending = false;
  }
  queue->ring[queue->n_done % queue->device->options.queued_most].at_ns = at;
  emudev_event_drop(event);
  (void)pthread_mutex_unlock(&queue->self->lock);
  return OPIPE_OK;
}

/* Clock when that record of the queue is complete: it has been done. A record that is so old that
 * its place in the ring is taken, or that belongs to a closed queue, is complete when all of the
 * queue's work is. */
static uint64_t at_of(const opipe_queue *queue, uint64_t place) {
  const uint32_t most = queue->ring == NULL ? 0 : queue->device->options.queued_most;
  return queue->n_queued - place <= most
             ? queue->ring[place % most].at_ns
             : atomic_load_explicit(&queue->free_ns, memory_order_relaxed);
}

static opipe_status wait_now(opipe_queue *queue, const work *w, opipe_error *err) {
  opipe_queue *other = w->other;
  uint64_t at = w->at_ns;
  (void)err;
  if (other != NULL) {
    (void)pthread_mutex_lock(&queue->self->lock);
    while (other->n_done <= w->count)
      (void)pthread_cond_wait(&other->moved, &queue->self->lock);
    at = at_of(other, w->count);
    emudev_queue_drop(other);
    (void)pthread_mutex_unlock(&queue->self->lock);
  }
  if (at > atomic_load_explicit(&queue->free_ns, memory_order_relaxed))
    atomic_store_explicit(&queue->free_ns, at, memory_order_relaxed);
  return OPIPE_OK;
}

/* ---- by callers ---- */

opipe_status emudev_record_later(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  const work w = {.act = record_now,
                  .event = event,
                  .queued_ns = event->timed ? emudev_now() : 0,
                  .at_once = true};
  if (event->device != queue->device) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "event_record: the event is of another opening of emulated device %u, not of "
                      "the queue's (%u)",
                      event->device->index, queue->device->index);
  }
  (void)pthread_mutex_lock(&queue->self->lock);
  const uint64_t place = queue->n_queued;
  const opipe_status status = emudev_push(queue, &w, err);
  if (status == OPIPE_OK) {
    opipe_queue *before = event->queue;
    event->queue = queue;
    event->place = place;
    event->pending = true;
    ++event->n_users;
    ++queue->n_users;
    emudev_queue_drop(before);
  }
  (void)pthread_mutex_unlock(&queue->self->lock);
  return status;
}

opipe_status emudev_wait_later(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  work w = {.act = wait_now, .at_once = true};
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&queue->self->lock);
  w.at_ns = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  if (event->pending) {
    w.other = event->queue;
    w.count = event->place;
  }
  if (w.other != queue && (w.other != NULL || w.at_ns > emudev_now()))
    status = emudev_push(queue, &w, err);
  if (status == OPIPE_OK && w.other != NULL && w.other != queue)
    ++w.other->n_users;
  (void)pthread_mutex_unlock(&queue->self->lock);
  return status;
}

opipe_status emudev_poll_later(opipe_event *event, opipe_error *err) {
  pthread_mutex_t *lock = &event->device->self->lock;
  opipe_status status = OPIPE_PENDING;
  (void)pthread_mutex_lock(lock);
  if (!event->pending && emudev_now() >= atomic_load_explicit(&event->at_ns, memory_order_relaxed))
    status = opipe_late_answer(&event->late, err);
  (void)pthread_mutex_unlock(lock);
  return status;
}

/* The queue outlives the sleep: the event may be recorded elsewhere meanwhile. */
static bool await_record(opipe_event *event, uint64_t until_ns, uint64_t *out_at_ns) {
  pthread_mutex_t *lock = &event->device->self->lock;
  const struct timespec until = emudev_timespec(until_ns);
  (void)pthread_mutex_lock(lock);
  while (event->pending && emudev_now() < until_ns) {
    opipe_queue *queue = event->queue;
    ++queue->n_users;
    (void)pthread_cond_timedwait(&queue->moved, lock, &until);
    emudev_queue_drop(queue);
  }
  const bool done = !event->pending;
  *out_at_ns = atomic_load_explicit(&event->at_ns, memory_order_relaxed);
  (void)pthread_mutex_unlock(lock);
  return done;
}

opipe_status emudev_sync_later(opipe_event *event, uint64_t until_ns, opipe_error *err) {
  pthread_mutex_t *lock = &event->device->self->lock;
  uint64_t at = 0;
  if (!await_record(event, until_ns, &at))
    return opipe_fail(err, OPIPE_E_TIMEOUT, "emulated device: its queue is still at work");
  emudev_sleep_until(at < until_ns ? at : until_ns);
  if (at > until_ns) {
    return opipe_fail(err, OPIPE_E_TIMEOUT, "emulated device: busy for %llu ns more",
                      (unsigned long long)(at - until_ns));
  }
  (void)pthread_mutex_lock(lock);
  const opipe_status status = opipe_late_answer(&event->late, err);
  (void)pthread_mutex_unlock(lock);
  return status;
}
