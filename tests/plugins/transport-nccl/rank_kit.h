/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of transport-nccl itself, without the core, one in each forked process, on the doubles: a
 * board, an endpoint with memory, streams, groups.
 */
#ifndef TESTS_PLUGINS_TRANSPORT_NCCL_RANK_KIT_H_
#define TESTS_PLUGINS_TRANSPORT_NCCL_RANK_KIT_H_

#include <opipe/transport.h>

#include "double_kit.h"
#include "tests/plugins/backend-cuda/cuda_test.h"

enum { NOTES = 32, DEPTH = 300, BYTES = 64, AREA = 65536, GROUPS = 5 };

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

static inline note *find(const char *key) {
  for (int i = 0; i < NOTES; ++i) {
    if (atomic_load(&notes[i].state) == 2 && strcmp(notes[i].key, key) == 0)
      return &notes[i];
  }
  return NULL;
}

static inline opipe_status post(void *ctx, const char *key, const void *bytes, uint64_t n_bytes,
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

static inline opipe_status look(void *ctx, const char *key, void *out, uint64_t *io_bytes,
                                opipe_error *err) {
  const note *there = find(key);
  (void)ctx, (void)err;
  if (there == NULL)
    return OPIPE_PENDING;
  *io_bytes = there->n_bytes;
  memcpy(out, there->bytes, there->n_bytes);
  return OPIPE_OK;
}

static inline void need_ok(const rank *r, opipe_status status, const char *what) {
  need(status >= 0, "rank %d: %s: %s", r->m->rank, what, r->err.message);
}

static inline void need_refused(const rank *r, opipe_status status, opipe_status wanted,
                                const char *words) {
  need(status == wanted && strstr(r->err.message, words) != NULL, "rank %d: %d, not %d: %s",
       r->m->rank, status, wanted, status < 0 ? r->err.message : "no error");
}

static inline void open_rank(rank *r, member *m, const char *options) {
  static const uint32_t indices[MOST] = {0, 1, 2, 3};
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
                                    .n_ranks = (uint32_t)m->n,
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

static inline opipe_status open_stream(rank *r) {
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .dst_rank = 1,
      .dst_stage = 1,
      .depth = DEPTH,
      .n_bytes = BYTES};
  return r->t->stream_open(r->end, &params, &r->stream, &r->err);
}

/* Group i, of these ranks. */
static inline opipe_status open_group(rank *r, uint32_t i, const uint32_t *ranks, uint32_t n) {
  const opipe_collective_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, reserved),
      .n_ranks = n,
      .ranks = ranks,
      .id = i,
      .n_bytes = 4096,
      .n_regions = 1};
  return r->t->collective_open(r->end, &params, &r->groups[i], &r->err);
}

static inline void get_ready(rank *r) {
  opipe_status status = OPIPE_PENDING;
  while ((status = r->t->endpoint_ready(r->end, &r->err)) == OPIPE_PENDING)
    nap_us(100);
  need_ok(r, status, "endpoint_ready");
}

/* Nobody leaves before the other has seen what it was to see. */
static inline void meet(const rank *r, int flag) {
  atomic_fetch_add(&r->m->board->flags[flag], 1);
  while (atomic_load(&r->m->board->flags[flag]) < r->m->n)
    nap_us(100);
}

static inline void close_rank(rank *r) {
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

/* In n processes: all come to their end, and somebody prints these words. */
static inline void run_ranks(int n, void (*body)(member *m), const char *words) {
  team t = {.n = n};
  notes =
      mmap(NULL, NOTES * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(notes != MAP_FAILED);
  if (run_team(&t, body) && (t.ended != n || strstr(t.text, words) == NULL))
    OPI_FAIL("%d of %d came to their end, '%s': %s", t.ended, n, words, t.text);
  OPI_ASSERT(munmap(notes, NOTES * sizeof *notes) == 0);
}

#endif /* TESTS_PLUGINS_TRANSPORT_NCCL_RANK_KIT_H_ */
