/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the file that a model names, when the model is not to be trusted.
 *
 * A location is relative, has no "..", no backslash, and stays below the folder of the model file:
 * openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS), or where the kernel has
 * no openat2 one component after the other with O_NOFOLLOW. The opened file must be regular
 * and have one name. O_NONBLOCK keeps a FIFO from holding the loader.
 *
 * Model hubs' caches hold links: model.onnx -> ../blobs/A, model.onnx.data -> ../blobs/B. So where
 * the model was reached by a link, a data file that is a link in the same folder, and whose target
 * lies in the folder of the model's target, is opened there.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/wire/wire.h"

enum { OPEN_FLAGS = O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY };

static opipe_status check_location(const char *location, opipe_error *err) {
  const char *fault = NULL;
  if (location[0] == '\0')
    fault = "is empty";
  if (location[0] == '/')
    fault = "is absolute";
  if (strchr(location, '\\') != NULL)
    fault = "holds a backslash";
  if (strlen(location) >= PATH_MAX)
    fault = "is too long";
  for (const char *part = location; part != NULL && fault == NULL;) {
    const size_t n = strcspn(part, "/");
    if (n == 2 && part[0] == '.' && part[1] == '.')
      fault = "leaves the model's folder by '..'";
    part = part[n] == '/' ? part + n + 1 : NULL;
  }
  if (fault == NULL)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "external data location '%.200s' %s", location, fault);
}

/* One component after the other, none of them a link. -1 and errno (ELOOP for a link) on failure.
 */
static int open_by_component(int dir, const char *location) {
  char part[PATH_MAX];
  int at = dir, fd = -1, cause = ENOENT;
  for (const char *rest = location; rest != NULL;) {
    const size_t n = strcspn(rest, "/");
    const bool last = rest[n] == '\0';
    memcpy(part, n != 0 ? rest : ".", n != 0 ? n : 1);
    part[n != 0 ? n : 1] = '\0';
    rest = last ? NULL : rest + n + 1;
    struct stat info;
    if (fstatat(at, part, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      cause = errno;
    } else if (S_ISLNK(info.st_mode)) {
      cause = ELOOP;
    } else {
      fd = openat(at, part, (last ? OPEN_FLAGS : O_PATH | O_DIRECTORY | O_CLOEXEC) | O_NOFOLLOW);
      cause = errno;
    }
    if (at != dir)
      (void)close(at);
    if (fd < 0 || last)
      break;
    at = fd;
    fd = -1;
  }
  errno = cause;
  return fd;
}

/* Opens below `dir`; with OPI_LOAD_ALLOW_SYMLINKS links are followed wherever they lead. */
static int open_below(int dir, const char *location, uint32_t flags) {
  if ((flags & OPI_LOAD_ALLOW_SYMLINKS) != 0)
    return openat(dir, location, OPEN_FLAGS);
  if ((flags & OPI_EXTERNAL_NO_OPENAT2) == 0) {
    struct open_how how;
    memset(&how, 0, sizeof(how));
    how.flags = OPEN_FLAGS;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS;
    const long fd = syscall(SYS_openat2, dir, location, &how, sizeof(how));
    if (fd >= 0)
      return (int)fd;
    /* No such call here, forbidden by a sandbox, or a folder was moved meanwhile. */
    if (errno != ENOSYS && errno != EPERM && errno != EINVAL && errno != EAGAIN)
      return -1;
  }
  return open_by_component(dir, location);
}

/* The last case of the header comment: the name of the link's target in the model file's folder. */
static bool cached_name(const char *dir_path, const char *link_path, const char *location,
                        char out_name[PATH_MAX]) {
  char path[PATH_MAX], target[PATH_MAX];
  struct stat info;
  if (strchr(location, '/') != NULL)
    return false;
  const int n = snprintf(path, sizeof(path), "%s/%s", link_path, location);
  if (n < 0 || (size_t)n >= sizeof(path))
    return false;
  if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode))
    return false;
  if (realpath(path, target) == NULL)
    return false;
  char *slash = strrchr(target, '/');
  if (slash == NULL)
    return false;
  memcpy(out_name, slash + 1, strlen(slash + 1) + 1);
  *(slash == target ? slash + 1 : slash) = '\0';
  return strcmp(target, dir_path) == 0;
}

