/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that the device lacks run on the CPU, in the queue's order:
 *
 *   device ──FETCH──► pinned memory ──CALL: a function of the host's, by the driver──► STORE ──►
 * device
 *
 * Neighbours in the order are one section: one program of the CPU backend, bound once to memory
 * that is that backend's own and pinned for the driver. It is the program's, whatever binding runs:
 * an event keeps runs of different queues out of each other's way. Nothing waits on the host, and
 * no driver function is called from the driver's thread. The cost of a section is in program_info.
 */
#include "fallback.h"

typedef struct cuda_sections {
  pthread_mutex_t lock; /* of runs that queue sections */
  CUevent free_event;   /* when the last run that was queued is through with them */
  cuda_section *head;
} cuda_sections;

struct cuda_section {
  cuda_section *next;
  opipe_device *device;
  cuda_section_graph graph;
  opipe_program *program; /* of the inner backend, as what follows */
  opipe_queue *queue;
  opipe_buffer *memory;
  opipe_binding *binding;
  char *host; /* [n_bytes] of `memory`, pinned; NULL: not made yet */
  uint64_t n_bytes, arena_bytes, scalars_at;
  cuda_status *report; /* pinned */
  uint32_t name;       /* of its first node */
};

static const opipe_backend *inner_table(const opipe_device *device) {
  return device->inner.backend->table;
}

bool cuda_may_fall_back(const opipe_device *device, uint32_t compile_flags) {
  return device->inner.device != NULL &&
         (device->inner.asked || (compile_flags & OPIPE_COMPILE_OWNED) == 0);
}

/* ---- which ---- */

/* Answers for the section's nodes. out_support: of the whole graph */
static opipe_status ask_section(opipe_device *device, const cuda_section_graph *s,
                                opipe_support *answers, opipe_support *out_support,
                                opipe_error *err) {
  CUDA_TRY(inner_table(device)->support(device->inner.device, &s->graph, answers, err));
  for (uint32_t i = 0; i < s->n; ++i) {
    opipe_support *mine = &out_support[s->first + i];
    char reason[sizeof mine->reason];
    if (answers[i].status == OPIPE_OK) {
      memset(mine, 0, sizeof *mine);
      continue;
    }
    (void)snprintf(reason, sizeof reason, "%.55s; on the CPU: %.47s", mine->reason,
                   answers[i].reason);
    memcpy(mine->reason, reason, sizeof reason);
  }
  return OPIPE_OK;
}

opipe_status cuda_support_inner(opipe_device *device, const opipe_graph *graph, const bool *lacks,
                                cuda_pool *pool, opipe_support *out_support, opipe_error *err) {
  opipe_support *answers = CUDA_POOL_ARRAY(pool, opipe_support, graph->n_nodes);
  if (answers == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory to ask for %u nodes", graph->n_nodes);
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    cuda_section_graph s = {.whole = graph, .first = i};
    opipe_error why = OPIPE_ERROR_INIT;
    while (i + s.n < graph->n_nodes && lacks[i + s.n])
      ++s.n;
    if (s.n == 0)
      continue;
    const opipe_status status = cuda_section_graph_make(&s, pool, &why);
    if (status >= 0)
      CUDA_TRY(ask_section(device, &s, answers, out_support, err));
    else if (status != OPIPE_E_UNSUPPORTED)
      return opipe_fail(err, status, "%s", why.message);
    i += s.n - 1;
  }
  return OPIPE_OK;
}

/* ---- made: what it needs is known, nothing is taken ---- */

static uint64_t align_inner(const opipe_device *device, uint64_t n) {
  const uint64_t alignment = device->inner.alignment;
  return (n + alignment - 1) / alignment * alignment;
}

