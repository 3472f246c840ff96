/* SPDX-License-Identifier: Apache-2.0 */
/* The shared part of transports between the processes of one machine; built into each of them.
 *
 *   segment  memory that several processes map: a sealed memfd, which travels over a socket
 *   room     how much memory the machine and the process's control groups still have
 *   socket   unix sockets with abstract names, whose peers are processes of the same user
 *   bell     a doorbell in shared memory: a counter with a futex
 *   places   members of a group: how they find each other
 *
 * Invariants: nothing here trusts what a peer wrote; every descriptor is closed on exec; nothing
 * has a name in a file system. Errors name the call, and both numbers where there are two.
 */
#ifndef OPIPE_MACHINE_H
#define OPIPE_MACHINE_H

#include <opipe/helpers.h>
#include <stdalign.h>
#include <stdatomic.h>

enum { MACHINE_LINE = 128 }; /* two cache lines: neighbours are prefetched in pairs */

/* ---- segment.c ---- */

/* Makes shared memory of n_bytes, rounded up to whole pages, zeroed, its pages allocated by the
 * calling thread; it can neither shrink nor grow. Messages name `what`. Errors: LIMIT: no room,
 * with both numbers; NOMEM. */
opipe_status machine_segment_make(const char *what, uint64_t n_bytes, int *out_fd, void **out_data,
                                  uint64_t *out_bytes, opipe_error *err);
/* Maps memory that a peer made. INVALID: it is no sealed memory of n_bytes. */
opipe_status machine_segment_take(int fd, uint64_t n_bytes, void **out_data, opipe_error *err);
void machine_segment_unmap(void *data, uint64_t n_bytes);

/* ---- room.c ---- */

typedef struct machine_room {
  uint64_t limit, left; /* bytes; left: until the first of the limits is met */
  char what[160];       /* whose limit: a control group, or the machine */
} machine_room;
/* root: what stands before /proc and /sys ("" but in tests). Without any limit: UINT64_MAX. */
void machine_room_find(const char *root, machine_room *out_room);

/* ---- socket.c ---- */

enum { MACHINE_NAME_MOST = 100, MACHINE_FDS_MOST = 2 };

/* Listens at an abstract name that begins with `begin`; out_name [MACHINE_NAME_MOST], without the
 * leading NUL. */
opipe_status machine_listen(const char *begin, int *out_fd, char *out_name, opipe_error *err);
/* OK | PENDING: the listener has no place now | PEER: nobody listens, or another user does. */
opipe_status machine_connect(const char *name, int *out_fd, opipe_error *err);
/* OK | PENDING: nobody has come. Callers of other users are turned away. */
opipe_status machine_accept(int listener, int *out_fd, opipe_error *err);
/* A whole message, with up to MACHINE_FDS_MOST descriptors, which stay the caller's. OK | PENDING:
 * no place now | PEER. */
opipe_status machine_send(int fd, const void *bytes, size_t n_bytes, const int *fds, uint32_t n_fds,
                          opipe_error *err);
/* A whole message of exactly n_bytes; out_fds [MACHINE_FDS_MOST], -1: none. OK | PENDING: nothing
 * has come | PEER: the peer is gone | INVALID: another size. */
opipe_status machine_receive(int fd, void *out_bytes, size_t n_bytes, int *out_fds,
                             opipe_error *err);
/* A descriptor that tells the end of this process to whoever has it; -1: the kernel has none. */
int machine_self(void);
void machine_close(int fd); /* -1: nothing */

/* ---- bell.c ---- */

typedef struct machine_bell { /* in shared memory */
  alignas(MACHINE_LINE) _Atomic uint32_t count;
  _Atomic uint32_t sleepers;
  _Atomic uint32_t armed; /* 1: its process waits by a descriptor */
} machine_bell;

uint64_t machine_now_ns(void);
void machine_relax(void);
/* Moves the bell and wakes who sleeps. */
void machine_ring(machine_bell *bell);
/* Spins for spin_us, then sleeps, until the count has left `seen` or the clock shows until_ns. A
 * ring that a broken peer swallowed costs MACHINE_LOOK_NS at most: `look` (may be NULL) is called
 * that often, and ends the wait by answering true. */
#define MACHINE_LOOK_NS UINT64_C(50000000)
bool machine_wait(machine_bell *bell, uint32_t seen, uint32_t spin_us, uint64_t until_ns,
                  bool (*look)(void *ctx), void *ctx);

/* ---- places.c ---- */

typedef struct machine_count { /* how often a rank has opened groups of some members */
  struct machine_count *next;
  uint64_t hash[2];
  uint32_t rank, n;
} machine_count;

void machine_hash_ranks(const uint32_t *ranks, uint32_t n, uint64_t out_hash[2]);
void machine_hash_id(uint64_t id, uint64_t out_hash[2]);
/* A rank that is listed several times takes its places in the order in which it opens them, and
 * groups of one hash are told apart by *out_turn, the order of opening. */
opipe_status machine_take_place(const opipe_host *host, machine_count **io_counts,
                                const uint32_t *ranks, uint32_t n, uint32_t rank,
                                const uint64_t hash[2], uint32_t *out_index, uint32_t *out_turn,
                                opipe_error *err);
void machine_forget_places(const opipe_host *host, machine_count **io_counts);

#endif /* OPIPE_MACHINE_H */
