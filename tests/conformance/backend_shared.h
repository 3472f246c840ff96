/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that are shared with others in the process: the slots behind `update`, each of which a
 * backend may lack.
 */
#ifndef CONFORMANCE_BACKEND_SHARED_H
#define CONFORMANCE_BACKEND_SHARED_H

#include "backend_kit.h"

#if OPIPE_ABI_MINOR >= 3
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { SHARED_BYTES = 4096 };

#define HAS_SLOT(s, slot) (OPIPE_HAS((s)->t, opipe_backend, slot) && (s)->t->slot != NULL)

static uint64_t host_bytes_of(const subject *s) {
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, host_bytes)};
  conf_ok(s->t->device_usage(s->device, &usage, &err), &err, "device_usage");
  return usage.host_bytes;
}

static uint64_t native_of(const subject *s, uint32_t what, const void *object) {
  uint64_t native = 0;
  err.message[0] = '\0';
  conf_ok(s->t->native(s->device, what, object, &native, &err), &err, "native");
  return native;
}

static void check_native(const subject *s, const opipe_buffer *buffer) {
  uint64_t native = 0;
  conf_case("native");
  if (!HAS_SLOT(s, native)) {
    conf_skip("the backend has no native handles to give");
    return;
  }
  (void)native_of(s, OPIPE_NATIVE_DEVICE, NULL);
  conf_check(native_of(s, OPIPE_NATIVE_KIND, NULL) != 0, "a kind of device that is 0");
  conf_check(native_of(s, OPIPE_NATIVE_QUEUE, s->queue) != 0, "a queue's is 0");
  conf_check(native_of(s, OPIPE_NATIVE_EVENT, s->event) != 0, "an event's is 0");
  conf_check(native_of(s, OPIPE_NATIVE_BUFFER, buffer) != 0, "a buffer's is 0");
  err.message[0] = '\0';
  conf_error(s->t->native(s->device, 99, buffer, &native, &err), OPIPE_E_UNSUPPORTED, &err,
             "native of an unknown kind");
}

static void count_call(void *ctx) {
  atomic_fetch_add((atomic_int *)ctx, 1);
}

/* Polls as a host does; the word may come a little after the event. */
static int calls_in_time(const subject *s, const atomic_int *n_calls) {
  const struct timespec pause = {0, 100000};
  for (int i = 0; i < 50000 && atomic_load(n_calls) == 0; ++i) {
    (void)s->t->event_poll(s->event, &err);
    (void)nanosleep(&pause, NULL);
  }
  return atomic_load(n_calls);
}

static void check_notify(const subject *s, opipe_buffer *buffer) {
  static unsigned char from[SHARED_BYTES], to[SHARED_BYTES];
  const opipe_region all = {buffer, 0, SHARED_BYTES};
  atomic_int n_calls = 0;
  conf_case("event_notify");
  if (!HAS_SLOT(s, event_notify)) {
    conf_skip("the backend does not tell when work is done");
    return;
  }
  for (int i = 0; i < SHARED_BYTES; ++i)
    from[i] = (unsigned char)(i * 3);
  const uint64_t before = conf_allocations();
  conf_ok(s->t->write(s->queue, &all, from, &err), &err, "write");
  conf_ok(s->t->read(s->queue, to, &all, &err), &err, "read");
  conf_ok(s->t->event_notify(s->queue, count_call, &n_calls, &err), &err, "event_notify");
  conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
  conf_check(calls_in_time(s, &n_calls) == 1, "%d calls", atomic_load(&n_calls));
  conf_check(memcmp(from, to, sizeof from) == 0, "it was called before the work was done");
  finish(s);
  conf_check(atomic_load(&n_calls) == 1, "%d calls", atomic_load(&n_calls));
  conf_check(conf_allocations() == before, "%llu allocations",
             (unsigned long long)(conf_allocations() - before));
}

static void round_trip(const subject *s, opipe_buffer *buffer, unsigned char *data) {
  static unsigned char seen[SHARED_BYTES];
  const opipe_region all = {buffer, 0, SHARED_BYTES};
  for (int i = 0; i < SHARED_BYTES; ++i)
    data[i] = (unsigned char)(i * 5 + 1);
  memcpy(seen, data, sizeof seen);
  conf_ok(s->t->write(s->queue, &all, data, &err), &err, "write from pinned memory");
  finish(s);
  memset(data, 0, SHARED_BYTES);
  conf_ok(s->t->read(s->queue, data, &all, &err), &err, "read to pinned memory");
  finish(s);
  conf_check(memcmp(data, seen, sizeof seen) == 0, "other bytes came back");
}

