/* SPDX-License-Identifier: Apache-2.0 */
/* A backend with a defect. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "seeded.h"

static opipe_backend real;
static opipe_device_info device_info;

/* ---- devices and memory ---- */

static opipe_status device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                                 opipe_error *err) {
  const uint32_t size = io_info->struct_size;
  const opipe_status status = real.device_query(self, index, io_info, err);
  if (status == OPIPE_OK && size <= sizeof device_info)
    memcpy(&device_info, io_info, size);
  if (seeded("query-beyond") && status == OPIPE_OK)
    memset((char *)io_info + size, 0, 8);
  if (seeded("alignment") && status == OPIPE_OK)
    io_info->alignment = 48;
  if (seeded("devices-without-end") && status < 0) {
    memcpy(io_info, &device_info, size);
    return OPIPE_OK;
  }
  return seeded("query-silent") ? silence(status, err) : status;
}

static opipe_status device_open(opipe_instance *self, const opipe_device_params *params,
                                opipe_device **out_device, opipe_error *err) {
  opipe_device_params p = *params;
  if (seeded("device-without-object"))
    return OPIPE_OK;
  if (seeded("device-leaks"))
    lose_memory();
  if (seeded("cap-ignored"))
    p.memory_bytes = 0;
  if (seeded("options-ignored"))
    p.options = NULL;
  return real.device_open(self, &p, out_device, err);
}

static opipe_status device_usage(opipe_device *device, opipe_device_usage *io_usage,
                                 opipe_error *err) {
  const opipe_status status = real.device_usage(device, io_usage, err);
  if (seeded("usage-of-nothing"))
    memset(io_usage->live_bytes, 0, sizeof io_usage->live_bytes);
  if (seeded("usage-in-one-kind"))
    io_usage->live_bytes[0] += io_usage->live_bytes[1];
  if (seeded("usage-without-peak"))
    io_usage->peak_bytes = 0;
  if (seeded("usage-beyond"))
    memset((char *)io_usage + io_usage->struct_size, 0, 8);
  return status;
}

static opipe_status buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                                 opipe_buffer **out_buffer, opipe_error *err) {
  if (seeded("buffer-without-object"))
    return OPIPE_OK;
  if (seeded("buffer-of-any-kind") && kind >= OPIPE_BUFFER_KINDS)
    kind = 0;
  const opipe_status status = real.buffer_alloc(device, n_bytes, kind, out_buffer, err);
  if (seeded("limit-is-nomem") && status == OPIPE_E_LIMIT) {
    if (err != NULL)
      err->status = OPIPE_E_NOMEM;
    return OPIPE_E_NOMEM;
  }
  return seeded("limit-silent") ? silence(status, err) : status;
}

static void buffer_free(opipe_buffer *buffer) {
  if (!seeded("buffer-never-freed"))
    real.buffer_free(buffer);
}

/* ---- queues, events, copies ---- */

static opipe_status queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err) {
  if (seeded("queue-without-object"))
    return OPIPE_OK;
  if (seeded("queue-leaks"))
    lose_memory();
  return real.queue_open(device, out_queue, err);
}

static void *sleep_long(void *arg) {
  const struct timespec pause = {.tv_sec = 1000};
  (void)nanosleep(&pause, NULL);
  return arg;
}

static opipe_status event_create(opipe_device *device, opipe_event **out_event, opipe_error *err) {
  pthread_t thread;
  if (seeded("event-without-object"))
    return OPIPE_OK;
  if (seeded("threads-leak") && pthread_create(&thread, NULL, sleep_long, NULL) == 0)
    (void)pthread_detach(thread);
  return real.event_create(device, out_event, err);
}

/* Events that are complete a while after they were recorded, as those of a device that works. */
enum { LATE_NS = 60000000 };
static atomic_ullong late_until;

static bool is_late(void) {
  return host->now_ns(host->ctx) < atomic_load(&late_until);
}

