/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the checks of backends: the device under test, and a small program with its memory,
 * parameters and expected results.
 */
#ifndef CONFORMANCE_BACKEND_KIT_H
#define CONFORMANCE_BACKEND_KIT_H

#include <opipe/backend.h>
#include <string.h>

#include "conformance.h"

enum {
  N = 48,
  RUNS = 20,
  GUARDS = 8,
  VALUES_MOST = 10,
  NODES_MOST = 8,
  GUARD_BYTE = 0xc7,
  GUARD_MOST = 1 << 16
};

typedef struct subject {
  const opipe_backend *t;
  opipe_instance *self;
  uint32_t index;      /* of the device */
  const char *options; /* that it is opened with; NULL: none */
  opipe_device_info info;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event;
} subject;

static opipe_error err = OPIPE_ERROR_INIT;

static uint64_t aligned(const subject *s, uint64_t n) {
  const uint64_t a = s->info.alignment == 0 ? 1 : s->info.alignment;
  return (n + a - 1) / a * a;
}

static opipe_status open_device(const subject *s, uint64_t cap, const char *options,
                                opipe_device **out) {
  const opipe_device_params params = {(uint32_t)OPIPE_END(opipe_device_params, options),
                                      s->index,
                                      cap,
                                      1,
                                      0,
                                      options == NULL ? s->options : options};
  err.message[0] = '\0';
  return s->t->device_open(s->self, &params, out, &err);
}

static bool finish(const subject *s) {
  return conf_ok(s->t->event_record(s->queue, s->event, &err), &err, "event_record") &&
         conf_ok(s->t->event_sync(s->event, UINT64_C(10000000000), &err), &err, "event_sync") &&
         conf_ok(s->t->event_poll(s->event, &err), &err, "event_poll after event_sync");
}

/* ---- programs: y = relu(x * w + x), y and the sum go out ---- */

static const int64_t shape[2] = {4, N / 4};
static float weights[N];

typedef struct sample {
  opipe_value values[VALUES_MOST];
  opipe_node nodes[NODES_MOST];
  opipe_graph graph;
  opipe_param_source source;
} sample;

static opipe_value value(const char *name, uint32_t role, uint32_t slot) {
  return (opipe_value){name, shape, NULL, N * sizeof(float), OPIPE_FLOAT, 2, role, slot};
}

static opipe_node node(const char *op, const uint32_t *in, uint32_t n_in, const uint32_t *out,
                       uint32_t version) {
  return (opipe_node){op, op, "", in, out, NULL, n_in, 1, 0, version, OPIPE_PASS_FORWARD, 0};
}

static void make_sample(sample *g) {
  static const uint32_t mul_in[] = {0, 1}, mul_out[] = {2}, add_in[] = {2, 0}, add_out[] = {3},
                        relu_in[] = {3}, relu_out[] = {4};
  memset(g, 0, sizeof(*g));
  g->values[0] = value("x", OPIPE_VALUE_INPUT, 0);
  g->values[1] = value("w", OPIPE_VALUE_PARAMETER, 0);
  g->values[2] = value("xw", OPIPE_VALUE_TEMP, OPIPE_NONE);
  g->values[3] = value("sum", OPIPE_VALUE_OUTPUT, 1); /* read again by the program */
  g->values[4] = value("y", OPIPE_VALUE_OUTPUT, 2);
  g->nodes[0] = node("Mul", mul_in, 2, mul_out, 14);
  g->nodes[1] = node("Add", add_in, 2, add_out, 14);
  g->nodes[2] = node("Relu", relu_in, 1, relu_out, 14);
  g->graph = (opipe_graph){
      (uint32_t)OPIPE_END(opipe_graph, n_scalars), 5, g->values, g->nodes, 3, 3, 1, 0};
  for (int i = 0; i < N; ++i)
    weights[i] = (float)(i % 5) - 2.0f;
  g->source = (opipe_param_source){"w", weights, shape, sizeof(weights), OPIPE_FLOAT, 2};
}

