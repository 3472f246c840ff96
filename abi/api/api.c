/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what they are, whose they are, and whether they still live. */
#include "abi/api/api.h"

#include <time.h>
#include <unistd.h>

void opi_handle_init(opi_handle *handle, uint32_t magic) {
  handle->magic = magic;
  handle->pid = getpid();
  atomic_init(&handle->refs, 1);
}

bool opi_handle_drop(opi_handle *handle) {
  if (atomic_fetch_sub_explicit(&handle->refs, 1, memory_order_acq_rel) != 1)
    return false;
  handle->magic = 0;
  return true;
}

opipe_status opi_handle_check(const opi_handle *handle, uint32_t magic, const char *what,
                              opipe_error *err) {
  if (handle == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "the %s is NULL", what);
  if (handle->magic != magic)
    return opi_fail(err, OPIPE_E_STATE, "this is no %s (or it was destroyed)", what);
  if (handle->pid != getpid()) {
    return opi_fail(err, OPIPE_E_STATE, "the %s was opened in another process (%d, this is %d)",
                    what, (int)handle->pid, (int)getpid());
  }
  return OPIPE_OK;
}

uint64_t opi_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
