/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for whom. A process says in all its communicators what it runs, for which processes
 * that waits, and counts its looks. Processes that wait for each other in a ring, all of which have
 * looked many times since while none has moved, wait for ever.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "double.h"

enum { LOOKS = 64, OFTEN = 16 };

typedef struct ring {
  uint32_t n;
  const nccl_status *all[MOST_RANKS];
  uint64_t moves[MOST_RANKS], looks[MOST_RANKS];
} ring;

static uint64_t n_moves, n_looks;
static ring remembered; /* n 0: none */

static void describe(const nccl_launch *launch, char *out, size_t room) {
  const nccl_task *t = launch->tasks;
  while (t->next != NULL && t->over)
    t = t->next;
  const bool message = t->header.kind <= TASK_RECV;
  (void)snprintf(out, room, "rank %d of %d, %s %llu of %llu %s%s%d%s", launch->comm->rank,
                 launch->comm->n_ranks, nccl_kind_name(t->header.kind),
                 (unsigned long long)t->number, (unsigned long long)t->header.count,
                 nccl_type_name(t->header.type),
                 !message                      ? ", root "
                 : t->header.kind == TASK_SEND ? " to rank "
                                               : " from rank ",
                 t->header.root, launch->n_tasks > 1 ? " in a group" : "");
}

/* In all communicators. launch NULL: nothing runs. */
static void publish(const nccl_launch *launch, const bool *awaited) {
  char text[WORDS] = "";
  if (launch != NULL && awaited != NULL)
    describe(launch, text, sizeof text);
  for (const struct ncclComm *c = nccl_comms; c != NULL; c = c->next) {
    if (c->shared == NULL)
      continue;
    nccl_status *s = &nccl_member_of(c, c->rank)->status;
    uint32_t n = 0;
    for (int i = 0; awaited != NULL && i < launch->comm->n_ranks; ++i) {
      if (awaited[i] && i != launch->comm->rank)
        atomic_store(&s->awaits[n++], nccl_member_of(launch->comm, i)->pid);
    }
    if (awaited != NULL) {
      if (n < MOST_RANKS)
        atomic_store(&s->awaits[n], 0);
      memcpy(s->text, text, sizeof text);
    }
    atomic_store(&s->moves, n_moves);
    atomic_store(&s->looks, n_looks);
    atomic_store(&s->runs, launch == NULL ? 0 : launch->number);
  }
}

/* The process's own words; NULL: it runs nothing, or is in none of our communicators. */
static const nccl_status *status_of(int32_t pid) {
  for (const struct ncclComm *c = nccl_comms; c != NULL; c = c->next) {
    for (int i = 0; c->shared != NULL && i < c->n_ranks; ++i) {
      const nccl_member *m = nccl_member_of(c, i);
      if (atomic_load(&m->joined) != 0 && m->pid == pid && atomic_load(&m->status.runs) != 0)
        return &m->status;
    }
  }
  return NULL;
}

/* From process `pid` on, back to this one. */
static bool find_ring(int32_t pid, ring *io_ring) {
  const nccl_status *s = status_of(pid);
  if (s == NULL || io_ring->n == MOST_RANKS)
    return false;
  for (uint32_t i = 0; i < io_ring->n; ++i) {
    if (io_ring->all[i] == s)
      return false;
  }
  const uint32_t at = io_ring->n++;
  io_ring->all[at] = s;
  io_ring->moves[at] = atomic_load(&s->moves);
  io_ring->looks[at] = atomic_load(&s->looks);
  for (uint32_t i = 0; i < MOST_RANKS; ++i) {
    const int32_t next = atomic_load(&s->awaits[i]);
    if (next == 0)
      break;
    if (next == getpid() || find_ring(next, io_ring))
      return true;
  }
  io_ring->n = at;
  return false;
}

/* Has everyone of the ring looked often since, and nobody moved? */
static bool stands(const ring *now) {
  bool same = now->n == remembered.n;
  for (uint32_t i = 0; same && i < now->n; ++i)
    same = now->all[i] == remembered.all[i] && now->moves[i] == remembered.moves[i];
  if (!same) {
    remembered = *now;
    return false;
  }
  for (uint32_t i = 0; i < now->n; ++i) {
    if (now->looks[i] < remembered.looks[i] + LOOKS)
      return false;
  }
  return true;
}

static void look_for_ring(void) {
  ring now = {.n = 0};
  char text[1024] = "";
  size_t n = 0;
  if (!find_ring(getpid(), &now)) {
    remembered.n = 0;
    return;
  }
  if (!stands(&now))
    return;
  for (uint32_t i = 0; i < now.n && n < sizeof text - 2 * WORDS; ++i)
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i > 0 ? "; " : "", now.all[i]->text);
  nccl_die("ranks wait for each other: %s", text);
}

/* A zombie is dead, too. */
static bool is_dead(int pid) {
  char path[32], line[512] = "";
  (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return errno == ENOENT;
  const ssize_t n = read(fd, line, sizeof line - 1);
  const char *state = strrchr(line, ')'); /* "PID (NAME) STATE ..." */
  (void)close(fd);
  return n <= 0 || (state != NULL && (state[2] == 'Z' || state[2] == 'X'));
}

static void look_for_dead(const nccl_launch *launch, const bool *awaited) {
  ncclComm_t comm = launch->comm;
  for (int i = 0; i < comm->n_ranks; ++i) {
    const int pid = nccl_member_of(comm, i)->pid;
    if (!awaited[i] || !is_dead(pid))
      continue;
    comm->state = COMM_FAILED;
    comm->error = nccl_fail(NCCL_DOUBLE_REMOTE_ERROR, "rank %d (process %d) has exited", i, pid);
  }
}

void nccl_tell(const nccl_launch *launch, bool moved, const bool *awaited) {
  const uint64_t patience_ns = UINT64_C(1000000) * nccl_option("PATIENCE_MS", NCCL_PATIENCE_MS);
  char text[WORDS];
  ++*(moved ? &n_moves : &n_looks);
  publish(launch, moved ? NULL : awaited);
  if (moved || n_looks % OFTEN != 0)
    return;
  look_for_ring();
  if (nccl_option("REMOTE", 0) != 0)
    look_for_dead(launch, awaited);
  if (nccl_now_ns() - launch->stands_ns > patience_ns) {
    describe(launch, text, sizeof text);
    nccl_die("nothing has moved for %llu ms: %s", (unsigned long long)(patience_ns / 1000000),
             text);
  }
}

void nccl_tell_idle(void) {
  ++n_moves;
  publish(NULL, NULL);
}
