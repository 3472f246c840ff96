/* SPDX-License-Identifier: Apache-2.0 */
/* transport-local: the plugin's table; worlds, endpoints, registered memory, abort. */
#include "local.h"

/* ---- shared by the files ---- */

opipe_status local_check(opipe_world *world, opipe_error *err) {
  if (atomic_load_explicit(&world->aborted, memory_order_acquire) == 0)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_PEER, "rank %u ended the run: %s", world->abort_rank,
                    world->why.message);
}

opipe_status local_address(const opipe_endpoint *endpoint, const opipe_region *region,
                           void **out_data, bool *out_remote, opipe_error *err) {
  /* asked without a reason first: writing one takes as long as a message */
  const opipe_status status =
      opipe_endpoint_address(endpoint->rank, endpoint->backend, region, out_data, NULL);
  *out_remote = status == OPIPE_E_UNSUPPORTED && endpoint->queue != NULL;
  if (status == OPIPE_OK || *out_remote)
    return OPIPE_OK;
  return opipe_endpoint_address(endpoint->rank, endpoint->backend, region, out_data, err);
}

opipe_status local_record(const opipe_endpoint *endpoint, opipe_event *event, opipe_error *err) {
  return opipe_endpoint_record(endpoint->rank, endpoint->backend, endpoint->queue, event, err);
}

/* ---- worlds ---- */

static opipe_status local_info(opipe_instance *self, opipe_transport_info *io_info,
                               opipe_error *err) {
  (void)self;
  const opipe_transport_info full = {.rule = OPIPE_RULE_TAG,
                                     .thread_rule = OPIPE_THREADS_PER_ENDPOINT,
                                     .flags = OPIPE_TRANSPORT_DIRECT | OPIPE_TRANSPORT_REDUCES |
                                              OPIPE_TRANSPORT_COLLECTIVES | OPIPE_TRANSPORT_QUEUED,
                                     .fence_kinds = 1u << OPIPE_FENCE_NONE,
                                     .max_ranks = 0,
                                     .latency_ns = 500,
                                     .bandwidth = 0};
  return opipe_transport_tell(io_info, &full, err);
}

opipe_status local_check_options(const char *options, opipe_error *err) {
  if (options == NULL || options[0] == '\0')
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID, "transport 'local' has no options, '%.100s' was given",
                    options);
}

static opipe_status local_world_info(opipe_instance *self, const char *options,
                                     opipe_transport_info *io_info, opipe_error *err) {
  const opipe_status status = local_check_options(options, err);
  return status < 0 ? status : local_info(self, io_info, err);
}

static opipe_status local_world_open(opipe_instance *self, const opipe_world_params *params,
                                     opipe_world **out_world, opipe_error *err) {
  const opipe_host *host = self->host;
  opipe_status status = opipe_world_check(params, err);
  if (status == OPIPE_OK)
    status = local_check_options(params->options, err);
  if (status < 0)
    return status;
  const size_t table_bytes = params->n_ranks * sizeof(_Atomic(opipe_endpoint *));
  opipe_world *world = opipe_zeroed(host, "a world", sizeof *world, _Alignof(opipe_world), err);
  if (world == NULL)
    return OPIPE_E_NOMEM;
  world->host = host;
  world->n_ranks = params->n_ranks;
  world->wires = (opipe_wires){.host = host,
                               .n_ranks = params->n_ranks,
                               .wire_bytes = sizeof(wire),
                               .wire_align = _Alignof(wire),
                               .cell_bytes = sizeof(cell),
                               .cell_align = _Alignof(cell)};
  world->reductions = (opipe_circles){.host = host,
                                      .n_ranks = params->n_ranks,
                                      .circle_bytes = sizeof(reduction),
                                      .circle_align = _Alignof(reduction),
                                      .member_bytes = sizeof(member),
                                      .member_align = _Alignof(member)};
  world->collectives = world->reductions;
  world->endpoints =
      opipe_zeroed(host, "a world", table_bytes, _Alignof(_Atomic(opipe_endpoint *)), err);
  if (world->endpoints == NULL) {
    status = OPIPE_E_NOMEM;
    goto fail_world;
  }
  if (pthread_mutex_init(&world->lock, NULL) != 0) {
    status = opipe_fail(err, OPIPE_E_NOMEM, "a world: no lock could be made");
    goto fail_table;
  }
  *out_world = world;
  return OPIPE_OK;
fail_table:
  opipe_free(host, world->endpoints, table_bytes, _Alignof(_Atomic(opipe_endpoint *)));
fail_world:
  opipe_free(host, world, sizeof *world, _Alignof(opipe_world));
  return status;
}

static void local_world_close(opipe_world *world) {
  if (world == NULL)
    return;
  const opipe_host *host = world->host;
  pthread_mutex_destroy(&world->lock);
  opipe_free(host, world->endpoints, world->n_ranks * sizeof(_Atomic(opipe_endpoint *)),
             _Alignof(_Atomic(opipe_endpoint *)));
  opipe_free(host, world, sizeof *world, _Alignof(opipe_world));
}

static void local_abort(opipe_world *world, uint32_t rank, const opipe_error *why) {
  pthread_mutex_lock(&world->lock);
  if (atomic_load(&world->aborted) == 0) {
    world->abort_rank = rank;
    if (why != NULL)
      world->why = *why;
    world->why.message[sizeof world->why.message - 1] = '\0';
    atomic_store_explicit(&world->aborted, 1, memory_order_release);
  }
  for (uint32_t r = 0; r < world->n_ranks; ++r)
    local_ring_rank(world, r);
  pthread_mutex_unlock(&world->lock);
}

