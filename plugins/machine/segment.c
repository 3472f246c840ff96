/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: memfds, sealed against shrinking, so that no peer can make an access fail. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static opipe_status failed(const char *what, const char *call, uint64_t n_bytes, int code,
                           opipe_error *err) {
  struct rlimit files = {0, 0};
  if (code == EMFILE || code == ENFILE) {
    (void)getrlimit(RLIMIT_NOFILE, &files);
    return opipe_fail(err, OPIPE_E_LIMIT,
                      "%s of %llu bytes: %s: no descriptor is left (at most %llu)", what,
                      (unsigned long long)n_bytes, call, (unsigned long long)files.rlim_cur);
  }
  return opipe_fail(err, OPIPE_E_NOMEM, "%s of %llu bytes: %s: %s", what,
                    (unsigned long long)n_bytes, call, strerror(code));
}

static opipe_status no_room(const char *what, uint64_t n_bytes, const machine_room *room,
                            opipe_error *err) {
  return opipe_fail(err, OPIPE_E_LIMIT, "%s of %llu bytes: %s has %llu bytes left of %llu", what,
                    (unsigned long long)n_bytes, room->what, (unsigned long long)room->left,
                    (unsigned long long)room->limit);
}

/* Allocates the pages. A limit that is met by touching pages ends the process: it is asked for
 * before each piece, because other processes allocate, too. A piece is so small a part of what is
 * left that SHARES processes at once stay below the limit, and SHARES * LEAST_BYTES stay free. */
static opipe_status fill(int fd, const char *what, uint64_t n_bytes, opipe_error *err) {
  enum { SHARES = 16, LEAST_BYTES = 64 << 10 };
  uint64_t piece = 0;
  for (uint64_t done = 0; done < n_bytes; done += piece) {
    machine_room room;
    machine_room_find("", &room);
    piece = room.left / SHARES;
    if (n_bytes - done > room.left || piece < LEAST_BYTES)
      return no_room(what, n_bytes, &room, err);
    piece = piece / LEAST_BYTES * LEAST_BYTES;
    piece = piece < n_bytes - done ? piece : n_bytes - done;
    if (fallocate(fd, 0, (off_t)done, (off_t)piece) != 0)
      return failed(what, "fallocate", n_bytes, errno, err);
  }
  return OPIPE_OK;
}

static opipe_status map(int fd, uint64_t n_bytes, void **out_data) {
  void *data = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return OPIPE_E_NOMEM;
  (void)madvise(data, (size_t)n_bytes, MADV_DONTFORK);
  *out_data = data;
  return OPIPE_OK;
}

opipe_status machine_segment_make(const char *what, uint64_t n_bytes, int *out_fd, void **out_data,
                                  uint64_t *out_bytes, opipe_error *err) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  if (n_bytes == 0 || n_bytes > INT64_MAX - page)
    return opipe_fail(err, OPIPE_E_LIMIT, "%s of %llu bytes", what, (unsigned long long)n_bytes);
  n_bytes = (n_bytes + page - 1) / page * page;
  const int fd = (int)syscall(SYS_memfd_create, "onnx-pipe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return failed(what, "memfd_create", n_bytes, errno, err);
  opipe_status status = ftruncate(fd, (off_t)n_bytes) == 0
                            ? fill(fd, what, n_bytes, err)
                            : failed(what, "ftruncate", n_bytes, errno, err);
  if (status == OPIPE_OK && fcntl(fd, F_ADD_SEALS, SEALS) != 0)
    status = failed(what, "fcntl", n_bytes, errno, err);
  if (status == OPIPE_OK && map(fd, n_bytes, out_data) < 0)
    status = failed(what, "mmap", n_bytes, errno, err);
  if (status < 0) {
    (void)close(fd);
    return status;
  }
  *out_fd = fd;
  *out_bytes = n_bytes;
  return OPIPE_OK;
}

opipe_status machine_segment_take(int fd, uint64_t n_bytes, void **out_data, opipe_error *err) {
  struct stat file;
  const int seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "shared memory of a peer is not sealed against shrinking (seals %d)", seals);
  }
  if (fstat(fd, &file) != 0 || n_bytes == 0 || (uint64_t)file.st_size < n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "shared memory of a peer has %lld bytes, not %llu",
                      (long long)file.st_size, (unsigned long long)n_bytes);
  }
  if (map(fd, n_bytes, out_data) < 0)
    return failed("shared memory of a peer", "mmap", n_bytes, errno, err);
  return OPIPE_OK;
}

void machine_segment_unmap(void *data, uint64_t n_bytes) {
  if (data != NULL)
    (void)munmap(data, (size_t)n_bytes);
}
