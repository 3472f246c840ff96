/* SPDX-License-Identifier: Apache-2.0 */
/* For writers of transports whose ranks are processes of one machine: every rank has a file in
 * memory, which the other ranks' processes map. Header only, as helpers.h; nothing here is part of
 * the ABI.
 *
 *   files      opipe_shared_open, opipe_shared_find, opipe_shared_leave, opipe_shared_close
 *   streams    opipe_inlet_make, opipe_inlet_meet, opipe_inlet_part
 *   doorbells  opipe_shared_ring, opipe_shared_wait
 *   failure    opipe_shared_fail, opipe_shared_check, opipe_shared_look
 *
 * A process locks the file of each rank that it has. The kernel drops the locks of a process that
 * ends, however it ends, so the others see it. Files are found through the world's board as
 * /proc/PID/fd/N: processes of one user, in one PID namespace. Without a board all ranks are here.
 *
 * Peers are trusted: one that writes where it should not damages the others' messages.
 *
 * Thread rule: as the slots of opipe/transport.h that they serve; opipe_shared_ring and
 * opipe_shared_fail from any thread.
 *
 * Needs Linux: build with -D_GNU_SOURCE, defined before the first include; otherwise nothing is
 * declared.
 */
#ifndef OPIPE_PROCESSES_H
#define OPIPE_PROCESSES_H

#include "streams.h"

#if defined(__linux__) && defined(_GNU_SOURCE) && OPIPE_TARGET_MINOR >= 5
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPIPE_SHARED_LOOK_NS INT64_C(10000000) /* how often one who waits looks at the others */
#define OPIPE_SHARED_SOON_NS UINT64_C(20000)   /* ... while an event of a device is awaited */
#define OPIPE_SHARED_BYTES (UINT64_C(1) << 34) /* addresses of a file: memory is taken by need */
enum { OPIPE_INLETS = 1024, OPIPE_INLET_ALIGN = 4096, OPIPE_INLET_HERE = 1, OPIPE_INLET_LEFT = 2 };

/* A stream that the rank of a file receives. */
typedef struct opipe_inlet {
  opipe_stream_params params;
  uint32_t ends[2];      /* source, destination: 0 not there yet, HERE, LEFT */
  uint64_t offset, room; /* of its memory in the file */
} opipe_inlet;

/* Begins a rank's file. */
typedef struct opipe_shared_head {
  uint32_t bell, sleepers;
  uint32_t left;   /* 1: the rank has left */
  uint32_t failed; /* 2: culprit and reason are complete */
  uint32_t culprit, reserved;
  uint64_t end; /* of the memory that inlets have */
  opipe_error reason;
  opipe_inlet inlets[OPIPE_INLETS];
} opipe_shared_head;

/* A rank's file as it is mapped here. */
typedef struct opipe_shared_file {
  opipe_shared_head *head; /* NULL: not found yet */
  int file;
  uint32_t own; /* 1: of a rank of this process */
} opipe_shared_file;

/* ---- files ---- */

static inline struct flock opipe_shared_lock_(void) {
  struct flock lock;
  memset(&lock, 0, sizeof lock);
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

static inline opipe_status opipe_shared_map_(opipe_shared_file *s, uint32_t rank, int file,
                                             opipe_error *err) {
  struct stat known;
  if (file >= 0 && fstat(file, &known) == 0 && (uint64_t)known.st_size == OPIPE_SHARED_BYTES) {
    void *data =
        mmap(NULL, (size_t)OPIPE_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data != MAP_FAILED) {
      s->file = file;
      __atomic_store_n(&s->head, (opipe_shared_head *)data, __ATOMIC_RELEASE);
      return OPIPE_OK;
    }
  }
  const int code = errno;
  if (file >= 0)
    (void)close(file);
  return opipe_fail(err, OPIPE_E_PEER, "rank %u: its file of %llu bytes cannot be mapped (%s)",
                    rank, (unsigned long long)OPIPE_SHARED_BYTES, strerror(code));
}

/* For endpoint_open: makes the file of a rank of this process and posts where it is. s: all zero.
 * Errors: STATE, LIMIT, PEER, the board's. */
static inline opipe_status opipe_shared_open(opipe_shared_file *s, const opipe_board *board,
                                             uint32_t rank, opipe_error *err) {
  struct flock lock = opipe_shared_lock_();
  const uint64_t first =
      (sizeof(opipe_shared_head) + OPIPE_INLET_ALIGN - 1) / OPIPE_INLET_ALIGN * OPIPE_INLET_ALIGN;
  char key[32], path[64];
  if (s->head != NULL)
    return opipe_fail(err, OPIPE_E_STATE, "rank %u has an endpoint, or had one", rank);
  const int file = (int)syscall(SYS_memfd_create, "rank", 1u /* MFD_CLOEXEC */);
  if (file < 0 || ftruncate(file, (off_t)OPIPE_SHARED_BYTES) != 0 ||
      fallocate(file, 0, 0, (off_t)first) != 0 || fcntl(file, F_SETLK, &lock) != 0) {
    const int code = errno;
    if (file >= 0)
      (void)close(file);
    return opipe_fail(err, OPIPE_E_LIMIT, "rank %u: no file of %llu bytes (%s)", rank,
                      (unsigned long long)first, strerror(code));
  }
  s->own = 1;
  const opipe_status status = opipe_shared_map_(s, rank, file, err);
  if (status < 0)
    return status;
  s->head->end = first;
  if (board == NULL)
    return OPIPE_OK;
  (void)snprintf(key, sizeof key, "rank/%u", rank);
  const int n = snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), file);
  return board->post(board->ctx, key, path, (uint64_t)n + 1, err);
}

