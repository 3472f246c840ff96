/* SPDX-License-Identifier: Apache-2.0 */
/* TCP, for processes of several machines. Names are resolved anew at each try. Without a token only
 * loopback is used, and only processes of this user are let in. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/launch/carrier.h"

enum { BACKLOG = 128, HOST_ROOM = 256, PORT_ROOM = 8, TRY_MS = 1000, LINE_ROOM = 512 };

typedef struct sockaddr_storage any_address;

/* ---- addresses ---- */

static opipe_status split(const char *address, const char *what, char host[HOST_ROOM],
                          char port[PORT_ROOM], opipe_error *err) {
  char line[OPI_LINE_ROOM];
  int64_t number = 0;
  const char *colon = strrchr(address, ':');
  const char *begin = address, *end = colon;
  if (colon != NULL && address[0] == '[' && colon > address + 1 && colon[-1] == ']') {
    ++begin;
    --end;
  } else if (colon != NULL && memchr(address, ':', (size_t)(colon - address)) != NULL) {
    colon = NULL; /* numbers of IPv6 stand in brackets */
  }
  if (colon == NULL || end == begin || end - begin >= HOST_ROOM ||
      !opi_parse_int(colon + 1, 1, 65535, &number)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s '%s' is not HOST:PORT with a port from 1 to 65535, as node-1:29511 or "
                    "[::1]:29511",
                    what, opi_text_line(line, address));
  }
  (void)snprintf(host, HOST_ROOM, "%.*s", (int)(end - begin), begin);
  (void)snprintf(port, PORT_ROOM, "%d", (int)number);
  return OPIPE_OK;
}

opipe_status opi_tcp_check(const char *address, const char *what, opipe_error *err) {
  char host[HOST_ROOM], port[PORT_ROOM];
  OPI_TRY(split(address, what, host, port, err));
  return strlen(address) < OPI_ADDRESS_ROOM
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_LIMIT, "%s has %zu bytes, at most %d are allowed", what,
                        strlen(address), OPI_ADDRESS_ROOM - 1);
}

static bool is_loopback(const struct sockaddr *a) {
  if (a->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, a, sizeof in);
    return ntohl(in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  struct sockaddr_in6 in6;
  memcpy(&in6, a, sizeof in6);
  return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
}

/* "10.0.0.2:41234" */
static void write_address(const struct sockaddr *a, char out[OPI_FROM_ROOM]) {
  char host[INET6_ADDRSTRLEN] = "?";
  const bool is_6 = a->sa_family == AF_INET6;
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
  memcpy(&in, a, sizeof in);
  memcpy(&in6, a, is_6 ? sizeof in6 : sizeof in);
  (void)inet_ntop(a->sa_family, is_6 ? (void *)&in6.sin6_addr : (void *)&in.sin_addr, host,
                  sizeof host);
  (void)snprintf(out, OPI_FROM_ROOM, is_6 ? "[%s]:%u" : "%s:%u", host, ntohs(in.sin_port));
}

bool opi_tcp_own_host(int fd, char out[OPI_FROM_ROOM]) {
  any_address own = {0};
  socklen_t n = sizeof own;
  if (getsockname(fd, (struct sockaddr *)&own, &n) != 0)
    return false;
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
  memcpy(&in, &own, sizeof in);
  memcpy(&in6, &own, sizeof in6);
  if (in.sin_family == AF_INET)
    return inet_ntop(AF_INET, &in.sin_addr, out, OPI_FROM_ROOM) != NULL;
  if (in.sin_family != AF_INET6)
    return false;
  return IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)
             ? inet_ntop(AF_INET, &in6.sin6_addr.s6_addr[12], out, OPI_FROM_ROOM) != NULL
             : inet_ntop(AF_INET6, &in6.sin6_addr, out, OPI_FROM_ROOM) != NULL;
}

