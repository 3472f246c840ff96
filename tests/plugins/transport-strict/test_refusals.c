/* SPDX-License-Identifier: Apache-2.0 */
/* transport-strict refuses what breaks a rule of opipe/transport.h: each rule is broken once, and
 * the message names stream or group, rank and both numbers. ctest: timeout=120
 */
#include <pthread.h>

#include "tests/plugins/transport-strict/kit.h"

/* Counted, too: what the core's tests ask for. */
#define REFUSED(b, expr, part)                                     \
  do {                                                             \
    const uint64_t before_ = atomic_load(&counted()->refused);     \
    OPI_ASSERT_ERROR((expr), OPIPE_E_INVALID, &(b)->err, (part));  \
    OPI_ASSERT_INT(atomic_load(&counted()->refused) - before_, 1); \
  } while (0)

static const char stream01[] = "stream 0 of stages 0 -> 1 (ranks 0 -> 1)";

typedef struct pair {
  bench b;
  opipe_stream *src, *dst;
} pair;

/* A stream of depth 2 from rank 0 to rank 1. */
static void open_ready_pair(pair *p, const char *options) {
  setup(&p->b, options, false);
  open_pair(&p->b, 0, 1, 2, &p->src, &p->dst);
  ready(&p->b);
}

static void close_pair(pair *p) {
  p->b.table->stream_close(p->src);
  p->b.table->stream_close(p->dst);
  teardown(&p->b);
}

/* Every later call on the world says the same. */
static void broken(bench *b, opipe_stream *stream, const char *part) {
  const uint32_t seen = b->table->doorbell(b->ends[3]);
  if (stream != NULL)
    OPI_ASSERT_ERROR(b->table->test(stream, 0, &b->err), OPIPE_E_INVALID, &b->err, part);
  OPI_ASSERT_ERROR(b->table->wait(b->ends[3], seen, DEADLINE_NS, &b->err), OPIPE_E_INVALID, &b->err,
                   part);
  OPI_ASSERT_ERROR(b->table->endpoint_ready(b->ends[3], &b->err), OPIPE_E_INVALID, &b->err, part);
}

/* ---- memory ---- */

static void test_regions_lie_in_registered_memory(void) {
  pair p;
  opipe_buffer *stranger = NULL;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  OPI_ASSERT_OK(toy_backend.buffer_alloc(b->device, BYTES, 0, &stranger, &b->err), &b->err);
  const opipe_region outside = {.buffer = stranger, .n_bytes = BYTES};
  const opipe_region peer = slot(b, 1, 0), own = slot(b, 0, 0);
  const opipe_region beyond = {
      .buffer = b->buffers[1], .offset_bytes = (uint64_t)SLOTS * BYTES - 100, .n_bytes = 101};
  const opipe_region wraps = {
      .buffer = b->buffers[1], .offset_bytes = UINT64_MAX - 10, .n_bytes = 20};
  REFUSED(b, b->table->recv(p.dst, 0, &outside, NULL, &b->err),
          "rank 1: a region of 256 bytes in none of the 1 buffers that are registered");
  OPI_ASSERT(strstr(b->err.message, stream01) != NULL);
  REFUSED(b, b->table->recv(p.dst, 0, &own, NULL, &b->err), "in none of the 1 buffers");
  REFUSED(b, b->table->recv(p.dst, 0, &beyond, NULL, &b->err),
          "101 bytes from byte 1948 of a buffer of which 2048 are registered");
  REFUSED(b, b->table->recv(p.dst, 0, &wraps, NULL, &b->err), "of which 2048 are registered");
  OPI_ASSERT_OK(b->table->recv(p.dst, 0, &peer, NULL, &b->err), &b->err);
  OPI_ASSERT_OK(b->table->reserve(p.src, 0, &b->err), &b->err);
  REFUSED(b, b->table->send(p.src, 0, &peer, NULL, NULL, &b->err),
          "rank 0: a region of 256 bytes in none of the 1 buffers that are registered");
  OPI_ASSERT_OK(b->table->send(p.src, 0, &own, NULL, NULL, &b->err), &b->err);
  opipe_status status = OPIPE_OK;
  AWAIT(status, b->table->test(p.dst, 0, &b->err));
  OPI_ASSERT_OK(status, &b->err);
  AWAIT(status, b->table->test(p.src, 0, &b->err));
  OPI_ASSERT_OK(status, &b->err);
  toy_backend.buffer_free(stranger);
  close_pair(&p);
}

