/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of other processes: found by the board, connected once per pair (the one whose lowest rank
 * is higher connects), heard by a helper thread, which also learns that a process has ended: by its
 * descriptor, or by the connection.
 */
#include <errno.h>
#include <fcntl.h>
#include <opipe/threads.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "shm.h"

#define ADDRESS_MAGIC UINT32_C(0x6f706131) /* "opa1" */
enum { IDLE_MS = 100, FLUSH_TRIES = 200, FIXED_FDS = 2 };

typedef struct address { /* on the board */
  uint32_t magic, n_ranks, first_rank, reserved;
  uint64_t token[2];
  char name[MACHINE_NAME_MOST];
} address;

static void kick(const opipe_world *world) {
  static const uint64_t one = 1;
  const ssize_t n = write(world->kick, &one, sizeof one);
  (void)n; /* full: it is awake */
}

/* ---- peers ---- */

static shm_peer *new_peer(opipe_world *world, int fd, uint32_t first_rank, opipe_error *err) {
  shm_peer *peer = shm_new(world->host, "a peer", sizeof *peer, err);
  if (peer == NULL)
    return NULL;
  *peer = (shm_peer){.next = world->peers, .fd = fd, .process = -1, .first_rank = first_rank};
  peer->last = &peer->first;
  world->peers = peer;
  return peer;
}

static void drop_first(opipe_world *world, shm_peer *peer) {
  shm_waiting *first = peer->first;
  peer->first = first->next;
  if (peer->first == NULL)
    peer->last = &peer->first;
  machine_close(first->fd);
  shm_delete(world->host, first, sizeof *first);
}

static opipe_status send_now(const shm_peer *peer, const shm_note *note, int fd, opipe_error *err) {
  return machine_send(peer->fd, note, sizeof *note, &fd, fd >= 0 ? 1 : 0, err);
}

bool shm_peer_has_ended(const shm_peer *peer) {
  struct pollfd one = {.fd = peer->process, .events = POLLIN};
  return peer->process < 0 || poll(&one, 1, 0) != 0;
}

/* A peer that is gone hears nothing; the helper says so. */
static void flush(opipe_world *world, shm_peer *peer) {
  while (peer->first != NULL) {
    if (!peer->gone && send_now(peer, &peer->first->note, peer->first->fd, NULL) == OPIPE_PENDING)
      return;
    drop_first(world, peer);
  }
}

opipe_status shm_send_note(opipe_world *world, shm_peer *peer, const shm_note *note, int fd,
                           opipe_error *err) {
  if (peer->gone)
    return OPIPE_OK;
  flush(world, peer);
  if (peer->first == NULL && send_now(peer, note, fd, NULL) != OPIPE_PENDING)
    return OPIPE_OK;
  shm_waiting *w = shm_new(world->host, "a note", sizeof *w, err);
  if (w == NULL)
    return OPIPE_E_NOMEM;
  w->note = *note;
  w->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0 && w->fd < 0) {
    shm_delete(world->host, w, sizeof *w);
    return opipe_fail(err, OPIPE_E_LIMIT, "no descriptor is left for a note to rank %u",
                      peer->first_rank);
  }
  *peer->last = w;
  peer->last = &w->next;
  kick(world);
  return OPIPE_OK;
}

static opipe_status greet_first(opipe_world *world, shm_peer *peer, const uint64_t *token,
                                opipe_error *err) {
  const shm_note hello = shm_hello(world, token);
  const int self = machine_self();
  const opipe_status status = send_now(peer, &hello, self, err);
  machine_close(self);
  return status == OPIPE_PENDING
             ? opipe_fail(err, OPIPE_E_PEER, "a new connection takes no message")
             : status;
}

/* ---- the board ---- */

opipe_status shm_post(opipe_world *world, uint32_t rank, opipe_error *err) {
  address own = {.magic = ADDRESS_MAGIC,
                 .n_ranks = world->n_ranks,
                 .first_rank = world->first_rank,
                 .token = {world->token[0], world->token[1]}};
  char key[OPIPE_BOARD_KEY];
  if (world->alone || world->seats[rank].posted)
    return OPIPE_OK;
  (void)snprintf(own.name, sizeof own.name, "%s", world->name);
  (void)snprintf(key, sizeof key, "shm/%u", rank);
  const opipe_status status = world->board->post(world->board->ctx, key, &own, sizeof own, err);
  world->seats[rank].posted = status == OPIPE_OK;
  return status;
}

