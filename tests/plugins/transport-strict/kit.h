/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of transport-strict: ranks with registered buffers on the toy's backend, with
 * events that complete when told. */
#ifndef TESTS_STRICT_KIT_H
#define TESTS_STRICT_KIT_H

#include <stdio.h>
#include <time.h>

#include "tests/plugins/transport-strict/counts.h"
#include "tests/runtime/toy.h"

enum { RANKS = 4, BYTES = 256, SLOTS = 8 };
static const uint64_t DEADLINE_NS = UINT64_C(20000000000);

/* Stands for an event of the backend. */
typedef struct told {
  _Atomic int state; /* OPIPE_OK, OPIPE_PENDING or an error */
  _Atomic uint32_t n_recorded;
} told;

typedef struct bench {
  toy t;
  const opipe_transport *table;
  opipe_instance *self, *other; /* other: the second world's, of another host */
  opipe_host other_host;
  opipe_world *worlds[2]; /* the second: NULL, or one that meets the first; ranks 2 and 3 */
  opipe_device *device;
  opipe_queue *queue;
  opipe_endpoint *ends[RANKS];
  opipe_buffer *buffers[RANKS]; /* SLOTS * BYTES, registered */
  opipe_memory *memories[RANKS];
  opipe_backend backend;
  opipe_error err;
} bench;

static inline opipe_event *event_of(told *t) {
  return (opipe_event *)(void *)t;
}

static inline opipe_status told_poll(opipe_event *event, opipe_error *err) {
  told *t = (told *)(void *)event;
  const int state = atomic_load(&t->state);
  return state >= 0 ? state : opi_fail(err, state, "the event was told to fail");
}

static inline opipe_status told_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  told *t = (told *)(void *)event;
  (void)queue, (void)err;
  atomic_fetch_add(&t->n_recorded, 1);
  return OPIPE_OK;
}

static inline const strict_counts *counted(void) {
  return OPIPE_PLUGIN_STATIC(transport_strict).get_interface(NULL, STRICT_COUNTS_ID);
}

static inline opipe_status open_world(bench *b, opipe_instance *self, const char *options,
                                      opipe_world **out_world) {
  const opipe_world_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_world_params, options),
      .n_ranks = RANKS,
      .options = options};
  return b->table->world_open(self, &params, out_world, &b->err);
}

static inline void open_rank(bench *b, uint32_t r) {
  const opipe_endpoint_params end = {
      .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
      .rank = r,
      .backend = &b->backend,
      .device = b->device,
      .queue = b->queue};
  opipe_world *world = b->worlds[b->worlds[1] != NULL && r >= RANKS / 2];
  OPI_ASSERT_OK_FATAL(b->table->endpoint_open(world, &end, &b->ends[r], &b->err), &b->err);
  OPI_ASSERT_OK_FATAL(toy_backend.buffer_alloc(b->device, (uint64_t)SLOTS * BYTES,
                                               OPIPE_BUFFER_BOUNDARY, &b->buffers[r], &b->err),
                      &b->err);
  OPI_ASSERT_OK_FATAL(b->table->memory_register(b->ends[r], b->buffers[r], (uint64_t)SLOTS * BYTES,
                                                &b->memories[r], &b->err),
                      &b->err);
}

/* meet: options of two worlds with two ranks each; else one world. */
static inline void setup(bench *b, const char *options, bool meet) {
  static const toy_plan plan = {.n_nodes = 4,
                                .n_stages = 1,
                                .n_ranks = 1,
                                .n_microbatches = 1,
                                .depth = 1,
                                .rows = 1,
                                .seq = 1};
  static const opipe_device_params open = {.struct_size =
                                               (uint32_t)OPIPE_END(opipe_device_params, options)};
  memset(b, 0, sizeof *b);
  b->err.struct_size = (uint32_t)sizeof b->err;
  b->backend = toy_backend;
  b->backend.event_poll = told_poll;
  b->backend.event_record = told_record;
  OPI_ASSERT_OK_FATAL(toy_make(&b->t, &plan, &OPIPE_PLUGIN_STATIC(transport_strict), &b->err),
                      &b->err);
  b->table = b->t.env.transport.table;
  b->self = b->t.transport_self;
  OPI_ASSERT_OK_FATAL(toy_backend.device_open(b->t.backends[0].self, &open, &b->device, &b->err),
                      &b->err);
  OPI_ASSERT_OK_FATAL(toy_backend.queue_open(b->device, &b->queue, &b->err), &b->err);
  b->other_host = b->t.host;
  OPI_ASSERT_OK_FATAL(
      OPIPE_PLUGIN_STATIC(transport_strict).open(&b->other_host, &b->other, &b->err), &b->err);
  OPI_ASSERT_OK_FATAL(open_world(b, b->self, options, &b->worlds[0]), &b->err);
  if (meet)
    OPI_ASSERT_OK_FATAL(open_world(b, b->other, options, &b->worlds[1]), &b->err);
  for (uint32_t r = 0; r < RANKS; ++r)
    open_rank(b, r);
}