/* For endpoint_ready: maps the file of another rank. OK | PENDING: it is not there yet. Errors:
 * PEER, the board's. */
static inline opipe_status opipe_shared_find(opipe_shared_file *s, const opipe_board *board,
                                             uint32_t rank, opipe_error *err) {
  char key[32], path[64];
  uint64_t n = sizeof path;
  if (__atomic_load_n(&s->head, __ATOMIC_ACQUIRE) != NULL)
    return OPIPE_OK;
  if (board == NULL)
    return OPIPE_PENDING;
  (void)snprintf(key, sizeof key, "rank/%u", rank);
  const opipe_status status = board->look(board->ctx, key, path, &n, err);
  if (status != OPIPE_OK)
    return status;
  path[sizeof path - 1] = '\0';
  return opipe_shared_map_(s, rank, open(path, O_RDWR | O_CLOEXEC), err);
}

/* For endpoint_close: the others know that the rank leaves, and has not died. */
static inline void opipe_shared_leave(opipe_shared_file *s) {
  if (s->head != NULL)
    __atomic_store_n(&s->head->left, 1u, __ATOMIC_SEQ_CST);
}

/* For world_close. */
static inline void opipe_shared_close(opipe_shared_file *s) {
  if (s->head == NULL)
    return;
  if (s->own != 0)
    opipe_shared_leave(s);
  (void)munmap((void *)s->head, (size_t)OPIPE_SHARED_BYTES);
  (void)close(s->file);
  s->head = NULL;
}

/* ---- streams: the receiver makes an inlet in its file, the sender finds it ---- */

static inline void *opipe_inlet_memory(const opipe_shared_file *s, const opipe_inlet *inlet) {
  return (char *)s->head + inlet->offset;
}

/* For stream_open of the receiver, in its file: n_bytes of zeroed memory, which writing to does not
 * fail. Errors: LIMIT. */
static inline opipe_status opipe_inlet_make(const opipe_shared_file *s,
                                            const opipe_stream_params *params, uint64_t n_bytes,
                                            opipe_inlet **out_inlet, opipe_error *err) {
  opipe_inlet *found = NULL;
  n_bytes = (n_bytes / OPIPE_INLET_ALIGN + 1) * OPIPE_INLET_ALIGN;
  for (uint32_t i = 0; i < OPIPE_INLETS && found == NULL; ++i) {
    opipe_inlet *at = &s->head->inlets[i];
    const bool left = at->ends[1] == OPIPE_INLET_LEFT &&
                      __atomic_load_n(&at->ends[0], __ATOMIC_SEQ_CST) == OPIPE_INLET_LEFT;
    if (at->room == 0 || (left && at->room >= n_bytes))
      found = at;
  }
  if (found == NULL) {
    return opipe_fail(err, OPIPE_E_LIMIT, "rank %u receives more than %u streams", params->dst_rank,
                      (unsigned)OPIPE_INLETS);
  }
  if (found->room == 0) {
    if (n_bytes > OPIPE_SHARED_BYTES - s->head->end ||
        fallocate(s->file, 0, (off_t)s->head->end, (off_t)n_bytes) != 0) {
      return opipe_fail(err, OPIPE_E_LIMIT,
                        "stream %u of stages %u -> %u: %llu bytes beyond %llu have no room",
                        params->index, params->src_stage, params->dst_stage,
                        (unsigned long long)n_bytes, (unsigned long long)s->head->end);
    }
    found->offset = s->head->end;
    found->room = n_bytes;
    s->head->end += n_bytes;
  }
  memset(opipe_inlet_memory(s, found), 0, (size_t)n_bytes);
  found->params = *params;
  found->ends[0] = 0;
  __atomic_store_n(&found->ends[1], (uint32_t)OPIPE_INLET_HERE, __ATOMIC_SEQ_CST);
  *out_inlet = found;
  return OPIPE_OK;
}

