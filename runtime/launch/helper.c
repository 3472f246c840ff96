/* SPDX-License-Identifier: Apache-2.0 */
/* The helper thread: all I/O of a team. It sleeps until a connection, a process's end (pidfd) or
 * the clock has something to say, and never with the lock held. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/launch/team.h"

enum { READ_BYTES = 65536, DEATH_MS = 200 };
static const uint64_t HELLO_NS = 5 * OPI_SECOND, LEAVE_NS = OPI_SECOND / 2;

/* ---- messages ---- */

static opipe_status hear_beat(opi_team *t, const opi_connection *link, const opi_channel_message *m,
                              opipe_error *err) {
  opi_beat beat = {0};
  if (m->n_bytes >= sizeof beat)
    memcpy(&beat, m->bytes, sizeof beat);
  if (beat.n_told > OPI_TOLD_MOST || m->n_bytes != sizeof beat + beat.n_told * sizeof(opi_told)) {
    return opi_fail(err, OPIPE_E_INVALID, "a BEAT of %llu bytes with %llu ranks",
                    (unsigned long long)m->n_bytes, (unsigned long long)beat.n_told);
  }
  opi_process *from = &t->members[link->rank];
  from->moves = beat.moves;
  memcpy(from->at, beat.at, sizeof from->at);
  from->at[sizeof from->at - 1] = '\0';
  (void)opi_text_clean(from->at, sizeof from->at);
  opi_standing_heard(t, link->rank, m->bytes + sizeof beat, (uint32_t)beat.n_told);
  return OPIPE_OK;
}

/* ABORT and REFUSED. */
static opipe_status hear_abort(opi_team *t, opi_connection *link, const opi_channel_message *m,
                               opipe_error *err) {
  opi_abort told;
  if (m->n_bytes != sizeof told)
    return opi_fail(err, OPIPE_E_INVALID, "an ABORT of %llu bytes", (unsigned long long)m->n_bytes);
  memcpy(&told, m->bytes, sizeof told);
  told.text[sizeof told.text - 1] = '\0';
  const opipe_status status = !t->started && told.status < 0 && told.status >= OPIPE_E_INTERNAL
                                  ? told.status
                                  : OPIPE_E_PEER;
  const uint32_t culprit = told.culprit < t->place.size ? told.culprit : link->rank;
  if (m->kind == OPI_FRAME_REFUSED)
    link->left = true;
  opi_team_fail(t, culprit == OPI_NOBODY ? 0 : culprit, status, "%s", told.text);
  return OPIPE_OK;
}

static opipe_status hear_start(opi_team *t, const opi_channel_message *m, opipe_error *err) {
  if (m->n_bytes != t->place.size * sizeof(opi_started) || t->started)
    return opi_fail(err, OPIPE_E_INVALID, "a START of %llu bytes", (unsigned long long)m->n_bytes);
  for (uint32_t r = 0; r < t->place.size; ++r) {
    opi_started told;
    memcpy(&told, m->bytes + r * sizeof told, sizeof told);
    if (told.machine > r)
      return opi_fail(err, OPIPE_E_INVALID, "START: process %u at %u's machine", r, told.machine);
    opi_process *member = &t->members[r];
    member->pid = told.pid;
    member->machine = told.machine;
    memcpy(member->host, told.host, sizeof member->host);
    member->host[sizeof member->host - 1] = '\0';
    (void)opi_text_clean(member->host, sizeof member->host);
    member->joined = true;
    t->reach.spread = t->reach.spread || told.machine != 0;
  }
  t->n_joined = t->place.size;
  t->started = true;
  opi_lock_signal(&t->lock);
  return OPIPE_OK;
}

static void hear_leave(opi_team *t, opi_connection *link) {
  link->left = true;
  t->members[link->rank].left = true;
  opi_collect_left(t, link->rank);
  opi_lock_signal(&t->lock);
}

typedef struct hearing {
  opi_team *team;
  opi_connection *link;
} hearing;

