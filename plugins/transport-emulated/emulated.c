/* SPDX-License-Identifier: Apache-2.0 */
/* transport-emulated: the plugin's table; worlds, endpoints, doorbells, abort. */
#include "emulated.h"

#include <time.h>

uint64_t emutrans_now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

opipe_status emutrans_check(const opipe_world *world, opipe_error *err) {
  if (!world->aborted)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_PEER, "rank %u ended the run: %s", world->abort_rank,
                    world->why.message);
}

void emutrans_ring_locked(opipe_world *world, uint32_t rank) {
  opipe_endpoint *e = world->endpoints[rank];
  if (e == NULL)
    return;
  ++e->count;
  pthread_cond_broadcast(&e->cond);
  if (e->notify != NULL)
    e->notify(e->notify_ctx);
  e->notify = NULL;
}

/* ---- worlds ---- */

static opipe_status info(opipe_instance *self, opipe_transport_info *io_info, opipe_error *err) {
  (void)self;
  /* The weaker of its rules: a plan that holds under it holds under the other. */
  const opipe_transport_info full = {
      .rule = OPIPE_RULE_STREAM,
      .thread_rule = OPIPE_THREADS_PER_ENDPOINT,
      .flags = OPIPE_TRANSPORT_EMULATED | OPIPE_TRANSPORT_REDUCES | OPIPE_TRANSPORT_COLLECTIVES,
      .fence_kinds = 1u << OPIPE_FENCE_NONE,
      .latency_ns = 1000,
      .bandwidth = 1e10};
  return opipe_transport_tell(io_info, &full, err);
}

static opipe_status world_info(opipe_instance *self, const char *text,
                               opipe_transport_info *io_info, opipe_error *err) {
  options wanted;
  opipe_transport_info full = {.struct_size = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth)};
  opipe_status status = emutrans_options(text, &wanted, err);
  if (status == OPIPE_OK)
    status = info(self, &full, err);
  if (status < 0)
    return status;
  full.rule = wanted.rule;
  full.latency_ns = (double)wanted.latency_ns;
  full.bandwidth = wanted.bytes_per_ns * 1e9;
  full.flags |= wanted.scattered ? (uint32_t)OPIPE_TRANSPORT_SCATTERED : 0u;
  return opipe_transport_tell(io_info, &full, err);
}

static opipe_status world_open(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  options wanted;
  opipe_status status = opipe_world_check(params, err);
  if (status == OPIPE_OK)
    status = emutrans_options(params->options, &wanted, err);
  if (status < 0)
    return status;
  const size_t table_bytes = params->n_ranks * sizeof(opipe_endpoint *);
  opipe_world *world = opipe_zeroed(self->host, "a world", sizeof *world, ALIGN, err);
  opipe_endpoint **table = opipe_zeroed(self->host, "a world", table_bytes, ALIGN, err);
  if (world == NULL || table == NULL) {
    status = OPIPE_E_NOMEM;
    goto fail;
  }
  *world = (opipe_world){.host = self->host,
                         .options = wanted,
                         .n_ranks = params->n_ranks,
                         .endpoints = table,
                         .wires = {.host = self->host,
                                   .n_ranks = params->n_ranks,
                                   .wire_bytes = sizeof(wire),
                                   .wire_align = ALIGN,
                                   .cell_bytes = sizeof(cell),
                                   .cell_align = ALIGN},
                         .reductions = {.host = self->host,
                                        .n_ranks = params->n_ranks,
                                        .circle_bytes = sizeof(reduction),
                                        .circle_align = ALIGN,
                                        .member_bytes = sizeof(member),
                                        .member_align = ALIGN}};
  world->collectives = world->reductions;
  if (pthread_mutex_init(&world->lock, NULL) != 0) {
    status = opipe_fail(err, OPIPE_E_NOMEM, "a world: no lock could be made");
    goto fail;
  }
  *out_world = world;
  return OPIPE_OK;
fail:
  opipe_free(self->host, table, table_bytes, ALIGN);
  opipe_free(self->host, world, sizeof *world, ALIGN);
  return status;
}

static void world_close(opipe_world *world) {
  if (world == NULL)
    return;
  pthread_mutex_destroy(&world->lock);
  opipe_free(world->host, world->endpoints, world->n_ranks * sizeof(opipe_endpoint *), ALIGN);
  opipe_free(world->host, world, sizeof *world, ALIGN);
}