/* For endpoint_ready of either end. all: of the world's ranks; *io_inlet: NULL for a sender that
 * has not found it. OK: both ends are there | PENDING. Errors: INVALID: they differ. */
static inline opipe_status opipe_inlet_meet(const opipe_shared_file *all,
                                            const opipe_stream_params *params,
                                            opipe_inlet **io_inlet, opipe_error *err) {
  opipe_shared_head *head = __atomic_load_n(&all[params->dst_rank].head, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; head != NULL && i < OPIPE_INLETS && *io_inlet == NULL; ++i) {
    opipe_inlet *at = &head->inlets[i];
    if (__atomic_load_n(&at->ends[1], __ATOMIC_SEQ_CST) != OPIPE_INLET_HERE ||
        __atomic_load_n(&at->ends[0], __ATOMIC_SEQ_CST) != 0 ||
        !opipe_stream_same(&at->params, params))
      continue;
    const opipe_status status = opipe_stream_agree(params->src_rank, params, &at->params, err);
    if (status < 0)
      return status;
    __atomic_store_n(&at->ends[0], (uint32_t)OPIPE_INLET_HERE, __ATOMIC_SEQ_CST);
    *io_inlet = at;
  }
  return *io_inlet != NULL && __atomic_load_n(&(*io_inlet)->ends[0], __ATOMIC_SEQ_CST) != 0
             ? OPIPE_OK
             : OPIPE_PENDING;
}

/* For stream_close. side: 0 source, 1 destination. */
static inline void opipe_inlet_part(opipe_inlet *inlet, uint32_t side) {
  if (inlet != NULL)
    __atomic_store_n(&inlet->ends[side], (uint32_t)OPIPE_INLET_LEFT, __ATOMIC_SEQ_CST);
}

/* ---- doorbells ---- */

/* A sleeper announces itself before it looks for the last time, a ringer moves the bell before it
 * looks for sleepers: no ring is lost. A file that is not found yet is not rung. */