/* True if the kind may come from the other end. */
static bool is_expected(const opi_team *t, const opi_connection *link, uint32_t kind) {
  static const uint32_t to_root =
      1u << OPI_FRAME_HELLO | 1u << OPI_FRAME_GATHER | 1u << OPI_FRAME_STOP |
      1u << OPI_FRAME_ANSWER | 1u << OPI_FRAME_PASSED | 1u << OPI_FRAME_MET | 1u << OPI_FRAME_DIED;
  static const uint32_t from_root =
      1u << OPI_FRAME_WELCOME | 1u << OPI_FRAME_REFUSED | 1u << OPI_FRAME_START |
      1u << OPI_FRAME_RESULT | 1u << OPI_FRAME_ASK | 1u << OPI_FRAME_AGREED |
      1u << OPI_FRAME_STUCK | 1u << OPI_FRAME_PLACES | 1u << OPI_FRAME_MAIL;
  static const uint32_t both = 1u << OPI_FRAME_LEAVE | 1u << OPI_FRAME_BEAT |
                               1u << OPI_FRAME_ABORT | 1u << OPI_FRAME_POST |
                               1u << OPI_FRAME_LETTER;
  static const uint32_t first = 1u << OPI_FRAME_HELLO | 1u << OPI_FRAME_WELCOME |
                                1u << OPI_FRAME_REFUSED | 1u << OPI_FRAME_ABORT;
  const uint32_t may = (opi_team_is_root(t) ? to_root : from_root) | both;
  return (may & (link->rank == OPI_NOBODY ? first : UINT32_MAX) & 1u << kind) != 0;
}

static opipe_status hear(void *ctx, const opi_channel_message *m, opipe_error *err) {
  const hearing *h = ctx;
  opi_team *t = h->team;
  if (!is_expected(t, h->link, m->kind))
    return opi_fail(err, OPIPE_E_INVALID, "a message of kind %u is not expected here", m->kind);
  switch (m->kind) {
    case OPI_FRAME_HELLO:
    case OPI_FRAME_WELCOME:
      return opi_team_hear_hello(t, h->link, m, err);
    case OPI_FRAME_START:
      return hear_start(t, m, err);
    case OPI_FRAME_BEAT:
      return hear_beat(t, h->link, m, err);
    case OPI_FRAME_REFUSED:
    case OPI_FRAME_ABORT:
      return hear_abort(t, h->link, m, err);
    case OPI_FRAME_LEAVE:
      hear_leave(t, h->link);
      return OPIPE_OK;
    case OPI_FRAME_GATHER:
    case OPI_FRAME_RESULT:
      return opi_collect_hear(t, h->link, m, err);
    case OPI_FRAME_POST:
      return opi_board_hear(t, h->link, m, err);
    case OPI_FRAME_STUCK:
      return opi_standing_hear(t, m, err);
    case OPI_FRAME_MAIL:
      return opi_mail_hear(t, m, err);
    case OPI_FRAME_LETTER:
      return opi_letter_hear(t, m, err);
    case OPI_FRAME_PLACES:
    case OPI_FRAME_MET:
    case OPI_FRAME_DIED:
      return opi_neighbours_hear(t, h->link, m, err);
    default:
      return opi_stop_hear(t, h->link, m, err);
  }
}

/* ---- ends of processes and connections ---- */

static bool has_ended(int pidfd, int wait_ms) {
  struct pollfd one = {.fd = pidfd, .events = POLLIN};
  return pidfd >= 0 && poll(&one, 1, wait_ms) > 0;
}

/* The connection is of no use any more. why: NULL, or what was wrong with its bytes. A process
 * closes its connections shortly before its pidfd says that it has ended. */
static void lose(opi_team *t, opi_connection *link, const char *why) {
  char who[OPI_WHO_ROOM], at[OPI_WHERE_ROOM], from[OPI_FROM_ROOM];
  const uint32_t rank = link->rank;
  const bool left = link->left || link->ending;
  const bool died =
      rank != OPI_NOBODY && !left && (link->died_ns != 0 || has_ended(link->pidfd, DEATH_MS));
  memcpy(from, link->peer.from, sizeof from);
  opi_connection_close(t, link);
  if (left)
    return;
  if (rank == OPI_NOBODY && opi_team_is_root(t)) {
    if (why != NULL) {
      opi_log(&t->logger, OPIPE_LOG_WARN, "a connection%s%s was refused: %s",
              from[0] == '\0' ? "" : " from ", from, why);
    }
    return;
  }
  if (rank == OPI_NOBODY) {
    opi_team_fail(t, 0, OPIPE_E_PEER, "process 0 closed the connection before it answered%s%s",
                  why == NULL ? "" : ": ", why == NULL ? "" : why);
    return;
  }
  (void)opi_team_who(t, rank, who);
  (void)opi_team_at(t, rank, at);
  if (died)
    opi_team_fail(t, rank, OPIPE_E_PEER, "%s has died%s", who, at);
  else if (why != NULL)
    opi_team_fail(t, rank, OPIPE_E_PEER, "%s: %s", who, why);
  else
    opi_team_fail(t, rank, OPIPE_E_PEER, "%s has closed its connection%s", who, at);
}

