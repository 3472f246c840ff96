/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets with abstract names: the name is gone with the last descriptor, however its process
 * ended. */
#include "runtime/launch/carrier.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128, JOB_SHOWN = 40, UNIX_ROOM = 108, FIRST_FDS = 4 };

opipe_status opi_fail_descriptors(opipe_error *err, const char *what) {
  struct rlimit most = {0, 0};
  uint32_t n = 0;
  (void)getrlimit(RLIMIT_NOFILE, &most);
  DIR *folder = opendir("/proc/self/fd");
  for (; folder != NULL && readdir(folder) != NULL; ++n) {
  }
  if (folder != NULL)
    (void)closedir(folder);
  char open[32] = "all";
  if (n > FIRST_FDS)
    (void)snprintf(open, sizeof open, "%u", n - 3); /* without ".", ".." and the folder itself */
  return opi_fail(err, OPIPE_E_LIMIT,
                  "%s: no file descriptor is left, %s of %llu are open (ulimit -n)", what, open,
                  (unsigned long long)most.rlim_cur);
}

opipe_status opi_fail_making(opipe_error *err, int number, const char *what) {
  return number == EMFILE || number == ENFILE ? opi_fail_descriptors(err, what)
                                              : opi_fail_errno(err, number, "%s", what);
}

/* ---- abstract unix sockets ---- */

static void address_of_job(const char *job, char out[OPI_ADDRESS_ROOM]) {
  char shown[JOB_SHOWN + 1];
  const XXH64_hash_t hash = XXH3_64bits(job, strlen(job));
  (void)snprintf(shown, sizeof shown, "%s", job);
  (void)snprintf(out, UNIX_ROOM, "@onnx-pipe/%u/%s/%016llx", (unsigned)geteuid(), shown,
                 (unsigned long long)hash);
}

static socklen_t fill_name(const char *address, struct sockaddr_un *out) {
  const size_t n = strlen(address);
  memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  memcpy(out->sun_path, address, n); /* UNIX_ROOM - 1 bytes at most */
  out->sun_path[0] = '\0';           /* stands as '@' in the address */
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}
_Static_assert(sizeof(((struct sockaddr_un *)0)->sun_path) >= UNIX_ROOM, "a unix name");

static bool read_peer(int fd, opi_peer *out) {
  struct ucred found;
  socklen_t n = sizeof found;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &found, &n) != 0)
    return false;
  *out = (opi_peer){.pid = found.pid, .uid = found.uid};
  return true;
}

static opipe_status unix_check_peer(int fd, bool proves, opi_peer *out_peer, opipe_error *err) {
  (void)proves;
  if (!read_peer(fd, out_peer))
    return opi_fail_errno(err, errno, "the user of a peer cannot be asked");
  if (out_peer->uid == geteuid())
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "process %lld at the other end is of user %u, this one of user %u",
                  (long long)out_peer->pid, out_peer->uid, (unsigned)geteuid());
}

static opipe_status unix_connect(const char *address, bool proves, int *out_fd, opipe_error *err) {
  struct sockaddr_un name;
  (void)proves;
  const socklen_t n = fill_name(address, &name);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return opi_fail_making(err, errno, "a socket");
  if (connect(fd, (const struct sockaddr *)&name, n) == 0) {
    *out_fd = fd;
    return OPIPE_OK;
  }
  const int failed = errno;
  (void)close(fd);
  return failed == ECONNREFUSED || failed == EAGAIN || failed == ENOENT
             ? OPIPE_PENDING
             : opi_fail_errno(err, failed, "connecting to %s", address);
}

/* Who has the name? */
static opipe_status fail_taken(const char *address, opipe_error *err) {
  opi_peer peer;
  int fd = -1;
  const bool known = unix_connect(address, false, &fd, NULL) == OPIPE_OK && read_peer(fd, &peer);
  if (fd >= 0)
    (void)close(fd);
  if (!known)
    return opi_fail(err, OPIPE_E_STATE, "the name %s is taken by another process", address);
  if (peer.uid != geteuid()) {
    return opi_fail(
        err, OPIPE_E_STATE,
        "the name %s is taken by process %lld of user %u; this is process %d of user %u", address,
        (long long)peer.pid, peer.uid, (int)getpid(), (unsigned)geteuid());
  }
  return opi_fail(err, OPIPE_E_STATE,
                  "the name %s is taken: process %lld is rank 0 of a job of this name, and process "
                  "%d would be, too",
                  address, (long long)peer.pid, (int)getpid());
}

static opipe_status unix_listen(const char *address, bool proves, int *out_fd, opipe_error *err) {
  struct sockaddr_un name;
  (void)proves;
  const socklen_t n = fill_name(address, &name);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return opi_fail_making(err, errno, "a socket");
  if (bind(fd, (const struct sockaddr *)&name, n) == 0 && listen(fd, BACKLOG) == 0) {
    *out_fd = fd;
    return OPIPE_OK;
  }
  const int failed = errno;
  (void)close(fd);
  return failed == EADDRINUSE ? fail_taken(address, err)
                              : opi_fail_errno(err, failed, "listening at %s", address);
}

static opipe_status unix_accept(int listener, int *out_fd, opipe_error *err) {
  const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    *out_fd = fd;
    return OPIPE_OK;
  }
  return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
             ? OPIPE_PENDING
             : opi_fail_making(err, errno, "a process that wants to join");
}

const opi_carrier opi_carrier_unix = {"unix",       false,       address_of_job, unix_listen,
                                      unix_connect, unix_accept, unix_check_peer};

/* ---- descriptors that travel ---- */

int opi_pidfd_self(void) {
#ifdef SYS_pidfd_open
  return (int)syscall(SYS_pidfd_open, getpid(), 0); /* close-on-exec by itself */
#else
  return -1;
#endif
}

opipe_status opi_send_with(int fd, const void *bytes, size_t n, int passed, opipe_error *err) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {.room = {0}};
  struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
  struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
  if (passed >= 0) {
    m.msg_control = control.room;
    m.msg_controllen = sizeof control.room;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &passed, sizeof passed);
  }
  const ssize_t done = sendmsg(fd, &m, MSG_NOSIGNAL);
  if (done < 0)
    return opi_fail_errno(err, errno, "sending to the other end");
  return (size_t)done == n
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_IO, "the other end took %zd of %zu bytes", done, n);
}

/* The first descriptor goes to *io_passed if that is -1, all others are closed. */
static void take_descriptors(struct msghdr *m, int *io_passed) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
      continue;
    const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (*io_passed < 0)
        *io_passed = fd;
      else
        (void)close(fd);
    }
  }
}

opipe_status opi_receive_with(int fd, void *bytes, size_t room, size_t *out_n, int *io_passed,
                              opipe_error *err) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(FIRST_FDS * sizeof(int))];
  } control;
  struct iovec part = {.iov_base = bytes, .iov_len = room};
  struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
  m.msg_control = control.room;
  m.msg_controllen = sizeof control.room;
  const ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return OPIPE_PENDING;
  if (n < 0 && errno != ECONNRESET)
    return opi_fail_errno(err, errno, "receiving from the other end");
  *out_n = n < 0 ? 0 : (size_t)n;
  if (n < 0)
    return OPIPE_OK;
  take_descriptors(&m, io_passed);
  return (m.msg_flags & MSG_CTRUNC) == 0 || *io_passed >= 0
             ? OPIPE_OK
             : opi_fail_descriptors(err, "the descriptor of a process that joins");
}
