/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by playlist.c (programs, messages, lists) and playlist_sums.c (sums over ranks and
 * barriers). */
#ifndef OPI_PLAYLIST_BUILD_H
#define OPI_PLAYLIST_BUILD_H

#include "partition/lists/passed.h"
#include "partition/lists/playlist.h"

/* Indices of groups; OPIPE_NONE: there is none. */
typedef struct opi_playlist_sums {
  uint32_t
      *bucket_first; /* [shards + 1] groups of a stage's buckets over its replicas, by member */
  uint32_t *slots, *buckets; /* [slot_first[shards]] a shard's trained parameters, rising, and the
                                groups of their buckets */
  uint32_t *slot_first;      /* [shards + 1] */
  uint32_t *n_come;          /* [shards] REDUCEs of the current rank so far */
  uint32_t *n_started;       /* [shards] buckets that the current rank has started */
  bool *has_tie;             /* [ranks * n_ties] parameters summed at the update, by slots */
  uint32_t *barrier;         /* [ranks] */
  uint32_t n_ties, first_tie, norms;
  uint32_t first_gather; /* of buckets, then ties, in their order; OPIPE_NONE: nothing is shared */
  bool alone;            /* norms are summed in the background */
} opi_playlist_sums;

/* Points of last backwards at which sums start (passed.h), by step. */
typedef struct opi_playlist_points {
  opi_passed *list;    /* [first[n_steps]] */
  uint32_t *shard;     /* the same index */
  uint32_t *first;     /* [n_steps + 1]; NULL: there are none */
  double *cuts;        /* shares of a program's time, rising, at cut_first */
  uint32_t *cut_first; /* [pieces * OPI_PROGRAMS + 1] */
} opi_playlist_points;

typedef struct opi_playlist_maker {
  const opi_cut_model *model;
  const opi_piece_plan *plan;
  const opi_lists *lists;
  const opi_cut *cut;
  const uint64_t *sum_bytes; /* [parameters]; NULL: dense */
  const opi_playlist *file;  /* whose buckets to make; NULL: by their bytes */
  bool in_parts;
  opi_playlist *out;
  opi_arena *arena;      /* of the result */
  opi_arena scratch;     /* of everything else */
  uint32_t *stream_at;   /* [2 * lists' streams] by whether they are direct; OPIPE_NONE */
  double *taken, *given; /* [whole stages * OPI_PHASES] bytes of a micro-batch */
  bool *travels;         /* [messages] sent in the playlist */
  bool *works;           /* [pieces * OPI_PROGRAMS] run by the lists */
  opi_playlist_sums sums;
  opi_playlist_points points;
  uint32_t *group_first, *group_calls; /* by a meeting's place, pass and replica: its groups */
  uint32_t *move_group; /* [moves] its group on the way out; the next is the way back */
  uint32_t room_items, room_groups, room_works, n_items;
  bool twice;
  opipe_error *err;
} opi_playlist_maker;

/* Appends to the current rank's items. */
opipe_status opi_playlist_add(opi_playlist_maker *maker, const opi_playlist_item *item);

/* playlist_groups.c. Makes the groups of tensor groups; adds the items of a SUM or AWAIT. */
opipe_status opi_playlist_groups_make(opi_playlist_maker *maker);
opipe_status opi_playlist_groups_step(opi_playlist_maker *maker, const opi_step *step);

/* playlist_moves.c. Makes the groups of offloaded stashes; adds the item of an OFFLOAD, LEAVE,
 * RELOAD or RETURN. */
opipe_status opi_playlist_moves_make(opi_playlist_maker *maker);
opipe_status opi_playlist_move(opi_playlist_maker *maker, const opi_step *step);

/* playlist_parts.c. Finds where sums start within last backwards, once groups are made; adds the
 * works, and the items of a COMPUTE. */
opipe_status opi_playlist_points_find(opi_playlist_maker *maker);
opipe_status opi_playlist_works_add(opi_playlist_maker *maker, const opi_playlist_work *whole);
opipe_status opi_playlist_compute(opi_playlist_maker *maker, const opi_step *step,
                                  const opi_playlist_item *item);

/* playlist_buckets.c. The sums of a stage's gradients, bucket by bucket; room for all groups that
 * follow. Starts those whose gradients are among the shard's `n` with the highest slots. */
opipe_status opi_playlist_buckets_make(opi_playlist_maker *maker, const bool *reads,
                                       const bool *tied, const bool *at_home);
opipe_status opi_playlist_buckets_start(opi_playlist_maker *maker, uint32_t shard, uint32_t replica,
                                        uint32_t n);
/* How many REDUCEs a rank has for a stage, one for each replica there. */
uint32_t opi_playlist_reduces(const opi_playlist_maker *maker, uint32_t rank, uint32_t whole);

/* playlist_sums.c. Makes the groups; adds the items of a REDUCE and an UPDATE. */
opipe_status opi_playlist_sums_make(opi_playlist_maker *maker);
opipe_status opi_playlist_sums_reduce(opi_playlist_maker *maker, uint32_t rank,
                                      const opi_step *step);
opipe_status opi_playlist_sums_update(opi_playlist_maker *maker, uint32_t rank);

static inline uint32_t opi_playlist_pieces(const opi_playlist_maker *maker) {
  return maker->plan->n_pieces;
}
static inline opi_piece_place opi_playlist_place(const opi_playlist_maker *maker, uint32_t stage) {
  return opi_piece_place_of(maker->plan->whole, stage % opi_playlist_pieces(maker));
}
/* Stages by member of their tensor group: those whose parameters a rank has. */
static inline uint32_t opi_playlist_shards(const opi_playlist_maker *maker) {
  return maker->plan->n_stages / opi_playlist_pieces(maker) * opi_plan_width(maker->plan->whole);
}
static inline uint32_t opi_playlist_shard(const opi_playlist_maker *maker, uint32_t piece) {
  const uint32_t width = opi_plan_width(maker->plan->whole);
  return piece / opi_playlist_pieces(maker) * width + piece % width;
}
static inline uint32_t opi_playlist_whole_stages(const opi_playlist_maker *maker) {
  return maker->plan->n_stages / opi_playlist_pieces(maker);
}

#endif /* OPI_PLAYLIST_BUILD_H */
