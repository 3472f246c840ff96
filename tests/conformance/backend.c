/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of backend plugins: conformance-backend PATH.so [BACKEND.so ...] [key=value,...]
 * The last: options of the device; device=N is its number.
 *
 * Devices, memory under a cap, queues and events, copies, support and compile, exact memory needs,
 * parameter sets, bindings that run in any order with the same bits, and no allocation in the hot
 * calls. Small graphs of Add, Mul and Relu are used; what the backend does not support is skipped,
 * but something must be.
 */
#include <math.h>
#include <opipe/backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_events.h"
#include "backend_kernels.h"
#include "backend_kit.h"
#include "backend_many.h"
#include "backend_memory.h"
#include "backend_reach.h"
#include "backend_rules.h"
#include "backend_steady.h"
#include "backend_sum.h"
#include "backend_timed.h"
#include "conformance.h"

/* ---- devices and memory ---- */

static void check_devices(subject *s) {
  uint32_t n = 0;
  opipe_device *device = NULL;
  conf_case("devices");
  conf_ok(s->t->device_count(s->self, &n, &err), &err, "device_count");
  conf_check(n > s->index, "no device %u: there are %u", s->index, n);
  s->info.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name);
  conf_ok(s->t->device_query(s->self, s->index, &s->info, &err), &err, "device_query");
  conf_check(s->info.memory_bytes > 0 && s->info.peak_flops > 0 && s->info.bandwidth > 0,
             "rates and memory must be known");
  conf_check((s->info.alignment & (s->info.alignment - 1)) == 0 && s->info.alignment > 0,
             "alignment %u", s->info.alignment);
  const size_t sizes[] = {OPIPE_END(opipe_device_info, flags),
                          OPIPE_END(opipe_device_info, memory_bytes)};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    opipe_device_info shorter = {
        .struct_size = (uint32_t)sizes[i], .memory_bytes = 7, .peak_flops = -7, .bandwidth = -7};
    conf_ok(s->t->device_query(s->self, s->index, &shorter, &err), &err,
            "device_query of a shorter struct");
    conf_check(shorter.peak_flops == -7 && shorter.bandwidth == -7 &&
                   (i == 1 || shorter.memory_bytes == 7),
               "device_query writes beyond struct_size");
    conf_check(shorter.flags == s->info.flags, "device_query of a shorter struct: other flags");
  }
  err.message[0] = '\0';
  (void)conf_refused(s->t->device_query(s->self, n, &s->info, &err), &err,
                     "a device behind the last, by device_query,");
  conf_ok(s->t->device_query(s->self, s->index, &s->info, &err), &err, "device_query");
  (void)conf_refused(open_device(s, 0, "no-such-option=1", &device), &err, "an unknown option");
  subject behind = *s;
  behind.index = n;
  (void)conf_refused(open_device(&behind, 0, NULL, &device), &err,
                     "a device behind the last, by device_open,");
  conf_check(device == NULL, "device_open fails, but sets its output");
  conf_check(s->t->device_query(s->self, n, &s->info, NULL) < 0, "err NULL");
  (void)s->t->device_query(s->self, s->index, &s->info, &err);
  s->t->device_close(NULL);
  s->t->buffer_free(NULL);
  s->t->queue_close(NULL);
  s->t->event_destroy(NULL);
  s->t->program_free(NULL);
  s->t->params_free(NULL);
  s->t->binding_free(NULL);
}

