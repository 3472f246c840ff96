/* SPDX-License-Identifier: Apache-2.0 */
/* What every rank does in one mini-batch, or in a body of requests, step by step, and where every
 * tensor lies.
 *
 *   compute records (the schedule's, proven) -> modelled times -> slots -> steps
 *
 * Bytes are given by lifetimes in the rank's own order of actions: an occurrence of a cell (one
 * micro-batch) has them from the program that makes it (a received one: from its POST) to its last
 * reader (or to the action before which it has left); what does not meet there may share bytes, of
 * whatever cells. Receives are posted as soon as what had their bytes is done with, sends wait in
 * the background until then, and are waited for (DRAIN) before any of their bytes is filled again.
 * The modelled times only say where: a POST stands behind an action that ends before the sender of
 * its message starts to make it, a DRAIN behind or before an action at a time at which the message
 * is delivered. So every wait, those for memory included, is for something earlier in modelled
 * time, and no order of arrivals can stop the ranks for ever; where real times differ ranks wait,
 * and nothing is overwritten, since what must come first stands first in the list or is waited for.
 * Where the transport matches by order, both stand where the sender ends in modelled time instead,
 * in the lists of both ranks, and a send holds its rank up until it is taken. Double-buffered plans
 * and streams of requests have no beginning and no end: their lists are the body that repeats,
 * times are positions in it, and slots are given round the circle. (A stream over a transport that
 * matches by order is one request after the other.) What a double-buffered body sends is then
 * received in the same body, by the clock of its records; prologue and epilogue are parts of it, in
 * the same order. A tensor between two stages of one rank is not copied: both cells are one place;
 * so they are where two ranks share memory, and a RESERVE step waits for
 * the place. Nor are the rows of one that pieces of a stage share, as long as they begin where the
 * device's alignment lets them; else a COPY step brings them to a place of their own.
 */
#ifndef OPI_LISTS_H
#define OPI_LISTS_H

#include "partition/program/batch.h"
#include "partition/program/model.h"

/* One tensor of one micro-batch on its way between ranks. */
typedef struct opi_list_message {
  uint32_t route, microbatch;
  uint32_t stream;   /* index in streams */
  uint32_t sequence; /* in its stream, within the body */
  bool direct;       /* its maker writes it where it is read */
} opi_list_message;

/* Messages of one route between two instances that live on different ranks. */
typedef struct opi_list_stream {
  uint32_t route;
  uint32_t src_stage, dst_stage, src_replica, dst_replica, src_rank, dst_rank;
  uint32_t n_messages; /* of a body */
  uint32_t depth;      /* receives that may stand posted at once */
} opi_list_stream;

typedef struct opi_lists {
  opi_arena arena;
  opi_step *steps;      /* opi_step.pass: OPI_PROGRAM_* */
  uint32_t *rank_first; /* [n_ranks + 1] */
  uint32_t *n_taking;   /* [n_positions] ranks that have a part in a request; NULL: all, in each */
  uint32_t *request_first; /* [n_ranks * n_positions + 1] where each request of a rank's body begins
                            */
  opi_list_message *messages;
  opi_list_stream *streams;
  uint32_t *replica_of;  /* [n_stages * n_microbatches] */
  uint64_t *offsets;     /* [n_cells * n_microbatches] in the boundary buffer of rank `lies_on` */
  uint32_t *lies_on;     /* the same: the instance's, or that which reads it */
  uint32_t *freed_after; /* the same: action behind whose program nobody needs it; OPIPE_NONE: it
                            leaves the rank, or is another's, or the caller's */
  uint64_t *boundary_bytes, *stash_bytes; /* [n_ranks]; the buffer is their sum. Packed: the most
                                             that is kept at one time, and the rest */
  uint32_t n_steps, n_ranks, n_messages, n_streams, n_positions;
  uint32_t n_made_in_place,
      n_copied; /* tensors of a body that travel: where they are read, or not */
  uint64_t copied_bytes;
} opi_lists;

/* alignment [n_ranks]. Of the model are read its piece plan and cuts; times are that plan's
 * stage_ns, input_ns, weight_ns. reference: no two occurrences share memory, and the steps are one
 * list (of rank 0) that runs stage after stage: all forwards in order, then the backwards of each
 * stage, from the last, in the order of its own records. The records are checked
 * (partition/program/records.h). Errors: INVALID, records, or the lists made of them, that
 * deadlock: the cycle with rank, action and what it waits for. */
opipe_status opi_lists_build(const opi_cut_model *model, const uint32_t *alignment, bool reference,
                             const opipe_allocator *allocator, opi_lists **out_lists,
                             opipe_error *err);
void opi_lists_free(opi_lists *lists); /* accepts NULL */

/* ---- between order.c and lists.c ---- */

