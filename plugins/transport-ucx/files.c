/* SPDX-License-Identifier: Apache-2.0 */
/* UCX leaves its descriptors open on exec: a program that the host starts would keep a dead rank's
 * connections. Descriptors that appear while UCX is called, and connections accepted at its ports,
 * are closed on exec; files and directories of other threads are left alone.
 */
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ucx.h"

enum { FILES_MOST = 65536 };
struct ucx_files {
  const opipe_host *host;
  uint64_t bits[FILES_MOST / 64];
};

static DIR *open_list(void) {
  return opendir("/proc/self/fd");
}

/* The next descriptor of the list; -1: no more. */
static int next_file(DIR *list) {
  const struct dirent *at = NULL;
  while ((at = readdir(list)) != NULL) {
    char *end = NULL;
    const long fd = strtol(at->d_name, &end, 10);
    if (end != at->d_name && *end == '\0' && fd < FILES_MOST && fd != dirfd(list))
      return (int)fd;
  }
  return -1;
}

ucx_files *ucx_files_before(const opipe_host *host) {
  ucx_files *files = ucx_new(host, "descriptors", sizeof *files, NULL);
  DIR *list = files == NULL ? NULL : open_list();
  if (files == NULL)
    return NULL;
  files->host = host;
  for (int fd = list == NULL ? -1 : next_file(list); fd >= 0; fd = next_file(list))
    files->bits[fd / 64] |= UINT64_C(1) << (fd % 64);
  if (list == NULL)
    memset(files->bits, 0xff, sizeof files->bits);
  else
    (void)closedir(list);
  return files;
}

/* Sockets, pipes and the kernel's objects without a name are what UCX opens. */
static bool may_be_its(int fd) {
  char path[64], target[64];
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(path, target, sizeof target);
  return n > 5 && (strncmp(target, "socket:", 7) == 0 || strncmp(target, "anon_inode:", 11) == 0 ||
                   strncmp(target, "pipe:", 5) == 0);
}

static void seal(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0)
    (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

/* The port of a socket's own end; 0: none. */
static uint16_t port_of(int fd) {
  struct sockaddr_storage own;
  socklen_t size = sizeof own;
  if (getsockname(fd, (struct sockaddr *)(void *)&own, &size) != 0)
    return 0;
  return own.ss_family == AF_INET    ? ((struct sockaddr_in *)(void *)&own)->sin_port
         : own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&own)->sin6_port
                                     : 0;
}

static void note_port(opipe_world *world, int fd) {
  int listens = 0;
  socklen_t size = sizeof listens;
  if (world->n_ports < UCX_PORTS &&
      getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0)
    world->ports[world->n_ports++] = port_of(fd);
}

void ucx_files_after(opipe_world *world, ucx_files *before, bool finds_ports) {
  DIR *list = before == NULL ? NULL : open_list();
  for (int fd = list == NULL ? -1 : next_file(list); fd >= 0; fd = next_file(list)) {
    if ((before->bits[fd / 64] >> (fd % 64) & 1) != 0 || !may_be_its(fd))
      continue;
    seal(fd);
    if (finds_ports)
      note_port(world, fd);
  }
  if (list != NULL)
    (void)closedir(list);
  if (before != NULL)
    ucx_delete(before->host, before, sizeof *before);
}

void ucx_files_accepted(const opipe_world *world) {
  DIR *list = open_list();
  for (int fd = list == NULL ? -1 : next_file(list); fd >= 0; fd = next_file(list)) {
    const int flags = fcntl(fd, F_GETFD);
    const uint16_t port = flags >= 0 && (flags & FD_CLOEXEC) == 0 ? port_of(fd) : 0;
    for (uint32_t i = 0; i < world->n_ports && port != 0; ++i) {
      if (world->ports[i] == port)
        seal(fd);
    }
  }
  if (list != NULL)
    (void)closedir(list);
}