static opipe_status event_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  if (seeded("late-events") || seeded("timeout-ignored") || seeded("timeout-as-error"))
    atomic_store(&late_until, host->now_ns(host->ctx) + LATE_NS);
  if (seeded("record-allocates"))
    host->realloc(host->ctx, host->realloc(host->ctx, NULL, 0, 8, 8), 8, 0, 8);
  return real.event_record(queue, event, err);
}

static opipe_status event_poll(opipe_event *event, opipe_error *err) {
  const opipe_status status = real.event_poll(event, err);
  if (seeded("poll-early"))
    return OPIPE_OK;
  return is_late() ? OPIPE_PENDING : status;
}

static opipe_status event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err) {
  const struct timespec pause = {.tv_nsec = 500000};
  const uint64_t start = host->now_ns(host->ctx);
  if (seeded("sync-early"))
    return OPIPE_OK;
  while (is_late()) {
    if (host->now_ns(host->ctx) - start > timeout_ns && seeded("timeout-as-error"))
      return opipe_fail(err, OPIPE_E_DEVICE, "not yet");
    if (host->now_ns(host->ctx) - start > timeout_ns && !seeded("timeout-ignored"))
      return opipe_fail(err, OPIPE_E_TIMEOUT, "not yet");
    (void)nanosleep(&pause, NULL);
  }
  return real.event_sync(event, timeout_ns, err);
}

static opipe_status event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  return seeded("wait-ignored") ? OPIPE_OK : real.event_wait(queue, event, err);
}

static opipe_status copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                         opipe_error *err) {
  void *to = NULL, *from = NULL;
  opipe_region r = *dst;
  if (seeded("copy-to-the-start"))
    r.offset_bytes = 0;
  if (seeded("copy-upwards") && real.buffer_host(dst->buffer, &to, err) == OPIPE_OK &&
      real.buffer_host(src->buffer, &from, err) == OPIPE_OK) {
    for (uint64_t i = 0; i < dst->n_bytes; ++i)
      ((char *)to)[dst->offset_bytes + i] = ((const char *)from)[src->offset_bytes + i];
    return OPIPE_OK;
  }
  return real.copy(queue, &r, src, err);
}

static opipe_status write(opipe_queue *queue, const opipe_region *dst, const void *src,
                          opipe_error *err) {
  opipe_region r = *dst;
  if (seeded("write-to-the-start"))
    r.offset_bytes = 0;
  return real.write(queue, &r, src, err);
}

/* ---- programs ---- */

static opipe_status support(opipe_device *device, const opipe_graph *graph,
                            opipe_support *out_support, opipe_error *err) {
  const opipe_status status = real.support(device, graph, out_support, err);
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    if (seeded("support-of-all"))
      out_support[i] = (opipe_support){.status = OPIPE_OK};
    if (seeded("support-silent"))
      out_support[i].reason[0] = '\0';
    if (seeded("support-odd"))
      out_support[i].status = 5;
  }
  return status;
}

static opipe_status compile(opipe_device *device, const opipe_compile_params *params,
                            opipe_program **out_program, opipe_error *err) {
  opipe_compile_params p = *params;
  if (seeded("program-without-object"))
    return OPIPE_OK;
  if (seeded("compile-refuses") && params->graph->n_nodes == 3)
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "node 'Relu': not today");
  if (seeded("compile-of-unknown-flags"))
    p.flags &= 15u;
  if (seeded("program-leaks"))
    lose_memory();
  const opipe_status status = real.compile(device, &p, out_program, err);
  if (seeded("culprit-unnamed") && status < 0)
    return opipe_fail(err, status, "a node is not supported");
  return status;
}

static opipe_status program_info(const opipe_program *program, opipe_program_info *io_info,
                                 opipe_error *err) {
  static uint32_t n_calls;
  const uint32_t size = io_info->struct_size;
  const opipe_status status = real.program_info(program, io_info, err);
  if (seeded("program-grows"))
    io_info->arena_bytes += 4096 * n_calls++;
  if (seeded("arena-too-small") && io_info->arena_bytes >= 128) {
    io_info->arena_bytes = io_info->temp_bytes = io_info->arena_bytes - 128;
    io_info->workspace_bytes = 0;
  }
  if (seeded("info-beyond"))
    memset((char *)io_info + size, 0, 16);
  return status;
}

