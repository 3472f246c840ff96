/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin's table; worlds, ranks, mirrors. */
#include "staged.h"

enum { ALIGN = 64, LOOK_NS = 20000 };

void *staged_zeroed(const opipe_instance *self, const char *what, uint64_t n_bytes,
                    opipe_error *err) {
  return opipe_zeroed(self->host, what, n_bytes, ALIGN, err);
}

void staged_free(const opipe_instance *self, void *data, uint64_t n_bytes) {
  opipe_free(self->host, data, n_bytes, ALIGN);
}

/* ---- declared flags: nothing is written in place, or queued ---- */

static void no_longer_direct(opipe_transport_info *io_info) {
  if (OPIPE_HAS(io_info, opipe_transport_info, flags))
    io_info->flags &= ~(uint32_t)(OPIPE_TRANSPORT_DIRECT | OPIPE_TRANSPORT_QUEUED);
}

static opipe_status staged_info(opipe_instance *self, opipe_transport_info *io_info,
                                opipe_error *err) {
  const opipe_status status = self->inner->info(self->inner_self, io_info, err);
  no_longer_direct(io_info);
  return status;
}

static opipe_status staged_world_info(opipe_instance *self, const char *options,
                                      opipe_transport_info *io_info, opipe_error *err) {
  const opipe_status status = self->inner->world_info(self->inner_self, options, io_info, err);
  no_longer_direct(io_info);
  return status;
}

/* ---- worlds and ranks ---- */

static opipe_status staged_world_open(opipe_instance *self, const opipe_world_params *params,
                                      opipe_world **out_world, opipe_error *err) {
  opipe_world *world = staged_zeroed(self, "a world", sizeof *world, err);
  if (world == NULL)
    return OPIPE_E_NOMEM;
  world->self = self;
  const opipe_status status = self->inner->world_open(self->inner_self, params, &world->inner, err);
  if (status < 0) {
    staged_free(self, world, sizeof *world);
    return status;
  }
  *out_world = world;
  return OPIPE_OK;
}

static void staged_world_close(opipe_world *world) {
  if (world == NULL)
    return;
  world->self->inner->world_close(world->inner);
  staged_free(world->self, world, sizeof *world);
}

static void staged_abort(opipe_world *world, uint32_t rank, const opipe_error *why) {
  world->self->inner->abort(world->inner, rank, why);
}

/* All of a backend that 'local' asks for: mirrors have addresses. */
static opipe_status mirror_host(opipe_buffer *buffer, void **out_data, opipe_error *err) {
  (void)err;
  *out_data = buffer->data;
  return OPIPE_OK;
}
static const opipe_backend mirrors = {.struct_size = (uint32_t)OPIPE_END(opipe_backend, run),
                                      .buffer_host = mirror_host};

static opipe_status staged_endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                         opipe_endpoint **out_endpoint, opipe_error *err) {
  opipe_endpoint_params own = *params;
  if (params->backend == NULL || params->queue == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "transport 'staged': rank %u has no queue to copy by",
                      params->rank);
  }
  opipe_endpoint *e = staged_zeroed(world->self, "an endpoint", sizeof *e, err);
  if (e == NULL)
    return OPIPE_E_NOMEM;
  e->self = world->self;
  e->backend = params->backend;
  e->device = params->device;
  e->queue = params->queue;
  e->rank = params->rank;
  own.backend = &mirrors;
  own.device = NULL;
  own.queue = NULL;
  (void)pthread_mutex_init(&e->lock, NULL);
  const opipe_status status = e->self->inner->endpoint_open(world->inner, &own, &e->inner, err);
  if (status < 0) {
    (void)pthread_mutex_destroy(&e->lock);
    staged_free(world->self, e, sizeof *e);
    return status;
  }
  *out_endpoint = e;
  return OPIPE_OK;
}

static void staged_endpoint_close(opipe_endpoint *endpoint) {
  if (endpoint == NULL)
    return;
  endpoint->self->inner->endpoint_close(endpoint->inner);
  (void)pthread_mutex_destroy(&endpoint->lock);
  staged_free(endpoint->self, endpoint, sizeof *endpoint);
}

/* ---- mirrors ---- */

