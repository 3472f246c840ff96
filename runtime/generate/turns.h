/* SPDX-License-Identifier: Apache-2.0 */
/* Turns: requests of sequences, and their answers as passes end. The scheduler's rows, the
 * sampler and drafts meet here; whoever computes passes only hands logits over. Inside
 * runtime/generate.
 *
 *   submit ─► opi_turns_next ─► (the caller computes the pass) ─► opi_turns_done ─► events
 *
 * A turn's tokens are those of its sequence alone: of ids, sampling, branch and the host's choice.
 * Nothing is allocated after opi_turns_create. One thread at a time. Events come from inside
 * opi_turns_done and opi_turns_cancel. While one is told, all functions may be called, also by
 * another thread if the event lets it, but opi_turns_done, _cancel and _release, and inside
 * opi_turns_done opi_turns_next. */
#ifndef OPI_GENERATE_TURNS_H
#define OPI_GENERATE_TURNS_H

#include "runtime/generate/batch.h"
#include "runtime/generate/drafts.h"

enum { OPI_TURN_FAILED = OPI_TURN_CONTEXT + 1, OPI_TURN_CANCELLED };

/* Any of them may be NULL. */
typedef struct opi_turn_events {
  void *ctx;
  /* May change the row of logits, or set *io_id (-1) to the id to take; an error ends the turn. */
  opipe_status (*on_logits)(void *ctx, uint32_t sequence, uint32_t position, void *row,
                            int64_t *io_id, opipe_error *err);
  /* In order of positions; ids that may become a stop are held back, those of a stop never come. */
  void (*on_token)(void *ctx, uint32_t sequence, uint32_t position, const opi_sampled *token);
  /* reason: OPI_TURN_*; why: of OPI_TURN_FAILED. The sequence is idle. */
  void (*on_end)(void *ctx, uint32_t sequence, uint32_t reason, const opipe_error *why);
  /* One more of sampling.n answers: `other` has the ids of `sequence` before its first token. */
  void (*on_answer)(void *ctx, uint32_t sequence, uint32_t other);
} opi_turn_events;

typedef struct opi_turns_params {
  opi_batch_params batch; /* draft: at most OPI_DRAFT_MOST */
  opi_ngrams ngrams;      /* most: at most batch.draft; 0: no drafts but the host's */
  uint32_t n_vocab;       /* columns of logits */
  uint32_t n_known;       /* ids that the model reads are below it */
  opi_turn_events events;
} opi_turns_params;

typedef struct opi_turns opi_turns;

/* Bytes of host memory. Errors: INVALID, LIMIT. */
opipe_status opi_turns_bytes(const opi_turns_params *params, uint64_t *out_bytes, opipe_error *err);
opipe_status opi_turns_create(const opipe_allocator *allocator, const opi_turns_params *params,
                              opi_turns **out, opipe_error *err);
void opi_turns_free(opi_turns *turns); /* accepts NULL */
/* To look at; states change only through functions of this header. */
const opi_batch *opi_turns_batch(const opi_turns *turns);
/* The sequence's ids so far [*out_n]. */
const uint32_t *opi_turns_ids(const opi_turns *turns, uint32_t sequence, uint32_t *out_n);

/* Opens a sequence; the sampling is copied. With n answers, n - 1 more sequences are kept free for
 * it until its first token. Errors: of opi_batch_submit and opi_sampling_check; INVALID: an id that
 * the model does not read; LIMIT: n sequences are not free. */
opipe_status opi_turns_submit(opi_turns *turns, const uint32_t *ids, uint32_t n_ids, uint64_t salt,
                              const opi_sampling *sampling, uint32_t *out_sequence,
                              opipe_error *err);
/* A further turn of an idle sequence; sampling NULL: as before. n must be 1. */
opipe_status opi_turns_extend(opi_turns *turns, uint32_t sequence, const uint32_t *ids,
                              uint32_t n_ids, const opi_sampling *sampling, opipe_error *err);
/* Opens another that goes on from the same ids by itself: with the next branch number, or branch 0
 * of *seed. While on_token of the sequence is told, these are the ids up to that token; while
 * on_logits is, those before its position. Ids that are held back are shown by both. *out_end:
 * OPI_TURN_GOES_ON, or why its turn is over with the last of them, which no event tells. Errors: of
 * opi_batch_branch; LIMIT: no room for all that is held back (in on_logits, behind a draft). */
opipe_status opi_turns_fork(opi_turns *turns, uint32_t sequence, const uint64_t *seed,
                            uint32_t *out_sequence, uint32_t *out_end, opipe_error *err);
/* Leaves the first n_ids of an idle sequence. */
opipe_status opi_turns_truncate(opi_turns *turns, uint32_t sequence, uint32_t n_ids,
                                opipe_error *err);
/* The host's draft for the next token, instead of one of n-grams, also while on_token of the
 * sequence is told. Errors: of opi_batch_draft;
 * INVALID: an id that the model does not read. */
opipe_status opi_turns_draft(opi_turns *turns, uint32_t sequence, const uint32_t *ids,
                             uint32_t n_ids, opipe_error *err);
/* Ends the turn now, if there is one. Errors: STATE. */
opipe_status opi_turns_cancel(opi_turns *turns, uint32_t sequence, opipe_error *err);
/* Closes it, without an event. Errors: STATE. */
opipe_status opi_turns_release(opi_turns *turns, uint32_t sequence, opipe_error *err);

/* The next pass to compute: see opi_batch_next. */
const opi_pass *opi_turns_next(opi_turns *turns);
/* The oldest pass in flight has been computed. logits: rows of n_vocab of `dtype`, row_bytes apart,
 * one for each wanted row in the order of entries. failed (or NULL): why it was not; its turns end.
 * Returns false if none is in flight. */
bool opi_turns_done(opi_turns *turns, void *logits, uint32_t dtype, uint64_t row_bytes,
                    const opipe_error *failed);

typedef struct opi_turns_counts {
  uint64_t tokens, drafted, accepted; /* tokens: sampled or chosen */
} opi_turns_counts;
opi_turns_counts opi_turns_count(const opi_turns *turns);

typedef struct opi_turn_info {
  uint32_t branch;
  uint32_t n_held;                /* the last of its ids that no event has told */
  uint64_t n_drafted, n_accepted; /* ids, of all turns of the sequence */
} opi_turn_info;
opi_turn_info opi_turns_info(const opi_turns *turns, uint32_t sequence);

#endif /* OPI_GENERATE_TURNS_H */
