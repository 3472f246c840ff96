/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and events on the clock: a queue is busy until a point in time, an event is complete when
 * the clock has come to its own. The inner backend finishes its work before it returns, so only
 * time is left to wait for; sleeping is to absolute points, so nothing adds up.
 */
#include <sched.h>
#include <time.h>

#include "emulated.h"

uint64_t emudev_now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* A sleeper is woken some tens of microseconds late (a virtual machine's later), which a modelled
 * device is not: the last stretch is watched. */
static void sleep_until(uint64_t ns) {
  enum { WATCHED_NS = 100000 };
  const uint64_t until = ns > WATCHED_NS ? ns - WATCHED_NS : 0;
  const struct timespec t = {.tv_sec = (time_t)(until / UINT64_C(1000000000)),
                             .tv_nsec = (long)(until % UINT64_C(1000000000))};
  while (emudev_now() < until)
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
  while (emudev_now() < ns)
    (void)sched_yield();
}

opipe_status emudev_queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err) {
  opipe_queue *queue = emudev_alloc(device, sizeof *queue);
  if (queue == NULL)
    return emudev_nomem(sizeof *queue, err);
  queue->device = device;
  const opipe_status status = device->self->inner->queue_open(device->inner, &queue->inner, err);
  if (status < 0) {
    emudev_free(device, queue, sizeof *queue);
    return status;
  }
  *out_queue = queue;
  return OPIPE_OK;
}

/* The arithmetic is done; modelled time that is left is nobody's any more. */
void emudev_queue_close(opipe_queue *queue) {
  if (queue == NULL)
    return;
  queue->device->self->inner->queue_close(queue->inner);
  emudev_free(queue->device, queue, sizeof *queue);
}

opipe_status emudev_event_create(opipe_device *device, opipe_event **out_event, opipe_error *err) {
  opipe_event *event = emudev_alloc(device, sizeof *event);
  if (event == NULL)
    return emudev_nomem(sizeof *event, err);
  event->device = device;
  *out_event = event;
  return OPIPE_OK;
}

void emudev_event_destroy(opipe_event *event) {
  if (event != NULL)
    emudev_free(event->device, event, sizeof *event);
}

opipe_status emudev_event_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  (void)err;
  opipe_late_record(&queue->late, &event->late);
  atomic_store_explicit(&event->at_ns, queue->free_ns, memory_order_release);
  return OPIPE_OK;
}

opipe_status emudev_event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  const uint64_t at = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  (void)err;
  if (at > queue->free_ns)
    queue->free_ns = at;
  return OPIPE_OK;
}

opipe_status emudev_event_poll(opipe_event *event, opipe_error *err) {
  const uint64_t at = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  return emudev_now() < at ? (opipe_status)OPIPE_PENDING : opipe_late_answer(&event->late, err);
}

opipe_status emudev_event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err) {
  const uint64_t at = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  const uint64_t now = emudev_now();
  const uint64_t until = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
  sleep_until(at < until ? at : until);
  if (at <= until)
    return opipe_late_answer(&event->late, err);
  return opipe_fail(err, OPIPE_E_TIMEOUT, "emulated device: busy for %llu ns more",
                    (unsigned long long)(at > until ? at - until : 0));
}

opipe_status emudev_queue_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                                opipe_error *err) {
  const opipe_region inner = emudev_region(dst);
  return queue->device->self->inner->write(queue->inner, &inner, src, err);
}

opipe_status emudev_queue_read(opipe_queue *queue, void *dst, const opipe_region *src,
                               opipe_error *err) {
  const opipe_region inner = emudev_region(src);
  return queue->device->self->inner->read(queue->inner, dst, &inner, err);
}

opipe_status emudev_queue_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                               opipe_error *err) {
  const opipe_region to = emudev_region(dst), from = emudev_region(src);
  return queue->device->self->inner->copy(queue->inner, &to, &from, err);
}
