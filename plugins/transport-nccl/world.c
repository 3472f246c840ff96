/* SPDX-License-Identifier: Apache-2.0 */
/* transport-nccl: its table; worlds, endpoints, waiting, abort. */
#include "world.h"

#include <unistd.h>

enum { ALIGN = 128, UNREADY_WAIT_NS = 20000 };

/* The rank whose endpoint this process has, plus 1; 0: none. */
static _Atomic uint32_t the_endpoint;

void *nccl_new(const opipe_host *host, const char *what, size_t n_bytes, opipe_error *err) {
  return opipe_zeroed(host, what, n_bytes, ALIGN, err);
}

void nccl_delete(const opipe_host *host, void *data, size_t n_bytes) {
  opipe_free(host, data, n_bytes, ALIGN);
}

void nccl_log(const opipe_host *host, uint32_t level, const char *text) {
  host->log(host->ctx, level, NULL, 0, text);
}

bool nccl_is_child(const opipe_world *world) {
  return getpid() != world->process;
}

opipe_status nccl_address(const opipe_endpoint *e, const opipe_region *region,
                          uint64_t *out_address, opipe_error *err) {
  uint64_t base = 0;
  *out_address = 0;
  if (region->n_bytes == 0)
    return OPIPE_OK;
  if (region->buffer == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u: a region of %llu bytes without a buffer",
                      e->rank, (unsigned long long)region->n_bytes);
  }
  const opipe_status status =
      e->backend->native(e->device, OPIPE_NATIVE_BUFFER, region->buffer, &base, err);
  *out_address = base + region->offset_bytes;
  return status;
}

/* ---- the end of a world ---- */

opipe_status nccl_check(opipe_world *world, opipe_error *err) {
  if (atomic_load_explicit(&world->ended, memory_order_acquire) == 0)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_PEER, "rank %u ended the run: %.400s", world->end_rank,
                    world->why.message);
}

void nccl_end(opipe_world *world, uint32_t rank, const opipe_error *why, bool posts) {
  (void)pthread_mutex_lock(&world->lock);
  const bool first = atomic_load(&world->ended) == 0;
  if (first) {
    world->end_rank = rank;
    world->end_ns = machine_now_ns();
    if (why != NULL)
      world->why = *why;
    world->why.message[sizeof world->why.message - 1] = '\0';
    atomic_store(&world->orderly, world->why.status == OPIPE_E_CANCELLED);
    atomic_store_explicit(&world->ended, 1, memory_order_release);
  }
  opipe_endpoint *e = atomic_load(&world->endpoint);
  if (e != NULL) {
    nccl_ring(e);
    nccl_helper_wake(e);
  }
  (void)pthread_mutex_unlock(&world->lock);
  if (first && posts && e != NULL)
    nccl_post_end(world, e->rank, rank, &world->why);
}

static void abort_world(opipe_world *world, uint32_t rank, const opipe_error *why) {
  nccl_end(world, rank, why, true);
}

/* ---- worlds ---- */

static opipe_status tell(const nccl_options *options, opipe_transport_info *io_info,
                         opipe_error *err) {
  const opipe_transport_info full = {
      .rule = OPIPE_RULE_GROUPED,
      .thread_rule = OPIPE_THREADS_PER_ENDPOINT,
      .flags = OPIPE_TRANSPORT_REDUCES | OPIPE_TRANSPORT_COLLECTIVES | OPIPE_TRANSPORT_QUEUED |
               OPIPE_TRANSPORT_MACHINES | OPIPE_TRANSPORT_UNORDERED,
      .fence_kinds =
          1u << OPIPE_FENCE_NONE | 1u << OPIPE_FENCE_NATIVE_STREAM | 1u << OPIPE_FENCE_NATIVE_EVENT,
      .max_ranks = NCCL_RANKS_MOST,
      .latency_ns = options->latency_ns,
      .bandwidth = options->bandwidth};
  return opipe_transport_tell(io_info, &full, err);
}