/* Objects that a test has closed itself are NULL. */
static inline void teardown(bench *b) {
  for (uint32_t r = 0; r < RANKS; ++r) {
    b->table->memory_drop(b->memories[r]);
    b->table->endpoint_close(b->ends[r]);
    toy_backend.buffer_free(b->buffers[r]);
  }
  b->table->world_close(b->worlds[0]);
  b->table->world_close(b->worlds[1]);
  OPIPE_PLUGIN_STATIC(transport_strict).close(b->other);
  toy_backend.queue_close(b->queue);
  toy_backend.device_close(b->device);
  toy_end(&b->t);
}

static inline opipe_stream_params stream_params(uint32_t src, uint32_t dst, uint32_t depth) {
  return (opipe_stream_params){.struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
                               .src_rank = src,
                               .dst_rank = dst,
                               .src_stage = src,
                               .dst_stage = dst,
                               .depth = depth,
                               .n_bytes = BYTES};
}

/* Both ends, not ready yet. */
static inline void open_pair(bench *b, uint32_t src, uint32_t dst, uint32_t depth,
                             opipe_stream **out_src, opipe_stream **out_dst) {
  const opipe_stream_params params = stream_params(src, dst, depth);
  OPI_ASSERT_OK_FATAL(b->table->stream_open(b->ends[src], &params, out_src, &b->err), &b->err);
  OPI_ASSERT_OK_FATAL(b->table->stream_open(b->ends[dst], &params, out_dst, &b->err), &b->err);
}

static inline void ready(bench *b) {
  for (uint32_t r = 0; r < RANKS; ++r)
    OPI_ASSERT_INT(b->table->endpoint_ready(b->ends[r], &b->err), OPIPE_OK);
}

static inline opipe_region slot(const bench *b, uint32_t rank, uint32_t i) {
  return (opipe_region){
      .buffer = b->buffers[rank], .offset_bytes = (uint64_t)i * BYTES, .n_bytes = BYTES};
}

static inline char *host_of(const bench *b, uint32_t rank, uint32_t i) {
  void *base = NULL;
  (void)toy_backend.buffer_host(b->buffers[rank], &base, NULL);
  return (char *)base + i * BYTES;
}

static inline void pause_a_while(void) {
  (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Calls again while it answers PENDING, for a time. */
#define AWAIT(status, call)                                               \
  do {                                                                    \
    const uint64_t until_ = toy_now_ns() + DEADLINE_NS;                   \
    while (((status) = (call)) == OPIPE_PENDING && toy_now_ns() < until_) \
      pause_a_while();                                                    \
  } while (0)

/* A message from slot `from` of src's rank to slot `to` of dst's, as far as its arrival. */
static inline opipe_status carry(bench *b, opipe_stream *src, const opipe_region *from,
                                 opipe_stream *dst, const opipe_region *to, uint64_t q) {
  opipe_status status = b->table->recv(dst, q, to, NULL, &b->err);
  if (status == OPIPE_OK)
    AWAIT(status, b->table->reserve(src, q, &b->err));
  if (status == OPIPE_OK)
    AWAIT(status, b->table->send(src, q, from, NULL, NULL, &b->err));
  if (status == OPIPE_OK)
    AWAIT(status, b->table->test(src, q, &b->err));
  if (status == OPIPE_OK)
    AWAIT(status, b->table->test(dst, q, &b->err));
  return status;
}

#endif /* TESTS_STRICT_KIT_H */