static void abort_world(opipe_world *world, uint32_t rank, const opipe_error *why) {
  pthread_mutex_lock(&world->lock);
  if (!world->aborted) {
    world->aborted = true;
    world->abort_rank = rank;
    if (why != NULL)
      world->why = *why;
    world->why.message[sizeof world->why.message - 1] = '\0';
  }
  for (uint32_t r = 0; r < world->n_ranks; ++r)
    emutrans_ring_locked(world, r);
  pthread_mutex_unlock(&world->lock);
}

/* ---- endpoints ---- */

static opipe_status endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                  opipe_endpoint **out_endpoint, opipe_error *err) {
  pthread_condattr_t attributes;
  opipe_status status = opipe_endpoint_check(world->n_ranks, params, err);
  if (status < 0)
    return status;
  if (world->endpoints[params->rank] != NULL) {
    return opipe_fail(err, OPIPE_E_STATE, "endpoint_open: rank %u has an endpoint already",
                      params->rank);
  }
  opipe_endpoint *e = opipe_zeroed(world->host, "an endpoint", sizeof *e, ALIGN, err);
  if (e == NULL)
    return OPIPE_E_NOMEM;
  e->world = world;
  e->backend = params->backend;
  e->queue = params->queue;
  e->rank = params->rank;
  e->next_ns = UINT64_MAX;
  bool made = pthread_condattr_init(&attributes) == 0;
  if (made) {
    made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(&e->cond, &attributes) == 0;
    (void)pthread_condattr_destroy(&attributes);
  }
  if (!made) {
    opipe_free(world->host, e, sizeof *e, ALIGN);
    return opipe_fail(err, OPIPE_E_NOMEM, "an endpoint: no signal could be made");
  }
  status = emutrans_lane_open(e, params, err);
  if (status < 0) {
    emutrans_lane_close(e);
    (void)pthread_cond_destroy(&e->cond);
    opipe_free(world->host, e, sizeof *e, ALIGN);
    return status;
  }
  pthread_mutex_lock(&world->lock);
  world->endpoints[e->rank] = e;
  pthread_mutex_unlock(&world->lock);
  *out_endpoint = e;
  return OPIPE_OK;
}

static void endpoint_close(opipe_endpoint *e) {
  if (e == NULL)
    return;
  opipe_world *world = e->world;
  pthread_mutex_lock(&world->lock);
  world->endpoints[e->rank] = NULL;
  pthread_mutex_unlock(&world->lock);
  emutrans_lane_close(e);
  (void)pthread_cond_destroy(&e->cond);
  opipe_free(world->host, e, sizeof *e, ALIGN);
}

uint64_t emutrans_opened(opipe_endpoint *e) {
  e->ready_ns = emutrans_now() + e->world->options.setup_ns;
  return ++e->n_opened;
}

opipe_status emutrans_usable(const opipe_endpoint *e, uint64_t n_opened, const char *what,
                             opipe_error *err) {
  if (e->world->options.setup_ns == 0 || n_opened <= e->n_ready)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_STATE,
                    "%s: endpoint_ready of rank %u has not answered OK since this was opened", what,
                    e->rank);
}

static bool is_there(const void *world, uint32_t rank) {
  return ((const opipe_world *)world)->endpoints[rank] != NULL;
}

static opipe_status endpoint_ready(opipe_endpoint *e, opipe_error *err) {
  pthread_mutex_lock(&e->world->lock);
  opipe_status status = emutrans_check(e->world, err);
  if (status == OPIPE_OK)
    status = opipe_wires_within(&e->world->wires, e->rank, "emulated", is_there, e->world, err);
  if (status == OPIPE_OK && e->n_ready != e->n_opened && emutrans_now() < e->ready_ns)
    status = OPIPE_PENDING;
  if (status == OPIPE_OK)
    e->n_ready = e->n_opened;
  pthread_mutex_unlock(&e->world->lock);
  return status;
}

static opipe_status memory_register(opipe_endpoint *e, opipe_buffer *buffer, uint64_t n_bytes,
                                    opipe_memory **out_memory, opipe_error *err) {
  (void)buffer, (void)n_bytes;
  opipe_memory *memory =
      opipe_zeroed(e->world->host, "registered memory", sizeof *memory, ALIGN, err);
  if (memory == NULL)
    return OPIPE_E_NOMEM;
  memory->world = e->world;
  *out_memory = memory;
  return OPIPE_OK;
}

static void memory_drop(opipe_memory *memory) {
  if (memory != NULL)
    opipe_free(memory->world->host, memory, sizeof *memory, ALIGN);
}

/* ---- doorbells ---- */

