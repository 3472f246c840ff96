/* SPDX-License-Identifier: Apache-2.0 */
/* State of one proof; shared by match.c (pairs of messages) and proof.c (execution). */
#ifndef OPI_PROOF_H
#define OPI_PROOF_H

#include "partition/schedule/passes.h"

typedef struct opi_prover {
  const opi_problem *problem;
  const opi_do_list *list; /* unrolled if weights are double-buffered */
  const uint32_t *step;    /* [n_items] mini-batch; NULL: all belong to the first */
  uint32_t n_steps, rule;
  opi_index index;
  opi_arena *arena;
  opipe_error *err;
  /* messages: one for each (mini-batch, edge, direction, micro-batch, slice, part, both replicas)
   */
  uint64_t n_messages;
  uint32_t *send_item, *recv_item; /* [n_messages] OPIPE_NONE: none */
  uint32_t *send_before; /* [n_messages] the message of the same stream send_slots earlier in the
                            sender's order; OPIPE_NONE: none. NULL without slots */
  uint32_t *recv_before; /* the same with recv_slots, in the receiver's order */
} opi_prover;

static inline uint32_t opi_step_of(const opi_prover *v, uint32_t item) {
  return v->step == NULL ? 0 : v->step[item];
}
uint32_t opi_rank_of_item(const opi_do_list *list, uint32_t item);

/* Index of the message that replica `from` of the sending stage sends to `to`. F: part 0. */
uint64_t opi_message_index(const opi_prover *v, uint32_t step, uint32_t edge, bool forward,
                           uint32_t microbatch, uint32_t slice, uint32_t part, uint32_t src_replica,
                           uint32_t dst_replica);

/* The message of which the item, SEND_x or RECV_x (in range), is an end. */
uint64_t opi_message_of(const opi_prover *v, uint32_t item);

/* Checks that every needed message appears once at both ends, at home; the order of matching under
 * STREAM, EDGE and PAIR; slots. */
opipe_status opi_match_messages(opi_prover *v);

/* proof_stash.c: peaks, caps. Errors: LIMIT. */
opipe_status opi_prover_stashes(const opi_prover *v, opi_proof *out);

/* proof_once.c: checks that STEP, FREE, sums and gathers appear at most once, and on all ranks or
 * none. The list must be complete and not unrolled. */
opipe_status opi_prove_once(const opi_problem *problem, const opi_do_list *list,
                            const opipe_allocator *allocator, opipe_error *err);

/* "rank 1, step 5: 2F0" */
opi_do_place opi_prover_place(const opi_prover *v, uint32_t item);

#endif /* OPI_PROOF_H */
