/* SPDX-License-Identifier: Apache-2.0 */
/* The lines that ranks write: whole lines only, so that those of different ranks do not mix; with
 * "[rank R] " before each, and into a file per rank. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch.h"

enum { READ_BYTES = 65536, LINE_MOST = 1 << 20 /* a longer line is passed on in parts */ };

int launch_open_logs(launch_job *job) {
  if (job->logs == NULL)
    return CLI_DONE;
  if (mkdir(job->logs, 0777) != 0 && errno != EEXIST)
    return cli_fail("--logs %s: %s", job->logs, strerror(errno));
  for (uint32_t r = 0; r < job->n; ++r) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/rank-%u.log", job->logs, job->first_rank + r);
    const int how = O_WRONLY | O_CREAT | O_CLOEXEC | (job->attempt == 0 ? O_TRUNC : O_APPEND);
    job->ranks[r].log = open(path, how, 0666);
    if (job->ranks[r].log < 0)
      return cli_fail("%s: %s", path, strerror(errno));
  }
  return CLI_DONE;
}

/* False: it cannot be written. */
static bool write_all(int fd, const char *data, size_t n) {
  while (n > 0) {
    const ssize_t done = write(fd, data, n);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return false;
    data += done;
    n -= (size_t)done;
  }
  return true;
}

static void give_line(launch_job *job, launch_rank *rank, uint32_t stream, const char *line,
                      size_t n) {
  char tag[32];
  const int to = stream == 0 ? STDOUT_FILENO : STDERR_FILENO;
  const uint32_t of_all = job->first_rank + (uint32_t)(rank - job->ranks);
  const int n_tag = snprintf(tag, sizeof tag, "[rank %u] ", of_all);
  if (rank->log >= 0 && !write_all(rank->log, line, n)) {
    (void)cli_fail("%s/rank-%u.log: %s", job->logs, of_all, strerror(errno));
    (void)close(rank->log);
    rank->log = -1;
    job->output_is_lost = true;
  }
  if ((job->tags && !write_all(to, tag, (size_t)n_tag)) || !write_all(to, line, n))
    job->output_is_lost = true;
}

/* Gives whole lines; keeps what has no end yet, unless it is `last` or too long. */
static void give_lines(launch_job *job, launch_rank *rank, uint32_t stream, bool last) {
  launch_stream *s = &rank->streams[stream];
  size_t at = 0;
  for (;;) {
    const char *end = memchr(s->line + at, '\n', s->n - at);
    if (end == NULL)
      break;
    const size_t n = (size_t)(end - (s->line + at)) + 1;
    give_line(job, rank, stream, s->line + at, n);
    at += n;
  }
  s->n -= at;
  memmove(s->line, s->line + at, s->n);
  if (s->n > 0 && (last || s->n >= LINE_MOST)) {
    s->line[s->n++] = '\n'; /* there is room for one more */
    give_line(job, rank, stream, s->line, s->n);
    s->n = 0;
  }
}

void launch_end_stream(launch_job *job, launch_rank *rank, uint32_t stream) {
  launch_stream *s = &rank->streams[stream];
  if (s->fd < 0)
    return;
  if (s->line != NULL)
    give_lines(job, rank, stream, true);
  (void)close(s->fd);
  free(s->line);
  *s = (launch_stream){.fd = -1};
}

void launch_read(launch_job *job, launch_rank *rank, uint32_t stream) {
  launch_stream *s = &rank->streams[stream];
  if (s->room < s->n + READ_BYTES + 1) {
    char *grown = realloc(s->line, s->n + 2 * READ_BYTES);
    if (grown == NULL) { /* the line as far as it is */
      launch_end_stream(job, rank, stream);
      job->output_is_lost = true;
      return;
    }
    s->line = grown;
    s->room = s->n + 2 * READ_BYTES;
  }
  const ssize_t n = read(s->fd, s->line + s->n, READ_BYTES);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (n <= 0) {
    launch_end_stream(job, rank, stream);
    return;
  }
  s->n += (size_t)n;
  give_lines(job, rank, stream, false);
}
