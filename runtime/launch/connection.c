/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: what waits to be sent. Short messages go before the frames of long ones, so that a
 * heartbeat never waits behind a plan. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/launch/team.h"

void opi_connection_clear(opi_connection *link) {
  memset(link, 0, sizeof *link);
  link->fd = link->pidfd = -1;
  link->rank = OPI_NOBODY;
}

opipe_status opi_connection_begin(opi_team *t, opi_connection *link, int fd, opipe_error *err) {
  opi_connection_clear(link);
  link->fd = fd;
  link->began_ns = link->heard_ns = opi_clock_ns();
  opipe_status status = t->carrier->check_peer(fd, t->reach.token.is_set, &link->peer, err);
  if (status == OPIPE_OK)
    status = opi_frames_init(&link->in, t->allocator, OPI_MESSAGE_MOST, err);
  if (status < 0)
    opi_connection_close(t, link);
  return status;
}

/* Memory of frames has one of two sizes, and is kept for the next ones. */
static const uint32_t spare_bytes[OPI_SPARE_SIZES] = {
    2048, OPI_FRAME_MOST + OPI_RECORD_BEFORE + OPI_RECORD_AFTER};
static const uint32_t spares_most[OPI_SPARE_SIZES] = {256, 8};

static uint32_t size_of(uint32_t n) {
  return n <= spare_bytes[0] ? 0 : 1;
}

/* Memory of a frame of n bytes. */
static opi_out *take_out(opi_team *t, uint32_t n) {
  const uint32_t size = size_of(n);
  opi_out *out = t->mail.spare[size];
  if (out == NULL)
    return opi_alloc(t->allocator, sizeof *out + spare_bytes[size]);
  t->mail.spare[size] = out->next;
  --t->mail.n_spare[size];
  return out;
}

static void drop(opi_team *t, opi_out *out) {
  while (out != NULL) {
    opi_out *next = out->next;
    const uint32_t size = size_of(out->n);
    if (t->mail.n_spare[size] < spares_most[size]) {
      out->next = t->mail.spare[size];
      t->mail.spare[size] = out;
      ++t->mail.n_spare[size];
    } else {
      opi_free(t->allocator, out, sizeof *out + spare_bytes[size]);
    }
    out = next;
  }
}

void opi_spares_release(opi_team *t) {
  for (uint32_t size = 0; size < OPI_SPARE_SIZES; ++size) {
    while (t->mail.spare[size] != NULL) {
      opi_out *out = t->mail.spare[size];
      t->mail.spare[size] = out->next;
      opi_free(t->allocator, out, sizeof *out + spare_bytes[size]);
    }
  }
}

void opi_connection_close(opi_team *t, opi_connection *link) {
  if (link->fd >= 0)
    (void)close(link->fd);
  if (link->pidfd >= 0)
    (void)close(link->pidfd);
  for (uint32_t q = 0; q < OPI_QUEUES; ++q)
    drop(t, link->first[q]);
  drop(t, link->writing);
  opi_frames_release(&link->in);
  opi_seal_release(&link->seal);
  opi_connection_clear(link);
}

static bool queue_frame(opi_team *t, opi_connection *link, uint32_t queue, const uint8_t *frame,
                        uint32_t n) {
  const bool sealed = link->seal.allocator != NULL;
  const uint32_t before = sealed ? OPI_RECORD_BEFORE : 0;
  const uint32_t whole = n + before + (sealed ? OPI_RECORD_AFTER : 0);
  opi_out *out = take_out(t, whole);
  if (out == NULL)
    return false;
  out->next = NULL;
  out->n = whole;
  out->at = sealed ? OPI_RECORD_UNSENT : 0;
  memcpy(out->bytes + before, frame, n);
  if (link->first[queue] == NULL)
    link->first[queue] = out;
  else
    link->last[queue]->next = out;
  link->last[queue] = out;
  return true;
}

