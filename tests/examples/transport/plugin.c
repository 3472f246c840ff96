/* SPDX-License-Identifier: Apache-2.0 */
/* A whole transport between the processes of one machine in under 300 lines: id "example".
 *
 * Built against the installed headers alone:
 *   cc -std=c11 -shared -fPIC -fvisibility=hidden -I<prefix>/include plugin.c
 *      -o opipe-transport-example.so
 * opipe/processes.h gives every rank a file in memory, which the others find through the world's
 * board and map: with a doorbell, and an inlet for each stream that the rank receives. It sees when
 * a process has ended. The rest is below: a sender copies messages into cells of the inlet, the
 * receiver copies them out. Limits, for shortness: peers are trusted, and nothing is reduced, so it
 * carries inference, and training on one rank. transport-shm has the rest.
 */
#define _GNU_SOURCE
#include <opipe/processes.h>
#include <stdalign.h>
#include <stdatomic.h>

enum { RANKS = 64, DEPTH = 64, LINE = 128 };

/* In the receiver's file; message q uses cell q % depth. */
typedef struct cell {
  alignas(LINE) _Atomic uint64_t posted; /* q + 1 once q may be sent */
  uint64_t room;
  alignas(LINE) _Atomic uint64_t sent; /* q + 1 once q is there */
  uint64_t n_bytes;
} cell;

static const opipe_transport table;
OPIPE_TRANSPORT_PLUGIN("example", "1.0", "Apache-2.0",
                       "ranks are processes of one machine that copy through shared files", table);

struct opipe_world {
  const opipe_host *host;
  const opipe_board *board; /* NULL: all ranks are here */
  uint32_t n_ranks;
  opipe_shared_file files[RANKS];
};

struct opipe_endpoint {
  opipe_world *world;
  opipe_shared_file *file; /* the rank's */
  opipe_endpoint_params params;
  opipe_stream *streams;
  bool unready; /* an event of a device is awaited: nobody rings for it */
};

struct opipe_stream {
  opipe_stream *next;
  opipe_endpoint *endpoint;
  opipe_stream_params params;
  uint32_t side; /* 0: source, 1: destination */
  opipe_inlet *inlet;
  struct { /* the message received in a cell */
    opipe_region region;
    opipe_event *done;
    uint64_t ended; /* q + 1 */
  } receives[DEPTH];
};

/* ---- doorbells and failure ---- */

static void ring(opipe_endpoint *e) {
  opipe_shared_ring(e->file);
}

static uint32_t doorbell(opipe_endpoint *e) {
  return opipe_shared_bell(e->file);
}

static void abort_world(opipe_world *w, uint32_t rank, const opipe_error *why) {
  opipe_shared_fail(w->files, w->n_ranks, rank, why);
}

static opipe_status wait_(opipe_endpoint *e, uint32_t seen, uint64_t timeout_ns, opipe_error *err) {
  return opipe_shared_wait(e->world->files, e->world->n_ranks, e->params.rank, seen, timeout_ns,
                           &e->unready, err);
}

/* ---- worlds and endpoints ---- */

static opipe_status info(opipe_instance *self, opipe_transport_info *io_info, opipe_error *err) {
  static const opipe_transport_info full = {
      0, OPIPE_RULE_TAG, OPIPE_THREADS_PER_ENDPOINT, 0, 1u << OPIPE_FENCE_NONE, RANKS, 5000, 4e9};
  (void)self;
  return opipe_transport_tell(io_info, &full, err);
}

static opipe_status world_open(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  const opipe_status status = opipe_world_check_plain(params, RANKS, err);
  if (status < 0)
    return status;
  opipe_world *w = opipe_zeroed(self->host, "a world", sizeof *w, LINE, err);
  if (w == NULL)
    return OPIPE_E_NOMEM;
  w->host = self->host;
  w->board = OPIPE_HAS(params, opipe_world_params, board) ? params->board : NULL;
  w->n_ranks = params->n_ranks;
  *out_world = w;
  return OPIPE_OK;
}

