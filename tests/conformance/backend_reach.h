/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other devices and processes: what a device says that it reaches, and handles, which the
 * process that made them can open, too.
 */
#ifndef CONFORMANCE_BACKEND_REACH_H
#define CONFORMANCE_BACKEND_REACH_H

#include "backend_shared.h"

#if OPIPE_TARGET_MINOR >= 5

static void check_reach(const subject *s, uint32_t *out_reach) {
  const uint32_t known = OPIPE_REACH_PEER | OPIPE_REACH_SHARED;
  uint32_t n = 0, reach = 0;
  conf_case("device_reach");
  *out_reach = 0;
  if (!HAS_SLOT(s, device_reach)) {
    conf_skip("the backend does not say what its devices reach");
    return;
  }
  conf_ok(s->t->device_count(s->self, &n, &err), &err, "device_count");
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t again = ~0u;
    conf_ok(s->t->device_reach(s->self, s->index, i, &reach, &err), &err, "device_reach");
    conf_ok(s->t->device_reach(s->self, s->index, i, &again, &err), &err, "device_reach");
    conf_check(reach == again, "devices %u and %u: 0x%x, then 0x%x", s->index, i, reach, again);
    conf_check((reach & ~known) == 0, "devices %u and %u: 0x%x, known are 0x%x", s->index, i, reach,
               known);
    conf_check((reach & OPIPE_REACH_SHARED) == 0 || (reach & OPIPE_REACH_PEER) != 0,
               "device %u reaches shared memory of device %u alone", s->index, i);
    if (i == s->index)
      *out_reach = reach;
  }
  conf_check((*out_reach & OPIPE_REACH_PEER) != 0, "the device does not reach itself");
  err.message[0] = '\0';
  conf_error(s->t->device_reach(s->self, s->index, n, &reach, &err), OPIPE_E_NOTFOUND, &err,
             "device_reach of a device that is not there");
}

static void check_shared_buffer(const subject *s, opipe_buffer *buffer) {
  static unsigned char from[SHARED_BYTES], to[SHARED_BYTES];
  opipe_shared shared;
  opipe_buffer *view = NULL;
  memset(&shared, 0, sizeof shared);
  if (!conf_ok(s->t->buffer_share(buffer, &shared, &err), &err, "buffer_share"))
    return;
  conf_check(shared.n_bytes >= SHARED_BYTES, "a handle of %llu bytes, the buffer has %d",
             (unsigned long long)shared.n_bytes, SHARED_BYTES);
  const uint64_t before = live_of(s);
  if (!conf_made(s->t->buffer_open(s->device, &shared, SHARED_BYTES, &view, &err), &view, &err,
                 "buffer_open"))
    return;
  const opipe_region theirs = {view, 0, SHARED_BYTES}, ours = {buffer, 0, SHARED_BYTES};
  for (int i = 0; i < SHARED_BYTES; ++i)
    from[i] = (unsigned char)(i * 11 + 5);
  conf_check(live_of(s) == before, "an opened buffer is counted");
  conf_ok(s->t->write(s->queue, &theirs, from, &err), &err, "write to an opened buffer");
  conf_ok(s->t->read(s->queue, to, &ours, &err), &err, "read");
  finish(s);
  conf_check(memcmp(from, to, sizeof from) == 0, "it is other memory");
  s->t->buffer_free(view);
  s->t->buffer_unshare(buffer, 1);
}

static void check_shared_event(const subject *s) {
  opipe_shared shared;
  opipe_event *own = NULL, *theirs = NULL;
  memset(&shared, 0, sizeof shared);
  if (!conf_made(s->t->event_create_shared(s->device, &own, &shared, &err), &own, &err,
                 "event_create_shared"))
    return;
  if (conf_made(s->t->event_open(s->device, &shared, &theirs, &err), &theirs, &err, "event_open")) {
    conf_ok(s->t->event_record(s->queue, own, &err), &err, "event_record");
    conf_ok(s->t->event_sync(theirs, UINT64_C(10000000000), &err), &err,
            "event_sync of an opened event");
    conf_ok(s->t->event_poll(own, &err), &err, "event_poll behind it");
    err.message[0] = '\0';
    conf_error(s->t->event_record(s->queue, theirs, &err), OPIPE_E_STATE, &err,
               "event_record of an opened event");
    s->t->event_destroy(theirs);
  }
  s->t->event_destroy(own);
}

static void check_shares(const subject *s) {
  uint32_t reach = 0;
  opipe_buffer *buffer = NULL;
  check_reach(s, &reach);
  conf_case("buffer_share");
  if (!HAS_SLOT(s, buffer_share) || (reach & OPIPE_REACH_SHARED) == 0) {
    conf_skip("the device shares nothing with other processes");
    return;
  }
  if (conf_made(s->t->buffer_alloc(s->device, SHARED_BYTES, OPIPE_BUFFER_BOUNDARY, &buffer, &err),
                &buffer, &err, "buffer_alloc"))
    check_shared_buffer(s, buffer);
  s->t->buffer_free(buffer);
  conf_case("event_create_shared");
  check_shared_event(s);
}

#else
static void check_shares(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_BACKEND_REACH_H */
