/* SPDX-License-Identifier: Apache-2.0 */
/* How processes join, seen from process 0: a connection says who it is (HELLO), is accepted
 * (WELCOME) or refused (REFUSED, with the reason), and when all are there they start (START). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/launch/team.h"

opi_hello opi_team_hello(const opi_team *t) {
  opi_hello hello = {.rank = t->place.rank,
                     .size = t->place.size,
                     .pid = getpid(),
                     .abi_major = OPIPE_ABI_MAJOR,
                     .abi_minor = OPIPE_ABI_MINOR};
  (void)snprintf(hello.version, sizeof hello.version, "%s", OPIPE_VERSION);
  (void)snprintf(hello.job, sizeof hello.job, "%s", t->place.job);
  memcpy(hello.boot, t->reach.boot, sizeof hello.boot);
  memcpy(hello.host, t->reach.host, sizeof hello.host);
  return hello;
}

void opi_team_missing(const opi_team *t, char *out, size_t room) {
  size_t used = 0;
  out[0] = '\0';
  for (uint32_t r = 0; r < t->place.size && used + 12 < room; ++r) {
    if (!t->members[r].joined)
      used += (size_t)snprintf(out + used, room - used, "%s%u", used == 0 ? "" : ", ", r);
  }
}

opi_connection *opi_team_slot(opi_team *t) {
  uint32_t n_pending = 0;
  opi_connection *found = NULL;
  for (uint32_t i = 0; i < t->n_links; ++i) {
    opi_connection *link = &t->links[i];
    n_pending += link->fd >= 0 && link->rank == OPI_NOBODY;
    if (link->fd < 0 && found == NULL)
      found = link;
  }
  return n_pending < OPI_PENDING_MOST ? found : NULL;
}

/* By TCP, process 0 speaks first. */
static opipe_status greet(opi_team *t, opi_connection *link, opipe_error *err) {
  if (!t->carrier->greets)
    return OPIPE_OK;
  OPI_TRY(opi_greeting_make(&t->reach.token, &link->greeting, err));
  link->must_prove = t->reach.token.is_set;
  return opi_send_with(link->fd, &link->greeting, sizeof link->greeting, -1, err);
}

void opi_team_accept(opi_team *t) {
  opipe_error err = OPIPE_ERROR_INIT;
  for (opi_connection *slot = NULL; (slot = opi_team_slot(t)) != NULL;) {
    int fd = -1;
    const opipe_status status = t->carrier->accept(t->listener, &fd, &err);
    if (status == OPIPE_PENDING)
      return;
    if (status < 0) {
      opi_team_fail(t, 0, status, "process 0 cannot accept others: %s", err.message);
      return;
    }
    if (opi_connection_begin(t, slot, fd, &err) < 0) {
      opi_log(&t->logger, OPIPE_LOG_WARN, "a connection was refused: %s", err.message);
    } else if (greet(t, slot, &err) < 0) {
      opi_connection_close(t, slot);
      opi_log(&t->logger, OPIPE_LOG_WARN, "a connection was closed: %s", err.message);
    }
  }
}

/* Refuses the connection's process alone. */
static void refuse(opi_team *t, opi_connection *link, opipe_status status, const opipe_error *why) {
  opi_abort told = {.culprit = OPI_NOBODY, .status = status};
  (void)snprintf(told.text, sizeof told.text, "%s", why->message);
  opi_connection_send(t, link, OPI_FRAME_REFUSED, 0, &told, sizeof told);
  link->ending = true;
}

/* A process with which the job can never be complete is refused to all. */
static opipe_status check_fits(const opi_team *t, const opi_hello *h, opipe_error *err) {
  if (h->abi_major != OPIPE_ABI_MAJOR || h->abi_minor != OPIPE_ABI_MINOR ||
      strcmp(h->version, OPIPE_VERSION) != 0) {
    return opi_fail(
        err, OPIPE_E_ABI,
        "process %u (pid %lld) runs onnx-pipe %s (ABI %u.%u), process 0 (pid %d) %s (ABI "
        "%d.%d): all need the same",
        h->rank, (long long)h->pid, h->version, h->abi_major, h->abi_minor, (int)getpid(),
        OPIPE_VERSION, OPIPE_ABI_MAJOR, OPIPE_ABI_MINOR);
  }
  if (h->size != t->place.size || h->rank >= h->size) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "process %lld says it is rank %u of %u, process 0 (pid %d) says there are %u",
                    (long long)h->pid, h->rank, h->size, (int)getpid(), t->place.size);
  }
  return OPIPE_OK;
}

static opipe_status check_free(const opi_team *t, const opi_hello *h, opipe_error *err) {
  const opi_process *there = &t->members[h->rank];
  if (strcmp(h->job, t->place.job) != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "process %lld is of job '%s', process 0 of job '%s'",
                    (long long)h->pid, h->job, t->place.job);
  }
  if (there->joined) {
    return opi_fail(err, OPIPE_E_STATE,
                    "process %lld says it is rank %u of job '%s', which process %lld is already",
                    (long long)h->pid, h->rank, t->place.job, (long long)there->pid);
  }
  return OPIPE_OK;
}

