/* SPDX-License-Identifier: Apache-2.0 */
/* The toy backend: four operators, memory from the host's allocator, one parameter layout (a copy).
 */
#include <opipe/helpers.h>
#include <stdlib.h>
#include <time.h>

#include "tests/runtime/toy.h"

enum { ALIGN = 64 };

struct opipe_device {
  toy *t;
  opipe_meter meter;
};
struct opipe_buffer {
  opipe_device *device;
  char *data;
  uint64_t n_bytes;
  uint32_t kind;
};
struct opipe_queue {
  opipe_device *device;
};
struct opipe_event {
  opipe_sync_event sync;
};
struct opipe_program {
  opipe_device *device;
  const opipe_graph *graph;
  uint32_t flags;
  uint64_t *offsets; /* [n_values] of TEMP values in the arena */
  uint64_t arena_bytes;
};
struct opipe_params {
  opipe_device *device;
  const opipe_param_source *sources;
  opipe_buffer **copies; /* [n] */
  uint32_t n;
};
struct opipe_binding {
  const opipe_program *program;
  char **data; /* [n_values] */
};

uint64_t toy_now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void *take(const toy *t, size_t n) {
  void *p = t->allocator->realloc(t->allocator->ctx, NULL, 0, n == 0 ? 1 : n, 16);
  if (p != NULL)
    memset(p, 0, n);
  return p;
}
static void give(const toy *t, void *p, size_t n) {
  if (p != NULL)
    (void)t->allocator->realloc(t->allocator->ctx, p, n == 0 ? 1 : n, 0, 16);
}
static opipe_status no_memory(opipe_error *err) {
  return opipe_fail(err, OPIPE_E_NOMEM, "toy: no memory");
}

static opipe_status device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err) {
  (void)self, (void)err;
  *out_count = TOY_MAX_RANKS;
  return OPIPE_OK;
}
static opipe_status device_query(opipe_instance *self, uint32_t index, opipe_device_info *info,
                                 opipe_error *err) {
  (void)index, (void)err;
  const uint32_t size = info->struct_size;
  memset(info, 0, sizeof *info);
  *info = (opipe_device_info){.struct_size = size,
                              .flags = toy_of(self)->faults.device_flags,
                              .memory_bytes = toy_of(self)->faults.memory_bytes,
                              .peak_flops = 1e9,
                              .bandwidth = 1e9,
                              .alignment = ALIGN};
  return OPIPE_OK;
}
static opipe_status device_open(opipe_instance *self, const opipe_device_params *params,
                                opipe_device **out, opipe_error *err) {
  opipe_device *d = take(toy_of(self), sizeof *d);
  if (d == NULL)
    return no_memory(err);
  d->t = toy_of(self);
  d->meter.cap_bytes = params->memory_bytes != 0 ? params->memory_bytes : d->t->faults.memory_bytes;
  *out = d;
  return OPIPE_OK;
}
static void device_close(opipe_device *d) {
  if (d != NULL)
    give(d->t, d, sizeof *d);
}
static opipe_status device_usage(opipe_device *d, opipe_device_usage *usage, opipe_error *err) {
  return opipe_meter_read(&d->meter, usage, err);
}

static opipe_status buffer_alloc(opipe_device *d, uint64_t n_bytes, uint32_t kind,
                                 opipe_buffer **out, opipe_error *err) {
  opipe_buffer *b = take(d->t, sizeof *b);
  if (b == NULL)
    return no_memory(err);
  void *data = NULL;
  const opipe_status status =
      opipe_host_alloc(&d->t->host, &d->meter, kind, &n_bytes, ALIGN, &data, err);
  if (status < 0) {
    give(d->t, b, sizeof *b);
    return status;
  }
  memset(data, 0x5c, (size_t)n_bytes);
  *b = (opipe_buffer){.device = d, .data = data, .n_bytes = n_bytes, .kind = kind};
  *out = b;
  return OPIPE_OK;
}
static void buffer_free(opipe_buffer *b) {
  if (b == NULL)
    return;
  opipe_host_free(&b->device->t->host, &b->device->meter, b->kind, b->data, b->n_bytes, ALIGN);
  give(b->device->t, b, sizeof *b);
}
static opipe_status buffer_host(opipe_buffer *b, void **out, opipe_error *err) {
  (void)err;
  *out = b->data;
  return OPIPE_OK;
}