static opipe_status look(opipe_world *world, uint32_t rank, address *out, opipe_error *err) {
  char key[OPIPE_BOARD_KEY];
  uint64_t n_bytes = sizeof *out;
  (void)snprintf(key, sizeof key, "shm/%u", rank);
  const opipe_status status = world->board->look(world->board->ctx, key, out, &n_bytes, err);
  if (status != OPIPE_OK)
    return status;
  if (n_bytes != sizeof *out || out->magic != ADDRESS_MAGIC || out->first_rank >= world->n_ranks ||
      memchr(out->name, '\0', sizeof out->name) == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u: its address on the board (%llu bytes) is of another version", rank,
                      (unsigned long long)n_bytes);
  }
  if (out->n_ranks == world->n_ranks)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID, "rank %u is in a world of %u ranks, rank %u in one of %u",
                    rank, out->n_ranks, world->first_rank, world->n_ranks);
}

static opipe_status connect_to(opipe_world *world, const address *there, shm_peer **out_peer,
                               opipe_error *err) {
  int fd = -1;
  opipe_status status = machine_connect(there->name, &fd, err);
  if (status != OPIPE_OK)
    return status;
  shm_peer *peer = new_peer(world, fd, there->first_rank, err);
  if (peer == NULL) {
    machine_close(fd);
    return OPIPE_E_NOMEM;
  }
  status = greet_first(world, peer, there->token, err);
  kick(world);
  *out_peer = peer;
  return status;
}

opipe_status shm_reach(opipe_world *world, uint32_t rank, opipe_error *err) {
  shm_seat *seat = &world->seats[rank];
  address there;
  if (seat->local && (atomic_load(&seat->endpoint) != NULL || !world->alone))
    return atomic_load(&seat->endpoint) != NULL ? OPIPE_OK : OPIPE_PENDING;
  if (seat->local) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "transport 'shm' without a board joins the ranks of one session: rank %u is "
                      "not in this one",
                      rank);
  }
  if (seat->peer == NULL) {
    opipe_status status = look(world, rank, &there, err);
    if (status != OPIPE_OK)
      return status;
    shm_peer *peer = world->peers;
    while (peer != NULL && peer->first_rank != there.first_rank)
      peer = peer->next;
    if (peer == NULL && there.first_rank >= world->first_rank)
      return OPIPE_PENDING; /* it connects */
    if (peer == NULL)
      status = connect_to(world, &there, &peer, err);
    if (status == OPIPE_OK)
      status = shm_adopt(world, rank, peer, err);
    if (status != OPIPE_OK)
      return status;
  }
  return seat->peer->greeted && atomic_load(&seat->bell) != NULL ? OPIPE_OK : OPIPE_PENDING;
}

/* ---- the helper ---- */

/* The world fails by a peer: everybody is told who. how: goes on behind its ranks. */
static void lose(opipe_world *world, shm_peer *peer, const char *how) {
  opipe_error why = OPIPE_ERROR_INIT;
  char ranks[160] = "";
  size_t n = 0;
  uint32_t lowest = peer->first_rank;
  peer->gone = true;
  for (uint32_t r = 0; r < world->n_ranks && n < sizeof ranks - 16; ++r) {
    if (world->seats[r].peer == peer)
      n += (size_t)snprintf(ranks + n, sizeof ranks - n, n == 0 ? "%u" : ", %u", r);
  }
  if (n == 0)
    (void)snprintf(ranks, sizeof ranks, "%u", lowest);
  (void)opipe_fail(&why, OPIPE_E_PEER, "the process of ranks %s%.200s", ranks, how);
  shm_fail(world, lowest, &why);
}

static void lose_by(opipe_world *world, shm_peer *peer, const opipe_error *err) {
  char how[sizeof err->message + 2];
  (void)snprintf(how, sizeof how, ": %s", err->message);
  lose(world, peer, how);
}

