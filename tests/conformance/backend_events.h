/* SPDX-License-Identifier: Apache-2.0 */
/* Events say when work is done, not before; queues wait for each other; a wait ends when it was
 * told to.
 */
#ifndef CONFORMANCE_BACKEND_EVENTS_H
#define CONFORMANCE_BACKEND_EVENTS_H

#include <time.h>

#include "backend_kit.h"

enum { WORK_BYTES = 1 << 18, WORK_TURNS = 8 };
static unsigned char work_before[WORK_BYTES], work_data[WORK_BYTES], work_seen[WORK_BYTES];

static void set_work(uint32_t turn) {
  for (uint32_t i = 0; i < WORK_BYTES; ++i)
    work_data[i] = (unsigned char)(i * 5 + i / 256 + turn * 31);
  memset(work_seen, 0, sizeof work_seen);
}

static opipe_status poll_until(const subject *s, opipe_event *event) {
  const uint64_t start = conf_host.now_ns(NULL);
  opipe_status status = OPIPE_PENDING;
  err.message[0] = '\0';
  while (status == OPIPE_PENDING && conf_host.now_ns(NULL) - start < conf_patience_ns())
    status = s->t->event_poll(event, &err);
  return status;
}

/* Work in front of an event is done when the event is complete, however often it is recorded. */
static void check_behind(const subject *s, const opipe_region *all) {
  const uint64_t before = conf_allocations();
  for (uint32_t turn = 0; turn < WORK_TURNS; ++turn) {
    set_work(turn);
    conf_ok(s->t->write(s->queue, all, work_data, &err), &err, "write");
    conf_ok(s->t->read(s->queue, work_seen, all, &err), &err, "read");
    conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
    if (turn % 2 == 0)
      conf_ok(poll_until(s, s->event), &err, "event_poll");
    else
      conf_ok(s->t->event_sync(s->event, conf_patience_ns(), &err), &err, "event_sync");
    conf_check(memcmp(work_data, work_seen, sizeof work_seen) == 0,
               "an event is complete before the work in front of it");
  }
  conf_check(conf_allocations() == before, "%llu allocations while data was moved",
             (unsigned long long)(conf_allocations() - before));
}

/* Later work of a queue waits for an event of another one. */
static void check_across_queues(const subject *s, const opipe_region *all,
                                const opipe_region *copy) {
  opipe_queue *other = NULL;
  opipe_event *done = NULL;
  if (conf_made(s->t->queue_open(s->device, &other, &err), &other, &err, "queue_open") &&
      conf_made(s->t->event_create(s->device, &done, &err), &done, &err, "event_create")) {
    for (uint32_t turn = 0; turn < WORK_TURNS; ++turn) {
      set_work(turn + 100);
      for (int i = 0; i < WORK_TURNS; ++i) /* it has something to do before */
        conf_ok(s->t->write(s->queue, all, work_before, &err), &err, "write");
      conf_ok(s->t->write(s->queue, all, work_data, &err), &err, "write");
      conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
      conf_ok(s->t->event_wait(other, s->event, &err), &err, "event_wait");
      conf_ok(s->t->copy(other, copy, all, &err), &err, "copy");
      conf_ok(s->t->read(other, work_seen, copy, &err), &err, "read");
      conf_ok(s->t->event_record(other, done, &err), &err, "event_record");
      conf_ok(s->t->event_sync(done, conf_patience_ns(), &err), &err, "event_sync");
      conf_check(memcmp(work_data, work_seen, sizeof work_seen) == 0,
                 "a queue does not wait for another one's event");
    }
  }
  s->t->event_destroy(done);
  s->t->queue_close(other);
}

