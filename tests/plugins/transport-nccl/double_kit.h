/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that use NCCL's double itself: each forked, with the doubles opened, memory of a
 * device, streams, and a communicator of all of them; what they print is kept.
 */
#ifndef TESTS_PLUGINS_TRANSPORT_NCCL_DOUBLE_KIT_H_
#define TESTS_PLUGINS_TRANSPORT_NCCL_DOUBLE_KIT_H_

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/plugins/backend-cuda/doubles/driver.h"
#include "tests/plugins/transport-nccl/double/api.h"
#include "tests/support/support.h"

enum { MOST = 4, COMMS = 3, STREAMS = 2, FLAGS = 8, ROOM = 1 << 20, SECONDS = 30 };

typedef struct nccl_table {
#define MEMBER(member, symbol, result, arguments) result(*member) arguments;
  NCCL_DOUBLE_FUNCTIONS(MEMBER)
} nccl_table;

/* Shared by all. */
typedef struct board {
  ncclUniqueId ids[COMMS];
  _Atomic int has_id[COMMS];
  _Atomic int flags[FLAGS];
  unsigned char results[MOST][4096];
} board;

typedef struct member {
  board *board;
  int rank, n;
  int device;
  cuda_driver driver;
  nccl_table nccl;
  void (*hold)(CUstream stream, bool hold); /* cuda_double_hold */
  CUstream streams[STREAMS];
  ncclComm_t comms[COMMS];
  unsigned char *memory; /* [ROOM] of the device */
} member;

/* Ends a member that has found something wrong. */
__attribute__((format(printf, 2, 3))) static inline void need(bool holds, const char *form, ...) {
  va_list list;
  if (holds)
    return;
  va_start(list, form);
  (void)fputs("WRONG: ", stderr);
  (void)vfprintf(stderr, form, list);
  (void)fputc('\n', stderr);
  va_end(list);
  _exit(1);
}

static inline void nap_us(long us) {
  const struct timespec pause = {us / 1000000, us % 1000000 * 1000};
  (void)nanosleep(&pause, NULL);
}