/* The first note of a connection. False: it is none of ours. */
static bool take_hello(opipe_world *world, shm_peer *peer, const shm_note *note, int *fds) {
  opipe_error err = OPIPE_ERROR_INIT;
  const bool waits = peer->first_rank == UINT32_MAX; /* it has connected to us */
  const bool knows = note->hash[0] == world->token[0] && note->hash[1] == world->token[1];
  if (shm_note_check(note, world->n_ranks, &err) < 0 || note->kind != SHM_NOTE_HELLO ||
      note->n_bytes != world->n_ranks || (waits && !knows) ||
      (!waits && note->rank != peer->first_rank))
    return false;
  peer->process = fds[0];
  fds[0] = -1;
  if (waits) {
    peer->first_rank = note->rank;
    if (greet_first(world, peer, world->token, &err) < 0) {
      lose_by(world, peer, &err);
      return true;
    }
  }
  if (shm_adopt(world, note->rank, peer, &err) < 0 || shm_greet(world, peer, &err) < 0)
    lose_by(world, peer, &err);
  return true;
}

/* Hears all that has come. */
static void hear_all(opipe_world *world, shm_peer *peer) {
  opipe_error err = OPIPE_ERROR_INIT;
  shm_note note;
  int fds[MACHINE_FDS_MOST];
  while (!peer->gone) {
    opipe_status status = machine_receive(peer->fd, &note, sizeof note, fds, &err);
    if (status == OPIPE_PENDING)
      return;
    if (status == OPIPE_OK && !peer->greeted) {
      const bool came = peer->first_rank == UINT32_MAX;
      if (!take_hello(world, peer, &note, fds) && came)
        peer->gone = true; /* a stranger */
      else if (!peer->greeted && !peer->gone)
        lose(world, peer, " answers with another greeting");
    } else if (status == OPIPE_OK) {
      status = shm_hear(world, peer, &note, fds, &err);
    }
    for (int i = 0; i < MACHINE_FDS_MOST; ++i)
      machine_close(fds[i]);
    if (status == OPIPE_E_PEER && (peer->leaving || peer->first_rank == UINT32_MAX))
      peer->gone = true;
    else if (status == OPIPE_E_PEER)
      lose(world, peer, " has ended");
    else if (status < 0)
      lose_by(world, peer, &err);
  }
}

static void let_in(opipe_world *world) {
  int fd = -1;
  while (machine_accept(world->listener, &fd, NULL) == OPIPE_OK) {
    if (new_peer(world, fd, UINT32_MAX, NULL) == NULL)
      machine_close(fd);
  }
}

/* Rings of ranks elsewhere, and what was missed. */
static void tell_waiters(opipe_world *world, bool *out_armed) {
  uint64_t n = 0;
  const ssize_t got = read(world->kick, &n, sizeof n);
  (void)got;
  *out_armed = false;
  for (uint32_t r = 0; r < world->n_ranks; ++r) {
    opipe_endpoint *endpoint = atomic_load(&world->seats[r].endpoint);
    if (endpoint == NULL)
      continue;
    shm_call_if_rung(endpoint);
    *out_armed = *out_armed || atomic_load(&endpoint->armed) != 0;
  }
}

/* Descriptors that the helper waits for; fds: at least 2 + 2 * peers. */
static uint32_t list_fds(const opipe_world *world, struct pollfd *fds) {
  uint32_t n = FIXED_FDS;
  fds[0] = (struct pollfd){.fd = world->kick, .events = POLLIN};
  fds[1] = (struct pollfd){.fd = world->listener, .events = POLLIN};
  for (shm_peer *p = world->peers; p != NULL; p = p->next) {
    p->listed = n;
    fds[n].fd = p->gone ? -1 : p->fd;
    fds[n++].events = (short)(POLLIN | (p->first != NULL ? POLLOUT : 0));
    fds[n++] = (struct pollfd){.fd = p->gone ? -1 : p->process, .events = POLLIN};
  }
  return n;
}

static uint32_t count_fds(const opipe_world *world) {
  uint32_t n = FIXED_FDS;
  for (const shm_peer *p = world->peers; p != NULL; p = p->next)
    n += 2;
  return n;
}

/* Looks at everything; poll's answers count only for the ends of processes. A peer that came while
 * the helper slept was not asked about. */
