/* SPDX-License-Identifier: Apache-2.0 */
/* A transport for the tests of old minors (mocks.cmake): id "mock-grouped", ranks that are threads
 * and meet at every message, under the rule GROUPED. Its table is as long as the headers that it is
 * built with say: it knows of no batches. One lock, one signal; it carries inference, no sums.
 */
#include <errno.h>
#include <opipe/streams.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { RANKS_MOST = 8, WIRES_MOST = 256 };

typedef struct cell {
  uint64_t posted, sent; /* q + 1 of the latest */
  void *target;
  uint64_t room_bytes;
} cell;

typedef struct wire {
  opipe_stream_params params;
  cell *cells; /* [depth] */
  uint32_t sides;
} wire;

struct opipe_endpoint {
  opipe_world *world;
  const opipe_backend *backend;
  uint32_t rank, count; /* count: the doorbell */
};

struct opipe_world {
  pthread_mutex_t lock;
  pthread_cond_t moved;
  uint32_t n_ranks;
  bool aborted;
  opipe_endpoint *endpoints[RANKS_MOST];
  wire wires[WIRES_MOST];
};

struct opipe_stream {
  opipe_endpoint *endpoint;
  wire *wire;
};

struct opipe_memory {
  int unused;
};

static opipe_status info(opipe_instance *self, opipe_transport_info *io_info, opipe_error *err) {
  const opipe_transport_info full = {.rule = OPIPE_RULE_GROUPED,
                                     .thread_rule = OPIPE_THREADS_PER_ENDPOINT,
                                     .fence_kinds = 1u << OPIPE_FENCE_NONE,
                                     .max_ranks = RANKS_MOST,
                                     .latency_ns = 1000};
  (void)self;
  return opipe_transport_tell(io_info, &full, err);
}

static void *room(size_t n_bytes, opipe_error *err) {
  void *p = calloc(1, n_bytes);
  if (p == NULL)
    (void)opipe_fail(err, OPIPE_E_NOMEM, "no memory for the mock");
  return p;
}

/* ---- set-up ---- */

static opipe_status world_open(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  opipe_status status = opipe_world_check(params, err);
  (void)self;
  if (status == OPIPE_OK && (params->n_ranks > RANKS_MOST || params->options != NULL)) {
    status = opipe_fail(err, OPIPE_E_INVALID, "%u ranks, options '%s'", params->n_ranks,
                        params->options == NULL ? "" : params->options);
  }
  opipe_world *world = status == OPIPE_OK ? (opipe_world *)room(sizeof *world, err) : NULL;
  if (world == NULL)
    return status == OPIPE_OK ? OPIPE_E_NOMEM : status;
  world->n_ranks = params->n_ranks;
  (void)pthread_mutex_init(&world->lock, NULL);
  (void)pthread_cond_init(&world->moved, NULL);
  *out_world = world;
  return OPIPE_OK;
}

static void world_close(opipe_world *world) {
  for (uint32_t i = 0; world != NULL && i < WIRES_MOST; ++i)
    free(world->wires[i].cells);
  free(world);
}

static opipe_status endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                  opipe_endpoint **out_endpoint, opipe_error *err) {
  const opipe_status status = opipe_endpoint_check(world->n_ranks, params, err);
  opipe_endpoint *e = status == OPIPE_OK ? (opipe_endpoint *)room(sizeof *e, err) : NULL;
  if (e == NULL)
    return status == OPIPE_OK ? OPIPE_E_NOMEM : status;
  *e = (opipe_endpoint){.world = world, .backend = params->backend, .rank = params->rank};
  pthread_mutex_lock(&world->lock);
  world->endpoints[e->rank] = e;
  pthread_mutex_unlock(&world->lock);
  *out_endpoint = e;
  return OPIPE_OK;
}

static void endpoint_close(opipe_endpoint *e) {
  if (e == NULL)
    return;
  pthread_mutex_lock(&e->world->lock);
  e->world->endpoints[e->rank] = NULL;
  pthread_mutex_unlock(&e->world->lock);
  free(e);
}

/* The wire that a stream's ends share, or a free place. */
static wire *find_wire(opipe_world *world, const opipe_stream_params *params) {
  wire *unused = NULL;
  for (uint32_t i = 0; i < WIRES_MOST; ++i) {
    wire *w = &world->wires[i];
    if (w->sides != 0 && opipe_stream_same(&w->params, params))
      return w;
    if (w->sides == 0 && unused == NULL)
      unused = w;
  }
  return unused;
}

static opipe_status join(opipe_endpoint *e, const opipe_stream_params *params, wire **out_wire,
                         opipe_error *err) {
  wire *w = find_wire(e->world, params);
  if (w == NULL)
    return opipe_fail(err, OPIPE_E_LIMIT, "more than %d streams", WIRES_MOST);
  if (w->sides == 0) {
    free(w->cells);
    w->params = *params;
    w->cells = (cell *)room(params->depth * sizeof(cell), err);
    if (w->cells == NULL)
      return OPIPE_E_NOMEM;
  }
  w->sides |= opipe_stream_sides(params, e->rank);
  *out_wire = w;
  return OPIPE_OK;
}

static opipe_status stream_open(opipe_endpoint *e, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err) {
  opipe_stream *s = (opipe_stream *)room(sizeof *s, err);
  if (s == NULL)
    return OPIPE_E_NOMEM;
  s->endpoint = e;
  pthread_mutex_lock(&e->world->lock);
  const opipe_status status = join(e, params, &s->wire, err);
  pthread_mutex_unlock(&e->world->lock);
  if (status < 0)
    free(s);
  else
    *out_stream = s;
  return status;
}