static uint32_t doorbell(opipe_endpoint *e) {
  pthread_mutex_lock(&e->world->lock);
  const uint32_t count = e->count;
  pthread_mutex_unlock(&e->world->lock);
  return count;
}

static void ring(opipe_endpoint *e) {
  pthread_mutex_lock(&e->world->lock);
  emutrans_ring_locked(e->world, e->rank);
  pthread_mutex_unlock(&e->world->lock);
}

/* Besides rings, the arrival of a message that was tested in vain ends the wait. */
static opipe_status wait(opipe_endpoint *e, uint32_t seen, uint64_t timeout_ns, opipe_error *err) {
  opipe_world *world = e->world;
  const uint64_t start = emutrans_now();
  const uint64_t until = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
  pthread_mutex_lock(&world->lock);
  opipe_status status = emutrans_check(world, err);
  if (status == OPIPE_OK && !e->noting)
    status = emutrans_clock_move(e, err);
  uint64_t now = start;
  while (status >= 0 && e->count == seen && !world->aborted && !e->noting && now < until &&
         now < e->next_ns) {
    const uint64_t end = e->next_ns < until ? e->next_ns : until;
    const struct timespec t = {.tv_sec = (time_t)(end / UINT64_C(1000000000)),
                               .tv_nsec = (long)(end % UINT64_C(1000000000))};
    if (end == UINT64_MAX)
      (void)pthread_cond_wait(&e->cond, &world->lock);
    else
      (void)pthread_cond_timedwait(&e->cond, &world->lock, &t);
    now = emutrans_now();
  }
  if (status >= 0)
    status = emutrans_check(world, err);
  if (status == OPIPE_OK)
    status = emutrans_not_noting(e, "wait", err);
  const bool moved = e->count != seen || now >= e->next_ns;
  if (now >= e->next_ns)
    e->next_ns = UINT64_MAX;
  pthread_mutex_unlock(&world->lock);
  if (status == OPIPE_OK && !moved) {
    status = opipe_fail(err, OPIPE_E_TIMEOUT, "rank %u: nothing happened for %llu ns", e->rank,
                        (unsigned long long)timeout_ns);
  }
  return status;
}

/* A message on its way arrives without a ring: the rank is to look again at once. */
static void notify(opipe_endpoint *e, uint32_t seen, void (*fn)(void *ctx), void *ctx) {
  opipe_world *world = e->world;
  pthread_mutex_lock(&world->lock);
  const bool now = e->count != seen || e->next_ns != UINT64_MAX || world->aborted;
  e->next_ns = UINT64_MAX;
  e->notify = now ? NULL : fn;
  e->notify_ctx = ctx;
  if (now && fn != NULL)
    fn(ctx);
  pthread_mutex_unlock(&world->lock);
}

/* ---- the plugin ---- */

static const opipe_transport transport_table = {.struct_size = (uint32_t)sizeof(opipe_transport),
                                                .info = info,
                                                .world_info = world_info,
                                                .world_open = world_open,
                                                .world_close = world_close,
                                                .endpoint_open = endpoint_open,
                                                .endpoint_close = endpoint_close,
                                                .stream_open = emutrans_stream_open,
                                                .stream_close = emutrans_stream_close,
                                                .memory_register = memory_register,
                                                .memory_drop = memory_drop,
                                                .reserve = emutrans_reserve,
                                                .send = emutrans_send,
                                                .recv = emutrans_recv,
                                                .test = emutrans_test,
                                                .doorbell = doorbell,
                                                .ring = ring,
                                                .wait = wait,
                                                .group_open = emutrans_group_open,
                                                .group_close = emutrans_group_close,
                                                .all_reduce = emutrans_all_reduce,
                                                .group_test = emutrans_group_test,
                                                .abort = abort_world,
                                                .endpoint_ready = endpoint_ready,
                                                .notify = notify,
                                                .batch_begin = emutrans_batch_begin,
                                                .batch_end = emutrans_batch_end,
                                                .collective_open = emutrans_collective_open,
                                                .collective_close = emutrans_collective_close,
                                                .collect = emutrans_collect,
                                                .collect_test = emutrans_collect_test,
                                                .recv_after = emutrans_recv_after};

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  opipe_instance *self = opipe_zeroed(host, "transport 'emulated'", sizeof *self, ALIGN, err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  if (self != NULL)
    opipe_free(self->host, self, sizeof *self, ALIGN);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &transport_table : NULL;
}

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
    "emulated",
    "1.0",
    "Apache-2.0",
    "messages in modelled time, with stalls and losses by rule: for tests",
    open_plugin,
    close_plugin,
    get_interface,
};
