/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and events on the clock: a queue is busy until a point in time, an event is complete when
 * the clock has come to its own. The inner backend finishes its work before it returns, so only
 * time is left to wait for; sleeping is to absolute points, so nothing adds up. Events of
 * asynchronous devices: events.c.
 */
#include <sched.h>

#include "emulated.h"

uint64_t emudev_now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

struct timespec emudev_timespec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / UINT64_C(1000000000)),
                           .tv_nsec = (long)(ns % UINT64_C(1000000000))};
}

/* A sleeper is woken some tens of microseconds late (a virtual machine's later), which a modelled
 * device is not: the last stretch is watched. */
void emudev_sleep_until(uint64_t ns) {
  const uint64_t until = ns > EMUDEV_WATCHED_NS ? ns - EMUDEV_WATCHED_NS : 0;
  const struct timespec t = emudev_timespec(until);
  while (emudev_now() < until)
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
  while (emudev_now() < ns)
    (void)sched_yield();
}

opipe_status emudev_queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err) {
  opipe_queue *queue = emudev_alloc(device, sizeof *queue);
  if (queue == NULL)
    return emudev_nomem(sizeof *queue, err);
  queue->self = device->self;
  queue->device = device;
  queue->n_users = 1;
  opipe_status status = device->self->inner->queue_open(device->inner, &queue->inner, err);
  if (status == OPIPE_OK && device->options.async) {
    status = emudev_thread_start(queue, err);
    if (status < 0)
      device->self->inner->queue_close(queue->inner);
  }
  if (status < 0) {
    emudev_free(device, queue, sizeof *queue);
    return status;
  }
  *out_queue = queue;
  return OPIPE_OK;
}

/* The arithmetic is done, or is now; modelled time that is left is nobody's any more. */
void emudev_queue_close(opipe_queue *queue) {
  if (queue == NULL)
    return;
  opipe_instance *self = queue->self;
  const bool async = queue->device->options.async;
  if (async)
    emudev_thread_end(queue);
  self->inner->queue_close(queue->inner);
  if (!async) {
    emudev_give(self, queue, sizeof *queue);
    return;
  }
  (void)pthread_mutex_lock(&self->lock);
  emudev_queue_drop(queue);
  (void)pthread_mutex_unlock(&self->lock);
}

opipe_status emudev_event_create(opipe_device *device, opipe_event **out_event, opipe_error *err) {
  opipe_event *event = emudev_alloc(device, sizeof *event);
  if (event == NULL)
    return emudev_nomem(sizeof *event, err);
  event->device = device;
  event->n_users = 1;
  *out_event = event;
  return OPIPE_OK;
}

/* A record that is on its way keeps what it needs. */
void emudev_event_destroy(opipe_event *event) {
  if (event == NULL)
    return;
  pthread_mutex_t *lock = &event->device->self->lock;
  (void)pthread_mutex_lock(lock);
  emudev_queue_drop(event->queue);
  event->queue = NULL;
  emudev_event_drop(event);
  (void)pthread_mutex_unlock(lock);
}

static opipe_status check_kinds(const opipe_queue *queue, const opipe_event *event,
                                const char *call, opipe_error *err) {
  if (queue->device->options.async || !event->device->options.async)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "%s: a queue of emulated device %u, which works within its calls, and an event "
                    "of device %u, which is asynchronous",
                    call, queue->device->index, event->device->index);
}

opipe_status emudev_event_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  const opipe_status status = check_kinds(queue, event, "event_record", err);
  if (status < 0)
    return status;
  if (queue->device->options.async)
    return emudev_record_later(queue, event, err);
  opipe_late_record(&queue->late, &event->late);
  if (event->timed)
    emudev_event_came(queue, event, emudev_now());
  atomic_store_explicit(&event->at_ns, atomic_load_explicit(&queue->free_ns, memory_order_relaxed),
                        memory_order_release);
  return OPIPE_OK;
}