static opipe_status info_of_world(opipe_instance *self, const char *options,
                                  opipe_transport_info *io_info, opipe_error *err) {
  nccl_options read;
  (void)self;
  const opipe_status status = nccl_read_options(options, &read, err);
  return status < 0 ? status : tell(&read, io_info, err);
}

static opipe_status info(opipe_instance *self, opipe_transport_info *io_info, opipe_error *err) {
  return info_of_world(self, NULL, io_info, err);
}

static opipe_status check_params(const opipe_world_params *params, opipe_error *err) {
  const opipe_status status = opipe_world_check(params, err);
  if (status < 0)
    return status;
  if (params->n_ranks > NCCL_RANKS_MOST) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "transport 'nccl': %u ranks, at most %d",
                      params->n_ranks, NCCL_RANKS_MOST);
  }
  const bool knows = OPIPE_HAS(params, opipe_world_params, board);
  const uint32_t n_here = knows ? params->n_local_ranks : 0;
  if (n_here != 0 && n_here != params->n_ranks && params->board == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "transport 'nccl': %u of %u ranks are elsewhere, and there is no board",
                      params->n_ranks - n_here, params->n_ranks);
  }
  return OPIPE_OK;
}

static void world_close(opipe_world *world) {
  if (world == NULL || nccl_is_child(world) || atomic_load(&world->endpoint) != NULL)
    return; /* an endpoint stayed, and needs the world */
  (void)pthread_mutex_destroy(&world->lock);
  nccl_delete(world->host, world, sizeof *world);
}

static opipe_status world_open(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  nccl_options options;
  opipe_status status = check_params(params, err);
  if (status == OPIPE_OK)
    status = nccl_read_options(params->options, &options, err);
  if (status < 0)
    return status;
  const bool knows = OPIPE_HAS(params, opipe_world_params, board);
  opipe_world *world = nccl_new(self->host, "a world", sizeof *world, err);
  if (world == NULL)
    return OPIPE_E_NOMEM;
  world->host = self->host;
  world->n_ranks = params->n_ranks;
  world->options = options;
  world->process = getpid();
  world->board = knows ? params->board : NULL;
  if (knows && params->job != NULL)
    (void)snprintf(world->job, sizeof world->job, "%s", params->job);
  if (pthread_mutex_init(&world->lock, NULL) != 0) {
    nccl_delete(self->host, world, sizeof *world);
    return opipe_fail(err, OPIPE_E_NOMEM, "a world: no lock could be made");
  }
  *out_world = world;
  return OPIPE_OK;
}

/* ---- endpoints ---- */

static opipe_status check_device(const opipe_endpoint *e, const char *backend_id,
                                 opipe_error *err) {
  const char *id = backend_id == NULL ? "(none)" : backend_id;
  const opipe_backend *b = e->backend;
  uint64_t kind = 0;
  const bool has = b != NULL && OPIPE_HAS(b, opipe_backend, event_signal) && b->native != NULL &&
                   b->buffer_import != NULL && b->queue_abort != NULL && b->host_alloc != NULL;
  if (has && b->native(e->device, OPIPE_NATIVE_KIND, NULL, &kind, NULL) == OPIPE_OK &&
      kind == OPIPE_DL_CUDA)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport 'nccl': rank %u is on backend '%s', NCCL moves memory of CUDA "
                    "devices (backend 'cuda')",
                    e->rank, id);
}

