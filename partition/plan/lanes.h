/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes on the clock: under GROUPED, a rank of an asynchronous device comes to a batch of messages
 * and goes on; a queue beside the device's, its lane, does the batches one after the other.
 *
 *   rank   ── compute ── batch ── compute ── batch ── compute ── reader of a message
 *                         │ issue              │                   │ waits for the batch's end
 *   lane   ───────────────[ begin ... end ]────[ begin ... end ]───┘
 *
 * A batch begins once the rank has come to it and the one before has ended; it ends when all its
 * messages have arrived, for which the lanes of its peers must have come to them, too. Lanes are
 * actors of the user's clock, behind its ranks: actor n_ranks + r is the lane of rank r. The user
 * numbers operations, those of a batch one after the other, and says what they do. */
#ifndef OPI_PLAN_LANES_H
#define OPI_PLAN_LANES_H

#include "partition/plan/clock.h"
#include "partition/plan/decision.h"

/* Has the rank a lane? Its device is asynchronous, and the transport queues batches. */
bool opi_rank_has_lane(const opi_decision *plan, uint32_t rank);

typedef struct opi_batch_lane_rules {
  /* Operation `op` of the rank begins. */
  void (*begin)(void *ctx, uint32_t rank, uint64_t op, double now);
  /* When it has arrived. Not known: OPI_CLOCK_STANDS, after opi_clock_wait of `actor`. */
  double (*arrival)(void *ctx, uint32_t actor, uint32_t rank, uint64_t op);
  /* Its batch has ended. */
  void (*end)(void *ctx, uint32_t rank, uint64_t op, double now);
  void *ctx;
} opi_batch_lane_rules;

/* A batch that its rank has come to at `at`. */
typedef struct opi_lane_batch {
  uint64_t first; /* operation */
  uint32_t n;
  double at;
} opi_lane_batch;

typedef struct opi_batch_lane {
  opi_lane_batch *list; /* [room] of which [first, n) have not ended */
  uint32_t first, n, room;
  uint32_t phase; /* of the first */
} opi_batch_lane;

typedef struct opi_batch_lanes {
  opi_batch_lane_rules rules;
  opi_clock *clock;
  opi_arena *arena;
  uint64_t first_event;
  uint32_t n_ranks;
  opi_batch_lane *of; /* [n_ranks]; NULL: no rank has one */
  bool *has;          /* [n_ranks] */
  bool failed;        /* out of memory */
} opi_batch_lanes;

/* has [n_ranks] is copied; NULL: no rank has a lane. Events of the clock from first_event on are
 * the lanes': n_ranks. All in `arena`. Errors: NOMEM. */
opipe_status opi_batch_lanes_open(uint32_t n_ranks, const bool *has,
                                  const opi_batch_lane_rules *rules, opi_clock *clock,
                                  uint64_t first_event, opi_arena *arena,
                                  opi_batch_lanes *out_lanes, opipe_error *err);
/* Actors of the clock that lanes take, behind the ranks. */
static inline uint32_t opi_batch_lanes_actors(uint32_t n_ranks, const bool *has) {
  return has == NULL ? 0 : n_ranks;
}
static inline bool opi_batch_lanes_has(const opi_batch_lanes *lanes, uint32_t rank) {
  return lanes->of != NULL && lanes->has[rank];
}
/* The rank, which has a lane, comes to the batch of operations first to first + n - 1. */
void opi_batch_lanes_issue(opi_batch_lanes *lanes, uint32_t rank, uint64_t first, uint32_t n,
                           double now);
/* The clock's `act` of an actor from n_ranks on. */
double opi_batch_lanes_act(opi_batch_lanes *lanes, uint32_t actor, double now);

#endif /* OPI_PLAN_LANES_H */