static inline void opipe_shared_ring(const opipe_shared_file *s) {
  opipe_shared_head *head = __atomic_load_n(&s->head, __ATOMIC_ACQUIRE);
  if (head == NULL)
    return;
  (void)__atomic_add_fetch(&head->bell, 1u, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&head->sleepers, __ATOMIC_SEQ_CST) != 0)
    (void)syscall(SYS_futex, &head->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static inline uint32_t opipe_shared_bell(const opipe_shared_file *s) {
  return __atomic_load_n(&s->head->bell, __ATOMIC_SEQ_CST);
}

/* Sleeps until the bell has left `seen`, for at most timeout_ns. */
static inline void opipe_shared_sleep_(const opipe_shared_file *s, uint32_t seen,
                                       int64_t timeout_ns) {
  struct timespec t;
  t.tv_sec = timeout_ns / INT64_C(1000000000);
  t.tv_nsec = (long)(timeout_ns % INT64_C(1000000000));
  (void)__atomic_add_fetch(&s->head->sleepers, 1u, __ATOMIC_SEQ_CST);
  (void)syscall(SYS_futex, &s->head->bell, FUTEX_WAIT, seen, &t, NULL, 0);
  (void)__atomic_sub_fetch(&s->head->sleepers, 1u, __ATOMIC_SEQ_CST);
}

/* ---- failure ---- */

/* The run has ended: tells the n ranks whose files are in `all`. The first reason wins. */
static inline void opipe_shared_fail(opipe_shared_file *all, uint32_t n, uint32_t culprit,
                                     const opipe_error *why) {
  for (uint32_t r = 0; r < n; ++r) {
    opipe_shared_head *head = __atomic_load_n(&all[r].head, __ATOMIC_ACQUIRE);
    uint32_t nobody = 0;
    if (head != NULL && __atomic_compare_exchange_n(&head->failed, &nobody, 1u, false,
                                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      head->culprit = culprit;
      head->reason = *why;
      __atomic_store_n(&head->failed, 2u, __ATOMIC_SEQ_CST);
    }
    opipe_shared_ring(&all[r]);
  }
}

/* s: of the rank that asks. Errors: PEER: the run has ended. */
static inline opipe_status opipe_shared_check(const opipe_shared_file *s, opipe_error *err) {
  if (__atomic_load_n(&s->head->failed, __ATOMIC_SEQ_CST) < 2)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_PEER, "rank %u ended the run: %.400s", s->head->culprit,
                    s->head->reason.message);
}

/* Looks at the ranks elsewhere: one that has not left, but locks its file no more, is dead. */
static inline void opipe_shared_look(opipe_shared_file *all, uint32_t n) {
  for (uint32_t r = 0; r < n; ++r) {
    const opipe_shared_head *head = __atomic_load_n(&all[r].head, __ATOMIC_ACQUIRE);
    struct flock lock = opipe_shared_lock_();
    opipe_error why = OPIPE_ERROR_INIT;
    if (head == NULL || all[r].own != 0 || fcntl(all[r].file, F_GETLK, &lock) != 0 ||
        lock.l_type != F_UNLCK || __atomic_load_n(&head->left, __ATOMIC_SEQ_CST) != 0)
      continue;
    (void)opipe_fail(&why, OPIPE_E_PEER, "the process of rank %u has ended", r);
    opipe_shared_fail(all, n, r, &why);
  }
}

/* A transport's `wait`, for rank `rank` of the n in `all`. *io_unready: an event of a device is
 * awaited, for which nobody rings: then it returns soon. Errors: TIMEOUT, PEER. */
static inline opipe_status opipe_shared_wait(opipe_shared_file *all, uint32_t n, uint32_t rank,
                                             uint32_t seen, uint64_t timeout_ns, bool *io_unready,
                                             opipe_error *err) {
  const bool soon = *io_unready && timeout_ns > OPIPE_SHARED_SOON_NS;
  const int64_t most = soon                         ? (int64_t)OPIPE_SHARED_SOON_NS
                       : timeout_ns > INT64_MAX / 2 ? INT64_MAX / 2
                                                    : (int64_t)timeout_ns;
  int64_t start = -1;
  *io_unready = false;
  for (;;) {
    struct timespec t;
    const opipe_status status = opipe_shared_check(&all[rank], err);
    if (status < 0 || opipe_shared_bell(&all[rank]) != seen)
      return status;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t now = (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
    start = start < 0 ? now : start;
    const int64_t left = most - (now - start);
    if (left <= 0 && soon)
      return OPIPE_OK;
    if (left <= 0)
      return opipe_fail(err, OPIPE_E_TIMEOUT, "rank %u: nothing has rung", rank);
    opipe_shared_sleep_(&all[rank], seen,
                        left < OPIPE_SHARED_LOOK_NS ? left : OPIPE_SHARED_LOOK_NS);
    opipe_shared_look(all, n);
  }
}

/* ---- the rest of a small transport ---- */

/* opipe_world_check, and: at most `most` ranks, no options. */
static inline opipe_status opipe_world_check_plain(const opipe_world_params *params, uint32_t most,
                                                   opipe_error *err) {
  const opipe_status status = opipe_world_check(params, err);
  if (status < 0)
    return status;
  const char *options = params->options == NULL ? "" : params->options;
  if (params->n_ranks <= most && options[0] == '\0')
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID,
                    "world_open: %u ranks, at most %u; options '%.99s', there are none",
                    params->n_ranks, most, options);
}

/* memory_register and memory_drop of a transport to which any buffer will do. */
static inline opipe_status opipe_any_memory(opipe_endpoint *endpoint, opipe_buffer *buffer,
                                            uint64_t n_bytes, opipe_memory **out_memory,
                                            opipe_error *err) {
  (void)buffer;
  (void)n_bytes;
  (void)err;
  *out_memory = (opipe_memory *)(void *)endpoint;
  return OPIPE_OK;
}

static inline void opipe_drop_nothing(opipe_memory *memory) {
  (void)memory;
}

#ifdef __cplusplus
}
#endif

/* The descriptor of a transport whose instance is what it keeps of the host. */
#define OPIPE_TRANSPORT_PLUGIN(id_, version_, license_, summary_, table_)                    \
  struct opipe_instance {                                                                    \
    const opipe_host *host;                                                                  \
  };                                                                                         \
  static opipe_status opipe_hosted_open(const opipe_host *host, opipe_instance **out_self,   \
                                        opipe_error *err) {                                  \
    opipe_instance *self = (opipe_instance *)opipe_zeroed(host, id_, sizeof *self, 16, err); \
    if (self == NULL)                                                                        \
      return OPIPE_E_NOMEM;                                                                  \
    self->host = host;                                                                       \
    *out_self = self;                                                                        \
    return OPIPE_OK;                                                                         \
  }                                                                                          \
  static void opipe_hosted_close(opipe_instance *self) {                                     \
    if (self != NULL)                                                                        \
      opipe_free(self->host, self, sizeof *self, 16);                                        \
  }                                                                                          \
  static const void *opipe_hosted_interface(opipe_instance *self, const char *id) {          \
    (void)self;                                                                              \
    return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &(table_) : NULL;                           \
  }                                                                                          \
  extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;                                \
  const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),      \
                                            id_,                                             \
                                            version_,                                        \
                                            license_,                                        \
                                            summary_,                                        \
                                            opipe_hosted_open,                               \
                                            opipe_hosted_close,                              \
                                            opipe_hosted_interface}
#endif
#endif /* OPIPE_PROCESSES_H */
