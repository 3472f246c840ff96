/* SPDX-License-Identifier: Apache-2.0 */
/* Lists under construction: shared by messages.c, which finds the messages and their times, and
 * lists.c, which orders the steps. */
#ifndef OPI_LISTING_H
#define OPI_LISTING_H

#include "partition/lists/slots.h"

/* Items by key: items[first[k]] .. items[first[k + 1] - 1], in rising order. */
typedef struct opi_bucket {
  uint32_t *first, *items;
} opi_bucket;

/* The actions at which a credit is given, awaited and posted. */
typedef struct opi_credit {
  uint32_t send, recv, post;
  int32_t lap; /* of recv: bodies back */
} opi_credit;

/* When a sent occurrence has left its memory: before this record of its rank, in the body so many
 * after the record's mini-batch. */
typedef struct opi_left {
  uint32_t before; /* action, or opi_listing_post_key */
  int32_t lap;
  uint32_t next; /* of the same occurrence; OPIPE_NONE */
} opi_left;

typedef struct opi_lefts {
  uint32_t *of; /* [occurrences] index in list; OPIPE_NONE: it leaves at the rank's tail */
  opi_left *list;
  uint32_t n, room;
} opi_lefts;

typedef struct opi_drain {
  uint32_t message;
  int32_t lap;
} opi_drain;

/* A sum over replicas: its part in one instance. */
typedef struct opi_reduction {
  uint32_t instance, rank;
  uint32_t meeting; /* OPIPE_NONE: all replicas are on one rank */
  uint64_t at;      /* one queue: the time at which it stands in every list; UINT64_MAX: the tail */
} opi_reduction;

/* Meetings of tensor groups. */
typedef struct opi_group_sums {
  uint32_t *meeting_at; /* [n_actions] of odd places; OPIPE_NONE: nothing is summed. NULL: no tensor
                           groups */
  uint32_t room;        /* of all the lists' meetings */
  uint32_t *awaited;    /* [n_awaited] records that come to meetings */
  uint32_t n_awaited;
} opi_group_sums;

/* Moves by the action at which they stand: OFFLOAD, LEAVE, RELOAD, RETURN. All empty: there are
 * none. */
typedef struct opi_move_keys {
  opi_bucket leave, left, come, back;
} opi_move_keys;

/* Capacities of the lists that grow, in elements. */
typedef struct opi_listing_rooms {
  uint32_t messages, streams, steps, credits, drains;
} opi_listing_rooms;

typedef struct opi_listing {
  const opi_piece_plan *plan;
  const opi_cut *cut;
  opi_lists *lists;
  opi_times times;
  opi_slots slots;
  opi_arena scratch;
  uint32_t *stream_at;                      /* [(route * R + src) * R + dst] */
  uint32_t *send_key, *recv_key, *post_key; /* [n_messages] action; n_actions + rank: the head */
  bool *post_next;                          /* [n_messages] posted for the next body */
  opi_lefts left;
  opi_drain *drain_items;
  opi_credit *credits;                    /* [n_messages - first_credit] */
  opi_bucket sends, recvs, posts, routes; /* routes: by source stage */
  opi_bucket drains; /* of drain_items, by action; n_actions + rank: the tail; then by POST */
  opi_reduction *reductions; /* in the order in which ranks come to their sums */
  opi_group_sums groups;
  opi_bucket awaits_at; /* of groups.awaited, by action; n_actions: none */
  opi_move_keys moves;
  opi_bucket reductions_at; /* by action; n_actions + rank: the tail */
  opi_bucket ends;          /* by rank, strict: messages with an end on the rank, by time */
  opi_listing_rooms rooms;
  uint32_t n_drains;
  uint32_t first_credit; /* message */
  const opi_cut *const *cuts;
  bool reference, strict;
  bool circle; /* the lists are a body that repeats; times are positions around it */
  opipe_error *err;
} opi_listing;

/* GROUPED: a rank's sums stand in one order with its messages. */
static inline bool opi_listing_one_queue(const opi_listing *l) {
  return l->strict && l->plan->whole->link.rule == OPIPE_RULE_GROUPED;
}

static inline uint32_t opi_listing_replica(const opi_listing *l, uint32_t stage, uint32_t m) {
  return l->times.replica_of[(size_t)stage * l->plan->n_microbatches + m];
}

static inline opi_occurrence *opi_listing_occurrence(const opi_listing *l, uint32_t cell,
                                                     uint32_t m) {
  return &l->slots.occurrences[(size_t)cell * l->plan->n_microbatches + m];
}

/* The key of drains that stand before an occurrence's POST. */
static inline uint32_t opi_listing_post_key(const opi_listing *l, uint32_t occurrence) {
  return l->plan->n_actions + l->plan->n_ranks + occurrence;
}

/* messages.c. Lists the tensors that travel, in the order in which the senders' lists make them;
 * those of the next mini-batch come first; then credits. */
opipe_status opi_listing_messages(opi_listing *l);
/* Finds the actions before or after which the ends of every message stand. */
opipe_status opi_listing_keys(opi_listing *l);
opipe_status opi_bucket_make(opi_listing *l, const uint32_t *keys, uint32_t n, uint32_t n_keys,
                             opi_bucket *out);
/* drains.c: fills l->drains, the last of the keys. */
opipe_status opi_listing_drains(opi_listing *l);
/* If messages are matched by order: every rank's ends, by time. */
opipe_status opi_listing_ends(opi_listing *l);
/* group_sums.c: the meetings of tensor groups, the first of the lists' meetings. */
opipe_status opi_listing_group_sums(opi_listing *l);
/* sums.c: fills reductions and the lists' meetings, if the plan trains. */
opipe_status opi_listing_sums(opi_listing *l);
/* The modelled time at which the maker has finished a message. */
static inline uint64_t opi_listing_made_at(const opi_listing *l, uint32_t message) {
  return l->times.clock_end[l->send_key[message]];
}

#endif /* OPI_LISTING_H */
