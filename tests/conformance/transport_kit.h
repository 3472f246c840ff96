/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks of transports share: a world of ranks in a ring, each a thread with a device of
 * host memory made of opipe/helpers.h.
 */
#ifndef TRANSPORT_KIT_H
#define TRANSPORT_KIT_H

#define OPIPE_HELPERS_HOST_DEVICE
#include <opipe/helpers.h>
#include <opipe/transport.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "transport_made.h"

enum { RANKS = 3, MESSAGES = 200, DEPTH = 2, ELEMS = 256 };
static const uint64_t DEADLINE_NS = UINT64_C(20000000000);

typedef struct subject {
  const opipe_transport *t;
  opipe_instance *self;
  opipe_transport_info info;
  uint32_t rule; /* with the options */
  const char *options;
} subject;

/* One rank: its device, its end of the world, its two streams around the ring. */
typedef struct rank {
  const subject *s;
  uint32_t index;
  opipe_device *device;
  opipe_endpoint *endpoint;
  opipe_stream *in, *out;
  opipe_buffer *slots; /* DEPTH receive slots, then as many to send from */
  opipe_memory *memory;
  struct rank *next; /* who receives what this rank sends */
  opipe_error err;
  uint32_t n_good;
  uint32_t n_pending, n_open; /* of batches */
  uint32_t seen;              /* doorbell before the threads started */
  opipe_status status;
} rank;

/* The backend that endpoints are given: memory, queues and events only. */
static const opipe_backend memory_only = {(uint32_t)OPIPE_END(opipe_backend, run),
                                          0,
                                          NULL,
                                          NULL,
                                          NULL,
                                          OPIPE_HOST_MEMORY_SLOTS,
                                          NULL,
                                          NULL,
                                          NULL,
                                          NULL,
                                          NULL,
                                          OPIPE_HOST_PARAMS_SLOTS,
                                          NULL,
                                          NULL,
                                          NULL};

static opipe_region slot_of(const rank *r, uint64_t sequence) {
  const opipe_region region = {r->slots, (sequence % DEPTH) * ELEMS * sizeof(float),
                               ELEMS * sizeof(float)};
  return region;
}

/* Where rank r writes message `sequence`: the receiver's slot when the transport is direct, else
 * its own. */
static opipe_region source_of(const rank *r, uint64_t sequence) {
  if ((r->s->info.flags & OPIPE_TRANSPORT_DIRECT) != 0)
    return slot_of(r->next, sequence);
  const opipe_region region = {r->slots, (DEPTH + sequence % DEPTH) * ELEMS * sizeof(float),
                               ELEMS * sizeof(float)};
  return region;
}

static void fill(const opipe_region *region, uint32_t from, uint64_t sequence) {
  float *data = (float *)opipe_host_at(region);
  for (uint32_t i = 0; i < ELEMS; ++i)
    data[i] = (float)(from * 1000000 + sequence * 100) + (float)i * 0.125f;
}

static bool holds(const opipe_region *region, uint32_t from, uint64_t sequence) {
  const float *data = (const float *)opipe_host_at(region);
  for (uint32_t i = 0; i < ELEMS; ++i) {
    if (data[i] != (float)(from * 1000000 + sequence * 100) + (float)i * 0.125f)
      return false;
  }
  return true;
}

/* Repeats a call that may be pending, waiting for the doorbell between. */
#define UNTIL(r, call)                                                             \
  do {                                                                             \
    for (;;) {                                                                     \
      const uint32_t seen_ = (r)->s->t->doorbell((r)->endpoint);                   \
      (r)->status = (call);                                                        \
      if ((r)->status != OPIPE_PENDING)                                            \
        break;                                                                     \
      (r)->status = (r)->s->t->wait((r)->endpoint, seen_, DEADLINE_NS, &(r)->err); \
      if ((r)->status < 0)                                                         \
        break;                                                                     \
    }                                                                              \
    if ((r)->status < 0)                                                           \
      return (r)->status;                                                          \
  } while (0)

static opipe_stream_params stream_params(uint32_t src, uint32_t dst, uint32_t index) {
  opipe_stream_params p;
  memset(&p, 0, sizeof(p));
  p.struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes);
  p.kind = OPIPE_STREAM_FORWARD;
  p.src_rank = p.src_stage = src;
  p.dst_rank = p.dst_stage = dst;
  p.index = index;
  p.depth = DEPTH;
  p.n_bytes = ELEMS * sizeof(float);
  return p;
}

/* ---- a world of RANKS ranks in a ring ---- */

typedef struct ring {
  opipe_world *world;
  rank ranks[RANKS];
} ring;

