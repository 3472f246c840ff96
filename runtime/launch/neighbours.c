/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes are on one machine: those whose kernels have one boot id, of which the lowest
 * could pass the others a descriptor over unix sockets. It also sees their ends. Processes without
 * a common network namespace cannot meet, and count as of different machines.
 *
 *   process 0   PLACES  who may be on whose machine                     ──►  all
 *   lowest of a machine   listens at a name of its own  ◄── its neighbours, with a pidfd each
 *   neighbours  MET     have they met?                                  ──►  process 0, then START
 *   lowest      DIED    the end of a neighbour was seen                 ──►  process 0
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/launch/team.h"

static const uint64_t MEET_NS = 2 * OPI_SECOND;
enum { LOOK_MS = 20, NAME_ROOM = OPI_JOB_ROOM + 32 };

/* Neighbours tell each other this, with a descriptor. */
typedef struct nod {
  uint32_t rank, has_pidfd;
} nod;

void opi_neighbours_count(const opi_team *t, uint32_t *out_n, uint32_t *out_lower) {
  const uint32_t own = t->place.rank;
  *out_n = *out_lower = 0;
  for (uint32_t r = 0; r < t->place.size; ++r) {
    *out_n += t->members[r].machine == t->members[own].machine;
    *out_lower += r < own && t->members[r].machine == t->members[own].machine;
  }
}

/* ---- process 0 ---- */

void opi_neighbours_place(opi_team *t) {
  uint32_t machines[OPI_TEAM_MOST];
  const uint32_t size = t->place.size;
  t->reach.n_to_meet = 0;
  for (uint32_t r = 0; r < size && t->carrier->greets; ++r) {
    opi_process *m = &t->members[r];
    m->machine = r;
    for (uint32_t k = 0; k < r && m->machine == r && m->boot[0] != '\0'; ++k)
      m->machine = strcmp(t->members[k].boot, m->boot) == 0 ? t->members[k].machine : r;
    machines[r] = m->machine;
    t->reach.n_to_meet += m->machine != r;
  }
  if (t->reach.n_to_meet == 0) {
    opi_team_start(t);
    return;
  }
  t->reach.placed = true;
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_PLACES, 0, machines, size * sizeof machines[0]);
  opi_lock_signal(&t->lock);
}

static opipe_status hear_places(opi_team *t, const opi_channel_message *m, opipe_error *err) {
  if (m->n_bytes != t->place.size * sizeof(uint32_t) || t->reach.placed || t->started)
    return opi_fail(err, OPIPE_E_INVALID, "PLACES of %llu bytes", (unsigned long long)m->n_bytes);
  for (uint32_t r = 0; r < t->place.size; ++r) {
    uint32_t machine = 0;
    memcpy(&machine, m->bytes + r * sizeof machine, sizeof machine);
    if (machine > r)
      return opi_fail(err, OPIPE_E_INVALID, "PLACES: process %u at %u's machine", r, machine);
    t->members[r].machine = machine;
  }
  t->reach.placed = true;
  opi_lock_signal(&t->lock);
  return OPIPE_OK;
}

static opipe_status hear_met(opi_team *t, const opi_connection *link, const opi_channel_message *m,
                             opipe_error *err) {
  uint32_t met = 0;
  if (m->n_bytes != sizeof met || t->started || t->reach.n_to_meet == 0)
    return opi_fail(err, OPIPE_E_INVALID, "a MET of %llu bytes", (unsigned long long)m->n_bytes);
  memcpy(&met, m->bytes, sizeof met);
  if (met == 0)
    t->members[link->rank].machine = link->rank;
  if (--t->reach.n_to_meet == 0)
    opi_team_start(t);
  return OPIPE_OK;
}