static void check_host_rate(const subject *s) {
#if OPIPE_TARGET_MINOR >= 5
  double rate = -1;
  conf_case("host_rate");
  if (!HAS_SLOT(s, host_rate))
    conf_skip("the backend tells no rate of copies to and from the host");
  else if (conf_ok(s->t->host_rate(s->device, &rate, &err), &err, "host_rate"))
    conf_check(rate >= 0 && rate <= 1e18, "%g bytes per second (0 to 1e18)", rate);
#else
  (void)s;
#endif
}

static void check_host_memory(const subject *s, opipe_buffer *buffer) {
  static unsigned char own[SHARED_BYTES] __attribute__((aligned(4096)));
  void *data = NULL;
  conf_case("host_alloc");
  if (!HAS_SLOT(s, host_alloc) || !HAS_SLOT(s, host_free)) {
    conf_skip("the backend pins no memory of its own");
  } else {
    const uint64_t before = host_bytes_of(s);
    if (conf_made(s->t->host_alloc(s->device, SHARED_BYTES, &data, &err), &data, &err,
                  "host_alloc")) {
      conf_check(host_bytes_of(s) >= before + SHARED_BYTES, "it is not in host_bytes");
      round_trip(s, buffer, data);
    }
    s->t->host_free(s->device, data);
    s->t->host_free(s->device, NULL);
    conf_check(host_bytes_of(s) == before, "host_bytes is %llu, it was %llu",
               (unsigned long long)host_bytes_of(s), (unsigned long long)before);
  }
  check_host_rate(s);
  conf_case("host_register");
  if (!HAS_SLOT(s, host_register) || !HAS_SLOT(s, host_unregister)) {
    conf_skip("the backend pins no memory of others");
    return;
  }
  if (!conf_ok(s->t->host_register(s->device, own, sizeof own, &err), &err, "host_register"))
    return;
  round_trip(s, buffer, own);
  err.message[0] = '\0';
  conf_error(s->t->host_register(s->device, own, sizeof own, &err), OPIPE_E_INVALID, &err,
             "host_register of what is registered");
  s->t->host_unregister(s->device, own);
  s->t->host_unregister(s->device, NULL);
  conf_ok(s->t->host_register(s->device, own, sizeof own, &err), &err, "host_register again");
  s->t->host_unregister(s->device, own);
}

static uint64_t live_of(const subject *s) {
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  uint64_t sum = 0;
  conf_ok(s->t->device_usage(s->device, &usage, &err), &err, "device_usage");
  for (int kind = 0; kind < OPIPE_BUFFER_KINDS; ++kind)
    sum += usage.live_bytes[kind];
  return sum;
}

static void check_buffer_import(const subject *s, opipe_buffer *buffer) {
  static unsigned char from[SHARED_BYTES], to[SHARED_BYTES];
  opipe_buffer *view = NULL;
  conf_case("buffer_import");
  const bool in_host = (s->info.flags & OPIPE_DEVICE_HOST_MEMORY) != 0;
  if (!HAS_SLOT(s, buffer_import) || (!HAS_SLOT(s, native) && !in_host)) {
    conf_skip("the backend takes no buffers of others");
    return;
  }
  void *data = NULL;
  if (!HAS_SLOT(s, native))
    conf_ok(s->t->buffer_host(buffer, &data, &err), &err, "buffer_host");
  const uint64_t before = live_of(s);
  const uint64_t native =
      data != NULL ? (uint64_t)(uintptr_t)data : native_of(s, OPIPE_NATIVE_BUFFER, buffer);
  err.message[0] = '\0';
  conf_error(s->t->buffer_import(s->device, native + 1, 64, &view, &err), OPIPE_E_INVALID, &err,
             "buffer_import of an address that is not aligned");
  if (!conf_made(s->t->buffer_import(s->device, native, SHARED_BYTES, &view, &err), &view, &err,
                 "buffer_import"))
    return;
  if (data != NULL) {
    void *again = NULL;
    conf_ok(s->t->buffer_host(view, &again, &err), &err, "buffer_host of an imported buffer");
    conf_check(again == data, "an imported buffer lies elsewhere");
  }
  const opipe_region theirs = {view, 0, SHARED_BYTES}, ours = {buffer, 0, SHARED_BYTES};
  conf_check(live_of(s) == before, "imported memory is counted");
  for (int i = 0; i < SHARED_BYTES; ++i)
    from[i] = (unsigned char)(i * 7 + 3);
  conf_ok(s->t->write(s->queue, &theirs, from, &err), &err, "write to an imported buffer");
  conf_ok(s->t->read(s->queue, to, &ours, &err), &err, "read");
  finish(s);
  conf_check(memcmp(from, to, sizeof from) == 0, "it is other memory");
  s->t->buffer_free(view);
  memset(to, 0, sizeof to);
  conf_ok(s->t->read(s->queue, to, &ours, &err), &err, "read");
  finish(s);
  conf_check(memcmp(from, to, sizeof from) == 0, "buffer_free of the import changed the memory");
  conf_check(live_of(s) == before, "buffer_free of the import gave bytes back");
}