static void test_what_is_registered(void) {
  bench b;
  opipe_memory *memory = NULL;
  setup(&b, NULL, false);
  REFUSED(&b, b.table->memory_register(b.ends[0], b.buffers[0], BYTES, &memory, &b.err),
          "rank 0: 256 bytes of a buffer of which 2048 are registered already");
  REFUSED(&b, b.table->memory_register(b.ends[0], NULL, BYTES, &memory, &b.err),
          "rank 0: 256 bytes of no buffer");
  REFUSED(&b, b.table->memory_register(b.ends[0], b.buffers[1], 0, &memory, &b.err),
          "rank 0: 0 bytes of a buffer");
  teardown(&b);
}

static void test_memory_in_flight_is_not_dropped(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  const opipe_region to[2] = {slot(b, 1, 0), slot(b, 1, 1)};
  for (uint64_t q = 0; q < 2; ++q)
    OPI_ASSERT_OK(b->table->recv(p.dst, q, &to[q], NULL, &b->err), &b->err);
  b->table->memory_drop(b->memories[1]);
  b->memories[1] = NULL;
  broken(b, p.src, "memory_drop: rank 1: 2 regions of the 2048 bytes are in flight");
  close_pair(&p);
}

/* ---- numbers ---- */

static void test_numbers_outside_the_window(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  const opipe_region from = slot(b, 0, 0), to = slot(b, 1, 0);
  REFUSED(b, b->table->recv(p.dst, 2, &to, NULL, &b->err),
          "rank 1: message 2 is out of the window of 2, which is open from message 0");
  OPI_ASSERT(strstr(b->err.message, stream01) != NULL);
  REFUSED(b, b->table->reserve(p.src, 2, &b->err), "rank 0: message 2 is out of the window of 2");
  REFUSED(b, b->table->send(p.src, 3, &from, NULL, NULL, &b->err), "message 3 is out of the");
  REFUSED(b, b->table->test(p.src, 2, &b->err), "message 2 is out of the window of 2");
  REFUSED(b, b->table->test(p.dst, 9, &b->err), "message 9 is out of the window of 2");
  OPI_ASSERT_INT(b->table->test(p.dst, 1, &b->err), OPIPE_PENDING);
  OPI_ASSERT_INT(b->table->reserve(p.src, 1, &b->err), OPIPE_PENDING);
  const opipe_status status = carry(b, p.src, &from, p.dst, &to, 0);
  OPI_ASSERT_OK(status, &b->err);
  OPI_ASSERT_OK(b->table->recv(p.dst, 2, &to, NULL, &b->err), &b->err); /* it has moved on */
  REFUSED(b, b->table->recv(p.dst, 3, &to, NULL, &b->err), "which is open from message 1");
  close_pair(&p);
}