static void expected(const float *x, float *sum, float *y) {
  for (int i = 0; i < N; ++i) {
    sum[i] = x[i] * weights[i] + x[i];
    y[i] = sum[i] > 0 ? sum[i] : 0;
  }
}

typedef struct bound {
  opipe_program *program;
  opipe_params *params;
  opipe_buffer *memory;
  opipe_binding *bindings[2]; /* other boundary regions, one arena */
  opipe_region regions[2][3];
  opipe_region arena;
  opipe_region guards[GUARDS]; /* before and behind each of them: nobody writes there */
  opipe_program_info info;
  uint64_t params_bytes; /* device memory that params_prepare took */
} bound;

static opipe_status bind_with_arena(const subject *s, const bound *b, const opipe_region *regions,
                                    uint64_t arena, opipe_binding **out) {
  const opipe_bind_params params = {
      (uint32_t)OPIPE_END(opipe_bind_params, boundaries), 3,      b->program, b->params,
      {b->memory, b->arena.offset_bytes, arena},          regions};
  err.message[0] = '\0';
  return s->t->bind(s->device, &params, out, &err);
}

static uint64_t live_bytes_of(const subject *s, uint32_t kind) {
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  uint64_t n = 0;
  conf_ok(s->t->device_usage(s->device, &usage, &err), &err, "device_usage");
  for (uint32_t i = 0; i < OPIPE_BUFFER_KINDS; ++i)
    n += i == kind || kind == OPIPE_BUFFER_KINDS ? usage.live_bytes[i] : 0;
  return n;
}

/* A guard, then a region of n_bytes. */
static opipe_region after_guard(const subject *s, bound *b, uint32_t *io_n, uint64_t *io_at,
                                uint64_t n_bytes) {
  const uint64_t guard = aligned(s, 64);
  b->guards[(*io_n)++] = (opipe_region){b->memory, *io_at, guard};
  const opipe_region region = {b->memory, *io_at + guard, n_bytes};
  *io_at += guard + aligned(s, n_bytes);
  return region;
}

static void place_bound(const subject *s, bound *b) {
  uint64_t at = 0;
  uint32_t n = 0;
  b->arena = after_guard(s, b, &n, &at, aligned(s, b->info.arena_bytes));
  for (int k = 0; k < 2; ++k) {
    for (int i = 0; i < 3; ++i)
      b->regions[k][i] = after_guard(s, b, &n, &at, sizeof(weights));
  }
  (void)after_guard(s, b, &n, &at, 0);
}

static void set_guards(const subject *s, const bound *b) {
  static unsigned char pattern[GUARD_MOST];
  memset(pattern, GUARD_BYTE, sizeof pattern);
  for (uint32_t i = 0; i < GUARDS && b->guards[i].n_bytes <= sizeof pattern; ++i)
    conf_ok(s->t->write(s->queue, &b->guards[i], pattern, &err), &err, "write");
  finish(s);
}

static void check_guards(const subject *s, const bound *b) {
  static unsigned char seen[GUARD_MOST];
  for (uint32_t i = 0; i < GUARDS && b->guards[i].n_bytes <= sizeof seen; ++i) {
    bool whole = true;
    conf_ok(s->t->read(s->queue, seen, &b->guards[i], &err), &err, "read");
    finish(s);
    for (uint64_t k = 0; k < b->guards[i].n_bytes; ++k)
      whole = whole && seen[k] == GUARD_BYTE;
    conf_check(whole, "a run writes outside its regions: %s",
               i == 0   ? "before its arena"
               : i == 1 ? "behind the arena_bytes of program_info"
                        : "behind a boundary region");
  }
}