void opi_connection_send(opi_team *t, opi_connection *link, uint32_t kind, uint32_t tag,
                         const void *bytes, uint64_t n_bytes) {
  uint8_t frame[OPI_FRAME_MOST];
  uint64_t at = 0;
  /* LEAVE is the last that is said. */
  const uint32_t queue = opi_frame_is_long(kind) || kind == OPI_FRAME_LEAVE ? OPI_LONG : OPI_URGENT;
  if (link->fd < 0 || link->ending)
    return;
  do {
    const uint32_t n = opi_frame_write(frame, kind, tag, bytes, n_bytes, &at);
    if (!queue_frame(t, link, queue, frame, n)) {
      opi_team_fail(t, t->place.rank, OPIPE_E_NOMEM, "out of memory for a message of %llu bytes",
                    (unsigned long long)n_bytes);
      return;
    }
  } while (at < n_bytes);
}

bool opi_connection_is_idle(const opi_connection *link) {
  return link->fd < 0 || (link->writing == NULL && link->first[OPI_URGENT] == NULL &&
                          link->first[OPI_LONG] == NULL);
}

/* The next frame to write; NULL: none. */
static opi_out *next_frame(opi_connection *link) {
  for (uint32_t q = 0; q < OPI_QUEUES && link->writing == NULL; ++q) {
    link->writing = link->first[q];
    if (link->writing != NULL) {
      link->first[q] = link->writing->next;
      link->writing->next = NULL;
      if (link->seal.allocator != NULL) {
        opi_seal_write(&link->seal, link->writing->bytes,
                       link->writing->n - OPI_RECORD_BEFORE - OPI_RECORD_AFTER);
      }
    }
  }
  return link->writing;
}

bool opi_connection_write(opi_team *t, opi_connection *link) {
  for (opi_out *out = NULL; (out = next_frame(link)) != NULL;) {
    const ssize_t n =
        send(link->fd, out->bytes + out->at, out->n - out->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
      return errno == EAGAIN || errno == EINTR;
    out->at += (uint32_t)n;
    if (out->at < out->n)
      return true;
    link->writing = NULL;
    drop(t, out);
  }
  return true;
}

/* ---- proof ---- */

/* A connection that is new takes some bytes at once. */
static opipe_status say(int fd, const void *bytes, size_t n, opipe_error *err) {
  return opi_send_with(fd, bytes, n, -1, err);
}

/* Process 0: the proof is complete. */
static opipe_status judge_proof(opi_team *t, opi_connection *link, opipe_error *err) {
  opi_verdict verdict;
  const opipe_status status =
      opi_token_check(&t->reach.token, &link->greeting, &link->proof, &verdict, err);
  const opipe_status said =
      say(link->fd, &verdict, sizeof verdict, status == OPIPE_OK ? err : NULL);
  if (status < 0 || said < 0) {
    t->reach.n_unproven += status < 0 ? 1 : 0;
    return status < 0 ? status : said;
  }
  link->must_prove = false;
  return opi_seal_init(&link->seal, t->allocator, &t->reach.token, &link->greeting, &link->proof,
                       true, err);
}

typedef struct taking {
  opi_connection *link;
  opi_channel_message_fn each;
  void *ctx;
} taking;

static opipe_status take_sealed(void *ctx, const uint8_t *bytes, size_t n, opipe_error *err) {
  const taking *to = ctx;
  return opi_frames_take(&to->link->in, bytes, n, to->each, to->ctx, err);
}

opipe_status opi_connection_take(opi_team *t, opi_connection *link, const uint8_t *data, size_t n,
                                 opi_channel_message_fn each, void *ctx, opipe_error *err) {
  taking to = {link, each, ctx};
  if (link->must_prove) {
    const size_t left = sizeof link->proof - link->n_proof, part = n < left ? n : left;
    memcpy((uint8_t *)&link->proof + link->n_proof, data, part);
    link->n_proof += (uint32_t)part;
    if (link->n_proof < sizeof link->proof)
      return OPIPE_OK;
    OPI_TRY(judge_proof(t, link, err));
    data += part;
    n -= part;
  }
  return link->seal.allocator != NULL ? opi_seal_take(&link->seal, data, n, take_sealed, &to, err)
                                      : opi_frames_take(&link->in, data, n, each, ctx, err);
}

/* Reads n bytes, no more. PENDING: they do not come. */
static opipe_status hear_all(int fd, void *out, size_t n, uint64_t until_ns, opipe_error *err) {
  for (size_t got = 0; got < n;) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    const uint64_t now = opi_clock_ns();
    const int wait_ms = now >= until_ns ? 0 : (int)((until_ns - now) / 1000000) + 1;
    const int ready = poll(&one, 1, wait_ms);
    if (ready < 0 && errno == EINTR)
      continue;
    const ssize_t part = ready > 0 ? recv(fd, (uint8_t *)out + got, n - got, MSG_DONTWAIT) : -1;
    if (part <= 0) {
      (void)opi_fail(err, OPIPE_E_PEER,
                     ready == 0 ? "it says nothing" : "it closes the connection");
      return OPIPE_PENDING;
    }
    got += (size_t)part;
  }
  return OPIPE_OK;
}