/* event_sync ends when its time is over. Only what is not complete at once can show it. */
static void check_timeout(const subject *s, const opipe_region *all) {
  enum { TRIES = 3 };
  const uint64_t timeout_ns = 1000000;
  uint32_t n_late = 0, n_pending = 0;
  for (uint32_t turn = 0; turn < TRIES; ++turn) {
    for (int i = 0; i < WORK_TURNS; ++i)
      conf_ok(s->t->write(s->queue, all, work_data, &err), &err, "write");
    conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
    n_pending += s->t->event_poll(s->event, &err) == OPIPE_PENDING;
    const uint64_t start = conf_host.now_ns(NULL);
    err.message[0] = '\0';
    const opipe_status status = s->t->event_sync(s->event, timeout_ns, &err);
    n_late += conf_host.now_ns(NULL) - start > 20 * timeout_ns && status == OPIPE_OK;
    if (status != OPIPE_OK)
      conf_error(status, OPIPE_E_TIMEOUT, &err, "event_sync of work that takes longer");
    finish(s);
  }
  conf_check(n_late < TRIES || n_pending < TRIES,
             "event_sync waits for the event, however little time it is given");
}

static void check_events(const subject *s) {
  opipe_buffer *buffer = NULL;
  conf_case("events");
  if (conf_made(s->t->buffer_alloc(s->device, 2 * WORK_BYTES, OPIPE_BUFFER_STAGING, &buffer, &err),
                &buffer, &err, "buffer_alloc")) {
    const opipe_region all = {buffer, 0, WORK_BYTES}, copy = {buffer, WORK_BYTES, WORK_BYTES};
    check_behind(s, &all);
    check_across_queues(s, &all, &copy);
    check_timeout(s, &all);
  }
  s->t->buffer_free(buffer);
}

/* ---- behind a run ---- */

static bool is_near(const float *got, const float *wanted) {
  bool near = true;
  for (int i = 0; i < N; ++i)
    near = near && got[i] - wanted[i] <= 1e-4f && wanted[i] - got[i] <= 1e-4f;
  return near;
}

/* The results of a run can be read when an event behind it is complete. */
static void check_run_event(const subject *s, const bound *b, const float *x) {
  static float sum[N], y[N], got[N];
  memset(got, 0, sizeof got);
  expected(x, sum, y);
  conf_ok(s->t->write(s->queue, &b->regions[0][1], got, &err), &err, "write");
  finish(s);
  conf_ok(s->t->write(s->queue, &b->regions[0][0], x, &err), &err, "write");
  conf_ok(s->t->run(b->bindings[0], s->queue, NULL, 0, &err), &err, "run");
  conf_ok(s->t->read(s->queue, got, &b->regions[0][1], &err), &err, "read");
  conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
  conf_ok(poll_until(s, s->event), &err, "event_poll");
  conf_check(is_near(got, sum), "an event is complete before the run in front of it");
  finish(s);
}

/* Another queue waits for what is written behind a run. */
static void check_run_wait(const subject *s, const bound *b, opipe_queue *other, opipe_event *done,
                           const float *x) {
  static float got[N];
  memset(got, 0, sizeof got);
  conf_ok(s->t->write(s->queue, &b->regions[0][0], got, &err), &err, "write");
  finish(s);
  conf_ok(s->t->run(b->bindings[0], s->queue, NULL, 0, &err), &err, "run");
  conf_ok(s->t->write(s->queue, &b->regions[0][0], x, &err), &err, "write");
  conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
  conf_ok(s->t->event_wait(other, s->event, &err), &err, "event_wait");
  conf_ok(s->t->read(other, got, &b->regions[0][0], &err), &err, "read");
  conf_ok(s->t->event_record(other, done, &err), &err, "event_record");
  conf_ok(s->t->event_sync(done, conf_patience_ns(), &err), &err, "event_sync");
  conf_check(is_near(got, x), "a queue does not wait for another one's event");
  finish(s);
}

static void check_run_events(const subject *s, const bound *b) {
  static float x[N];
  opipe_queue *other = NULL;
  opipe_event *done = NULL;
  conf_case("events behind runs");
  if (conf_made(s->t->queue_open(s->device, &other, &err), &other, &err, "queue_open") &&
      conf_made(s->t->event_create(s->device, &done, &err), &done, &err, "event_create")) {
    for (int turn = 0; turn < WORK_TURNS; ++turn) {
      for (int i = 0; i < N; ++i)
        x[i] = (float)(i + turn) * 0.5f + 1.0f;
      check_run_event(s, b, x);
      check_run_wait(s, b, other, done, x);
    }
  }
  s->t->event_destroy(done);
  s->t->queue_close(other);
}

#endif /* CONFORMANCE_BACKEND_EVENTS_H */
