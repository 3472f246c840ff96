/* SPDX-License-Identifier: Apache-2.0 */
/* A backend for emulated devices to stand on that writes down what is done, in order, and can be
 * held up: what it is told to do comes with the runs' scalars. Its host counts allocations and
 * messages of the log.
 */
#ifndef TESTS_EMULATED_INNER_H
#define TESTS_EMULATED_INNER_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "opipe/helpers.h"
#include "tests/support/support.h"

extern const opipe_plugin OPIPE_PLUGIN_STATIC(backend_emulated);

/* Scalars of a run: what it is called, whether it waits at the gate, what it answers. */
enum { RUN_NAME = 0, RUN_GATED = 1, RUN_STATUS = 2, RUN_SCALARS = 3 };
enum { DONE_MOST = 64 };

typedef struct inner_state {
  pthread_mutex_t lock;
  pthread_cond_t opened;
  bool open;
  char done[DONE_MOST]; /* a letter for each operation, as it was done; a text */
  uint32_t n_done;
  double lr; /* of the last update */
  char thread_name[16];
  bool blocks_term, blocks_segv;
  atomic_uint n_allocations, n_logged;
  char logged[200];
} inner_state;

static inner_state inner = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER, .open = true};

struct opipe_device {
  int unused;
};
struct opipe_buffer {
  unsigned char *data;
};
struct opipe_queue {
  int unused;
};
struct opipe_program {
  int unused;
};
struct opipe_binding {
  int unused;
};

static void *take(size_t n) {
  return calloc(1, n);
}

static void note(char what) {
  (void)pthread_mutex_lock(&inner.lock);
  if (inner.n_done + 1 < DONE_MOST)
    inner.done[inner.n_done++] = what;
  inner.done[inner.n_done] = '\0';
  (void)pthread_mutex_unlock(&inner.lock);
}

static inline void gate(bool open) {
  (void)pthread_mutex_lock(&inner.lock);
  inner.open = open;
  (void)pthread_cond_broadcast(&inner.opened);
  (void)pthread_mutex_unlock(&inner.lock);
}

/* Calls so far. */
static inline const char *seen(void) {
  static char copy[DONE_MOST];
  (void)pthread_mutex_lock(&inner.lock);
  memcpy(copy, inner.done, sizeof copy);
  (void)pthread_mutex_unlock(&inner.lock);
  return copy;
}

static inline void forget(void) {
  (void)pthread_mutex_lock(&inner.lock);
  inner.n_done = 0;
  inner.done[0] = '\0';
  (void)pthread_mutex_unlock(&inner.lock);
}

/* ---- its slots ---- */

static opipe_status in_query(opipe_instance *self, uint32_t index, opipe_device_info *info,
                             opipe_error *err) {
  (void)self, (void)index, (void)err;
  info->flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  info->alignment = 64;
  return OPIPE_OK;
}
static opipe_status in_device_open(opipe_instance *self, const opipe_device_params *params,
                                   opipe_device **out, opipe_error *err) {
  (void)self, (void)params, (void)err;
  *out = take(sizeof **out);
  return OPIPE_OK;
}
static void in_device_close(opipe_device *device) {
  free(device);
}
static opipe_status in_buffer_alloc(opipe_device *device, uint64_t n, uint32_t kind,
                                    opipe_buffer **out, opipe_error *err) {
  (void)device, (void)kind, (void)err;
  *out = take(sizeof **out);
  (*out)->data = take(n);
  return OPIPE_OK;
}
static void in_buffer_free(opipe_buffer *buffer) {
  free(buffer->data);
  free(buffer);
}
static opipe_status in_buffer_host(opipe_buffer *buffer, void **out, opipe_error *err) {
  (void)err;
  *out = buffer->data;
  return OPIPE_OK;
}
static opipe_status in_queue_open(opipe_device *device, opipe_queue **out, opipe_error *err) {
  (void)device, (void)err;
  *out = take(sizeof **out);
  return OPIPE_OK;
}
static void in_queue_close(opipe_queue *queue) {
  free(queue);
}
static opipe_status in_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                             opipe_error *err) {
  (void)queue, (void)err;
  memcpy(dst->buffer->data + dst->offset_bytes, src, (size_t)dst->n_bytes);
  note('w');
  return OPIPE_OK;
}
static opipe_status in_read(opipe_queue *queue, void *dst, const opipe_region *src,
                            opipe_error *err) {
  (void)queue, (void)err;
  memcpy(dst, src->buffer->data + src->offset_bytes, (size_t)src->n_bytes);
  note('r');
  return OPIPE_OK;
}
static opipe_status in_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                            opipe_error *err) {
  (void)queue, (void)err;
  memmove(dst->buffer->data + dst->offset_bytes, src->buffer->data + src->offset_bytes,
          (size_t)src->n_bytes);
  note('c');
  return OPIPE_OK;
}
static opipe_status in_compile(opipe_device *device, const opipe_compile_params *params,
                               opipe_program **out, opipe_error *err) {
  (void)device, (void)params, (void)err;
  *out = take(sizeof **out);
  return OPIPE_OK;
}
static void in_program_free(opipe_program *program) {
  free(program);
}
static opipe_status in_bind(opipe_device *device, const opipe_bind_params *params,
                            opipe_binding **out, opipe_error *err) {
  (void)device, (void)params, (void)err;
  *out = take(sizeof **out);
  return OPIPE_OK;
}
static void in_binding_free(opipe_binding *binding) {
  free(binding);
}