/* ---- endpoints ---- */

static opipe_status local_endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                        opipe_endpoint **out_endpoint, opipe_error *err) {
  opipe_status status = opipe_endpoint_check(world->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_endpoint *endpoint =
      opipe_zeroed(world->host, "an endpoint", sizeof *endpoint, _Alignof(opipe_endpoint), err);
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
  opipe_endpoint *nobody = NULL;
  if (!atomic_compare_exchange_strong(&world->endpoints[params->rank], &nobody, endpoint)) {
    opipe_free(world->host, endpoint, sizeof *endpoint, _Alignof(opipe_endpoint));
    return opipe_fail(err, OPIPE_E_STATE, "endpoint_open: rank %u has an endpoint already",
                      params->rank);
  }
  *out_endpoint = endpoint;
  return OPIPE_OK;
}

/* Under the lock, so that no abort rings it meanwhile; its peers have stopped. */
static void local_endpoint_close(opipe_endpoint *endpoint) {
  if (endpoint == NULL)
    return;
  opipe_world *world = endpoint->world;
  local_notify(endpoint, 0, NULL, NULL);
  pthread_mutex_lock(&world->lock);
  atomic_store(&world->endpoints[endpoint->rank], NULL);
  pthread_mutex_unlock(&world->lock);
  opipe_free(world->host, endpoint, sizeof *endpoint, _Alignof(opipe_endpoint));
}

static bool is_there(const void *world, uint32_t rank) {
  return atomic_load(&((const opipe_world *)world)->endpoints[rank]) != NULL;
}

static opipe_status local_endpoint_ready(opipe_endpoint *endpoint, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status status = local_check(world, err);
  pthread_mutex_lock(&world->lock);
  if (status == OPIPE_OK)
    status = opipe_wires_within(&world->wires, endpoint->rank, "local", is_there, world, err);
  pthread_mutex_unlock(&world->lock);
  return status;
}

static opipe_status local_memory_register(opipe_endpoint *endpoint, opipe_buffer *buffer,
                                          uint64_t n_bytes, opipe_memory **out_memory,
                                          opipe_error *err) {
  const opipe_region region = {.buffer = buffer, .offset_bytes = 0, .n_bytes = n_bytes};
  void *data = NULL;
  bool remote = false;
  const opipe_status status = local_address(endpoint, &region, &data, &remote, err);
  if (status < 0)
    return status;
  endpoint->remote |= remote;
  opipe_memory *memory = opipe_zeroed(endpoint->world->host, "registered memory", sizeof *memory,
                                      _Alignof(opipe_memory), err);
  if (memory == NULL)
    return OPIPE_E_NOMEM;
  memory->endpoint = endpoint;
  memory->buffer = buffer;
  pthread_mutex_lock(&endpoint->world->lock);
  if (remote && n_bytes != 0 && endpoint->sample == NULL)
    endpoint->sample = buffer;
  pthread_mutex_unlock(&endpoint->world->lock);
  *out_memory = memory;
  return OPIPE_OK;
}

static void local_memory_drop(opipe_memory *memory) {
  if (memory == NULL)
    return;
  opipe_endpoint *endpoint = memory->endpoint;
  pthread_mutex_lock(&endpoint->world->lock);
  if (endpoint->sample == memory->buffer)
    endpoint->sample = NULL;
  pthread_mutex_unlock(&endpoint->world->lock);
  opipe_free(endpoint->world->host, memory, sizeof *memory, _Alignof(opipe_memory));
}

/* ---- the plugin ---- */

static const opipe_transport transport_table = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, stream_way),
    .info = local_info,
    .world_info = local_world_info,
    .endpoint_ready = local_endpoint_ready,
    .world_open = local_world_open,
    .world_close = local_world_close,
    .endpoint_open = local_endpoint_open,
    .endpoint_close = local_endpoint_close,
    .stream_open = local_stream_open,
    .stream_close = local_stream_close,
    .memory_register = local_memory_register,
    .memory_drop = local_memory_drop,
    .reserve = local_reserve,
    .send = local_send,
    .recv = local_recv,
    .test = local_test,
    .doorbell = local_doorbell,
    .ring = local_ring,
    .wait = local_wait,
    .group_open = local_group_open,
    .group_close = local_group_close,
    .all_reduce = local_all_reduce,
    .group_test = local_group_test,
    .abort = local_abort,
    .notify = local_notify,
    .collective_open = local_collective_open,
    .collective_close = local_collective_close,
    .collect = local_collect,
    .collect_test = local_collect_test,
    .recv_after = local_recv_after,
    .way = local_way,
    .stream_way = local_stream_way};

static opipe_status local_open(const opipe_host *host, opipe_instance **out_self,
                               opipe_error *err) {
  opipe_instance *self =
      opipe_zeroed(host, "transport 'local'", sizeof *self, _Alignof(opipe_instance), err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
}

static void local_close(opipe_instance *self) {
  if (self != NULL)
    opipe_free(self->host, self, sizeof *self, _Alignof(opipe_instance));
}

static const void *local_get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &transport_table : NULL;
}

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
    "local",
    "1.0",
    "Apache-2.0",
    "ranks are threads of one process: producers write into the receiver's memory",
    local_open,
    local_close,
    local_get_interface,
};
