/* SPDX-License-Identifier: Apache-2.0 */
/* Stashes in the host's memory, in the lists: when they leave and return, where they wait, and what
 * that takes by the clock.
 *
 *   rank:   F ─── next ─── ... ─── one before ─── B
 *           OFFLOAD ► LEAVE        RELOAD ► RETURN          on a queue of its own each way
 *
 * A *move* is the tensors that one forward leaves for one backward. They leave beside the compute
 * after the forward, which waits for them at its end, and return beside the compute before the
 * backward. Between these must be one compute at least, in which their memory is free: else the
 * tensors stay. A list that repeats has the same at its ends, but nothing leaves or returns across
 * them: such a copy has no compute beside it. */
#ifndef OPI_LISTS_OFFLOADS_H
#define OPI_LISTS_OFFLOADS_H

#include "partition/lists/listing.h"

/* Between which actions of its rank a tensor is away. */
typedef struct opi_away {
  uint32_t forward, reader; /* actions */
  uint32_t leaves;          /* action after whose program it has left */
  uint32_t returns;         /* action before whose program it begins to return */
  uint64_t from, until;     /* modelled, of the forward and the reader (opi_times.start) */
} opi_away;

/* The cell, which an offload's route feeds, of a micro-batch. False: it stays in place. */
bool opi_away_find(const opi_slots *slots, uint32_t cell, uint32_t microbatch, opi_away *out);
/* Modelled time until which the first cell holds its bytes, and from which the second does. */
uint64_t opi_away_left(const opi_slots *slots, const opi_away *away);
uint64_t opi_away_returns(const opi_slots *slots, const opi_away *away);

/* Fills the lists' moves, their places in the host's memory, and the listing's keys. */
opipe_status opi_listing_moves(opi_listing *listing);

/* -- the clock -- */

typedef struct opi_moves_clock {
  const opi_piece_plan *plan;
  const opi_lists *lists;
  double *out_free, *in_free; /* [n_ranks] when the queue has done all that it was given */
  double *left, *returned;    /* [n_moves] when the last of each was done */
} opi_moves_clock;

opipe_status opi_moves_clock_open(const opi_piece_plan *plan, const opi_lists *lists,
                                  opi_arena *arena, opi_moves_clock *out, opipe_error *err);
static inline bool opi_step_moves(const opi_step *step) {
  return step->kind >= OPI_ACT_OFFLOAD && step->kind <= OPI_ACT_RETURN;
}
/* The rank is at the step at *io_now; timed: copies take time. */
void opi_moves_advance(opi_moves_clock *clock, uint32_t rank, const opi_step *step, bool timed,
                       double *io_now);

#endif /* OPI_LISTS_OFFLOADS_H */
