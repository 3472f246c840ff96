/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device: what is copied where, what is counted, and what closing leaves. */
#ifndef CONFORMANCE_BACKEND_MEMORY_H
#define CONFORMANCE_BACKEND_MEMORY_H

#include <dirent.h>
#include <stdlib.h>
#include <time.h>

#include "backend_kit.h"

/* ---- under a cap ---- */

static void check_cap(const subject *s) {
  opipe_device *device = NULL;
  opipe_buffer *a = NULL, *b = NULL, *c = NULL;
  const uint64_t unit = aligned(s, 4096), cap = 4 * unit;
  conf_case("memory cap");
  if (!conf_made(open_device(s, cap, NULL, &device), &device, &err, "device_open"))
    return;
  subject capped = *s;
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  capped.device = device;
  conf_made(s->t->buffer_alloc(device, 3 * unit, OPIPE_BUFFER_ARENA, &a, &err), &a, &err,
            "buffer_alloc");
  err.message[0] = '\0';
  conf_error(s->t->buffer_alloc(device, 2 * unit, OPIPE_BUFFER_BOUNDARY, &c, &err), OPIPE_E_LIMIT,
             &err, "buffer_alloc beyond the cap");
  conf_check(c == NULL, "buffer_alloc fails, but sets its output");
  conf_made(s->t->buffer_alloc(device, unit, OPIPE_BUFFER_BOUNDARY, &b, &err), &b, &err,
            "buffer_alloc up to the cap");
  conf_error(s->t->buffer_alloc(device, 1, OPIPE_BUFFER_STAGING, &c, &err), OPIPE_E_LIMIT, &err,
             "buffer_alloc of a byte when the cap is reached");
  conf_ok(s->t->device_usage(device, &usage, &err), &err, "device_usage");
  conf_check(usage.live_bytes[OPIPE_BUFFER_ARENA] == 3 * unit &&
                 usage.live_bytes[OPIPE_BUFFER_BOUNDARY] == unit && usage.peak_bytes == cap,
             "usage %llu + %llu, peak %llu",
             (unsigned long long)usage.live_bytes[OPIPE_BUFFER_ARENA],
             (unsigned long long)usage.live_bytes[OPIPE_BUFFER_BOUNDARY],
             (unsigned long long)usage.peak_bytes);
  s->t->buffer_free(a);
  conf_check(live_bytes_of(&capped, OPIPE_BUFFER_ARENA) == 0, "%llu bytes after buffer_free",
             (unsigned long long)live_bytes_of(&capped, OPIPE_BUFFER_ARENA));
  a = NULL;
  conf_made(s->t->buffer_alloc(device, 1, OPIPE_BUFFER_ARENA, &a, &err), &a, &err, "buffer_alloc");
  conf_check(live_bytes_of(&capped, OPIPE_BUFFER_ARENA) == aligned(s, 1),
             "a buffer of a byte is counted as %llu, the alignment is %u",
             (unsigned long long)live_bytes_of(&capped, OPIPE_BUFFER_ARENA), s->info.alignment);
  s->t->buffer_free(a);
  s->t->buffer_free(b);
  conf_check(live_bytes_of(&capped, OPIPE_BUFFER_KINDS) == 0,
             "%llu bytes are counted when all buffers are free",
             (unsigned long long)live_bytes_of(&capped, OPIPE_BUFFER_KINDS));
  s->t->device_close(device);
}

/* ---- structs of newer hosts ---- */

enum { NEWER_BYTES = 32, NEWER_BYTE = 0x5a };

/* The last bytes of a struct of a newer host, which this backend knows nothing of. */
static void check_beyond(const unsigned char *newer, const char *what) {
  bool same = true;
  for (int i = 0; i < NEWER_BYTES; ++i)
    same = same && newer[i] == NEWER_BYTE;
  conf_check(same, "%s writes beyond what is known", what);
}

