/* SPDX-License-Identifier: Apache-2.0 */
/* A process that writes random bytes over all that it shares with another, sends it random notes,
 * or is killed, at an instant of a seed: nobody crashes, and every call of the other returns.
 */
#ifndef TESTS_TRANSPORT_SHM_SCRIBBLE_H
#define TESTS_TRANSPORT_SHM_SCRIBBLE_H

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "tests/plugins/transport-shm/pair.h"

#include "plugins/transport-shm/shm.h"

enum { MOST_MAPPED = 64, PATIENCE_MS = 300, OVER_MS = 4000 };
enum { SCRIBBLE_BYTES = 0, SCRIBBLE_BITS, SCRIBBLE_WORDS, SCRIBBLE_NOTES, SCRIBBLE_NOTHING, KINDS };

static uint64_t next_random(uint64_t *io_seed) {
  *io_seed = *io_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *io_seed >> 29;
}

/* ---- all shared memory of this process: the transport's ---- */

typedef struct mapped {
  uint64_t from, n_bytes;
} mapped;

static uint32_t find_mapped(mapped *out) {
  char line[512];
  uint32_t n = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps != NULL && n < MOST_MAPPED && fgets(line, (int)sizeof line, maps) != NULL) {
    unsigned long from = 0, to = 0;
    if (strstr(line, "memfd:onnx-pipe") == NULL || sscanf(line, "%lx-%lx rw-s", &from, &to) != 2)
      continue;
    out[n++] = (mapped){from, to - from};
  }
  if (maps != NULL)
    (void)fclose(maps);
  return n;
}

/* By /proc/self/mem, which fails where the transport has unmapped it meanwhile. Where segments
 * begin there are bells, cells and lines. */
static void scribble_once(int memory, const mapped *m, uint64_t kind, uint64_t *io_seed) {
  static const uint64_t words[] = {
      0, 1, UINT64_MAX, UINT64_MAX / 2, UINT64_C(1) << 32, UINT64_C(1) << 26, 4096};
  const uint64_t most = next_random(io_seed) % 4 != 0 && m->n_bytes > 2048 ? 2048 : m->n_bytes;
  const off_t at = (off_t)(m->from + next_random(io_seed) % (most / 64) * 64);
  unsigned char line[64];
  if (pread(memory, line, sizeof line, at) != (ssize_t)sizeof line)
    return;
  for (size_t i = 0; i < sizeof line && kind == SCRIBBLE_BYTES; ++i)
    line[i] = (unsigned char)next_random(io_seed);
  if (kind == SCRIBBLE_WORDS) { /* one: its neighbours stay as they should be */
    memcpy(line + next_random(io_seed) % 8 * 8,
           &words[next_random(io_seed) % (sizeof words / sizeof words[0])], 8);
  }
  if (kind == SCRIBBLE_BITS)
    line[next_random(io_seed) % 64] ^= (unsigned char)(1u << next_random(io_seed) % 8);
  (void)!pwrite(memory, line, sizeof line, at);
}

/* ---- notes over its connections ---- */

static void send_with(int fd, const void *bytes, size_t n_bytes, int file) {
  union {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
  } room;
  struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  memset(&room, 0, sizeof room);
  if (file >= 0) {
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof room.bytes;
    room.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&room.head), &file, sizeof file);
  }
  /* not by libc: that another thread owns the descriptor is the point of it */
  (void)syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void send_random_note(int fd, uint64_t *io_seed) {
  shm_note n;
  unsigned char *bytes = (unsigned char *)&n;
  const bool small = next_random(io_seed) % 2 == 0;
  for (size_t i = 0; i < sizeof n; ++i)
    bytes[i] = (unsigned char)(small ? next_random(io_seed) % 3 == 0 : next_random(io_seed));
  n.magic = UINT32_C(0x6f70736e);
  n.kind = (uint32_t)(next_random(io_seed) % SHM_NOTE_END);
  n.rank = (uint32_t)(next_random(io_seed) % 3);
  n.id = (uint32_t)(next_random(io_seed) % 8);
  n.place = (shm_place){.offset = next_random(io_seed) % 65536 / 128 * 128,
                        .segment = (uint32_t)(next_random(io_seed) % 4)};
  n.n_bytes = next_random(io_seed) % 2 == 0 ? 65536 : n.n_bytes;
  n.text[sizeof n.text - 1] = '\0';
  const int file = (int)syscall(SYS_memfd_create, "scribble", 3u /* sealable */);
  if (file >= 0 && ftruncate(file, 65536) == 0 && next_random(io_seed) % 2 == 0)
    (void)fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK);
  const bool given = next_random(io_seed) % 2 == 0;
  send_with(fd, &n, next_random(io_seed) % 8 == 0 ? sizeof n / 2 : sizeof n, given ? file : -1);
  if (file >= 0)
    (void)close(file);
}

