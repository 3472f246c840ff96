/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals of transport-nccl, by name: batches that are too long, openings that would need a
 * connection later, and sums whose order differs on two ranks. Two processes, on doubles.
 * ctest: timeout=60 */
#include <opipe/transport.h>

#include "double_kit.h"
#include "tests/plugins/backend-cuda/cuda_test.h"

enum { RANKS = 2, NOTES = 16, DEPTH = 300, BYTES = 64, AREA = 65536, GROUPS = 2 };

typedef struct note {
  _Atomic int state; /* 1: being written, 2: there */
  char key[OPIPE_BOARD_KEY];
  uint64_t n_bytes;
  unsigned char bytes[OPIPE_BOARD_BYTES];
} note;

typedef struct rank {
  member *m;
  ct_backend b;
  const opipe_plugin *plugin;
  opipe_instance *self;
  const opipe_transport *t;
  opipe_board board;
  opipe_world *world;
  opipe_device *device;
  opipe_queue *queue;
  opipe_buffer *buffer;
  opipe_endpoint *end;
  opipe_memory *memory;
  opipe_stream *stream;
  opipe_collective *groups[GROUPS];
  opipe_error err;
} rank;

static note *notes; /* [NOTES], shared by the processes */

static note *find(const char *key) {
  for (int i = 0; i < NOTES; ++i) {
    if (atomic_load(&notes[i].state) == 2 && strcmp(notes[i].key, key) == 0)
      return &notes[i];
  }
  return NULL;
}

static opipe_status post(void *ctx, const char *key, const void *bytes, uint64_t n_bytes,
                         opipe_error *err) {
  (void)ctx;
  if (find(key) != NULL)
    return opipe_fail(err, OPIPE_E_STATE, "the key '%s' is taken", key);
  for (int i = 0; i < NOTES; ++i) {
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&notes[i].state, &nobody, 1))
      continue;
    (void)snprintf(notes[i].key, sizeof notes[i].key, "%s", key);
    memcpy(notes[i].bytes, bytes, n_bytes);
    notes[i].n_bytes = n_bytes;
    atomic_store(&notes[i].state, 2);
    return OPIPE_OK;
  }
  return opipe_fail(err, OPIPE_E_LIMIT, "the board is full");
}

static opipe_status look(void *ctx, const char *key, void *out, uint64_t *io_bytes,
                         opipe_error *err) {
  const note *there = find(key);
  (void)ctx, (void)err;
  if (there == NULL)
    return OPIPE_PENDING;
  *io_bytes = there->n_bytes;
  memcpy(out, there->bytes, there->n_bytes);
  return OPIPE_OK;
}

static void need_ok(const rank *r, opipe_status status, const char *what) {
  need(status >= 0, "rank %d: %s: %s", r->m->rank, what, r->err.message);
}

static void need_refused(const rank *r, opipe_status status, opipe_status wanted,
                         const char *words) {
  need(status == wanted && strstr(r->err.message, words) != NULL, "rank %d: %d, not %d: %s",
       r->m->rank, status, wanted, status < 0 ? r->err.message : "no error");
}

static void open_rank(rank *r, member *m, const char *options) {
  static const uint32_t indices[RANKS] = {0, 1};
  void *library =
      dlopen(opi_test_build("lib/onnx-pipe/opipe-transport-nccl.so"), RTLD_NOW | RTLD_LOCAL);
  memset(r, 0, sizeof *r);
  r->m = m;
  r->err = (opipe_error)OPIPE_ERROR_INIT;
  need(library != NULL && ct_open(&r->b), "the plugins cannot be opened");
  const opipe_backend *b = r->b.base.table;
  r->plugin = dlsym(library, "opipe_plugin_v1");
  need_ok(r, r->plugin->open(&r->b.base.host, &r->self, &r->err), "open");
  r->t = r->plugin->get_interface(r->self, OPIPE_TRANSPORT_ID);
  r->board = (opipe_board){(uint32_t)sizeof r->board, 0, NULL, post, look};
  const opipe_device_params device = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .index = (uint32_t)m->rank,
      .threads = 1};
  need_ok(r, b->device_open(r->b.base.self, &device, &r->device, &r->err), "device_open");
  need_ok(r, b->queue_open(r->device, &r->queue, &r->err), "queue_open");
  need_ok(r, b->buffer_alloc(r->device, AREA, OPIPE_BUFFER_BOUNDARY, &r->buffer, &r->err),
          "buffer_alloc");
  const opipe_world_params world = {.struct_size = (uint32_t)OPIPE_END(opipe_world_params, board),
                                    .n_ranks = RANKS,
                                    .options = options,
                                    .local_ranks = &indices[m->rank],
                                    .n_local_ranks = 1,
                                    .job = "test",
                                    .board = &r->board};
  need_ok(r, r->t->world_open(r->self, &world, &r->world, &r->err), "world_open");
  const opipe_endpoint_params end = {
      .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
      .rank = (uint32_t)m->rank,
      .backend = b,
      .device = r->device,
      .queue = r->queue,
      .backend_self = r->b.base.self,
      .backend_id = "cuda"};
  need_ok(r, r->t->endpoint_open(r->world, &end, &r->end, &r->err), "endpoint_open");
  need_ok(r, r->t->memory_register(r->end, r->buffer, AREA, &r->memory, &r->err),
          "memory_register");
}

static opipe_status open_stream(rank *r) {
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .dst_rank = 1,
      .dst_stage = 1,
      .depth = DEPTH,
      .n_bytes = BYTES};
  return r->t->stream_open(r->end, &params, &r->stream, &r->err);
}