static void test_numbers_are_used_once(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  const opipe_region from = slot(b, 0, 0), to = slot(b, 1, 0);
  OPI_ASSERT_OK(b->table->recv(p.dst, 0, &to, NULL, &b->err), &b->err);
  REFUSED(b, b->table->recv(p.dst, 0, &to, NULL, &b->err),
          "message 0 was posted before, 0 have arrived");
  REFUSED(b, b->table->send(p.src, 0, &from, NULL, NULL, &b->err),
          "rank 0: message 0 before reserve answered OK for it, 0 have been sent");
  OPI_ASSERT_OK(b->table->reserve(p.src, 0, &b->err), &b->err);
  OPI_ASSERT_OK(b->table->send(p.src, 0, &from, NULL, NULL, &b->err), &b->err);
  REFUSED(b, b->table->send(p.src, 0, &from, NULL, NULL, &b->err),
          "message 0 was sent before, 1 have been");
  REFUSED(b, b->table->send(p.src, 1, &from, NULL, NULL, &b->err), "before reserve answered OK");
  opipe_status status = OPIPE_OK;
  AWAIT(status, b->table->test(p.dst, 0, &b->err));
  OPI_ASSERT_OK(status, &b->err);
  AWAIT(status, b->table->test(p.src, 0, &b->err));
  OPI_ASSERT_OK(status, &b->err);
  REFUSED(b, b->table->recv(p.dst, 0, &to, NULL, &b->err), "was posted before, 1 have arrived");
  close_pair(&p);
}

static void test_order_of_a_stream(void) {
  pair p;
  open_ready_pair(&p, "rule=stream");
  bench *b = &p.b;
  const opipe_region from = slot(b, 0, 0), to = slot(b, 1, 0), to1 = slot(b, 1, 1);
  REFUSED(b, b->table->recv(p.dst, 1, &to, NULL, &b->err),
          "message 1 of a first-in-first-out stream, 0 is next");
  OPI_ASSERT_OK(b->table->recv(p.dst, 0, &to, NULL, &b->err), &b->err);
  OPI_ASSERT_OK(b->table->recv(p.dst, 1, &to1, NULL, &b->err), &b->err);
  OPI_ASSERT_OK(b->table->reserve(p.src, 1, &b->err), &b->err);
  REFUSED(b, b->table->send(p.src, 1, &from, NULL, NULL, &b->err),
          "rank 0: message 1 of a first-in-first-out stream, 0 is next");
  close_pair(&p);
}

/* ---- sizes and parameters ---- */

static void test_sizes(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  const opipe_region large = {.buffer = b->buffers[1], .n_bytes = BYTES + 1};
  const opipe_region own = {.buffer = b->buffers[0], .n_bytes = BYTES + 1};
  const opipe_region small = {.buffer = b->buffers[1], .n_bytes = 100}, from = slot(b, 0, 0);
  REFUSED(b, b->table->recv(p.dst, 0, &large, NULL, &b->err),
          "rank 1: a region of 257 bytes, the stream has 256");
  OPI_ASSERT_OK(b->table->recv(p.dst, 0, &small, NULL, &b->err), &b->err);
  OPI_ASSERT_OK(b->table->reserve(p.src, 0, &b->err), &b->err);
  REFUSED(b, b->table->send(p.src, 0, &own, NULL, NULL, &b->err),
          "rank 0: a region of 257 bytes, the stream has 256");
  /* the receiver's room is checked where the message comes out */
  OPI_ASSERT_OK(b->table->send(p.src, 0, &from, NULL, NULL, &b->err), &b->err);
  opipe_status status = OPIPE_OK;
  AWAIT(status, b->table->test(p.dst, 0, &b->err));
  OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &b->err,
                   "rank 1: message 0 has 256 bytes, room was posted for 100");
  broken(b, p.src, "message 0 has 256 bytes");
  close_pair(&p);
}

