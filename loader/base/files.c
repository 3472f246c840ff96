/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to a file descriptor whatever the system takes at once: signals and short writes are not
 * the caller's business. Trying whether a file could be written. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/base/base.h"

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

opipe_status opi_try_file(int dir, const char *path, opipe_error *err) {
  char temp[PATH_MAX];
  struct stat st;
  if (snprintf(temp, sizeof temp, "%s.%d.try", path, (int)getpid()) >= PATH_MAX)
    return opi_fail(err, OPIPE_E_INVALID, "the path '%.80s...' is longer than %d", path, PATH_MAX);
  if (fstatat(dir, path, &st, 0) == 0 && S_ISDIR(st.st_mode))
    return opi_fail_errno(err, EISDIR, "writing %s", path);
  const int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0)
    return opi_fail_errno(err, errno, "making %s", temp);
  (void)close(fd);
  (void)unlinkat(dir, temp, 0);
  return OPIPE_OK;
}
