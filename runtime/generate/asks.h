/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of turns. Inside turns.c and answer.c. */
#ifndef OPI_GENERATE_ASKS_H
#define OPI_GENERATE_ASKS_H

#include "runtime/generate/turns.h"

/* The turn of one sequence, and copies of the lists of its sampling. */
typedef struct opi_turn {
  opi_sampling sampling;
  uint32_t n_prompt, branch;
  uint32_t family;    /* whose forks are numbered together */
  uint32_t n_answers; /* sequences still to be opened before the first token */
  uint32_t n_held;    /* sampled and not shown yet */
  uint32_t n_told;    /* while on_logits or on_token is told: the ids that a fork gets; else 0 */
  uint32_t told_at;   /* n_told, by on_token: which of `held` */
  bool shows;         /* n_told: by on_token */
  opi_draft_record record;
  opi_sampled held[OPI_SAMPLING_STOP_IDS]; /* a ring would save little: few are held, seldom */
  opi_bias biases[OPI_SAMPLING_BIASES];
  opi_stop stops[OPI_SAMPLING_STOPS];
  uint32_t stop_ids[OPI_SAMPLING_STOPS][OPI_SAMPLING_STOP_IDS];
} opi_turn;

typedef struct opi_turn_family {
  uint32_t refs, next_branch;
} opi_turn_family;

struct opi_turns {
  const opipe_allocator *allocator;
  opi_turns_params params;
  uint64_t n_bytes;
  opi_batch *batch;
  opi_sampler *sampler;
  opi_turns_counts counts;
  uint32_t n_kept;           /* sequences that are kept free for answers */
  opi_turn *turns;           /* [n_sequences] */
  opi_turn_family *families; /* [n_sequences] */
  double *row;               /* [n_vocab]: logits that several answers are sampled from */
  opi_sampled sampled[OPI_DRAFT_MOST + 1];
};

/* Opens `sequence`'s twin with the next branch number, in the same state. */
opipe_status opi_turn_twin(opi_turns *turns, uint32_t sequence, uint32_t *out_sequence,
                           opipe_error *err);
/* Shows the oldest tokens of ids [n_ids] that are held, until n_left are. */
void opi_turn_show(opi_turns *turns, uint32_t sequence, uint32_t n_ids, uint32_t n_left);
/* The turn is over in the scheduler's eyes: shows what is held, and tells the host. */
void opi_turn_tell_end(opi_turns *turns, uint32_t sequence, uint32_t reason,
                       const opipe_error *why);

#endif /* OPI_GENERATE_ASKS_H */
