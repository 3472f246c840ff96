/* SPDX-License-Identifier: Apache-2.0 */
/* Carriers of the channel: how one process reaches another. A row of functions each, so that a
 * second one needs no other change. All descriptors are CLOEXEC; those of connections do not block.
 */
#ifndef OPI_CARRIER_H
#define OPI_CARRIER_H

#include "loader/base/base.h"

enum { OPI_ADDRESS_ROOM = 272, OPI_FROM_ROOM = 72 };

/* The other end of a connection, as the system knows it. */
typedef struct opi_peer {
  int64_t pid; /* 0: of another PID namespace, or not known */
  uint32_t uid;
  char from[OPI_FROM_ROOM]; /* "10.0.0.2:41234"; "": a unix socket */
} opi_peer;

typedef struct opi_carrier {
  const char *name;
  bool greets; /* an end that others can reach: it begins with a greeting (token.h) */
  /* Writes the address of the job's process 0, the same in all its processes. NULL: it is given. */
  void (*address)(const char *job, char out[OPI_ADDRESS_ROOM]);
  /* proves: both ends have a token. Errors: STATE, somebody listens there already (with their
   * process and user); INVALID, other machines may come, and there is no token; IO. */
  opipe_status (*listen)(const char *address, bool proves, int *out_fd, opipe_error *err);
  /* OPIPE_PENDING: nobody listens there yet; `err` may have the reason. Errors: as `listen`. */
  opipe_status (*connect)(const char *address, bool proves, int *out_fd, opipe_error *err);
  /* OPIPE_PENDING: nobody waits. Errors: LIMIT, no descriptors are left (with both numbers); IO. */
  opipe_status (*accept)(int listener, int *out_fd, opipe_error *err);
  /* Refuses a process of another user, unless it is to prove a token. Errors: INVALID, with both
   * users. */
  opipe_status (*check_peer)(int fd, bool proves, opi_peer *out_peer, opipe_error *err);
} opi_carrier;
extern const opi_carrier opi_carrier_unix; /* processes of one machine and network namespace */
extern const opi_carrier opi_carrier_tcp;  /* address: "HOST:PORT", "[::1]:PORT" */

/* A pidfd of this process, -1 if the system has none to give. */
int opi_pidfd_self(void);
/* Sends `n` bytes with a descriptor (-1: without). The connection must be new, so that it takes
 * them at once. Errors: IO. */
opipe_status opi_send_with(int fd, const void *bytes, size_t n, int passed, opipe_error *err);
/* Receives up to `room` bytes; *out_n 0: the connection has ended. A descriptor that comes with
 * them becomes *io_passed if that is -1, others are closed. OPIPE_PENDING: there is nothing yet.
 * Errors: LIMIT, no descriptor is left for one that was sent; IO. */
opipe_status opi_receive_with(int fd, void *bytes, size_t room, size_t *out_n, int *io_passed,
                              opipe_error *err);
/* Is it "HOST:PORT", a port from 1 to 65535? The message calls it `what`. Errors: INVALID. */
opipe_status opi_tcp_check(const char *address, const char *what, opipe_error *err);
/* The host of a connection's own end, "10.0.0.1". False: it is not by TCP. */
bool opi_tcp_own_host(int fd, char out[OPI_FROM_ROOM]);
/* Errors of a call that makes a descriptor. */
opipe_status opi_fail_making(opipe_error *err, int number, const char *what);
/* Descriptors that are open and those that may be: for messages. */
opipe_status opi_fail_descriptors(opipe_error *err, const char *what);

#endif /* OPI_CARRIER_H */
