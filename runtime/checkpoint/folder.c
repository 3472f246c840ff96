/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a checkpoint: names of its files, its lock, its manifest. */
#include "runtime/checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ---- */

#define TOKEN "folder.token"

/* The generation G in a data file's name, weights-G.safetensors, or weights-G-P.safetensors of
 * process P; 0: it is no data file. */
static uint64_t generation_of(const char *name) {
  static const char *const kinds[] = {"weights-", "state-"};
  for (size_t k = 0; k < OPI_COUNT(kinds); ++k) {
    const size_t n = strlen(kinds[k]);
    char *end = NULL;
    if (strncmp(name, kinds[k], n) != 0 || name[n] < '0' || name[n] > '9')
      continue;
    const uint64_t generation = strtoull(name + n, &end, 10);
    if (end[0] == '-' && end[1] >= '0' && end[1] <= '9')
      end += 1 + strspn(end + 1, "0123456789");
    return strcmp(end, ".safetensors") == 0 && generation < INT64_MAX ? generation : 0;
  }
  return 0;
}

/* Files that a save or a trial makes and removes. */
static bool is_passing(const char *name) {
  const size_t n = strlen(OPI_MANIFEST_NEW), all = strlen(name), tail = strlen(".try");
  if (strcmp(name, TOKEN) == 0 || strcmp(name, OPI_MANIFEST_NEW) == 0)
    return true;
  return strncmp(name, OPI_MANIFEST_NEW ".", n + 1) == 0 && strcmp(name + all - tail, ".try") == 0;
}

bool opi_folder_owns(const char *name) {
  return generation_of(name) != 0 || is_passing(name) || strcmp(name, OPI_MANIFEST) == 0;
}

static bool is_named(const opi_manifest *m, const char *name) {
  for (uint32_t i = 0; i < m->n_shards * OPI_MANIFEST_FILES; ++i) {
    if (strcmp(m->shards[i / OPI_MANIFEST_FILES].files[i % OPI_MANIFEST_FILES], name) == 0)
      return true;
  }
  return false;
}

void opi_folder_sweep(int dir, const opi_manifest *keep) {
  const int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = copy < 0 ? NULL : fdopendir(copy);
  if (list == NULL) {
    if (copy >= 0)
      (void)close(copy);
    return;
  }
  for (const struct dirent *e = readdir(list); e != NULL; e = readdir(list)) {
    const bool ours = generation_of(e->d_name) != 0 || is_passing(e->d_name);
    if (ours && !is_named(keep, e->d_name))
      (void)unlinkat(dir, e->d_name, 0);
  }
  (void)closedir(list);
}

static bool is_link(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* *out_gone: another process removed the folder while it was locked. */
static opipe_status lock_folder(int dir, const char *folder, bool *out_gone, opipe_error *err) {
  struct stat st;
  OPI_TRY(opi_manifest_lock(dir, true, err));
  if (fstat(dir, &st) != 0)
    return opi_fail_errno(err, errno, "looking at the folder %s", folder);
  *out_gone = st.st_nlink == 0;
  return OPIPE_OK;
}

opipe_status opi_folder_open(const char *folder, int *out_dir, bool *out_made, opipe_error *err) {
  enum { TRIES_MOST = 1000 }; /* others may make and remove it in between */
  for (uint32_t i = 0; i < TRIES_MOST; ++i) {
    bool gone = false;
    *out_made = mkdir(folder, 0777) == 0;
    if (!*out_made && errno != EEXIST)
      return opi_fail_errno(err, errno, "making the folder %s", folder);
    *out_dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out_dir < 0 && errno == ENOENT && !is_link(folder))
      continue;
    if (*out_dir < 0)
      return opi_fail_errno(err, errno, "opening the folder %s", folder);
    OPI_TRY(lock_folder(*out_dir, folder, &gone, err));
    if (!gone)
      return OPIPE_OK;
    (void)close(*out_dir);
    *out_dir = -1;
  }
  return opi_fail(err, OPIPE_E_IO, "the folder %s was removed %d times", folder, TRIES_MOST);
}

void opi_folder_close(const char *folder, int dir, bool made, opipe_status status) {
  if (made && status < 0)
    (void)rmdir(folder);
  if (dir >= 0)
    (void)close(dir);
}

/* ---- the manifest ---- */

