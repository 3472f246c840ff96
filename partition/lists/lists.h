/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of every rank in one mini-batch, or in a body of requests, and the place of every
 * tensor.
 *
 *   compute records (the schedule's, proven) -> modelled times -> slots -> steps
 *
 * Memory follows lifetimes in the rank's own order of actions. An occurrence (one micro-batch of a
 * cell) holds its bytes from the program that makes it (if received: from its POST) to its last
 * reader (if sent: to the action before which it has left). Occurrences of any cells may share
 * bytes if their lifetimes do not overlap. Receives are posted as soon as the previous user of
 * their bytes is done; sends wait in the background until then, and DRAIN waits for them before any
 * of their bytes is written again.
 *
 * Modelled times only decide places in the list: a POST stands after an action that ends before the
 * sender starts to make the message, a DRAIN beside an action at a time when the message is
 * delivered. So every wait, including waits for memory, is for something earlier in modelled time,
 * and no order of arrivals can deadlock the ranks. If real times differ, ranks wait; nothing is
 * overwritten, since every predecessor stands earlier in the list or is waited for. If the
 * transport matches by order, POST and DRAIN stand at the sender's modelled end in the lists of
 * both ranks, and a send blocks its rank until it is taken.
 *
 * Double-buffered plans and streams of requests have no beginning and no end: their lists are the
 * body that repeats, times are positions in it, and slots are assigned around the circle. (A stream
 * over a transport that matches by order runs one request after the other.) A message that a
 * double-buffered body sends is received in the same body, by the clock of its records; prologue
 * and epilogue are parts of it, in the same order.
 *
 * Tensors are not copied between two stages of one rank: both cells are one place. The same holds
 * where two ranks share memory, and there a RESERVE step waits for the place. Rows that pieces of a
 * stage share are not copied either if they begin at the device's alignment; else a COPY step
 * brings them to a place of their own. */
#ifndef OPI_LISTS_H
#define OPI_LISTS_H

#include "partition/program/batch.h"
#include "partition/program/model.h"

/* One tensor of one micro-batch on its way between ranks. */
typedef struct opi_list_message {
  uint32_t route, microbatch;
  uint32_t stream;   /* index in streams */
  uint32_t sequence; /* in its stream, within the body */
  bool direct;       /* the maker writes it at the reader's place */
} opi_list_message;

/* Messages of one route between two instances that live on different ranks. */
typedef struct opi_list_stream {
  uint32_t route;
  uint32_t src_stage, dst_stage, src_replica, dst_replica, src_rank, dst_rank;
  uint32_t n_messages; /* of a body */
  uint32_t depth;      /* most receives posted at once */
} opi_list_stream;

/* A sum over the ranks of a group, once in every body. A rank comes to it with the last of its
 * steps that begin it. Sums of groups that share two ranks are met in one order on both. */
typedef struct opi_list_meeting {
  uint32_t *ranks; /* [n_ranks] rising, at least two; between stretches: by member */
  uint32_t n_ranks;
  uint32_t stage;     /* of the plan */
  const char *tensor; /* between stretches; NULL: the gradients of the stage, over its replicas */
  uint64_t n_bytes;   /* of every rank; 0: it takes no time by the plan's clock */
  /* Between stretches. In the reference's list a meeting has one SUM, behind the inputs of all
   * members, and no AWAIT. */
  const opi_group_value *values; /* [n_values] of the micro-batch's row class */
  uint32_t n_values;
  uint32_t at;    /* member 0's piece: a stage of the view */
  uint32_t place; /* odd, of the stage */
  uint32_t pass;  /* OPI_PROGRAM_* whose stretches it joins */
  uint32_t replica, microbatch;
} opi_list_meeting;

/* A collect of a meeting between stretches: sums of one type that follow each other, or one value.
 */
typedef struct opi_meeting_call {
  uint32_t kind;       /* OPI_COLLECTIVE_* */
  uint32_t n;          /* values */
  uint64_t n_bytes;    /* of the whole: of all sums, of the gathered or scattered tensor */
  uint64_t most_bytes; /* of a message around a ring */
} opi_meeting_call;
/* The call that begins with a value. */
opi_meeting_call opi_meeting_call_at(const opi_list_meeting *meeting, uint32_t value);

