/* SPDX-License-Identifier: Apache-2.0 */
/* The last operations of a rank: what was noted, launched, done, and with whom. They are written as
 * JSON when the run fails, so that the files of all ranks show who waits for whom.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "world.h"

static nccl_record *record_of(opipe_endpoint *e, uint64_t number) {
  return &e->records[number % NCCL_RECORDS];
}

uint64_t nccl_note(opipe_endpoint *e, uint32_t kind, uint32_t peer, uint64_t group,
                   uint64_t sequence, uint64_t n_bytes) {
  const uint64_t number = e->n_records++;
  *record_of(e, number) = (nccl_record){.number = number,
                                        .sequence = sequence,
                                        .group = group,
                                        .n_bytes = n_bytes,
                                        .at_ns = machine_now_ns(),
                                        .kind = kind,
                                        .peer = peer};
  return number;
}

void nccl_noted(opipe_endpoint *e, uint64_t number, uint64_t launch) {
  if (record_of(e, number)->number == number)
    record_of(e, number)->launch = launch;
}

/* ---- the file ---- */

static const char *state_of(const opipe_endpoint *e, const nccl_record *r) {
  const bool starts = e->launching != NULL && r->launch == e->n_launches;
  return r->launch == 0           ? "noted"
         : r->launch <= e->n_done ? "done"
         : starts                 ? "starting"
                                  : "queued";
}

/* Quotes, backslashes and control characters as JSON wants them. */
static void quote(const char *text, char *out, size_t room) {
  size_t n = 0;
  for (; *text != '\0' && n + 8 < room; ++text) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      out[n++] = '\\';
    if (c < 0x20)
      n += (size_t)snprintf(out + n, room - n, "\\u%04x", c);
    else
      out[n++] = (char)c;
  }
  out[n] = '\0';
}

static bool put(int fd, const char *text) {
  const size_t n = strlen(text);
  return write(fd, text, n) == (ssize_t)n;
}

static bool put_head(const opipe_endpoint *e, int fd) {
  char line[2048], why[2 * NCCL_TEXT + 512], job[160], version[32];
  const opipe_world *world = e->world;
  quote(world->why.message, why, sizeof why);
  quote(world->job, job, sizeof job);
  nccl_version_text(world->library->version, version);
  (void)snprintf(
      line, sizeof line,
      "{\"job\": \"%s\", \"rank\": %u, \"ranks\": %u, \"nccl\": \"%s\",\n \"ended_by\": %u, "
      "\"why\": \"%s\",\n \"launches\": %llu, \"done\": %llu, \"operations\": %llu,\n "
      "\"last\": [",
      job, e->rank, world->n_ranks, version, world->end_rank, why,
      (unsigned long long)e->n_launches, (unsigned long long)e->n_done,
      (unsigned long long)e->n_records);
  return put(fd, line);
}

static bool put_record(const opipe_endpoint *e, int fd, const nccl_record *r, bool first) {
  static const char *const names[] = {"send",       "recv", "all-reduce", "reduce-scatter",
                                      "all-gather", "warm", "check"};
  const bool message = r->kind == NCCL_DID_SEND || r->kind == NCCL_DID_RECV;
  const uint64_t now = machine_now_ns();
  char line[320];
  (void)snprintf(line, sizeof line,
                 "%s\n  {\"operation\": %llu, \"what\": \"%s\", \"%s\": %u, \"%s\": %llu, "
                 "\"sequence\": %llu, \"bytes\": %llu, \"launch\": %llu, \"state\": \"%s\", "
                 "\"ms_ago\": %.3f}",
                 first ? "" : ",", (unsigned long long)r->number, names[r->kind],
                 message || r->kind == NCCL_DID_WARM ? "peer" : "members", r->peer,
                 message ? "stream" : "group", (unsigned long long)r->group,
                 (unsigned long long)r->sequence, (unsigned long long)r->n_bytes,
                 (unsigned long long)r->launch, state_of(e, r), (double)(now - r->at_ns) * 1e-6);
  return put(fd, line);
}

static bool put_all(opipe_endpoint *e, int fd) {
  const uint64_t first = e->n_records < NCCL_RECORDS ? 0 : e->n_records - NCCL_RECORDS;
  (void)nccl_done(e, e->n_launches, NULL); /* as the device says now */
  bool good = put_head(e, fd);
  for (uint64_t i = first; i < e->n_records && good; ++i)
    good = put_record(e, fd, record_of(e, i), i == first);
  return good && put(fd, "]}\n");
}

static const char *folder_of(const opipe_endpoint *e) {
  const char *temporary = secure_getenv("TMPDIR");
  if (e->world->options.record[0] == '/')
    return e->world->options.record;
  return temporary != NULL && temporary[0] == '/' ? temporary : "/tmp";
}

void nccl_write_records(opipe_endpoint *e) {
  char path[NCCL_PATH + 96], text[NCCL_PATH + 200];
  (void)snprintf(path, sizeof path, "%s/onnx-pipe-nccl-rank%u-%ld.json", folder_of(e), e->rank,
                 (long)getpid());
  (void)unlink(path); /* of an earlier session of this process */
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool good = fd >= 0 && put_all(e, fd);
  if (fd >= 0)
    (void)close(fd);
  (void)snprintf(text, sizeof text, "transport 'nccl': rank %u: its last operations are %s %s",
                 e->rank, good ? "in" : "not written to", path);
  nccl_log(e->world->host, OPIPE_LOG_WARN, text);
}
