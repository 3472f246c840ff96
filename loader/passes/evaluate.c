/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluator over a backend: each node to be folded is compiled, bound to host-visible buffers
 * and run once, with one compute thread, so that folded numbers are those that the run would have
 * made.
 *
 * One buffer for results and one for the arena slot are kept and grown; programs live for one node.
 * A context's binds share one evaluator, so a lock lets in one thread at a time.
 */
#include "loader/passes/passes.h"

#include <inttypes.h>
#include <pthread.h>

typedef struct held_buffer {
  opipe_buffer *buffer;
  uint64_t n_bytes;
} held_buffer;

typedef struct backend_evaluator {
  opi_evaluator public_part; /* first: what callers hold */
  const opipe_allocator *allocator;
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event;
  held_buffer results, slot;
  uint64_t alignment;
  pthread_mutex_t lock;
} backend_evaluator;

#define WAIT_NS (UINT64_C(60) * 1000000000u)

static opipe_status hold(backend_evaluator *e, held_buffer *held, uint64_t need, uint32_t kind,
                         opipe_error *err) {
  if (held->buffer != NULL && held->n_bytes >= need)
    return OPIPE_OK;
  e->backend->buffer_free(held->buffer);
  *held = (held_buffer){0};
  const uint64_t n_bytes = need < 65536 ? 65536 : need;
  OPI_TRY(e->backend->buffer_alloc(e->device, n_bytes, kind, &held->buffer, err));
  held->n_bytes = n_bytes;
  return OPIPE_OK;
}

/* Regions of the outputs one after another in the results' buffer. */
static opipe_status place_outputs(backend_evaluator *e, const opipe_graph *graph,
                                  opipe_region *regions, opipe_error *err) {
  uint64_t total = 0;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (graph->values[v].role != OPIPE_VALUE_OUTPUT)
      continue;
    opipe_region *region = &regions[graph->values[v].slot];
    region->offset_bytes = total;
    region->n_bytes = graph->values[v].n_bytes;
    if (region->n_bytes > (uint64_t)1 << 40) {
      return opi_fail(err, OPIPE_E_LIMIT, "a folded value of %" PRIu64 " bytes", region->n_bytes);
    }
    total += opi_align_up(region->n_bytes, e->alignment);
  }
  OPI_TRY(hold(e, &e->results, total, OPIPE_BUFFER_BOUNDARY, err));
  for (uint32_t s = 0; s < graph->n_boundaries; ++s)
    regions[s].buffer = e->results.buffer;
  return OPIPE_OK;
}

static opipe_status run_binding(backend_evaluator *e, opipe_binding *binding,
                                const opipe_region *regions, void *const *out_data, uint32_t n,
                                opipe_error *err) {
  OPI_TRY(e->backend->run(binding, e->queue, NULL, 0, err));
  for (uint32_t s = 0; s < n; ++s) {
    if (regions[s].n_bytes == 0)
      continue;
    OPI_TRY(e->backend->read(e->queue, out_data[s], &regions[s], err));
  }
  OPI_TRY(e->backend->event_record(e->queue, e->event, err));
  return e->backend->event_sync(e->event, WAIT_NS, err);
}

static opipe_status run_program(backend_evaluator *e, const opipe_graph *graph,
                                const opipe_program *program, void *const *out_data,
                                opipe_error *err) {
  opipe_region regions[64];
  opipe_binding *binding = NULL;
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  memset(regions, 0, sizeof(regions));
  if (graph->n_boundaries > OPI_COUNT(regions)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "a node of %" PRIu32 " outputs is not folded",
                    graph->n_boundaries);
  }
  OPI_TRY(e->backend->program_info(program, &info, err));
  OPI_TRY(place_outputs(e, graph, regions, err));
  OPI_TRY(hold(e, &e->slot, info.arena_bytes, OPIPE_BUFFER_ARENA, err));
  const opipe_bind_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
      .n_boundaries = graph->n_boundaries,
      .program = program,
      .arena = {e->slot.buffer, 0, info.arena_bytes},
      .boundaries = regions};
  OPI_TRY(e->backend->bind(e->device, &params, &binding, err));
  const opipe_status status = run_binding(e, binding, regions, out_data, graph->n_boundaries, err);
  e->backend->binding_free(binding);
  return status;
}

static opipe_status evaluate_locked(backend_evaluator *e, const opipe_graph *graph,
                                    void *const *out_data, opipe_error *err) {
  opipe_program *program = NULL;
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = OPIPE_COMPILE_NO_FUSE,
      .graph = graph};
  OPI_TRY(e->backend->compile(e->device, &params, &program, err));
  const opipe_status status = run_program(e, graph, program, out_data, err);
  e->backend->program_free(program);
  return status;
}

static opipe_status evaluate(void *ctx, const opipe_graph *graph, void *const *out_data,
                             opipe_error *err) {
  backend_evaluator *e = ctx;
  (void)pthread_mutex_lock(&e->lock);
  const opipe_status status = evaluate_locked(e, graph, out_data, err);
  (void)pthread_mutex_unlock(&e->lock);
  return status;
}

static opipe_status open_device(backend_evaluator *e, opipe_instance *self, opipe_error *err) {
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options), .threads = 1};
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  OPI_TRY(e->backend->device_query(self, 0, &info, err));
  e->alignment = info.alignment != 0 ? info.alignment : 64;
  OPI_TRY(e->backend->device_open(self, &params, &e->device, err));
  OPI_TRY(e->backend->queue_open(e->device, &e->queue, err));
  return e->backend->event_create(e->device, &e->event, err);
}

opipe_status opi_evaluator_create(const opipe_allocator *allocator, const opipe_backend *backend,
                                  opipe_instance *self, opi_evaluator **out_evaluator,
                                  opipe_error *err) {
  backend_evaluator *e = opi_alloc_zero(allocator, 1, sizeof(*e));
  if (e == NULL)
    return opi_fail_nomem(err, sizeof(*e), "an evaluator");
  e->public_part = (opi_evaluator){e, evaluate};
  e->allocator = allocator;
  e->backend = backend;
  (void)pthread_mutex_init(&e->lock, NULL); /* cannot fail here: default attributes */
  const opipe_status status = open_device(e, self, err);
  if (status < 0) {
    opi_evaluator_free(&e->public_part);
    return status;
  }
  *out_evaluator = &e->public_part;
  return OPIPE_OK;
}

void opi_evaluator_free(opi_evaluator *evaluator) {
  if (evaluator == NULL)
    return;
  backend_evaluator *e = (backend_evaluator *)evaluator->ctx;
  if (e->event != NULL)
    e->backend->event_destroy(e->event);
  if (e->queue != NULL)
    e->backend->queue_close(e->queue);
  if (e->results.buffer != NULL)
    e->backend->buffer_free(e->results.buffer);
  if (e->slot.buffer != NULL)
    e->backend->buffer_free(e->slot.buffer);
  if (e->device != NULL)
    e->backend->device_close(e->device);
  (void)pthread_mutex_destroy(&e->lock);
  opi_free(e->allocator, e, sizeof(*e));
}