/* The addresses of a name. OPIPE_PENDING: it has none now; err has the reason. */
static opipe_status resolve(const char *address, struct addrinfo **out, opipe_error *err) {
  char host[HOST_ROOM], port[PORT_ROOM];
  const struct addrinfo hints = {
      .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  OPI_TRY(split(address, "the address", host, port, err));
  const int failed = getaddrinfo(host, port, &hints, out);
  if (failed == 0)
    return OPIPE_OK;
  (void)opi_fail(err, OPIPE_E_IO, "the name '%s' cannot be resolved: %s", host,
                 gai_strerror(failed));
  return OPIPE_PENDING;
}

static opipe_status need_token(const struct sockaddr *a, opipe_error *err) {
  char shown[OPI_FROM_ROOM];
  write_address(a, shown);
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s can be reached from other machines, and this process has no token. In all "
                  "processes: export ONNX_PIPE_TOKEN_FILE=FILE, after once: (umask 077; head -c 32 "
                  "/dev/urandom | base64 > FILE)",
                  shown);
}

/* ---- process 0 ---- */

static opipe_status listen_at(const struct addrinfo *a, int *out_fd, opipe_error *err) {
  char shown[OPI_FROM_ROOM];
  const int one = 1;
  write_address(a->ai_addr, shown);
  const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return opi_fail_making(err, errno, "a socket");
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (a->ai_family == AF_INET6)
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
  if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
    *out_fd = fd;
    return OPIPE_OK;
  }
  const int failed = errno;
  (void)close(fd);
  if (failed == EADDRINUSE) {
    return opi_fail(err, OPIPE_E_STATE,
                    "%s is taken: another job's process 0, or another program, listens there",
                    shown);
  }
  if (failed == EADDRNOTAVAIL) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s is no address of this machine, where process 0 is: give a name or number "
                    "of process 0's machine",
                    shown);
  }
  return opi_fail_errno(err, failed, "listening at %s", shown);
}

static opipe_status tcp_listen(const char *address, bool proves, int *out_fd, opipe_error *err) {
  struct addrinfo *all = NULL;
  opipe_status status = resolve(address, &all, err);
  if (status != OPIPE_OK)
    return status == OPIPE_PENDING ? OPIPE_E_IO : status;
  status = OPIPE_E_IO;
  for (const struct addrinfo *a = all; a != NULL && status != OPIPE_OK; a = a->ai_next) {
    status = !proves && !is_loopback(a->ai_addr) ? need_token(a->ai_addr, err)
                                                 : listen_at(a, out_fd, err);
  }
  freeaddrinfo(all);
  return status;
}

static opipe_status tcp_accept(int listener, int *out_fd, opipe_error *err) {
  OPI_TRY(opi_carrier_unix.accept(listener, out_fd, err));
  const int one = 1;
  if (*out_fd >= 0)
    (void)setsockopt(*out_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return *out_fd >= 0 ? OPIPE_OK : OPIPE_PENDING;
}

/* ---- the others ---- */

/* 0: connected, else errno. */
static int finish(int fd) {
  struct pollfd one = {.fd = fd, .events = POLLOUT};
  int failed = 0;
  socklen_t n = sizeof failed;
  if (poll(&one, 1, TRY_MS) <= 0)
    return ETIMEDOUT;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n) == 0 ? failed : errno;
}

/* Connected to itself, as a port without a listener that the kernel drew for this end. */
static bool is_itself(int fd) {
  any_address own = {0}, other = {0};
  socklen_t n = sizeof own, m = sizeof other;
  return getsockname(fd, (struct sockaddr *)&own, &n) == 0 &&
         getpeername(fd, (struct sockaddr *)&other, &m) == 0 && n == m &&
         memcmp(&own, &other, n) == 0;
}

static opipe_status connect_to(const struct addrinfo *a, int *out_fd, opipe_error *err) {
  char shown[OPI_FROM_ROOM];
  const int one = 1;
  write_address(a->ai_addr, shown);
  const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return opi_fail_making(err, errno, "a socket");
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  int failed = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
  if (failed == EINPROGRESS)
    failed = finish(fd);
  if (failed == 0 && is_itself(fd))
    failed = ECONNREFUSED;
  if (failed == 0) {
    *out_fd = fd;
    return OPIPE_OK;
  }
  (void)close(fd);
  (void)opi_fail_errno(err, failed, "connecting to %s", shown);
  return OPIPE_PENDING;
}