opipe_status opi_connection_prove(opi_team *t, opi_connection *link, uint64_t until_ns,
                                  opipe_error *err) {
  opi_verdict verdict;
  opi_token_proof own = {.rank = t->place.rank,
                         .size = t->place.size,
                         .abi_major = OPIPE_ABI_MAJOR,
                         .abi_minor = OPIPE_ABI_MINOR};
  opipe_status status = hear_all(link->fd, &link->greeting, sizeof link->greeting, until_ns, err);
  if (status != OPIPE_OK)
    return status;
  OPI_TRY(opi_greeting_check(&link->greeting, err));
  if ((link->greeting.asks != 0) != t->reach.token.is_set) {
    return opi_fail(err, OPIPE_E_INVALID,
                    t->reach.token.is_set
                        ? "it has no token, this process has one: set ONNX_PIPE_TOKEN_FILE in all "
                          "processes or in none"
                        : "it asks for a token, this process has none: set ONNX_PIPE_TOKEN_FILE "
                          "here as there");
  }
  if (!t->reach.token.is_set)
    return OPIPE_OK;
  memcpy(own.release, OPIPE_VERSION, sizeof OPIPE_VERSION);
  memcpy(own.job, t->place.job, sizeof own.job);
  OPI_TRY(opi_token_prove(&t->reach.token, &link->greeting, &own, err));
  OPI_TRY(say(link->fd, &own, sizeof own, err));
  status = hear_all(link->fd, &verdict, sizeof verdict, until_ns, err);
  if (status != OPIPE_OK)
    return status;
  OPI_TRY(opi_token_judge(&t->reach.token, &link->greeting, &own, &verdict, err));
  return opi_seal_init(&link->seal, t->allocator, &t->reach.token, &link->greeting, &own, false,
                       err);
}

/* ---- all links ---- */

opi_connection *opi_connection_of(opi_team *t, uint32_t rank) {
  for (uint32_t i = 0; i < t->n_links; ++i) {
    if (t->links[i].fd >= 0 && t->links[i].rank == rank)
      return &t->links[i];
  }
  return NULL;
}

void opi_team_send(opi_team *t, uint32_t but, uint32_t kind, uint32_t tag, const void *bytes,
                   uint64_t n_bytes) {
  for (uint32_t i = 0; i < t->n_links; ++i) {
    opi_connection *link = &t->links[i];
    if (link->rank != OPI_NOBODY && link->rank != but)
      opi_connection_send(t, link, kind, tag, bytes, n_bytes);
  }
  opi_team_wake(t);
}

void opi_team_wake(opi_team *t) {
  if (t->wake >= 0)
    (void)eventfd_write(t->wake, 1);
}