/* Unless it has left in order, of which its own connection tells. */
static opipe_status hear_died(opi_team *t, const opi_channel_message *m, opipe_error *err) {
  uint32_t rank = 0;
  if (m->n_bytes != sizeof rank)
    return opi_fail(err, OPIPE_E_INVALID, "a DIED of %llu bytes", (unsigned long long)m->n_bytes);
  memcpy(&rank, m->bytes, sizeof rank);
  opi_connection *link = rank < t->place.size ? opi_connection_of(t, rank) : NULL;
  if (link != NULL && link->died_ns == 0)
    link->died_ns = opi_clock_ns();
  return OPIPE_OK;
}

opipe_status opi_neighbours_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                                 opipe_error *err) {
  switch (m->kind) {
    case OPI_FRAME_PLACES:
      return hear_places(t, m, err);
    case OPI_FRAME_MET:
      return hear_met(t, link, m, err);
    default:
      return hear_died(t, m, err);
  }
}

/* ---- meeting ---- */

static void name_of(const opi_team *t, uint32_t machine, char out[OPI_ADDRESS_ROOM]) {
  char name[NAME_ROOM];
  (void)snprintf(name, sizeof name, "%s/machine-%u", t->place.job, machine);
  opi_carrier_unix.address(name, out);
}

/* Gives the other end a descriptor: the pidfd if the system has one. */
static opipe_status give_nod(const opi_team *t, int fd) {
  const int pidfd = opi_pidfd_self();
  const nod own = {.rank = t->place.rank, .has_pidfd = pidfd >= 0 ? 1 : 0};
  const opipe_status status =
      opi_send_with(fd, &own, sizeof own, pidfd >= 0 ? pidfd : t->wake, NULL);
  if (pidfd >= 0)
    (void)close(pidfd);
  return status;
}

/* Waits for the other end's. *out_pidfd: -1: it has none. */
static bool take_nod(int fd, uint64_t until_ns, nod *out, int *out_pidfd) {
  size_t n = 0;
  int passed = -1;
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING && opi_clock_ns() < until_ns) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    (void)poll(&one, 1, LOOK_MS);
    status = opi_receive_with(fd, out, sizeof *out, &n, &passed, NULL);
  }
  const bool came = status == OPIPE_OK && n == sizeof *out && passed >= 0;
  if (passed >= 0 && (!came || out->has_pidfd == 0)) {
    (void)close(passed);
    passed = -1;
  }
  *out_pidfd = passed;
  return came;
}

/* A neighbour keeps process 0's descriptor, and no other's. */
static bool meet_lowest(opi_team *t, uint32_t lowest) {
  char address[OPI_ADDRESS_ROOM];
  const uint64_t until = opi_later_ns(opi_clock_ns(), MEET_NS);
  int fd = -1, pidfd = -1;
  opi_peer peer;
  nod told = {0};
  opipe_status status = OPIPE_PENDING;
  name_of(t, lowest, address);
  while ((status = opi_carrier_unix.connect(address, false, &fd, NULL)) == OPIPE_PENDING &&
         opi_clock_ns() < until)
    (void)poll(NULL, 0, LOOK_MS);
  const bool met =
      status == OPIPE_OK && opi_carrier_unix.check_peer(fd, false, &peer, NULL) == OPIPE_OK &&
      give_nod(t, fd) == OPIPE_OK && take_nod(fd, until, &told, &pidfd) && told.rank == lowest;
  if (fd >= 0)
    (void)close(fd);
  opi_lock_take(&t->lock);
  if (met && lowest == 0 && t->links[0].fd >= 0 && t->links[0].pidfd < 0) {
    t->links[0].pidfd = pidfd;
    pidfd = -1;
  }
  opi_lock_give(&t->lock);
  if (pidfd >= 0)
    (void)close(pidfd);
  return met;
}

