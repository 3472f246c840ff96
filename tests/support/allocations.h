/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what anybody in the process allocates: an executable that includes this once puts its own
 * malloc and mmap in front of the C library's, for every shared object, plugins too. Under a
 * sanitizer, which has a malloc of its own, nothing is counted (OPI_TEST_COUNTS_ALLOCATIONS 0). And
 * what the process has for itself alone.
 */
#ifndef TESTS_ALLOCATIONS_H
#define TESTS_ALLOCATIONS_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic uint64_t n_allocations;
static _Atomic(void *) first_caller;
static atomic_bool counting;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { OPI_TEST_COUNTS_ALLOCATIONS = 0 };
#else
enum { OPI_TEST_COUNTS_ALLOCATIONS = 1 };

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static void note(void *caller) {
  void *none = NULL;
  if (!atomic_load_explicit(&counting, memory_order_relaxed))
    return;
  atomic_fetch_add(&n_allocations, 1);
  (void)atomic_compare_exchange_strong(&first_caller, &none, caller);
}

#pragma GCC visibility push(default) /* shared objects find them too */
void *malloc(size_t n) {
  note(__builtin_return_address(0));
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
  note(__builtin_return_address(0));
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
  note(__builtin_return_address(0));
  return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n) {
  note(__builtin_return_address(0));
  return __libc_memalign(align, n);
}
int posix_memalign(void **out, size_t align, size_t n) {
  note(__builtin_return_address(0));
  *out = __libc_memalign(align, n);
  return *out == NULL ? ENOMEM : 0;
}
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
  note(__builtin_return_address(0));
  return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}
#pragma GCC visibility pop
#endif

static inline void opi_test_count_allocations(void) {
  atomic_store(&n_allocations, 0);
  atomic_store(&first_caller, NULL);
  atomic_store(&counting, true);
}
static inline uint64_t opi_test_counted(void) {
  atomic_store(&counting, false);
  return atomic_load(&n_allocations);
}
static inline void *opi_test_first_caller(void) {
  return atomic_load(&first_caller);
}

/* Bytes that only this process has; those of mapped files are left out. 0: not known here. */
static inline uint64_t opi_test_private_bytes(void) {
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  unsigned long long kib = 0;
  if (file == NULL)
    return 0;
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "Anonymous: %llu", &kib) == 1)
      break;
  }
  (void)fclose(file);
  return (uint64_t)kib * 1024;
}

#endif /* TESTS_ALLOCATIONS_H */
