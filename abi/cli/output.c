/* SPDX-License-Identifier: Apache-2.0 */
/* What the command writes: to stdout, and files that are whole or not there. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "page.h"

int cli_write_stdout(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx;
  return fwrite(data, 1, n_bytes, stdout) == n_bytes ? OPIPE_OK : OPIPE_E_IO;
}

static int cannot_write(const char *path, size_t n_bytes, int number) {
  (void)fprintf(stderr, "onnx-pipe: cannot write the %zu bytes of %s: %s\n", n_bytes, path,
                strerror(number));
  return CLI_FAILED;
}

/* Another name in the same folder, for a file that is there or can be; "": the path is a device,
 * a pipe or the like, and is written to as it is. 0, or an errno. */
static int temporary(const char *path, char *out, size_t room) {
  struct stat st;
  out[0] = '\0';
  if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
    return EISDIR;
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
    return 0;
  const int n = snprintf(out, room, "%s.%d.new", path, (int)getpid());
  return n < 0 || (size_t)n >= room ? ENAMETOOLONG : 0;
}

static int write_to(const char *path, const void *data, size_t n_bytes) {
  FILE *file = fopen(path, "wb");
  if (file == NULL)
    return errno;
  const bool ok = fwrite(data, 1, n_bytes, file) == n_bytes;
  const int number = errno;
  return fclose(file) != 0 ? errno : ok ? 0 : number;
}

int cli_write_file(const char *path, const void *data, size_t n_bytes) {
  char temp[PATH_MAX];
  int number = temporary(path, temp, sizeof(temp));
  if (number == 0)
    number = write_to(temp[0] == '\0' ? path : temp, data, n_bytes);
  if (number == 0 && temp[0] != '\0' && rename(temp, path) != 0)
    number = errno;
  if (number == 0)
    return CLI_DONE;
  if (temp[0] != '\0')
    (void)remove(temp);
  return cannot_write(path, n_bytes, number);
}

int cli_try_file(const char *path) {
  char temp[PATH_MAX];
  int number = temporary(path, temp, sizeof(temp));
  if (number == 0 && temp[0] != '\0')
    number = write_to(temp, "", 0);
  if (number == 0 && temp[0] != '\0' && remove(temp) != 0)
    number = errno;
  if (number == 0)
    return CLI_DONE;
  (void)fprintf(stderr, "onnx-pipe: cannot write %s: %s\n", path, strerror(number));
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

int cli_write_gathered(opipe_status status, const char *path, cli_gathered *g,
                       const opipe_error *err) {
  const int result = status < 0 ? cli_report(path, err) : cli_write_file(path, g->data, g->n);
  free(g->data);
  return result;
}

int cli_write_trace(const opipe_api *api, opipe_session *session, const char *path) {
  cli_gathered g = {NULL, 0, 0};
  opipe_error err = OPIPE_ERROR_INIT;
  static const uint32_t forms[] = {[OPIPE_PLAY_TRACE] = OPIPE_TRACE_CHROME,
                                   [OPIPE_PLAY_SVG] = OPIPE_TRACE_SVG,
                                   [OPIPE_PLAY_HTML] = OPIPE_TRACE_HTML};
  const opipe_status status =
      api->session_trace(session, forms[cli_play_form(path)], cli_gather, &g, &err);
  return cli_write_gathered(status, path, &g, &err);
}