static opipe_status queue_open(opipe_device *d, opipe_queue **out, opipe_error *err) {
  opipe_queue *q = take(d->t, sizeof *q);
  if (q == NULL)
    return no_memory(err);
  q->device = d;
  *out = q;
  return OPIPE_OK;
}
static void queue_close(opipe_queue *q) {
  if (q != NULL)
    give(q->device->t, q, sizeof *q);
}
struct event_box {
  opipe_event event;
  const toy *t;
};
static opipe_status event_create(opipe_device *d, opipe_event **out, opipe_error *err) {
  struct event_box *e = take(d->t, sizeof *e);
  if (e == NULL)
    return no_memory(err);
  e->t = d->t;
  *out = &e->event;
  return OPIPE_OK;
}
static void event_destroy(opipe_event *e) {
  if (e != NULL)
    give(((struct event_box *)e)->t, e, sizeof(struct event_box));
}
static opipe_status event_record(opipe_queue *q, opipe_event *e, opipe_error *err) {
  (void)q, (void)err;
  opipe_sync_event_record(&e->sync);
  return OPIPE_OK;
}
static opipe_status event_wait(opipe_queue *q, opipe_event *e, opipe_error *err) {
  (void)q, (void)err;
  return opipe_sync_event_poll(&e->sync);
}
static opipe_status event_poll(opipe_event *e, opipe_error *err) {
  (void)err;
  return opipe_sync_event_poll(&e->sync);
}
static opipe_status event_sync(opipe_event *e, uint64_t timeout_ns, opipe_error *err) {
  (void)timeout_ns, (void)err;
  return opipe_sync_event_poll(&e->sync);
}

static opipe_status write_region(opipe_queue *q, const opipe_region *dst, const void *src,
                                 opipe_error *err) {
  (void)q, (void)err;
  memcpy(dst->buffer->data + dst->offset_bytes, src, (size_t)dst->n_bytes);
  return OPIPE_OK;
}
static opipe_status read_region(opipe_queue *q, void *dst, const opipe_region *src,
                                opipe_error *err) {
  (void)q, (void)err;
  memcpy(dst, src->buffer->data + src->offset_bytes, (size_t)src->n_bytes);
  return OPIPE_OK;
}
static opipe_status copy_region(opipe_queue *q, const opipe_region *dst, const opipe_region *src,
                                opipe_error *err) {
  return write_region(q, dst, src->buffer->data + src->offset_bytes, err);
}

static opipe_status support(opipe_device *d, const opipe_graph *g, opipe_support *out,
                            opipe_error *err) {
  (void)d, (void)err;
  memset(out, 0, g->n_nodes * sizeof *out);
  return OPIPE_OK;
}

static opipe_status compile(opipe_device *d, const opipe_compile_params *params,
                            opipe_program **out, opipe_error *err) {
  const opipe_graph *g = params->graph;
  opipe_program *p = take(d->t, sizeof *p);
  if (p == NULL)
    return no_memory(err);
  p->offsets = take(d->t, g->n_values * sizeof *p->offsets);
  if (p->offsets == NULL) {
    give(d->t, p, sizeof *p);
    return no_memory(err);
  }
  p->device = d;
  p->graph = g;
  p->flags = params->flags;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    if (g->values[v].role != OPIPE_VALUE_TEMP)
      continue;
    p->offsets[v] = p->arena_bytes;
    p->arena_bytes += (g->values[v].n_bytes + ALIGN - 1) / ALIGN * ALIGN;
  }
  *out = p;
  return OPIPE_OK;
}
static void program_free(opipe_program *p) {
  if (p == NULL)
    return;
  give(p->device->t, p->offsets, p->graph->n_values * sizeof *p->offsets);
  give(p->device->t, p, sizeof *p);
}
static opipe_status program_info(const opipe_program *p, opipe_program_info *info,
                                 opipe_error *err) {
  (void)err;
  info->n_kernels = p->graph->n_nodes;
  info->temp_bytes = p->arena_bytes;
  info->workspace_bytes = ALIGN;
  info->arena_bytes = p->arena_bytes + ALIGN;
  return OPIPE_OK;
}
static opipe_status program_params(const opipe_program *p, opipe_param_layout *out,
                                   uint32_t *io_count, opipe_error *err) {
  uint32_t n = 0;
  for (uint32_t v = 0; v < p->graph->n_values; ++v) {
    if (p->graph->values[v].role != OPIPE_VALUE_PARAMETER)
      continue;
    if (n < *io_count) {
      out[n].slot = p->graph->values[v].slot;
      out[n].key = 1;
      out[n].n_bytes = p->graph->values[v].n_bytes;
      out[n].mapped_bytes = 0;
    }
    ++n;
  }
  const bool room = *io_count >= n || out == NULL;
  *io_count = n;
  return room ? OPIPE_OK : opipe_fail(err, OPIPE_E_LIMIT, "toy: room for fewer layouts than %u", n);
}