static opipe_status program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                   uint32_t *io_count, opipe_error *err) {
  const opipe_status status = real.program_params(program, out_layouts, io_count, err);
  if (seeded("layout-bytes") && out_layouts != NULL) {
    out_layouts->key = 3;
    out_layouts->n_bytes += 4096;
  }
  return status;
}

static opipe_status params_create(opipe_device *device, const opipe_param_source *sources,
                                  uint32_t n, opipe_params **out_params, opipe_error *err) {
  if (seeded("params-without-object"))
    return OPIPE_OK;
  if (seeded("params-leak"))
    lose_memory();
  return real.params_create(device, sources, n, out_params, err);
}

static opipe_status params_clone(const opipe_params *params, opipe_params **out_params,
                                 opipe_error *err) {
  return seeded("clone-without-object") ? OPIPE_OK : real.params_clone(params, out_params, err);
}

static opipe_status params_read(const opipe_params *params, uint32_t slot, void *dst,
                                uint64_t n_bytes, opipe_error *err) {
  const opipe_status status = real.params_read(params, slot, dst, n_bytes, err);
  if (seeded("params-of-any-slot") && status < 0)
    return OPIPE_OK;
  return status;
}

/* ---- running ---- */

enum { BOUND_MOST = 64 };
static opipe_binding *bound[BOUND_MOST];
static opipe_region outputs[BOUND_MOST], arenas[BOUND_MOST];
static uint32_t n_bound;

static opipe_status bind(opipe_device *device, const opipe_bind_params *params,
                         opipe_binding **out_binding, opipe_error *err) {
  opipe_bind_params p = *params;
  if (seeded("binding-without-object"))
    return OPIPE_OK;
  if (seeded("binding-leaks"))
    lose_memory();
  if (seeded("arena-too-small") || seeded("arena-unchecked"))
    p.arena.n_bytes += 128;
  const opipe_status status = real.bind(device, &p, out_binding, err);
  for (uint32_t i = 0; status == OPIPE_OK && i < BOUND_MOST; ++i)
    bound[i] = bound[i] == *out_binding ? NULL : bound[i]; /* one that is gone had this address */
  if (status == OPIPE_OK && p.n_boundaries == 3) {
    bound[n_bound % BOUND_MOST] = *out_binding;
    arenas[n_bound % BOUND_MOST] = params->arena;
    outputs[n_bound++ % BOUND_MOST] = params->boundaries[2];
  }
  return status;
}

static char *address_of(const opipe_region *region) {
  void *data = NULL;
  (void)real.buffer_host(region->buffer, &data, NULL);
  return (char *)data + region->offset_bytes;
}

static opipe_status run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                        uint32_t n_scalars, opipe_error *err) {
  uint32_t i = 0;
  while (i < BOUND_MOST && bound[i] != binding)
    ++i;
  unsigned char first = 0;
  if (i < BOUND_MOST && arenas[i].n_bytes > 0)
    first = (unsigned char)*address_of(&arenas[i]);
  if (seeded("run-allocates"))
    host->realloc(host->ctx, host->realloc(host->ctx, NULL, 0, 8, 8), 8, 0, 8);
  const opipe_status status = real.run(binding, queue, scalars, n_scalars, err);
  if (i == BOUND_MOST || status < 0)
    return status;
  float *y = (float *)(void *)address_of(&outputs[i]);
  if (seeded("run-wrong"))
    y[5] += 1.0f;
  if (seeded("run-beyond-output"))
    memset((char *)y + outputs[i].n_bytes, 0, 4);
  if (seeded("run-before-arena"))
    memset(address_of(&arenas[i]) - 4, 0, 4);
  if (seeded("run-reads-arena") && first == 0xff)
    y[7] += y[7] * 1e-7f + 1e-7f;
  return status;
}

/* ---- training ---- */