static void lay_out(cuda_section *section) {
  uint64_t at = align_inner(section->device, section->arena_bytes);
  section->scalars_at = at;
  at = align_inner(section->device, at + section->graph.graph.n_scalars * sizeof(int64_t));
  for (uint32_t i = 0; i < section->graph.n_crossings; ++i) {
    cuda_crossing *crossing = &section->graph.crossings[i];
    if (crossing->boundary == OPIPE_NONE) {
      const uint32_t slot = section->graph.whole->values[crossing->value].slot;
      crossing->offset = section->scalars_at + slot * sizeof(int64_t);
    } else {
      crossing->offset = at;
      at = align_inner(section->device, at + crossing->n_bytes);
    }
  }
  section->n_bytes = at != 0 ? at : section->device->inner.alignment;
}

static opipe_status compile_section(cuda_section *section, uint32_t flags, opipe_error *err) {
  const opipe_device *device = section->device;
  const uint32_t kept = OPIPE_COMPILE_CHECK_FINITE | OPIPE_COMPILE_POISON | OPIPE_COMPILE_NO_FUSE;
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, stage),
      .flags = flags & kept,
      .graph = &section->graph.graph,
      .stage = OPIPE_NONE};
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  CUDA_TRY(inner_table(device)->compile(device->inner.device, &params, &section->program, err));
  CUDA_TRY(inner_table(device)->program_info(section->program, &info, err));
  section->arena_bytes = info.arena_bytes;
  lay_out(section);
  return OPIPE_OK;
}

static opipe_status open_sections(opipe_program *program, opipe_error *err) {
  cuda_place *place = program->device->place;
  cuda_sections *sections = CUDA_POOL_ARRAY(&program->pool, cuda_sections, 1);
  if (program->sections != NULL)
    return OPIPE_OK;
  if (sections == NULL || pthread_mutex_init(&sections->lock, NULL) != 0)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for nodes on the CPU");
  program->sections = sections;
  return cuda_result(place,
                     place->driver->event_create(&sections->free_event, CUDA_EVENT_DISABLE_TIMING),
                     "cuEventCreate", err);
}

static opipe_status emit_crossings(cuda_rule *r, cuda_section *section, bool out) {
  for (uint32_t i = 0; i < section->graph.n_crossings; ++i) {
    const cuda_crossing *crossing = &section->graph.crossings[i];
    const cuda_host_args args = {0, crossing->offset, crossing->n_bytes};
    if (crossing->out != out || crossing->n_bytes == 0)
      continue;
    CUDA_TRY(cuda_emit_step(r, out ? CUDA_STEP_STORE : CUDA_STEP_FETCH));
    r->step->section = section;
    memcpy(r->step->launch.block_args.args, &args, sizeof args);
    CUDA_TRY(cuda_point(r, offsetof(cuda_host_args, device), crossing->value, 0));
  }
  return OPIPE_OK;
}

/* The call, and what it reports into the run's block, unless something is there already. */
static opipe_status emit_call(cuda_rule *r, cuda_section *section) {
  cuda_report_args args = {.from = section->report};
  cuda_launch launch;
  CUDA_TRY(cuda_emit_step(r, CUDA_STEP_CALL));
  r->step->section = section;
  CUDA_TRY(cuda_at_status(r, &args.to, &section->name));
  if (!cuda_plan_report(&args, &launch))
    return cuda_refuse(r, OPIPE_E_INTERNAL, "no kernel reports");
  CUDA_TRY(cuda_emit_step(r, CUDA_STEP_LAUNCH));
  r->step->launch = launch;
  r->n_tags = 0;
  return cuda_point(r, offsetof(cuda_report_args, to), CUDA_AT_STATUS, 0);
}

