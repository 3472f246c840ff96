/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluator over a backend: each node to be folded is compiled, bound to host-visible buffers
 * and run once, with one compute thread, so that folded numbers are those that the run would have
 * made.
 *
 * One buffer for results and one for the arena slot are kept and grown; programs live for one node.
 * A graph that is computed many times is prepared: it keeps its program and its memory. A context's
 * binds share one evaluator, so a lock lets in one thread at a time.
 */
#include "loader/passes/passes.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

typedef struct held_buffer {
  opipe_buffer *buffer;
  uint64_t n_bytes;
} held_buffer;

typedef struct backend_evaluator {
  opi_evaluator public_part; /* first: what callers hold */
  const opipe_allocator *allocator;
  const opipe_backend *backend;
  char id[64]; /* of the backend */
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event;
  held_buffer results, slot;
  uint64_t alignment;
  pthread_mutex_t lock;
} backend_evaluator;

#define ASK(e, slot, err, ...) \
  opi_answer((e)->backend->slot(__VA_ARGS__, err), "backend", (e)->id, #slot, err)
#define MAKE(e, slot, out, err, ...) \
  opi_made(ASK(e, slot, err, __VA_ARGS__, out), (const void *)(out), "backend", (e)->id, #slot, err)
#define WAIT_NS (UINT64_C(60) * 1000000000u)

static opipe_status hold(backend_evaluator *e, held_buffer *held, uint64_t need, uint32_t kind,
                         opipe_error *err) {
  if (held->buffer != NULL && held->n_bytes >= need)
    return OPIPE_OK;
  e->backend->buffer_free(held->buffer);
  *held = (held_buffer){0};
  const uint64_t n_bytes = need < 65536 ? 65536 : need;
  OPI_TRY(MAKE(e, buffer_alloc, &held->buffer, err, e->device, n_bytes, kind));
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
    if (region->n_bytes > (uint64_t)1 << 40)
      return opi_fail(err, OPIPE_E_LIMIT, "a folded value of %" PRIu64 " bytes", region->n_bytes);
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
  OPI_TRY(ASK(e, run, err, binding, e->queue, NULL, 0));
  for (uint32_t s = 0; s < n; ++s) {
    if (regions[s].n_bytes == 0)
      continue;
    OPI_TRY(ASK(e, read, err, e->queue, out_data[s], &regions[s]));
  }
  OPI_TRY(ASK(e, event_record, err, e->queue, e->event));
  return ASK(e, event_sync, err, e->event, WAIT_NS);
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
  OPI_TRY(ASK(e, program_info, err, program, &info));
  OPI_TRY(opi_program_check(&info, e->id, err));
  OPI_TRY(place_outputs(e, graph, regions, err));
  OPI_TRY(hold(e, &e->slot, info.arena_bytes, OPIPE_BUFFER_ARENA, err));
  const opipe_bind_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
      .n_boundaries = graph->n_boundaries,
      .program = program,
      .arena = {e->slot.buffer, 0, info.arena_bytes},
      .boundaries = regions};
  OPI_TRY(MAKE(e, bind, &binding, err, e->device, &params));
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
  OPI_TRY(MAKE(e, compile, &program, err, e->device, &params));
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
  OPI_TRY(ASK(e, device_query, err, self, 0, &info));
  OPI_TRY(opi_device_check(&info, e->id, 0, err));
  e->alignment = info.alignment > 1 ? info.alignment : 64;
  OPI_TRY(MAKE(e, device_open, &e->device, err, self, &params));
  OPI_TRY(MAKE(e, queue_open, &e->queue, err, e->device));
  return MAKE(e, event_create, &e->event, err, e->device);
}

opipe_status opi_evaluator_create(const opipe_allocator *allocator, const char *id,
                                  const opipe_backend *backend, opipe_instance *self,
                                  opi_evaluator **out_evaluator, opipe_error *err) {
  backend_evaluator *e = opi_alloc_zero(allocator, 1, sizeof(*e));
  if (e == NULL)
    return opi_fail_nomem(err, sizeof(*e), "an evaluator");
  e->public_part = (opi_evaluator){e, evaluate};
  e->allocator = allocator;
  e->backend = backend;
  (void)snprintf(e->id, sizeof(e->id), "%s", id);
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

/* ---- a graph that is computed many times ---- */

struct opi_prepared {
  backend_evaluator *evaluator;
  opi_arena arena;
  opipe_graph graph; /* the program reads it as long as it lives */
  opipe_program *program;
  opipe_binding *binding;
  opipe_buffer *boundary, *slot;
  opipe_region *regions; /* [n_inputs + n_outputs] of boundary */
  void **data;           /* the same: host memory */
  uint32_t n_inputs, n_outputs;
};

static opipe_status place_boundaries(opi_prepared *p, const opi_graph *graph, opipe_error *err) {
  const backend_evaluator *e = p->evaluator;
  uint64_t total = 0;
  p->regions = OPI_ARENA_ARRAY(&p->arena, opipe_region, p->n_inputs + p->n_outputs);
  p->data = OPI_ARENA_ARRAY(&p->arena, void *, p->n_inputs + p->n_outputs);
  if (p->regions == NULL || p->data == NULL)
    return opi_fail_nomem(err, graph->n_inputs * sizeof *p->regions, "a prepared graph");
  for (uint32_t i = 0; i < p->n_inputs + p->n_outputs; ++i) {
    const uint32_t v = i < p->n_inputs ? graph->inputs[i] : graph->outputs[i - p->n_inputs];
    const uint64_t n_bytes = graph->values[v].n_bytes;
    if (n_bytes > (uint64_t)1 << 40) {
      return opi_fail(err, OPIPE_E_LIMIT, "'%s' of %" PRIu64 " bytes", graph->values[v].name,
                      n_bytes);
    }
    p->regions[i] = (opipe_region){.offset_bytes = total, .n_bytes = n_bytes};
    p->data[i] = opi_arena_alloc(&p->arena, n_bytes == 0 ? 1 : (size_t)n_bytes);
    if (p->data[i] == NULL)
      return opi_fail_nomem(err, n_bytes, "a prepared graph");
    total += opi_align_up(n_bytes, e->alignment);
  }
  OPI_TRY(MAKE(e, buffer_alloc, &p->boundary, err, e->device, total == 0 ? e->alignment : total,
               OPIPE_BUFFER_BOUNDARY));
  for (uint32_t i = 0; i < p->n_inputs + p->n_outputs; ++i)
    p->regions[i].buffer = p->boundary;
  return OPIPE_OK;
}

static opipe_status prepare_locked(opi_prepared *p, const opi_graph *graph, opipe_error *err) {
  const backend_evaluator *e = p->evaluator;
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  OPI_TRY(opi_graph_to_abi(graph, &p->arena, &p->graph, err));
  const opipe_compile_params compile = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = OPIPE_COMPILE_NO_FUSE,
      .graph = &p->graph};
  OPI_TRY(MAKE(e, compile, &p->program, err, e->device, &compile));
  OPI_TRY(ASK(e, program_info, err, p->program, &info));
  OPI_TRY(opi_program_check(&info, e->id, err));
  OPI_TRY(place_boundaries(p, graph, err));
  opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                            .n_boundaries = p->n_inputs + p->n_outputs,
                            .program = p->program,
                            .boundaries = p->regions};
  if (info.arena_bytes > 0) {
    OPI_TRY(MAKE(e, buffer_alloc, &p->slot, err, e->device, info.arena_bytes, OPIPE_BUFFER_ARENA));
    bind.arena = (opipe_region){p->slot, 0, info.arena_bytes};
  }
  return MAKE(e, bind, &p->binding, err, e->device, &bind);
}