/* Stashes that one forward leaves for one backward, by way of the host's memory (offloads.h). */
typedef struct opi_list_move {
  uint32_t rank, stage, microbatch;
  uint32_t forward, reader; /* the plan's actions */
  uint32_t first, n;        /* in moved */
  uint64_t n_bytes;         /* of its tensors */
  uint64_t at_bytes,
      host_bytes; /* place in the rank's host memory; with the gaps between tensors */
} opi_list_move;
typedef struct opi_list_moved {
  uint32_t route;
  uint64_t offset_bytes; /* in the move's place */
} opi_list_moved;

typedef struct opi_lists {
  opi_arena arena;
  opi_step *steps;      /* opi_step.pass: OPI_PROGRAM_* */
  uint32_t *rank_first; /* [n_ranks + 1] */
  uint32_t *n_taking;   /* [n_positions] ranks that take part in a request; NULL: all take part in
                           each */
  uint32_t *request_first; /* [n_ranks * n_positions + 1] first step of each request of a rank's
                              body */
  opi_list_message *messages;
  opi_list_stream *streams;
  opi_list_meeting *meetings; /* an UPDATE awaits the gradients of its rank */
  opi_list_move *moves;       /* [n_moves] by rank, then forward */
  opi_list_moved *moved;      /* the tensors of all moves */
  uint64_t *offload_bytes;    /* [n_ranks] host memory in which they wait */
  uint32_t *replica_of;       /* [n_stages * n_microbatches] */
  uint64_t *offsets;     /* [n_cells * n_microbatches] in the boundary buffer of rank `lies_on` */
  uint32_t *lies_on;     /* the same index: the instance's rank, or the reader's */
  uint32_t *freed_after; /* the same index: the action after whose program it is dead; OPIPE_NONE:
                            it leaves the rank, or belongs to another rank or the caller */
  uint64_t *boundary_bytes, *stash_bytes; /* [n_ranks]; the buffer is their sum. Packed: the most
                                             kept at one time, and the rest */
  uint32_t n_steps, n_ranks, n_messages, n_streams, n_meetings, n_positions, n_moves;
  uint32_t n_made_in_place,
      n_copied; /* tensors of a body that travel: made where they are read, or copied */
  uint64_t copied_bytes;
} opi_lists;

/* alignment [n_ranks]. Reads the model's piece plan and cuts; times are that plan's stage_ns,
 * input_ns, weight_ns. reference: no two occurrences share memory, and the steps are one list (of
 * rank 0) that runs stage after stage: all forwards in order, then the backwards of each stage,
 * from the last, in the order of its own records. The records are checked
 * (partition/program/records.h). Errors: INVALID, records or lists that deadlock: the cycle with
 * rank, action and the awaited step. */
opipe_status opi_lists_build(const opi_cut_model *model, const uint32_t *alignment, bool reference,
                             const opipe_allocator *allocator, opi_lists **out_lists,
                             opipe_error *err);
void opi_lists_free(opi_lists *lists); /* accepts NULL */

/* ---- between order.c and lists.c ---- */

/* Modelled times of everything, in ns. */
typedef struct opi_times {
  uint64_t *start, *end;             /* [n_actions] */
  uint64_t *phase_start, *phase_end; /* [(stage * M + microbatch) * OPI_PHASES + phase] */
  uint32_t *phase_action;            /* the same index: the plan's action */
  uint32_t *replica_of;              /* [n_stages * M] */
  uint32_t *sequence; /* [n_actions] an order in which one thread could run them all, each rank's in
                         its own order; not for streams of requests */
  uint64_t *clock_start, *clock_end; /* [n_actions] ns since all ranks began the mini-batch or the
                                        body; not for streams of requests */
  uint32_t *await_at; /* [n_actions] of a record at an odd place: the rank's record in front of
                         which it waits for the sums; itself: at once. NULL: no tensor groups */
  bool periodic; /* times are positions in the own rank's list, not ns: record i of a rank with n
                    records has position i if it works for the next mini-batch, else n + i */
} opi_times;

/* Models the records' times. Allocates in `arena`. Errors: INVALID, the cycle of records that wait
 * forever. */
opipe_status opi_times_build(const opi_piece_plan *plan, const opi_cut *cut, opi_arena *arena,
                             opi_times *out_times, opipe_error *err);