static void check_copies(const subject *s) {
  opipe_buffer *buffer = NULL;
  const uint64_t size = aligned(s, 1024);
  unsigned char out[1024], back[1024];
  void *host = NULL;
  conf_case("copies");
  if (!conf_made(s->t->buffer_alloc(s->device, 2 * size, OPIPE_BUFFER_STAGING, &buffer, &err),
                 &buffer, &err, "buffer_alloc"))
    return;
  for (size_t i = 0; i < sizeof(out); ++i)
    out[i] = (unsigned char)(i * 7 + 3);
  const opipe_region first = {buffer, 0, sizeof(out)}, second = {buffer, size, sizeof(out)};
  conf_ok(s->t->write(s->queue, &first, out, &err), &err, "write");
  conf_ok(s->t->copy(s->queue, &second, &first, &err), &err, "copy");
  conf_ok(s->t->read(s->queue, back, &second, &err), &err, "read");
  finish(s);
  conf_check(memcmp(out, back, sizeof(out)) == 0, "write, copy, read give other bytes");
  if ((s->info.flags & OPIPE_DEVICE_HOST_MEMORY) != 0) {
    conf_ok(s->t->buffer_host(buffer, &host, &err), &err, "buffer_host");
    conf_check((uintptr_t)host % s->info.alignment == 0, "host address %p, alignment %u", host,
               s->info.alignment);
    conf_check(memcmp((char *)host + size, out, sizeof(out)) == 0, "buffer_host shows other bytes");
  } else {
    err.message[0] = '\0';
    conf_error(s->t->buffer_host(buffer, &host, &err), OPIPE_E_UNSUPPORTED, &err,
               "buffer_host without host memory");
  }
  s->t->buffer_free(buffer);
}

/* ---- programs ---- */

static void check_layouts(const subject *s, const bound *b) {
  opipe_param_layout layouts[4];
  uint32_t count = 0;
  conf_check(s->t->program_params(b->program, NULL, &count, &err) >= 0 || count > 0,
             "program_params does not say how many");
  conf_check(count >= 1 && count <= 4, "%u layouts of one parameter", count);
  if (count < 1 || count > 4)
    return;
  for (uint32_t i = 0; i < count; ++i)
    layouts[i].struct_size = (uint32_t)OPIPE_END(opipe_param_layout, mapped_bytes);
  conf_ok(s->t->program_params(b->program, layouts, &count, &err), &err, "program_params");
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    n_bytes += aligned(s, layouts[i].n_bytes);
    conf_check(layouts[i].slot == 0, "slot %u of 1", layouts[i].slot);
    conf_check(layouts[i].key != 0 || layouts[i].n_bytes == 0, "key 0 takes %llu bytes",
               (unsigned long long)layouts[i].n_bytes);
  }
  conf_check(n_bytes == b->params_bytes, "layouts of %llu bytes, params_prepare takes %llu",
             (unsigned long long)n_bytes, (unsigned long long)b->params_bytes);
}

static void check_params(const subject *s, bound *b) {
  opipe_params *twin = NULL;
  float seen[N], other[N];
  conf_case("parameter sets");
  conf_ok(s->t->params_read(b->params, 0, seen, sizeof(seen), &err), &err, "params_read");
  conf_check(memcmp(seen, weights, sizeof(seen)) == 0, "params_read gives other values");
  err.message[0] = '\0';
  conf_check(
      s->t->params_read(b->params, 1, seen, sizeof(seen), &err) < 0 && err.message[0] != '\0',
      "parameter 1 of 1 is read");
  err.message[0] = '\0';
  conf_check(
      s->t->params_read(b->params, 0, seen, sizeof(seen) - 4, &err) < 0 && err.message[0] != '\0',
      "a wrong size is read");
  if (!conf_made(s->t->params_clone(b->params, &twin, &err), &twin, &err, "params_clone"))
    return;
  for (int i = 0; i < N; ++i)
    other[i] = 3.0f;
  err.message[0] = '\0';
  const opipe_status status = s->t->params_write(twin, 0, other, sizeof(other), &err);
  if (status == OPIPE_E_UNSUPPORTED) {
    conf_skip("parameters cannot be written: %s", err.message);
  } else if (conf_ok(status, &err, "params_write")) {
    conf_ok(s->t->params_commit(twin, &err), &err, "params_commit");
    conf_ok(s->t->params_read(twin, 0, seen, sizeof(seen), &err), &err, "params_read");
    conf_check(memcmp(seen, other, sizeof(seen)) == 0, "the bytes read are not those written");
    conf_ok(s->t->params_read(b->params, 0, seen, sizeof(seen), &err), &err, "params_read");
    conf_check(memcmp(seen, weights, sizeof(seen)) == 0, "writing a clone changes the original");
  }
  s->t->params_free(twin);
}

