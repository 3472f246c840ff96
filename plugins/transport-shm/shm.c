/* SPDX-License-Identifier: Apache-2.0 */
/* transport-shm: its table; worlds, endpoints, abort. */
#include "shm.h"

enum { ALIGN = 128 };

void *shm_new(const opipe_host *host, const char *what, size_t n_bytes, opipe_error *err) {
  return opipe_zeroed(host, what, n_bytes, ALIGN, err);
}

void shm_delete(const opipe_host *host, void *data, size_t n_bytes) {
  opipe_free(host, data, n_bytes, ALIGN);
}

opipe_status shm_check(opipe_world *world, opipe_error *err) {
  if (atomic_load_explicit(&world->aborted, memory_order_acquire) == 0)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_PEER, "rank %u ended the run: %s", world->abort_rank,
                    world->why.message);
}

uint32_t shm_reason(const opipe_world *world, opipe_error *out_why) {
  *out_why = world->why;
  return world->abort_rank;
}

/* ---- instances ---- */

opipe_status shm_instance_open(const opipe_host *host, opipe_instance **out_self,
                               opipe_error *err) {
  opipe_instance *self = shm_new(host, "transport 'shm'", sizeof *self, err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
}

void shm_instance_close(opipe_instance *self) {
  if (self != NULL)
    shm_delete(self->host, self, sizeof *self);
}

/* ---- worlds ---- */

static opipe_status shm_info(opipe_instance *self, opipe_transport_info *io_info,
                             opipe_error *err) {
  (void)self;
  const opipe_transport_info full = {.rule = OPIPE_RULE_TAG,
                                     .thread_rule = OPIPE_THREADS_PER_ENDPOINT,
                                     .flags = OPIPE_TRANSPORT_REDUCES | OPIPE_TRANSPORT_COLLECTIVES,
                                     .fence_kinds = 1u << OPIPE_FENCE_NONE,
                                     .max_ranks = SHM_RANKS_MOST,
                                     .latency_ns = 1000,
                                     .bandwidth = 8e9};
  return opipe_transport_tell(io_info, &full, err);
}

opipe_status shm_check_options(const char *options, opipe_error *err) {
  if (options == NULL || options[0] == '\0')
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID, "transport 'shm' has no options, '%.100s' was given",
                    options);
}

static opipe_status shm_world_info(opipe_instance *self, const char *options,
                                   opipe_transport_info *io_info, opipe_error *err) {
  const opipe_status status = shm_check_options(options, err);
  return status < 0 ? status : shm_info(self, io_info, err);
}

static opipe_status check_world(const opipe_world_params *params, opipe_error *err) {
  opipe_status status = opipe_world_check(params, err);
  if (status == OPIPE_OK)
    status = shm_check_options(params->options, err);
  if (status == OPIPE_OK && params->n_ranks > SHM_RANKS_MOST) {
    status = opipe_fail(err, OPIPE_E_INVALID, "transport 'shm': %u ranks, at most %d",
                        params->n_ranks, SHM_RANKS_MOST);
  }
  return status;
}

/* Who is here. */
static opipe_status seat_ranks(opipe_world *world, const opipe_world_params *params,
                               opipe_error *err) {
  const bool knows = OPIPE_HAS(params, opipe_world_params, board);
  const uint32_t n = knows ? params->n_local_ranks : 0;
  world->first_rank = n == 0 ? 0 : UINT32_MAX;
  for (uint32_t r = 0; r < world->n_ranks; ++r) {
    world->seats[r].local = n == 0;
    atomic_init(&world->seats[r].ring_fd, -1);
  }
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t r = params->local_ranks[i];
    if (r >= world->n_ranks || world->seats[r].local) {
      return opipe_fail(err, OPIPE_E_INVALID, "world_open: local rank %u, %s the %u ranks", r,
                        r >= world->n_ranks ? "not among" : "twice among", world->n_ranks);
    }
    world->seats[r].local = true;
    world->first_rank = r < world->first_rank ? r : world->first_rank;
  }
  world->alone = n == 0 || n == world->n_ranks;
  world->board = knows ? params->board : NULL;
  if (world->alone || world->board != NULL)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport 'shm': %u of %u ranks are here, and without a board the others "
                    "cannot be found",
                    n, world->n_ranks);
}