static void send_notes(uint64_t *io_seed) {
  for (int fd = 3; fd < 64; ++fd) {
    int type = 0, listens = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET &&
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 0)
      send_random_note(fd, io_seed);
  }
}

/* ---- the two processes ---- */

static void pause_us(uint64_t us) {
  const struct timespec t = {.tv_sec = (time_t)(us / 1000000),
                             .tv_nsec = (long)(us % 1000000) * 1000};
  (void)nanosleep(&t, NULL);
}

/* From an instant on, for a while; then the process ends, as if killed or by itself. */
static void *scribble(void *arg) {
  uint64_t seed = *(const uint64_t *)arg;
  const uint64_t kind = next_random(&seed) % KINDS;
  pause_us(next_random(&seed) % 60000);
  const uint64_t until = now_ns(NULL) + next_random(&seed) % 20 * 1000000;
  const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  const bool killed = kind == SCRIBBLE_NOTHING || next_random(&seed) % 2 == 0;
  do {
    mapped all[MOST_MAPPED];
    const uint32_t n = find_mapped(all);
    for (uint32_t i = 0; i < 2000 && n > 0 && kind < SCRIBBLE_NOTES; ++i)
      scribble_once(memory, &all[next_random(&seed) % n], kind, &seed);
    if (kind == SCRIBBLE_NOTES)
      send_notes(&seed);
  } while (now_ns(NULL) < until);
  if (killed)
    (void)raise(SIGKILL);
  pause_us(100000);
  _exit(0);
}

/* Goes on whatever it is told, until a call fails: what arrives may be wrong. */
static opipe_status go_on(end *e, uint64_t q) {
  const uint64_t n = 64 + q % 7 * 512;
  const opipe_region to = {e->slots, q % 2 * (BYTES / 2), BYTES / 2}, from = {e->own, 0, n};
  const opipe_region all = {e->own, 0, SUMMED * sizeof(float)};
  UNTIL(e, e->t->recv(e->in, q, &to, NULL, &e->err));
  UNTIL(e, e->t->reserve(e->out, q, &e->err));
  UNTIL(e, e->t->send(e->out, q, &from, NULL, NULL, &e->err));
  UNTIL(e, e->t->test(e->out, q, &e->err));
  UNTIL(e, e->t->test(e->in, q, &e->err));
  UNTIL(e, e->t->all_reduce(e->group, q, &all, SUMMED, OPIPE_FLOAT, NULL, NULL, &e->err));
  UNTIL(e, e->t->group_test(e->group, q, &e->err));
  return OPIPE_OK;
}

static _Noreturn void be_one(uint32_t rank, note *notes, const uint64_t *seed) {
  end e = {.patience_ns = PATIENCE_MS * UINT64_C(1000000)};
  pthread_t thread;
  (void)alarm(6 * OVER_MS / 1000);
  if (seed != NULL && pthread_create(&thread, NULL, scribble, (void *)(uintptr_t)seed) != 0)
    _exit(1);
  opipe_status status = open_end(&e, rank, notes);
  if (status == OPIPE_OK)
    status = await_ready(&e);
  for (uint64_t q = 0; status == OPIPE_OK; ++q)
    status = go_on(&e, q);
  if (seed != NULL) { /* its thread ends it */
    for (;;)
      pause_us(1000000);
  }
  if (e.in != NULL && e.out != NULL && e.group != NULL)
    close_end(&e);
  _exit(e.err.message[0] == '\0' ? 1 : 0);
}

/* One seed. Prints what is wrong; false: something is. */
static inline bool scribble_seed(uint64_t seed) {
  note *notes = new_board();
  pid_t pids[2];
  const uint64_t start = now_ns(NULL);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    pids[rank] = fork();
    if (pids[rank] == 0)
      be_one(rank, notes, rank == seed % 2 ? &seed : NULL);
  }
  const int victim = status_of(pids[1 - seed % 2]), other = status_of(pids[seed % 2]);
  const char *sanitizer = getenv("OPIPE_SANITIZE");
  const uint64_t most_ms = sanitizer == NULL || sanitizer[0] == '\0' ? OVER_MS : 5 * OVER_MS;
  const bool late = now_ns(NULL) - start > most_ms * UINT64_C(1000000);
  (void)munmap(notes, N_NOTES * sizeof *notes);
  if (victim == 0 && (other == 0 || other == 256 + SIGKILL) && !late)
    return true;
  (void)fprintf(stderr, "seed %llu: the other ends with %d, the one that scribbles with %d%s\n",
                (unsigned long long)seed, victim, other, late ? ", late" : "");
  return false;
}

#endif /* TESTS_TRANSPORT_SHM_SCRIBBLE_H */