static void test_ends_that_differ(void) {
  static const uint32_t ranks[2] = {0, 1};
  bench b;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_group *one = NULL, *two = NULL;
  setup(&b, NULL, false);
  opipe_stream_params params = stream_params(0, 1, 2);
  OPI_ASSERT_OK(b.table->stream_open(b.ends[0], &params, &src, &b.err), &b.err);
  params.n_bytes = 2 * BYTES;
  REFUSED(&b, b.table->stream_open(b.ends[1], &params, &dst, &b.err),
          "rank 1 opens it with depth 2 and 512 bytes, its peer with depth 2 and 256 bytes");
  params.n_bytes = BYTES;
  params.depth = 1;
  REFUSED(&b, b.table->stream_open(b.ends[1], &params, &dst, &b.err),
          "rank 1 opens it with depth 1 and 256 bytes, its peer with depth 2 and 256 bytes");
  OPI_ASSERT_INT(b.table->endpoint_ready(b.ends[0], &b.err), OPIPE_PENDING);
  OPI_ASSERT_OK(b.table->group_open(b.ends[0], ranks, 2, BYTES, &one, &b.err), &b.err);
  REFUSED(&b, b.table->group_open(b.ends[1], ranks, 2, BYTES + 8, &two, &b.err),
          "rank 1 opens it with 264 bytes, its peers with 256");
  b.table->group_close(one);
  b.table->stream_close(src);
  teardown(&b);
}

static void test_other_end(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  const opipe_region from = slot(b, 0, 0), to = slot(b, 1, 0);
  REFUSED(b, b->table->reserve(p.dst, 0, &b->err), "rank 1 holds only the other end");
  REFUSED(b, b->table->send(p.dst, 0, &to, NULL, NULL, &b->err), "rank 1 holds only the other");
  REFUSED(b, b->table->recv(p.src, 0, &from, NULL, &b->err), "rank 0 holds only the other end");
  close_pair(&p);
}

/* ---- ready ---- */

static void test_messages_before_ready(void) {
  static const uint32_t ranks[2] = {0, 1};
  bench b;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_group *groups[2] = {NULL};
  setup(&b, NULL, false);
  open_pair(&b, 0, 1, 2, &src, &dst);
  const opipe_region from = slot(&b, 0, 0), to = slot(&b, 1, 0);
  REFUSED(&b, b.table->recv(dst, 0, &to, NULL, &b.err),
          "endpoint_ready has answered OK for 0 openings, this was number 1");
  OPI_ASSERT(strstr(b.err.message, stream01) != NULL && strstr(b.err.message, "rank 1") != NULL);
  REFUSED(&b, b.table->reserve(src, 0, &b.err), "for 0 openings, this was number 1");
  REFUSED(&b, b.table->send(src, 0, &from, NULL, NULL, &b.err), "for 0 openings");
  REFUSED(&b, b.table->test(src, 0, &b.err), "for 0 openings");
  ready(&b);
  OPI_ASSERT_OK(b.table->recv(dst, 0, &to, NULL, &b.err), &b.err);
  for (uint32_t m = 0; m < 2; ++m)
    OPI_ASSERT_OK(b.table->group_open(b.ends[m], ranks, 2, BYTES, &groups[m], &b.err), &b.err);
  REFUSED(&b, b.table->all_reduce(groups[0], 0, &from, 4, OPIPE_FLOAT, NULL, NULL, &b.err),
          "rank 0, member 0: endpoint_ready has answered OK for 1 openings, this was number 2");
  OPI_ASSERT_OK(b.table->reserve(src, 0, &b.err), &b.err); /* the stream of before is usable */
  b.table->group_close(groups[0]);
  b.table->group_close(groups[1]);
  b.table->stream_close(src);
  b.table->stream_close(dst);
  teardown(&b);
}

/* ---- threads ---- */

typedef struct caller {
  bench *b;
  opipe_stream *stream;
  _Atomic uint32_t over;
  opipe_status status;
} caller;

/* In `wait` until it is over; what a call at the same time made of it is passed over. */
static void *stay_inside(void *arg) {
  caller *c = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  while (atomic_load(&c->over) == 0) {
    const uint32_t seen = c->b->table->doorbell(c->b->ends[1]);
    (void)c->b->table->wait(c->b->ends[1], seen, 20000000, &err);
  }
  return NULL;
}