static void shm_world_close(opipe_world *world) {
  if (world == NULL)
    return;
  const opipe_host *host = world->host;
  shm_peers_close(world);
  shm_forget_theirs(world);
  shm_forget(world);
  shm_sweep(world, true);
  machine_forget_places(host, &world->counts);
  while (world->mapped != NULL) {
    shm_mapped *m = world->mapped;
    world->mapped = m->next;
    shm_delete(host, m, sizeof *m);
  }
  for (uint32_t r = 0; world->seats != NULL && r < world->n_ranks; ++r) {
    shm_seat *seat = &world->seats[r];
    while (seat->spans != NULL) {
      shm_span *span = seat->spans;
      seat->spans = span->next;
      shm_delete(host, span, sizeof *span);
    }
    shm_delete(host, atomic_load(&seat->table), SHM_SEGMENTS * sizeof(_Atomic(shm_mapped *)));
  }
  shm_delete(host, world->seats, world->n_ranks * sizeof *world->seats);
  pthread_mutex_destroy(&world->lock);
  shm_delete(host, world, sizeof *world);
}

static opipe_status shm_world_open(opipe_instance *self, const opipe_world_params *params,
                                   opipe_world **out_world, opipe_error *err) {
  const opipe_host *host = self->host;
  opipe_status status = check_world(params, err);
  if (status < 0)
    return status;
  opipe_world *world = shm_new(host, "a world", sizeof *world, err);
  if (world == NULL)
    return OPIPE_E_NOMEM;
  world->host = host;
  world->kick = world->listener = -1;
  world->seats = shm_new(host, "a world", params->n_ranks * sizeof *world->seats, err);
  if (world->seats == NULL || pthread_mutex_init(&world->lock, NULL) != 0) {
    shm_delete(host, world->seats, params->n_ranks * sizeof *world->seats);
    shm_delete(host, world, sizeof *world);
    return opipe_fail(err, OPIPE_E_NOMEM, "a world of %u ranks", params->n_ranks);
  }
  world->n_ranks = params->n_ranks;
  status = seat_ranks(world, params, err);
  if (status >= 0)
    status = shm_peers_open(world, world->alone ? NULL : params->job, err);
  if (status < 0)
    shm_world_close(world);
  else
    *out_world = world;
  return status;
}

void shm_fail(opipe_world *world, uint32_t rank, const opipe_error *why) {
  const bool first = atomic_load(&world->aborted) == 0;
  if (first) {
    world->abort_rank = rank;
    if (why != NULL)
      world->why = *why;
    world->why.message[sizeof world->why.message - 1] = '\0';
    atomic_store_explicit(&world->aborted, 1, memory_order_release);
  }
  for (uint32_t r = 0; r < world->n_ranks; ++r) {
    opipe_endpoint *endpoint = atomic_load(&world->seats[r].endpoint);
    if (endpoint != NULL)
      shm_ring(endpoint);
  }
  if (first)
    shm_tell_abort(world);
}

static void shm_abort(opipe_world *world, uint32_t rank, const opipe_error *why) {
  pthread_mutex_lock(&world->lock);
  shm_fail(world, rank, why);
  pthread_mutex_unlock(&world->lock);
}

/* ---- endpoints ---- */

/* Its shared memory stays until world_close: others may still look at it. */
static void shm_endpoint_close(opipe_endpoint *endpoint) {
  if (endpoint == NULL)
    return;
  opipe_world *world = endpoint->world;
  shm_notify(endpoint, 0, NULL, NULL);
  pthread_mutex_lock(&world->lock);
  shm_end_events(endpoint);
  shm_forget_lent(endpoint);
  shm_unpin_all(endpoint);
  if (atomic_load(&world->seats[endpoint->rank].endpoint) == endpoint)
    atomic_store(&world->seats[endpoint->rank].endpoint, NULL);
  pthread_mutex_unlock(&world->lock);
  shm_delete(world->host, endpoint, sizeof *endpoint);
}

static opipe_status open_end(opipe_endpoint *endpoint, opipe_error *err) {
  opipe_world *world = endpoint->world;
  shm_seat *seat = &world->seats[endpoint->rank];
  if (!seat->local) {
    return opipe_fail(err, OPIPE_E_INVALID, "endpoint_open: rank %u is not among the local ranks",
                      endpoint->rank);
  }
  if (atomic_load(&seat->endpoint) != NULL) {
    return opipe_fail(err, OPIPE_E_STATE, "endpoint_open: rank %u has an endpoint already",
                      endpoint->rank);
  }
  opipe_status status = shm_memory_open(endpoint, err);
  if (status < 0)
    return status;
  atomic_store(&seat->endpoint, endpoint);
  status = shm_tell_rank(endpoint, err);
  if (status >= 0)
    status = shm_post(world, endpoint->rank, err);
  if (status < 0)
    atomic_store(&seat->endpoint, NULL);
  return status;
}