static void check_event_import(const subject *s) {
  opipe_event *theirs = NULL;
  opipe_queue *other = NULL;
  conf_case("event_import");
  if (!HAS_SLOT(s, event_import) || !HAS_SLOT(s, native)) {
    conf_skip("the backend takes no events of others");
    return;
  }
  const uint64_t native = native_of(s, OPIPE_NATIVE_EVENT, s->event);
  if (!conf_made(s->t->event_import(s->device, native, &theirs, &err), &theirs, &err,
                 "event_import") ||
      !conf_made(s->t->queue_open(s->device, &other, &err), &other, &err, "queue_open")) {
    s->t->event_destroy(theirs);
    return;
  }
  conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
  conf_ok(s->t->event_wait(other, theirs, &err), &err, "event_wait for an imported event");
  conf_ok(s->t->event_sync(theirs, UINT64_C(10000000000), &err), &err,
          "event_sync of an imported event");
  conf_ok(s->t->event_poll(s->event, &err), &err, "event_poll behind the import's event_sync");
  err.message[0] = '\0';
  conf_error(s->t->event_record(other, theirs, &err), OPIPE_E_STATE, &err,
             "event_record of an imported event");
  s->t->event_destroy(theirs);
  finish(s); /* ours is as it was */
  s->t->queue_close(other);
}

static bool come_back(const subject *s, opipe_queue *queue, const opipe_region *src,
                      const unsigned char *wanted) {
  static unsigned char got[SHARED_BYTES];
  memset(got, 0, sizeof got);
  conf_ok(s->t->read(queue, got, src, &err), &err, "read");
  conf_ok(s->t->event_record(queue, s->event, &err), &err, "event_record");
  conf_ok(s->t->event_sync(s->event, UINT64_C(10000000000), &err), &err, "event_sync");
  return memcmp(got, wanted, sizeof got) == 0;
}

/* `theirs` is another name of `other`: what one waits for the other waits for. */
static void check_stream(const subject *s, const opipe_region *all, opipe_queue *other,
                         opipe_queue *theirs, opipe_event *event) {
  static unsigned char data[SHARED_BYTES];
  for (int i = 0; i < SHARED_BYTES; ++i)
    data[i] = (unsigned char)(i * 5 + 1);
  conf_ok(s->t->write(other, all, data, &err), &err, "write to their queue");
  conf_ok(s->t->event_record(theirs, event, &err), &err, "event_record on an imported queue");
  conf_ok(s->t->event_wait(s->queue, event, &err), &err, "event_wait for an imported queue");
  conf_check(come_back(s, s->queue, all, data),
             "a record on an imported queue stands before its work");
  memset(data, 0x5a, sizeof data);
  conf_ok(s->t->write(s->queue, all, data, &err), &err, "write");
  conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record");
  conf_ok(s->t->event_wait(theirs, s->event, &err), &err, "event_wait of an imported queue");
  conf_check(come_back(s, other, all, data), "an imported queue does not wait");
  err.message[0] = '\0';
  conf_error(s->t->write(theirs, all, data, &err), OPIPE_E_STATE, &err,
             "write to an imported queue");
}