/* With the lock held. Takes the descriptor over. */
static void add_neighbour(opi_team *t, uint32_t rank, int pidfd) {
  opi_connection *link = opi_team_is_root(t) ? opi_connection_of(t, rank) : NULL;
  if (link != NULL && link->pidfd < 0) {
    link->pidfd = pidfd;
    return;
  }
  for (uint32_t i = 0; i < t->reach.n_neighbours; ++i) {
    if (t->reach.neighbours[i].rank == rank) {
      (void)close(pidfd);
      return;
    }
  }
  if (link == NULL && t->reach.n_neighbours < t->reach.neighbours_room)
    t->reach.neighbours[t->reach.n_neighbours++] = (opi_neighbour){rank, pidfd};
  else
    (void)close(pidfd);
}

static void accept_one(opi_team *t, int fd) {
  opi_peer peer;
  nod told = {0};
  int pidfd = -1;
  const uint32_t own = t->place.rank;
  if (opi_carrier_unix.check_peer(fd, false, &peer, NULL) < 0 ||
      !take_nod(fd, opi_later_ns(opi_clock_ns(), MEET_NS / 2), &told, &pidfd))
    return;
  opi_lock_take(&t->lock);
  const bool fits =
      told.rank < t->place.size && told.rank != own && t->members[told.rank].machine == own;
  if (fits && pidfd >= 0)
    add_neighbour(t, told.rank, pidfd);
  opi_lock_give(&t->lock);
  if (!fits && pidfd >= 0)
    (void)close(pidfd);
  if (fits)
    (void)give_nod(t, fd);
}

/* Listens until process 0 has started all. */
static void meet_others(opi_team *t) {
  char address[OPI_ADDRESS_ROOM];
  int listener = -1;
  bool over = false;
  name_of(t, t->place.rank, address);
  if (opi_carrier_unix.listen(address, false, &listener, NULL) < 0)
    return; /* nobody is met */
  while (!over) {
    struct pollfd one = {.fd = listener, .events = POLLIN};
    int fd = -1;
    (void)poll(&one, 1, LOOK_MS);
    if (opi_carrier_unix.accept(listener, &fd, NULL) == OPIPE_OK) {
      accept_one(t, fd);
      (void)close(fd);
    }
    opi_lock_take(&t->lock);
    over = t->started || t->failed || t->cancelled ||
           opi_clock_ns() >= opi_later_ns(t->opened_ns, t->timeout_ns);
    opi_lock_give(&t->lock);
  }
  (void)close(listener);
}

void opi_neighbours_meet(opi_team *t) {
  const uint32_t own = t->place.rank, lowest = t->members[own].machine;
  uint32_t n = 0, lower = 0;
  opi_neighbours_count(t, &n, &lower);
  if (n > 1 && lowest == own && t->reach.neighbours == NULL) {
    t->reach.neighbours = opi_alloc_zero(t->allocator, n, sizeof *t->reach.neighbours);
    t->reach.neighbours_room = t->reach.neighbours == NULL ? 0 : n;
  }
  opi_lock_give(&t->lock);
  uint32_t met = 0;
  if (lowest != own)
    met = meet_lowest(t, lowest);
  else if (n > 1)
    meet_others(t);
  opi_lock_take(&t->lock);
  if (lowest != own && !t->failed)
    opi_team_send(t, OPI_NOBODY, OPI_FRAME_MET, 0, &met, sizeof met);
}

/* ---- afterwards ---- */

void opi_neighbours_ended(opi_team *t, opi_neighbour *neighbour) {
  (void)close(neighbour->pidfd);
  neighbour->pidfd = -1;
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_DIED, 0, &neighbour->rank, sizeof neighbour->rank);
}

void opi_neighbours_release(opi_team *t) {
  for (uint32_t i = 0; i < t->reach.n_neighbours; ++i) {
    if (t->reach.neighbours[i].pidfd >= 0)
      (void)close(t->reach.neighbours[i].pidfd);
  }
  opi_free(t->allocator, t->reach.neighbours,
           t->reach.neighbours_room * sizeof *t->reach.neighbours);
  t->reach.neighbours = NULL;
}
