/* SPDX-License-Identifier: Apache-2.0 */
/* Output: to stdout, to files that are complete or absent, and to devices and pipes. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/base/sizes.h"
#include "page.h"

int cli_write_stdout(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx;
  return fwrite(data, 1, n_bytes, stdout) == n_bytes ? OPIPE_OK : OPIPE_E_IO;
}

int cli_write_stream(void *ctx, const void *data, size_t n_bytes) {
  return fwrite(data, 1, n_bytes, (FILE *)ctx) == n_bytes ? OPIPE_OK : OPIPE_E_IO;
}

static int cannot_write(const char *path, size_t n_bytes, int number) {
  (void)fprintf(stderr, "onnx-pipe: cannot write the %s of %s: %s\n", OPI_SIZE(n_bytes), path,
                strerror(number));
  return CLI_FAILED;
}

/* Destination of a file. */
typedef struct place {
  char path[PATH_MAX]; /* links followed */
  char temp[PATH_MAX]; /* temporary name in the same folder; "": written directly */
  FILE *stream;        /* the open stream that it is already */
  mode_t mode;         /* of the existing file; 0: none */
} place;

/* Standard output or error if the file is the same: opened again, it would be written from its
 * beginning. */
static FILE *stream_of(const struct stat *st) {
  FILE *const streams[] = {stdout, stderr};
  struct stat own;
  for (int i = 0; i < 2; ++i) {
    if (fstat(fileno(streams[i]), &own) == 0 && own.st_dev == st->st_dev &&
        own.st_ino == st->st_ino)
      return streams[i];
  }
  return NULL;
}

/* Finds how to write. Existing and new files are replaced; devices, pipes, open streams and links
 * to missing files are written to. 0, or an errno. */
static int find_place(const char *path, place *out) {
  struct stat st;
  const bool there = stat(path, &st) == 0;
  *out = (place){.stream = there ? stream_of(&st) : NULL};
  if (there && S_ISDIR(st.st_mode))
    return EISDIR;
  if (snprintf(out->path, sizeof(out->path), "%s", path) >= PATH_MAX)
    return ENAMETOOLONG;
  if (out->stream != NULL || (there ? !S_ISREG(st.st_mode) : lstat(path, &st) == 0))
    return 0;
  if (there && realpath(path, out->path) == NULL)
    return errno;
  if (there)
    out->mode = st.st_mode & (mode_t)(S_IRWXU | S_IRWXG | S_IRWXO);
  const int n = snprintf(out->temp, sizeof(out->temp), "%s.%d.new", out->path, (int)getpid());
  return n < PATH_MAX ? 0 : ENAMETOOLONG;
}

bool cli_is_stream(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && stream_of(&st) != NULL;
}

/* The path without links, as far as it exists. */
static bool settle(const char *path, char out[PATH_MAX]) {
  char folder[PATH_MAX];
  if (realpath(path, out) != NULL)
    return true;
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/')
    --n;
  size_t start = n;
  while (start > 0 && path[start - 1] != '/')
    --start;
  (void)snprintf(folder, sizeof(folder), "%.*s", start == 0 ? 1 : (int)start,
                 start == 0 ? "." : path);
  if (realpath(folder, out) == NULL)
    return false;
  const size_t used = strlen(out);
  return snprintf(out + used, PATH_MAX - used, "/%.*s", (int)(n - start), path + start) <
         (int)(PATH_MAX - used);
}

