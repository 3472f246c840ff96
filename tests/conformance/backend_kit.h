/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks of backends stand on: the device under test, and a small program with its
 * memory, parameters and expected results.
 */
#ifndef CONFORMANCE_BACKEND_KIT_H
#define CONFORMANCE_BACKEND_KIT_H

#include <opipe/backend.h>
#include <string.h>

#include "backend_made.h"

enum { N = 48, RUNS = 20 };

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
  opipe_value values[5];
  opipe_node nodes[3];
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
  opipe_program_info info;
} bound;

static opipe_status bind_with_arena(const subject *s, const bound *b, const opipe_region *regions,
                                    uint64_t arena, opipe_binding **out) {
  const opipe_bind_params params = {(uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                                    3,
                                    b->program,
                                    b->params,
                                    {b->memory, 0, arena},
                                    regions};
  err.message[0] = '\0';
  return s->t->bind(s->device, &params, out, &err);
}

static bool open_bound(const subject *s, const sample *g, uint32_t flags, bound *b) {
  const opipe_compile_params compile = {(uint32_t)OPIPE_END(opipe_compile_params, graph), flags,
                                        &g->graph};
  opipe_device_usage before = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)},
                     after = before;
  memset(b, 0, sizeof(*b));
  (void)s->t->device_usage(s->device, &before, &err);
  if (!conf_ok(s->t->compile(s->device, &compile, &b->program, &err), &err, "compile"))
    return false;
  (void)s->t->device_usage(s->device, &after, &err);
  conf_check(
      before.live_bytes[OPIPE_BUFFER_ARENA] + before.live_bytes[OPIPE_BUFFER_PARAMS] +
              before.live_bytes[OPIPE_BUFFER_BOUNDARY] + before.live_bytes[OPIPE_BUFFER_STAGING] ==
          after.live_bytes[OPIPE_BUFFER_ARENA] + after.live_bytes[OPIPE_BUFFER_PARAMS] +
              after.live_bytes[OPIPE_BUFFER_BOUNDARY] + after.live_bytes[OPIPE_BUFFER_STAGING],
      "compile takes device memory");
  b->info.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes);
  conf_ok(s->t->program_info(b->program, &b->info, &err), &err, "program_info");
  conf_check(
      b->info.arena_bytes >= b->info.temp_bytes && b->info.arena_bytes >= b->info.workspace_bytes,
      "arena %llu, temp %llu, workspace %llu", (unsigned long long)b->info.arena_bytes,
      (unsigned long long)b->info.temp_bytes, (unsigned long long)b->info.workspace_bytes);
  if (!conf_ok(s->t->params_create(s->device, &g->source, 1, &b->params, &err), &err,
               "params_create"))
    return false;
  conf_ok(s->t->params_prepare(b->params, b->program, &err), &err, "params_prepare");
  const uint64_t arena = aligned(s, b->info.arena_bytes), slot = aligned(s, sizeof(weights));
  if (!conf_ok(s->t->buffer_alloc(s->device, arena + 6 * slot + s->info.alignment,
                                  OPIPE_BUFFER_ARENA, &b->memory, &err),
               &err, "buffer_alloc"))
    return false;
  for (int k = 0; k < 2; ++k) {
    for (int i = 0; i < 3; ++i) {
      b->regions[k][i] =
          (opipe_region){b->memory, arena + (uint64_t)(k * 3 + i) * slot, sizeof(weights)};
    }
    if (!conf_ok(bind_with_arena(s, b, b->regions[k], arena, &b->bindings[k]), &err, "bind"))
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
