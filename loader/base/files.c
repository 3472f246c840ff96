/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to a file descriptor whatever the system takes at once: signals and short writes are not
 * the caller's business. Where a file that is to be replaced lies; trying whether it could be. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "loader/base/place.h"

enum { AT_ONCE_BYTES = 1 << 30 }; /* Linux writes less than 2 GiB in one call */

opipe_status opi_write_all(int fd, const void *data, uint64_t n_bytes, opipe_error *err) {
  const char *at = data;
  while (n_bytes != 0) {
    const size_t most = n_bytes < AT_ONCE_BYTES ? (size_t)n_bytes : (size_t)AT_ONCE_BYTES;
    const ssize_t n = write(fd, at, most);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return opi_fail_errno(err, errno, "writing %llu bytes", (unsigned long long)n_bytes);
    at += n;
    n_bytes -= (uint64_t)n;
  }
  return OPIPE_OK;
}

/* Replaces the link `io_path` by its target; *out_link false if it is not a link. */
static opipe_status follow_link(int dir, char io_path[PATH_MAX], bool *out_link, opipe_error *err) {
  char target[PATH_MAX], joined[PATH_MAX];
  const ssize_t n = readlinkat(dir, io_path, target, sizeof target - 1);
  *out_link = n >= 0;
  if (n < 0 && errno != EINVAL && errno != ENOENT)
    return opi_fail_errno(err, errno, "looking at %s", io_path);
  if (n < 0)
    return OPIPE_OK;
  target[n] = '\0';
  const char *slash = target[0] == '/' ? NULL : strrchr(io_path, '/');
  const int folder = slash == NULL ? 0 : (int)(slash - io_path) + 1;
  if (snprintf(joined, sizeof joined, "%.*s%s", folder, io_path, target) >= PATH_MAX) {
    return opi_fail(err, OPIPE_E_INVALID, "the link %.80s leads to a path longer than %d", io_path,
                    PATH_MAX);
  }
  memcpy(io_path, joined, sizeof joined);
  return OPIPE_OK;
}

opipe_status opi_file_place_find(int dir, const char *path, opi_file_place *out, opipe_error *err) {
  enum { LINKS_MOST = 40 }; /* as many as Linux follows */
  struct stat st;
  bool is_link = true;
  out->mode = 0;
  if (snprintf(out->path, sizeof out->path, "%s", path) >= PATH_MAX)
    return opi_fail(err, OPIPE_E_INVALID, "the path '%.80s...' is longer than %d", path, PATH_MAX);
  if (fstatat(dir, path, &st, 0) == 0) {
    if (S_ISDIR(st.st_mode))
      return opi_fail_errno(err, EISDIR, "writing %s", path);
    if (!S_ISREG(st.st_mode)) {
      return opi_fail(err, OPIPE_E_IO, "writing %s: it is a %s, a file is needed", path,
                      S_ISFIFO(st.st_mode)   ? "pipe"
                      : S_ISSOCK(st.st_mode) ? "socket"
                                             : "device");
    }
    out->mode = st.st_mode & (mode_t)(S_IRWXU | S_IRWXG | S_IRWXO);
  }
  for (uint32_t i = 0; i < LINKS_MOST && is_link; ++i)
    OPI_TRY(follow_link(dir, out->path, &is_link, err));
  return is_link ? opi_fail_errno(err, ELOOP, "writing %s", path) : OPIPE_OK;
}

opipe_status opi_file_place_keep_mode(const opi_file_place *place, int fd, opipe_error *err) {
  if (place->mode == 0 || fchmod(fd, place->mode) == 0)
    return OPIPE_OK;
  return opi_fail_errno(err, errno, "giving %s its permissions", place->path);
}

opipe_status opi_try_file(int dir, const char *path, opipe_error *err) {
  char temp[PATH_MAX];
  opi_file_place place;
  struct timespec now = {0};
  OPI_TRY(opi_file_place_find(dir, path, &place, err));
  (void)clock_gettime(CLOCK_MONOTONIC, &now); /* processes of two containers may have one pid */
  if (snprintf(temp, sizeof temp, "%s.%d-%ld.try", place.path, (int)getpid(), now.tv_nsec) >=
      PATH_MAX)
    return opi_fail(err, OPIPE_E_INVALID, "the path '%.80s...' is longer than %d", path, PATH_MAX);
  const int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0)
    return opi_fail_errno(err, errno, "making %s", temp);
  (void)close(fd);
  (void)unlinkat(dir, temp, 0);
  return OPIPE_OK;
}