opipe_status cuda_section_emit(opipe_program *program, uint32_t first, uint32_t n,
                               opipe_error *err) {
  cuda_rule r = {.program = program, .node = &program->graph->nodes[first], .err = err};
  cuda_section *section = CUDA_POOL_ARRAY(&program->pool, cuda_section, 1);
  if (section == NULL)
    return cuda_nomem(&r);
  CUDA_TRY(open_sections(program, err));
  section->device = program->device;
  section->graph = (cuda_section_graph){.whole = program->graph, .first = first, .n = n};
  section->next = program->sections->head;
  program->sections->head = section;
  for (uint32_t i = 0; i < n; ++i)
    cuda_unmatch(program, &program->graph->nodes[first + i]);
  section->report = cuda_word_take(program->device, err);
  if (section->report == NULL)
    return OPIPE_E_NOMEM;
  CUDA_TRY(cuda_section_graph_make(&section->graph, &program->pool, err));
  CUDA_TRY(compile_section(section, program->flags, err));
  CUDA_TRY(emit_crossings(&r, section, false));
  CUDA_TRY(emit_call(&r, section));
  CUDA_TRY(emit_crossings(&r, section, true));
  program->n_fallback += n;
  program->host_bytes += section->n_bytes;
  return OPIPE_OK;
}

/* ---- memory, with the first binding ---- */

static opipe_status count_bytes(const opipe_device *device, int64_t n_bytes, opipe_error *err) {
  return device->inner.backend->lookup->count(device->host->ctx, "cpu", 0, 0, n_bytes, err);
}

static opipe_status bind_section(cuda_section *section, cuda_pool *pool, opipe_error *err) {
  const opipe_backend *table = inner_table(section->device);
  const uint32_t n = section->graph.graph.n_boundaries;
  opipe_region *regions = CUDA_POOL_ARRAY(pool, opipe_region, n);
  if (regions == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u regions", n);
  for (uint32_t i = 0; i < section->graph.n_crossings; ++i) {
    const cuda_crossing *crossing = &section->graph.crossings[i];
    if (crossing->boundary == OPIPE_NONE)
      continue;
    regions[crossing->boundary] =
        (opipe_region){section->memory, crossing->offset, crossing->n_bytes};
  }
  const opipe_bind_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
      .n_boundaries = n,
      .program = section->program,
      .arena = {section->memory, 0, section->arena_bytes},
      .boundaries = regions};
  return table->bind(section->device->inner.device, &params, &section->binding, err);
}

/* The memory is the inner device's, and counted as such; pinned, for copies that do not wait. */
static opipe_status take_memory(cuda_section *section, opipe_error *err) {
  opipe_device *device = section->device;
  cuda_place *place = device->place;
  const opipe_backend *table = inner_table(device);
  void *data = NULL;
  CUDA_TRY(count_bytes(device, (int64_t)section->n_bytes, err));
  opipe_status status = table->buffer_alloc(device->inner.device, section->n_bytes,
                                            OPIPE_BUFFER_STAGING, &section->memory, err);
  if (status < 0) {
    (void)count_bytes(device, -(int64_t)section->n_bytes, NULL);
    section->memory = NULL;
    return status;
  }
  status = table->buffer_host(section->memory, &data, err);
  if (status >= 0) {
    status = cuda_result(
        place, place->driver->host_register(data, (size_t)section->n_bytes, CUDA_HOST_PORTABLE),
        "pinned memory for nodes on the CPU", err);
  }
  if (status >= 0) {
    section->host = data;
    (void)__atomic_add_fetch(&device->inner.host_bytes, section->n_bytes, __ATOMIC_RELAXED);
  }
  return status;
}

opipe_status cuda_sections_prepare(const opipe_program *program, cuda_pool *pool,
                                   opipe_error *err) {
  cuda_section *section = program->sections == NULL ? NULL : program->sections->head;
  for (; section != NULL; section = section->next) {
    const opipe_backend *table = inner_table(section->device);
    if (section->binding != NULL)
      continue;
    if (section->memory == NULL)
      CUDA_TRY(take_memory(section, err));
    if (section->queue == NULL)
      CUDA_TRY(table->queue_open(section->device->inner.device, &section->queue, err));
    CUDA_TRY(bind_section(section, pool, err));
  }
  return OPIPE_OK;
}

