/* SPDX-License-Identifier: Apache-2.0 */
/* Workers of other ranks: their addresses on the board, who is on this machine, connections. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ucx.h"

#define MAGIC UINT32_C(0x6f707562) /* changes with the note */
enum { BOOT_MOST = 40 };

typedef struct place { /* where shared memory and unix sockets reach */
  char boot[BOOT_MOST];
  uint64_t network[2]; /* the namespace */
  uint32_t user, loopback;
} place;

typedef struct address { /* on the board */
  uint32_t magic, n_ranks;
  uint32_t major, minor;
  place where;
  uint64_t n_bytes;
  uint8_t bytes[UCX_ADDRESS_MOST];
} address;
_Static_assert(sizeof(address) <= OPIPE_BOARD_BYTES, "a note of the board");

static void find_place(const opipe_world *world, place *out) {
  struct stat network;
  memset(out, 0, sizeof *out);
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : read(fd, out->boot, sizeof out->boot - 1);
  out->boot[n > 0 ? n : 0] = '\0';
  out->boot[strcspn(out->boot, "\n")] = '\0';
  machine_close(fd);
  if (stat("/proc/self/ns/net", &network) == 0) {
    out->network[0] = (uint64_t)network.st_dev;
    out->network[1] = (uint64_t)network.st_ino;
  }
  out->user = (uint32_t)geteuid();
  out->loopback = ucx_is_loopback(&world->options);
}

static bool same_machine(const place *a, const place *b) {
  return a->boot[0] != '\0' && strcmp(a->boot, b->boot) == 0 && a->network[0] == b->network[0] &&
         a->network[1] == b->network[1] && a->user == b->user;
}

opipe_status ucx_post(ucx_worker *worker, opipe_error *err) {
  const opipe_world *world = worker->world;
  ucx_seat *seat = &world->seats[worker->rank];
  char key[OPIPE_BOARD_KEY];
  address own;
  if (world->alone || seat->posted)
    return OPIPE_OK;
  memset(&own, 0, sizeof own);
  own.magic = MAGIC;
  own.n_ranks = world->n_ranks;
  own.major = world->library->major;
  own.minor = world->library->minor;
  own.n_bytes = worker->n_address;
  find_place(world, &own.where);
  memcpy(own.bytes, worker->address, worker->n_address);
  (void)snprintf(key, sizeof key, "ucx/%u", worker->rank);
  const opipe_status status =
      world->board->post(world->board->ctx, key, &own, offsetof(address, bytes) + own.n_bytes, err);
  seat->posted = status == OPIPE_OK;
  return status;
}

static opipe_status check(const opipe_world *world, uint32_t own, uint32_t rank, const address *a,
                          uint64_t n_bytes, opipe_error *err) {
  place here;
  if (n_bytes < offsetof(address, bytes) || a->magic != MAGIC || a->n_bytes == 0 ||
      n_bytes - offsetof(address, bytes) != a->n_bytes ||
      memchr(a->where.boot, '\0', sizeof a->where.boot) == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u: its address on the board (%llu bytes) is of another version", rank,
                      (unsigned long long)n_bytes);
  }
  if (a->n_ranks != world->n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u is in a world of %u ranks, rank %u in one of %u", rank, a->n_ranks,
                      own, world->n_ranks);
  }
  find_place(world, &here);
  if (!same_machine(&here, &a->where) && (here.loopback != 0 || a->where.loopback != 0)) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "ranks %u and %u are on two machines (or in two networks), and UCX is bound "
                      "to 'lo' at rank %u: name an interface, or each machine its own by "
                      "UCX_NET_DEVICES (--transport ucx:net=NAME)",
                      own, rank, here.loopback != 0 ? own : rank);
  }
  return OPIPE_OK;
}

/* Under the world's lock. */
static opipe_status look(opipe_world *world, uint32_t own, uint32_t rank, opipe_error *err) {
  ucx_seat *seat = &world->seats[rank];
  char key[OPIPE_BOARD_KEY];
  address there;
  place here;
  uint64_t n_bytes = sizeof there;
  (void)snprintf(key, sizeof key, "ucx/%u", rank);
  opipe_status status = world->board->look(world->board->ctx, key, &there, &n_bytes, err);
  if (status == OPIPE_OK)
    status = check(world, own, rank, &there, n_bytes, err);
  if (status != OPIPE_OK)
    return status;
  seat->address = ucx_new(world->host, "an address", there.n_bytes, err);
  if (seat->address == NULL)
    return OPIPE_E_NOMEM;
  memcpy(seat->address, there.bytes, there.n_bytes);
  seat->n_address = there.n_bytes;
  find_place(world, &here);
  seat->machine = same_machine(&here, &there.where) ? UCX_SAME_MACHINE : UCX_ELSEWHERE;
  return OPIPE_OK;
}

opipe_status ucx_find(opipe_world *world, uint32_t own, uint32_t other, bool *out_by_ucx,
                      opipe_error *err) {
  const uint32_t n = world->options.together;
  ucx_seat *seat = &world->seats[other];
  opipe_status status = OPIPE_OK;
  const bool apart = n != 0 && own / n != other / n;
  if (!seat->local) {
    (void)pthread_mutex_lock(&world->lock);
    if (seat->machine == UCX_UNKNOWN)
      status = look(world, own, other, err);
    (void)pthread_mutex_unlock(&world->lock);
  }
  if (status == OPIPE_OK)
    *out_by_ucx = own != other && (apart || (!seat->local && seat->machine == UCX_ELSEWHERE));
  return status;
}

static void on_error(void *arg, ucp_handle ep, ucp_code status) {
  ucx_peer *peer = arg;
  (void)ep;
  ucx_lose(peer->worker, peer->rank, status);
}

opipe_status ucx_reach(ucx_worker *worker, uint32_t rank, opipe_error *err) {
  opipe_world *world = worker->world;
  const ucx_seat *seat = &world->seats[rank];
  ucx_peer *peer = &worker->peers[rank];
  char call[64];
  if (peer->ep != NULL)
    return OPIPE_OK;
  const ucp_ep_want want = {.mask = UCP_EP_ADDRESS | UCP_EP_ERROR_MODE | UCP_EP_ON_ERROR,
                            .address = seat->local ? seat->worker->address : seat->address,
                            .error_mode = world->library->error_mode,
                            .on_error = on_error,
                            .on_error_arg = peer};
  ucx_files *files = ucx_files_before(world->host);
  ucx_lock(worker);
  const ucp_code code = worker->stopped
                            ? (ucp_code)UCP_CANCELED
                            : world->library->ucp.ep_create(worker->worker, &want, &peer->ep);
  ucx_unlock(worker);
  ucx_files_after(world, files, false);
  (void)snprintf(call, sizeof call, "connecting ranks %u and %u", worker->rank, rank);
  return code == UCP_FINE ? OPIPE_OK : ucx_failed(world, call, code, err);
}
