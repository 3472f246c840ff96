/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: what waits to be sent. Short messages go before the frames of long ones, so that a
 * heartbeat never waits behind a plan. */
#include <errno.h>
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
  link->heard_ns = opi_clock_ns();
  opipe_status status = t->carrier->check_peer(fd, &link->peer, err);
  if (status == OPIPE_OK)
    status = opi_frames_init(&link->in, t->allocator, OPI_MESSAGE_MOST, err);
  if (status < 0)
    opi_connection_close(t, link);
  return status;
}

static void drop(const opipe_allocator *allocator, opi_out *out) {
  while (out != NULL) {
    opi_out *next = out->next;
    opi_free(allocator, out, sizeof *out + out->n);
    out = next;
  }
}

void opi_connection_close(opi_team *t, opi_connection *link) {
  if (link->fd >= 0)
    (void)close(link->fd);
  if (link->pidfd >= 0)
    (void)close(link->pidfd);
  for (uint32_t q = 0; q < OPI_QUEUES; ++q)
    drop(t->allocator, link->first[q]);
  drop(t->allocator, link->writing);
  opi_frames_release(&link->in);
  opi_connection_clear(link);
}

static bool queue_frame(opi_team *t, opi_connection *link, uint32_t queue, const uint8_t *frame,
                        uint32_t n) {
  opi_out *out = opi_alloc(t->allocator, sizeof *out + n);
  if (out == NULL)
    return false;
  out->next = NULL;
  out->n = n;
  out->at = 0;
  memcpy(out->bytes, frame, n);
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
    }
  }
  return link->writing;
}

bool opi_connection_write(opi_connection *link, const opipe_allocator *allocator) {
  for (opi_out *out = NULL; (out = next_frame(link)) != NULL;) {
    const ssize_t n =
        send(link->fd, out->bytes + out->at, out->n - out->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
      return errno == EAGAIN || errno == EINTR;
    out->at += (uint32_t)n;
    if (out->at < out->n)
      return true;
    link->writing = NULL;
    drop(allocator, out);
  }
  return true;
}

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