static opipe_status params_create(opipe_device *d, const opipe_param_source *sources, uint32_t n,
                                  opipe_params **out, opipe_error *err) {
  opipe_params *p = take(d->t, sizeof *p);
  if (p == NULL)
    return no_memory(err);
  p->copies = take(d->t, n * sizeof *p->copies);
  if (p->copies == NULL) {
    give(d->t, p, sizeof *p);
    return no_memory(err);
  }
  p->device = d;
  p->sources = sources;
  p->n = n;
  *out = p;
  return OPIPE_OK;
}
static void params_free(opipe_params *p) {
  if (p == NULL)
    return;
  for (uint32_t i = 0; i < p->n; ++i)
    buffer_free(p->copies[i]);
  give(p->device->t, p->copies, p->n * sizeof *p->copies);
  give(p->device->t, p, sizeof *p);
}
static opipe_status params_prepare(opipe_params *p, const opipe_program *program,
                                   opipe_error *err) {
  for (uint32_t v = 0; v < program->graph->n_values; ++v) {
    const opipe_value *value = &program->graph->values[v];
    if (value->role != OPIPE_VALUE_PARAMETER || p->copies[value->slot] != NULL)
      continue;
    const opipe_status status =
        buffer_alloc(p->device, value->n_bytes, OPIPE_BUFFER_PARAMS, &p->copies[value->slot], err);
    if (status < 0)
      return status;
    memcpy(p->copies[value->slot]->data, p->sources[value->slot].data, (size_t)value->n_bytes);
  }
  return OPIPE_OK;
}
static opipe_status params_clone(const opipe_params *p, opipe_params **out, opipe_error *err) {
  (void)p, (void)out;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "toy: sets are not cloned");
}
static opipe_status params_write(opipe_params *p, uint32_t slot, const void *src, uint64_t n,
                                 opipe_error *err) {
  (void)p, (void)slot, (void)src, (void)n;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "toy: sets are not written");
}
static opipe_status params_read(const opipe_params *p, uint32_t slot, void *dst, uint64_t n,
                                opipe_error *err) {
  (void)p, (void)slot, (void)dst, (void)n;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "toy: sets are not read");
}
static opipe_status params_commit(opipe_params *p, opipe_error *err) {
  (void)p, (void)err;
  return OPIPE_OK;
}

static bool has_node(const opipe_graph *g, const char *name) {
  for (uint32_t i = 0; name != NULL && i < g->n_nodes; ++i) {
    if (strcmp(g->nodes[i].name, name) == 0)
      return true;
  }
  return false;
}

static opipe_status bind(opipe_device *d, const opipe_bind_params *params, opipe_binding **out,
                         opipe_error *err) {
  const opipe_graph *g = params->program->graph;
  if (has_node(g, d->t->faults.unbound_node)) {
    *out = NULL;
    return OPIPE_OK;
  }
  opipe_binding *b = take(d->t, sizeof *b);
  if (b == NULL)
    return no_memory(err);
  b->data = take(d->t, g->n_values * sizeof *b->data);
  if (b->data == NULL) {
    give(d->t, b, sizeof *b);
    return no_memory(err);
  }
  b->program = params->program;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_TEMP) {
      b->data[v] =
          params->arena.buffer->data + params->arena.offset_bytes + params->program->offsets[v];
    } else if (value->role == OPIPE_VALUE_PARAMETER) {
      b->data[v] = params->params->copies[value->slot]->data;
    } else if (value->role == OPIPE_VALUE_CONSTANT) {
      b->data[v] = (char *)(uintptr_t)value->data;
    } else {
      const opipe_region *r = &params->boundaries[value->slot];
      b->data[v] = r->buffer->data + r->offset_bytes;
    }
  }
  *out = b;
  return OPIPE_OK;
}
static void binding_free(opipe_binding *b) {
  if (b == NULL)
    return;
  const toy *t = b->program->device->t;
  give(t, b->data, b->program->graph->n_values * sizeof *b->data);
  give(t, b, sizeof *b);
}

