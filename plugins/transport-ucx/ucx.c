/* SPDX-License-Identifier: Apache-2.0 */
/* transport-ucx: its table; worlds, endpoints, waiting, abort. */
#include <sched.h>
#include <unistd.h>

#include "ucx.h"

enum { ALIGN = 128, UNREADY_WAIT_NS = 20000, YIELD_AFTER_NS = 1000 };

void *ucx_new(const opipe_host *host, const char *what, size_t n_bytes, opipe_error *err) {
  return opipe_zeroed(host, what, n_bytes, ALIGN, err);
}

void ucx_delete(const opipe_host *host, void *data, size_t n_bytes) {
  opipe_free(host, data, n_bytes, ALIGN);
}

opipe_status ucx_address(const opipe_endpoint *endpoint, const opipe_region *region,
                         void **out_data, bool *out_remote, opipe_error *err) {
  return machine_address(endpoint->rank, endpoint->backend, endpoint->queue, region, out_data,
                         out_remote, err);
}

bool ucx_is_child(const opipe_world *world) {
  return getpid() != world->process;
}

/* ---- the end of a world ---- */

opipe_status ucx_check(opipe_world *world, opipe_error *err) {
  const opipe_status status = shm_check(world->near, err);
  if (status < 0 && world->library != NULL && atomic_exchange(&world->told, 1) == 0)
    ucx_tell_end(world);
  return status;
}

void ucx_fail(opipe_world *world, uint32_t rank, const opipe_error *why) {
  shm_transport.abort(world->near, rank, why);
  (void)ucx_check(world, NULL);
}

/* ---- worlds ---- */

static opipe_status ucx_info(opipe_instance *self, opipe_transport_info *io_info,
                             opipe_error *err) {
  (void)self;
  const opipe_transport_info full = {
      .rule = OPIPE_RULE_TAG,
      .thread_rule = OPIPE_THREADS_PER_ENDPOINT,
      .flags = OPIPE_TRANSPORT_REDUCES | OPIPE_TRANSPORT_COLLECTIVES | OPIPE_TRANSPORT_MACHINES,
      .fence_kinds = 1u << OPIPE_FENCE_NONE,
      .max_ranks = UCX_RANKS_MOST,
      .latency_ns = 30000,
      .bandwidth = 2e9};
  return opipe_transport_tell(io_info, &full, err);
}

static opipe_status ucx_world_info(opipe_instance *self, const char *options,
                                   opipe_transport_info *io_info, opipe_error *err) {
  ucx_options read;
  const opipe_status status = ucx_read_options(options, &read, err);
  return status < 0 ? status : ucx_info(self, io_info, err);
}

static void seat_ranks(opipe_world *world, const opipe_world_params *params) {
  const bool knows = OPIPE_HAS(params, opipe_world_params, board);
  const uint32_t n = knows ? params->n_local_ranks : 0;
  for (uint32_t r = 0; r < world->n_ranks; ++r)
    world->seats[r].local = n == 0;
  for (uint32_t i = 0; i < n; ++i)
    world->seats[params->local_ranks[i]].local = true;
  world->alone = n == 0 || n == world->n_ranks;
  world->board = knows ? params->board : NULL;
}

static void ucx_world_close(opipe_world *world) {
  if (world == NULL || ucx_is_child(world))
    return;
  const opipe_host *host = world->host;
  for (uint32_t r = 0; r < world->n_ranks; ++r) {
    ucx_worker_delete(world->seats[r].worker);
    ucx_delete(host, world->seats[r].address, world->seats[r].n_address);
  }
  if (world->context != NULL)
    world->library->ucp.cleanup(world->context);
  shm_transport.world_close(world->near);
  ucx_delete(host, world->environment, world->n_environment);
  ucx_delete(host, world->seats, world->n_ranks * sizeof *world->seats);
  (void)pthread_mutex_destroy(&world->lock);
  ucx_delete(host, world, sizeof *world);
}

static opipe_status make_world(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  const opipe_host *host = self->host;
  opipe_world_params near = {.struct_size = (uint32_t)sizeof near};
  const uint32_t known = params->struct_size;
  opipe_world *world = ucx_new(host, "a world", sizeof *world, err);
  if (world == NULL)
    return OPIPE_E_NOMEM;
  world->host = host;
  world->n_ranks = params->n_ranks;
  world->process = getpid();
  world->seats = ucx_new(host, "a world", params->n_ranks * sizeof *world->seats, err);
  if (world->seats == NULL || pthread_mutex_init(&world->lock, NULL) != 0) {
    ucx_delete(host, world->seats, params->n_ranks * sizeof *world->seats);
    ucx_delete(host, world, sizeof *world);
    return opipe_fail(err, OPIPE_E_NOMEM, "a world of %u ranks", params->n_ranks);
  }
  memcpy(&near, params, known < sizeof near ? known : sizeof near);
  near.struct_size = known < sizeof near ? known : (uint32_t)sizeof near;
  near.options = NULL;
  opipe_status status = ucx_read_options(params->options, &world->options, err);
  if (status == OPIPE_OK)
    status = shm_transport.world_open(self->near, &near, &world->near, err);
  if (status == OPIPE_OK)
    seat_ranks(world, params);
  *out_world = world;
  return status;
}