static opipe_status staged_memory_register(opipe_endpoint *endpoint, opipe_buffer *buffer,
                                           uint64_t n_bytes, opipe_memory **out_memory,
                                           opipe_error *err) {
  const opipe_instance *self = endpoint->self;
  opipe_memory *m = staged_zeroed(self, "registered memory", sizeof *m, err);
  if (m == NULL)
    return OPIPE_E_NOMEM;
  m->endpoint = endpoint;
  m->buffer = buffer;
  m->mirror.n_bytes = n_bytes == 0 ? 1 : n_bytes;
  m->mirror.data = staged_zeroed(self, "a mirror", m->mirror.n_bytes, err);
  opipe_status status = m->mirror.data == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  if (status == OPIPE_OK)
    status = self->inner->memory_register(endpoint->inner, &m->mirror, n_bytes, &m->inner, err);
  if (status < 0) {
    staged_free(self, m->mirror.data, m->mirror.n_bytes);
    staged_free(self, m, sizeof *m);
    return status;
  }
  (void)pthread_mutex_lock(&endpoint->lock);
  m->next = endpoint->memories;
  endpoint->memories = m;
  (void)pthread_mutex_unlock(&endpoint->lock);
  *out_memory = m;
  return OPIPE_OK;
}

static void staged_memory_drop(opipe_memory *memory) {
  if (memory == NULL)
    return;
  opipe_endpoint *e = memory->endpoint;
  opipe_memory **at = &e->memories;
  (void)pthread_mutex_lock(&e->lock);
  while (*at != memory)
    at = &(*at)->next;
  *at = memory->next;
  (void)pthread_mutex_unlock(&e->lock);
  e->self->inner->memory_drop(memory->inner);
  staged_free(e->self, memory->mirror.data, memory->mirror.n_bytes);
  staged_free(e->self, memory, sizeof *memory);
}

/* ---- the doorbell ---- */

static uint32_t staged_doorbell(opipe_endpoint *endpoint) {
  return endpoint->self->inner->doorbell(endpoint->inner);
}

static void staged_ring(opipe_endpoint *endpoint) {
  endpoint->self->inner->ring(endpoint->inner);
}

/* Nobody rings when a copy is done: a rank that has some looks again soon. */
static opipe_status staged_wait(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                                opipe_error *err) {
  const bool soon = endpoint->n_copying != 0 && timeout_ns > LOOK_NS;
  const opipe_status status =
      endpoint->self->inner->wait(endpoint->inner, seen, soon ? LOOK_NS : timeout_ns, err);
  return soon && status == OPIPE_E_TIMEOUT ? OPIPE_OK : status;
}

/* ---- the plugin ---- */

static const opipe_transport transport_table = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, collect_test),
    .info = staged_info,
    .world_info = staged_world_info,
    .world_open = staged_world_open,
    .world_close = staged_world_close,
    .endpoint_open = staged_endpoint_open,
    .endpoint_close = staged_endpoint_close,
    .stream_open = staged_stream_open,
    .stream_close = staged_stream_close,
    .memory_register = staged_memory_register,
    .memory_drop = staged_memory_drop,
    .reserve = staged_reserve,
    .send = staged_send,
    .recv = staged_recv,
    .test = staged_test,
    .doorbell = staged_doorbell,
    .ring = staged_ring,
    .wait = staged_wait,
    .group_open = staged_group_open,
    .group_close = staged_group_close,
    .all_reduce = staged_all_reduce,
    .group_test = staged_group_test,
    .collective_open = staged_collective_open,
    .collective_close = staged_collective_close,
    .collect = staged_collect,
    .collect_test = staged_collect_test,
    .abort = staged_abort};

static opipe_status staged_open(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  const opipe_plugin *inner = &OPIPE_PLUGIN_STATIC(transport_local);
  opipe_instance *self = opipe_zeroed(host, "transport 'staged'", sizeof *self, ALIGN, err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  const opipe_status status = inner->open(host, &self->inner_self, err);
  if (status < 0) {
    opipe_free(host, self, sizeof *self, ALIGN);
    return status;
  }
  self->inner = inner->get_interface(self->inner_self, OPIPE_TRANSPORT_ID);
  *out_self = self;
  return OPIPE_OK;
}

static void staged_close(opipe_instance *self) {
  if (self == NULL)
    return;
  OPIPE_PLUGIN_STATIC(transport_local).close(self->inner_self);
  opipe_free(self->host, self, sizeof *self, ALIGN);
}

static const void *staged_get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &transport_table : NULL;
}

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
    "staged",
    "1.0",
    "Apache-2.0",
    "transport 'local' through host memory, for devices without host addresses: for tests",
    staged_open,
    staged_close,
    staged_get_interface,
};