/* A struct that ends where ABI 1.0 ended is not written further either. */
static void check_structs(const subject *s, const opipe_program *program) {
  struct {
    opipe_device_info known;
    unsigned char newer[NEWER_BYTES];
  } info;
  struct {
    opipe_device_usage known;
    unsigned char newer[NEWER_BYTES];
  } usage;
  struct {
    opipe_program_info known;
    unsigned char newer[NEWER_BYTES];
  } needs;
  memset(&info, NEWER_BYTE, sizeof info);
  memset(&usage, NEWER_BYTE, sizeof usage);
  memset(&needs, NEWER_BYTE, sizeof needs);
  info.known.struct_size = (uint32_t)sizeof info.known;
  usage.known.struct_size = (uint32_t)sizeof usage.known;
  needs.known.struct_size = (uint32_t)sizeof needs.known;
  conf_case("structs");
  conf_ok(s->t->device_query(s->self, s->index, &info.known, &err), &err, "device_query");
  conf_ok(s->t->device_usage(s->device, &usage.known, &err), &err, "device_usage");
  conf_ok(s->t->program_info(program, &needs.known, &err), &err, "program_info");
  check_beyond(info.newer, "device_query");
  check_beyond(usage.newer, "device_usage");
  check_beyond(needs.newer, "program_info");
  memset(&usage, NEWER_BYTE, sizeof usage);
  memset(&needs, NEWER_BYTE, sizeof needs);
  usage.known.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes);
  needs.known.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes);
  conf_ok(s->t->device_usage(s->device, &usage.known, &err), &err, "device_usage");
  conf_ok(s->t->program_info(program, &needs.known, &err), &err, "program_info");
  const unsigned char *rest = (const unsigned char *)&usage + usage.known.struct_size;
  conf_check(rest[0] == NEWER_BYTE && usage.newer[0] == NEWER_BYTE,
             "device_usage writes beyond struct_size");
  rest = (const unsigned char *)&needs + needs.known.struct_size;
  conf_check(rest[0] == NEWER_BYTE && needs.newer[0] == NEWER_BYTE,
             "program_info writes beyond struct_size");
}

/* ---- copies ---- */

enum { UNITS = 8 };

typedef struct field {
  opipe_buffer *buffer;
  uint64_t unit;
  unsigned char *wanted, *seen;
} field;

static opipe_region units_of(const field *f, uint32_t first, uint32_t n) {
  return (opipe_region){f->buffer, first * f->unit, n * f->unit};
}

static void reset_field(const subject *s, const field *f) {
  const opipe_region all = units_of(f, 0, UNITS);
  for (uint64_t i = 0; i < UNITS * f->unit; ++i)
    f->wanted[i] = (unsigned char)(i * 7 + i / 64 + 3);
  conf_ok(s->t->write(s->queue, &all, f->wanted, &err), &err, "write");
  finish(s);
}

static void same_field(const subject *s, const field *f, const char *what) {
  const opipe_region all = units_of(f, 0, UNITS);
  memset(f->seen, 0, UNITS * f->unit);
  conf_ok(s->t->read(s->queue, f->seen, &all, &err), &err, "read");
  finish(s);
  conf_check(memcmp(f->seen, f->wanted, UNITS * f->unit) == 0, "%s: other bytes than memmove's",
             what);
}

/* Whole units at other offsets than 0, and regions that overlap. */
static void copy_about(const subject *s, const field *f) {
  static const struct {
    uint32_t to, from, n;
    const char *what;
  } moves[] = {{4, 0, 4, "copy"},
               {1, 5, 2, "copy backwards"},
               {1, 0, 4, "copy of overlapping regions, upwards"},
               {0, 1, 4, "copy of overlapping regions, downwards"},
               {3, 2, 5, "copy of overlapping regions, upwards"},
               {2, 2, 3, "copy of a region to itself"}};
  for (size_t i = 0; i < sizeof moves / sizeof moves[0]; ++i) {
    const opipe_region to = units_of(f, moves[i].to, moves[i].n),
                       from = units_of(f, moves[i].from, moves[i].n);
    reset_field(s, f);
    memmove(f->wanted + to.offset_bytes, f->wanted + from.offset_bytes, (size_t)to.n_bytes);
    conf_ok(s->t->copy(s->queue, &to, &from, &err), &err, moves[i].what);
    same_field(s, f, moves[i].what);
  }
}

