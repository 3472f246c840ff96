/* SPDX-License-Identifier: Apache-2.0 */
/* The playlist: everything that playing a plan's lists needs, without the graph. It holds each
 * rank's operations in order, what programs take and keep, and which messages and sums travel. A
 * plan keeps it beside its prediction, and so does the plan's file (partition/file/playlist.h),
 * which can therefore be played alone.
 *
 *   lists, cut (of all pieces) -> playlist -> list_play.h -> operations on a cluster
 *
 * A playlist covers a single request of a stream, the repeating body of double-buffered weights, or
 * else one mini-batch. Operations that take no time (loads, stores, copies on a rank) are left out.
 */
#ifndef OPI_PLAYLIST_H
#define OPI_PLAYLIST_H

#include "partition/plan/plan.h"

/* Operations of a play. `index` is the one in partition/study/simulate/play.h. */
enum {
  OPI_PLAY_COMPUTE = 0, /* index: work */
  OPI_PLAY_SEND,  /* index: message, as in the next four. Under the rules above STREAM the rank
                     blocks until it is posted */
  OPI_PLAY_POST,  /* the message may arrive. Under BLOCKING and GROUPED an endpoint has at most one
                     SEND or POST under way and begins the next when it has arrived; the rank
                     computes meanwhile */
  OPI_PLAY_WAIT,  /* the receiver needs the message */
  OPI_PLAY_DRAIN, /* the sender needs its bytes back */
  OPI_PLAY_RESERVE, /* the sender needs the destination's memory */
  OPI_PLAY_START,   /* index: collective, as in the next. The rank enters it and goes on */
  OPI_PLAY_JOIN,    /* the rank needs its result */
  OPI_PLAY_BATCH, /* index: number of following sends and posts that begin together and block nobody
                     (GROUPED) */
  OPI_PLAY_KINDS
};

typedef struct opi_playlist_item {
  uint8_t kind;     /* OPI_PLAY_* */
  uint8_t pass;     /* COMPUTE: OPI_PROGRAM_F, B, I, W */
  uint8_t next;     /* double-buffered: 1: belongs to the next mini-batch */
  int16_t lap;      /* double-buffered: offset in mini-batches from `next`; unused by COMPUTE */
  uint16_t replica; /* COMPUTE; START of a stage's sum */
  uint16_t part;    /* COMPUTE: of the work, from 1 on; 0: the whole */
  uint32_t at; /* COMPUTE: piece; messages: stream; START, JOIN: group; BATCH: number of sends and
                  posts that follow */
  uint32_t microbatch; /* COMPUTE; messages: identifies one within its stream; START, JOIN of a
                          group that meets for each */
} opi_playlist_item;

/* Messages of one tensor between two instances. */
typedef struct opi_playlist_stream {
  uint32_t src_rank, dst_rank;
  uint32_t src_stage, dst_stage;
  uint16_t src_replica, dst_replica;
  uint16_t src_slice, dst_slice;
  bool backward;
  uint64_t n_bytes; /* of each message; 0: produced in place, or a credit */
} opi_playlist_stream;

/* One pass of a piece, or a part of it, behind which a sum starts. Bytes that outlive it are taken
 * when it starts and given back when it ends.
 */
typedef struct opi_playlist_work {
  uint32_t piece, pass; /* OPI_PROGRAM_* */
  uint32_t part;        /* 0: the whole; from 1 on: parts of it, one after the other */
  double ns, take_bytes, give_bytes;
} opi_playlist_work;

/* How members of a group make values together; OUT, IN: one rank copies stashes to its host's
 * memory, and back. */
enum {
  OPI_PLAY_SUM = 0,
  OPI_PLAY_GATHER = 1,
  OPI_PLAY_SCATTER = 2,
  OPI_PLAY_OUT = 3,
  OPI_PLAY_IN = 4,
  OPI_PLAY_HOWS
};

/* Ranks that form a sum, or wait for each other, once per mini-batch; or a tensor group, or a rank
 * that offloads, once for each micro-batch. */
typedef struct opi_playlist_group {
  uint32_t stage;    /* stage whose gradients are summed, or that is the tensor group's; OPIPE_NONE:
                        part of the update */
  bool waits;        /* a barrier: nothing travels */
  bool each;         /* a tensor group inside a pass of its stage, or an offload */
  bool backward;     /* each: of the backward */
  uint32_t how;      /* OPI_PLAY_*; without each: of gradients or, GATHER, of weights */
  uint64_t n_bytes;  /* of the rank that has most */
  uint32_t n_params; /* of a bucket of gradients; 0: all that are left of its stage */
  uint32_t *ranks;   /* [n_ranks] without repeats */
  uint32_t n_ranks;  /* at least 1 */
} opi_playlist_group;

typedef struct opi_playlist {
  uint32_t n_pieces;    /* per stage: piece k of stage s is s * n_pieces + k */
  uint32_t *rank_first; /* [plan's ranks + 1] into items */
  opi_playlist_item *items;
  opi_playlist_stream *streams;
  opi_playlist_work *works;   /* by piece, then pass, then part */
  opi_playlist_group *groups; /* training; tensor groups */
  uint32_t n_streams, n_works, n_groups;
} opi_playlist;

#endif /* OPI_PLAYLIST_H */
