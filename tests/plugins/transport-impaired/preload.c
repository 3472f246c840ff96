/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded: a fault (fault.h) at call N of "fsync", of whatever the process saves. */
#include <sys/syscall.h>
#include <unistd.h>

#include "fault.h"

OPIPE_EXPORT int fsync(int fd);
OPIPE_EXPORT int fsync(int fd) {
  static _Atomic uint32_t count;
  (void)fault_pass("fsync", &count, NULL);
  return (int)syscall(SYS_fsync, fd);
}