static void read_link(opi_team *t, opi_connection *link) {
  uint8_t bytes[READ_BYTES];
  opipe_error err = OPIPE_ERROR_INIT;
  hearing h = {t, link};
  size_t n = 0;
  opipe_status status = opi_receive_with(link->fd, bytes, sizeof bytes, &n, &link->pidfd, &err);
  if (status == OPIPE_PENDING)
    return;
  if (status == OPIPE_OK && n > 0) {
    link->heard_ns = opi_clock_ns();
    status = opi_connection_take(t, link, bytes, n, hear, &h, &err);
  } else if (status == OPIPE_OK) {
    status = opi_frames_end(&link->in, &err);
    lose(t, link, status < 0 ? err.message : NULL);
    return;
  }
  if (status < 0)
    lose(t, link, err.message);
}

/* ---- the clock ---- */

static void beat(opi_team *t, uint64_t now) {
  const opi_process *own = &t->members[t->place.rank];
  struct {
    opi_beat head;
    opi_told told[OPI_TOLD_MOST];
  } told = {.head = {.moves = own->moves}};
  opi_standing_tell(t);
  told.head.n_told = own->n_told;
  memcpy(told.head.at, own->at, sizeof told.head.at);
  if (own->n_told != 0)
    memcpy(told.told, own->told, own->n_told * sizeof told.told[0]);
  const uint64_t n = sizeof told.head + own->n_told * sizeof told.told[0];
  for (uint32_t i = 0; i < t->n_links; ++i) { /* who does not read has enough of them waiting */
    opi_connection *link = &t->links[i];
    if (link->rank != OPI_NOBODY && link->first[OPI_URGENT] == NULL)
      opi_connection_send(t, link, OPI_FRAME_BEAT, 0, &told, n);
  }
  if (opi_team_is_root(t) && !t->failed)
    opi_standing_judge(t);
  t->looked.beat_ns = now;
}

static void judge_silence(opi_team *t, uint64_t now) {
  for (uint32_t i = 0; i < t->n_links; ++i) {
    opi_connection *link = &t->links[i];
    if (link->fd < 0 || link->left)
      continue;
    if (link->rank == OPI_NOBODY && opi_team_is_root(t)) {
      if (now - link->began_ns > HELLO_NS) {
        t->reach.n_unproven += link->must_prove ? 1 : 0;
        opi_connection_close(t, link);
      }
    } else if (link->died_ns != 0 && now - link->died_ns > LEAVE_NS) {
      lose(t, link, NULL);
    } else if (t->started && now - link->heard_ns > t->silence_ns) {
      char who[OPI_WHO_ROOM], at[OPI_WHERE_ROOM];
      opi_team_fail(t, link->rank, OPIPE_E_PEER, "%s has been silent for %.1f s%s",
                    opi_team_who(t, link->rank, who), (double)(now - link->heard_ns) / 1e9,
                    opi_team_at(t, link->rank, at));
    }
  }
}

static void keep_time(opi_team *t, uint64_t now) {
  if (now - t->looked.look_ns > t->silence_ns / 2) { /* this process itself was stopped */
    for (uint32_t i = 0; i < t->n_links; ++i)
      t->links[i].heard_ns = t->links[i].began_ns = now;
  }
  t->looked.look_ns = now;
  if (t->started && now - t->looked.beat_ns >= t->beat_ns)
    beat(t, now);
  judge_silence(t, now);
}

/* ---- the loop ---- */

/* Fills in what to wait for: the bell, the listener, and of each connection its socket and the
 * process behind it. */