static opipe_status open_group(rank *r, uint32_t i, uint32_t n_ranks) {
  static const uint32_t ranks[RANKS] = {0, 1};
  const opipe_collective_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, reserved),
      .n_ranks = n_ranks,
      .ranks = n_ranks == 1 ? &ranks[r->m->rank] : ranks,
      .id = i,
      .n_bytes = 4096,
      .n_regions = 1};
  return r->t->collective_open(r->end, &params, &r->groups[i], &r->err);
}

static void get_ready(rank *r) {
  opipe_status status = OPIPE_PENDING;
  while ((status = r->t->endpoint_ready(r->end, &r->err)) == OPIPE_PENDING)
    nap_us(100);
  need_ok(r, status, "endpoint_ready");
}

/* Nobody leaves before the other has seen what it was to see. */
static void meet(const rank *r, int flag) {
  atomic_fetch_add(&r->m->board->flags[flag], 1);
  while (atomic_load(&r->m->board->flags[flag]) < RANKS)
    nap_us(100);
}

static void close_rank(rank *r) {
  const opipe_backend *b = r->b.base.table;
  meet(r, FLAGS - 1);
  for (int i = 0; i < GROUPS; ++i)
    r->t->collective_close(r->groups[i]);
  r->t->stream_close(r->stream);
  r->t->memory_drop(r->memory);
  r->t->endpoint_close(r->end);
  r->t->world_close(r->world);
  b->queue_close(r->queue);
  b->buffer_free(r->buffer);
  b->device_close(r->device);
  r->plugin->close(r->self);
}

/* Both ends note as many as are possible, and one more; the rest of the batch is valid. */
static void note_many(member *m) {
  rank r;
  open_rank(&r, m, "record=no");
  need_ok(&r, open_stream(&r), "stream_open");
  get_ready(&r);
  need_ok(&r, r.t->batch_begin(r.end, &r.err), "batch_begin");
  for (uint64_t i = 0; i <= OPIPE_BATCH_MOST; ++i) {
    const opipe_region at = {r.buffer, i * BYTES, BYTES};
    const opipe_status status = m->rank == 0 ? r.t->send(r.stream, i, &at, NULL, NULL, &r.err)
                                             : r.t->recv(r.stream, i, &at, NULL, &r.err);
    if (i < OPIPE_BATCH_MOST)
      need_ok(&r, status, "an operation of a batch");
    else
      need_refused(&r, status, OPIPE_E_LIMIT, "257 operations or more, at most 256 are possible");
  }
  need_ok(&r, r.t->batch_end(r.end, &r.err), "batch_end");
  opipe_status status = OPIPE_PENDING;
  while ((status = r.t->test(r.stream, OPIPE_BATCH_MOST - 1, &r.err)) == OPIPE_PENDING)
    nap_us(100);
  need_ok(&r, status, "test");
  close_rank(&r);
}

static void open_late(member *m) {
  rank r;
  open_rank(&r, m, "record=no");
  get_ready(&r);
  need_refused(&r, open_stream(&r), OPIPE_E_STATE, "would be opened lazily");
  need_refused(&r, open_group(&r, 0, 1), OPIPE_E_STATE, "would be opened lazily");
  need_ok(&r, open_group(&r, 1, RANKS), "a group of all ranks, whose communicator is there");
  close_rank(&r);
}

/* 1 or 2 values, in groups of the same ranks: one order on rank 0, the other one on rank 1. */
static void sum_in_other_order(member *m) {
  rank r;
  open_rank(&r, m, "record=no,check=1");
  for (uint32_t i = 0; i < GROUPS; ++i)
    need_ok(&r, open_group(&r, i, RANKS), "collective_open");
  get_ready(&r);
  const uint32_t which = (uint32_t)m->rank;
  const opipe_region at = {r.buffer, 0, (which + 1) * sizeof(float)};
  const opipe_collect sum = {.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                             .kind = OPIPE_COLLECT_ALL_REDUCE,
                             .dtype = OPIPE_FLOAT,
                             .n_from = 1,
                             .n_to = 1,
                             .from = &at,
                             .to = &at};
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) {
    status = r.t->collect(r.groups[which], 0, &sum, &r.err);
    nap_us(100);
  }
  while (status == OPIPE_OK || status == OPIPE_PENDING) {
    status = r.t->collect_test(r.groups[which], 0, &r.err);
    need(status != OPIPE_OK, "rank %d: the sum is over", m->rank);
    nap_us(100);
  }
  need_refused(&r, status, OPIPE_E_INVALID, "rank ");
  (void)fprintf(stderr, "%s\n", r.err.message);
  close_rank(&r);
}

static void expect_refusal(void (*body)(member *m), const char *words) {
  team t = {.n = RANKS};
  notes =
      mmap(NULL, NOTES * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(notes != MAP_FAILED);
  if (run_team(&t, body) && (t.ended != RANKS || strstr(t.text, words) == NULL))
    OPI_FAIL("%d of %d came to their end, '%s': %s", t.ended, RANKS, words, t.text);
  OPI_ASSERT(munmap(notes, NOTES * sizeof *notes) == 0);
}

static void test_long_batches_are_refused(void) {
  expect_refusal(note_many, "");
}

static void test_lazy_communicators_are_refused(void) {
  expect_refusal(open_late, "");
}

static void test_sums_in_another_order_are_refused(void) {
  expect_refusal(
      sum_in_other_order,
      "rank 0 comes to an all-reduce of 1 float32, rank 1 to an all-reduce of 2 float32");
}

OPI_TEST_MAIN("refusals of transport-nccl", OPI_TEST(test_long_batches_are_refused),
              OPI_TEST(test_lazy_communicators_are_refused),
              OPI_TEST(test_sums_in_another_order_are_refused))