static void check_programs(const subject *s) {
  sample g;
  bound b;
  opipe_support support[3];
  make_sample(&g);
  conf_case("support");
  memset(support, 0xff, sizeof(support));
  if (!conf_ok(s->t->support(s->device, &g.graph, support, &err), &err, "support"))
    return;
  for (int i = 0; i < 3; ++i) {
    conf_check(support[i].status == OPIPE_OK || support[i].status == OPIPE_E_UNSUPPORTED,
               "support answers %d for %s", (int)support[i].status, g.nodes[i].op);
    conf_check(memchr(support[i].reason, '\0', sizeof support[i].reason) != NULL,
               "a reason without an end");
    if (support[i].status == OPIPE_OK)
      continue;
    conf_check(support[i].reason[0] != '\0', "%s is refused without a reason", g.nodes[i].op);
    conf_skip("%s in float32 is not supported (%s): no program can be run", g.nodes[i].op,
              support[i].reason);
    return;
  }
  conf_case("programs");
  if (open_bound(s, &g, 0, &b)) {
    opipe_binding *small = NULL;
    check_layouts(s, &b);
    check_layout_stride(s, &b);
    if (b.info.arena_bytes > 0) {
      const uint64_t less =
          b.info.arena_bytes > s->info.alignment ? b.info.arena_bytes - s->info.alignment : 0;
      conf_check(bind_with_arena(s, &b, b.regions[0], less, &small) < 0 && err.message[0] != '\0',
                 "an arena of %llu of %llu bytes is accepted", (unsigned long long)less,
                 (unsigned long long)b.info.arena_bytes);
      s->t->binding_free(small);
    }
    for (int i = 0; i < RUNS; ++i)
      run_and_compare(s, &b, i % 2, (float)i * 0.5f);
    conf_case("hot calls");
    const uint64_t before = conf_allocations();
    for (int i = 0; i < RUNS; ++i)
      run_and_compare(s, &b, i % 2, (float)i);
    conf_check(conf_allocations() == before, "%llu allocations in %d runs",
               (unsigned long long)(conf_allocations() - before), RUNS);
    check_guards(s, &b);
    check_run_events(s, &b);
    check_params(s, &b);
    check_structs(s, b.program);
  }
  close_bound(s, &b);
  check_steady(s);
  check_leaks(s);
}

static void check_unknown_operator(const subject *s) {
  sample g;
  opipe_support support[3];
  opipe_program *program = NULL;
  conf_case("unknown operator");
  make_sample(&g);
  g.nodes[1].op = "NoSuchOperator";
  g.nodes[1].name = "culprit";
  const opipe_compile_params compile = {(uint32_t)OPIPE_END(opipe_compile_params, graph), 0,
                                        &g.graph};
  conf_ok(s->t->support(s->device, &g.graph, support, &err), &err, "support");
  conf_check(support[1].status == OPIPE_E_UNSUPPORTED && support[1].reason[0] != '\0',
             "support says %d", (int)support[1].status);
  err.message[0] = '\0';
  conf_error(s->t->compile(s->device, &compile, &program, &err), OPIPE_E_UNSUPPORTED, &err,
             "compile");
  conf_check(strstr(err.message, "culprit") != NULL, "the message does not name the node: %s",
             err.message);
}

/* ---- training: G += x w, twice; the norm of G; one step; what the next run sees ---- */

typedef struct trainee {
  opipe_value values[4];
  opipe_node nodes[2];
  opipe_graph graph;
  opipe_param_source source;
  opipe_program *program;
  opipe_params *params, *gradients;
  opipe_buffer *memory;
  opipe_binding *binding;
  opipe_region x, y, number, dense;
  opipe_region weight, gradient;
} trainee;

