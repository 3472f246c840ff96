/* SPDX-License-Identifier: Apache-2.0 */
/* What the lists of a plan take when they are played, without its graph: what every rank does in
 * order, what its programs take and keep, which messages and sums travel. A plan keeps it beside
 * what it predicts, and so does its file (partition/file/playlist.h), which can be played alone.
 *
 *   lists, cut (of all pieces) -> playlist -> list_play.h -> operations on a cluster
 *
 * Of a stream of requests it is one request alone; of double-buffered weights the body that
 * repeats; else one mini-batch. What takes no time (loads, stores, copies on a rank) is left out.
 */
#ifndef OPI_PLAYLIST_H
#define OPI_PLAYLIST_H

#include "partition/plan/plan.h"

/* Operations of a play; index as a play has it (partition/study/simulate/play.h). */
enum {
  OPI_PLAY_COMPUTE = 0, /* index: work */
  OPI_PLAY_SEND,        /* index: message, as the next four. Under the rules above STREAM the rank
                           stands still until it is posted */
  OPI_PLAY_POST,        /* it may come. Under BLOCKING and GROUPED an endpoint has one of these two
                           under way: the next begins when it has arrived; in between the rank
                           computes */
  OPI_PLAY_WAIT,        /* the receiver needs it */
  OPI_PLAY_DRAIN,       /* the sender needs its bytes back */
  OPI_PLAY_RESERVE,     /* the sender needs the place where it is to be written */
  OPI_PLAY_START,       /* index: collective, as the next: the rank has come to it, and goes on */
  OPI_PLAY_JOIN,        /* the rank needs what it brings */
  OPI_PLAY_BATCH,       /* index: so many operations that come next, sends and posts, begin together
                           and hold nobody up (GROUPED) */
  OPI_PLAY_KINDS
};

typedef struct opi_playlist_item {
  uint8_t kind;        /* OPI_PLAY_* */
  uint8_t pass;        /* COMPUTE: OPI_PROGRAM_F, B, I, W */
  uint8_t next;        /* double-buffered: 1: of the next mini-batch */
  int16_t lap;         /* double-buffered, but COMPUTE: what it is about is of so many mini-batches
                          behind that of `next` */
  uint16_t replica;    /* COMPUTE; START of a stage's sum */
  uint32_t at;         /* COMPUTE: piece; of messages: stream; START, JOIN: group; BATCH: so many
                          sends and posts, which follow */
  uint32_t microbatch; /* COMPUTE; of messages: names one in its stream */
} opi_playlist_item;

/* Messages of one tensor between two instances. */
typedef struct opi_playlist_stream {
  uint32_t src_rank, dst_rank;
  uint32_t src_stage, dst_stage;
  uint16_t src_replica, dst_replica;
  uint16_t src_slice, dst_slice;
  bool backward;
  uint64_t n_bytes; /* of each; 0: made where it is read, or a credit */
} opi_playlist_stream;

/* A pass of a piece. Bytes outlive it: taken when it starts, given back when it ends. */
typedef struct opi_playlist_work {
  uint32_t piece, pass; /* OPI_PROGRAM_* */
  double ns, take_bytes, give_bytes;
} opi_playlist_work;

/* Ranks that sum something, or wait for each other: once in a mini-batch. */
typedef struct opi_playlist_group {
  uint32_t stage;   /* whose gradients it sums; OPIPE_NONE: it is part of the update */
  bool waits;       /* a barrier: nothing travels */
  uint64_t n_bytes; /* of the rank that has most */
  uint32_t *ranks;  /* [n_ranks] each once */
  uint32_t n_ranks; /* at least 1 */
} opi_playlist_group;

typedef struct opi_playlist {
  uint32_t n_pieces;    /* of a stage: piece k of stage s is s * n_pieces + k */
  uint32_t *rank_first; /* [plan's ranks + 1] into items */
  opi_playlist_item *items;
  opi_playlist_stream *streams;
  opi_playlist_work *works;   /* by piece, then pass */
  opi_playlist_group *groups; /* of training */
  uint32_t n_streams, n_works, n_groups;
} opi_playlist;

#endif /* OPI_PLAYLIST_H */
