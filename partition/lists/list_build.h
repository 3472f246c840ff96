/* SPDX-License-Identifier: Apache-2.0 */
/* Between list_play.c (programs, messages) and list_sums.c (what ranks sum up and wait for). */
#ifndef OPI_LIST_BUILD_H
#define OPI_LIST_BUILD_H

#include "partition/lists/lists.h"
#include "partition/simulate/play.h"

/* Groups of a mini-batch's reductions, and the collectives of each: OPIPE_NONE, there is no such
 * group; it has no number yet. */
typedef struct opi_list_sums {
  uint32_t *stage_group;  /* [whole stages] of replicas */
  uint32_t *stage_sum;    /* [batches * whole stages] */
  uint32_t *n_come;       /* [whole stages] of the rank and mini-batch at hand */
  bool *has_tie;          /* [ranks * n_ties] parameters that are summed at the update, by slots */
  uint32_t *tie_sum;      /* [batches * n_ties] */
  uint32_t *update_group; /* [ranks] opi_update_groups */
  uint32_t *barrier;      /* [batches * ranks] by the group's lowest rank */
  uint32_t *norms;        /* [batches] */
  uint32_t n_ties, first_tie, first_barrier; /* groups */
  uint32_t norms_group;
  bool alone; /* norms are summed beside what follows */
} opi_list_sums;

typedef struct opi_list_builder {
  const opi_cut_model *model;
  const opi_plan *plan; /* of the pieces */
  const opi_lists *lists;
  const opi_cut *cut;
  opi_play *play;
  opi_arena *arena;
  opi_play_op *ops;
  uint32_t *batch; /* [n_ops] mini-batch */
  opi_play_work *work;
  uint32_t *work_at; /* [stages * OPI_PROGRAMS] OPIPE_NONE: not yet made */
  opi_play_group *groups;
  uint32_t *group_lists;
  uint32_t *collective_group;
  opi_list_sums sums;
  uint32_t n_ops, room_ops, room_batch, n_work, n_groups, n_group_lists, n_collectives;
  uint32_t room_collectives, n_items, n_batches;
  bool twice, forward;
  opipe_error *err;
} opi_list_builder;

/* Of the rank at hand. item: a step of the lists. */
opipe_status opi_list_add(opi_list_builder *builder, uint32_t kind, uint32_t index, uint32_t item,
                          uint32_t batch);
/* [n] of OPIPE_NONE in `arena`; NULL: out of memory. */
uint32_t *opi_list_index(opi_arena *arena, uint64_t n);

/* list_sums.c. Makes the groups; adds what a REDUCE and an UPDATE come to. */
opipe_status opi_list_sums_make(opi_list_builder *builder, uint32_t algorithm);
opipe_status opi_list_sums_reduce(opi_list_builder *builder, uint32_t rank, const opi_step *step,
                                  uint32_t item, uint32_t batch);
opipe_status opi_list_sums_update(opi_list_builder *builder, uint32_t rank, uint32_t item,
                                  uint32_t batch);

static inline uint32_t opi_list_pieces(const opi_list_builder *builder) {
  return builder->model->piece_plan.n_pieces;
}
static inline uint32_t opi_list_whole_stages(const opi_list_builder *builder) {
  return builder->plan->n_stages / opi_list_pieces(builder);
}

#endif /* OPI_LIST_BUILD_H */