static void run_node(const opipe_graph *g, const opipe_node *node, char *const *data) {
  const opipe_value *out = &g->values[node->out[0]];
  const size_t n = (size_t)out->n_bytes / sizeof(float);
  const float *a = (const float *)(void *)data[node->in[0]];
  const float *b = node->n_in > 1 ? (const float *)(void *)data[node->in[1]] : NULL;
  float *y = (float *)(void *)data[node->out[0]];
  if (strcmp(node->op, "Mix") == 0) {
    for (size_t i = 0; i < n; ++i)
      y[i] = a[i] * b[i % TOY_WIDTH] + 0.25f;
  } else if (strcmp(node->op, "Add") == 0) {
    for (size_t i = 0; i < n; ++i)
      y[i] = a[i] + b[i];
  } else if (strcmp(node->op, "Swap") == 0) {
    const int64_t seq = out->shape[0], rows = out->shape[1];
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < seq; ++s) {
        memcpy(&y[(s * rows + r) * TOY_WIDTH], &a[(r * seq + s) * TOY_WIDTH],
               TOY_WIDTH * sizeof *y);
      }
    }
  } else {
    memcpy(y, a, (size_t)out->n_bytes); /* Flat */
  }
}

static opipe_status check_finite(const opipe_graph *g, const opipe_node *node, char *const *data,
                                 opipe_error *err) {
  const float *y = (const float *)(void *)data[node->out[0]];
  for (size_t i = 0; i < g->values[node->out[0]].n_bytes / sizeof *y; ++i) {
    if (y[i] - y[i] != 0.0f)
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': its output is not finite", node->name);
  }
  return OPIPE_OK;
}

static void note_hop(toy_faults *f) {
  const uint64_t last = atomic_load(&f->last_end_ns);
  const uint32_t at = f->hops == NULL || last == 0 ? UINT32_MAX : atomic_fetch_add(&f->n_hops, 1);
  if (at < f->hops_room)
    f->hops[at] = toy_now_ns() - last;
}

static opipe_status run(opipe_binding *b, opipe_queue *q, const int64_t *scalars,
                        uint32_t n_scalars, opipe_error *err) {
  const opipe_graph *g = b->program->graph;
  toy_faults *f = &q->device->t->faults;
  (void)scalars, (void)n_scalars;
  if (f->hops != NULL)
    note_hop(f);
  atomic_fetch_add(&f->n_runs, 1);
  if (f->stall_ms != 0 && has_node(g, f->stall_node)) {
    const uint32_t n = atomic_fetch_add(&f->n_stall_runs, 1) + 1;
    const struct timespec t = {.tv_sec = f->stall_ms / 1000,
                               .tv_nsec = (long)(f->stall_ms % 1000) * 1000000};
    if (f->stall_at == 0 || n == f->stall_at)
      (void)nanosleep(&t, NULL);
  }
  if (f->fail_at != 0 && has_node(g, f->fail_node) &&
      atomic_fetch_add(&f->n_fail_runs, 1) + 1 == f->fail_at)
    return opipe_fail(err, f->fail_status, "node '%s': it was told to fail", f->fail_node);
  for (uint32_t i = 0; i < g->n_nodes; ++i) {
    run_node(g, &g->nodes[i], b->data);
    if ((b->program->flags & OPIPE_COMPILE_CHECK_FINITE) == 0)
      continue;
    const opipe_status status = check_finite(g, &g->nodes[i], b->data, err);
    if (status < 0)
      return status;
  }
  if (f->hops != NULL)
    atomic_store(&f->last_end_ns, toy_now_ns());
  return OPIPE_OK;
}

const opipe_backend toy_backend = {.struct_size = (uint32_t)OPIPE_END(opipe_backend, run),
                                   .device_count = device_count,
                                   .device_query = device_query,
                                   .device_open = device_open,
                                   .device_close = device_close,
                                   .device_usage = device_usage,
                                   .buffer_alloc = buffer_alloc,
                                   .buffer_free = buffer_free,
                                   .buffer_host = buffer_host,
                                   .queue_open = queue_open,
                                   .queue_close = queue_close,
                                   .event_create = event_create,
                                   .event_destroy = event_destroy,
                                   .event_record = event_record,
                                   .event_wait = event_wait,
                                   .event_poll = event_poll,
                                   .event_sync = event_sync,
                                   .write = write_region,
                                   .read = read_region,
                                   .copy = copy_region,
                                   .support = support,
                                   .compile = compile,
                                   .program_free = program_free,
                                   .program_info = program_info,
                                   .program_params = program_params,
                                   .params_create = params_create,
                                   .params_free = params_free,
                                   .params_prepare = params_prepare,
                                   .params_clone = params_clone,
                                   .params_write = params_write,
                                   .params_read = params_read,
                                   .params_commit = params_commit,
                                   .bind = bind,
                                   .binding_free = binding_free,
                                   .run = run};
