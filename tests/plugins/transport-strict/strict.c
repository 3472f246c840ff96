/* SPDX-License-Identifier: Apache-2.0 */
/* transport-strict: the plugin's table; worlds and the places where they meet; what is wrong.
 *
 * Options of a world:
 *   rule=tag|stream   matched by number, or first in first out per stream
 *   meet=NAME         worlds of one name are one: each opens some of the ranks
 */
#include "strict.h"

#include <stdarg.h>
#include <stdio.h>

static strict_counts counts;

/* ---- memory of what worlds share: it may outlive the host of each ---- */

static void *own_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  (void)ctx;
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  const size_t unit = align < STRICT_ALIGN ? (size_t)STRICT_ALIGN : align;
  void *data = aligned_alloc(unit, (new_size + unit - 1) / unit * unit);
  if (data != NULL && ptr != NULL) {
    memcpy(data, ptr, old_size < new_size ? old_size : new_size);
    free(ptr);
  }
  return data;
}

const opipe_host strict_memory = {
    .struct_size = sizeof strict_memory, .abi_major = OPIPE_ABI_MAJOR, .realloc = own_realloc};

/* ---- refusals ---- */

void strict_who_rank(const opipe_endpoint *e, char who[STRICT_WHO]) {
  (void)snprintf(who, STRICT_WHO, "rank %u", e->rank);
}

void strict_who_stream(const opipe_stream *s, char who[STRICT_WHO]) {
  const opipe_stream_params *p = &s->wire->base.params;
  (void)snprintf(who, STRICT_WHO, "stream %u of stages %u -> %u (ranks %u -> %u), rank %u",
                 p->index, p->src_stage, p->dst_stage, p->src_rank, p->dst_rank, s->endpoint->rank);
}

void strict_who_group(const opipe_group *g, char who[STRICT_WHO]) {
  const opipe_circle *c = &g->circle->base;
  (void)snprintf(who, STRICT_WHO, "group %llu of %u members (ranks %u to %u), rank %u, member %u",
                 (unsigned long long)g->circle->id, c->n, c->ranks[0], c->ranks[c->n - 1],
                 g->endpoint->rank, g->index);
}

opipe_status strict_refuse(const char *who, const char *call, opipe_error *err, const char *fmt,
                           ...) {
  char text[320];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  atomic_fetch_add(&counts.refused, 1);
  return opipe_fail(err, OPIPE_E_INVALID, "%s: %s: %s", call, who, text);
}

void strict_end(place *p, uint32_t rank, const opipe_error *why) {
  if (atomic_load(&p->aborted) == 0) {
    p->abort_rank = rank;
    if (why != NULL)
      p->why = *why;
    p->why.message[sizeof p->why.message - 1] = '\0';
    atomic_store(&p->aborted, 1);
  }
  for (uint32_t r = 0; r < p->n_ranks; ++r) {
    strict_ring_rank(p, r);
    if (p->endpoints[r] != NULL)
      strict_prod(p->endpoints[r]);
  }
}

void strict_break(const opipe_host *host, place *p, uint32_t rank, const char *fmt, ...) {
  opipe_error why = OPIPE_ERROR_INIT;
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(why.message, sizeof why.message, fmt, args);
  va_end(args);
  why.status = OPIPE_E_INVALID;
  atomic_fetch_add(&counts.refused, 1);
  if (host->log != NULL)
    host->log(host->ctx, OPIPE_LOG_ERROR, __FILE__, __LINE__, why.message);
  if (atomic_load(&p->aborted) == 0)
    p->broken = true;
  strict_end(p, rank, &why);
}

opipe_status strict_check(const place *p, opipe_error *err) {
  if (atomic_load(&p->aborted) == 0)
    return OPIPE_OK;
  return p->broken ? opipe_fail(err, OPIPE_E_INVALID, "%s", p->why.message)
                   : opipe_fail(err, OPIPE_E_PEER, "rank %u ended the run: %s", p->abort_rank,
                                p->why.message);
}

/* ---- options ---- */

static opipe_status read_option(const char *key, const char *value, options *out,
                                opipe_error *err) {
  if (strcmp(key, "meet") == 0) {
    const size_t n = strlen(value);
    if (n == 0 || n >= sizeof out->meet) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "transport 'strict': meet=%s: a name of 1 to %d characters is needed",
                        value, STRICT_NAME - 1);
    }
    memcpy(out->meet, value, n + 1);
    return OPIPE_OK;
  }
  if (strcmp(key, "rule") != 0) {
    return opipe_fail(err, OPIPE_E_NOTFOUND, "transport 'strict' has no option '%s' (rule, meet)",
                      key);
  }
  out->rule = strcmp(value, "stream") == 0 ? OPIPE_RULE_STREAM : OPIPE_RULE_TAG;
  if (out->rule == OPIPE_RULE_STREAM || strcmp(value, "tag") == 0)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID, "transport 'strict': rule=%s: expected tag or stream",
                    value);
}