static void look_at_thread(void) {
  sigset_t blocked;
  (void)prctl(PR_GET_NAME, inner.thread_name, 0UL, 0UL, 0UL);
  (void)pthread_sigmask(SIG_BLOCK, NULL, &blocked);
  inner.blocks_term = sigismember(&blocked, SIGTERM) == 1;
  inner.blocks_segv = sigismember(&blocked, SIGSEGV) == 1;
}

static opipe_status in_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                           uint32_t n_scalars, opipe_error *err) {
  (void)binding, (void)queue;
  if (n_scalars != RUN_SCALARS)
    return opipe_fail(err, OPIPE_E_INTERNAL, "inner: %u scalars", n_scalars);
  (void)pthread_mutex_lock(&inner.lock);
  look_at_thread();
  while (scalars[RUN_GATED] != 0 && !inner.open)
    (void)pthread_cond_wait(&inner.opened, &inner.lock);
  (void)pthread_mutex_unlock(&inner.lock);
  note((char)scalars[RUN_NAME]);
  const opipe_status status = (opipe_status)scalars[RUN_STATUS];
  return status < 0 ? opipe_fail(err, status, "inner: run %c fails", (char)scalars[RUN_NAME])
                    : OPIPE_OK;
}

static opipe_status in_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err) {
  (void)queue, (void)err;
  memset(dst->buffer->data + dst->offset_bytes, 0, (size_t)dst->n_bytes);
  note('z');
  return OPIPE_OK;
}
static opipe_status in_sum(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                           opipe_error *err) {
  (void)queue, (void)dst, (void)src, (void)err;
  note('s');
  return OPIPE_OK;
}
static opipe_status in_update(opipe_queue *queue, const opipe_update *update, opipe_error *err) {
  (void)queue, (void)err;
  inner.lr = update->lr;
  note('u');
  return OPIPE_OK;
}

static const opipe_backend inner_table = {.struct_size = (uint32_t)OPIPE_END(opipe_backend, update),
                                          .device_query = in_query,
                                          .device_open = in_device_open,
                                          .device_close = in_device_close,
                                          .buffer_alloc = in_buffer_alloc,
                                          .buffer_free = in_buffer_free,
                                          .buffer_host = in_buffer_host,
                                          .queue_open = in_queue_open,
                                          .queue_close = in_queue_close,
                                          .write = in_write,
                                          .read = in_read,
                                          .copy = in_copy,
                                          .compile = in_compile,
                                          .program_free = in_program_free,
                                          .bind = in_bind,
                                          .binding_free = in_binding_free,
                                          .run = in_run,
                                          .fill_zero = in_zero,
                                          .add = in_sum,
                                          .sum_squares = in_sum,
                                          .update = in_update};

/* ---- the host ---- */

static void *host_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  (void)ctx, (void)old_size, (void)align;
  if (new_size != 0) {
    atomic_fetch_add(&inner.n_allocations, 1);
    return realloc(ptr, new_size);
  }
  free(ptr);
  return NULL;
}

static void host_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx, (void)level, (void)file, (void)line;
  (void)pthread_mutex_lock(&inner.lock);
  (void)snprintf(inner.logged, sizeof inner.logged, "%s", msg);
  (void)pthread_mutex_unlock(&inner.lock);
  atomic_fetch_add(&inner.n_logged, 1);
}

static uint64_t host_now(void *ctx) {
  struct timespec t;
  (void)ctx;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static opipe_status find_inner(void *ctx, const char *id, const opipe_backend **out_table,
                               opipe_instance **out_self, opipe_error *err) {
  (void)ctx, (void)id, (void)err;
  *out_table = &inner_table;
  *out_self = NULL;
  return OPIPE_OK;
}

static const void *host_service(void *ctx, const char *id) {
  static const opipe_backend_lookup lookup = {
      .struct_size = (uint32_t)OPIPE_END(opipe_backend_lookup, find), .find = find_inner};
  (void)ctx;
  return strcmp(id, OPIPE_BACKEND_LOOKUP_ID) == 0 ? &lookup : NULL;
}

static const opipe_host inner_host = {.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                                      .abi_major = OPIPE_ABI_MAJOR,
                                      .abi_minor = OPIPE_ABI_MINOR,
                                      .realloc = host_realloc,
                                      .log = host_log,
                                      .now_ns = host_now,
                                      .get_interface = host_service};

#endif /* TESTS_EMULATED_INNER_H */
