/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of backends that keep old backends and new hosts together (kinds, unknown words, strides),
 * and of when an error of queued work is told.
 */
#ifndef CONFORMANCE_BACKEND_RULES_H
#define CONFORMANCE_BACKEND_RULES_H

#include <math.h>

#include "backend_kit.h"

static uint64_t all_live(const opipe_device_usage *usage) {
  uint64_t n = 0;
  for (uint32_t kind = 0; kind < OPIPE_BUFFER_KINDS; ++kind)
    n += usage->live_bytes[kind];
  return n;
}

/* Every kind that there is room for is taken and counted under its own number. */
static void check_kinds(const subject *s) {
  opipe_device *device = NULL;
  opipe_buffer *buffer = NULL;
  opipe_device_usage usage = {.struct_size = (uint32_t)sizeof usage};
  const uint64_t unit = aligned(s, 64);
  conf_case("kinds of memory");
  if (!conf_made(open_device(s, 0, NULL, &device), &device, &err, "device_open"))
    return;
  for (uint32_t kind = 0; kind < OPIPE_BUFFER_KINDS; ++kind) {
    buffer = NULL;
    if (!conf_made(s->t->buffer_alloc(device, unit, kind, &buffer, &err), &buffer, &err,
                   "buffer_alloc"))
      break;
    conf_ok(s->t->device_usage(device, &usage, &err), &err, "device_usage");
    conf_check(usage.live_bytes[kind] == unit && all_live(&usage) == unit,
               "kind %u: %llu bytes of %llu counted, %llu in all", kind,
               (unsigned long long)usage.live_bytes[kind], (unsigned long long)unit,
               (unsigned long long)all_live(&usage));
    s->t->buffer_free(buffer);
  }
  err.message[0] = '\0';
  conf_error(s->t->buffer_alloc(device, unit, OPIPE_BUFFER_KINDS, &buffer, &err), OPIPE_E_INVALID,
             &err, "buffer_alloc of a kind beyond the last");
  s->t->device_close(device);
}

/* Words of a newer host that this backend cannot know are refused, not overlooked. */
static void check_unknown_words(const subject *s) {
  sample g;
  opipe_program *program = NULL;
  opipe_params *params = NULL;
  const uint32_t unknown = 1u << 30;
  opipe_compile_params compile = {(uint32_t)OPIPE_END(opipe_compile_params, graph), unknown,
                                  &g.graph, OPIPE_NONE, 0};
  conf_case("unknown words");
  make_sample(&g);
  err.message[0] = '\0';
  conf_error(s->t->compile(s->device, &compile, &program, &err), OPIPE_E_UNSUPPORTED, &err,
             "compile with an unknown flag");
  compile.flags = 0;
  g.values[2].flags = unknown;
  err.message[0] = '\0';
  conf_error(s->t->compile(s->device, &compile, &program, &err), OPIPE_E_UNSUPPORTED, &err,
             "compile of a value with an unknown flag");
  g.values[2].flags = 0;
  g.nodes[1].flags = unknown;
  err.message[0] = '\0';
  conf_error(s->t->compile(s->device, &compile, &program, &err), OPIPE_E_UNSUPPORTED, &err,
             "compile of a node with an unknown flag");
  g.nodes[1].flags = 0;
  g.source.flags = unknown;
  err.message[0] = '\0';
  conf_error(s->t->params_create(s->device, &g.source, 1, &params, &err), OPIPE_E_UNSUPPORTED, &err,
             "params_create of a source with an unknown flag");
}