static opipe_status read_options(const char *text, options *out, opipe_error *err) {
  char key[32], value[96];
  memset(out, 0, sizeof *out);
  for (;;) {
    const int more = opipe_option_next(&text, key, sizeof key, value, sizeof value);
    if (more == 0)
      return OPIPE_OK;
    if (more < 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "transport 'strict': options cannot be understood from '%.60s' on", text);
    }
    const opipe_status status = read_option(key, value, out, err);
    if (status < 0)
      return status;
  }
}

static opipe_status world_info(opipe_instance *self, const char *text,
                               opipe_transport_info *io_info, opipe_error *err) {
  options wanted;
  (void)self;
  const opipe_status status = read_options(text, &wanted, err);
  if (status < 0)
    return status;
  const opipe_transport_info full = {.rule = wanted.rule,
                                     .thread_rule = OPIPE_THREADS_PER_ENDPOINT,
                                     .flags = OPIPE_TRANSPORT_REDUCES | OPIPE_TRANSPORT_COLLECTIVES,
                                     .fence_kinds = 1u << OPIPE_FENCE_NONE,
                                     .latency_ns = 20000,
                                     .bandwidth = 1e9};
  return opipe_transport_tell(io_info, &full, err);
}

static opipe_status info(opipe_instance *self, opipe_transport_info *io_info, opipe_error *err) {
  return world_info(self, NULL, io_info, err);
}

/* ---- places ---- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static place *registry; /* places with a name */

static void place_free(place *p) {
  const uint64_t n = p->n_ranks;
  strict_lanes_close(p);
  pthread_mutex_destroy(&p->lock);
  opipe_free(&strict_memory, p->endpoints, n * sizeof *p->endpoints, STRICT_ALIGN);
  opipe_free(&strict_memory, p->lanes, n * n * sizeof *p->lanes, STRICT_ALIGN);
  opipe_free(&strict_memory, p->orders, n * n * sizeof *p->orders, STRICT_ALIGN);
  opipe_free(&strict_memory, p, sizeof *p, STRICT_ALIGN);
}

static void describe_shared(place *p) {
  p->wires = (opipe_wires){.host = &strict_memory,
                           .n_ranks = p->n_ranks,
                           .wire_bytes = sizeof(wire),
                           .wire_align = STRICT_ALIGN,
                           .cell_bytes = sizeof(cell),
                           .cell_align = STRICT_ALIGN};
  p->circles = (opipe_circles){.host = &strict_memory,
                               .n_ranks = p->n_ranks,
                               .circle_bytes = sizeof(circle),
                               .circle_align = STRICT_ALIGN,
                               .member_bytes = sizeof(member),
                               .member_align = STRICT_ALIGN};
  p->collectives = p->circles;
}

static opipe_status place_make(const options *wanted, uint32_t n_ranks, place **out_place,
                               opipe_error *err) {
  const uint64_t n = n_ranks;
  place *p = opipe_zeroed(&strict_memory, "a world", sizeof *p, STRICT_ALIGN, err);
  if (p == NULL)
    return OPIPE_E_NOMEM;
  if (pthread_mutex_init(&p->lock, NULL) != 0) {
    opipe_free(&strict_memory, p, sizeof *p, STRICT_ALIGN);
    return opipe_fail(err, OPIPE_E_NOMEM, "a world: no lock could be made");
  }
  p->options = *wanted;
  p->n_ranks = n_ranks;
  p->endpoints =
      opipe_zeroed(&strict_memory, "a world", n * sizeof *p->endpoints, STRICT_ALIGN, err);
  p->lanes = opipe_zeroed(&strict_memory, "a world", n * n * sizeof *p->lanes, STRICT_ALIGN, err);
  p->orders = opipe_zeroed(&strict_memory, "a world", n * n * sizeof *p->orders, STRICT_ALIGN, err);
  if (p->endpoints == NULL || p->lanes == NULL || p->orders == NULL) {
    place_free(p);
    return OPIPE_E_NOMEM;
  }
  for (uint64_t i = 0; i < n * n; ++i)
    p->lanes[i] = (lane){-1, -1};
  describe_shared(p);
  *out_place = p;
  return OPIPE_OK;
}

