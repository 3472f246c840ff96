/* SPDX-License-Identifier: Apache-2.0 */
/* How messages travel, as plans are told for devices of any kind, and sessions for their streams:
 * an answer that the header knows, the same when it is asked again, with a reason where it is not a
 * good one, and pinned memory of the host only where messages go through the host.
 */
#ifndef CONFORMANCE_TRANSPORT_WAYS_H
#define CONFORMANCE_TRANSPORT_WAYS_H

#include "transport_kit.h"

#if OPIPE_ABI_MINOR >= 5

static bool has_ways(const subject *s) {
  return OPIPE_HAS(s->t, opipe_transport, stream_way) && s->t->way != NULL &&
         s->t->stream_way != NULL;
}

/* ---- an answer ---- */

/* An answer, with room behind it as in a struct of a newer minor. */
typedef struct way_room {
  opipe_way way;
  unsigned char newer[24];
} way_room;

static way_room room_for_way(bool newer) {
  way_room room;
  memset(&room, 0x5a, sizeof room);
  room.way.struct_size = newer ? (uint32_t)sizeof room : (uint32_t)sizeof room.way;
  return room;
}

static bool goes_through_host(uint32_t way) {
  return way == OPIPE_WAY_STAGED || way == OPIPE_WAY_PAGEABLE;
}

static void check_way(const subject *s, const opipe_way *way, const char *what) {
  const uint64_t n_bytes = way->src_bytes + way->dst_bytes;
  if (!conf_check(way->way < OPIPE_WAY_KINDS && (s->newer || way->way <= OPIPE_WAY_PAGEABLE),
                  "%s: way %u is none of the header's", what, way->way) ||
      !conf_check(memchr(way->why, '\0', sizeof way->why) != NULL, "%s: its reason has no end",
                  what))
    return;
  conf_check(goes_through_host(way->way) || n_bytes == 0,
             "%s: way %u takes %llu bytes of pinned memory, which it has no use for", what,
             way->way, (unsigned long long)n_bytes);
  if (way->way > OPIPE_WAY_PAGEABLE)
    return;
  conf_check(goes_through_host(way->way) == (way->why[0] != '\0'), "%s: way %u for the reason '%s'",
             what, way->way, way->why);
}

static void check_same_way(const way_room *a, const way_room *b, const char *what) {
  conf_check(a->way.way == b->way.way && a->way.src_bytes == b->way.src_bytes &&
                 a->way.dst_bytes == b->way.dst_bytes && strcmp(a->way.why, b->way.why) == 0,
             "%s: way %u and %llu bytes, and then way %u and %llu bytes", what, a->way.way,
             (unsigned long long)(a->way.src_bytes + a->way.dst_bytes), b->way.way,
             (unsigned long long)(b->way.src_bytes + b->way.dst_bytes));
  conf_check(b->newer[0] == 0x5a && b->newer[sizeof b->newer - 1] == 0x5a,
             "%s: something is written beyond what is known", what);
}

/* ---- for plans ---- */

/* Kinds of devices: with host memory; without it; without it, but reaching each other's memory. */
enum { KIND_HOST, KIND_FAR, KIND_NEAR, DEVICE_KINDS };

static opipe_status query_far(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                              opipe_error *err) {
  (void)self, (void)index, (void)err;
  io_info->flags = 0;
  return OPIPE_OK;
}

static opipe_status reach_itself(opipe_instance *self, uint32_t index, uint32_t other,
                                 uint32_t *out_reach, opipe_error *err) {
  (void)self, (void)err;
  *out_reach = index == other ? OPIPE_REACH_PEER : 0;
  return OPIPE_OK;
}

static opipe_status reach_all(opipe_instance *self, uint32_t index, uint32_t other,
                              uint32_t *out_reach, opipe_error *err) {
  (void)self, (void)index, (void)other, (void)err;
  *out_reach = OPIPE_REACH_PEER | OPIPE_REACH_SHARED;
  return OPIPE_OK;
}

/* No device is open when a plan is made: slots that need one are there, and are not called. */
static opipe_status refuse_native(opipe_device *device, uint32_t what, const void *object,
                                  uint64_t *out_native, opipe_error *err) {
  (void)device, (void)what, (void)object, (void)out_native;
  conf_check(false, "way calls native");
  return opipe_fail(err, OPIPE_E_STATE, "no device is open");
}

static opipe_status refuse_import(opipe_device *device, uint64_t native, uint64_t n_bytes,
                                  opipe_buffer **out_buffer, opipe_error *err) {
  (void)device, (void)native, (void)n_bytes, (void)out_buffer;
  conf_check(false, "way calls buffer_import");
  return opipe_fail(err, OPIPE_E_STATE, "no device is open");
}