/* Ranks that are all here and together need no UCX. */
static opipe_status ucx_world_open(opipe_instance *self, const opipe_world_params *params,
                                   opipe_world **out_world, opipe_error *err) {
  opipe_world *world = NULL;
  opipe_status status = opipe_world_check(params, err);
  if (status == OPIPE_OK)
    status = make_world(self, params, &world, err);
  if (status == OPIPE_OK && (!world->alone || world->options.together != 0)) {
    status = ucx_complete_options(&world->options, world->board, err);
    if (status == OPIPE_OK)
      status = ucx_start(world, err);
  }
  if (status < 0)
    ucx_world_close(world);
  else
    *out_world = world;
  return status;
}

static void ucx_abort(opipe_world *world, uint32_t rank, const opipe_error *why) {
  ucx_fail(world, rank, why);
}

/* ---- endpoints ---- */

static void ucx_endpoint_close(opipe_endpoint *endpoint) {
  if (endpoint == NULL || ucx_is_child(endpoint->world))
    return;
  const opipe_world *world = endpoint->world;
  ucx_worker *worker = endpoint->worker;
  ucx_worker_stop(worker);
  if (worker != NULL && worker->endpoint == endpoint)
    worker->endpoint = NULL;
  shm_transport.endpoint_close(endpoint->near);
  ucx_delete(world->host, endpoint, sizeof *endpoint);
}