static bool open_rank(ring *g, const subject *s, uint32_t i) {
  rank *r = &g->ranks[i];
  const opipe_device_params device = {
      (uint32_t)OPIPE_END(opipe_device_params, options), 0, 0, 1, 0, NULL};
  r->s = s;
  r->index = i;
  r->next = &g->ranks[(i + 1) % RANKS];
  r->err.struct_size = sizeof(r->err);
  if (!conf_ok(opipe_host_device_open(&conf_host, &device, &r->device, &r->err), &r->err, "device"))
    return false;
  if (!conf_ok(opipe_host_buffer_alloc(r->device, 2 * DEPTH * ELEMS * sizeof(float),
                                       OPIPE_BUFFER_BOUNDARY, &r->slots, &r->err),
               &r->err, "buffer"))
    return false;
  const opipe_endpoint_params endpoint = {(uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
                                          i,
                                          &memory_only,
                                          r->device,
                                          NULL,
                                          NULL,
                                          "host-memory",
                                          20,
                                          0};
  if (!conf_ok(s->t->endpoint_open(g->world, &endpoint, &r->endpoint, &r->err), &r->err,
               "endpoint_open"))
    return false;
  return conf_ok(s->t->memory_register(r->endpoint, r->slots, 2 * DEPTH * ELEMS * sizeof(float),
                                       &r->memory, &r->err),
                 &r->err, "memory_register");
}

/* What was opened on the endpoint can be used from now on; every rank asks for itself. */
static opipe_status make_ready(rank *r) {
  const opipe_transport *t = r->s->t;
  opipe_status status = OPIPE_PENDING;
  if (!OPIPE_HAS(t, opipe_transport, endpoint_ready) || t->endpoint_ready == NULL)
    return OPIPE_OK;
  for (uint64_t spent = 0; status == OPIPE_PENDING && spent < DEADLINE_NS; spent += 50000) {
    const struct timespec again = {.tv_nsec = 50000};
    status = t->endpoint_ready(r->endpoint, &r->err);
    if (status == OPIPE_PENDING)
      (void)nanosleep(&again, NULL);
  }
  return status == OPIPE_OK ? t->endpoint_ready(r->endpoint, &r->err) : status; /* OK stays OK */
}

/* All local ends by one thread: each is asked in turn until all have answered. */
static bool make_all_ready(ring *g) {
  const opipe_transport *t = g->ranks[0].s->t;
  bool left = OPIPE_HAS(t, opipe_transport, endpoint_ready) && t->endpoint_ready != NULL;
  for (uint64_t spent = 0; left && spent < DEADLINE_NS; spent += 50000) {
    const struct timespec again = {.tv_nsec = 50000};
    left = false;
    for (uint32_t i = 0; i < RANKS; ++i) {
      rank *r = &g->ranks[i];
      const opipe_status status = t->endpoint_ready(r->endpoint, &r->err);
      if (status < 0)
        return conf_ok(status, &r->err, "endpoint_ready");
      left = left || status == OPIPE_PENDING;
    }
    if (left)
      (void)nanosleep(&again, NULL);
  }
  return conf_check(!left, "endpoint_ready of ranks in one thread never answers OK");
}

static bool open_streams(ring *g, uint32_t index) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    rank *r = &g->ranks[i], *next = r->next;
    const opipe_stream_params p = stream_params(i, next->index, index);
    if (!conf_ok(r->s->t->stream_open(r->endpoint, &p, &r->out, &r->err), &r->err,
                 "stream_open, sender"))
      return false;
    if (!conf_ok(r->s->t->stream_open(next->endpoint, &p, &next->in, &r->err), &r->err,
                 "stream_open, receiver"))
      return false;
  }
  return make_all_ready(g);
}

static bool open_ring(ring *g, const subject *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_world_params world = {(uint32_t)OPIPE_END(opipe_world_params, options), RANKS,
                                    s->options};
  memset(g, 0, sizeof(*g));
  if (!conf_ok(s->t->world_open(s->self, &world, &g->world, &err), &err, "world_open"))
    return false;
  for (uint32_t i = 0; i < RANKS; ++i) {
    if (!open_rank(g, s, i))
      return false;
  }
  return open_streams(g, 0);
}

static void close_ring(ring *g, const subject *s) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    s->t->stream_close(g->ranks[i].in);
    s->t->stream_close(g->ranks[i].out);
  }
  for (uint32_t i = 0; i < RANKS; ++i) {
    s->t->memory_drop(g->ranks[i].memory);
    s->t->endpoint_close(g->ranks[i].endpoint);
  }
  s->t->world_close(g->world);
  for (uint32_t i = 0; i < RANKS; ++i) {
    opipe_host_buffer_free(g->ranks[i].slots);
    opipe_host_device_close(g->ranks[i].device);
  }
}

static void on_every_rank(ring *g, void *(*body)(void *)) {
  pthread_t threads[RANKS];
  for (uint32_t i = 0; i < RANKS; ++i)
    conf_check(pthread_create(&threads[i], NULL, body, &g->ranks[i]) == 0, "pthread_create");
  for (uint32_t i = 0; i < RANKS; ++i)
    (void)pthread_join(threads[i], NULL);
}

#endif /* TRANSPORT_KIT_H */