/* Layouts are written at the caller's distance, and no further than is known. */
static void check_layout_stride(const subject *s, const bound *b) {
  enum { LAYOUTS = 4, NEWER = 24 };
  typedef struct newer_layout {
    opipe_param_layout known;
    unsigned char newer[NEWER];
  } newer_layout;
  opipe_param_layout plain[LAYOUTS];
  newer_layout far[LAYOUTS];
  uint32_t n = LAYOUTS, n_far = LAYOUTS;
  memset(plain, 0, sizeof plain);
  memset(far, 0x5a, sizeof far);
  for (uint32_t i = 0; i < LAYOUTS; ++i) {
    plain[i].struct_size = (uint32_t)sizeof plain[i];
    far[i].known.struct_size = (uint32_t)sizeof far[i];
  }
  conf_case("layouts of a newer host");
  if (!conf_ok(s->t->program_params(b->program, plain, &n, &err), &err, "program_params") ||
      !conf_ok(s->t->program_params(b->program, &far[0].known, &n_far, &err), &err,
               "program_params"))
    return;
  conf_check(n == n_far, "%u layouts, then %u", n, n_far);
  for (uint32_t i = 0; i < n && i < LAYOUTS; ++i) {
    conf_check(plain[i].slot == far[i].known.slot && plain[i].key == far[i].known.key &&
                   plain[i].n_bytes == far[i].known.n_bytes,
               "layout %u is not where struct_size says", i);
    conf_check(far[i].newer[0] == 0x5a && far[i].newer[NEWER - 1] == 0x5a,
               "layout %u is written beyond what is known", i);
  }
}

/* ---- late errors ---- */

enum { BEFORE = 0, FIRST = 1, SECOND = 2, EVENTS = 3 };

static opipe_status settled(const subject *s, opipe_event *event) {
  err.message[0] = '\0';
  return s->t->event_sync(event, UINT64_C(60000000000), &err);
}

/* A run that breaks a rule is told once, by run itself or by the first event behind it; an event
 * before it and the second one behind it do not know of it, and asking does not use it up. */
static void break_a_rule(const subject *s, const bound *b, opipe_event *const *events) {
  float x[N];
  for (int i = 0; i < N; ++i)
    x[i] = i == 3 ? HUGE_VALF : 1.0f;
  conf_ok(s->t->event_record(s->queue, events[BEFORE], &err), &err, "event_record");
  conf_ok(s->t->write(s->queue, &b->regions[0][0], x, &err), &err, "write");
  err.message[0] = '\0';
  const opipe_status told = s->t->run(b->bindings[0], s->queue, NULL, 0, &err);
  if (told < 0)
    conf_error(told, OPIPE_E_INVALID, &err, "run on an infinity");
  conf_ok(s->t->event_record(s->queue, events[FIRST], &err), &err, "event_record");
  conf_ok(s->t->event_record(s->queue, events[SECOND], &err), &err, "event_record");
  for (int twice = 0; twice < 2; ++twice) {
    conf_ok(settled(s, events[SECOND]), &err, "the second event behind the run");
    const opipe_status first = settled(s, events[FIRST]);
    if (told < 0)
      conf_ok(first, &err, "an event behind a run that was refused at once");
    else
      conf_error(first, OPIPE_E_INVALID, &err, "the first event behind the run");
    conf_ok(settled(s, events[BEFORE]), &err, "an event before the run");
  }
  conf_check(s->t->event_poll(events[FIRST], &err) == settled(s, events[FIRST]),
             "event_poll and event_sync answer differently");
}

static void check_late_errors(const subject *s) {
  sample g;
  bound b;
  opipe_program *program = NULL;
  opipe_event *events[EVENTS] = {NULL};
  conf_case("late errors");
  make_sample(&g);
  const opipe_compile_params compile = {(uint32_t)OPIPE_END(opipe_compile_params, graph),
                                        OPIPE_COMPILE_CHECK_FINITE, &g.graph, OPIPE_NONE, 0};
  if (s->t->compile(s->device, &compile, &program, &err) < 0) {
    conf_skip("no program checks its values: %s", err.message);
    return;
  }
  s->t->program_free(program);
  bool open = open_bound(s, &g, OPIPE_COMPILE_CHECK_FINITE, &b);
  for (int i = 0; i < EVENTS && open; ++i) {
    open = conf_made(s->t->event_create(s->device, &events[i], &err), &events[i], &err,
                     "event_create");
  }
  if (open) {
    break_a_rule(s, &b, events);
    run_and_compare(s, &b, 0, 1.0f); /* the device goes on */
    break_a_rule(s, &b, events);     /* with events that have told of something */
    run_and_compare(s, &b, 1, 2.0f);
  }
  for (int i = 0; i < EVENTS; ++i)
    s->t->event_destroy(events[i]);
  close_bound(s, &b);
}

#endif /* CONFORMANCE_BACKEND_RULES_H */
