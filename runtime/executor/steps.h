/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter's parts; private to runtime/executor. */
#ifndef OPI_STEPS_H
#define OPI_STEPS_H

#include "runtime/executor/executor.h"

/* How a session's ranks work: on requests or on mini-batches. The engine has one from open on. */
typedef struct opi_runner {
  uint32_t n_items; /* of the ring, for each request in flight and for one more */
  /* Runs the rank's list of its request. OPIPE_PENDING: blocked. */
  opipe_status (*run)(opi_rank *rank, opipe_error *err);
  /* Run a step of that list. OPIPE_PENDING: try again. */
  opipe_status (*compute)(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err);
  opipe_status (*store)(opi_rank *rank, const opi_step *step, opipe_error *err);
  /* Runs all lists of a request in this thread. */
  opipe_status (*reference)(opi_setup *setup, opi_request *request, opipe_error *err);
} opi_runner;
extern const opi_runner opi_request_runner; /* inference.c */
extern const opi_runner opi_step_runner;    /* training.c */

static inline opi_cursor *opi_cursor_of(const opi_rank *rank) {
  return rank->worker->cursor;
}
/* The shape that the rank works with. */
static inline opi_compiled *opi_compiled_at(const opi_rank *rank) {
  return opi_cursor_of(rank)->item.shape;
}
/* The mini-batch that a step of the rank works for. */
static inline opi_request *opi_step_request(const opi_rank *rank, const opi_step *step) {
  const opi_item *item = &opi_cursor_of(rank)->item;
  return step->next != 0 ? item->next : item->current;
}
static inline opi_engine *opi_engine_of(const opi_rank *rank) {
  return rank->setup->engine;
}
static inline opi_weights *opi_weights_of(const opi_rank *rank) {
  return rank->setup->shapes->weights;
}

/* -- interpret.c -- */
/* Makes progress with the norms of the rank's last step, and leaves the ticket that waits for them.
 * OPIPE_PENDING: they are not there yet. */
opipe_status opi_rank_settle(opi_rank *rank, opipe_error *err);
/* Tell the watchdog that the rank's step blocks, or moves again. */
void opi_rank_blocked(opi_rank *rank, const opi_step *step);
void opi_rank_unblocked(opi_rank *rank, const opi_step *step);
static inline void opi_rank_moves(opi_rank *rank, const opi_step *step) {
  opi_count_on(&rank->worker->n_moves);
  rank->worker->fence_ns = 0;
  if (rank->worker->blocked_since_ns != 0)
    opi_rank_unblocked(rank, step);
}
/* The rank waits for a host's fence: it looks again soon, and the watchdog does not count the time.
 * Returns OPIPE_PENDING. */
static inline opipe_status opi_rank_at_fence(opi_rank *rank) {
  rank->worker->polls = rank->worker->at_fence = true;
  return OPIPE_PENDING;
}
/* Exchanges letters with ranks of other sessions. */
static inline opipe_status opi_peers_move(opi_rank *rank, opipe_error *err) {
  const opi_elsewhere *there = opi_engine_of(rank)->elsewhere;
  return there == NULL ? OPIPE_OK : there->exchange(there->ctx, rank, err);
}

/* -- loop.c -- */
void *opi_rank_thread(void *arg);

/* -- watch.c -- */
/* Notes the rank's activity for the watchdog. */
void opi_rank_note(opi_rank *rank, uint32_t doing, const opi_step *step, uint64_t since_ns);

/* -- list.c -- */
/* Runs the rank's list of its request; OPIPE_PENDING: blocked. */
opipe_status opi_list_run(opi_rank *rank, opipe_error *err);
/* Tries the sends that wait, when there is nothing to run. OPIPE_PENDING: some still wait. */
opipe_status opi_list_idle(opi_rank *rank, opipe_error *err);
/* Does the step belong to the rank's item? */
bool opi_step_takes_part(const opi_compiled *t, const opi_cursor *cursor, const opi_step *step);

/* Tries the steps of the rank's item in turn; OPIPE_PENDING: one is blocked. */
opipe_status opi_list_walk(opi_rank *rank, opipe_error *err);
opipe_status opi_step_compute(opi_rank *rank, const opi_step *step, uint32_t index,
                              opipe_error *err);

/* -- programs.c -- */
/* Writes a program's scalars STEP (`number`), SAMPLE (its first row) and TOKEN (its first token).
 */
void opi_program_place(opi_rank *rank, const opi_step *step, uint64_t number);
opipe_status opi_step_copy(opi_rank *rank, const opi_step *step, opipe_error *err);