static inline void open_doubles(member *m) {
  void *driver = dlopen(opi_test_build("tests/cuda/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  void *nccl = dlopen(opi_test_build("tests/cuda/libnccl.so.2"), RTLD_NOW | RTLD_LOCAL);
  CUcontext context = NULL;
  CUdeviceptr memory = 0;
  need(driver != NULL && nccl != NULL, "the doubles cannot be opened: %s", dlerror());
#define TAKE_OF_DRIVER(member, symbol, result, arguments) \
  *(void **)(void *)&m->driver.member = dlsym(driver, #symbol);
#define TAKE_OF_NCCL(member, symbol, result, arguments) \
  *(void **)(void *)&m->nccl.member = dlsym(nccl, #symbol);
  CUDA_DRIVER_FUNCTIONS(TAKE_OF_DRIVER)
  NCCL_DOUBLE_FUNCTIONS(TAKE_OF_NCCL)
  *(void **)(void *)&m->hold = dlsym(driver, "cuda_double_hold");
  bool fine = m->driver.init(0) == CUDA_OK &&
              m->driver.context_retain(&context, m->device) == CUDA_OK &&
              m->driver.context_push(context) == CUDA_OK &&
              m->driver.memory_alloc(&memory, ROOM) == CUDA_OK;
  for (int i = 0; i < STREAMS; ++i)
    fine = fine && m->driver.stream_create(&m->streams[i], CUDA_STREAM_NON_BLOCKING) == CUDA_OK;
  need(fine, "the driver's double fails");
  m->memory = (unsigned char *)(uintptr_t)memory;
  memset(m->memory, 0, ROOM);
}

/* ncclCommGetAsyncError, until it is no longer in progress. */
static inline int settle(member *m, ncclComm_t comm) {
  int result = NCCL_DOUBLE_IN_PROGRESS;
  while (result == NCCL_DOUBLE_IN_PROGRESS) {
    need(m->nccl.get_error(comm, &result) == NCCL_DOUBLE_SUCCESS, "ncclCommGetAsyncError");
    if (result == NCCL_DOUBLE_IN_PROGRESS)
      nap_us(100);
  }
  return result;
}

/* Opens communicator i of all: what the call, and then the opening, answers. */
static inline int open_comm(member *m, int i) {
  nccl_double_config config = {.size = sizeof config,
                               .magic = (unsigned)NCCL_DOUBLE_MAGIC,
                               .version = 22600,
                               .cluster = INT32_MIN,
                               .fewest_blocks = INT32_MIN,
                               .most_blocks = INT32_MIN};
  if (m->rank == 0) {
    need(m->nccl.get_id(&m->board->ids[i]) == NCCL_DOUBLE_SUCCESS, "ncclGetUniqueId");
    atomic_store(&m->board->has_id[i], 1);
  }
  while (atomic_load(&m->board->has_id[i]) == 0)
    nap_us(100);
  const int result = m->nccl.init(&m->comms[i], m->n, m->board->ids[i], m->rank, &config);
  return result == NCCL_DOUBLE_IN_PROGRESS ? settle(m, m->comms[i]) : result;
}

static inline void need_comm(member *m, int i) {
  const int result = open_comm(m, i);
  need(result == NCCL_DOUBLE_SUCCESS, "communicator %d: %d, %s", i, result,
       m->nccl.last_error(NULL));
}

/* A call's answer, once its work stands in its stream. */
static inline void launched(member *m, ncclComm_t comm, int result) {
  if (result == NCCL_DOUBLE_IN_PROGRESS)
    result = settle(m, comm);
  need(result == NCCL_DOUBLE_SUCCESS, "a launch: %d, %s", result, m->nccl.last_error(comm));
}

static inline void end_group(member *m, ncclComm_t comm) {
  launched(m, comm, m->nccl.group_end());
}

static inline void finish(member *m, int stream) {
  need(m->driver.stream_sync(m->streams[stream]) == CUDA_OK, "cuStreamSynchronize");
}

static inline void close_comm(member *m, int i) {
  launched(m, m->comms[i], m->nccl.finalize(m->comms[i]));
  need(m->nccl.destroy(m->comms[i]) == NCCL_DOUBLE_SUCCESS, "ncclCommDestroy");
}

/* ---- all of them ---- */

typedef struct team {
  int n, ended; /* ended: members that came to their end */
  int devices;  /* 0: one for each */
  int dies;     /* the member, from 1, whose death is no reason to end the others; 0: none */
  const char *const *environment; /* [n]: "NAME=value", of one member; NULL: none of them */
  board *board;
  char text[4096]; /* printed by them on stderr */
  size_t n_text;
} team;

static inline void be_member(team *t, int rank, void (*body)(member *m)) {
  member m = {.board = t->board, .rank = rank, .n = t->n};
  m.device = t->devices == 0 ? rank : rank % t->devices;
  (void)alarm(SECONDS);
  if (t->environment != NULL && t->environment[rank] != NULL)
    (void)putenv((char *)(uintptr_t)t->environment[rank]);
  open_doubles(&m);
  body(&m);
  _exit(0);
}

static inline void read_text(team *t, int fd) {
  ssize_t got = 1;
  while (got > 0 && t->n_text + 1 < sizeof t->text) {
    got = read(fd, t->text + t->n_text, sizeof t->text - 1 - t->n_text);
    t->n_text += got > 0 ? (size_t)got : 0;
  }
  t->text[t->n_text] = '\0';
}

/* Waits for all; one that ends otherwise takes the rest with it. */
static inline void await_team(team *t, const pid_t *pids, int fd) {
  bool over[MOST] = {false};
  t->ended = 0;
  for (int left = t->n; left > 0;) {
    bool kills = false;
    for (int i = 0; i < t->n; ++i) {
      int status = 0;
      if (over[i] || waitpid(pids[i], &status, WNOHANG) != pids[i])
        continue;
      const bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      over[i] = true;
      --left;
      t->ended += fine;
      kills = kills || (!fine && t->dies != i + 1);
    }
    read_text(t, fd);
    for (int i = 0; i < t->n && kills; ++i) {
      if (!over[i])
        (void)kill(pids[i], SIGKILL);
    }
    if (left > 0)
      nap_us(500);
  }
  read_text(t, fd);
}

/* False, after a skip: this build has no doubles. */
static inline bool run_team(team *t, void (*body)(member *m)) {
  int ends[2];
  pid_t pids[MOST];
  if (access(opi_test_build("tests/cuda/libnccl.so.2"), R_OK) != 0) {
    opi_test_skip("the doubles of CUDA need a C++ compiler at build");
    return false;
  }
  OPI_ASSERT_FATAL(pipe2(ends, O_NONBLOCK) == 0);
  t->board =
      mmap(NULL, sizeof *t->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(t->board != MAP_FAILED);
  (void)setenv("OPIPE_CUDA_DOUBLE_DEVICES", "4", 1);
  for (int i = 0; i < t->n; ++i) {
    pids[i] = fork();
    if (pids[i] == 0) {
      (void)dup2(ends[1], STDERR_FILENO);
      be_member(t, i, body);
    }
    OPI_ASSERT_FATAL(pids[i] > 0);
  }
  await_team(t, pids, ends[0]);
  (void)close(ends[0]);
  (void)close(ends[1]);
  (void)munmap(t->board, sizeof *t->board);
  return true;
}

/* All come to their end. */
static inline void expect_team(int n, void (*body)(member *m)) {
  team t = {.n = n};
  if (!run_team(&t, body))
    return;
  if (t.ended != n)
    OPI_FAIL("%d of %d came to their end: %s", t.ended, n, t.text);
  OPI_ASSERT_INT(t.ended, n);
}

/* Somebody ends with these words. */
static inline void expect_words(int n, void (*body)(member *m), const char *words) {
  team t = {.n = n};
  if (!run_team(&t, body))
    return;
  if (t.ended == n || strstr(t.text, words) == NULL)
    OPI_FAIL("%d of %d came to their end, not with '%s': %s", t.ended, n, words, t.text);
  OPI_ASSERT(t.ended < n);
}

#endif /* TESTS_PLUGINS_TRANSPORT_NCCL_DOUBLE_KIT_H_ */