static void make_trainee(trainee *g) {
  static const uint32_t mul_in[] = {0, 1}, mul_out[] = {2}, add_in[] = {2}, add_out[] = {3};
  sample plain;
  make_sample(&plain); /* fills the weights */
  memset(g, 0, sizeof(*g));
  g->values[0] = value("x", OPIPE_VALUE_INPUT, 0);
  g->values[1] = value("w", OPIPE_VALUE_PARAMETER, 0);
  g->values[2] = value("xw", OPIPE_VALUE_OUTPUT, 1);
  g->values[3] = value("dw", OPIPE_VALUE_GRADIENT, 0);
  g->nodes[0] = node("Mul", mul_in, 2, mul_out, 14);
  g->nodes[1] = node("Accumulate", add_in, 1, add_out, 1);
  g->nodes[1].domain = "opipe";
  g->nodes[1].pass = OPIPE_PASS_BACKWARD_WEIGHT;
  g->graph = (opipe_graph){
      (uint32_t)OPIPE_END(opipe_graph, n_scalars), 4, g->values, g->nodes, 2, 2, 1, 0};
  g->source = (opipe_param_source){"w", weights, shape, sizeof(weights), OPIPE_FLOAT, 2};
}

static bool open_trainee(const subject *s, trainee *g) {
  const opipe_compile_params compile = {(uint32_t)OPIPE_END(opipe_compile_params, graph),
                                        OPIPE_COMPILE_OWNED, &g->graph};
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  const uint64_t slot = aligned(s, sizeof(weights));
  if (!conf_made(s->t->compile(s->device, &compile, &g->program, &err), &g->program, &err,
                 "compile") ||
      !conf_ok(s->t->program_info(g->program, &info, &err), &err, "program_info") ||
      !conf_made(s->t->params_create_owned(s->device, &g->source, 1, &g->params, &err), &g->params,
                 &err, "params_create_owned") ||
      !conf_made(s->t->gradients_create(g->params, &g->gradients, &err), &g->gradients, &err,
                 "gradients_create") ||
      !conf_ok(s->t->params_prepare(g->params, g->program, &err), &err, "params_prepare") ||
      !conf_ok(s->t->params_prepare(g->gradients, g->program, &err), &err,
               "params_prepare of a gradient set") ||
      !conf_ok(s->t->params_master(g->params, 0, &g->weight, &err), &err, "params_master") ||
      !conf_ok(s->t->params_master(g->gradients, 0, &g->gradient, &err), &err, "params_master"))
    return false;
  const uint64_t arena = aligned(s, info.arena_bytes);
  if (!conf_made(s->t->buffer_alloc(s->device, arena + 4 * slot + s->info.alignment,
                                    OPIPE_BUFFER_ARENA, &g->memory, &err),
                 &g->memory, &err, "buffer_alloc"))
    return false;
  g->x = (opipe_region){g->memory, arena, sizeof(weights)};
  g->y = (opipe_region){g->memory, arena + slot, sizeof(weights)};
  g->number = (opipe_region){g->memory, arena + 2 * slot, sizeof(double)};
  g->dense = (opipe_region){g->memory, arena + 3 * slot, sizeof(weights)};
  const opipe_region boundaries[2] = {g->x, g->y};
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients),
                                  .n_boundaries = 2,
                                  .program = g->program,
                                  .params = g->params,
                                  .arena = {g->memory, 0, arena},
                                  .boundaries = boundaries,
                                  .gradients = g->gradients};
  return conf_made(s->t->bind(s->device, &bind, &g->binding, &err), &g->binding, &err, "bind");
}

static void close_trainee(const subject *s, trainee *g) {
  s->t->binding_free(g->binding);
  s->t->buffer_free(g->memory);
  s->t->params_free(g->gradients);
  s->t->params_free(g->params);
  s->t->program_free(g->program);
}

static void close_to(const char *what, const float *got, const double *wanted) {
  for (int i = 0; i < N; ++i) {
    const double off = (double)got[i] - wanted[i];
    const double near = 1e-6 * (wanted[i] < 0 ? -wanted[i] : wanted[i]) + 1e-6;
    if (!(off <= near && -off <= near)) {
      conf_check(false, "%s: element %d is %g, expected %g", what, i, (double)got[i], wanted[i]);
      return;
    }
  }
  conf_check(true, "%s", what);
}