/* -- training.c -- */
/* Makes progress with the sums over replicas that have begun, and notes when each is done. */
opipe_status opi_sums_carry_on(opi_rank *rank, opipe_error *err);
static inline opipe_status opi_sums_move(opi_rank *rank, opipe_error *err) {
  const opi_cursor *cursor = opi_cursor_of(rank);
  return cursor->n_reducing == 0 && !cursor->passing ? OPIPE_OK : opi_sums_carry_on(rank, err);
}
/* Under strict rules nothing that the list puts behind a sum may be issued before it starts. True:
 * one has begun and did not start yet. */
bool opi_sums_start(const opi_rank *rank);
opipe_status opi_step_reduce(opi_rank *rank, const opi_step *step, uint32_t index,
                             opipe_error *err);
opipe_status opi_step_update(opi_rank *rank, uint32_t index, opipe_error *err);

/* -- meet.c: sums over tensor groups -- */
static inline opi_comings *opi_comings_of(const opi_rank *rank) {
  return &opi_compiled_at(rank)->seats[rank->index].comings;
}
/* Makes progress with the sums that the rank has come to. */
opipe_status opi_meets_carry_on(opi_rank *rank, opipe_error *err);
static inline opipe_status opi_meets_move(opi_rank *rank, opipe_error *err) {
  return opi_comings_of(rank)->n == 0 ? OPIPE_OK : opi_meets_carry_on(rank, err);
}
opipe_status opi_step_sum(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err);
opipe_status opi_step_await(opi_rank *rank, const opi_step *step, opipe_error *err);
/* Has the rank come to a sum over a tensor group that has not started? */
bool opi_meets_start(const opi_rank *rank);
/* Under GROUPED a rank's batches and sums of all groups start in the order of its list. True: one
 * has been reached and did not start yet. */
static inline bool opi_queue_starts(const opi_rank *rank) {
  return rank->setup->plan->decided.link.rule == OPIPE_RULE_GROUPED &&
         (opi_sums_start(rank) || opi_meets_start(rank));
}
/* The member that has not come to the first sum that the rank awaits; OPIPE_NONE: all have. */
uint32_t opi_meet_awaits(const opi_rank *rank);

/* -- offload.c: the four steps of a move -- */
opipe_status opi_step_move(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err);

/* -- plain_sum.c: does a meeting of the lists for all members, which have come -- */
opipe_status opi_plain_sum(opi_compiled *shape, uint32_t meeting, opipe_error *err);

/* -- reference.c: opi_runner.reference -- */
opipe_status opi_reference_request(opi_setup *setup, opi_request *request, opipe_error *err);
opipe_status opi_reference_step(opi_setup *setup, opi_request *request, opipe_error *err);

/* -- feed.c -- */
opipe_status opi_step_load(opi_rank *rank, const opi_step *step, opipe_error *err);
/* opi_runner.store: outputs of a request; losses of a mini-batch, and an evaluation's logits. */
opipe_status opi_store_results(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_store_losses(opi_rank *rank, const opi_step *step, opipe_error *err);
/* Stores outputs that are copies of inputs, or constants. */
opipe_status opi_store_plain(opi_rank *rank, opi_request *request, opipe_error *err);
/* Is the rank's part of the mini-batch's loss finite? On its thread, before its update. */
bool opi_train_is_finite(const opi_compiled *shape, const opi_request *request, uint32_t rank);
/* Copies between regions of two ranks, on the calling thread. */
opipe_status opi_move_region(opi_rank *from, const opipe_region *src, opi_rank *to,
                             const opipe_region *dst, opipe_error *err);

/* -- messages.c: the steps of messages; OPIPE_PENDING: not yet -- */
opipe_status opi_message_post(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_receive(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_reserve(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_send(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_drain(opi_rank *rank, const opi_step *step, opipe_error *err);
/* Runs steps [n] as a batch. OPIPE_PENDING: none has begun. */
opipe_status opi_messages_batch(opi_rank *rank, const opi_step *steps, uint32_t n,
                                opipe_error *err);
/* Tries the sends that wait. */
opipe_status opi_messages_try(opi_rank *rank, opipe_error *err);
static inline opipe_status opi_messages_flush(opi_rank *rank, opipe_error *err) {
  return opi_cursor_of(rank)->busy == NULL ? OPIPE_OK : opi_messages_try(rank, err);
}

#endif /* OPI_STEPS_H */
