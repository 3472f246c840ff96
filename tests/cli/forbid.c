/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded: parts of a file may not be read by this process. OPI_FORBID_FILE ends the file's path;
 * OPI_FORBID_<RANK> lists "offset+bytes,...", of which whole pages have no access where the file is
 * mapped. Reading of the file by other calls is not for this test: the library maps it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_the_file(int fd) {
  char link[64], path[4096];
  const char *wanted = getenv("OPI_FORBID_FILE");
  (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = fd < 0 || wanted == NULL ? -1 : readlink(link, path, sizeof path - 1);
  if (n < 0 || (size_t)n < strlen(wanted))
    return 0;
  path[n] = '\0';
  return strcmp(path + n - (ssize_t)strlen(wanted), wanted) == 0;
}

/* Whole pages inside the range. */
static void forbid(char *data, uint64_t mapped, uint64_t offset, uint64_t n_bytes) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  const uint64_t from = (offset + page - 1) / page * page, to = (offset + n_bytes) / page * page;
  if (from < to && to <= mapped && mprotect(data + from, to - from, PROT_NONE) != 0)
    abort();
}

void *mmap64(void *address, size_t n_bytes, int access, int flags, int fd, off_t offset)
    __attribute__((alias("mmap")));

void *mmap(void *address, size_t n_bytes, int access, int flags, int fd, off_t offset) {
  static void *(*real)(void *, size_t, int, int, int, off_t);
  char name[32];
  if (real == NULL)
    *(void **)&real = dlsym(RTLD_NEXT, "mmap");
  char *data = real(address, n_bytes, access, flags, fd, offset);
  const char *rank = getenv("RANK");
  if (data == MAP_FAILED || rank == NULL || !is_the_file(fd))
    return data;
  (void)snprintf(name, sizeof name, "OPI_FORBID_%s", rank);
  for (const char *at = getenv(name); at != NULL && *at != '\0';) {
    char *end = NULL;
    const uint64_t from = strtoull(at, &end, 10), n = strtoull(end + 1, &end, 10);
    forbid(data, n_bytes, from, n);
    at = *end == ',' ? end + 1 : end;
  }
  (void)fprintf(stderr, "forbidden in rank %s\n", rank);
  return data;
}