static opipe_status open_device(opipe_endpoint *e, opipe_error *err) {
  const nccl_driver *driver = &e->world->library->driver;
  uint64_t native = 0;
  opipe_status status = e->backend->native(e->device, OPIPE_NATIVE_DEVICE, NULL, &native, err);
  if (status < 0)
    return status;
  const CUresult got = driver->device_get(&e->gpu, (int)native);
  const CUresult kept = got == NCCL_CUDA_FINE ? driver->context_retain(&e->context, e->gpu) : got;
  if (kept != NCCL_CUDA_FINE) {
    return opipe_fail(err, OPIPE_E_DEVICE,
                      "transport 'nccl': rank %u: GPU %llu: the driver "
                      "answers %d",
                      e->rank, (unsigned long long)native, (int)kept);
  }
  e->has_context = true;
  status = e->backend->queue_open(e->device, &e->lane, err);
  if (status >= 0)
    status = e->backend->native(e->device, OPIPE_NATIVE_QUEUE, e->lane, &native, err);
  e->stream = (cudaStream_t)(uintptr_t)native;
  for (int i = 0; i < NCCL_MARKS && status >= 0; ++i)
    status = e->backend->event_create(e->device, &e->marks[i], err);
  return status;
}

static opipe_status build(opipe_endpoint *e, const char *backend_id, opipe_error *err) {
  opipe_world *world = e->world;
  pthread_condattr_t attributes;
  opipe_status status = check_device(e, backend_id, err);
  if (status == OPIPE_OK)
    status = nccl_library_open(&world->library, err);
  if (status < 0)
    return status;
  e->setup.heard =
      nccl_new(world->host, "an endpoint", world->n_ranks * sizeof *e->setup.heard, err);
  e->setup.edges =
      nccl_new(world->host, "an endpoint", world->n_ranks * sizeof *e->setup.edges, err);
  e->setup.uuids =
      nccl_new(world->host, "an endpoint", world->n_ranks * sizeof *e->setup.uuids, err);
  if (e->setup.heard == NULL || e->setup.edges == NULL || e->setup.uuids == NULL)
    return OPIPE_E_NOMEM;
  bool made = pthread_condattr_init(&attributes) == 0;
  if (made) {
    made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(&e->helper.work, &attributes) == 0;
    (void)pthread_condattr_destroy(&attributes);
  }
  e->has_lock = made && pthread_mutex_init(&e->lock, NULL) == 0;
  e->ring.has_lock = e->has_lock && pthread_mutex_init(&e->ring.lock, NULL) == 0;
  if (!e->ring.has_lock)
    return opipe_fail(err, OPIPE_E_NOMEM, "an endpoint: no lock could be made");
  status = open_device(e, err);
  if (status >= 0)
    status = nccl_count_all(e, err);
  return status < 0 ? status : nccl_helper_start(e, err);
}

/* The endpoint's objects on the device. clean: nothing of it is in use any more. */
static void close_device(opipe_endpoint *e, bool clean) {
  const nccl_library *lib = e->world->library;
  if (e->lane != NULL && !clean)
    (void)e->backend->queue_abort(e->lane, NULL);
  e->backend->buffer_free(e->own.scratch_buffer);
  e->backend->buffer_free(e->own.small_buffer);
  if (clean && nccl_push(e, NULL) == OPIPE_OK) { /* else freeing waits for work that never ends */
    if (e->own.scratch != 0)
      (void)lib->driver.memory_free(e->own.scratch);
    if (e->own.small != 0)
      (void)lib->driver.memory_free(e->own.small);
    nccl_pop(e);
  }
  for (int i = 0; i < NCCL_MARKS; ++i)
    e->backend->event_destroy(e->marks[i]);
  e->backend->queue_close(e->lane);
  if (e->has_context)
    (void)lib->driver.context_release(e->gpu);
}

static void free_endpoint(opipe_endpoint *e) {
  opipe_world *world = e->world;
  nccl_comms_free(e);
  if (e->ring.has_lock)
    (void)pthread_mutex_destroy(&e->ring.lock);
  if (e->has_lock) {
    (void)pthread_mutex_destroy(&e->lock);
    (void)pthread_cond_destroy(&e->helper.work);
  }
  nccl_delete(world->host, e->setup.heard, world->n_ranks * sizeof *e->setup.heard);
  nccl_delete(world->host, e->setup.edges, world->n_ranks * sizeof *e->setup.edges);
  nccl_delete(world->host, e->setup.uuids, world->n_ranks * sizeof *e->setup.uuids);
  nccl_delete(world->host, e, sizeof *e);
}