/* Is there a link of that name in the folder where the model's link stands? */
static bool is_link(const char *link_path, const char *location) {
  char path[PATH_MAX];
  struct stat info;
  const int n = snprintf(path, sizeof(path), "%s/%s", link_path, location);
  return n > 0 && (size_t)n < sizeof(path) && lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static int open_cached(int dir, const char *dir_path, const char *link_path, const char *location,
                       uint32_t flags) {
  char name[PATH_MAX];
  if (cached_name(dir_path, link_path, location, name))
    return open_below(dir, name, flags);
  const bool allowed = (flags & OPI_LOAD_ALLOW_SYMLINKS) != 0;
  if (!allowed) {
    errno = is_link(link_path, location) ? ELOOP : ENOENT;
    return -1;
  }
  const int link_dir = open(link_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (link_dir < 0)
    return -1;
  const int fd = open_below(link_dir, location, flags);
  const int cause = errno;
  (void)close(link_dir);
  errno = cause;
  return fd;
}

static opipe_status explain(int cause, const char *dir_path, const char *location,
                            opipe_error *err) {
  switch (cause) {
    case ENOENT:
    case ENOTDIR:
      return opi_fail(err, OPIPE_E_NOTFOUND, "external data '%.150s' is missing in '%.200s'",
                      location, dir_path);
    case ELOOP:
      return opi_fail(err, OPIPE_E_INVALID,
                      "external data '%.150s' in '%.200s' is reached by a symbolic link; "
                      "--allow-symlinks (OPIPE_LOAD_ALLOW_SYMLINKS) accepts that",
                      location, dir_path);
    case EXDEV:
      return opi_fail(err, OPIPE_E_INVALID, "external data '%.150s' lies outside '%.200s'",
                      location, dir_path);
    default:
      return opi_fail_errno(err, cause, "external data '%.150s' in '%.200s'", location, dir_path);
  }
}

static opipe_status check_file(int fd, const char *location, uint32_t flags, uint64_t *out_bytes,
                               opipe_error *err) {
  struct stat info;
  if (fstat(fd, &info) != 0)
    return opi_fail_errno(err, errno, "external data '%.200s'", location);
  if (!S_ISREG(info.st_mode))
    return opi_fail(err, OPIPE_E_INVALID, "external data '%.200s' is not a regular file", location);
  if (info.st_nlink > 1 && (flags & OPI_LOAD_ALLOW_HARDLINKS) == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "external data '%.200s' has %llu hard links, so it may be another's file; "
                    "--allow-hardlinks (OPIPE_LOAD_ALLOW_HARDLINKS) accepts that",
                    location, (unsigned long long)info.st_nlink);
  }
  *out_bytes = (uint64_t)info.st_size;
  return OPIPE_OK;
}

opipe_status opi_external_open(int dir, const char *dir_path, const char *link_path,
                               const char *location, uint32_t flags, int *out_fd,
                               uint64_t *out_bytes, opipe_error *err) {
  OPI_TRY(check_location(location, err));
  int fd = open_below(dir, location, flags);
  if (fd < 0 && errno == ENOENT && link_path != NULL)
    fd = open_cached(dir, dir_path, link_path, location, flags);
  if (fd < 0)
    return explain(errno, dir_path, location, err);
  const opipe_status status = check_file(fd, location, flags, out_bytes, err);
  if (status < 0) {
    (void)close(fd);
    return status;
  }
  *out_fd = fd;
  return OPIPE_OK;
}

opipe_status opi_wire_open(const char *path, int *out_fd, uint64_t *out_bytes, opipe_error *err) {
  struct stat info;
  const int fd = open(path, OPEN_FLAGS);
  if (fd < 0) {
    if (errno == ENOENT)
      return opi_fail(err, OPIPE_E_NOTFOUND, "'%.300s' does not exist", path);
    return opi_fail_errno(err, errno, "'%.300s'", path);
  }
  opipe_status status = OPIPE_OK;
  if (fstat(fd, &info) != 0)
    status = opi_fail_errno(err, errno, "'%.300s'", path);
  else if (!S_ISREG(info.st_mode))
    status = opi_fail(err, OPIPE_E_INVALID, "'%.300s' is not a regular file", path);
  if (status < 0) {
    (void)close(fd);
    return status;
  }
  *out_fd = fd;
  *out_bytes = (uint64_t)info.st_size;
  return OPIPE_OK;
}