static void test_two_threads_at_once(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  caller c = {.b = b};
  pthread_t thread;
  opipe_status status = OPIPE_OK;
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, stay_inside, &c) == 0);
  const uint64_t until = toy_now_ns() + DEADLINE_NS;
  while (status != OPIPE_E_INVALID && toy_now_ns() < until) {
    pause_a_while();
    status = b->table->test(p.dst, 0, &b->err);
  }
  OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &b->err,
                   "rank 1: 2 threads at once are in calls of the rank's thread");
  atomic_store(&c.over, 1);
  (void)pthread_join(thread, NULL);
  close_pair(&p);
}

static void *step_once(void *arg) {
  caller *c = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  do { /* a call of the other thread at the same time is refused, too */
    c->status = c->b->table->test(c->stream, 0, &err);
  } while (c->status == OPIPE_E_INVALID);
  while (atomic_load(&c->over) == 0)
    pause_a_while();
  return NULL;
}

static void test_thread_of_another_rank(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  caller c = {.b = b, .stream = p.dst};
  pthread_t thread;
  opipe_status status = OPIPE_OK;
  OPI_ASSERT_INT(b->table->test(p.src, 0, &b->err), OPIPE_PENDING); /* this thread steps rank 0 */
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, step_once, &c) == 0); /* that one rank 1 */
  const uint64_t until = toy_now_ns() + DEADLINE_NS;
  while (status != OPIPE_E_INVALID && toy_now_ns() < until) {
    pause_a_while();
    status = b->table->test(p.dst, 0, &b->err);
    if (status == OPIPE_E_INVALID && strstr(b->err.message, "2 threads at once") != NULL)
      status = OPIPE_OK;
  }
  OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &b->err,
                   "rank 1: a thread of its own steps it; the one that calls steps rank 0");
  OPI_ASSERT_OK(b->table->endpoint_ready(b->ends[1], &b->err), &b->err); /* from anywhere */
  atomic_store(&c.over, 1);
  (void)pthread_join(thread, NULL);
  OPI_ASSERT_INT(c.status, OPIPE_PENDING);
  close_pair(&p);
}

/* ---- sums ---- */

/* Member 0 begins rounds of two groups of the same ranks, member 1 the other way round. */
static void test_groups_in_order(void) {
  static const uint32_t ranks[2] = {0, 1};
  bench b;
  opipe_group *groups[2][2];
  setup(&b, NULL, false);
  for (uint32_t i = 0; i < 4; ++i) {
    OPI_ASSERT_OK_FATAL(
        b.table->group_open(b.ends[i / 2], ranks, 2, BYTES, &groups[i / 2][i % 2], &b.err), &b.err);
  }
  ready(&b);
  const opipe_region own[2] = {slot(&b, 0, 0), slot(&b, 1, 0)};
  OPI_ASSERT_OK(b.table->all_reduce(groups[0][0], 0, &own[0], 4, OPIPE_FLOAT, NULL, NULL, &b.err),
                &b.err);
  REFUSED(&b, b.table->all_reduce(groups[1][1], 0, &own[1], 4, OPIPE_FLOAT, NULL, NULL, &b.err),
          "rank 0 has begun a round of group 1 first, of which rank 1 is a member, too");
  for (uint32_t g = 0; g < 2; ++g) {
    uint32_t n_done = 0;
    for (uint32_t m = 0; m < 2; ++m) {
      if (g != 0 || m != 0) {
        OPI_ASSERT_OK(
            b.table->all_reduce(groups[m][g], 0, &own[m], 4, OPIPE_FLOAT, NULL, NULL, &b.err),
            &b.err);
      }
    }
    const uint64_t until = toy_now_ns() + DEADLINE_NS;
    while (n_done < 2 && toy_now_ns() < until) {
      pause_a_while();
      n_done = 0;
      for (uint32_t m = 0; m < 2; ++m)
        n_done += b.table->group_test(groups[m][g], 0, &b.err) == OPIPE_OK;
    }
    OPI_ASSERT_INT(n_done, 2);
  }
  for (uint32_t i = 0; i < 4; ++i)
    b.table->group_close(groups[i / 2][i % 2]);
  teardown(&b);
}