static opipe_status ucx_endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                      opipe_endpoint **out_endpoint, opipe_error *err) {
  opipe_status status = opipe_endpoint_check(world->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_endpoint *endpoint = ucx_new(world->host, "an endpoint", sizeof *endpoint, err);
  if (endpoint == NULL)
    return OPIPE_E_NOMEM;
  endpoint->world = world;
  endpoint->backend = params->backend;
  endpoint->device = params->device;
  endpoint->queue = params->queue;
  endpoint->rank = params->rank;
  endpoint->spin_us = params->spin_us;
  opipe_endpoint_params near = {.struct_size = (uint32_t)sizeof near};
  const uint32_t known = params->struct_size;
  memcpy(&near, params, known < sizeof near ? known : sizeof near);
  near.struct_size = known < sizeof near ? known : (uint32_t)sizeof near;
  near.spin_us = world->library == NULL ? params->spin_us : 0;
  status = shm_transport.endpoint_open(world->near, &near, &endpoint->near, err);
  if (status == OPIPE_OK && world->library != NULL) {
    endpoint->worker = world->seats[params->rank].worker;
    status = ucx_worker_begin(endpoint->worker, endpoint, err);
    if (status == OPIPE_OK)
      status = ucx_post(endpoint->worker, err);
  }
  if (status < 0)
    ucx_endpoint_close(endpoint);
  else
    *out_endpoint = endpoint;
  return status;
}

/* Streams and groups are opened and closed by the thread that calls this, or not meanwhile. */
static opipe_status ready_all(const ucx_worker *worker, opipe_error *err) {
  opipe_status all = OPIPE_OK;
  for (opipe_stream *s = worker->streams; s != NULL; s = s->next) {
    const opipe_status status = ucx_stream_ready(s, err);
    if (status < 0)
      return status;
    all = status == OPIPE_OK ? all : OPIPE_PENDING;
  }
  for (opipe_group *g = worker->groups; g != NULL; g = g->next) {
    const opipe_status status = ucx_group_ready(g, err);
    if (status < 0)
      return status;
    all = status == OPIPE_OK ? all : OPIPE_PENDING;
  }
  return all;
}

static opipe_status ucx_endpoint_ready(opipe_endpoint *endpoint, opipe_error *err) {
  opipe_status status = ucx_check(endpoint->world, err);
  opipe_status all = OPIPE_OK;
  if (status == OPIPE_OK && endpoint->worker != NULL)
    all = ready_all(endpoint->worker, err);
  if (status == OPIPE_OK)
    status = all < 0 ? all : shm_transport.endpoint_ready(endpoint->near, err);
  if (status == OPIPE_OK && all == OPIPE_OK && endpoint->worker != NULL)
    ucx_files_accepted(endpoint->world);
  return status == OPIPE_OK ? all : status;
}

/* ---- memory: transport-shm's ---- */

static opipe_status ucx_memory_register(opipe_endpoint *endpoint, opipe_buffer *buffer,
                                        uint64_t n_bytes, opipe_memory **out_memory,
                                        opipe_error *err) {
  const opipe_region region = {.buffer = buffer, .offset_bytes = 0, .n_bytes = n_bytes};
  void *data = NULL;
  bool remote = false;
  const opipe_status status = ucx_address(endpoint, &region, &data, &remote, err);
  if (status < 0)
    return status;
  if (remote)
    atomic_store(&endpoint->has_remote, true);
  return shm_transport.memory_register(endpoint->near, buffer, n_bytes, out_memory, err);
}

static void ucx_memory_drop(opipe_memory *memory) {
  shm_transport.memory_drop(memory);
}

static opipe_status ucx_memory_alloc(opipe_endpoint *endpoint, uint64_t n_bytes, void **out_data,
                                     opipe_error *err) {
  return shm_transport.memory_alloc(endpoint->near, n_bytes, out_data, err);
}

static void ucx_memory_free(opipe_endpoint *endpoint, void *data) {
  if (!ucx_is_child(endpoint->world))
    shm_transport.memory_free(endpoint->near, data);
}

/* ---- the doorbell: transport-shm's ---- */

static uint32_t ucx_doorbell(opipe_endpoint *endpoint) {
  return shm_transport.doorbell(endpoint->near);
}

static void ucx_ring_bell(opipe_endpoint *endpoint) {
  shm_transport.ring(endpoint->near);
}

/* Moves messages itself for a while: the helper's way is that of two wake-ups. True: it rang. */
static bool spin(const opipe_endpoint *endpoint, uint32_t seen) {
  const uint64_t start = machine_now_ns(), until = start + endpoint->spin_us * UINT64_C(1000);
  uint64_t now = start;
  while (now < until && shm_transport.doorbell(endpoint->near) == seen) {
    ucx_move(endpoint->worker);
    now = machine_now_ns();
    if (now - start > YIELD_AFTER_NS)
      (void)sched_yield();
  }
  return shm_transport.doorbell(endpoint->near) != seen;
}

static opipe_status ucx_wait(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                             opipe_error *err) {
  opipe_status status = ucx_go_on(endpoint, err);
  if (status < 0)
    return status;
  const bool look_again = endpoint->unready; /* nobody rings for events of devices */
  endpoint->unready = false;
  if (look_again && timeout_ns > UNREADY_WAIT_NS)
    timeout_ns = UNREADY_WAIT_NS;
  if (!look_again && endpoint->worker != NULL && spin(endpoint, seen))
    return ucx_check(endpoint->world, err);
  status = shm_transport.wait(endpoint->near, seen, timeout_ns, err);
  if (status == OPIPE_E_PEER)
    (void)ucx_check(endpoint->world, NULL);
  return status == OPIPE_E_TIMEOUT && look_again ? OPIPE_OK : status;
}

static void ucx_notify(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx) {
  shm_transport.notify(endpoint->near, seen, fn, ctx);
  if (fn == NULL)
    return;
  (void)ucx_go_on(endpoint, NULL);
  const bool look_again = endpoint->unready;
  endpoint->unready = false;
  if (look_again)
    shm_transport.ring(endpoint->near);
}

/* ---- the table ---- */

const opipe_transport ucx_transport = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, stream_way),
    .info = ucx_info,
    .world_info = ucx_world_info,
    .endpoint_ready = ucx_endpoint_ready,
    .world_open = ucx_world_open,
    .world_close = ucx_world_close,
    .endpoint_open = ucx_endpoint_open,
    .endpoint_close = ucx_endpoint_close,
    .stream_open = ucx_stream_open,
    .stream_close = ucx_stream_close,
    .memory_register = ucx_memory_register,
    .memory_drop = ucx_memory_drop,
    .memory_alloc = ucx_memory_alloc,
    .memory_free = ucx_memory_free,
    .reserve = ucx_reserve,
    .send = ucx_send,
    .recv = ucx_recv,
    .test = ucx_test,
    .doorbell = ucx_doorbell,
    .ring = ucx_ring_bell,
    .wait = ucx_wait,
    .group_open = ucx_group_open,
    .group_close = ucx_group_close,
    .all_reduce = ucx_all_reduce,
    .group_test = ucx_group_test,
    .collective_open = ucx_collective_open,
    .collective_close = ucx_collective_close,
    .collect = ucx_collect,
    .collect_test = ucx_collect_test,
    .abort = ucx_abort,
    .notify = ucx_notify,
    .way = ucx_way,
    .stream_way = ucx_stream_way};