static void look_around(opipe_world *world, const struct pollfd *fds, uint32_t n, bool *out_armed) {
  tell_waiters(world, out_armed);
  for (shm_peer *p = world->peers; p != NULL; p = p->next) {
    const bool asked = p->listed != 0 && p->listed + 1 < n;
    const bool ended = asked && fds[p->listed + 1].fd >= 0 && fds[p->listed + 1].revents != 0;
    if (p->gone)
      continue;
    hear_all(world, p);
    flush(world, p);
    if (ended && !p->gone && p->leaving)
      p->gone = true;
    else if (ended && !p->gone)
      lose(world, p, " has ended");
  }
  let_in(world);
  shm_close_ended(world);
  shm_sweep(world, false);
}

static void *help(void *arg) {
  opipe_world *world = arg;
  struct pollfd *fds = NULL;
  uint32_t room = 0;
  bool armed = false;
  for (;;) {
    pthread_mutex_lock(&world->lock);
    const uint32_t wanted = count_fds(world);
    if (wanted > room) {
      shm_delete(world->host, fds, room * sizeof *fds);
      room = 2 * wanted;
      fds = shm_new(world->host, "descriptors", room * sizeof *fds, NULL);
      room = fds == NULL ? 0 : room;
    }
    const uint32_t n = fds == NULL ? 0 : list_fds(world, fds);
    const bool closing = world->closing;
    pthread_mutex_unlock(&world->lock);
    if (closing)
      break;
    (void)poll(fds, n, armed || n == 0 ? IDLE_MS : -1);
    pthread_mutex_lock(&world->lock);
    look_around(world, fds, n, &armed);
    pthread_mutex_unlock(&world->lock);
  }
  shm_delete(world->host, fds, room * sizeof *fds);
  return NULL;
}

static opipe_status start_helper(opipe_world *world, opipe_error *err) {
  const int code = opipe_thread_create(&world->helper, NULL, help, world);
  world->has_helper = code == 0;
  return code == 0 ? OPIPE_OK
                   : opipe_fail(err, OPIPE_E_LIMIT, "a world: no thread can be made (%d)", code);
}

opipe_status shm_peers_open(opipe_world *world, const char *job, opipe_error *err) {
  char begin[64];
  if (world->alone)
    return OPIPE_OK;
  if (getrandom(world->token, sizeof world->token, 0) != (ssize_t)sizeof world->token)
    return opipe_fail(err, OPIPE_E_IO, "a world: no random numbers");
  world->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (world->kick < 0)
    return opipe_fail(err, OPIPE_E_LIMIT, "a world: eventfd fails (%d)", errno);
  (void)snprintf(begin, sizeof begin, "onnx-pipe/%.32s/%ld", job == NULL ? "" : job,
                 (long)getpid());
  const opipe_status status = machine_listen(begin, &world->listener, world->name, err);
  return status < 0 ? status : start_helper(world, err);
}

/* The last notes, for as long as the peers take them. */
static void say_bye(opipe_world *world) {
  const shm_note bye = shm_bye(world);
  pthread_mutex_lock(&world->lock);
  for (shm_peer *p = world->peers; p != NULL; p = p->next) {
    if (p->greeted)
      (void)shm_send_note(world, p, &bye, -1, NULL);
    for (int i = 0; i < FLUSH_TRIES && p->first != NULL && !p->gone; ++i) {
      struct pollfd one = {.fd = p->fd, .events = POLLOUT};
      (void)poll(&one, 1, 1);
      flush(world, p);
    }
  }
  world->closing = true;
  pthread_mutex_unlock(&world->lock);
}

void shm_peers_close(opipe_world *world) {
  if (world->has_helper) {
    say_bye(world);
    kick(world);
    (void)pthread_join(world->helper, NULL);
  }
  while (world->peers != NULL) {
    shm_peer *peer = world->peers;
    world->peers = peer->next;
    peer->gone = true;
    flush(world, peer);
    machine_close(peer->fd);
    machine_close(peer->process);
    shm_delete(world->host, peer, sizeof *peer);
  }
  for (uint32_t r = 0; r < world->n_ranks; ++r)
    machine_close(atomic_load(&world->seats[r].ring_fd));
  machine_close(world->listener);
  machine_close(world->kick);
}