static opipe_status tcp_connect(const char *address, bool proves, int *out_fd, opipe_error *err) {
  struct addrinfo *all = NULL;
  OPI_TRY(resolve(address, &all, err));
  opipe_status status = OPIPE_PENDING;
  for (const struct addrinfo *a = all; a != NULL && status == OPIPE_PENDING; a = a->ai_next) {
    status = !proves && !is_loopback(a->ai_addr) ? need_token(a->ai_addr, err)
                                                 : connect_to(a, out_fd, err);
    if (status == OPIPE_OK)
      break;
  }
  if (all != NULL)
    freeaddrinfo(all);
  return *out_fd >= 0 ? OPIPE_OK : status;
}

/* ---- whose end is it? ---- */

/* The hexadecimal form of /proc/net/tcp and tcp6. */
static void write_hex(const struct sockaddr *a, char *out, size_t room) {
  uint32_t words[4] = {0}, n = 1;
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
  memcpy(&in, a, sizeof in);
  memcpy(words, &in.sin_addr, sizeof in.sin_addr);
  if (a->sa_family == AF_INET6) {
    memcpy(&in6, a, sizeof in6);
    memcpy(words, &in6.sin6_addr, sizeof words);
    n = 4;
  }
  for (uint32_t i = 0; i < n; ++i)
    (void)snprintf(out + (size_t)8 * i, room - (size_t)8 * i, "%08X", words[i]);
  (void)snprintf(out + (size_t)8 * n, room - (size_t)8 * n, ":%04X", ntohs(in.sin_port));
}

/* The user of the socket whose own end is `own`, connected to `other`. False: not found. */
static bool find_user(const struct sockaddr *own, const struct sockaddr *other, uint32_t *out) {
  char line[LINE_ROOM], from[48], to[48], seen_from[64], seen_to[64];
  bool found = false;
  FILE *file = fopen(own->sa_family == AF_INET6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re");
  write_hex(own, from, sizeof from);
  write_hex(other, to, sizeof to);
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    found = sscanf(line, " %*u: %63s %63s %*x %*s %*s %*s %u", seen_from, seen_to, out) == 3 &&
            strcmp(seen_from, from) == 0 && strcmp(seen_to, to) == 0;
  }
  if (file != NULL)
    (void)fclose(file);
  return found;
}

static opipe_status tcp_check_peer(int fd, bool proves, opi_peer *out_peer, opipe_error *err) {
  any_address own = {0}, other = {0};
  socklen_t n = sizeof own, m = sizeof other;
  *out_peer = (opi_peer){.uid = geteuid()};
  if (getsockname(fd, (struct sockaddr *)&own, &n) != 0 ||
      getpeername(fd, (struct sockaddr *)&other, &m) != 0)
    return opi_fail_errno(err, errno, "the address of a peer cannot be asked");
  write_address((struct sockaddr *)&other, out_peer->from);
  if (proves)
    return OPIPE_OK;
  if (!find_user((struct sockaddr *)&other, (struct sockaddr *)&own, &out_peer->uid)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "the user at %s cannot be asked, and there is no token: set "
                    "ONNX_PIPE_TOKEN_FILE in all processes",
                    out_peer->from);
  }
  return out_peer->uid == geteuid()
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID,
                        "the process at %s is of user %u, this one of user %u: other users need a "
                        "token (ONNX_PIPE_TOKEN_FILE)",
                        out_peer->from, out_peer->uid, (unsigned)geteuid());
}

const opi_carrier opi_carrier_tcp = {"tcp",       true,       NULL,          tcp_listen,
                                     tcp_connect, tcp_accept, tcp_check_peer};