/* A run in all its parts, where the backend has them. */
static void run_in_parts(const subject *s, const trainee *g) {
#if OPIPE_ABI_MINOR >= 5
  uint32_t end = OPIPE_NONE, n = OPIPE_NONE;
  if (OPIPE_HAS(s->t, opipe_backend, run_part) && s->t->run_part != NULL) {
    conf_ok(s->t->program_places(g->program, &end, &n, &err), &err, "program_places");
    conf_check(n == 0 ? end == 0 : end > 0 && end <= n,
               "a gradient is complete at place %u, the last is %u", end, n);
    if (n != 0 && n != OPIPE_NONE) {
      conf_error(s->t->run_part(g->binding, s->queue, NULL, 0, n, n, &err), OPIPE_E_INVALID, &err,
                 "run_part of nothing");
      conf_error(s->t->run_part(g->binding, s->queue, NULL, 0, 0, n + 1, &err), OPIPE_E_INVALID,
                 &err, "run_part beyond the last place");
      for (uint32_t at = 0; at < n; ++at)
        conf_ok(s->t->run_part(g->binding, s->queue, NULL, 0, at, at + 1, &err), &err, "run_part");
      return;
    }
  }
#endif
  conf_ok(s->t->run(g->binding, s->queue, NULL, 0, &err), &err, "run");
}

static void train_twice(const subject *s, const trainee *g, const float *x) {
  float got[N];
  double wanted[N], squares = 0, norm = 0;
  for (int k = 0; k < 2; ++k) {
    conf_ok(s->t->write(s->queue, &g->x, x, &err), &err, "write");
    if (k == 1)
      run_in_parts(s, g);
    else
      conf_ok(s->t->run(g->binding, s->queue, NULL, 0, &err), &err, "run");
  }
  conf_ok(s->t->gradients_fold(g->gradients, s->queue, 0, &err), &err, "gradients_fold");
  conf_ok(s->t->sum_squares(s->queue, &g->number, &g->gradient, &err), &err, "sum_squares");
  conf_ok(s->t->read(s->queue, &norm, &g->number, &err), &err, "read");
  finish(s);
  for (int i = 0; i < N; ++i) {
    wanted[i] = 2.0 * (double)x[i] * (double)weights[i];
    squares += wanted[i] * wanted[i];
  }
  conf_ok(s->t->params_read(g->gradients, 0, got, sizeof(got), &err), &err, "params_read");
  close_to("gradient", got, wanted);
  conf_check(norm > squares * 0.99999 && norm < squares * 1.00001,
             "sum of squares is %g, expected %g", norm, squares);
}

static void step_once(const subject *s, const trainee *g, const float *x) {
  float got[N];
  double wanted[N], zero[N] = {0}, left = 1;
  const opipe_update update = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                               .kind = OPIPE_UPDATE_SGD,
                               .flags = OPIPE_UPDATE_CLEAR,
                               .n_elems = g->weight.n_bytes / 4,
                               .weight = g->weight,
                               .gradient = g->gradient,
                               .gradient_scale = 0.5,
                               .lr = 0.25};
  const uint64_t before = conf_allocations();
  conf_ok(s->t->update(s->queue, &update, &err), &err, "update");
  conf_ok(s->t->sum_squares(s->queue, &g->number, &g->gradient, &err), &err, "sum_squares");
  conf_ok(s->t->read(s->queue, &left, &g->number, &err), &err, "read");
  conf_ok(s->t->params_refresh(g->params, s->queue, 0, &err), &err, "params_refresh");
  conf_ok(s->t->run(g->binding, s->queue, NULL, 0, &err), &err, "run");
  conf_ok(s->t->read(s->queue, got, &g->y, &err), &err, "read");
  conf_ok(s->t->fill_zero(s->queue, &g->gradient, &err), &err, "fill_zero");
  conf_ok(s->t->params_export(g->params, s->queue, 0, &g->dense, &err), &err, "params_export");
  finish(s);
  conf_check(left == 0, "an update that clears leaves a gradient, of squares %g", left);
  conf_check(conf_allocations() == before, "%llu allocations in a step",
             (unsigned long long)(conf_allocations() - before));
  for (int i = 0; i < N; ++i)
    wanted[i] = (double)x[i] * ((double)weights[i] - 0.25 * (double)x[i] * (double)weights[i]);
  close_to("run after the step", got, wanted);
  conf_ok(s->t->params_read(g->gradients, 0, got, sizeof(got), &err), &err, "params_read");
  close_to("cleared gradient", got, zero);
  for (int i = 0; i < N; ++i)
    wanted[i] = (double)weights[i] - 0.25 * (double)x[i] * (double)weights[i];
  conf_ok(s->t->params_read(g->params, 0, got, sizeof(got), &err), &err, "params_read");
  close_to("weight", got, wanted);
  conf_ok(s->t->read(s->queue, got, &g->dense, &err), &err, "read");
  finish(s);
  close_to("exported weight", got, wanted);
  conf_ok(s->t->add(s->queue, &g->dense, &g->x, &err), &err, "add");
  conf_ok(s->t->params_import(g->params, s->queue, 0, &g->dense, &err), &err, "params_import");
  finish(s);
  for (int i = 0; i < N; ++i)
    wanted[i] += (double)x[i];
  conf_ok(s->t->params_read(g->params, 0, got, sizeof(got), &err), &err, "params_read");
  close_to("imported weight", got, wanted);
}