static uint32_t fill_polls(opi_team *t) {
  struct pollfd *p = t->polls;
  p[0] = (struct pollfd){.fd = t->wake, .events = POLLIN};
  const bool accepts = t->listener >= 0 && !t->failed && opi_team_slot(t) != NULL;
  p[1] = (struct pollfd){.fd = accepts ? t->listener : -1, .events = POLLIN};
  for (uint32_t i = 0; i < t->n_links; ++i) {
    const opi_connection *link = &t->links[i];
    const bool writes = !opi_connection_is_idle(link);
    p[OPI_POLLS + OPI_POLLS_EACH * i] =
        (struct pollfd){.fd = link->fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
    p[OPI_POLLS + OPI_POLLS_EACH * i + 1] =
        (struct pollfd){.fd = link->left ? -1 : link->pidfd, .events = POLLIN};
  }
  const uint32_t n = OPI_POLLS + OPI_POLLS_EACH * t->n_links;
  for (uint32_t i = 0; i < t->reach.n_neighbours; ++i)
    p[n + i] = (struct pollfd){.fd = t->reach.neighbours[i].pidfd, .events = POLLIN};
  return n + t->reach.n_neighbours;
}

static bool has_said_more(int fd) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return poll(&one, 1, 0) > 0 && (one.revents & POLLIN) != 0;
}

static void serve_link(opi_team *t, opi_connection *link, const struct pollfd *p) {
  if (link->fd >= 0 && link->fd == p[0].fd && (p[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
    read_link(t, link);
  if (link->fd >= 0 && link->fd == p[0].fd && !opi_connection_is_idle(link) &&
      !opi_connection_write(t, link)) {
    read_link(t, link); /* it may have left in order since the poll */
    if (link->fd >= 0 && link->fd == p[0].fd && !has_said_more(link->fd))
      lose(t, link, NULL);
  }
  if (link->fd >= 0 && link->ending && opi_connection_is_idle(link))
    opi_connection_close(t, link);
  /* Everything sent before the end was read first. */
  if (link->fd >= 0 && link->pidfd >= 0 && link->pidfd == p[1].fd && p[1].revents != 0 &&
      (p[0].revents & POLLIN) == 0)
    lose(t, link, NULL);
}

static void serve(opi_team *t) {
  eventfd_t count = 0;
  if ((t->polls[0].revents & POLLIN) != 0)
    (void)eventfd_read(t->wake, &count);
  for (uint32_t i = 0; i < t->n_links; ++i)
    serve_link(t, &t->links[i], &t->polls[OPI_POLLS + OPI_POLLS_EACH * i]);
  const struct pollfd *ends = &t->polls[OPI_POLLS + OPI_POLLS_EACH * t->n_links];
  for (uint32_t i = 0; i < t->reach.n_neighbours; ++i) {
    opi_neighbour *near = &t->reach.neighbours[i];
    if (near->pidfd >= 0 && ends[i].fd == near->pidfd && ends[i].revents != 0)
      opi_neighbours_ended(t, near);
  }
  if (t->listener >= 0 && !t->failed && (t->polls[1].revents & POLLIN) != 0)
    opi_team_accept(t);
}

/* Closing, and everything was said, or there is no time left. */
static bool may_end(const opi_team *t, uint64_t now) {
  bool idle = true;
  for (uint32_t i = 0; i < t->n_links; ++i)
    idle = idle && opi_connection_is_idle(&t->links[i]);
  return t->closing && (idle || now >= t->close_by_ns);
}

static void log_failure(opi_team *t) {
  opipe_error told = OPIPE_ERROR_INIT;
  if (t->logs == NULL)
    return;
  const bool all = t->logs == t->failure.message;
  (void)snprintf(told.message, sizeof told.message, "%s", t->logs);
  t->logs = NULL;
  opi_lock_give(&t->lock);
  opi_log(&t->logger, OPIPE_LOG_ERROR, "%s%s", all ? "the team has failed: " : "", told.message);
  opi_lock_take(&t->lock);
}

void *opi_team_help(void *team) {
  opi_team *t = team;
  opi_lock_take(&t->lock);
  t->looked.look_ns = opi_clock_ns();
  while (!may_end(t, opi_clock_ns())) {
    const uint32_t n = fill_polls(t);
    const int wait_ms = t->closing ? 10 : (int)(t->beat_ns / 1000000);
    opi_lock_give(&t->lock);
    (void)poll(t->polls, n, wait_ms);
    opi_lock_take(&t->lock);
    serve(t);
    keep_time(t, opi_clock_ns());
    log_failure(t);
    opi_boxes_ring(t);
  }
  opi_lock_give(&t->lock);
  return NULL;
}