/* A place that has ended is nobody's to come to. Registry's lock held. */
static opipe_status place_find(const options *wanted, uint32_t n_ranks, place **out_place,
                               opipe_error *err) {
  place *p = wanted->meet[0] == '\0' ? NULL : registry;
  while (p != NULL && (strcmp(p->options.meet, wanted->meet) != 0 || atomic_load(&p->aborted) != 0))
    p = p->next;
  if (p != NULL && (p->n_ranks != n_ranks || p->options.rule != wanted->rule)) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "world_open: meet=%s: %u ranks under rule %u, its peer has %u under rule %u",
                      wanted->meet, n_ranks, wanted->rule, p->n_ranks, p->options.rule);
  }
  if (p == NULL) {
    const opipe_status status = place_make(wanted, n_ranks, &p, err);
    if (status < 0)
      return status;
    if (wanted->meet[0] != '\0') {
      p->next = registry;
      registry = p;
    }
  }
  ++p->n_worlds;
  *out_place = p;
  return OPIPE_OK;
}

static void place_leave(place *p) {
  pthread_mutex_lock(&registry_lock);
  const bool last = --p->n_worlds == 0;
  place **at = &registry;
  while (last && *at != NULL && *at != p)
    at = &(*at)->next;
  if (last && *at != NULL)
    *at = p->next;
  pthread_mutex_unlock(&registry_lock);
  if (last)
    place_free(p);
}

/* ---- worlds ---- */

static opipe_status world_open(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  options wanted;
  opipe_status status = opipe_world_check(params, err);
  if (status == OPIPE_OK)
    status = read_options(params->options, &wanted, err);
  if (status < 0)
    return status;
  opipe_world *world = opipe_zeroed(self->host, "a world", sizeof *world, STRICT_ALIGN, err);
  if (world == NULL)
    return OPIPE_E_NOMEM;
  world->host = self->host;
  pthread_mutex_lock(&registry_lock);
  status = place_find(&wanted, params->n_ranks, &world->place, err);
  pthread_mutex_unlock(&registry_lock);
  if (status < 0) {
    opipe_free(self->host, world, sizeof *world, STRICT_ALIGN);
    return status;
  }
  *out_world = world;
  return OPIPE_OK;
}

static void world_free(opipe_world *world) {
  place_leave(world->place);
  opipe_free(world->host, world, sizeof *world, STRICT_ALIGN);
}

static void world_close(opipe_world *world) {
  if (world == NULL)
    return;
  place *p = world->place;
  pthread_mutex_lock(&p->lock);
  const bool early = world->n_endpoints != 0;
  if (early) {
    world->closed = true;
    strict_break(world->host, p, 0, "world_close: %u of its %u ranks still have endpoints",
                 world->n_endpoints, p->n_ranks);
  }
  pthread_mutex_unlock(&p->lock);
  if (!early)
    world_free(world);
}

void strict_world_leave(opipe_world *world) {
  place *p = world->place;
  pthread_mutex_lock(&p->lock);
  const bool last = --world->n_endpoints == 0 && world->closed;
  pthread_mutex_unlock(&p->lock);
  if (last)
    world_free(world);
}

static void abort_world(opipe_world *world, uint32_t rank, const opipe_error *why) {
  pthread_mutex_lock(&world->place->lock);
  strict_end(world->place, rank, why);
  pthread_mutex_unlock(&world->place->lock);
}

/* ---- the plugin ---- */

static const opipe_transport transport_table = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, recv_after),
    .info = info,
    .world_info = world_info,
    .world_open = world_open,
    .world_close = world_close,
    .endpoint_open = strict_endpoint_open,
    .endpoint_close = strict_endpoint_close,
    .endpoint_ready = strict_endpoint_ready,
    .stream_open = strict_stream_open,
    .stream_close = strict_stream_close,
    .memory_register = strict_memory_register,
    .memory_drop = strict_memory_drop,
    .reserve = strict_reserve,
    .send = strict_send,
    .recv = strict_recv,
    .test = strict_test,
    .doorbell = strict_doorbell,
    .ring = strict_ring,
    .wait = strict_wait,
    .notify = strict_notify,
    .group_open = strict_group_open,
    .group_close = strict_group_close,
    .all_reduce = strict_all_reduce,
    .group_test = strict_group_test,
    .collective_open = strict_collective_open,
    .collective_close = strict_collective_close,
    .collect = strict_collect,
    .collect_test = strict_collect_test,
    .recv_after = strict_recv_after,
    .abort = abort_world};

static opipe_status plugin_open(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  opipe_instance *self = opipe_zeroed(host, "transport 'strict'", sizeof *self, STRICT_ALIGN, err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
}

static void plugin_close(opipe_instance *self) {
  if (self != NULL)
    opipe_free(self->host, self, sizeof *self, STRICT_ALIGN);
}

strict_counts *strict_counted(void) {
  return &counts;
}

static const void *plugin_get_interface(opipe_instance *self, const char *id) {
  (void)self;
  if (strcmp(id, STRICT_COUNTS_ID) == 0)
    return &counts;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &transport_table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
    "strict",
    "1.0",
    "Apache-2.0",
    "tests: ranks share no address, and what breaks a rule of transport.h is refused",
    plugin_open,
    plugin_close,
    plugin_get_interface,
};
