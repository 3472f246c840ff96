/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets of whole messages with abstract names: nothing is left of them when a process ends,
 * however it ends. Both ends check that the other belongs to the same user.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "machine.h"

enum { BACKLOG = 256, TRIES = 8 };

static socklen_t address_of(const char *name, struct sockaddr_un *out_address) {
  const size_t n = strnlen(name, MACHINE_NAME_MOST);
  memset(out_address, 0, sizeof *out_address);
  out_address->sun_family = AF_UNIX;
  memcpy(out_address->sun_path + 1, name, n);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static int new_socket(void) {
  return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static opipe_status check_user(int fd, opipe_error *err) {
  struct ucred peer = {0, 0, 0};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return opipe_fail(err, OPIPE_E_PEER, "the user of a peer is not known: %s", strerror(errno));
  if (peer.uid == geteuid())
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_PEER, "a peer is a process of user %u, this one of user %u",
                    (unsigned)peer.uid, (unsigned)geteuid());
}

opipe_status machine_listen(const char *begin, int *out_fd, char *out_name, opipe_error *err) {
  struct sockaddr_un address;
  const int fd = new_socket();
  int code = errno;
  if (fd < 0)
    return opipe_fail(err, OPIPE_E_LIMIT, "a socket to listen at: %s", strerror(code));
  for (int i = 0; i < TRIES; ++i) {
    uint64_t random = 0;
    (void)getrandom(&random, sizeof random, 0);
    (void)snprintf(out_name, MACHINE_NAME_MOST, "%.60s/%" PRIx64, begin, random);
    const socklen_t size = address_of(out_name, &address);
    if (bind(fd, (const struct sockaddr *)&address, size) == 0 && listen(fd, BACKLOG) == 0) {
      *out_fd = fd;
      return OPIPE_OK;
    }
    code = errno;
    if (code != EADDRINUSE)
      break;
  }
  (void)close(fd);
  return opipe_fail(err, OPIPE_E_IO, "listening at '%s': %s", out_name, strerror(code));
}

opipe_status machine_connect(const char *name, int *out_fd, opipe_error *err) {
  struct sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  const int fd = new_socket();
  if (fd < 0)
    return opipe_fail(err, OPIPE_E_LIMIT, "a socket to a peer: %s", strerror(errno));
  if (connect(fd, (const struct sockaddr *)&address, size) != 0) {
    const int code = errno;
    (void)close(fd);
    if (code == EAGAIN || code == EINTR)
      return OPIPE_PENDING;
    return opipe_fail(err, OPIPE_E_PEER, "connecting to '%s': %s", name, strerror(code));
  }
  const opipe_status status = check_user(fd, err);
  if (status < 0)
    (void)close(fd);
  else
    *out_fd = fd;
  return status;
}

opipe_status machine_accept(int listener, int *out_fd, opipe_error *err) {
  for (;;) {
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
      return opipe_fail(err, OPIPE_E_LIMIT, "accepting a peer: %s", strerror(errno));
    if (fd < 0)
      return OPIPE_PENDING;
    if (check_user(fd, NULL) == OPIPE_OK) {
      *out_fd = fd;
      return OPIPE_OK;
    }
    (void)close(fd);
  }
}

typedef union control { /* of descriptors */
  struct cmsghdr head;
  char bytes[CMSG_SPACE(MACHINE_FDS_MOST * sizeof(int))];
} control;

opipe_status machine_send(int fd, const void *bytes, size_t n_bytes, const int *fds, uint32_t n_fds,
                          opipe_error *err) {
  control room;
  struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  memset(&room, 0, sizeof room);
  if (n_fds > 0) {
    message.msg_control = room.bytes;
    message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
    memcpy(CMSG_DATA(head), fds, n_fds * sizeof(int));
  }
  const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n == (ssize_t)n_bytes)
    return OPIPE_OK;
  if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ETOOMANYREFS))
    return OPIPE_PENDING;
  return opipe_fail(err, OPIPE_E_PEER, "a message to a peer: %s", strerror(errno));
}

/* Takes what came; descriptors beyond what there is room for are closed. */
static void take_fds(struct msghdr *message, int *out_fds) {
  uint32_t n = 0;
  for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL;
       head = CMSG_NXTHDR(message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
      continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      if (n < MACHINE_FDS_MOST)
        out_fds[n++] = fd;
      else
        (void)close(fd);
    }
  }
}

opipe_status machine_receive(int fd, void *out_bytes, size_t n_bytes, int *out_fds,
                             opipe_error *err) {
  control room;
  struct iovec part = {.iov_base = out_bytes, .iov_len = n_bytes};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = room.bytes,
                           .msg_controllen = sizeof room.bytes};
  for (int i = 0; i < MACHINE_FDS_MOST; ++i)
    out_fds[i] = -1;
  ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && errno == ECONNRESET) /* said once; what came before it is still there */
    n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return OPIPE_PENDING;
  if (n <= 0) {
    return opipe_fail(err, OPIPE_E_PEER, "the connection to a peer has ended%s%s",
                      n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
  }
  take_fds(&message, out_fds);
  if ((size_t)n == n_bytes && (message.msg_flags & MSG_TRUNC) == 0)
    return OPIPE_OK;
  for (int i = 0; i < MACHINE_FDS_MOST; ++i) {
    machine_close(out_fds[i]);
    out_fds[i] = -1;
  }
  return opipe_fail(err, OPIPE_E_INVALID, "a message of %zd bytes from a peer, expected are %zu", n,
                    n_bytes);
}

int machine_self(void) {
#ifdef SYS_pidfd_open
  return (int)syscall(SYS_pidfd_open, getpid(), 0);
#else
  return -1;
#endif
}

void machine_close(int fd) {
  if (fd >= 0)
    (void)close(fd);
}
