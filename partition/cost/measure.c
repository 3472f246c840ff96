/* SPDX-License-Identifier: Apache-2.0 */
/* Measures nodes by running them: one buffer for all boundaries and scratch of a node, zero inputs,
 * best of three runs. */
#include "partition/cost/measure.h"

#include <string.h>

#include "loader/gradient/gradient.h"

enum { RUNS = 3 };

typedef struct measure {
  const opi_backend_ref *backend;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event;
  opipe_params *params;
  const opipe_allocator *allocator;
  uint64_t alignment;
  uint64_t (*now_ns)(void);
} measure;

static opipe_status time_runs(const measure *m, opipe_binding *binding, uint32_t n_scalars,
                              double *out_ns, opipe_error *err) {
  static const int64_t scalars[OPI_SCALAR_TABLE];
  for (uint32_t run = 0; run < RUNS; ++run) {
    const uint64_t start = m->now_ns();
    OPI_TRY(OPI_ASK("backend", m->backend, run, err, binding, m->queue, scalars, n_scalars));
    OPI_TRY(OPI_ASK("backend", m->backend, event_record, err, m->queue, m->event));
    OPI_TRY(OPI_ASK("backend", m->backend, event_sync, err, m->event, UINT64_MAX));
    const double took = (double)(m->now_ns() - start);
    if (run == 0 || took < *out_ns)
      *out_ns = took;
  }
  return OPIPE_OK;
}

static opipe_status zero(const measure *m, const opipe_region *region, opipe_error *err) {
  void *zeros = opi_alloc_zero(m->allocator, 1, (size_t)region->n_bytes);
  if (zeros == NULL)
    return opi_fail_nomem(err, region->n_bytes, "a measurement");
  opipe_status status = OPI_ASK("backend", m->backend, write, err, m->queue, region, zeros);
  if (status == OPIPE_OK)
    status = OPI_ASK("backend", m->backend, event_record, err, m->queue, m->event);
  if (status == OPIPE_OK)
    status = OPI_ASK("backend", m->backend, event_sync, err, m->event, UINT64_MAX);
  opi_free(m->allocator, zeros, (size_t)region->n_bytes);
  return status;
}

static opipe_status bind_and_time(const measure *m, const opipe_graph *graph,
                                  opipe_program *program, opipe_region *regions, double *out_ns,
                                  opipe_error *err) {
  const opipe_backend *t = m->backend->table;
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  opipe_buffer *buffer = NULL;
  opipe_binding *binding = NULL;
  opipe_status status = opi_program_ask(m->backend, program, &info, err);
  if (status < 0)
    return status;
  uint64_t total = opi_align_up(info.arena_bytes, m->alignment);
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if (value->role == OPIPE_VALUE_INPUT || value->role == OPIPE_VALUE_OUTPUT)
      regions[value->slot].n_bytes = opi_align_up(value->n_bytes + 1, m->alignment);
  }
  for (uint32_t i = 0; i < graph->n_boundaries; ++i) {
    regions[i].offset_bytes = total;
    if (opi_add_u64(total, regions[i].n_bytes, &total)) {
      return opi_fail(err, OPIPE_E_LIMIT, "a measurement on backend '%s' exceeds 2^64 bytes",
                      m->backend->id);
    }
  }
  status = OPI_MAKE("backend", m->backend, buffer_alloc, &buffer, err, m->device,
                    total == 0 ? m->alignment : total, OPIPE_BUFFER_STAGING);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < graph->n_boundaries; ++i)
    regions[i].buffer = buffer;
  const opipe_region all = {buffer, 0, total};
  status = total == 0 ? OPIPE_OK : zero(m, &all, err);
  const opipe_bind_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
      .n_boundaries = graph->n_boundaries,
      .program = program,
      .params = m->params,
      .arena = {buffer, 0, opi_align_up(info.arena_bytes, m->alignment)},
      .boundaries = regions};
  if (status == OPIPE_OK)
    status = OPI_ASK("backend", m->backend, params_prepare, err, m->params, program);
  if (status == OPIPE_OK)
    status = OPI_MAKE("backend", m->backend, bind, &binding, err, m->device, &params);
  if (status == OPIPE_OK)
    status = time_runs(m, binding, graph->n_scalars, out_ns, err);
  t->binding_free(binding);
  t->buffer_free(buffer);
  return status;
}

static opipe_status measure_program(const measure *m, const opipe_graph *graph, double *out_ns,
                                    opipe_error *err) {
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph), .graph = graph};
  const size_t n = graph->n_boundaries == 0 ? 1 : graph->n_boundaries;
  opipe_program *program = NULL;
  opipe_region *regions = opi_alloc_zero(m->allocator, n, sizeof(*regions));
  if (regions == NULL)
    return opi_fail_nomem(err, n * sizeof(*regions), "a measurement");
  opipe_status status = OPI_MAKE("backend", m->backend, compile, &program, err, m->device, &params);
  if (status == OPIPE_OK)
    status = bind_and_time(m, graph, program, regions, out_ns, err);
  m->backend->table->program_free(program);
  opi_free(m->allocator, regions, n * sizeof(*regions));
  return status;
}

opipe_status opi_measure_programs(const opipe_graph *const *graphs, uint32_t n,
                                  const opipe_param_source *sources, uint32_t n_params,
                                  const opi_backend_ref *backend, opipe_device *device,
                                  const opipe_allocator *allocator, uint64_t (*now_ns)(void),
                                  double *out_ns, opipe_error *err) {
  measure m = {.backend = backend, .device = device, .allocator = allocator, .now_ns = now_ns};
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  for (uint32_t p = 0; p < n_params; ++p) {
    if (sources[p].data != NULL)
      continue;
    return opi_fail(err, OPIPE_E_NOTFOUND, "measured costs need the weights: '%s' is missing",
                    sources[p].name);
  }
  opipe_status status = opi_device_ask(backend, 0, &info, err);
  m.alignment = info.alignment;
  if (status == OPIPE_OK)
    status = OPI_MAKE("backend", backend, queue_open, &m.queue, err, device);
  if (status == OPIPE_OK)
    status = OPI_MAKE("backend", backend, event_create, &m.event, err, device);
  if (status == OPIPE_OK)
    status = OPI_MAKE("backend", backend, params_create, &m.params, err, device, sources, n_params);
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i)
    status = measure_program(&m, graphs[i], &out_ns[i], err);
  backend->table->params_free(m.params);
  backend->table->event_destroy(m.event);
  backend->table->queue_close(m.queue);
  return status;
}
