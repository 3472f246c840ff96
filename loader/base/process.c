/* SPDX-License-Identifier: Apache-2.0 */
/* Which process this is, without a system call each time: the number lies in a page that the kernel
 * empties in a forked child. */
#define _GNU_SOURCE 1
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader/base/base.h"

enum { PAGE_BYTES = 4096 };

typedef _Atomic int32_t process_number;
static _Atomic(process_number *) page;
static _Atomic int32_t unsupported; /* the kernel has no such pages */

static process_number *make_page(void) {
  process_number *none = NULL;
  process_number *fresh =
      mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED)
    return NULL;
  if (madvise(fresh, PAGE_BYTES, MADV_WIPEONFORK) != 0) {
    atomic_store(&unsupported, 1);
    (void)munmap(fresh, PAGE_BYTES);
    return NULL;
  }
  if (atomic_compare_exchange_strong(&page, &none, fresh))
    return fresh;
  (void)munmap(fresh, PAGE_BYTES); /* another thread was faster */
  return none;
}

int32_t opi_process_id(void) {
  process_number *at = atomic_load_explicit(&page, memory_order_acquire);
  const int32_t known = at == NULL ? 0 : atomic_load_explicit(at, memory_order_relaxed);
  if (known != 0)
    return known;
  const int32_t pid = (int32_t)getpid();
  if (at == NULL && atomic_load(&unsupported) == 0)
    at = make_page();
  if (at != NULL)
    atomic_store(at, pid);
  return pid;
}
