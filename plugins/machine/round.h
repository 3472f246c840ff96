/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of a group whose members add through host memory: what a member brings to one, whether it
 * may begin, and whether all have come to the same. How values travel is the transport's.
 *
 *   machine_round_alike              do the members describe the group alike?
 *   machine_round_reduce, _collect   is it the next, and is it described rightly?
 *   machine_round_values             where do the values lie, and are they there?
 *   machine_round_agree              do the others describe it alike?
 *   machine_round_end                values without a host address go home
 *
 * Thread rule: the rank's own thread.
 */
#ifndef OPIPE_MACHINE_ROUND_H
#define OPIPE_MACHINE_ROUND_H

#include <opipe/collect.h>
#include <opipe/ways.h>

/* The host address of a region; *out_remote: it has none, but the queue can copy. Errors: those of
 * opipe_endpoint_address. */
opipe_status machine_address(uint32_t rank, const opipe_backend *backend, const opipe_queue *queue,
                             const opipe_region *region, void **out_data, bool *out_remote,
                             opipe_error *err);

typedef struct machine_round {
  /* since opening */
  const opipe_host *host;
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *queue;
  uint32_t rank, index;           /* index: the member's */
  opipe_collective_params params; /* without ranks */
  bool collects;                  /* false: of group_open, whose rounds are all_reduce's */
  opipe_span *spans;              /* [2 * n_regions] from, then to */
  opipe_event *moved;             /* behind the last copy by the queue */
  opipe_ring bounce; /* of one, for values without a host address; no data: none were met */
  uint64_t fetched;
  /* rounds */
  uint64_t begun, ended; /* how many */
  opipe_collect what;    /* of the last one */
  uint64_t n_values;
  opipe_region region; /* of an all-reduce of group_open: its only one */
  opipe_cursor from, to;
  bool away; /* its values are in the bounce */
} machine_round;

/* params and collects are set. Errors: NOMEM. */
opipe_status machine_round_open(machine_round *round, const opipe_host *host, uint32_t rank,
                                const opipe_backend *backend, opipe_device *device,
                                opipe_queue *queue, opipe_error *err);
void machine_round_close(machine_round *round);

/* How a member describes its group. */
typedef struct machine_member {
  uint64_t members[2]; /* a hash of their ranks in order; of groups that collect */
  uint64_t n_bytes;
  uint32_t rank, index, n;
} machine_member;
/* Does another member describe it as this one does? ranks [n], whose hash is `members`. Errors:
 * INVALID, with what both say. */
opipe_status machine_round_alike(const machine_round *round, const uint32_t *ranks,
                                 const uint64_t members[2], const machine_member *other,
                                 opipe_error *err);

/* The next round, number `sequence`: sets `what` and `n_values`. PENDING: the one before has not
 * ended. Errors: those of opipe_reduce_check, opipe_collect_check; STATE. */
opipe_status machine_round_reduce(machine_round *round, uint64_t sequence,
                                  const opipe_region *region, uint64_t n_elems, uint32_t dtype,
                                  opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status machine_round_collect(machine_round *round, uint64_t sequence,
                                   const opipe_collect *collect, opipe_error *err);
/* Its values: `from` and `to` are at their beginnings. PENDING: they are not there; *io_unready is
 * then set if a device is awaited. */
opipe_status machine_round_values(machine_round *round, bool *io_unready, opipe_error *err);
/* Does another member say the same of the round that has begun? Errors: INVALID. */
opipe_status machine_round_agree(const machine_round *round, const opipe_collect_head *other,
                                 opipe_error *err);
/* All values have been taken. */
opipe_status machine_round_end(machine_round *round, opipe_error *err);

#endif /* OPIPE_MACHINE_ROUND_H */
