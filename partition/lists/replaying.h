/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a replay; private to replay.c and replay_report.c. */
#ifndef OPI_REPLAYING_H
#define OPI_REPLAYING_H

#include "partition/lists/meetings.h"
#include "partition/lists/offloads.h"
#include "partition/plan/lanes.h"
#include "partition/plan/rules.h"

/* Times at which a message's ends, and the message itself, were there, and the batches of its ends
 * on lanes had ended; NEVER before. */
enum { POSTED, SENT, ARRIVED, RECEIVED, LEFT, ENDS, NOTHING = ENDS };
typedef struct opi_ends {
  double at[ENDS];
} opi_ends;

/* Operations in progress at the endpoint of a rank without a lane, under BLOCKING and GROUPED. */
typedef struct opi_under_way {
  const opi_ends *of[OPIPE_BATCH_MOST];
  uint32_t n;
  uint32_t batch_end; /* the current batch ends before this step */
  bool begun;         /* the batch has an operation in progress */
  bool is_batch;      /* its operations complete together */
  bool open;          /* receives that join the next operation: no end has asked for them yet */
} opi_under_way;

typedef struct opi_replay {
  const opi_piece_plan *plan;
  const opi_lists *lists;
  const opi_cut *cut;
  opi_ends *ends;        /* [(n_items + 1) * n_messages] by item and message */
  uint32_t *item, *step; /* [n_ranks] current item and step of each rank */
  uint32_t *position;    /* [n_ranks] request within the item */
  opi_clock clock;       /* events: ends and arrivals of messages, groups at their updates, sums */
  double *now;           /* [n_ranks] the clock's */
  double *link_free;     /* [n_streams] when the last message has left the sender */
  opi_under_way *under_way; /* [n_ranks] */
  double *finish;           /* [n_items * n_positions] when the last rank finished a request or,
                               training, an item */
  double *barrier;       /* [n_items * n_ranks] when the last rank of a group reached the update */
  uint32_t *n_updates;   /* [n_items * n_ranks] ranks of a group that reached the update */
  uint32_t *group;       /* [n_ranks] ranks that wait for each other at the update, named by the
                            lowest */
  uint32_t *group_size;  /* [n_ranks] */
  bool *updates;         /* [n_ranks] it has updated in its item */
  bool *comes;           /* [n_ranks] its step has come to a sum, and waits there */
  opi_batch_lanes lanes; /* GROUPED, timed; operation: item * n_steps + step */
  opi_meetings meetings; /* sums over ranks */
  opi_moves_clock moves; /* stashes on their way to the host and back: each rank's own affair */
  uint32_t n_items, rule;
  bool twice; /* weights in two versions */
  bool timed;
  bool meets;     /* rules BLOCKING, GROUPED */
  bool one_queue; /* sums are in it */
  opi_replay_result *result;
  opipe_error *err;
} opi_replay;

static inline bool opi_step_is_end(const opi_step *step) {
  return step->kind == OPI_ACT_POST || step->kind == OPI_ACT_SEND;
}

static inline bool opi_step_is_sum(const opi_step *step) {
  return step->kind == OPI_ACT_REDUCE || step->kind == OPI_ACT_SUM;
}

/* Whether the step runs in this item of a double-buffered run: prologue, body or epilogue. */
static inline bool opi_replay_takes_part(const opi_replay *p, uint32_t item, const opi_step *step) {
  if (!p->twice)
    return true;
  if (item == 0)
    return step->next == 1;
  return item + 1 < p->n_items || step->next == 0;
}

/* The mini-batch, or body, to which a step's sums belong: counted from the first. */
static inline uint32_t opi_replay_batch_of(const opi_replay *p, uint32_t rank,
                                           const opi_step *step) {
  return p->twice ? p->item[rank] + step->next - 1 : p->item[rank];
}

/* NULL: the message is of before the first item or, double-buffered, of a mini-batch after the
 * last. */
static inline opi_ends *opi_replay_ends_of(const opi_replay *p, uint32_t item,
                                           const opi_step *step) {
  const int64_t own = p->twice ? (int64_t)item + step->next - 1 : (int64_t)item;
  const int64_t batch = own + step->lap;
  if (batch < 0 || (p->twice && batch + 1 >= (int64_t)p->n_items))
    return NULL;
  return &p->ends[(size_t)batch * p->lists->n_messages + step->route];
}

/* ---- replay_report.c ---- */

/* OPIPE_OK, or INVALID with the cycle in which ranks wait for each other. */
opipe_status opi_replay_stuck(const opi_replay *replay);
/* Both ends of a message must be the same operation between the two ranks (EDGE, PAIR). Errors:
 * INVALID; NOMEM. */
opipe_status opi_replay_check_order(const opi_replay *replay, opi_arena *scratch);

#endif /* OPI_REPLAYING_H */