static void endpoint_close(opipe_endpoint *e) {
  if (e == NULL || nccl_is_child(e->world))
    return;
  opipe_world *world = e->world;
  bool clean = true;
  if (e->helper.is_there) {
    nccl_leave(e, e->n_launches);
    (void)pthread_mutex_lock(&e->lock);
    clean =
        !e->given_up && !e->helper.aborts && nccl_comms_finish(e, machine_now_ns() + NCCL_CLOSE_NS);
    (void)pthread_mutex_unlock(&e->lock);
    if (!nccl_helper_stop(e, machine_now_ns() + NCCL_CLOSE_NS)) {
      nccl_give_up(e); /* the helper needs the endpoint: both stay until the process ends */
      return;
    }
    clean = clean || nccl_settle(e, e->n_launches) == OPIPE_OK;
  }
  (void)pthread_mutex_lock(&world->lock);
  atomic_store(&world->endpoint, NULL);
  (void)pthread_mutex_unlock(&world->lock);
  if (e->backend != NULL && world->library != NULL)
    close_device(e, clean);
  free_endpoint(e);
  atomic_store(&the_endpoint, 0);
}

/* NCCL joins processes: a second rank of this one would wait for the first, in one thread. */
static opipe_status be_the_only_one(uint32_t rank, opipe_error *err) {
  uint32_t other = 0;
  if (atomic_compare_exchange_strong(&the_endpoint, &other, rank + 1))
    return OPIPE_OK;
  return opipe_fail(
      err, OPIPE_E_UNSUPPORTED,
      "transport 'nccl': rank %u: this process has the endpoint of rank %u already, "
      "and NCCL takes one rank of each process: start one process for each (onnx-pipe "
      "launch -n)",
      rank, other - 1);
}

static opipe_status endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                  opipe_endpoint **out_endpoint, opipe_error *err) {
  opipe_status status = opipe_endpoint_check(world->n_ranks, params, err);
  if (status == OPIPE_OK)
    status = be_the_only_one(params->rank, err);
  if (status < 0)
    return status;
  opipe_endpoint *e = nccl_new(world->host, "an endpoint", sizeof *e, err);
  if (e == NULL) {
    atomic_store(&the_endpoint, 0);
    return OPIPE_E_NOMEM;
  }
  e->world = world;
  e->backend = params->backend;
  e->device = params->device;
  e->rank = params->rank;
  e->spin_us = params->spin_us;
  status = build(
      e, OPIPE_HAS(params, opipe_endpoint_params, backend_id) ? params->backend_id : NULL, err);
  if (status < 0) {
    if (e->has_context || e->lane != NULL)
      close_device(e, true);
    free_endpoint(e);
    atomic_store(&the_endpoint, 0);
    return status;
  }
  atomic_store(&world->endpoint, e);
  *out_endpoint = e;
  return OPIPE_OK;
}

/* ---- memory: NCCL takes any of the device's ---- */

static opipe_status memory_register(opipe_endpoint *e, opipe_buffer *buffer, uint64_t n_bytes,
                                    opipe_memory **out_memory, opipe_error *err) {
  const opipe_region whole = {buffer, 0, n_bytes};
  uint64_t address = 0;
  const opipe_status status = nccl_address(e, &whole, &address, err);
  if (status < 0)
    return status;
  opipe_memory *memory = nccl_new(e->world->host, "registered memory", sizeof *memory, err);
  if (memory == NULL)
    return OPIPE_E_NOMEM;
  memory->host = e->world->host;
  *out_memory = memory;
  return OPIPE_OK;
}

static void memory_drop(opipe_memory *memory) {
  if (memory != NULL)
    nccl_delete(memory->host, memory, sizeof *memory);
}

/* ---- the doorbell ---- */