static opipe_status shm_endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                      opipe_endpoint **out_endpoint, opipe_error *err) {
  opipe_status status = opipe_endpoint_check(world->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_endpoint *endpoint = shm_new(world->host, "an endpoint", sizeof *endpoint, err);
  if (endpoint == NULL)
    return OPIPE_E_NOMEM;
  endpoint->world = world;
  endpoint->backend = params->backend;
  endpoint->device = params->device;
  endpoint->queue = params->queue;
  endpoint->backend_self = params->backend_self;
  endpoint->device_index = OPIPE_HAS(params, opipe_endpoint_params, reserved2) &&
                                   params->backend != NULL && params->device != NULL
                               ? params->device_index
                               : OPIPE_NONE;
  endpoint->rank = params->rank;
  endpoint->spin_us = params->spin_us;
  pthread_mutex_lock(&world->lock);
  status = open_end(endpoint, err);
  pthread_mutex_unlock(&world->lock);
  if (status < 0)
    shm_delete(world->host, endpoint, sizeof *endpoint);
  else
    *out_endpoint = endpoint;
  return status;
}

static opipe_status ready_streams(const opipe_endpoint *endpoint, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status all = OPIPE_OK;
  for (opipe_stream *s = world->streams; s != NULL; s = s->next) {
    if (s->endpoint != endpoint)
      continue;
    const uint32_t peer =
        s->params.src_rank == endpoint->rank ? s->params.dst_rank : s->params.src_rank;
    opipe_status status = shm_reach(world, peer, err);
    if (status == OPIPE_OK)
      status = shm_stream_ready(s, err);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING)
      all = OPIPE_PENDING;
  }
  return all;
}

static opipe_status ready_groups(const opipe_endpoint *endpoint, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status all = OPIPE_OK;
  for (opipe_group *g = world->groups; g != NULL; g = g->next) {
    opipe_status status = OPIPE_OK;
    if (g->endpoint != endpoint || g->known)
      continue;
    for (uint32_t i = 0; i < g->n && status == OPIPE_OK; ++i)
      status = shm_reach(world, g->ranks[i], err);
    if (status == OPIPE_OK)
      status = shm_group_ready(g, err);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING)
      all = OPIPE_PENDING;
  }
  return all;
}

static opipe_status shm_endpoint_ready(opipe_endpoint *endpoint, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status status = shm_check(world, err);
  if (status < 0)
    return status;
  pthread_mutex_lock(&world->lock);
  status = ready_streams(endpoint, err);
  if (status >= 0) {
    const opipe_status groups = ready_groups(endpoint, err);
    status = groups == OPIPE_OK ? status : groups;
  }
  pthread_mutex_unlock(&world->lock);
  return status;
}

/* ---- the table ---- */

const opipe_transport shm_transport = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, stream_way),
    .info = shm_info,
    .world_info = shm_world_info,
    .endpoint_ready = shm_endpoint_ready,
    .world_open = shm_world_open,
    .world_close = shm_world_close,
    .endpoint_open = shm_endpoint_open,
    .endpoint_close = shm_endpoint_close,
    .stream_open = shm_stream_open,
    .stream_close = shm_stream_close,
    .memory_register = shm_memory_register,
    .memory_drop = shm_memory_drop,
    .memory_alloc = shm_memory_alloc,
    .memory_free = shm_memory_free,
    .reserve = shm_reserve,
    .send = shm_send,
    .recv = shm_recv,
    .test = shm_test,
    .doorbell = shm_doorbell,
    .ring = shm_ring,
    .wait = shm_wait,
    .group_open = shm_group_open,
    .group_close = shm_group_close,
    .all_reduce = shm_all_reduce,
    .group_test = shm_group_test,
    .collective_open = shm_collective_open,
    .collective_close = shm_collective_close,
    .collect = shm_collect,
    .collect_test = shm_collect_test,
    .abort = shm_abort,
    .notify = shm_notify,
    .way = shm_way,
    .stream_way = shm_stream_way};
