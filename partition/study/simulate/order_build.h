/* SPDX-License-Identifier: Apache-2.0 */
/* An order on its way to a play; of this folder alone. */
#ifndef OPI_ORDER_BUILD_H
#define OPI_ORDER_BUILD_H

#include "partition/schedule/events.h"
#include "partition/schedule/proof.h"
#include "partition/study/simulate/order_play.h"

/* Kinds of groups of a stage. */
enum {
  GROUP_REDUCE = 0, /* gradients */
  GROUP_GATHER,     /* weights, behind a sharded step */
  GROUP_SUM_F,      /* over the tensor group */
  GROUP_SUM_B,
  GROUP_GATHER_F, /* of the tokens that each has */
  GROUP_GATHER_B,
  GROUP_SCATTER_F,
  GROUP_SCATTER_B,
  GROUP_ARRIVE, /* what came in parts */
  GROUP_RETURN, /* gradients that did */
  GROUP_OUT,    /* stashes to the host, and back */
  GROUP_IN,
  GROUPS
};

/* A stash on its way to the host, that its rank has not yet waited for. */
typedef struct opi_leaving {
  uint64_t unit;       /* opi_builder_unit */
  uint32_t collective; /* OPIPE_NONE: it has */
  uint32_t n_computes; /* of the rank before it */
} opi_leaving;

typedef struct opi_order_builder {
  const opi_problem *problem;
  const opi_order_play *how;
  opi_do_list *grouped; /* with the collectives that the play's groups ask for; NULL: it has them */
  opi_do_list *unrolled; /* NULL: the list itself is played */
  const opi_do_list *list;
  opi_prover prover; /* of which the messages are numbered */
  opi_play *play;
  opi_arena *arena;
  opi_play_op *ops;
  opi_play_work *work;
  uint32_t *collective_group;
  opi_play_group *groups;
  uint32_t *group_at; /* [((instance) * GROUPS + which) * n_slices + slice] OPIPE_NONE: none yet */
  uint32_t
      *group_lists;    /* [2 * instances] by stage the ranks of its replicas; by instance its own */
  uint32_t *n_homes;   /* [n_stages] of the first */
  uint32_t *stream_at; /* [((edge * 2 + backward) * n_slices + slice) * R * R + src * R + dst] */
  opi_play_stream *streams;
  uint32_t *message_stream, *message_at; /* [messages]; [messages of the prover]: its number */
  uint32_t *reduction; /* [steps * n_stages * 2] its collective, and that of what follows the step;
                          OPIPE_NONE: not yet numbered */
  bool *reduces;       /* [steps * instances] one that its rank's step has not waited for */
  bool *recomputes;    /* [n_stages] */
  opi_leaving
      *leaving;     /* of the rank at hand, in order; [first_leaving, n_leaving) are looked at */
  uint32_t *coming; /* [steps * units] collective of a RELOAD that nothing has waited for;
                       OPIPE_NONE: none. NULL: nothing is offloaded */
  uint32_t *update; /* [n_stages] of the rank at hand, under updates_beside: the last micro-batch's
                       sum, which nothing has waited for; OPIPE_NONE: none */
  uint32_t n_leaving, first_leaving, room_leaving;
  uint32_t n_computes; /* of the rank at hand so far; a pair is one */
  uint32_t n_ops, room_ops, n_work, room_work, n_collectives, room_collectives, n_streams;
  uint32_t room_streams, n_messages, room_messages, n_groups, room_groups;
  double n_tokens;
  opipe_error *err;
} opi_order_builder;

/* The other replica of its stage on the same rank is behind it. */
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

/* ---- order_links.c: what operations name. Errors: LIMIT, more than 2^32; NOMEM ---- */

/* Of a micro-batch's tokens. */
double opi_builder_slice_share(const opi_order_builder *b, uint32_t slice);
opipe_status opi_builder_op(opi_order_builder *b, uint32_t kind, uint32_t index, uint32_t item);
opipe_status opi_builder_work(opi_order_builder *b, opi_play_work work, uint32_t item);
/* One more collective of a kind (GROUP_*); reductions of a stage are of its first replica. */
opipe_status opi_builder_collective(opi_order_builder *b, uint32_t which, uint32_t stage,
                                    uint32_t replica, uint32_t slice, uint32_t *out_collective);
/* One of the rank's own copies alone, begun and waited for. */
opipe_status opi_builder_join(opi_order_builder *b, uint32_t which, const opi_do *a, uint32_t item);
/* Numbers a message of the list, from its sender's end. */
opipe_status opi_builder_message(opi_order_builder *b, uint32_t item);

/* ---- order_moves.c: stashes that leave and come back ---- */

/* An OFFLOAD or a RELOAD. */
opipe_status opi_builder_move(opi_order_builder *b, uint32_t item);
/* Before a compute that is no second of a pair: what was offloaded before the last one has left. */
opipe_status opi_builder_drain(opi_order_builder *b, uint32_t item);
/* Before what reads a stash: has it come back? */
opipe_status opi_builder_arrive(opi_order_builder *b, uint32_t item);

/* ---- order_ops.c ---- */

/* One action of a rank's list. */
opipe_status opi_builder_item(opi_order_builder *b, uint32_t rank, uint32_t item);

#endif /* OPI_ORDER_BUILD_H */