/* awaits.c: fills await_at: the first record that reads a sum; at once if a sum leaves the rank. */
opipe_status opi_times_await(const opi_piece_plan *plan, const opi_cut *cut, opi_arena *arena,
                             opi_times *io_times, opipe_error *err);
/* An instance of the last stage and the instance of the first to which it gives credits: the k-th
 * micro-batch to leave at one is the k-th to enter at the other. If replicas share micro-batches,
 * each needs all of them. */
typedef struct opi_credit_pair {
  uint32_t first, last; /* stages of the pieces' plan */
  uint32_t first_replica, last_replica;
} opi_credit_pair;
static inline uint32_t opi_credit_pairs(const opi_piece_plan *plan) {
  const uint32_t n = plan->apart ? plan->whole->n_replicas : plan->n_replicas;
  return n * n * opi_plan_width(plan->whole);
}
static inline opi_credit_pair opi_credit_pair_at(const opi_piece_plan *plan, uint32_t i) {
  const uint32_t n = plan->apart ? plan->whole->n_replicas : plan->n_replicas;
  const uint32_t width = opi_plan_width(plan->whole), member = i / (n * n);
  const uint32_t first = i / n % n,
                 last = i % n; /* they enter with the first slice, leave with the last */
  if (!plan->apart)
    return (opi_credit_pair){member, plan->n_stages - width + member, first, last};
  const uint32_t each = plan->n_pieces / n, last_stage = plan->n_stages - plan->n_pieces;
  return (opi_credit_pair){first * each, last_stage + (last + 1) * each - 1, 0, 0};
}
/* Finds the forwards of a stage's replica, in its rank's order, of micro-batches that pass replica
 * `other` of stage `far`: actions into out [n_microbatches]. Returns how many. */
uint32_t opi_passes_find(const opi_piece_plan *plan, const uint32_t *replica_of, uint32_t stage,
                         uint32_t replica, uint32_t far, uint32_t other, uint32_t *out);
/* The time of a phase of a stage's program by the plan's times, in ns. 0 if the program has no node
 * of the phase, whatever time was given: then it does not run. plan: the piece plan. */
static inline double opi_phase_ns(const opi_piece_plan *plan, const opi_cut *cut, uint32_t stage,
                                  uint32_t program, uint32_t phase) {
  const double *const ns[] = {plan->times.stage_ns, plan->times.input_ns, plan->times.weight_ns};
  const bool has = (opi_program_of(cut, stage, program)->phases & 1u << phase) != 0;
  return has && ns[phase] != NULL ? ns[phase][stage] : 0;
}

/* ---- updates.c ---- */

/* Groups of ranks that wait for each other at an update, named by their lowest rank: [n_ranks] in
 * `arena`. A step that flushes is a barrier of all ranks; double-buffered ranks that step alone
 * wait for those with which they share a weight. plan: the piece plan. */
opipe_status opi_update_groups(const opi_piece_plan *plan, const opi_cut *cut, opi_arena *arena,
                               uint32_t **out_group, opipe_error *err);

/* ---- replay.c ---- */

typedef struct opi_replay_result {
  double request_ns;  /* the first request, from its start to its last result, or the first
                         mini-batch, to its update; double-buffered: the whole replay */
  double interval_ns; /* between results, or updates, in the steady state (the last half of the
                         replay) */
  double *start_ns, *end_ns; /* [the plan's actions] given: times of the first body's programs, from
                                its start; NULL: not wanted */
} opi_replay_result;

/* Replays the steps of all ranks for `n_items` bodies (double-buffered: the first is a prologue,
 * the last an epilogue): messages are matched, sends wait in the background, receives are posted at
 * their steps. io_result: with the pieces' times and the link's; NULL: untimed. Errors: INVALID, a
 * deadlock as its cycle, or an order of messages on which two ranks disagree. */
opipe_status opi_lists_replay(const opi_piece_plan *plan, const opi_lists *lists,
                              const opi_cut *cut, uint32_t n_items,
                              const opipe_allocator *allocator, opi_replay_result *io_result,
                              opipe_error *err);
/* The same, untimed, for as many items as a proof needs. */
opipe_status opi_lists_prove(const opi_piece_plan *plan, const opi_lists *lists, const opi_cut *cut,
                             const opipe_allocator *allocator, opipe_error *err);

#endif /* OPI_LISTS_H */
