/* SPDX-License-Identifier: Apache-2.0 */
/* transport-local between ranks whose memory has no host address: on one GPU, in two openings of
 * it, and on two of which one reaches the other's memory, messages are copied and sums added where
 * they lie; between two others both go through pinned host memory. The same values either
 * way.
 */
#include <opipe/transport.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { RANKS = 2, N = 300, BYTES = N * sizeof(float), DEPTH = 2, ROOM = 4096, AT = 256 };
static const uint64_t PATIENCE_NS = UINT64_C(30000000000);

typedef struct rank {
  opipe_device *device;
  opipe_queue *queue;
  opipe_buffer *buffer;
  opipe_event *event;
  opipe_endpoint *end;
  opipe_memory *memory;
  opipe_stream *stream;
  opipe_group *group;
  opipe_region region;
} rank;

typedef struct pair {
  ct_backend b;
  const opipe_plugin *plugin;
  opipe_instance *self;
  const opipe_transport *t;
  opipe_world *world;
  rank ranks[RANKS];
} pair;

static void open_rank(pair *p, uint32_t i, uint32_t gpu) {
  const opipe_backend *t = p->b.base.table;
  rank *r = &p->ranks[i];
  const opipe_device_params open = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options), .index = gpu, .threads = 1};
  OPI_ASSERT_OK_FATAL(t->device_open(p->b.base.self, &open, &r->device, &err), &err);
  OPI_ASSERT_OK_FATAL(t->queue_open(r->device, &r->queue, &err), &err);
  OPI_ASSERT_OK_FATAL(t->buffer_alloc(r->device, ROOM, OPIPE_BUFFER_BOUNDARY, &r->buffer, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(t->event_create(r->device, &r->event, &err), &err);
  r->region = (opipe_region){r->buffer, AT, BYTES};
  const opipe_endpoint_params end = {
      .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved2),
      .rank = i,
      .backend = t,
      .device = r->device,
      .queue = r->queue,
      .backend_self = p->b.base.self,
      .backend_id = "cuda",
      .device_index = gpu};
  OPI_ASSERT_OK_FATAL(p->t->endpoint_open(p->world, &end, &r->end, &err), &err);
}

static void open_links(pair *p, uint32_t i) {
  static const uint32_t all[RANKS] = {0, 1};
  rank *r = &p->ranks[i];
  const opipe_stream_params stream = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .dst_rank = 1,
      .dst_stage = 1,
      .depth = DEPTH,
      .n_bytes = BYTES};
  OPI_ASSERT_OK_FATAL(p->t->memory_register(r->end, r->buffer, ROOM, &r->memory, &err), &err);
  OPI_ASSERT_OK_FATAL(p->t->stream_open(r->end, &stream, &r->stream, &err), &err);
  OPI_ASSERT_OK_FATAL(p->t->group_open(r->end, all, RANKS, BYTES, &r->group, &err), &err);
}

static void open_pair(pair *p, uint32_t first_gpu, uint32_t second_gpu) {
  static const opipe_world_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_world_params, options), .n_ranks = RANKS};
  void *library =
      dlopen(opi_test_build("lib/onnx-pipe/opipe-transport-local.so"), RTLD_NOW | RTLD_LOCAL);
  OPI_ASSERT_FATAL(library != NULL);
  p->plugin = dlsym(library, "opipe_plugin_v1");
  OPI_ASSERT_OK_FATAL(p->plugin->open(&p->b.base.host, &p->self, &err), &err);
  p->t = p->plugin->get_interface(p->self, OPIPE_TRANSPORT_ID);
  OPI_ASSERT_OK_FATAL(p->t->world_open(p->self, &params, &p->world, &err), &err);
  open_rank(p, 0, first_gpu);
  open_rank(p, 1, second_gpu);
  open_links(p, 0);
  open_links(p, 1);
}

static void close_pair(pair *p) {
  const opipe_backend *t = p->b.base.table;
  for (uint32_t i = 0; i < RANKS; ++i) {
    rank *r = &p->ranks[i];
    p->t->group_close(r->group);
    p->t->stream_close(r->stream);
    p->t->memory_drop(r->memory);
    p->t->endpoint_close(r->end);
    t->event_destroy(r->event);
    t->queue_close(r->queue);
    t->buffer_free(r->buffer);
    t->device_close(r->device);
  }
  p->t->world_close(p->world);
  p->plugin->close(p->self);
  bt_close(&p->b.base);
}