bool cli_same_place(const char *a, const char *b) {
  char first[PATH_MAX], second[PATH_MAX];
  struct stat st;
  if (stat(a, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
    return false; /* a device or a pipe takes one after the other */
  return settle(a, first) && settle(b, second) && strcmp(first, second) == 0;
}

static int write_to(const place *at, const void *data, size_t n_bytes) {
  FILE *file = at->stream != NULL    ? at->stream
               : at->temp[0] == '\0' ? fopen(at->path, "wb")
                                     : fopen(at->temp, "wb");
  if (file == NULL)
    return errno;
  bool ok = at->mode == 0 || fchmod(fileno(file), at->mode) == 0;
  ok = ok && fwrite(data, 1, n_bytes, file) == n_bytes;
  int number = ok ? 0 : errno;
  if ((at->stream != NULL ? fflush(file) : fclose(file)) != 0 && number == 0)
    number = errno;
  return number;
}

/* The model whose files are guarded. */
static struct {
  const opipe_api *api;
  opipe_model *model;
} guarded;

void cli_guard(const opipe_api *api, opipe_model *model) {
  guarded.api = api;
  guarded.model = model;
}

int cli_check_target(const char *path, uint32_t what) {
  opipe_error err = OPIPE_ERROR_INIT;
  return guarded.model == NULL ||
                 guarded.api->model_check_target(guarded.model, path, what, &err) == OPIPE_OK
             ? CLI_DONE
             : cli_report(path, &err);
}

static int write_as(const char *path, uint32_t what, const void *data, size_t n_bytes) {
  place at;
  if (cli_check_target(path, what) != CLI_DONE)
    return CLI_FAILED;
  int number = find_place(path, &at);
  if (number != 0)
    return cannot_write(path, n_bytes, number);
  number = write_to(&at, data, n_bytes);
  if (number == 0 && at.temp[0] != '\0' && rename(at.temp, at.path) != 0)
    number = errno;
  if (number == 0)
    return CLI_DONE;
  if (at.temp[0] != '\0')
    (void)remove(at.temp);
  return cannot_write(path, n_bytes, number);
}

int cli_write_file(const char *path, const void *data, size_t n_bytes) {
  return write_as(path, OPIPE_TARGET_OTHER, data, n_bytes);
}

int cli_try_file(const char *path) {
  place at;
  int number = find_place(path, &at);
  if (number == 0 && at.temp[0] != '\0')
    number = write_to(&at, "", 0);
  if (number == 0 && at.temp[0] != '\0' && remove(at.temp) != 0)
    number = errno;
  if (number == 0)
    return CLI_DONE;
  (void)fprintf(stderr, "onnx-pipe: cannot write %s: %s\n", path, strerror(number));
  return CLI_FAILED;
}

/* errno, or 0: the folder can be made, or written into. Other processes may try the same path. */
static int try_folder(const char *path) {
  struct stat st;
  char beside[4096];
  size_t n = strlen(path);
  if (lstat(path, &st) == 0) {
    return stat(path, &st) != 0             ? errno
           : !S_ISDIR(st.st_mode)           ? ENOTDIR
           : access(path, W_OK | X_OK) != 0 ? errno
                                            : 0;
  }
  while (n > 1 && path[n - 1] == '/')
    --n;
  if (snprintf(beside, sizeof beside, "%.*s.%d.new", (int)n, path, (int)getpid()) >=
      (int)sizeof beside)
    return ENAMETOOLONG;
  return mkdir(beside, S_IRWXU) != 0 || rmdir(beside) != 0 ? errno : 0;
}

int cli_try_folder(const char *path) {
  const int number = try_folder(path);
  if (number == 0)
    return CLI_DONE;
  (void)fprintf(stderr, "onnx-pipe: cannot write into %s: %s\n", path, strerror(number));
  return CLI_FAILED;
}

int cli_gather(void *ctx, const void *data, size_t n) {
  cli_gathered *g = ctx;
  if (g->n + n > g->room) {
    const size_t room = (g->n + n) * 2;
    char *grown = realloc(g->data, room);
    if (grown == NULL)
      return OPIPE_E_NOMEM;
    g->data = grown;
    g->room = room;
  }
  memcpy(g->data + g->n, data, n);
  g->n += n;
  return OPIPE_OK;
}

static int write_gathered(opipe_status status, const char *path, uint32_t what, cli_gathered *g,
                          const opipe_error *err) {
  const int result = status < 0 ? cli_report(path, err) : write_as(path, what, g->data, g->n);
  free(g->data);
  return result;
}

int cli_write_gathered(opipe_status status, const char *path, cli_gathered *g,
                       const opipe_error *err) {
  return write_gathered(status, path, OPIPE_TARGET_OTHER, g, err);
}

int cli_write_model(opipe_status status, const char *path, cli_gathered *g,
                    const opipe_error *err) {
  return write_gathered(status, path, OPIPE_TARGET_MODEL, g, err);
}

int cli_write_trace(const cli_session *s, opipe_session *session, const char *path) {
  const opipe_api *api = s->api;
  cli_gathered g = {NULL, 0, 0};
  opipe_error err = OPIPE_ERROR_INIT;
  static const uint32_t forms[] = {[OPIPE_PLAY_TRACE] = OPIPE_TRACE_CHROME,
                                   [OPIPE_PLAY_SVG] = OPIPE_TRACE_SVG,
                                   [OPIPE_PLAY_HTML] = OPIPE_TRACE_HTML};
  const opipe_status status =
      api->session_trace(session, forms[cli_play_form(path)], cli_gather, &g, &err);
  if (status == OPIPE_OK && s->team_rank != 0) {
    free(g.data);
    return CLI_DONE;
  }
  return cli_write_gathered(status, path, &g, &err);
}