static opipe_status write_new(int dir, int fd, const opi_text *text, opipe_error *err) {
  if (opi_write_all(fd, text->data, text->n, err) < 0)
    return opi_error_prefix(err, "%s: ", OPI_MANIFEST_NEW);
  if (fsync(fd) != 0)
    return opi_fail_errno(err, errno, "flushing %s", OPI_MANIFEST_NEW);
  if (renameat(dir, OPI_MANIFEST_NEW, dir, OPI_MANIFEST) != 0)
    return opi_fail_errno(err, errno, "renaming %s to %s", OPI_MANIFEST_NEW, OPI_MANIFEST);
  return OPIPE_OK;
}

opipe_status opi_folder_put_manifest(int dir, const opi_text *text, bool *out_replaced,
                                     opipe_error *err) {
  *out_replaced = false;
  if (text->failed)
    return opi_fail_nomem(err, text->n, "a manifest");
  const int fd = openat(dir, OPI_MANIFEST_NEW, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0)
    return opi_fail_errno(err, errno, "making %s", OPI_MANIFEST_NEW);
  const opipe_status status = write_new(dir, fd, text, err);
  (void)close(fd);
  if (status < 0) {
    (void)unlinkat(dir, OPI_MANIFEST_NEW, 0);
    return status;
  }
  *out_replaced = true;
  return fsync(dir) != 0 ? opi_fail_errno(err, errno, "flushing the folder of %s", OPI_MANIFEST)
                         : OPIPE_OK;
}

/* The highest generation of any data file. */
static uint64_t newest_generation(int dir) {
  uint64_t most = 0;
  const int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = copy < 0 ? NULL : fdopendir(copy);
  if (list == NULL && copy >= 0)
    (void)close(copy);
  for (const struct dirent *e = list == NULL ? NULL : readdir(list); e != NULL; e = readdir(list)) {
    const uint64_t generation = generation_of(e->d_name);
    most = generation > most ? generation : most;
  }
  if (list != NULL)
    (void)closedir(list);
  return most;
}

opipe_status opi_folder_read_old(const opipe_allocator *allocator, int dir, opi_manifest *out_old,
                                 bool *out_damaged, opipe_error *err) {
  const opipe_status found = opi_manifest_read(allocator, dir, out_old, err);
  *out_damaged = false;
  if (found == OPIPE_E_NOTFOUND || found == OPIPE_OK)
    return OPIPE_OK;
  if (found != OPIPE_E_INVALID || !opi_manifest_is_ours(allocator, dir))
    return opi_error_prefix(err, "the checkpoint that is to be replaced: ");
  out_old->generation = newest_generation(dir);
  *out_damaged = true;
  return OPIPE_OK;
}

/* ---- the token ---- */

opipe_status opi_folder_put_token(int dir, char out_token[OPI_TOKEN_ROOM], opipe_error *err) {
  uint64_t random[2] = {0, 0};
  if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
    return opi_fail_errno(err, errno, "asking for random bytes");
  (void)snprintf(out_token, OPI_TOKEN_ROOM, "%016llx%016llx", (unsigned long long)random[0],
                 (unsigned long long)random[1]);
  (void)unlinkat(dir, TOKEN, 0); /* of an interrupted save */
  const int fd = openat(dir, TOKEN, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0)
    return opi_fail_errno(err, errno, "making %s", TOKEN);
  opipe_status status = opi_write_all(fd, out_token, OPI_TOKEN_ROOM - 1, err);
  if (close(fd) != 0 && status == OPIPE_OK)
    status = opi_fail_errno(err, errno, "closing %s", TOKEN);
  if (status < 0)
    opi_folder_drop_token(dir);
  return status < 0 ? opi_error_prefix(err, "%s: ", TOKEN) : OPIPE_OK;
}

void opi_folder_get_token(int dir, char out_token[OPI_TOKEN_ROOM]) {
  const int fd = openat(dir, TOKEN, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  const ssize_t n = fd < 0 ? 0 : read(fd, out_token, OPI_TOKEN_ROOM - 1);
  out_token[n < 0 ? 0 : n] = '\0';
  (void)opi_text_clean(out_token, OPI_TOKEN_ROOM - 1);
  if (fd >= 0)
    (void)close(fd);
}

void opi_folder_drop_token(int dir) {
  (void)unlinkat(dir, TOKEN, 0);
}
