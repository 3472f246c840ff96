/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that members of a communicator share: a file without a name, which its maker keeps
 * open until all have it, and which others find through /proc.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "double.h"

typedef struct made {
  struct made *next;
  nccl_shared *begin; /* of the file */
  int fd;
} made;

static made *all_made;
static const char magic[8] = "ncclfil";

static uint64_t new_nonce(void) {
  static uint64_t n;
  return nccl_now_ns() * 64 + (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15) + ++n;
}

int nccl_place_make(nccl_place *out) {
  made *m = calloc(1, sizeof *m);
  const int fd = memfd_create("nccl-double", MFD_CLOEXEC);
  void *begin = MAP_FAILED;
  if (m != NULL && fd >= 0 && ftruncate(fd, sizeof(nccl_shared)) == 0)
    begin = mmap(NULL, sizeof(nccl_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (begin == MAP_FAILED) {
    free(m);
    if (fd >= 0)
      (void)close(fd);
    return nccl_fail(NCCL_DOUBLE_SYSTEM_ERROR, "no shared memory: %s", strerror(errno));
  }
  *m = (made){.next = all_made, .begin = begin, .fd = fd};
  all_made = m;
  *out = (nccl_place){.pid = getpid(), .fd = fd, .nonce = new_nonce()};
  memcpy(out->magic, magic, sizeof magic);
  m->begin->nonce = out->nonce;
  return NCCL_DOUBLE_SUCCESS;
}

bool nccl_places_drop(void) {
  for (made **link = &all_made; *link != NULL;) {
    made *m = *link;
    const uint32_t n_ranks = atomic_load(&m->begin->n_ranks);
    if (n_ranks == 0 || atomic_load(&m->begin->n_here) < n_ranks) {
      link = &m->next;
      continue;
    }
    *link = m->next;
    (void)munmap(m->begin, sizeof *m->begin);
    (void)close(m->fd);
    free(m);
  }
  return all_made == NULL;
}

/* The file: nccl_shared, members [n], channels [n, n] from, to. */
static size_t place_bytes(int n) {
  return sizeof(nccl_shared) + (size_t)n * sizeof(nccl_member) +
         (size_t)n * (size_t)n * sizeof(nccl_channel);
}

int nccl_place_open(ncclComm_t comm) {
  char path[64];
  const nccl_place *place = &comm->place;
  if (memcmp(place->magic, magic, sizeof magic) != 0)
    return nccl_fail(NCCL_DOUBLE_INVALID_ARGUMENT, "a unique id that ncclGetUniqueId has not made");
  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)place->pid, (int)place->fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  const size_t n_bytes = place_bytes(comm->n_ranks);
  void *memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, (off_t)n_bytes) == 0)
    memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int why = errno;
  if (fd >= 0)
    (void)close(fd);
  if (memory == MAP_FAILED) {
    return nccl_fail(NCCL_DOUBLE_SYSTEM_ERROR, "process %d that made the unique id is gone: %s",
                     (int)place->pid, strerror(why));
  }
  nccl_shared *shared = memory;
  uint32_t none = 0;
  if (shared->nonce != place->nonce) {
    (void)munmap(memory, n_bytes);
    return nccl_fail(NCCL_DOUBLE_SYSTEM_ERROR, "the unique id is of another time");
  }
  (void)atomic_compare_exchange_strong(&shared->n_ranks, &none, (uint32_t)comm->n_ranks);
  if (none != 0 && none != (uint32_t)comm->n_ranks)
    nccl_die("a communicator of %d ranks, others say %u", comm->n_ranks, none);
  comm->shared = shared;
  comm->n_bytes = n_bytes;
  (void)atomic_fetch_add(&shared->n_here, 1);
  return NCCL_DOUBLE_SUCCESS;
}

void nccl_place_close(ncclComm_t comm) {
  if (comm->shared != NULL)
    (void)munmap(comm->shared, comm->n_bytes);
  comm->shared = NULL;
}

nccl_member *nccl_member_of(const struct ncclComm *comm, int rank) {
  return (nccl_member *)(void *)(comm->shared + 1) + rank;
}

nccl_channel *nccl_channel_of(const struct ncclComm *comm, int from, int to) {
  return (nccl_channel *)(void *)nccl_member_of(comm, comm->n_ranks) + from * comm->n_ranks + to;
}