static void check_queue_import(const subject *s, opipe_buffer *buffer) {
  const opipe_region all = {buffer, 0, SHARED_BYTES};
  opipe_queue *other = NULL, *theirs = NULL;
  opipe_event *event = NULL;
  conf_case("queue_import");
  if (!HAS_SLOT(s, queue_import) || !HAS_SLOT(s, native)) {
    conf_skip("the backend takes no queues of others");
    return;
  }
  if (conf_made(s->t->queue_open(s->device, &other, &err), &other, &err, "queue_open") &&
      conf_made(s->t->event_create(s->device, &event, &err), &event, &err, "event_create") &&
      conf_made(
          s->t->queue_import(s->device, native_of(s, OPIPE_NATIVE_QUEUE, other), &theirs, &err),
          &theirs, &err, "queue_import"))
    check_stream(s, &all, other, theirs, event);
  s->t->queue_close(theirs);
  finish(s); /* theirs is as it was: */
  if (other != NULL) {
    conf_ok(s->t->event_record(other, s->event, &err), &err,
            "event_record behind the import's queue_close");
    conf_ok(s->t->event_sync(s->event, UINT64_C(10000000000), &err), &err, "event_sync");
  }
  s->t->event_destroy(event);
  s->t->queue_close(other);
}

static void check_event_signal(const subject *s, opipe_buffer *buffer) {
  static unsigned char data[SHARED_BYTES], got[SHARED_BYTES];
  const opipe_region all = {buffer, 0, SHARED_BYTES};
  opipe_event *event = NULL, *theirs = NULL;
  conf_case("event_signal");
  if (!HAS_SLOT(s, event_signal) || !HAS_SLOT(s, event_import) || !HAS_SLOT(s, native)) {
    conf_skip("the backend records no events of others");
    return;
  }
  memset(data, 0x3c, sizeof data);
  if (!conf_made(s->t->event_create(s->device, &event, &err), &event, &err, "event_create"))
    return;
  const uint64_t native = native_of(s, OPIPE_NATIVE_EVENT, event);
  if (conf_made(s->t->event_import(s->device, native, &theirs, &err), &theirs, &err,
                "event_import")) {
    conf_ok(s->t->write(s->queue, &all, data, &err), &err, "write");
    conf_ok(s->t->read(s->queue, got, &all, &err), &err, "read");
    conf_ok(s->t->event_signal(s->queue, native, &err), &err, "event_signal");
    conf_ok(s->t->event_sync(theirs, UINT64_C(10000000000), &err), &err,
            "event_sync of a signalled event");
    conf_check(memcmp(data, got, sizeof got) == 0, "it was signalled before what stands before it");
  }
  s->t->event_destroy(theirs);
  finish(s);
  s->t->event_destroy(event);
}

static void check_abort(const subject *s, opipe_buffer *buffer) {
  static unsigned char data[SHARED_BYTES];
  const opipe_region all = {buffer, 0, SHARED_BYTES};
  opipe_queue *queue = NULL;
  conf_case("queue_abort");
  if (!HAS_SLOT(s, queue_abort)) {
    conf_skip("the backend gives no queue up");
    return;
  }
  if (!conf_made(s->t->queue_open(s->device, &queue, &err), &queue, &err, "queue_open"))
    return;
  conf_ok(s->t->write(queue, &all, data, &err), &err, "write");
  conf_ok(s->t->event_record(queue, s->event, &err), &err, "event_record");
  conf_ok(s->t->event_sync(s->event, UINT64_C(10000000000), &err), &err, "event_sync");
  conf_ok(s->t->queue_abort(queue, &err), &err, "queue_abort");
  conf_ok(s->t->queue_abort(queue, &err), &err, "queue_abort again");
  err.message[0] = '\0';
  conf_error(s->t->write(queue, &all, data, &err), OPIPE_E_CANCELLED, &err, "write behind it");
  err.message[0] = '\0';
  conf_error(s->t->event_record(queue, s->event, &err), OPIPE_E_CANCELLED, &err,
             "event_record behind it");
  s->t->queue_close(queue);
  finish(s); /* another queue does not care */
}

static void check_shared(const subject *s) {
  opipe_buffer *buffer = NULL;
  conf_case("shared devices");
  if (!OPIPE_HAS(s->t, opipe_backend, buffer_import)) {
    conf_skip("the backend was built before it could share devices");
    return;
  }
  if (!conf_made(s->t->buffer_alloc(s->device, SHARED_BYTES, OPIPE_BUFFER_STAGING, &buffer, &err),
                 &buffer, &err, "buffer_alloc"))
    return;
  check_native(s, buffer);
  check_notify(s, buffer);
  check_host_memory(s, buffer);
  check_buffer_import(s, buffer);
  check_event_import(s);
  check_abort(s, buffer);
  check_queue_import(s, buffer);
  check_event_signal(s, buffer);
  s->t->buffer_free(buffer);
}
#else
static void check_shared(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_BACKEND_SHARED_H */
