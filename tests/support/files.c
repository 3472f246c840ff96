/* SPDX-License-Identifier: Apache-2.0 */
/* Paths and files of tests: the source tree, the build tree, the optional shared folder beside the
 * project, and a folder of the running process that disappears with it.
 *
 * Paths are handed out in eight buffers of the thread by turns, so that a call can use a few of
 * them at once without freeing anything.
 */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/support.h"

enum { N_PATHS = 8, PATH_BYTES = 4096 };

static const char *join(const char *folder, const char *relative) {
  static _Thread_local char paths[N_PATHS][PATH_BYTES];
  static _Thread_local unsigned turn;
  char *path = paths[turn++ % N_PATHS];
  int n = snprintf(path, PATH_BYTES, "%s%s%s", folder, relative[0] ? "/" : "", relative);
  if (n < 0 || n >= PATH_BYTES) {
    fprintf(stderr, "path too long: %s/%s\n", folder, relative);
    exit(1);
  }
  return path;
}

static const char *folder_of(const char *variable, const char *built_in) {
  const char *value = getenv(variable);
  return value && value[0] ? value : built_in;
}

const char *opi_test_shared(const char *relative) {
  const char *path = join(folder_of("OPIPE_SHARED_DIR", OPIPE_SHARED_DIR), relative);
  if (access(path, R_OK) != 0) {
    opi_test_skip("no shared/%s beside the project", relative);
    return NULL;
  }
  return path;
}

const char *opi_test_source(const char *relative) {
  return join(folder_of("OPIPE_SOURCE_DIR", OPIPE_SOURCE_DIR), relative);
}

const char *opi_test_build(const char *relative) {
  return join(folder_of("OPIPE_BUILD_DIR", OPIPE_BUILD_DIR), relative);
}

static char tmpdir[PATH_BYTES];
static pid_t tmpdir_owner;

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *position) {
  (void)info;
  (void)type;
  (void)position;
  return remove(path);
}

static void remove_tmpdir(void) {
  if (tmpdir_owner == getpid() && !getenv("OPIPE_KEEP_TMP"))
    nftw(tmpdir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *opi_test_tmpdir(void) {
  if (tmpdir[0] == '\0') {
    snprintf(tmpdir, sizeof tmpdir, "%s/opipe-test-XXXXXX", folder_of("TMPDIR", "/tmp"));
    if (!mkdtemp(tmpdir)) {
      fprintf(stderr, "cannot make %s: %s\n", tmpdir, strerror(errno));
      exit(1);
    }
    tmpdir_owner = getpid();
    atexit(remove_tmpdir);
  }
  return tmpdir;
}

const char *opi_test_tmp(const char *relative) {
  return join(opi_test_tmpdir(), relative);
}

bool opi_test_write_file(const char *path, const void *data, size_t n_bytes) {
  FILE *file = fopen(path, "wb");
  bool written = file && fwrite(data, 1, n_bytes, file) == n_bytes;
  if (file && fclose(file) != 0)
    written = false;
  if (!written)
    fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
  return written;
}

char *opi_test_read_file(const char *path, size_t *out_n_bytes) {
  char *data = NULL;
  struct stat info;
  FILE *file = fopen(path, "rb");
  if (file && fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode)) {
    size_t n_bytes = (size_t)info.st_size;
    data = malloc(n_bytes + 1);
    if (data && fread(data, 1, n_bytes, file) == n_bytes) {
      data[n_bytes] = '\0';
      *out_n_bytes = n_bytes;
    } else {
      free(data);
      data = NULL;
    }
  }
  if (!data)
    fprintf(stderr, "cannot read %s: %s\n", path, strerror(errno));
  if (file)
    fclose(file);
  return data;
}

opipe_status opi_test_take(void *ctx, const void *data, size_t n_bytes) {
  opi_test_text *t = ctx;
  char *more = realloc(t->data, t->n + n_bytes + 1);
  if (more == NULL)
    return OPIPE_E_NOMEM;
  memcpy(more + t->n, data, n_bytes);
  t->data = more;
  t->n += n_bytes;
  t->data[t->n] = '\0';
  return OPIPE_OK;
}