static opipe_status params_create_owned(opipe_device *device, const opipe_param_source *sources,
                                        uint32_t n, opipe_params **out_params, opipe_error *err) {
  if (seeded("owned-without-object"))
    return OPIPE_OK;
  return real.params_create_owned(device, sources, n, out_params, err);
}

static opipe_status gradients_create(opipe_params *params, opipe_params **out_gradients,
                                     opipe_error *err) {
  if (seeded("gradients-without-object"))
    return OPIPE_OK;
  return real.gradients_create(params, out_gradients, err);
}

static opipe_status params_prepare(opipe_params *params, const opipe_program *program,
                                   opipe_error *err) {
  opipe_region master = {NULL, 0, 0};
  const opipe_status status = real.params_prepare(params, program, err);
  if (seeded("gradients-not-zeroed") && status == OPIPE_OK &&
      real.params_master(params, 0, &master, NULL) == OPIPE_OK && master.n_bytes != 0 &&
      *(float *)(void *)address_of(&master) == 0)
    *(float *)(void *)address_of(&master) = 2.5f;
  return status;
}

static opipe_status update(opipe_queue *queue, const opipe_update *given, opipe_error *err) {
  opipe_update u = *given;
  if (seeded("update-without-scale"))
    u.gradient_scale = 1;
  if (seeded("update-without-clear"))
    u.flags &= ~(uint32_t)OPIPE_UPDATE_CLEAR;
  return real.update(queue, &u, err);
}

static opipe_status sum_squares(opipe_queue *queue, const opipe_region *dst,
                                const opipe_region *src, opipe_error *err) {
  opipe_region half = *src;
  if (seeded("squares-of-half"))
    half.n_bytes /= 2;
  return real.sum_squares(queue, dst, &half, err);
}

static opipe_status add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                        opipe_error *err) {
  return seeded("add-nothing") ? OPIPE_OK : real.add(queue, dst, src, err);
}

static opipe_status sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                        const opipe_region *src, uint32_t n, opipe_error *err) {
  opipe_region turned[8];
  for (uint32_t i = 0; i < n && i < 8; ++i)
    turned[i] = src[n - 1 - i];
  if (seeded("sum-falling") && n <= 8)
    src = turned;
  if (seeded("sum-of-fewer") && n > 1)
    --n;
  const opipe_status status = real.sum(queue, dtype, dst, src, n, err);
  return seeded("sum-of-any-type") ? OPIPE_OK : status;
}

static opipe_status run_part(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                             uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err) {
  const opipe_status status = real.run_part(binding, queue, scalars, n_scalars, from, to, err);
  return status == OPIPE_OK && seeded("parts-twice")
             ? real.run_part(binding, queue, scalars, n_scalars, from, to, err)
             : status;
}

void seeded_damage(void *table) {
  opipe_backend *t = table;
  memset(&real, 0, sizeof real);
  memcpy(&real, t, t->struct_size < sizeof real ? t->struct_size : sizeof real);
  t->device_query = device_query;
  t->device_open = device_open;
  t->device_usage = device_usage;
  t->buffer_alloc = buffer_alloc;
  t->buffer_free = buffer_free;
  t->queue_open = queue_open;
  t->event_create = event_create;
  t->event_record = event_record;
  t->event_poll = event_poll;
  t->event_sync = event_sync;
  t->event_wait = event_wait;
  t->copy = copy;
  t->write = write;
  t->support = support;
  t->compile = compile;
  t->program_info = program_info;
  t->program_params = program_params;
  t->params_create = params_create;
  t->params_clone = params_clone;
  t->params_read = params_read;
  t->bind = bind;
  t->run = run;
  t->params_prepare = params_prepare;
  t->params_create_owned = params_create_owned;
  t->gradients_create = gradients_create;
  t->update = update;
  t->sum_squares = sum_squares;
  t->add = add;
  if (OPIPE_HAS(t, opipe_backend, sum) && t->sum != NULL)
    t->sum = sum;
  if (OPIPE_HAS(t, opipe_backend, run_part) && t->run_part != NULL)
    t->run_part = run_part;
  if (seeded("table-half-of-training"))
    t->update = NULL;
}