/* values [N] to the rank's region, where nobody has waited for them; its event stands behind. */
static void put(pair *p, uint32_t i, const float *values) {
  const opipe_backend *t = p->b.base.table;
  rank *r = &p->ranks[i];
  const opipe_region aside = {r->buffer, AT + ROOM / 2, BYTES};
  OPI_ASSERT_OK_FATAL(t->write(r->queue, &aside, values, &err), &err);
  OPI_ASSERT_OK_FATAL(t->copy(r->queue, &r->region, &aside, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_record(r->queue, r->event, &err), &err);
}

static void expect(pair *p, uint32_t i, const float *wanted) {
  const opipe_backend *t = p->b.base.table;
  float got[N];
  rank *r = &p->ranks[i];
  OPI_ASSERT_OK_FATAL(t->read(r->queue, got, &r->region, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_record(r->queue, r->event, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_sync(r->event, PATIENCE_NS, &err), &err);
  OPI_ASSERT(memcmp(got, wanted, sizeof got) == 0);
}

static void hold(pair *p, uint32_t i, bool held) {
  void (*double_hold)(CUstream stream, bool hold) = NULL;
  const rank *r = &p->ranks[i];
  uint64_t stream = 0;
  *(void **)(void *)&double_hold = p->b.double_hold;
  OPI_ASSERT_OK_FATAL(
      p->b.base.table->native(r->device, OPIPE_NATIVE_QUEUE, r->queue, &stream, &err), &err);
  double_hold((CUstream)(uintptr_t)stream, held);
}

/* Nothing comes before the work of the rank that is held goes on. */
static void expect_nothing(pair *p, uint64_t number, bool message, uint32_t held) {
  for (uint32_t i = 0; i < 100; ++i) {
    const rank *r = &p->ranks[i % RANKS];
    const opipe_status status =
        message ? p->t->test(r->stream, number, &err) : p->t->group_test(r->group, number, &err);
    OPI_ASSERT_FATAL(status == OPIPE_PENDING);
  }
  hold(p, held, false);
}

/* Both ends are asked in turn until both say OK. */
static void finish(pair *p, uint64_t number, bool message) {
  bool done[RANKS] = {false, false};
  const uint64_t until = ct_now(NULL) + PATIENCE_NS;
  while ((!done[0] || !done[1]) && ct_now(NULL) < until) {
    for (uint32_t i = 0; i < RANKS; ++i) {
      const rank *r = &p->ranks[i];
      const opipe_status status =
          message ? p->t->test(r->stream, number, &err) : p->t->group_test(r->group, number, &err);
      OPI_ASSERT_FATAL(status == OPIPE_OK || status == OPIPE_PENDING);
      done[i] = status == OPIPE_OK;
    }
  }
  OPI_ASSERT_FATAL(done[0] && done[1]);
}

static void fill(float *values, uint32_t seed) {
  for (int i = 0; i < N; ++i)
    values[i] = (float)((i * 7 + (int)seed * 13) % 101) / 3.0f;
}

/* More messages than a stream has cells: each comes whole, and behind what made it. */
static void send_some(pair *p, bool near) {
  for (uint64_t number = 0; number < 2 * DEPTH + 1; ++number) {
    float values[N], none[N] = {0};
    fill(values, (uint32_t)number);
    put(p, 1, none);
    OPI_ASSERT_OK_FATAL(p->b.base.table->event_sync(p->ranks[1].event, PATIENCE_NS, &err), &err);
    OPI_ASSERT_OK_FATAL(p->t->recv(p->ranks[1].stream, number, &p->ranks[1].region, NULL, &err),
                        &err);
    put(p, 0, values);
    if (near) /* else it waits for the host */
      hold(p, 0, true);
    OPI_ASSERT_OK_FATAL(
        p->t->send(p->ranks[0].stream, number, &p->ranks[0].region, p->ranks[0].event, NULL, &err),
        &err);
    if (near)
      expect_nothing(p, number, true, 0);
    finish(p, number, true);
    expect(p, 1, values);
  }
}

static void sum_some(pair *p, bool near) {
  for (uint64_t round = 0; round < 3; ++round) {
    float values[RANKS][N], sums[N];
    for (uint32_t i = 0; i < RANKS; ++i) {
      fill(values[i], 50 * i + (uint32_t)round);
      put(p, i, values[i]);
    }
    if (near)
      hold(p, 1, true);
    for (int i = 0; i < N; ++i)
      sums[i] = values[0][i] + values[1][i];
    for (uint32_t i = 0; i < RANKS; ++i) {
      const rank *r = &p->ranks[i];
      const uint64_t until = ct_now(NULL) + PATIENCE_NS;
      opipe_status status = OPIPE_PENDING;
      while (status == OPIPE_PENDING && ct_now(NULL) < until) {
        status =
            p->t->all_reduce(r->group, round, &r->region, N, OPIPE_FLOAT, r->event, NULL, &err);
      }
      OPI_ASSERT_OK_FATAL(status, &err);
    }
    if (near)
      expect_nothing(p, round, false, 1);
    finish(p, round, false);
    expect(p, 0, sums);
    expect(p, 1, sums);
  }
}

/* The words of the stream's two ends, and what was foretold of them. */
static void expect_way(pair *p, uint32_t second_gpu, uint32_t way, const char *why, bool foretold) {
  const opipe_stream_params stream = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .dst_rank = 1,
      .dst_stage = 1,
      .depth = DEPTH,
      .n_bytes = BYTES};
  const opipe_way_params params = {.struct_size = (uint32_t)sizeof params,
                                   .dst_index = second_gpu,
                                   .src_backend = p->b.base.table,
                                   .dst_backend = p->b.base.table,
                                   .src_self = p->b.base.self,
                                   .dst_self = p->b.base.self,
                                   .stream = &stream};
  const uint64_t ring = way == OPIPE_WAY_STAGED ? 4096 : 0; /* 2 messages of 1280 bytes, pages */
  opipe_way said[3] = {{.struct_size = (uint32_t)sizeof said[0]},
                       {.struct_size = (uint32_t)sizeof said[0]},
                       {.struct_size = (uint32_t)sizeof said[0]}};
  for (uint32_t i = 0; i < RANKS; ++i)
    OPI_ASSERT_OK_FATAL(p->t->stream_way(p->ranks[i].stream, &said[i], &err), &err);
  OPI_ASSERT_OK_FATAL(p->t->way(p->self, NULL, &params, &said[2], &err), &err);
  for (uint32_t i = 0; i < (foretold ? 3u : 2u); ++i) {
    OPI_ASSERT_INT(said[i].way, way);
    OPI_ASSERT(strstr(said[i].why, why) != NULL);
    OPI_ASSERT_INT(said[i].src_bytes, 0);
    OPI_ASSERT_INT(said[i].dst_bytes, i == 0 ? 0 : ring);
  }
}

/* Counts the copies through host memory beside those that the test itself makes. */
static void run_pair(uint32_t second_gpu, const char *peers, uint32_t way, const char *why) {
  const bool near = way != OPIPE_WAY_STAGED;
  pair p;
  cuda_double_facts before, between, after;
  memset(&p, 0, sizeof p);
  OPI_ASSERT_FATAL(setenv("OPIPE_CUDA_DOUBLE_PEERS", peers, 1) == 0);
  CT_OPEN(&p.b);
  open_pair(&p, 0, second_gpu);
  expect_way(&p, second_gpu, way, why, strcmp(peers, "2") != 0);
  p.b.look(&before);
  send_some(&p, near);
  p.b.look(&between);
  sum_some(&p, near);
  p.b.look(&after);
  const uint64_t messages = 2 * DEPTH + 1, rounds = 3;
  const uint64_t copied = way == OPIPE_WAY_DEVICE, beside = way == OPIPE_WAY_PEER;
  OPI_ASSERT_INT(between.reads - before.reads, messages * (near ? 1 : 2));
  OPI_ASSERT_INT(between.writes - before.writes, messages * (near ? 2 : 3));
  OPI_ASSERT_INT(between.copies - before.copies, messages * (2 + copied));
  OPI_ASSERT_INT(between.peer_copies - before.peer_copies, messages * beside);
  OPI_ASSERT_INT(after.reads - between.reads, rounds * (near ? 2 : 4));
  OPI_ASSERT_INT(after.writes - between.writes, rounds * (near ? 2 : 4));
  OPI_ASSERT_INT(after.copies - between.copies, rounds * (2 + copied));
  OPI_ASSERT_INT(after.peer_copies - between.peer_copies, rounds * beside);
  /* the test's own are of memory on its stack: nothing else waits in the driver */
  OPI_ASSERT_INT(between.pageable - before.pageable, messages * 3);
  OPI_ASSERT_INT(after.pageable - between.pageable, rounds * 4);
  close_pair(&p);
}

static void test_one_gpu(void) {
  run_pair(0, "0", OPIPE_WAY_DEVICE, "");
}

static void test_two_gpus(void) {
  run_pair(1, "0", OPIPE_WAY_STAGED, "device 0 does not reach memory of device 1");
}

static void test_two_gpus_that_reach_each_other(void) {
  run_pair(1, "1", OPIPE_WAY_PEER, "");
}

/* The driver promises access, and then refuses it. */
static void test_a_peer_that_is_refused(void) {
  run_pair(1, "2", OPIPE_WAY_STAGED, "which does not reach it");
}

OPI_TEST_MAIN("transport-local between openings of CUDA", OPI_TEST(test_one_gpu),
              OPI_TEST(test_two_gpus), OPI_TEST(test_two_gpus_that_reach_each_other),
              OPI_TEST(test_a_peer_that_is_refused))