opipe_status opi_prepared_create(const opi_evaluator *evaluator, const opi_graph *graph,
                                 opi_prepared **out_prepared, opipe_error *err) {
  if (evaluator->run != evaluate)
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "this evaluator computes single nodes only");
  backend_evaluator *e = evaluator->ctx;
  opi_prepared *p = opi_alloc_zero(e->allocator, 1, sizeof *p);
  if (p == NULL)
    return opi_fail_nomem(err, sizeof *p, "a prepared graph");
  p->evaluator = e;
  p->n_inputs = graph->n_inputs;
  p->n_outputs = graph->n_outputs;
  opi_arena_init(&p->arena, e->allocator, 0);
  (void)pthread_mutex_lock(&e->lock);
  const opipe_status status = prepare_locked(p, graph, err);
  (void)pthread_mutex_unlock(&e->lock);
  if (status < 0) {
    opi_prepared_free(p);
    return status;
  }
  *out_prepared = p;
  return OPIPE_OK;
}

void *opi_prepared_data(const opi_prepared *p, uint32_t slot) {
  return p->data[slot];
}

static opipe_status run_prepared(const opi_prepared *p, opipe_error *err) {
  const backend_evaluator *e = p->evaluator;
  for (uint32_t i = 0; i < p->n_inputs; ++i) {
    if (p->regions[i].n_bytes > 0)
      OPI_TRY(ASK(e, write, err, e->queue, &p->regions[i], p->data[i]));
  }
  return run_binding(p->evaluator, p->binding, p->regions + p->n_inputs, p->data + p->n_inputs,
                     p->n_outputs, err);
}

opipe_status opi_prepared_run(opi_prepared *p, opipe_error *err) {
  (void)pthread_mutex_lock(&p->evaluator->lock);
  const opipe_status status = run_prepared(p, err);
  (void)pthread_mutex_unlock(&p->evaluator->lock);
  return status;
}

void opi_prepared_free(opi_prepared *p) {
  if (p == NULL)
    return;
  backend_evaluator *e = p->evaluator;
  (void)pthread_mutex_lock(&e->lock);
  e->backend->binding_free(p->binding);
  e->backend->program_free(p->program);
  e->backend->buffer_free(p->boundary);
  e->backend->buffer_free(p->slot);
  (void)pthread_mutex_unlock(&e->lock);
  opi_arena_release(&p->arena);
  opi_free(e->allocator, p, sizeof *p);
}