static void check_offsets(const subject *s) {
  field f = {.unit = aligned(s, 64)};
  conf_case("copies at offsets");
  f.wanted = malloc(2 * UNITS * f.unit);
  f.seen = f.wanted == NULL ? NULL : f.wanted + UNITS * f.unit;
  if (f.wanted != NULL && conf_made(s->t->buffer_alloc(s->device, UNITS * f.unit,
                                                       OPIPE_BUFFER_STAGING, &f.buffer, &err),
                                    &f.buffer, &err, "buffer_alloc")) {
    const opipe_region middle = units_of(&f, 3, 2);
    copy_about(s, &f);
    reset_field(s, &f);
    memset(f.wanted + middle.offset_bytes, 0x11, (size_t)middle.n_bytes);
    conf_ok(s->t->write(s->queue, &middle, f.wanted + middle.offset_bytes, &err), &err, "write");
    finish(s); /* the host's memory is read until then */
    same_field(s, &f, "write of a part");
    memset(f.seen, 0, UNITS * f.unit);
    conf_ok(s->t->read(s->queue, f.seen, &middle, &err), &err, "read");
    finish(s);
    conf_check(memcmp(f.seen, f.wanted + middle.offset_bytes, (size_t)middle.n_bytes) == 0 &&
                   f.seen[middle.n_bytes] == 0,
               "read of a part gives other bytes");
  }
  s->t->buffer_free(f.buffer);
  free(f.wanted);
}

/* ---- memory and threads left after closing ---- */

static uint32_t count_threads(void) {
  DIR *folder = opendir("/proc/self/task");
  uint32_t n = 0;
  if (folder == NULL)
    return 0;
  while (readdir(folder) != NULL)
    ++n;
  (void)closedir(folder);
  return n;
}

/* A thread that was joined may be seen a moment longer. */
static uint32_t settled_threads(uint32_t most) {
  const struct timespec pause = {.tv_nsec = 2000000};
  uint32_t n = count_threads();
  for (int i = 0; i < 500 && n > most; ++i) {
    (void)nanosleep(&pause, NULL);
    n = count_threads();
  }
  return n;
}

static void open_and_close(const subject *s, const sample *g) {
  subject own = *s;
  bound b;
  own.device = NULL;
  own.queue = NULL;
  own.event = NULL;
  memset(&b, 0, sizeof b);
  if (conf_made(open_device(s, 0, NULL, &own.device), &own.device, &err, "device_open") &&
      conf_made(s->t->queue_open(own.device, &own.queue, &err), &own.queue, &err, "queue_open") &&
      conf_made(s->t->event_create(own.device, &own.event, &err), &own.event, &err,
                "event_create") &&
      open_bound(&own, g, 0, &b))
    run_and_compare(&own, &b, 0, 1.0f);
  close_bound(&own, &b);
  if (own.device != NULL) {
    conf_check(live_bytes_of(&own, OPIPE_BUFFER_KINDS) == 0,
               "%llu bytes of the device are counted when all is freed",
               (unsigned long long)live_bytes_of(&own, OPIPE_BUFFER_KINDS));
  }
  s->t->event_destroy(own.event);
  s->t->queue_close(own.queue);
  s->t->device_close(own.device);
}

/* Memory kept for the next opening is kept once. */
static void check_leaks(const subject *s) {
  enum { TIMES = 4 };
  sample g;
  uint64_t live[TIMES];
  uint32_t threads[TIMES];
  make_sample(&g);
  conf_case("leaks");
  for (int i = 0; i < TIMES; ++i) {
    open_and_close(s, &g);
    live[i] = conf_live_bytes();
    threads[i] = i == 0 ? count_threads() : settled_threads(threads[0]);
  }
  conf_check(live[TIMES - 1] <= live[0], "a device that was closed leaves %llu bytes each time",
             (unsigned long long)(live[TIMES - 1] - live[TIMES - 2]));
  conf_check(threads[TIMES - 1] <= threads[0], "devices that were closed leave %u threads",
             threads[TIMES - 1] - threads[0]);
}

#endif /* CONFORMANCE_BACKEND_MEMORY_H */