void opi_team_start(opi_team *t) {
  const uint64_t n = t->place.size * sizeof(opi_started);
  opi_started *all = opi_alloc_zero(t->allocator, t->place.size, sizeof *all);
  if (all == NULL) {
    opi_team_fail(t, 0, OPIPE_E_NOMEM, "out of memory for %u processes", t->place.size);
    return;
  }
  for (uint32_t r = 0; r < t->place.size; ++r) {
    all[r] = (opi_started){.pid = t->members[r].pid, .machine = t->members[r].machine};
    memcpy(all[r].host, t->members[r].host, sizeof all[r].host);
    t->reach.spread = t->reach.spread || all[r].machine != 0;
  }
  t->started = true;
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_START, 0, all, n);
  opi_free(t->allocator, all, n);
  opi_lock_signal(&t->lock);
}

opipe_status opi_team_say(opi_team *t, opi_connection *link, uint32_t kind, opipe_error *err) {
  uint8_t frame[OPI_FRAME_MOST];
  const opi_hello own = opi_team_hello(t);
  uint64_t at = 0;
  if (t->carrier->greets) {
    opi_connection_send(t, link, kind, 0, &own, sizeof own);
    return OPIPE_OK;
  }
  const uint32_t n = opi_frame_write(frame, kind, 0, (const uint8_t *)&own, sizeof own, &at);
  const int pidfd = opi_pidfd_self();
  const opipe_status status = opi_send_with(link->fd, frame, n, pidfd, err);
  if (pidfd >= 0)
    (void)close(pidfd);
  return status;
}

static opipe_status welcome(opi_team *t, opi_connection *link, const opi_hello *h,
                            opipe_error *err) {
  OPI_TRY(opi_team_say(t, link, OPI_FRAME_WELCOME, err));
  link->rank = h->rank;
  opi_process *m = &t->members[h->rank];
  m->pid = h->pid;
  m->joined = true;
  m->heard_ns = opi_clock_ns();
  memcpy(m->boot, h->boot, sizeof m->boot);
  memcpy(m->host, h->host, sizeof m->host);
  if (++t->n_joined == t->place.size)
    opi_neighbours_place(t);
  return OPIPE_OK;
}

/* A message whose payload is one struct: copied, its texts end. */
static opipe_status read_hello(const opi_channel_message *m, opi_hello *out, opipe_error *err) {
  if (m->n_bytes != sizeof *out) {
    return opi_fail(err, OPIPE_E_INVALID, "a HELLO of %llu bytes; it has %zu",
                    (unsigned long long)m->n_bytes, sizeof *out);
  }
  memcpy(out, m->bytes, sizeof *out);
  out->version[sizeof out->version - 1] = '\0';
  out->job[sizeof out->job - 1] = '\0';
  (void)opi_text_clean(out->version, sizeof out->version);
  out->boot[sizeof out->boot - 1] = '\0';
  out->host[sizeof out->host - 1] = '\0';
  (void)opi_text_clean(out->job, sizeof out->job);
  (void)opi_text_clean(out->host, sizeof out->host);
  return OPIPE_OK;
}

/* At process 0: somebody says who it is. */
static opipe_status hear_joining(opi_team *t, opi_connection *link, const opi_hello *h) {
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = check_fits(t, h, &why);
  if (status < 0 && !t->started) { /* the job can never be complete */
    opi_team_fail(t, h->rank, status, "%s", why.message);
    refuse(t, link, status, &why);
    return OPIPE_OK;
  }
  if (status == OPIPE_OK)
    status = check_free(t, h, &why);
  if (status == OPIPE_OK)
    status = welcome(t, link, h, &why);
  if (status < 0)
    refuse(t, link, status, &why);
  return OPIPE_OK;
}

opipe_status opi_team_hear_hello(opi_team *t, opi_connection *link, const opi_channel_message *m,
                                 opipe_error *err) {
  opi_hello h;
  OPI_TRY(read_hello(m, &h, err));
  if (opi_team_is_root(t)) {
    if (link->rank != OPI_NOBODY || m->kind != OPI_FRAME_HELLO)
      return opi_fail(err, OPIPE_E_INVALID, "a second HELLO");
    return hear_joining(t, link, &h);
  }
  if (m->kind != OPI_FRAME_WELCOME || link->rank != OPI_NOBODY)
    return opi_fail(err, OPIPE_E_INVALID, "a second WELCOME");
  link->rank = 0;
  t->members[0].pid = h.pid;
  t->members[0].joined = true;
  t->members[0].heard_ns = opi_clock_ns();
  memcpy(t->members[0].host, h.host, sizeof h.host);
  return OPIPE_OK;
}