static void test_rounds_in_order(void) {
  static const uint32_t ranks[2] = {0, 1};
  bench b;
  opipe_group *groups[2] = {NULL};
  setup(&b, NULL, false);
  for (uint32_t m = 0; m < 2; ++m)
    OPI_ASSERT_OK(b.table->group_open(b.ends[m], ranks, 2, BYTES, &groups[m], &b.err), &b.err);
  ready(&b);
  const opipe_region own = slot(&b, 0, 0), peer = slot(&b, 1, 0);
  const opipe_region beyond = {
      .buffer = b.buffers[0], .offset_bytes = (uint64_t)SLOTS * BYTES - 8, .n_bytes = 16};
  REFUSED(&b, b.table->all_reduce(groups[0], 1, &own, 4, OPIPE_FLOAT, NULL, NULL, &b.err),
          "of 2 members (ranks 0 to 1), rank 0, member 0: round 1, round 0 is next");
  REFUSED(&b, b.table->group_test(groups[0], 0, &b.err), "round 0, 0 have begun");
  REFUSED(&b, b.table->all_reduce(groups[0], 0, &peer, 4, OPIPE_FLOAT, NULL, NULL, &b.err),
          "a region of 256 bytes in none of the 1 buffers");
  REFUSED(&b, b.table->all_reduce(groups[0], 0, &beyond, 4, OPIPE_FLOAT, NULL, NULL, &b.err),
          "16 bytes from byte 2040 of a buffer of which 2048 are registered");
  REFUSED(&b, b.table->all_reduce(groups[0], 0, &own, 65, OPIPE_FLOAT, NULL, NULL, &b.err),
          "65 values of 4 bytes, the region has 256 bytes, the group 256");
  OPI_ASSERT_OK(b.table->all_reduce(groups[0], 0, &own, 4, OPIPE_FLOAT, NULL, NULL, &b.err),
                &b.err);
  REFUSED(&b, b.table->all_reduce(groups[0], 0, &own, 4, OPIPE_FLOAT, NULL, NULL, &b.err),
          "round 0, round 1 is next");
  OPI_ASSERT_INT(b.table->all_reduce(groups[0], 1, &own, 4, OPIPE_FLOAT, NULL, NULL, &b.err),
                 OPIPE_PENDING);
  /* members that disagree */
  OPI_ASSERT_OK(b.table->all_reduce(groups[1], 0, &peer, 5, OPIPE_FLOAT, NULL, NULL, &b.err),
                &b.err);
  opipe_status status = OPIPE_OK;
  AWAIT(status, b.table->group_test(groups[1], 0, &b.err));
  OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &b.err,
                   "rank 1, member 1: round 0: 20 bytes of float32, the members before have 16 of");
  b.table->group_close(groups[0]);
  broken(&b, NULL, "group_close: group");
  b.table->group_close(groups[1]);
  teardown(&b);
}

/* ---- closing ---- */

static void test_world_before_its_endpoints(void) {
  bench b;
  setup(&b, NULL, false);
  b.table->world_close(b.worlds[0]);
  b.worlds[0] = NULL; /* it goes with the last endpoint */
  broken(&b, NULL, "world_close: 4 of its 4 ranks still have endpoints");
  teardown(&b);
}

static void test_endpoint_before_its_streams(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  b->table->endpoint_close(b->ends[0]);
  broken(b, p.dst, "endpoint_close: rank 0 still has 1 streams, 0 groups, 1 registered buffers");
  b->ends[0] = NULL; /* it goes with the last of them */
  close_pair(&p);
}

