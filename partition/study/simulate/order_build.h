/* SPDX-License-Identifier: Apache-2.0 */
/* A play under construction from an order; private to this folder. */
#ifndef OPI_ORDER_BUILD_H
#define OPI_ORDER_BUILD_H

#include "partition/schedule/events.h"
#include "partition/schedule/proof.h"
#include "partition/study/simulate/order_play.h"

/* Kinds of groups of a stage. */
enum {
  GROUP_REDUCE = 0, /* gradients */
  GROUP_GATHER,     /* weights, after a sharded step */
  GROUP_SUM_F,      /* over the tensor group */
  GROUP_SUM_B,
  GROUP_GATHER_F, /* tokens of the group's members */
  GROUP_GATHER_B,
  GROUP_SCATTER_F,
  GROUP_SCATTER_B,
  GROUP_ARRIVE, /* activations that arrived in parts */
  GROUP_RETURN, /* gradients that arrived in parts */
  GROUP_OUT,    /* stashes to the host, and back */
  GROUP_IN,
  GROUPS
};

/* A stash on its way to the host that its rank has not yet waited for. */
typedef struct opi_leaving {
  uint64_t unit;       /* opi_builder_unit */
  uint32_t collective; /* OPIPE_NONE: the rank has waited */
  uint32_t n_computes; /* computes of the rank before it */
} opi_leaving;

/* Stashes that go to the host and come back; written by order_moves.c. */
typedef struct opi_builder_moves {
  opi_leaving *leaving; /* of the current rank, in order; [first_leaving, n_leaving) are examined */
  uint32_t *coming;     /* [steps * units] collective of a RELOAD that is not waited for yet;
                           OPIPE_NONE: none. NULL: nothing is offloaded */
  uint32_t n_leaving, first_leaving, room_leaving;
  uint32_t n_computes; /* of the current rank so far; a pair is one */
} opi_builder_moves;

/* Messages and their streams; written by order_links.c. */
typedef struct opi_builder_links {
  opi_play_stream *streams;
  uint32_t *stream_at; /* [((edge * 2 + backward) * n_slices + slice) * R * R + src * R + dst] */
  uint32_t *message_stream, *message_at; /* [messages]; [messages of the prover]: its number */
  uint32_t n_streams, room_streams, n_messages, room_messages;
} opi_builder_links;

typedef struct opi_order_builder {
  const opi_problem *problem;
  const opi_order_play *how;
  opi_do_list *grouped;  /* with the collectives of the play's groups; NULL: the list has them */
  opi_do_list *unrolled; /* NULL: the list itself is played */
  const opi_do_list *list;
  opi_prover prover; /* numbers the messages */
  opi_play *play;
  opi_arena *arena;
  opi_play_op *ops;
  opi_play_work *work;
  uint32_t *collective_group;
  opi_play_group *groups;
  uint32_t *group_at; /* [((instance) * GROUPS + which) * n_slices + slice] OPIPE_NONE: none yet */
  uint32_t *group_lists; /* [2 * instances] for a stage the ranks of its replicas; for an instance
                            its own */
  uint32_t *n_homes;     /* [n_stages] of the first */
  opi_builder_links links;
  uint32_t *reduction; /* [steps * n_stages * 2] its collective, and the one after the step;
                          OPIPE_NONE: not yet numbered */
  bool *reduces;       /* [steps * instances] its rank's step has not waited for it */
  bool *recomputes;    /* [n_stages] */
  opi_builder_moves moves;
  uint32_t *update; /* [n_stages] of the current rank, under updates_beside: the last micro-batch's
                       sum, not waited for yet; OPIPE_NONE: none */
  uint32_t n_ops, room_ops, n_work, room_work, n_collectives, room_collectives;
  uint32_t n_groups, room_groups;
  double n_tokens;
  opipe_error *err;
} opi_order_builder;

/* Whether another replica of its stage follows on the same rank. */
static inline bool opi_builder_is_twin(const opi_problem *p, uint32_t instance) {
  for (uint32_t r = 0; r < instance % p->n_replicas; ++r) {
    if (opi_problem_rank(p, instance / p->n_replicas, r) == p->instance_rank[instance])
      return true;
  }
  return false;
}

static inline uint64_t opi_builder_unit(const opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  return opi_step_of(&b->prover, item) * b->prover.index.n_units +
         opi_unit(&b->prover.index, a->stage, a->replica, a->microbatch, a->slice, 0);
}

/* ---- order_links.c: arguments of operations. Errors: LIMIT, more than 2^32; NOMEM ---- */

/* The slice's share of a micro-batch's tokens. */
double opi_builder_slice_share(const opi_order_builder *b, uint32_t slice);
opipe_status opi_builder_op(opi_order_builder *b, uint32_t kind, uint32_t index, uint32_t item);
opipe_status opi_builder_work(opi_order_builder *b, opi_play_work work, uint32_t item);
/* Adds a collective of a kind (GROUP_*); a stage's reductions belong to its first replica. */
opipe_status opi_builder_collective(opi_order_builder *b, uint32_t which, uint32_t stage,
                                    uint32_t replica, uint32_t slice, uint32_t *out_collective);
/* Begins a copy of the rank's own and waits for it. */
opipe_status opi_builder_join(opi_order_builder *b, uint32_t which, const opi_do *a, uint32_t item);
/* Numbers a message of the list, from its sender's end. */
opipe_status opi_builder_message(opi_order_builder *b, uint32_t item);

/* ---- order_moves.c: stashes that leave and come back ---- */

/* An OFFLOAD or a RELOAD. */
opipe_status opi_builder_move(opi_order_builder *b, uint32_t item);
/* Before a compute that is not the second of a pair: waits until stashes offloaded before the last
 * compute have left. */
opipe_status opi_builder_drain(opi_order_builder *b, uint32_t item);
/* Before a stash's reader: waits until it is back. */
opipe_status opi_builder_arrive(opi_order_builder *b, uint32_t item);

/* ---- order_ops.c ---- */

/* One action of a rank's list. */
opipe_status opi_builder_item(opi_order_builder *b, uint32_t rank, uint32_t item);

#endif /* OPI_ORDER_BUILD_H */