static void check_training(const subject *s) {
  trainee g;
  float x[N];
  conf_case("training");
  if (!OPIPE_HAS(s->t, opipe_backend, update) || s->t->params_create_owned == NULL) {
    conf_skip("the backend cannot train");
    return;
  }
  make_trainee(&g);
  for (int i = 0; i < N; ++i)
    x[i] = (float)i * 0.25f - 1.5f;
  if (open_trainee(s, &g)) {
    conf_check(
        g.weight.n_bytes > 0 && g.weight.n_bytes % 4 == 0 && g.weight.n_bytes == g.gradient.n_bytes,
        "masters of %llu and %llu bytes", (unsigned long long)g.weight.n_bytes,
        (unsigned long long)g.gradient.n_bytes);
    train_twice(s, &g, x);
    step_once(s, &g, x);
  }
  close_trainee(s, &g);
}

/* device=N is the device's number, anything else with '=' its options; a path has none. */
static void read_argument(const char *text, subject *s) {
  if (strncmp(text, "device=", 7) == 0)
    s->index = (uint32_t)strtoul(text + 7, NULL, 10);
  else if (strchr(text, '=') != NULL)
    s->options = text;
  else
    conf_lend(text);
}

int main(int argc, char **argv) {
  subject s;
  if (argc < 2) {
    (void)fprintf(stderr,
                  "usage: %s PATH.so [BACKEND.so that it stands on]... [device=N] [OPTIONS]\n",
                  argv[0]);
    return 2;
  }
  memset(&s, 0, sizeof(s));
  for (int i = 2; i < argc; ++i)
    read_argument(argv[i], &s);
  conf_plugin plugin = conf_open(argv[1], OPIPE_KIND_BACKEND, OPIPE_BACKEND_ID);
  s.t = plugin.table;
  s.self = plugin.self;
  check_devices(&s);
  check_cap(&s);
  check_kinds(&s);
  conf_case("queues");
  if (conf_made(open_device(&s, 0, NULL, &s.device), &s.device, &err, "device_open") &&
      conf_made(s.t->queue_open(s.device, &s.queue, &err), &s.queue, &err, "queue_open") &&
      conf_made(s.t->event_create(s.device, &s.event, &err), &s.event, &err, "event_create")) {
    conf_ok(s.t->event_poll(s.event, &err), &err, "event_poll of an event that was never recorded");
    finish(&s);
    conf_ok(s.t->event_wait(s.queue, s.event, &err), &err, "event_wait");
    check_copies(&s);
    check_offsets(&s);
    check_events(&s);
    check_programs(&s);
    check_unknown_operator(&s);
    check_unknown_words(&s);
    check_late_errors(&s);
    check_training(&s);
    check_shared(&s);
    check_shares(&s);
    check_many(&s);
    check_sum(&s);
    check_kernels(&s);
    check_timed(&s);
  }
  s.t->event_destroy(s.event);
  s.t->queue_close(s.queue);
  conf_case("life");
  conf_check(s.device == NULL || live_bytes_of(&s, OPIPE_BUFFER_KINDS) == 0,
             "%llu bytes of the device are counted when all is freed",
             (unsigned long long)(s.device == NULL ? 0 : live_bytes_of(&s, OPIPE_BUFFER_KINDS)));
  s.t->device_close(s.device);
  conf_close(&plugin);
  return conf_finish();
}