static uint32_t doorbell(opipe_endpoint *e) {
  return atomic_load_explicit(&e->ring.bell.count, memory_order_acquire);
}

void nccl_ring(opipe_endpoint *e) {
  machine_ring(&e->ring.bell);
  (void)pthread_mutex_lock(&e->ring.lock);
  void (*fn)(void *ctx) = e->ring.notify;
  e->ring.notify = NULL;
  if (fn != NULL)
    fn(e->ring.ctx);
  (void)pthread_mutex_unlock(&e->ring.lock);
}

opipe_status nccl_again(opipe_endpoint *e) {
  e->unready = true;
  return OPIPE_PENDING;
}

static bool has_ended(void *ctx) {
  return nccl_check(ctx, NULL) < 0;
}

/* Moves on what is on its way; true: somebody is to look again before anything rings. */
static bool looks_again(opipe_endpoint *e) {
  (void)pthread_mutex_lock(&e->lock);
  (void)nccl_go_on(e, NULL);
  const bool again = e->unready;
  e->unready = false;
  (void)pthread_mutex_unlock(&e->lock);
  return again;
}

static opipe_status wait_for(opipe_endpoint *e, uint32_t seen, uint64_t timeout_ns,
                             opipe_error *err) {
  const opipe_status before = nccl_check(e->world, err);
  if (before < 0 || doorbell(e) != seen)
    return before;
  const bool again = looks_again(e);
  if (again && timeout_ns > UNREADY_WAIT_NS)
    timeout_ns = UNREADY_WAIT_NS;
  const uint64_t start = machine_now_ns();
  const uint64_t until = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
  const bool rang = machine_wait(&e->ring.bell, seen, e->spin_us, until, has_ended, e->world);
  const opipe_status status = nccl_check(e->world, err);
  if (status < 0 || rang || again)
    return status;
  return opipe_fail(err, OPIPE_E_TIMEOUT, "rank %u: nothing happened for %llu ns", e->rank,
                    (unsigned long long)timeout_ns);
}

static void notify(opipe_endpoint *e, uint32_t seen, void (*fn)(void *ctx), void *ctx) {
  (void)pthread_mutex_lock(&e->ring.lock);
  e->ring.notify = fn;
  e->ring.ctx = ctx;
  (void)pthread_mutex_unlock(&e->ring.lock);
  if (fn == NULL)
    return;
  if (doorbell(e) != seen || nccl_check(e->world, NULL) < 0) {
    nccl_ring(e);
  } else if (looks_again(e)) {
    (void)pthread_mutex_lock(&e->lock);
    e->helper.nudge = true;
    (void)pthread_cond_signal(&e->helper.work);
    (void)pthread_mutex_unlock(&e->lock);
  }
}

/* ---- the table ---- */

const opipe_transport nccl_transport = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, recv_after),
    .info = info,
    .world_info = info_of_world,
    .world_open = world_open,
    .world_close = world_close,
    .endpoint_open = endpoint_open,
    .endpoint_close = endpoint_close,
    .endpoint_ready = nccl_endpoint_ready,
    .stream_open = nccl_stream_open,
    .stream_close = nccl_stream_close,
    .memory_register = memory_register,
    .memory_drop = memory_drop,
    .reserve = nccl_reserve,
    .send = nccl_send,
    .recv = nccl_recv,
    .recv_after = nccl_recv_after,
    .test = nccl_test,
    .batch_begin = nccl_batch_begin,
    .batch_end = nccl_batch_end,
    .doorbell = doorbell,
    .ring = nccl_ring,
    .wait = wait_for,
    .notify = notify,
    .group_open = nccl_group_open,
    .group_close = nccl_group_close,
    .all_reduce = nccl_all_reduce,
    .group_test = nccl_group_test,
    .collective_open = nccl_collective_open,
    .collective_close = nccl_collective_close,
    .collect = nccl_collect,
    .collect_test = nccl_collect_test,
    .abort = abort_world};
