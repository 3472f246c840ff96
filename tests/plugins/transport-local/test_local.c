/* SPDX-License-Identifier: Apache-2.0 */
/* transport-local by its table: messages in place and by copy, back-pressure, late events,
 * doorbells, reductions, aborts; what is wrong is refused with both sides named. ctest: timeout=120
 */
#include <opipe/helpers.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/runtime/toy.h"

enum { RANKS = 4, BYTES = 256 };

typedef struct place {
  toy t;
  const opipe_transport *table;
  opipe_world *world;
  opipe_device *device;
  opipe_queue *queue;
  opipe_endpoint *ends[RANKS];
  opipe_buffer *buffers[RANKS];
  opipe_backend backend; /* the toy's, with events that complete when told */
} place;

static _Atomic int event_state; /* of every event: OPIPE_OK or OPIPE_PENDING or an error */

static opipe_status told_poll(opipe_event *event, opipe_error *err) {
  (void)event;
  const int state = atomic_load(&event_state);
  return state >= 0 ? state : opipe_fail(err, state, "the event was told to fail");
}

static void setup(place *p, uint32_t spin_us) {
  static const toy_plan plan = {.n_nodes = 4,
                                .n_stages = 1,
                                .n_ranks = 1,
                                .n_microbatches = 1,
                                .depth = 1,
                                .rows = 1,
                                .seq = 1};
  static const opipe_device_params open = {.struct_size =
                                               (uint32_t)OPIPE_END(opipe_device_params, options)};
  static const opipe_world_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_world_params, options), .n_ranks = RANKS};
  opipe_error err = OPIPE_ERROR_INIT;
  memset(p, 0, sizeof *p);
  atomic_store(&event_state, OPIPE_OK);
  p->backend = toy_backend;
  p->backend.event_poll = told_poll;
  OPI_ASSERT_OK_FATAL(toy_make(&p->t, &plan, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  p->table = p->t.env.transport.table;
  OPI_ASSERT_OK_FATAL(toy_backend.device_open(p->t.backends[0].self, &open, &p->device, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(toy_backend.queue_open(p->device, &p->queue, &err), &err);
  OPI_ASSERT_OK_FATAL(p->table->world_open(p->t.transport_self, &params, &p->world, &err), &err);
  for (uint32_t r = 0; r < RANKS; ++r) {
    const opipe_endpoint_params end = {
        .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
        .rank = r,
        .backend = &p->backend,
        .device = p->device,
        .queue = p->queue,
        .spin_us = spin_us};
    OPI_ASSERT_OK_FATAL(p->table->endpoint_open(p->world, &end, &p->ends[r], &err), &err);
    OPI_ASSERT_OK_FATAL(
        toy_backend.buffer_alloc(p->device, 4 * BYTES, OPIPE_BUFFER_BOUNDARY, &p->buffers[r], &err),
        &err);
  }
}

static void teardown(place *p) {
  for (uint32_t r = 0; r < RANKS; ++r) {
    p->table->endpoint_close(p->ends[r]);
    toy_backend.buffer_free(p->buffers[r]);
  }
  p->table->world_close(p->world);
  toy_backend.queue_close(p->queue);
  toy_backend.device_close(p->device);
  toy_end(&p->t);
}

static opipe_stream_params stream_params(uint32_t src, uint32_t dst, uint32_t depth) {
  return (opipe_stream_params){.struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
                               .src_rank = src,
                               .dst_rank = dst,
                               .src_stage = src,
                               .dst_stage = dst,
                               .depth = depth,
                               .n_bytes = BYTES};
}

static void open_pair(place *p, uint32_t src, uint32_t dst, uint32_t depth, opipe_stream **out_src,
                      opipe_stream **out_dst) {
  const opipe_stream_params params = stream_params(src, dst, depth);
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(p->table->stream_open(p->ends[src], &params, out_src, &err), &err);
  OPI_ASSERT_OK_FATAL(p->table->stream_open(p->ends[dst], &params, out_dst, &err), &err);
}

static opipe_region region_of(const place *p, uint32_t rank, uint32_t slot) {
  return (opipe_region){
      .buffer = p->buffers[rank], .offset_bytes = (uint64_t)slot * BYTES, .n_bytes = BYTES};
}

static char *host_of(const place *p, uint32_t rank, uint32_t slot) {
  void *base = NULL;
  (void)toy_backend.buffer_host(p->buffers[rank], &base, NULL);
  return (char *)base + slot * BYTES;
}

static void test_message_in_place_and_by_copy(void) {
  place p;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  setup(&p, 0);
  open_pair(&p, 0, 1, 2, &src, &dst);
  const opipe_region slot = region_of(&p, 1, 0), own = region_of(&p, 0, 0);
  OPI_ASSERT_INT(p.table->reserve(src, 0, &err), OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->send(src, 0, &own, NULL, NULL, &err), OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->recv(dst, 0, &slot, NULL, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->reserve(src, 0, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->reserve(src, 1, &err), OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->test(dst, 0, &err), OPIPE_PENDING);
  memset(host_of(&p, 1, 0), 7, BYTES);
  OPI_ASSERT_INT(p.table->send(src, 0, &slot, NULL, NULL, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(src, 0, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(dst, 0, &err), OPIPE_OK);
  const opipe_region second = region_of(&p, 1, 1);
  memset(host_of(&p, 0, 0), 9, BYTES);
  OPI_ASSERT_INT(p.table->recv(dst, 1, &second, NULL, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->send(src, 1, &own, NULL, NULL, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(dst, 1, &err), OPIPE_OK);
  OPI_ASSERT_INT(host_of(&p, 1, 1)[BYTES - 1], 9);
  OPI_ASSERT_INT(host_of(&p, 1, 0)[0], 7);
  OPI_ASSERT_ERROR(p.table->send(src, 1, &own, NULL, NULL, &err), OPIPE_E_STATE, &err, "message 1");
  OPI_ASSERT_ERROR(p.table->recv(dst, 1, &slot, NULL, &err), OPIPE_E_STATE, &err, "message 1");
  p.table->stream_close(src);
  p.table->stream_close(dst);
  teardown(&p);
}

static void test_any_order_within_the_depth(void) {
  place p;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  setup(&p, 0);
  open_pair(&p, 2, 0, 3, &src, &dst);
  for (uint32_t q = 3; q > 0; --q) {
    const opipe_region slot = region_of(&p, 0, q - 1);
    OPI_ASSERT_INT(p.table->recv(dst, q - 1, &slot, NULL, &err), OPIPE_OK);
  }
  const opipe_region again = region_of(&p, 0, 0);
  OPI_ASSERT_INT(p.table->recv(dst, 3, &again, NULL, &err),
                 OPIPE_PENDING); /* message 0 has not come */
  static const uint64_t order[3] = {1, 2, 0};
  for (uint32_t i = 0; i < 3; ++i) {
    const opipe_region own = region_of(&p, 2, (uint32_t)order[i]);
    memset(host_of(&p, 2, (uint32_t)order[i]), (int)order[i] + 1, BYTES);
    OPI_ASSERT_INT(p.table->send(src, order[i], &own, NULL, NULL, &err), OPIPE_OK);
  }
  for (uint32_t q = 0; q < 3; ++q) {
    OPI_ASSERT_INT(p.table->test(dst, q, &err), OPIPE_OK);
    OPI_ASSERT_INT(host_of(&p, 0, q)[5], (int)q + 1);
  }
  OPI_ASSERT_INT(p.table->recv(dst, 3, &again, NULL, &err), OPIPE_OK);
  p.table->stream_close(src);
  p.table->stream_close(dst);
  teardown(&p);
}

static void test_late_events_hold_the_data_back(void) {
  place p;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_event *ready = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  setup(&p, 0);
  open_pair(&p, 0, 1, 1, &src, &dst);
  OPI_ASSERT_OK_FATAL(toy_backend.event_create(p.device, &ready, &err), &err);
  const opipe_region slot = region_of(&p, 1, 0), own = region_of(&p, 0, 0);
  memset(host_of(&p, 1, 0), 0, BYTES);
  OPI_ASSERT_INT(p.table->recv(dst, 0, &slot, NULL, &err), OPIPE_OK);
  atomic_store(&event_state, OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->send(src, 0, &own, ready, NULL, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(dst, 0, &err), OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->test(src, 0, &err), OPIPE_PENDING);
  const uint32_t seen = p.table->doorbell(p.ends[1]);
  OPI_ASSERT_INT(p.table->wait(p.ends[1], seen, UINT64_MAX, &err),
                 OPIPE_OK); /* comes back by itself to look again */
  memset(host_of(&p, 0, 0), 3, BYTES);
  atomic_store(&event_state, OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(src, 0, &err), OPIPE_OK); /* whoever comes first finishes it */
  OPI_ASSERT_INT(host_of(&p, 1, 0)[0], 3);
  OPI_ASSERT_INT(p.table->test(dst, 0, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->recv(dst, 1, &slot, NULL, &err), OPIPE_OK);
  atomic_store(&event_state, OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->send(src, 1, &own, ready, NULL, &err), OPIPE_OK);
  memset(host_of(&p, 0, 0), 5, BYTES);
  atomic_store(&event_state, OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(dst, 1, &err), OPIPE_OK);
  OPI_ASSERT_INT(host_of(&p, 1, 0)[0], 5);
  OPI_ASSERT_INT(p.table->test(src, 1, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->recv(dst, 2, &slot, NULL, &err), OPIPE_OK);
  atomic_store(&event_state, OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->send(src, 2, &own, ready, NULL, &err), OPIPE_OK);
  atomic_store(&event_state, OPIPE_E_DEVICE); /* the sender's to tell */
  OPI_ASSERT_INT(p.table->test(dst, 2, &err), OPIPE_PENDING);
  OPI_ASSERT_ERROR(p.table->test(src, 2, &err), OPIPE_E_DEVICE, &err, "told to fail");
  atomic_store(&event_state, OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(dst, 2, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->recv(dst, 3, &slot, NULL, &err), OPIPE_OK);
  atomic_store(&event_state, OPIPE_E_DEVICE);
  OPI_ASSERT_ERROR(p.table->send(src, 3, &own, ready, NULL, &err), OPIPE_E_DEVICE, &err,
                   "told to fail");
  toy_backend.event_destroy(ready);
  p.table->stream_close(src);
  p.table->stream_close(dst);
  teardown(&p);
}

static opipe_status no_address(opipe_buffer *buffer, void **out_host, opipe_error *err) {
  (void)buffer;
  (void)out_host;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "memory without an address");
}

/* The last message has not left the bounce yet: nobody rings when it has. */
static void test_a_receiver_that_waits_for_its_own_device_looks_again(void) {
  place p;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_memory *memory = NULL;
  setup(&p, 0);
  p.backend.buffer_host = no_address;
  OPI_ASSERT_OK_FATAL(
      p.table->memory_register(p.ends[1], p.buffers[1], (uint64_t)4 * BYTES, &memory, &err), &err);
  open_pair(&p, 0, 1, 1, &src, &dst);
  const opipe_region slot = region_of(&p, 1, 0), own = region_of(&p, 0, 0);
  OPI_ASSERT_INT(p.table->recv(dst, 0, &slot, NULL, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->send(src, 0, &own, NULL, NULL, &err), OPIPE_OK);
  OPI_ASSERT_INT(p.table->test(dst, 0, &err), OPIPE_OK);
  atomic_store(&event_state, OPIPE_PENDING);
  OPI_ASSERT_INT(p.table->recv(dst, 1, &slot, NULL, &err), OPIPE_PENDING);
  const uint32_t seen = p.table->doorbell(p.ends[1]);
  OPI_ASSERT_INT(p.table->wait(p.ends[1], seen, UINT64_C(3000000000), &err), OPIPE_OK);
  atomic_store(&event_state, OPIPE_OK);
  OPI_ASSERT_INT(p.table->recv(dst, 1, &slot, NULL, &err), OPIPE_OK);
  p.table->stream_close(src);
  p.table->stream_close(dst);
  p.table->memory_drop(memory);
  teardown(&p);
}

static void test_wrong_calls_are_refused(void) {
  place p;
  opipe_stream *src = NULL, *dst = NULL, *other = NULL;
  opipe_endpoint *end = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  setup(&p, 0);
  open_pair(&p, 0, 1, 2, &src, &dst);
  opipe_stream_params params = stream_params(0, 1, 2);
  OPI_ASSERT_ERROR(p.table->stream_open(p.ends[0], &params, &other, &err), OPIPE_E_STATE, &err,
                   "open already on rank 0");
  OPI_ASSERT_ERROR(p.table->stream_open(p.ends[2], &params, &other, &err), OPIPE_E_INVALID, &err,
                   "rank 2 is neither end");
  params.index = 1;
  OPI_ASSERT_OK(p.table->stream_open(p.ends[0], &params, &other, &err), &err);
  params.depth = 3;
  opipe_stream *bad = NULL;
  OPI_ASSERT_ERROR(p.table->stream_open(p.ends[1], &params, &bad, &err), OPIPE_E_INVALID, &err,
                   "depth 3 and 256 bytes, its peer with depth 2");
  params.depth = 0;
  OPI_ASSERT_ERROR(p.table->stream_open(p.ends[1], &params, &bad, &err), OPIPE_E_INVALID, &err,
                   "depth 0");
  params = stream_params(0, RANKS, 1);
  OPI_ASSERT_ERROR(p.table->stream_open(p.ends[0], &params, &bad, &err), OPIPE_E_INVALID, &err,
                   "world of 4");
  OPI_ASSERT_ERROR(p.table->reserve(dst, 0, &err), OPIPE_E_STATE, &err, "only its other end");
  const opipe_region slot = region_of(&p, 1, 0);
  opipe_region large = region_of(&p, 0, 0);
  large.n_bytes = BYTES + 1;
  OPI_ASSERT_INT(p.table->recv(dst, 0, &slot, NULL, &err), OPIPE_OK);
  OPI_ASSERT_ERROR(p.table->send(src, 0, &large, NULL, NULL, &err), OPIPE_E_INVALID, &err,
                   "257 bytes, rank 1 posted room for 256");
  const opipe_endpoint_params twice = {
      .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved), .rank = 1};
  OPI_ASSERT_ERROR(p.table->endpoint_open(p.world, &twice, &end, &err), OPIPE_E_STATE, &err,
                   "rank 1");
  p.table->stream_close(other);
  p.table->stream_close(src);
  p.table->stream_close(dst);
  teardown(&p);
}

/* ---- doorbells ---- */

typedef struct sleeper {
  place *p;
  uint32_t rank, seen;
  opipe_status status;
  opipe_error err;
} sleeper;

static void *sleep_at_bell(void *arg) {
  sleeper *s = arg;
  s->status = s->p->table->wait(s->p->ends[s->rank], s->seen, UINT64_C(20000000000), &s->err);
  return NULL;
}

static void test_rings_and_aborts_wake_sleepers(void) {
  for (uint32_t spin = 0; spin <= 50; spin += 50) {
    place p;
    pthread_t thread;
    opipe_error err = OPIPE_ERROR_INIT, why = OPIPE_ERROR_INIT;
    setup(&p, spin);
    const uint32_t seen = p.table->doorbell(p.ends[3]);
    const uint64_t start = toy_now_ns();
    OPI_ASSERT_ERROR(p.table->wait(p.ends[3], seen, 2000000, &err), OPIPE_E_TIMEOUT, &err,
                     "rank 3");
    OPI_ASSERT(toy_now_ns() - start >= 2000000);
    sleeper s = {.p = &p, .rank = 3, .seen = seen, .err = OPIPE_ERROR_INIT};
    OPI_ASSERT_FATAL(pthread_create(&thread, NULL, sleep_at_bell, &s) == 0);
    (void)usleep(5000);
    p.table->ring(p.ends[3]);
    (void)pthread_join(thread, NULL);
    OPI_ASSERT_INT(s.status, OPIPE_OK);
    s.seen = p.table->doorbell(p.ends[3]);
    OPI_ASSERT(s.seen != seen);
    OPI_ASSERT_FATAL(pthread_create(&thread, NULL, sleep_at_bell, &s) == 0);
    (void)usleep(5000);
    (void)opipe_fail(&why, OPIPE_E_DEVICE, "the first reason");
    p.table->abort(p.world, 1, &why);
    (void)opipe_fail(&why, OPIPE_E_DEVICE, "another reason");
    p.table->abort(p.world, 2, &why);
    (void)pthread_join(thread, NULL);
    OPI_ASSERT_ERROR(s.status, OPIPE_E_PEER, &s.err, "rank 1 ended the run: the first reason");
    teardown(&p);
  }
}

/* ---- many messages between threads ---- */

enum { MESSAGES = 20000, DEPTH = 3 };

typedef struct talker {
  place *p;
  uint32_t rank;
  opipe_stream *out, *in;
  uint64_t n_wrong;
  opipe_status status;
} talker;

static opipe_status wait_until(const talker *t, opipe_stream *stream, uint64_t q,
                               opipe_status (*ask)(opipe_stream *, uint64_t, opipe_error *)) {
  for (;;) {
    const uint32_t seen = t->p->table->doorbell(t->p->ends[t->rank]);
    opipe_status status = ask(stream, q, NULL);
    if (status <= 0)
      return status;
    status = t->p->table->wait(t->p->ends[t->rank], seen, UINT64_C(20000000000), NULL);
    if (status < 0)
      return status;
  }
}

/* Rank 0 writes into rank 1's slots and gets each number back by copy. */
static void *talk(void *arg) {
  talker *t = arg;
  const opipe_transport *table = t->p->table;
  for (uint64_t q = 0; q < DEPTH && t->in != NULL; ++q) {
    const opipe_region slot = region_of(t->p, t->rank, (uint32_t)q);
    t->status = table->recv(t->in, q, &slot, NULL, NULL);
  }
  for (uint64_t q = 0; q < MESSAGES && t->status == OPIPE_OK; ++q) {
    const uint32_t slot = (uint32_t)(q % DEPTH);
    if (t->out != NULL) {
      const opipe_region region = region_of(t->p, 1, slot);
      t->status = wait_until(t, t->out, q, table->reserve);
      if (t->status == OPIPE_OK)
        memset(host_of(t->p, 1, slot), (int)(q % 127), BYTES);
      if (t->status == OPIPE_OK)
        t->status = table->send(t->out, q, &region, NULL, NULL, NULL);
      continue;
    }
    t->status = wait_until(t, t->in, q, table->test);
    const char *data = host_of(t->p, 1, slot);
    for (uint32_t i = 0; i < BYTES; ++i)
      t->n_wrong += data[i] != (char)(q % 127);
    const opipe_region region = region_of(t->p, 1, slot);
    if (t->status == OPIPE_OK)
      t->status = table->recv(t->in, q + DEPTH, &region, NULL, NULL);
  }
  return NULL;
}

static void test_many_messages_between_threads(void) {
  for (uint32_t spin = 0; spin <= 20; spin += 20) {
    place p;
    pthread_t threads[2];
    talker t[2] = {{.p = &p, .rank = 0}, {.p = &p, .rank = 1}};
    setup(&p, spin);
    open_pair(&p, 0, 1, DEPTH, &t[0].out, &t[1].in);
    for (uint32_t r = 0; r < 2; ++r)
      OPI_ASSERT_FATAL(pthread_create(&threads[r], NULL, talk, &t[r]) == 0);
    for (uint32_t r = 0; r < 2; ++r)
      (void)pthread_join(threads[r], NULL);
    OPI_ASSERT_INT(t[0].status, OPIPE_OK);
    OPI_ASSERT_INT(t[1].status, OPIPE_OK);
    OPI_ASSERT_INT(t[1].n_wrong, 0);
    p.table->stream_close(t[0].out);
    p.table->stream_close(t[1].in);
    teardown(&p);
  }
}

/* ---- reductions ---- */

enum { ROUNDS = 50, ELEMS = 16 };

typedef struct adder {
  place *p;
  uint32_t rank;
  opipe_group *group;
  opipe_status status;
  uint64_t n_wrong;
} adder;

static float part(uint32_t rank, uint32_t round, uint32_t i) {
  return (float)(rank + 1) * 1e-3f +
         (float)((round * 31 + i * 7 + rank * 13) % 101) * (rank % 2 == 0 ? 1e4f : 1e-4f);
}

static void *add(void *arg) {
  adder *a = arg;
  const opipe_transport *table = a->p->table;
  const opipe_region region = region_of(a->p, a->rank, 0);
  float *data = (float *)(void *)host_of(a->p, a->rank, 0);
  for (uint32_t round = 0; round < ROUNDS && a->status == OPIPE_OK; ++round) {
    for (uint32_t i = 0; i < ELEMS; ++i)
      data[i] = part(a->rank, round, i);
    for (;;) {
      const uint32_t seen = table->doorbell(a->p->ends[a->rank]);
      a->status = table->all_reduce(a->group, round, &region, ELEMS, OPIPE_FLOAT, NULL, NULL, NULL);
      if (a->status <= 0)
        break;
      (void)table->wait(a->p->ends[a->rank], seen, UINT64_C(20000000000), NULL);
    }
    while (a->status == OPIPE_OK) {
      const uint32_t seen = table->doorbell(a->p->ends[a->rank]);
      const opipe_status status = table->group_test(a->group, round, NULL);
      if (status == OPIPE_OK)
        break;
      if (status < 0 || table->wait(a->p->ends[a->rank], seen, UINT64_C(20000000000), NULL) < 0)
        a->status = OPIPE_E_TIMEOUT;
    }
    for (uint32_t i = 0; i < ELEMS; ++i) {
      float sum = part(0, round, i);
      for (uint32_t r = 1; r < RANKS; ++r)
        sum += part(r, round, i);
      a->n_wrong += memcmp(&sum, &data[i], sizeof sum) != 0;
    }
  }
  return NULL;
}

static void test_reductions_add_in_rising_order(void) {
  static const uint32_t ranks[RANKS] = {0, 1, 2, 3}, two[2] = {1, 9};
  place p;
  pthread_t threads[RANKS];
  adder a[RANKS];
  opipe_error err = OPIPE_ERROR_INIT;
  setup(&p, 0);
  for (uint32_t r = 0; r < RANKS; ++r) {
    a[r] = (adder){.p = &p, .rank = r};
    OPI_ASSERT_OK_FATAL(p.table->group_open(p.ends[r], ranks, RANKS, BYTES, &a[r].group, &err),
                        &err);
  }
  for (uint32_t r = 0; r < RANKS; ++r)
    OPI_ASSERT_FATAL(pthread_create(&threads[r], NULL, add, &a[r]) == 0);
  for (uint32_t r = 0; r < RANKS; ++r) {
    (void)pthread_join(threads[r], NULL);
    OPI_ASSERT_INT(a[r].status, OPIPE_OK);
    OPI_ASSERT_INT(a[r].n_wrong, 0);
  }
  opipe_group *group = NULL;
  const opipe_region region = region_of(&p, 0, 0);
  OPI_ASSERT_ERROR(p.table->group_open(p.ends[0], two, 2, BYTES, &group, &err), OPIPE_E_INVALID,
                   &err, "member 1 is rank 9: it must be below");
  OPI_ASSERT_ERROR(p.table->group_open(p.ends[3], ranks, 2, BYTES, &group, &err), OPIPE_E_INVALID,
                   &err, "rank 3 is not among");
  OPI_ASSERT_ERROR(
      p.table->all_reduce(a[0].group, ROUNDS, &region, ELEMS, OPIPE_INT64, NULL, NULL, &err),
      OPIPE_E_UNSUPPORTED, &err, "int64");
  OPI_ASSERT_ERROR(
      p.table->all_reduce(a[0].group, ROUNDS, &region, BYTES, OPIPE_FLOAT, NULL, NULL, &err),
      OPIPE_E_INVALID, &err, "256 values");
  OPI_ASSERT_ERROR(
      p.table->all_reduce(a[0].group, ROUNDS + 1, &region, 1, OPIPE_FLOAT, NULL, NULL, &err),
      OPIPE_E_STATE, &err, "round 51");
  for (uint32_t r = 0; r < RANKS; ++r)
    p.table->group_close(a[r].group);
  teardown(&p);
}

/* Members 2, 0, 2 of two ranks: sums go by the list; one thread drives all. */
static void test_members_stand_in_any_order(void) {
  static const uint32_t ranks[3] = {2, 0, 2}, order[3] = {2, 0, 2};
  place p;
  opipe_group *groups[3] = {NULL}, *more = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  setup(&p, 0);
  for (uint32_t m = 0; m < 3; ++m)
    OPI_ASSERT_OK_FATAL(p.table->group_open(p.ends[order[m]], ranks, 3, 4, &groups[m], &err), &err);
  const float values[3] = {1e8f, 1.0f, -1e8f}; /* (a + b) + c is 0, any other order 1 */
  opipe_region regions[3];
  for (uint32_t m = 0; m < 3; ++m) {
    regions[m] = region_of(&p, order[m], m);
    *(float *)(void *)host_of(&p, order[m], m) = values[m];
    OPI_ASSERT_OK(p.table->all_reduce(groups[m], 0, &regions[m], 1, OPIPE_FLOAT, NULL, NULL, &err),
                  &err);
  }
  uint32_t n_done = 0;
  for (uint32_t round = 0; round < 9 && n_done < 3; ++round) {
    n_done = 0;
    for (uint32_t m = 0; m < 3; ++m)
      n_done += p.table->group_test(groups[m], 0, &err) == OPIPE_OK;
  }
  OPI_ASSERT_INT(n_done, 3);
  for (uint32_t m = 0; m < 3; ++m)
    OPI_ASSERT(*(const float *)(const void *)host_of(&p, order[m], m) == 0.0f);
  OPI_ASSERT_OK(p.table->group_open(p.ends[0], ranks, 3, 4, &more, &err), &err); /* a second one */
  p.table->group_close(more);
  for (uint32_t m = 0; m < 3; ++m)
    p.table->group_close(groups[m]);
  teardown(&p);
}

OPI_TEST_MAIN("transport-local", OPI_TEST(test_members_stand_in_any_order),
              OPI_TEST(test_message_in_place_and_by_copy),
              OPI_TEST(test_any_order_within_the_depth),
              OPI_TEST(test_late_events_hold_the_data_back),
              OPI_TEST(test_a_receiver_that_waits_for_its_own_device_looks_again),
              OPI_TEST(test_wrong_calls_are_refused), OPI_TEST(test_rings_and_aborts_wake_sleepers),
              OPI_TEST(test_many_messages_between_threads),
              OPI_TEST(test_reductions_add_in_rising_order))
