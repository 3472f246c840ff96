/* SPDX-License-Identifier: Apache-2.0 */
/* When work was done, by the device's own clock: two slots that a backend may lack. */
#ifndef CONFORMANCE_BACKEND_TIMED_H
#define CONFORMANCE_BACKEND_TIMED_H

#include "backend_shared.h"

#if OPIPE_ABI_MINOR >= 3

enum { TIMED = 4, TIMED_BYTES = 4096, TIMED_STEP_NS = 2000 };

typedef struct timed {
  opipe_buffer *buffer;
  opipe_queue *queue; /* a second one */
  opipe_event *events[TIMED];
} timed;

static int64_t elapsed_ns(const subject *s, opipe_event *from, opipe_event *to) {
  int64_t ns = INT64_MIN;
  err.message[0] = '\0';
  conf_ok(s->t->event_elapsed(from, to, &ns, &err), &err, "event_elapsed");
  return ns;
}

static void sync_timed(const subject *s, opipe_event *event) {
  conf_ok(s->t->event_sync(event, UINT64_C(10000000000), &err), &err, "event_sync");
}

/* Something that takes the queue a while, then the event. */
static void record_behind_work(const subject *s, const timed *x, opipe_queue *queue,
                               opipe_event *event) {
  static unsigned char data[TIMED_BYTES];
  const opipe_region all = {x->buffer, 0, TIMED_BYTES};
  for (int i = 0; i < 4; ++i)
    conf_ok(s->t->write(queue, &all, data, &err), &err, "write");
  conf_ok(s->t->event_record(queue, event, &err), &err, "event_record");
}

static void check_refused(const subject *s, const timed *x) {
  int64_t ns = 77;
  conf_error(s->t->event_elapsed(x->events[0], x->events[1], &ns, &err), OPIPE_E_INVALID, &err,
             "event_elapsed of events that were never recorded");
  finish(s);
  conf_error(s->t->event_elapsed(s->event, x->events[1], &ns, &err), OPIPE_E_INVALID, &err,
             "event_elapsed from an event that is not timed");
  conf_ok(s->t->event_record(s->queue, x->events[0], &err), &err, "event_record");
  sync_timed(s, x->events[0]);
  conf_error(s->t->event_elapsed(x->events[0], s->event, &ns, &err), OPIPE_E_INVALID, &err,
             "event_elapsed to an event that is not timed");
  conf_check(ns == 77, "an output is set by a call that was refused");
}

/* One queue's events come in their order; times add up. */
static void check_order(const subject *s, const timed *x) {
  const uint64_t before = conf_allocations();
  int64_t ns = 0;
  for (int i = 0; i < TIMED; ++i)
    record_behind_work(s, x, s->queue, x->events[i]);
  err.message[0] = '\0';
  const opipe_status early = s->t->event_elapsed(x->events[0], x->events[TIMED - 1], &ns, &err);
  conf_check(early == OPIPE_OK || early == OPIPE_PENDING, "event_elapsed of queued events: %d: %s",
             (int)early, err.message);
  sync_timed(s, x->events[TIMED - 1]);
  int64_t sum = 0;
  for (int i = 1; i < TIMED; ++i) {
    const int64_t step = elapsed_ns(s, x->events[i - 1], x->events[i]);
    conf_check(step >= 0, "event %d came %lld ns before the one in front of it", i,
               (long long)-step);
    sum += step;
  }
  const int64_t all = elapsed_ns(s, x->events[0], x->events[TIMED - 1]);
  conf_check(all - sum <= TIMED_STEP_NS * TIMED && sum - all <= TIMED_STEP_NS * TIMED,
             "%lld ns in all, %lld one by one", (long long)all, (long long)sum);
  const int64_t back = elapsed_ns(s, x->events[TIMED - 1], x->events[0]);
  conf_check(back + all <= TIMED_STEP_NS && back + all >= -TIMED_STEP_NS,
             "%lld ns there, %lld back", (long long)all, (long long)back);
  conf_check(elapsed_ns(s, x->events[0], x->events[0]) == 0, "an event is not with itself");
  conf_check(conf_allocations() == before, "%llu allocations",
             (unsigned long long)(conf_allocations() - before));
}

/* Waiting work comes later, on another queue and from another opening too. */
static void check_across(const subject *s, const timed *x) {
  opipe_device *device = NULL;
  opipe_queue *queue = NULL;
  opipe_event *other = NULL;
  record_behind_work(s, x, s->queue, x->events[0]);
  conf_ok(s->t->event_wait(x->queue, x->events[0], &err), &err, "event_wait");
  record_behind_work(s, x, x->queue, x->events[1]);
  sync_timed(s, x->events[1]);
  const int64_t waited = elapsed_ns(s, x->events[0], x->events[1]);
  conf_check(waited >= 0, "a program that waits for an event came %lld ns before it",
             (long long)-waited);
  if (conf_made(open_device(s, 0, NULL, &device), &device, &err, "device_open") &&
      conf_made(s->t->queue_open(device, &queue, &err), &queue, &err, "queue_open") &&
      conf_made(s->t->event_create_timed(device, &other, &err), &other, &err,
                "event_create_timed")) {
    conf_ok(s->t->event_record(queue, other, &err), &err, "event_record");
    sync_timed(s, other);
    const int64_t later = elapsed_ns(s, x->events[1], other);
    conf_check(later >= -TIMED_STEP_NS, "another opening's event came %lld ns before",
               (long long)-later);
  }
  s->t->event_destroy(other);
  s->t->queue_close(queue);
  s->t->device_close(device);
}

static void check_timed(const subject *s) {
  timed x = {NULL, NULL, {NULL}};
  conf_case("events that keep the time");
  if (!HAS_SLOT(s, event_elapsed)) {
    conf_skip("the backend does not tell its device's time");
    return;
  }
  bool made =
      conf_made(s->t->buffer_alloc(s->device, TIMED_BYTES, OPIPE_BUFFER_STAGING, &x.buffer, &err),
                &x.buffer, &err, "buffer_alloc") &&
      conf_made(s->t->queue_open(s->device, &x.queue, &err), &x.queue, &err, "queue_open");
  for (int i = 0; i < TIMED && made; ++i) {
    made = conf_made(s->t->event_create_timed(s->device, &x.events[i], &err), &x.events[i], &err,
                     "event_create_timed");
  }
  if (made) {
    conf_check(s->t->event_poll(x.events[0], &err) == OPIPE_OK,
               "a timed event that was never recorded is not complete");
    check_refused(s, &x);
    check_order(s, &x);
    check_across(s, &x);
  }
  for (int i = 0; i < TIMED; ++i)
    s->t->event_destroy(x.events[i]);
  s->t->queue_close(x.queue);
  s->t->buffer_free(x.buffer);
}
#else
static void check_timed(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_BACKEND_TIMED_H */