static void free_section(cuda_section *section, bool entered) {
  opipe_device *device = section->device;
  const opipe_backend *table = inner_table(device);
  table->binding_free(section->binding);
  table->queue_close(section->queue);
  if (section->host != NULL) {
    if (entered && cuda_may_give(device))
      (void)device->place->driver->host_unregister(section->host);
    (void)__atomic_sub_fetch(&device->inner.host_bytes, section->n_bytes, __ATOMIC_RELAXED);
  }
  if (section->memory != NULL) {
    table->buffer_free(section->memory);
    (void)count_bytes(device, -(int64_t)section->n_bytes, NULL);
  }
  table->program_free(section->program);
  cuda_word_give(device, section->report);
}

void cuda_sections_free(opipe_program *program) {
  opipe_device *device = program->device;
  cuda_sections *sections = program->sections;
  if (sections == NULL || cuda_check_owner(device->owner, "program_free", NULL) < 0)
    return;
  const bool entered = cuda_enter(device, "program_free", NULL) >= 0;
  for (cuda_section *section = sections->head; section != NULL; section = section->next)
    free_section(section, entered);
  if (entered) {
    if (sections->free_event != NULL)
      (void)device->place->driver->event_destroy(sections->free_event);
    cuda_leave(device);
  }
  (void)pthread_mutex_destroy(&sections->lock);
}

/* ---- runs ---- */

opipe_status cuda_sections_enter(const opipe_program *program, CUstream stream, opipe_error *err) {
  cuda_place *place = program->device->place;
  if (program->sections == NULL)
    return OPIPE_OK;
  (void)pthread_mutex_lock(&program->sections->lock);
  const opipe_status status = cuda_result(
      place, place->driver->stream_wait(stream, program->sections->free_event, 0), "run", err);
  if (status < 0)
    (void)pthread_mutex_unlock(&program->sections->lock);
  return status;
}

opipe_status cuda_sections_leave(const opipe_program *program, CUstream stream, opipe_status status,
                                 opipe_error *err) {
  cuda_place *place = program->device->place;
  if (program->sections == NULL)
    return status;
  const CUresult result = place->driver->event_record(program->sections->free_event, stream);
  (void)pthread_mutex_unlock(&program->sections->lock);
  return status < 0 ? status : cuda_result(place, result, "run", err);
}

/* By the driver, in the stream's order: no function of the driver's may be called here. */
static void call_section(void *data) {
  cuda_section *section = data;
  cuda_inner *inner = &section->device->inner;
  opipe_error why = OPIPE_ERROR_INIT;
  uint64_t number = 0;
  section->report->code = CUDA_STATUS_OK;
  (void)pthread_mutex_lock(&inner->lock);
  const opipe_status status = inner->backend->table->run(
      section->binding, section->queue, (const int64_t *)(section->host + section->scalars_at),
      section->graph.graph.n_scalars, &why);
  if (status < 0)
    number = cuda_inner_note(inner, status, &why);
  (void)pthread_mutex_unlock(&inner->lock);
  if (status < 0) {
    *section->report = (cuda_status){
        .code = CUDA_STATUS_HOST, .node = section->name, .value = (int64_t)number, .limit = 0};
  }
}

opipe_status cuda_section_step(const opipe_device *device, const cuda_step *step,
                               const unsigned char *args, CUstream stream, opipe_error *err) {
  const cuda_driver *driver = device->place->driver;
  cuda_section *section = step->section;
  CUresult result = CUDA_OK;
  cuda_host_args copy;
  memcpy(&copy, args, sizeof copy);
  if (step->kind == CUDA_STEP_FETCH)
    result = driver->read(section->host + copy.offset, copy.device, (size_t)copy.n_bytes, stream);
  else if (step->kind == CUDA_STEP_STORE)
    result = driver->write(copy.device, section->host + copy.offset, (size_t)copy.n_bytes, stream);
  else
    result = driver->launch_host(stream, call_section, section);
  return cuda_result(device->place, result, step->node->name, err);
}
