/* SPDX-License-Identifier: Apache-2.0 */
/* Plays lists on a cluster, as discrete events: programs take time on their ranks, messages and
 * collectives take time on links, and share them.
 *
 * A *play* is what the lists of some ranks become: operations in order, each waiting for no more
 * than one thing. Ranks that do the same under other names share a list: there are n_tensor x
 * n_data *copies* of the lists (copy = data * n_tensor + tensor: the ranks of a tensor group stand
 * next to each other), each on devices of its own. Messages stay within a copy; collectives join
 * ranks of one copy, or of several. Copies whose links and groups cannot be told apart are played
 * once (classes.c).
 *
 * A message of a stream starts when both ends are there and the one before has left. Its bytes pass
 * a port at no more than the message's own rate; where more is asked of a port than it has,
 * everything that passes it slows down by the same factor. A collective asks of every port what it
 * moves through it, spread over the time that it takes alone. A device takes part in one message
 * each way, or one collective, at full speed; beside them in one copy each way to its host.
 *
 * Times in ns from the start. Deterministic: the same play gives the same bits.
 */
#ifndef OPI_PLAY_H
#define OPI_PLAY_H

#include "partition/plan/playlist.h"
#include "partition/schedule/actions.h"
#include "partition/study/cluster/cluster.h"

/* Groups whose operation is a copy between the memory of a device and its host's: of one list, one
 * copy. What leaves is given back when the rank has joined it, what comes is taken when it starts.
 */
enum { OPI_STASH_OUT = OPI_OPS, OPI_STASH_IN };

typedef struct opi_play_op {
  uint32_t kind; /* OPI_PLAY_* */
  uint32_t index;
  uint32_t item; /* for people: which action of the list that was played */
} opi_play_op;

/* What a program takes. Bytes are those that outlive it: taken when it starts, given back when it
 * ends. */
typedef struct opi_play_work {
  double ns, take_bytes, give_bytes;
} opi_play_work;

typedef struct opi_play_stream {
  uint32_t src, dst; /* lists */
  double n_bytes;    /* of each message */
} opi_play_stream;

/* Collectives of one kind: over every list of [first, first + n_lists) of group_lists, and of
 * copies: those that differ in their tensor rank, in their data rank, in both, or one alone. */
typedef struct opi_play_group {
  uint32_t op, algorithm; /* OPI_OP_*, OPI_STASH_OUT, OPI_STASH_IN; OPI_COLLECTIVE_* */
  uint64_t n_bytes;
  double kept_bytes; /* OUT, IN: given back, taken */
  uint32_t times;    /* so many, one after the other; 0: a barrier */
  uint32_t first, n_lists;
  bool over_tensor, over_data;
} opi_play_group;

/* Borrowed arrays. */
typedef struct opi_play {
  const opi_cluster *cluster;
  uint32_t n_lists, n_tensor, n_data;
  const uint32_t *device;     /* [n_lists * n_tensor * n_data] of list l, copy c: [l * copies + c];
                                 no two alike */
  const uint32_t *list_first; /* [n_lists + 1] into ops */
  const opi_play_op *ops;
  const opi_play_work *work;
  const opi_play_stream *streams; /* [n_streams] */
  const uint32_t *message_stream; /* [n_messages] */
  const opi_play_group *groups;   /* [n_groups] */
  const uint32_t *group_lists;
  const uint32_t *collective_group; /* [n_collectives] */
  uint32_t n_streams, n_messages, n_groups, n_collectives;
  uint32_t rule;     /* OPI_RULE_* */
  bool posted_ahead; /* there is room for every message from the start: no POST, no RESERVE */
  bool apart;        /* tests: every copy is played */
} opi_play;

/* Of one tier. */
typedef struct opi_play_tier {
  double n_bytes; /* that left its members by their ports, of messages and collectives */
  double busiest; /* of its ports: bytes over what it could have moved in the makespan, 0 to 1 */
} opi_play_tier;

/* In the caller's arena. Played rank: list * n_classes + class. */
typedef struct opi_played {
  double makespan;
  uint32_t n_classes;
  uint32_t *class_of;   /* [copies] */
  uint32_t *class_size; /* [n_classes] */
  double *start, *end;  /* [n_ops * n_classes] of computes, and of what a rank stood still in: op of
                           class k: [op * n_classes + k] */
  /* [n_messages * n_classes] of each message, class by class: both its ends are there; it begins
   * behind those of its stream; it is there. */
  double *sent_at, *began_at, *arrived_at;
  double *busy_ns;    /* [played ranks] in programs */
  double *finish_ns;  /* [played ranks] */
  double *sent_bytes; /* [played ranks] by messages */
  double *peak_bytes; /* [played ranks] of what programs and copies take and give back */
  opi_play_tier tiers[OPI_TIERS_MOST];
} opi_played;

/* What an operation takes when it starts and gives back when it ends. */
void opi_play_op_bytes(const opi_play *play, const opi_play_op *op, double *out_take,
                       double *out_give);

/* Errors: INVALID, a device twice or out of range, one that copies to a host to which the cluster
 * knows no way, or ranks that wait for ever: which, at which operation; NOMEM. */
opipe_status opi_play_run(const opi_play *play, opi_arena *arena, opi_played *out_played,
                          opipe_error *err);

#endif /* OPI_PLAY_H */
