/* SPDX-License-Identifier: Apache-2.0 */
/* Work of a queue: done within the call, or later by the queue's own thread.
 *
 * An asynchronous queue is a ring that is made with it, so that no call allocates; calls that find
 * it full are refused, since they may not block. The thread takes operations in order. Before each
 * it lets the modelled time of what was done before pass: memory changes, and results are there,
 * when they would be on such a device, and not before.
 */
#include <sched.h>
#include <time.h>

#include "emulated.h"

/* ---- the caller's side ---- */

opipe_status emudev_push(opipe_queue *queue, const work *w, opipe_error *err) {
  const uint32_t most = queue->device->options.queued_most;
  if (queue->n_queued - queue->n_done >= most) {
    return opipe_fail(err, OPIPE_E_NOMEM,
                      "emulated device: %llu operations wait in the queue, which has room for %u "
                      "(option queue=N)",
                      (unsigned long long)(queue->n_queued - queue->n_done), most);
  }
  work *slot = &queue->ring[queue->n_queued % most];
  *slot = *w;
  if (w->n_scalars != 0) {
    memcpy(slot->copied.scalars, w->scalars, w->n_scalars * sizeof *w->scalars);
    slot->scalars = slot->copied.scalars;
  }
  if (w->n_sources != 0)
    slot->sources = slot->copied.sources; /* copied with it */
  ++queue->n_queued;
  (void)pthread_cond_signal(&queue->posted);
  return OPIPE_OK;
}

opipe_status emudev_do(opipe_queue *queue, const work *w, opipe_error *err) {
  if (!queue->device->options.async)
    return w->act(queue, w, err);
  pthread_mutex_t *lock = &queue->self->lock;
  (void)pthread_mutex_lock(lock);
  const opipe_status status = emudev_push(queue, w, err);
  (void)pthread_mutex_unlock(lock);
  return status;
}

void emudev_queue_drop(opipe_queue *queue) {
  if (queue == NULL || --queue->n_users != 0)
    return;
  (void)pthread_cond_destroy(&queue->posted);
  (void)pthread_cond_destroy(&queue->moved);
  emudev_give(queue->self, queue, sizeof *queue);
}

void emudev_event_drop(opipe_event *event) {
  if (--event->n_users == 0)
    emudev_free(event->device, event, sizeof *event);
}

/* ---- the thread's side ---- */

/* Until what was done has taken its modelled time, or somebody is in a hurry. A sleeper is woken
 * late: the last stretch is watched. */
static void pass_time(opipe_queue *queue) {
  pthread_mutex_t *lock = &queue->self->lock;
  const uint64_t until = atomic_load_explicit(&queue->free_ns, memory_order_relaxed);
  if (emudev_now() >= until)
    return;
  const uint64_t asleep = until > EMUDEV_WATCHED_NS ? until - EMUDEV_WATCHED_NS : 0;
  const struct timespec t = emudev_timespec(asleep);
  (void)pthread_mutex_lock(lock);
  while (queue->n_hurries == 0 && emudev_now() < asleep)
    (void)pthread_cond_timedwait(&queue->posted, lock, &t);
  const bool hurried = queue->n_hurries != 0;
  (void)pthread_mutex_unlock(lock);
  while (!hurried && emudev_now() < until)
    (void)sched_yield();
}

static void *work_through(void *argument) {
  opipe_queue *queue = argument;
  pthread_mutex_t *lock = &queue->self->lock;
  const uint32_t most = queue->device->options.queued_most;
  opipe_thread_enter("opipe-emulated");
  (void)pthread_mutex_lock(lock);
  for (;;) {
    while (queue->n_done == queue->n_queued && !queue->closing)
      (void)pthread_cond_wait(&queue->posted, lock);
    if (queue->n_done == queue->n_queued)
      break;
    const work *w = &queue->ring[queue->n_done % most]; /* nobody's but ours until it is done */
    (void)pthread_mutex_unlock(lock);
    opipe_error why = OPIPE_ERROR_INIT;
    if (!w->at_once)
      pass_time(queue);
    opipe_late_add(&queue->late, w->act(queue, w, &why), &why);
    (void)pthread_mutex_lock(lock);
    const bool told = w->event != NULL || queue->n_hurries != 0;
    ++queue->n_done;
    if (told)
      (void)pthread_cond_broadcast(&queue->moved);
  }
  (void)pthread_mutex_unlock(lock);
  return NULL;
}

/* ---- its life ---- */

static opipe_status errno_of(int failed, const char *what, opipe_error *err) {
  const opipe_status status =
      opipe_fail(err, OPIPE_E_IO, "backend 'emulated': %s: %s", what, strerror(failed));
  if (err != NULL) {
    err->domain = OPIPE_DOMAIN_ERRNO;
    err->native = failed;
  }
  return status;
}

/* Deadlines are of the clock that emudev_now reads. */
static int make_conditions(opipe_queue *queue) {
  pthread_condattr_t attributes;
  int failed = pthread_condattr_init(&attributes);
  if (failed != 0)
    return failed;
  failed = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  if (failed == 0)
    failed = pthread_cond_init(&queue->posted, &attributes);
  if (failed == 0) {
    failed = pthread_cond_init(&queue->moved, &attributes);
    if (failed != 0)
      (void)pthread_cond_destroy(&queue->posted);
  }
  (void)pthread_condattr_destroy(&attributes);
  return failed;
}

opipe_status emudev_thread_start(opipe_queue *queue, opipe_error *err) {
  opipe_device *device = queue->device;
  const size_t n_bytes = device->options.queued_most * sizeof *queue->ring;
  queue->ring = emudev_alloc(device, n_bytes);
  if (queue->ring == NULL)
    return emudev_nomem(n_bytes, err);
  int failed = make_conditions(queue);
  if (failed == 0) {
    failed = opipe_thread_create(&queue->thread, NULL, work_through, queue);
    if (failed == 0)
      goto started;
    (void)pthread_cond_destroy(&queue->posted);
    (void)pthread_cond_destroy(&queue->moved);
  }
  emudev_free(device, queue->ring, n_bytes);
  return errno_of(failed, "a queue's thread cannot be started", err);
started:
  queue->n_users = 1;
  (void)pthread_mutex_lock(&queue->self->lock);
  queue->next = device->queues;
  device->queues = queue;
  (void)pthread_mutex_unlock(&queue->self->lock);
  return OPIPE_OK;
}

void emudev_thread_end(opipe_queue *queue) {
  pthread_mutex_t *lock = &queue->self->lock;
  opipe_device *device = queue->device;
  opipe_queue **at = &device->queues;
  (void)pthread_mutex_lock(lock);
  queue->closing = true;
  ++queue->n_hurries;
  (void)pthread_cond_signal(&queue->posted);
  (void)pthread_mutex_unlock(lock);
  (void)pthread_join(queue->thread, NULL);
  (void)pthread_mutex_lock(lock);
  while (*at != queue)
    at = &(*at)->next;
  *at = queue->next;
  work *ring = queue->ring;
  queue->ring = NULL;
  (void)pthread_mutex_unlock(lock);
  emudev_free(device, ring, device->options.queued_most * sizeof *ring);
}