/* When everything happens, in modelled ns. */
typedef struct opi_times {
  uint64_t *start, *end;             /* [n_actions] */
  uint64_t *phase_start, *phase_end; /* [(stage * M + microbatch) * OPI_PHASES + phase] */
  uint32_t *phase_action;            /* the same index: the plan's action */
  uint32_t *replica_of;              /* [n_stages * M] */
  uint32_t *sequence; /* [n_actions] in an order in which one thread could run them all, each rank's
                         in its own; not of streams of requests */
  uint64_t *clock_start, *clock_end; /* [n_actions] ns, from when all ranks begin the mini-batch, or
                                        the body; not of streams of requests */
  bool periodic; /* positions in the own rank's list instead of ns: record i of a rank with n
                    records lies at i when it works for the next mini-batch, else at n + i */
} opi_times;

/* Models the records' times. In `arena`. Errors: INVALID, the cycle of those that wait for ever. */
opipe_status opi_times_build(const opi_piece_plan *pieces, const opi_cut *cut, opi_arena *arena,
                             opi_times *out_times, opipe_error *err);
/* Which instance of the last stage gives credits to which of the first, that is the one there where
 * what enters as the k-th in the one leaves as the k-th in the other. Replicas that cut
 * micro-batches are all needed for each. */
typedef struct opi_credit_pair {
  uint32_t first, last; /* stages of the pieces' plan */
  uint32_t first_replica, last_replica;
} opi_credit_pair;
static inline uint32_t opi_credit_pairs(const opi_plan *plan) {
  const uint32_t n = plan->pieces_apart ? plan->n_pieces : plan->n_replicas;
  return n * n;
}
static inline opi_credit_pair opi_credit_pair_at(const opi_plan *plan, uint32_t i) {
  const uint32_t n = plan->pieces_apart ? plan->n_pieces : plan->n_replicas, last = plan->n_stages;
  return plan->pieces_apart ? (opi_credit_pair){i / n, last - n + i % n, 0, 0}
                            : (opi_credit_pair){0, last - 1, i / n, i % n};
}
/* The forwards of a stage's replica, in the order of its rank, of micro-batches that pass replica
 * `other` of stage `far`: actions. Returns how many; out [n_microbatches]. */
uint32_t opi_passes_find(const opi_plan *plan, const uint32_t *replica_of, uint32_t stage,
                         uint32_t replica, uint32_t far, uint32_t other, uint32_t *out);
/* What a phase of a stage's program takes by the plan's times, in ns: none where the program has no
 * node of it, whatever times were given of the stage: then nobody runs it. plan: of the pieces. */
static inline double opi_phase_ns(const opi_plan *plan, const opi_cut *cut, uint32_t stage,
                                  uint32_t program, uint32_t phase) {
  const double *const ns[] = {plan->stage_ns, plan->input_ns, plan->weight_ns};
  const bool has = (opi_program_of(cut, stage, program)->phases & 1u << phase) != 0;
  return has && ns[phase] != NULL ? ns[phase][stage] : 0;
}

/* ---- updates.c ---- */

/* Who waits for whom at an update: by its lowest rank, [n_ranks] in `arena`. A step that flushes is
 * a barrier of all; double-buffered ranks that step alone wait for those with which they share a
 * weight. plan: of the pieces. */
opipe_status opi_update_groups(const opi_plan *plan, const opi_cut *cut, opi_arena *arena,
                               uint32_t **out_group, opipe_error *err);

/* ---- replay.c ---- */

typedef struct opi_replay_result {
  double request_ns;  /* the first request, from its start to its last result, or mini-batch, to its
                         update; double-buffered: all that is replayed */
  double interval_ns; /* between results, or updates, in the steady state (the last half of what is
                         replayed) */
  double *start_ns, *end_ns; /* [plan's actions] given, of the first body's programs, from when it
                                begins; NULL: not wanted */
} opi_replay_result;

/* Replays the steps of all ranks for `n_items` bodies (double-buffered: the first is a prologue,
 * the last an epilogue): messages are matched, sends wait aside, receives are posted where the
 * lists say. io_result: with the plan's stage_ns and what plan->link says of messages; NULL:
 * untimed. Errors: INVALID, what a stopped rank waits for, as a cycle, or an order of messages that
 * two ranks do not share. */
opipe_status opi_lists_replay(const opi_piece_plan *pieces, const opi_lists *lists,
                              const opi_cut *cut, uint32_t n_items,
                              const opipe_allocator *allocator, opi_replay_result *io_result,
                              opipe_error *err);
/* The same, untimed, for as many as it takes to know. */
opipe_status opi_lists_prove(const opi_piece_plan *pieces, const opi_lists *lists,
                             const opi_cut *cut, const opipe_allocator *allocator,
                             opipe_error *err);

#endif /* OPI_LISTS_H */