static void stream_close(opipe_stream *s) {
  if (s == NULL)
    return;
  pthread_mutex_lock(&s->endpoint->world->lock);
  s->wire->sides &= ~opipe_stream_sides(&s->wire->params, s->endpoint->rank);
  pthread_mutex_unlock(&s->endpoint->world->lock);
  free(s);
}

static opipe_status memory_register(opipe_endpoint *e, opipe_buffer *buffer, uint64_t n_bytes,
                                    opipe_memory **out_memory, opipe_error *err) {
  (void)e, (void)buffer, (void)n_bytes;
  *out_memory = (opipe_memory *)room(sizeof **out_memory, err);
  return *out_memory == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
}

static void memory_drop(opipe_memory *memory) {
  free(memory);
}

/* ---- messages ---- */

static void ring_locked(opipe_world *world, uint32_t rank) {
  if (world->endpoints[rank] != NULL)
    ++world->endpoints[rank]->count;
  (void)pthread_cond_broadcast(&world->moved);
}

/* Takes the lock, which `leave` gives back. */
static cell *enter(opipe_stream *s, uint64_t sequence) {
  pthread_mutex_lock(&s->endpoint->world->lock);
  return &s->wire->cells[sequence % s->wire->params.depth];
}

static opipe_status leave(opipe_stream *s, opipe_status status, opipe_error *err) {
  const bool aborted = s->endpoint->world->aborted;
  pthread_mutex_unlock(&s->endpoint->world->lock);
  return aborted ? opipe_fail(err, OPIPE_E_PEER, "another rank ended the run") : status;
}

static opipe_status reserve(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  const cell *c = enter(s, sequence);
  return leave(s, c->posted == sequence + 1 ? OPIPE_OK : OPIPE_PENDING, err);
}

static opipe_status send_message(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                                 opipe_event *ready, opipe_event *done, opipe_error *err) {
  void *from = NULL;
  cell *c = enter(s, sequence);
  opipe_status status = c->posted == sequence + 1 ? OPIPE_OK : OPIPE_PENDING;
  if (status == OPIPE_OK && (ready != NULL || done != NULL || region->n_bytes > c->room_bytes)) {
    status = opipe_fail(err, OPIPE_E_INVALID, "events, or %llu bytes for %llu",
                        (unsigned long long)region->n_bytes, (unsigned long long)c->room_bytes);
  }
  if (status == OPIPE_OK)
    status = opipe_endpoint_address(s->endpoint->rank, s->endpoint->backend, region, &from, err);
  if (status == OPIPE_OK) {
    if (region->n_bytes != 0)
      memcpy(c->target, from, (size_t)region->n_bytes);
    c->sent = sequence + 1;
    ring_locked(s->endpoint->world, s->wire->params.dst_rank);
  }
  return leave(s, status, err);
}

static opipe_status recv_message(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                                 opipe_event *done, opipe_error *err) {
  cell *c = enter(s, sequence);
  const opipe_endpoint *e = s->endpoint;
  (void)done;
  opipe_status status = c->posted == c->sent ? OPIPE_OK : OPIPE_PENDING;
  if (status == OPIPE_OK)
    status = opipe_endpoint_address(e->rank, e->backend, region, &c->target, err);
  if (status == OPIPE_OK) {
    c->room_bytes = region->n_bytes;
    c->posted = sequence + 1;
    ring_locked(s->endpoint->world, s->wire->params.src_rank);
  }
  return leave(s, status, err);
}

static opipe_status test(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  const cell *c = enter(s, sequence);
  return leave(s, c->sent > sequence ? OPIPE_OK : OPIPE_PENDING, err);
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
  ring_locked(e->world, e->rank);
  pthread_mutex_unlock(&e->world->lock);
}

static opipe_status wait(opipe_endpoint *e, uint32_t seen, uint64_t timeout_ns, opipe_error *err) {
  enum { BILLION = 1000000000 };
  const uint64_t seconds = timeout_ns / BILLION;
  struct timespec until;
  int why = 0;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)(seconds > BILLION ? BILLION : seconds);
  until.tv_nsec += (long)(timeout_ns % BILLION);
  until.tv_sec += until.tv_nsec / BILLION;
  until.tv_nsec %= BILLION;
  pthread_mutex_lock(&e->world->lock);
  while (e->count == seen && !e->world->aborted && why != ETIMEDOUT)
    why = pthread_cond_timedwait(&e->world->moved, &e->world->lock, &until);
  const bool moved = e->count != seen || e->world->aborted;
  pthread_mutex_unlock(&e->world->lock);
  return moved ? OPIPE_OK : opipe_fail(err, OPIPE_E_TIMEOUT, "rank %u: nothing rang", e->rank);
}

static void abort_world(opipe_world *world, uint32_t rank, const opipe_error *why) {
  (void)rank, (void)why;
  pthread_mutex_lock(&world->lock);
  world->aborted = true;
  for (uint32_t r = 0; r < world->n_ranks; ++r)
    ring_locked(world, r);
  pthread_mutex_unlock(&world->lock);
}

static const opipe_transport table = {.struct_size = (uint32_t)sizeof(opipe_transport),
                                      .info = info,
                                      .world_open = world_open,
                                      .world_close = world_close,
                                      .endpoint_open = endpoint_open,
                                      .endpoint_close = endpoint_close,
                                      .stream_open = stream_open,
                                      .stream_close = stream_close,
                                      .memory_register = memory_register,
                                      .memory_drop = memory_drop,
                                      .reserve = reserve,
                                      .send = send_message,
                                      .recv = recv_message,
                                      .test = test,
                                      .doorbell = doorbell,
                                      .ring = ring,
                                      .wait = wait,
                                      .abort = abort_world};

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_TRANSPORT, "mock-grouped", "1.0", "Apache-2.0",
                       "ranks meet at every message", OPIPE_TRANSPORT_ID, table);
