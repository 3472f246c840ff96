/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to a file descriptor whatever the system takes at once: signals and short writes are not
 * the caller's business. */
#include <errno.h>
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
