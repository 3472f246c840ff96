/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a world of two ranks, each in a process of its own: tests of transport-shm, and of
 * transport-ucx, where pair_transport says so.
 */
#ifndef TESTS_TRANSPORT_SHM_PAIR_H
#define TESTS_TRANSPORT_SHM_PAIR_H

#define OPIPE_HELPERS_HOST_DEVICE
#include <dlfcn.h>
#include <opipe/helpers.h>
#include <opipe/transport.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/support.h"

enum { N_NOTES = 8, BYTES = 16384, SUMMED = 20000 };

static const char *pair_transport = "shm", *pair_options;

/* ---- the board: memory that forked processes share ---- */

typedef struct note {
  _Atomic int state; /* 1: being written, 2: there */
  char key[OPIPE_BOARD_KEY];
  char bytes[OPIPE_BOARD_BYTES];
  uint64_t n_bytes;
} note;

static opipe_status post(void *ctx, const char *key, const void *bytes, uint64_t n_bytes,
                         opipe_error *err) {
  note *notes = ctx;
  for (int i = 0; i < N_NOTES; ++i) {
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

static opipe_status look(void *ctx, const char *key, void *out_bytes, uint64_t *io_bytes,
                         opipe_error *err) {
  note *notes = ctx;
  (void)err;
  for (int i = 0; i < N_NOTES; ++i) {
    if (atomic_load(&notes[i].state) != 2 || strcmp(notes[i].key, key) != 0)
      continue;
    memcpy(out_bytes, notes[i].bytes, notes[i].n_bytes);
    *io_bytes = notes[i].n_bytes;
    return OPIPE_OK;
  }
  return OPIPE_PENDING;
}

/* ---- a process ---- */

static void *plain_realloc(void *ctx, void *data, uint64_t old_bytes, uint64_t n_bytes,
                           uint64_t align) {
  void *more = NULL;
  (void)ctx;
  (void)old_bytes;
  if (data != NULL && n_bytes == 0)
    free(data);
  else if (data == NULL)
    more = aligned_alloc(align < 16 ? 16 : align, (n_bytes + 255) / 256 * 256);
  return more;
}
static char logged[512]; /* the last warning, or what is worse */
static void keep_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  if (level <= OPIPE_LOG_WARN)
    (void)snprintf(logged, sizeof logged, "%s", msg);
}
static uint64_t now_ns(void *ctx) {
  struct timespec t;
  (void)ctx;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}
static const void *no_service(void *ctx, const char *id) {
  (void)ctx;
  (void)id;
  return NULL;
}
static const opipe_host host = {(uint32_t)OPIPE_END(opipe_host, get_interface),
                                OPIPE_ABI_MAJOR,
                                OPIPE_ABI_MINOR,
                                NULL,
                                plain_realloc,
                                keep_log,
                                now_ns,
                                no_service};

typedef struct end {
  const opipe_plugin *plugin;
  opipe_instance *self;
  const opipe_transport *t;
  opipe_board board;
  opipe_world *world;
  opipe_endpoint *endpoint;
  opipe_device *device;
  opipe_queue *queue;
  opipe_buffer *slots, *own;
  opipe_memory *memory, *own_memory;
  opipe_stream *in, *out;
  opipe_group *group;
  opipe_error err;
  void *data;
  uint64_t patience_ns; /* how long it waits for anything */
  uint32_t spin_us;
} end;

static const opipe_backend host_memory = {(uint32_t)OPIPE_END(opipe_backend, run),
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

#define TRY(call)                       \
  do {                                  \
    const opipe_status tried_ = (call); \
    if (tried_ < 0)                     \
      return tried_;                    \
  } while (0)
/* Until it is no longer pending; waits at the doorbell. */
#define UNTIL(e, call)                                                    \
  for (;;) {                                                              \
    const uint32_t seen_ = (e)->t->doorbell((e)->endpoint);               \
    const opipe_status status_ = (call);                                  \
    if (status_ < 0)                                                      \
      return status_;                                                     \
    if (status_ == OPIPE_OK)                                              \
      break;                                                              \
    TRY((e)->t->wait((e)->endpoint, seen_, (e)->patience_ns, &(e)->err)); \
  }

/* The plugin, a world, a device. */
static inline opipe_status open_world(end *e, uint32_t rank, note *notes) {
  char path[4096];
  const char *folders = getenv("OPIPE_PLUGIN_PATH");
  (void)snprintf(path, sizeof path, "%.*s/opipe-transport-%s.so",
                 folders == NULL ? 0 : (int)strcspn(folders, ":"), folders == NULL ? "" : folders,
                 pair_transport);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  e->plugin = library == NULL ? NULL : dlsym(library, "opipe_plugin_v1");
  e->err.struct_size = sizeof e->err;
  if (e->plugin == NULL)
    return opipe_fail(&e->err, OPIPE_E_NOTFOUND, "%s cannot be loaded", path);
  TRY(e->plugin->open(&host, &e->self, &e->err));
  e->t = e->plugin->get_interface(e->self, OPIPE_TRANSPORT_ID);
  e->board = (opipe_board){(uint32_t)sizeof e->board, 0, notes, post, look};
  const opipe_world_params world = {.struct_size = (uint32_t)sizeof world,
                                    .n_ranks = 2,
                                    .options = pair_options,
                                    .local_ranks = &rank,
                                    .n_local_ranks = 1,
                                    .job = "test",
                                    .board = &e->board};
  TRY(e->t->world_open(e->self, &world, &e->world, &e->err));
  const opipe_device_params device = {.struct_size = (uint32_t)sizeof device};
  TRY(opipe_host_device_open(&host, &device, &e->device, &e->err));
  return opipe_host_queue_open(e->device, &e->queue, &e->err);
}

/* All but what needs the other. */
static inline opipe_status open_end(end *e, uint32_t rank, note *notes) {
  static const uint32_t both[2] = {0, 1};
  TRY(open_world(e, rank, notes));
  const opipe_endpoint_params params = {.struct_size = (uint32_t)sizeof params,
                                        .rank = rank,
                                        .backend = &host_memory,
                                        .device = e->device,
                                        .queue = e->queue,
                                        .backend_id = "host",
                                        .spin_us = e->spin_us};
  TRY(e->t->endpoint_open(e->world, &params, &e->endpoint, &e->err));
  TRY(e->t->memory_alloc(e->endpoint, BYTES, &e->data, &e->err));
  TRY(opipe_host_buffer_import(e->device, (uint64_t)(uintptr_t)e->data, BYTES, &e->slots, &e->err));
  TRY(opipe_host_buffer_alloc(e->device, SUMMED * sizeof(float), OPIPE_BUFFER_BOUNDARY, &e->own,
                              &e->err));
  TRY(e->t->memory_register(e->endpoint, e->slots, BYTES, &e->memory, &e->err));
  TRY(e->t->memory_register(e->endpoint, e->own, SUMMED * sizeof(float), &e->own_memory, &e->err));
  for (uint32_t src = 0; src < 2; ++src) {
    const opipe_stream_params p = {.struct_size = (uint32_t)sizeof p,
                                   .src_rank = src,
                                   .dst_rank = 1 - src,
                                   .src_stage = src,
                                   .dst_stage = 1 - src,
                                   .depth = 2,
                                   .n_bytes = BYTES};
    TRY(e->t->stream_open(e->endpoint, &p, src == rank ? &e->out : &e->in, &e->err));
  }
  return e->t->group_open(e->endpoint, both, 2, SUMMED * sizeof(float), &e->group, &e->err);
}

static inline opipe_status await_ready(end *e) {
  for (const uint64_t start = now_ns(NULL);;) {
    const struct timespec pause = {.tv_nsec = 100000};
    const opipe_status status = e->t->endpoint_ready(e->endpoint, &e->err);
    if (status != OPIPE_PENDING)
      return status;
    if (now_ns(NULL) - start > e->patience_ns)
      return opipe_fail(&e->err, OPIPE_E_TIMEOUT, "the other has not come");
    (void)nanosleep(&pause, NULL);
  }
}

static inline void close_end(end *e) {
  e->t->group_close(e->group);
  e->t->stream_close(e->in);
  e->t->stream_close(e->out);
  e->t->memory_drop(e->memory);
  e->t->memory_drop(e->own_memory);
  opipe_host_buffer_free(e->slots);
  e->t->memory_free(e->endpoint, e->data);
  e->t->endpoint_close(e->endpoint);
  e->t->world_close(e->world);
  opipe_host_buffer_free(e->own);
  opipe_host_queue_close(e->queue);
  opipe_host_device_close(e->device);
  e->plugin->close(e->self);
}

static int status_of(pid_t pid) {
  int status = 0;
  (void)waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

/* Asked in another process: this one does not load it. */
static inline bool ucx_is_there(void) {
  const pid_t pid = fork();
  if (pid == 0)
    _exit(dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL) == NULL);
  return status_of(pid) == 0;
}

/* Every message by UCX. False: it is not there. */
static inline bool take_ucx(void) {
  pair_transport = "ucx";
  pair_options = "together=1";
  return ucx_is_there();
}

static note *new_board(void) {
  return mmap(NULL, N_NOTES * sizeof(note), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
              0);
}

#endif /* TESTS_TRANSPORT_SHM_PAIR_H */