opipe_status emudev_event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  const opipe_status status = check_kinds(queue, event, "event_wait", err);
  if (status < 0)
    return status;
  if (queue->device->options.async)
    return emudev_wait_later(queue, event, err);
  const uint64_t at = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  if (at > atomic_load_explicit(&queue->free_ns, memory_order_relaxed))
    atomic_store_explicit(&queue->free_ns, at, memory_order_relaxed);
  return OPIPE_OK;
}

opipe_status emudev_event_poll(opipe_event *event, opipe_error *err) {
  if (event->device->options.async)
    return emudev_poll_later(event, err);
  const uint64_t at = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  return emudev_now() < at ? (opipe_status)OPIPE_PENDING : opipe_late_answer(&event->late, err);
}

opipe_status emudev_event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err) {
  const uint64_t now = emudev_now();
  const uint64_t until = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
  if (event->device->options.async)
    return emudev_sync_later(event, until, err);
  const uint64_t at = atomic_load_explicit(&event->at_ns, memory_order_acquire);
  emudev_sleep_until(at < until ? at : until);
  if (at <= until)
    return opipe_late_answer(&event->late, err);
  return opipe_fail(err, OPIPE_E_TIMEOUT, "emulated device: busy for %llu ns more",
                    (unsigned long long)(at > until ? at - until : 0));
}

/* ---- data between host and device ---- */

/* The copy occupies its queue; it fails when its event completes, if the options say so. */
static opipe_status take_time(opipe_queue *queue, const work *w, opipe_error *err) {
  uint64_t free_ns = atomic_load_explicit(&queue->free_ns, memory_order_relaxed);
  if (w->count != 0 && w->count == queue->device->options.fail_copy) {
    return opipe_fail(err, OPIPE_E_DEVICE, "emulated device: copy %llu fails, as its options say",
                      (unsigned long long)w->count);
  }
  if (queue->device->options.host_bandwidth <= 0)
    return OPIPE_OK;
  free_ns = free_ns < w->queued_ns ? w->queued_ns : free_ns;
  free_ns += emudev_host_ns(queue->device, w->regions[0].n_bytes);
  atomic_store_explicit(&queue->free_ns, free_ns, memory_order_relaxed);
  return OPIPE_OK;
}

static opipe_status write_now(opipe_queue *queue, const work *w, opipe_error *err) {
  const opipe_status status = queue->self->inner->write(queue->inner, &w->regions[0], w->from, err);
  return status < 0 ? status : take_time(queue, w, err);
}

opipe_status emudev_queue_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                                opipe_error *err) {
  const work w = {.act = write_now,
                  .regions = {emudev_region(dst)},
                  .from = src,
                  .count = atomic_fetch_add(&queue->device->n_copies, 1) + 1,
                  .queued_ns = emudev_now()};
  return emudev_do(queue, &w, err);
}

static opipe_status read_now(opipe_queue *queue, const work *w, opipe_error *err) {
  const opipe_status status = queue->self->inner->read(queue->inner, w->to, &w->regions[0], err);
  return status < 0 ? status : take_time(queue, w, err);
}

opipe_status emudev_queue_read(opipe_queue *queue, void *dst, const opipe_region *src,
                               opipe_error *err) {
  const work w = {.act = read_now,
                  .regions = {emudev_region(src)},
                  .to = dst,
                  .count = atomic_fetch_add(&queue->device->n_copies, 1) + 1,
                  .queued_ns = emudev_now()};
  return emudev_do(queue, &w, err);
}

static opipe_status copy_now(opipe_queue *queue, const work *w, opipe_error *err) {
  return queue->self->inner->copy(queue->inner, &w->regions[0], &w->regions[1], err);
}

opipe_status emudev_queue_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                               opipe_error *err) {
  const work w = {.act = copy_now, .regions = {emudev_region(dst), emudev_region(src)}};
  return emudev_do(queue, &w, err);
}