static bool compile_bound(const subject *s, const sample *g, uint32_t flags, bound *b) {
  const opipe_compile_params compile = {(uint32_t)OPIPE_END(opipe_compile_params, graph), flags,
                                        &g->graph};
  const uint64_t before = live_bytes_of(s, OPIPE_BUFFER_KINDS);
  if (!conf_made(s->t->compile(s->device, &compile, &b->program, &err), &b->program, &err,
                 "compile"))
    return false;
  conf_check(live_bytes_of(s, OPIPE_BUFFER_KINDS) == before, "compile takes device memory");
  b->info.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes);

  return conf_ok(s->t->program_info(b->program, &b->info, &err), &err, "program_info") &&
         conf_check(b->info.arena_bytes >= b->info.temp_bytes &&
                        b->info.arena_bytes >= b->info.workspace_bytes &&
                        b->info.arena_bytes < UINT64_C(1) << 32,
                    "arena %llu, temp %llu, workspace %llu",
                    (unsigned long long)b->info.arena_bytes, (unsigned long long)b->info.temp_bytes,
                    (unsigned long long)b->info.workspace_bytes);
}

static bool open_bound(const subject *s, const sample *g, uint32_t flags, bound *b) {
  memset(b, 0, sizeof(*b));
  if (!compile_bound(s, g, flags, b) ||
      !conf_made(s->t->params_create(s->device, &g->source, 1, &b->params, &err), &b->params, &err,
                 "params_create"))
    return false;
  const uint64_t before = live_bytes_of(s, OPIPE_BUFFER_PARAMS);
  conf_ok(s->t->params_prepare(b->params, b->program, &err), &err, "params_prepare");
  b->params_bytes = live_bytes_of(s, OPIPE_BUFFER_PARAMS) - before;
  const uint64_t n_bytes =
      aligned(s, b->info.arena_bytes) + 6 * aligned(s, sizeof(weights)) + GUARDS * aligned(s, 64);
  if (!conf_made(s->t->buffer_alloc(s->device, n_bytes, OPIPE_BUFFER_ARENA, &b->memory, &err),
                 &b->memory, &err, "buffer_alloc"))
    return false;
  place_bound(s, b);
  set_guards(s, b);
  for (int k = 0; k < 2; ++k) {
    if (!conf_made(bind_with_arena(s, b, b->regions[k], b->arena.n_bytes, &b->bindings[k]),
                   &b->bindings[k], &err, "bind"))
      return false;
  }
  return true;
}

static void close_bound(const subject *s, bound *b) {
  s->t->binding_free(b->bindings[0]);
  s->t->binding_free(b->bindings[1]);
  s->t->buffer_free(b->memory);
  s->t->params_free(b->params);
  s->t->program_free(b->program);
}

static bool run_and_compare(const subject *s, const bound *b, int which, float seed) {
  float x[N], sum[N], y[N], got_sum[N], got_y[N];
  for (int i = 0; i < N; ++i)
    x[i] = (float)i * 0.25f - seed;
  expected(x, sum, y);
  conf_ok(s->t->write(s->queue, &b->regions[which][0], x, &err), &err, "write");
  conf_ok(s->t->run(b->bindings[which], s->queue, NULL, 0, &err), &err, "run");
  conf_ok(s->t->read(s->queue, got_sum, &b->regions[which][1], &err), &err, "read");
  conf_ok(s->t->read(s->queue, got_y, &b->regions[which][2], &err), &err, "read");
  if (!finish(s))
    return false;
  for (int i = 0; i < N; ++i) {
    const float near = 1e-6f * (sum[i] < 0 ? -sum[i] : sum[i]) + 1e-7f;
    if (got_sum[i] - sum[i] > near || sum[i] - got_sum[i] > near || got_y[i] - y[i] > near ||
        y[i] - got_y[i] > near) {
      return conf_check(false, "element %d: %g and %g, expected %g and %g", i, (double)got_sum[i],
                        (double)got_y[i], (double)sum[i], (double)y[i]);
    }
  }
  return conf_check(true, "run");
}

#endif /* CONFORMANCE_BACKEND_KIT_H */