static void world_close(opipe_world *w) {
  for (uint32_t r = 0; w != NULL && r < w->n_ranks; ++r)
    opipe_shared_close(&w->files[r]);
  opipe_free(w == NULL ? NULL : w->host, w, sizeof *w, LINE);
}

static opipe_status endpoint_open(opipe_world *w, const opipe_endpoint_params *params,
                                  opipe_endpoint **out_endpoint, opipe_error *err) {
  opipe_status status = opipe_endpoint_check(w->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_endpoint *e = opipe_zeroed(w->host, "an endpoint", sizeof *e, LINE, err);
  if (e == NULL)
    return OPIPE_E_NOMEM;
  *e = (opipe_endpoint){.world = w, .file = &w->files[params->rank], .params = *params};
  status = opipe_shared_open(e->file, w->board, params->rank, err);
  if (status < 0)
    opipe_free(w->host, e, sizeof *e, LINE);
  else
    *out_endpoint = e;
  return status;
}

static void endpoint_close(opipe_endpoint *e) {
  if (e == NULL)
    return;
  opipe_shared_leave(e->file);
  opipe_free(e->world->host, e, sizeof *e, LINE);
}

/* ---- streams ---- */

static opipe_status stream_open(opipe_endpoint *e, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err) {
  opipe_status status = opipe_stream_check(e->params.rank, e->world->n_ranks, params, err);
  if (status < 0)
    return status;
  if (params->src_rank == params->dst_rank || params->depth > DEPTH) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "a stream of ranks %u -> %u of depth %u, at most %d", params->src_rank,
                      params->dst_rank, params->depth, DEPTH);
  }
  opipe_stream *s = opipe_zeroed(e->world->host, "a stream", sizeof *s, LINE, err);
  if (s == NULL)
    return OPIPE_E_NOMEM;
  *s = (opipe_stream){.next = e->streams, .endpoint = e, .params = *params};
  s->side = params->dst_rank == e->params.rank;
  const uint64_t n_bytes = params->depth * (sizeof(cell) + params->n_bytes);
  if (s->side == 1)
    status = opipe_inlet_make(e->file, params, n_bytes, &s->inlet, err);
  if (status < 0) {
    opipe_free(e->world->host, s, sizeof *s, LINE);
    return status;
  }
  e->streams = s;
  *out_stream = s;
  return OPIPE_OK;
}

static void stream_close(opipe_stream *s) {
  if (s == NULL)
    return;
  opipe_stream **at = &s->endpoint->streams;
  while (*at != s)
    at = &(*at)->next;
  *at = s->next;
  opipe_inlet_part(s->inlet, s->side);
  opipe_free(s->endpoint->world->host, s, sizeof *s, LINE);
}

/* Every file and every stream is looked for each time: none waits for another. */
static opipe_status endpoint_ready(opipe_endpoint *e, opipe_error *err) {
  opipe_world *w = e->world;
  opipe_status status = opipe_shared_check(e->file, err);
  bool all = true;
  for (uint32_t r = 0; r < w->n_ranks && status >= 0; ++r) {
    status = opipe_shared_find(&w->files[r], w->board, r, err);
    all = all && status == OPIPE_OK;
  }
  for (opipe_stream *s = e->streams; s != NULL && status >= 0; s = s->next) {
    status = opipe_inlet_meet(w->files, &s->params, &s->inlet, err);
    all = all && status == OPIPE_OK;
  }
  return status < 0 ? status : all ? OPIPE_OK : OPIPE_PENDING;
}

/* ---- messages ---- */

static cell *cells_of(const opipe_stream *s) {
  return opipe_inlet_memory(&s->endpoint->world->files[s->params.dst_rank], s->inlet);
}

/* Copies message q between a region and the file, then records `done`. */
static opipe_status copy(const opipe_stream *s, uint64_t q, const opipe_region *region,
                         uint64_t n_bytes, opipe_event *done, opipe_error *err) {
  const opipe_endpoint_params *p = &s->endpoint->params;
  char *there = (char *)(cells_of(s) + s->params.depth) + q % s->params.depth * s->params.n_bytes;
  void *here = NULL;
  const opipe_status status = opipe_endpoint_address(p->rank, p->backend, region, &here, err);
  if (status < 0)
    return status;
  if (n_bytes != 0)
    memcpy(s->side == 0 ? there : here, s->side == 0 ? here : there, n_bytes);
  return opipe_endpoint_record(p->rank, p->backend, p->queue, done, err);
}

