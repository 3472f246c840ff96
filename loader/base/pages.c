/* SPDX-License-Identifier: Apache-2.0 */
/* Which memory of the process is a private mapping, for reading alone, of a file: such pages may be
 * given back at any time, since what reads them again faults them in as they were. Any other memory
 * would lose what stands there. */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader/base/base.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static opi_pages *first;

void opi_pages_add(opi_pages *pages, const void *data, uint64_t n_bytes) {
  pages->data = data;
  pages->n_bytes = n_bytes;
  pages->before = NULL;
  (void)pthread_mutex_lock(&lock);
  pages->next = first;
  if (first != NULL)
    first->before = pages;
  first = pages;
  (void)pthread_mutex_unlock(&lock);
}

void opi_pages_remove(opi_pages *pages) {
  (void)pthread_mutex_lock(&lock);
  if (pages->before != NULL)
    pages->before->next = pages->next;
  else if (first == pages)
    first = pages->next;
  if (pages->next != NULL)
    pages->next->before = pages->before;
  (void)pthread_mutex_unlock(&lock);
}

/* Whole pages from the one that `begin` lies in to the one before which `end` lies. */
static void drop(const opi_pages *pages, uint64_t begin, uint64_t end) {
  const long size = sysconf(_SC_PAGESIZE);
  const uint64_t page = size > 0 ? (uint64_t)size : 4096;
  const uint64_t from = begin / page * page;
  (void)madvise((void *)((uintptr_t)pages->data + (uintptr_t)from), (size_t)(end - from),
                MADV_DONTNEED);
}

void opi_pages_drop(const void *data, uint64_t n_bytes) {
  const uintptr_t at = (uintptr_t)data;
  (void)pthread_mutex_lock(&lock);
  for (const opi_pages *p = first; p != NULL; p = p->next) {
    const uintptr_t begin = (uintptr_t)p->data;
    if (at >= begin && at - begin < p->n_bytes) {
      const uint64_t offset = at - begin;
      const uint64_t left = p->n_bytes - offset;
      drop(p, offset, offset + (n_bytes < left ? n_bytes : left));
      break;
    }
  }
  (void)pthread_mutex_unlock(&lock);
}
