/* SPDX-License-Identifier: Apache-2.0 */
/* Plays lists on a cluster, as discrete events: programs take time on their ranks, messages and
 * collectives take time on links, and share them.
 *
 * A *play* is made from the lists of some ranks: operations in order, each waiting for at most one
 * thing. Ranks that do the same work share a list: there are n_tensor x n_data *copies* of the
 * lists (copy = data * n_tensor + tensor: the ranks of a tensor group stand next to each other),
 * each on devices of its own. Messages stay within a copy; collectives join ranks of one copy, or
 * of several. Copies with indistinguishable links and groups are played once (classes.c).
 *
 * A message of a stream starts when both ends are there and the message before it has left. Its
 * bytes pass a port at no more than the message's own rate; if a port is overloaded, everything
 * that passes it slows down by the same factor. A collective's load on a port is the bytes it moves
 * through it, spread over the time that it takes alone. A device takes part in one message each
 * way, or one collective, at full speed, and also in one copy each way to its host.
 *
 * Times in ns from the start. Deterministic: the same play gives the same bits. */
#ifndef OPI_PLAY_H
#define OPI_PLAY_H

#include "partition/plan/lanes.h"
#include "partition/plan/playlist.h"
#include "partition/schedule/actions.h"
#include "partition/study/cluster/cluster.h"

/* Groups whose operation is a copy between a device's memory and its host's: of one list, one copy.
 * OUT gives bytes back when the rank has joined it, IN takes them when it starts. */
enum { OPI_STASH_OUT = OPI_OPS, OPI_STASH_IN };

typedef struct opi_play_op {
  uint32_t kind; /* OPI_PLAY_* */
  uint32_t index;
  uint32_t item; /* for labels: the action of the played list */
} opi_play_op;

/* Load of a program. Bytes are those that outlive it: taken when it starts, given back when it
 * ends. */
typedef struct opi_play_work {
  double ns, take_bytes, give_bytes;
} opi_play_work;

typedef struct opi_play_stream {
  uint32_t src, dst; /* lists */
  double n_bytes;    /* of each message */
} opi_play_stream;

/* Collectives of one kind: over every list of [first, first + n_lists) of group_lists, and over
 * copies that differ in their tensor rank, in their data rank, in both, or over one copy alone. */
typedef struct opi_play_group {
  uint32_t op, algorithm; /* OPI_OP_*, OPI_STASH_OUT, OPI_STASH_IN; OPI_COLLECTIVE_* */
  uint64_t n_bytes;
  double kept_bytes; /* OUT, IN: given back, taken */
  uint32_t times;    /* repetitions, one after the other; 0: a barrier */
  uint32_t first, n_lists;
  bool over_tensor, over_data;
} opi_play_group;

/* Borrowed arrays. */
typedef struct opi_play {
  const opi_cluster *cluster;
  uint32_t n_lists, n_tensor, n_data;
  const uint32_t *device;     /* [n_lists * n_tensor * n_data] of list l, copy c: [l * copies + c];
                                 all different */
  const uint32_t *list_first; /* [n_lists + 1] into ops */
  const opi_play_op *ops;
  const opi_play_work *work;
  const opi_play_stream *streams; /* [n_streams] */
  const uint32_t *message_stream; /* [n_messages] */
  const opi_play_group *groups;   /* [n_groups] */
  const uint32_t *group_lists;
  const uint32_t *collective_group; /* [n_collectives] */
  uint32_t n_streams, n_messages, n_groups, n_collectives;
  const double *host_bytes_per_ns; /* [n_lists] of copies to the host, where the cluster gives none
                                      of the device; NULL: those are errors */
  uint32_t rule;                   /* OPI_RULE_* */
  const bool *lanes; /* [n_lists] GROUPED: its ranks have lanes (partition/plan/lanes.h); NULL: none
                        has one */
  bool posted_ahead; /* every message has room from the start: no POST, no RESERVE */
  bool apart;        /* tests: every copy is played */
} opi_play;

/* Traffic of one tier. */
typedef struct opi_play_tier {
  double n_bytes; /* bytes that left its members through their ports, by messages and collectives */
  double busiest; /* the busiest port: its bytes over its capacity in the makespan, 0 to 1 */
} opi_play_tier;

/* Lies in the caller's arena. Played rank: list * n_classes + class. */
typedef struct opi_played {
  double makespan;
  uint32_t n_classes;
  uint32_t *class_of;   /* [copies] */
  uint32_t *class_size; /* [n_classes] */
  double *start, *end;  /* [n_ops * n_classes] of computes and waits: op of class k: [op * n_classes
                           + k] */
  /* [n_messages * n_classes] of each message, class by class: both its ends are there; it begins,
   * after earlier ones of its stream; it has arrived. */
  double *sent_at, *began_at, *arrived_at;
  double *busy_ns;    /* [played ranks] in programs */
  double *finish_ns;  /* [played ranks] */
  double *sent_bytes; /* [played ranks] by messages */
  double *peak_bytes; /* [played ranks] bytes that programs and copies take and give back */
  opi_play_tier tiers[OPI_TIERS_MOST];
} opi_played;

/* Bytes that an operation takes when it starts and gives back when it ends. */
void opi_play_op_bytes(const opi_play *play, const opi_play_op *op, double *out_take,
                       double *out_give);

/* Errors: INVALID, a device twice or out of range, a device without a path to the host that it
 * copies to, or ranks that wait forever: which, at which operation; NOMEM. */
opipe_status opi_play_run(const opi_play *play, opi_arena *arena, opi_played *out_played,
                          opipe_error *err);

#endif /* OPI_PLAY_H */