static void test_endpoint_before_its_memory(void) {
  bench b;
  setup(&b, NULL, false);
  b.table->endpoint_close(b.ends[2]);
  broken(&b, NULL, "endpoint_close: rank 2 still has 0 streams, 0 groups, 1 registered buffers");
  b.ends[2] = NULL;
  teardown(&b);
}

static void test_stream_with_a_message_on_its_way(void) {
  told event = {.state = OPIPE_PENDING};
  for (uint32_t side = 0; side < 2; ++side) {
    pair p;
    open_ready_pair(&p, NULL);
    bench *b = &p.b;
    const opipe_region from = slot(b, 0, 0), to = slot(b, 1, 0);
    OPI_ASSERT_OK(b->table->recv(p.dst, 0, &to, NULL, &b->err), &b->err);
    OPI_ASSERT_OK(b->table->reserve(p.src, 0, &b->err), &b->err);
    OPI_ASSERT_OK(b->table->send(p.src, 0, &from, event_of(&event), NULL, &b->err), &b->err);
    opipe_stream **closed = side == 0 ? &p.src : &p.dst;
    b->table->stream_close(*closed);
    *closed = NULL;
    broken(b, side == 0 ? p.dst : p.src,
           side == 0 ? "(ranks 0 -> 1), rank 0: message 0 is on its way, 1 have been sent"
                     : "(ranks 0 -> 1), rank 1: message 0 is on its way, 1 have been sent");
    close_pair(&p);
  }
}

/* A receive that nobody has sent to goes with its stream: so shapes are given up. */
static void test_receive_that_nobody_sent_to(void) {
  pair p;
  open_ready_pair(&p, NULL);
  bench *b = &p.b;
  const opipe_region to = slot(b, 1, 0);
  OPI_ASSERT_OK(b->table->recv(p.dst, 0, &to, NULL, &b->err), &b->err);
  b->table->stream_close(p.src);
  b->table->stream_close(p.dst);
  b->table->memory_drop(b->memories[1]);
  b->memories[1] = NULL;
  OPI_ASSERT_INT(b->table->endpoint_ready(b->ends[1], &b->err), OPIPE_OK);
  teardown(b);
}

static void test_options(void) {
  static const struct {
    const char *options, *part;
    opipe_status status;
  } wrong[] = {{"rule=edge", "rule=edge: expected tag or stream", OPIPE_E_INVALID},
               {"latency_us=3", "'latency_us'", OPIPE_E_NOTFOUND},
               {"meet=", "meet=: a name of 1 to 63 characters", OPIPE_E_INVALID}};
  bench b;
  opipe_world *world = NULL;
  setup(&b, NULL, false);
  for (size_t i = 0; i < OPI_COUNT(wrong); ++i) {
    OPI_ASSERT_ERROR(open_world(&b, b.self, wrong[i].options, &world), wrong[i].status, &b.err,
                     wrong[i].part);
  }
  teardown(&b);
}

OPI_TEST_MAIN("transport-strict, refusals", OPI_TEST(test_regions_lie_in_registered_memory),
              OPI_TEST(test_what_is_registered), OPI_TEST(test_memory_in_flight_is_not_dropped),
              OPI_TEST(test_numbers_outside_the_window), OPI_TEST(test_numbers_are_used_once),
              OPI_TEST(test_order_of_a_stream), OPI_TEST(test_sizes),
              OPI_TEST(test_ends_that_differ), OPI_TEST(test_other_end),
              OPI_TEST(test_messages_before_ready), OPI_TEST(test_two_threads_at_once),
              OPI_TEST(test_thread_of_another_rank), OPI_TEST(test_groups_in_order),
              OPI_TEST(test_rounds_in_order), OPI_TEST(test_world_before_its_endpoints),
              OPI_TEST(test_endpoint_before_its_streams), OPI_TEST(test_endpoint_before_its_memory),
              OPI_TEST(test_stream_with_a_message_on_its_way),
              OPI_TEST(test_receive_that_nobody_sent_to), OPI_TEST(test_options))