static opipe_status reserve(opipe_stream *s, uint64_t q, opipe_error *err) {
  const opipe_status status = opipe_shared_check(s->endpoint->file, err);
  if (status < 0)
    return status;
  return atomic_load(&cells_of(s)[q % s->params.depth].posted) == q + 1 ? OPIPE_OK : OPIPE_PENDING;
}

static opipe_status send_(opipe_stream *s, uint64_t q, const opipe_region *region,
                          opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  opipe_status status = reserve(s, q, err);
  if (status == OPIPE_OK && ready != NULL) {
    status = e->params.backend->event_poll(ready, err);
    e->unready = e->unready || status == OPIPE_PENDING;
  }
  if (status != OPIPE_OK)
    return status;
  cell *c = &cells_of(s)[q % s->params.depth];
  if (region->n_bytes > c->room) {
    return opipe_fail(err, OPIPE_E_INVALID, "message %llu has %llu bytes, there is room for %llu",
                      (unsigned long long)q, (unsigned long long)region->n_bytes,
                      (unsigned long long)c->room);
  }
  status = copy(s, q, region, region->n_bytes, done, err);
  if (status < 0)
    return status;
  c->n_bytes = region->n_bytes;
  atomic_store(&c->sent, q + 1);
  opipe_shared_ring(&e->world->files[s->params.dst_rank]);
  return OPIPE_OK;
}

/* OK once what is awaited in the cell of message q has arrived, or nothing is. */
static opipe_status arrive(opipe_stream *s, uint64_t q, opipe_error *err) {
  const uint64_t i = q % s->params.depth;
  const cell *c = &cells_of(s)[i];
  if (s->receives[i].ended == c->posted)
    return OPIPE_OK;
  if (atomic_load(&c->sent) != c->posted)
    return OPIPE_PENDING;
  s->receives[i].ended = c->posted;
  return copy(s, q, &s->receives[i].region, c->n_bytes, s->receives[i].done, err);
}

static opipe_status recv_(opipe_stream *s, uint64_t q, const opipe_region *region,
                          opipe_event *done, opipe_error *err) {
  const uint64_t i = q % s->params.depth;
  opipe_status status = opipe_shared_check(s->endpoint->file, err);
  if (status == OPIPE_OK)
    status = arrive(s, q, err);
  if (status != OPIPE_OK)
    return status;
  s->receives[i].region = *region;
  s->receives[i].done = done;
  cells_of(s)[i].room = region->n_bytes < s->params.n_bytes ? region->n_bytes : s->params.n_bytes;
  atomic_store(&cells_of(s)[i].posted, q + 1);
  opipe_shared_ring(&s->endpoint->world->files[s->params.src_rank]);
  return OPIPE_OK;
}

static opipe_status test(opipe_stream *s, uint64_t q, opipe_error *err) {
  const uint64_t i = q % s->params.depth;
  const opipe_status status = opipe_shared_check(s->endpoint->file, err);
  if (status < 0 || s->receives[i].ended > q)
    return status;
  if (s->side == 0)
    return atomic_load(&cells_of(s)[i].sent) > q ? OPIPE_OK : OPIPE_PENDING;
  return cells_of(s)[i].posted > q ? arrive(s, q, err) : OPIPE_PENDING;
}

static const opipe_transport table = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, memory_free),
    .info = info,
    .world_open = world_open,
    .world_close = world_close,
    .endpoint_open = endpoint_open,
    .endpoint_ready = endpoint_ready,
    .endpoint_close = endpoint_close,
    .memory_register = opipe_any_memory,
    .memory_drop = opipe_drop_nothing,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .reserve = reserve,
    .send = send_,
    .recv = recv_,
    .test = test,
    .doorbell = doorbell,
    .ring = ring,
    .wait = wait_,
    .abort = abort_world};