static opipe_status refuse_pin(opipe_device *device, void *data, uint64_t n_bytes,
                               opipe_error *err) {
  (void)device, (void)data, (void)n_bytes;
  conf_check(false, "way calls host_register");
  return opipe_fail(err, OPIPE_E_STATE, "no device is open");
}

static void unpin(opipe_device *device, void *data) {
  (void)device, (void)data;
}

static const opipe_backend *backend_of_kind(uint32_t kind) {
  static opipe_backend tables[DEVICE_KINDS];
  opipe_backend *b = &tables[kind];
  memcpy(b, &memory_only, memory_only.struct_size);
  b->struct_size = (uint32_t)sizeof *b;
  b->device_query = kind == KIND_HOST ? query_host : query_far;
  if (kind != KIND_HOST) {
    b->native = refuse_native;
    b->buffer_import = refuse_import;
    b->host_register = refuse_pin;
    b->host_unregister = unpin;
    b->device_reach = kind == KIND_NEAR ? reach_all : reach_itself;
  }
  return b;
}

static void check_foretold(const subject *s, uint32_t from, uint32_t to, uint32_t index) {
  const opipe_stream_params stream = stream_params(0, 1, 0);
  const opipe_way_params params = {.struct_size = (uint32_t)sizeof params,
                                   .dst_index = index,
                                   .src_backend = backend_of_kind(from),
                                   .dst_backend = backend_of_kind(to),
                                   .stream = &stream};
  way_room rooms[2] = {room_for_way(false), room_for_way(true)};
  opipe_error err = OPIPE_ERROR_INIT;
  char what[64];
  (void)snprintf(what, sizeof what, "way, devices of kinds %u and %u, indices 0 and %u", from, to,
                 index);
  for (uint32_t i = 0; i < 2; ++i) {
    if (!conf_ok(s->t->way(s->self, s->options, &params, &rooms[i].way, &err), &err, what))
      return;
  }
  check_way(s, &rooms[0].way, what);
  check_same_way(&rooms[0], &rooms[1], what);
  conf_check(rooms[0].way.way != OPIPE_WAY_NONE, "%s: nothing is said", what);
  conf_check((rooms[0].way.way == OPIPE_WAY_HOST) == (from == KIND_HOST && to == KIND_HOST),
             "%s: way %u", what, rooms[0].way.way);
  if (from == KIND_FAR && to == KIND_FAR && index != 0) {
    conf_check(goes_through_host(rooms[0].way.way), "%s: way %u, but neither reaches the other",
               what, rooms[0].way.way);
  }
  opipe_way short_one = {.struct_size = (uint32_t)sizeof(uint32_t)};
  (void)conf_refused(s->t->way(s->self, s->options, &params, &short_one, &err), &err,
                     "way, for a struct of 4 bytes,");
  (void)conf_refused(s->t->way(s->self, "no-such-option=1", &params, &rooms[0].way, &err), &err,
                     "an unknown option, by way,");
}

/* ---- for sessions ---- */

/* wanted OPIPE_WAY_NONE: any. */
static void check_stream_way(const subject *s, opipe_stream *stream, uint32_t wanted,
                             const char *what) {
  way_room rooms[2] = {room_for_way(false), room_for_way(true)};
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t i = 0; i < 2; ++i) {
    if (!conf_ok(s->t->stream_way(stream, &rooms[i].way, &err), &err, what))
      return;
  }
  check_way(s, &rooms[0].way, what);
  check_same_way(&rooms[0], &rooms[1], what);
  conf_check(rooms[0].way.way != OPIPE_WAY_NONE, "%s: nothing is known after endpoint_ready", what);
  conf_check(wanted == OPIPE_WAY_NONE || rooms[0].way.way == wanted, "%s: way %u, not %u", what,
             rooms[0].way.way, wanted);
}

static void check_ways_of_rank(const subject *s, const rank *r) {
  const uint32_t wanted = s->on == NULL ? OPIPE_WAY_HOST : OPIPE_WAY_NONE;
  check_stream_way(s, r->out, wanted, "stream_way, sender");
  check_stream_way(s, r->in, wanted, "stream_way, receiver");
}

static void check_ways(const subject *s) {
  ring g;
  conf_case("ways");
  if (!has_ways(s)) {
    conf_skip("it does not say how messages travel");
    return;
  }
  for (uint32_t from = 0; from < DEVICE_KINDS; ++from) {
    for (uint32_t to = 0; to < DEVICE_KINDS; ++to) {
      check_foretold(s, from, to, 0);
      check_foretold(s, from, to, 1);
    }
  }
  if (open_ring(&g, s)) {
    for (uint32_t i = 0; i < RANKS; ++i)
      check_ways_of_rank(s, &g.ranks[i]);
  }
  close_ring(&g, s);
}

#else

static void check_ways(const subject *s) {
  (void)s;
}

#endif

#endif /* CONFORMANCE_TRANSPORT_WAYS_H */
