/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, and requests of sequences; answer.c samples for them. */
#include <string.h>

#include "runtime/generate/asks.h"

/* ---- opening ---- */

typedef struct turns_layout {
  uint64_t turns, families, row, n_bytes;
} turns_layout;

static opipe_status lay_out(const opi_turns_params *p, turns_layout *out, opipe_error *err) {
  turns_layout l = {.n_bytes = sizeof(opi_turns)};
  const uint64_t n = p->batch.pool.n_sequences;
  if (p->n_vocab == 0 || p->n_known == 0 || p->n_vocab > INT32_MAX || p->n_known > INT32_MAX) {
    return opi_fail(err, OPIPE_E_INVALID, "a vocabulary of %u ids, %u read: 1 to %d are possible",
                    p->n_vocab, p->n_known, INT32_MAX);
  }
  if (p->batch.draft > OPI_DRAFT_MOST || p->ngrams.most > p->batch.draft ||
      (p->ngrams.most > 0 && (p->ngrams.shortest == 0 || p->ngrams.shortest > p->ngrams.longest))) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "drafts of %u ids from n-grams of %u to %u, %u in a pass: at most %d, and n "
                    "from 1 on",
                    p->ngrams.most, p->ngrams.shortest, p->ngrams.longest, p->batch.draft,
                    OPI_DRAFT_MOST);
  }
  if (!opi_block_place(&l.n_bytes, n, 1, sizeof(opi_turn), &l.turns) ||
      !opi_block_place(&l.n_bytes, n, 1, sizeof(opi_turn_family), &l.families) ||
      !opi_block_place(&l.n_bytes, p->n_vocab, 1, sizeof(double), &l.row)) {
    return opi_fail(err, OPIPE_E_LIMIT, "turns of %llu sequences exceed memory",
                    (unsigned long long)n);
  }
  *out = l;
  return OPIPE_OK;
}

opipe_status opi_turns_bytes(const opi_turns_params *params, uint64_t *out_bytes,
                             opipe_error *err) {
  turns_layout l = {.n_bytes = 0};
  uint64_t of_batch = 0;
  OPI_TRY(opi_batch_bytes(&params->batch, &of_batch, err));
  OPI_TRY(lay_out(params, &l, err));
  *out_bytes = of_batch + l.n_bytes + opi_sampler_bytes(params->n_vocab);
  return OPIPE_OK;
}

opipe_status opi_turns_create(const opipe_allocator *allocator, const opi_turns_params *params,
                              opi_turns **out, opipe_error *err) {
  turns_layout l = {.n_bytes = 0};
  OPI_TRY(lay_out(params, &l, err));
  char *block = opi_alloc_zero(allocator, 1, (size_t)l.n_bytes);
  if (block == NULL)
    return opi_fail_nomem(err, l.n_bytes, "turns");
  opi_turns *turns = (opi_turns *)(void *)block;
  turns->allocator = allocator;
  turns->params = *params;
  turns->n_bytes = l.n_bytes;
  turns->turns = (opi_turn *)(void *)(block + l.turns);
  turns->families = (opi_turn_family *)(void *)(block + l.families);
  turns->row = (double *)(void *)(block + l.row);
  opipe_status status = opi_batch_create(allocator, &params->batch, &turns->batch, err);
  if (status == OPIPE_OK)
    status = opi_sampler_create(allocator, params->n_vocab, &turns->sampler, err);
  if (status < 0) {
    opi_turns_free(turns);
    return status;
  }
  *out = turns;
  return OPIPE_OK;
}

void opi_turns_free(opi_turns *turns) {
  if (turns == NULL)
    return;
  opi_sampler_free(turns->sampler);
  opi_batch_free(turns->batch);
  opi_free(turns->allocator, turns, (size_t)turns->n_bytes);
}

const opi_batch *opi_turns_batch(const opi_turns *turns) {
  return turns->batch;
}

const uint32_t *opi_turns_ids(const opi_turns *turns, uint32_t sequence, uint32_t *out_n) {
  *out_n = opi_batch_info(turns->batch, sequence).n_ids;
  return opi_batch_ids(turns->batch, sequence);
}

opi_turns_counts opi_turns_count(const opi_turns *turns) {
  return turns->counts;
}

opi_turn_info opi_turns_info(const opi_turns *turns, uint32_t sequence) {
  const opi_turn *turn = &turns->turns[sequence];
  return (opi_turn_info){turn->branch, turn->n_held, turn->record.n_drafted,
                         turn->record.n_accepted};
}

/* ---- asking ---- */

static void copy_sampling(opi_turn *turn, const opi_sampling *sampling) {
  turn->sampling = *sampling;
  if (sampling->n_biases > 0)
    memmove(turn->biases, sampling->biases, sampling->n_biases * sizeof *turn->biases);
  turn->sampling.biases = turn->biases;
  for (uint32_t i = 0; i < sampling->n_stops; ++i) {
    const opi_stop *stop = &sampling->stops[i];
    memmove(turn->stop_ids[i], stop->ids, stop->n * sizeof *stop->ids);
    turn->stops[i] = (opi_stop){turn->stop_ids[i], stop->n};
  }
  turn->sampling.stops = turn->stops;
}

static opipe_status check_ids(const opi_turns *turns, const uint32_t *ids, uint32_t n_ids,
                              opipe_error *err) {
  for (uint32_t i = 0; i < n_ids; ++i) {
    if (ids[i] >= turns->params.n_known) {
      return opi_fail(err, OPIPE_E_INVALID, "id %u at place %u, the vocabulary has %u", ids[i], i,
                      turns->params.n_known);
    }
  }
  return OPIPE_OK;
}

static opipe_status check(const opi_turns *turns, const uint32_t *ids, uint32_t n_ids,
                          const opi_sampling *sampling, opipe_error *err) {
  OPI_TRY(check_ids(turns, ids, n_ids, err));
  return opi_sampling_check(sampling, turns->params.n_vocab, err);
}

static uint32_t new_family(opi_turns *turns) {
  uint32_t family = 0;
  while (turns->families[family].refs > 0) /* there are as many as sequences */
    ++family;
  turns->families[family] = (opi_turn_family){1, 1};
  return family;
}

opipe_status opi_turns_submit(opi_turns *turns, const uint32_t *ids, uint32_t n_ids, uint64_t salt,
                              const opi_sampling *sampling, uint32_t *out_sequence,
                              opipe_error *err) {
  const uint32_t n = turns->params.batch.pool.n_sequences;
  OPI_TRY(check(turns, ids, n_ids, sampling, err));
  const uint32_t n_taken = opi_batch_count(turns->batch).open + turns->n_kept;
  if (sampling->n > n - n_taken) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u answers, %u of %u sequences are free", sampling->n,
                    n - n_taken, n);
  }
  OPI_TRY(opi_batch_submit(turns->batch, ids, n_ids, salt, out_sequence, err));
  opi_turn *turn = &turns->turns[*out_sequence];
  copy_sampling(turn, sampling);
  turn->n_prompt = n_ids;
  turn->branch = 0;
  turn->family = new_family(turns);
  turn->n_answers = sampling->n - 1;
  turn->n_held = 0;
  turn->n_told = 0;
  turn->record = (opi_draft_record){0};
  turns->n_kept += turn->n_answers;
  return OPIPE_OK;
}

opipe_status opi_turns_extend(opi_turns *turns, uint32_t sequence, const uint32_t *ids,
                              uint32_t n_ids, const opi_sampling *sampling, opipe_error *err) {
  const opi_sampling *how = sampling;
  if (sequence >= turns->params.batch.pool.n_sequences)
    return opi_fail(err, OPIPE_E_STATE, "sequence %u is not open", sequence);
  opi_turn *turn = &turns->turns[sequence];
  if (how == NULL)
    how = &turn->sampling;
  else if (how->n != 1)
    return opi_fail(err, OPIPE_E_INVALID, "n is %u, a further turn has one answer", how->n);
  OPI_TRY(check(turns, ids, n_ids, how, err));
  OPI_TRY(opi_batch_extend(turns->batch, sequence, ids, n_ids, err));
  if (sampling != NULL)
    copy_sampling(turn, sampling);
  turn->n_prompt = opi_batch_info(turns->batch, sequence).n_ids;
  return OPIPE_OK;
}

/* The turn of a fork that is open: as of `sequence`, with a branch or a family of its own. */
static void copy_turn(opi_turns *turns, uint32_t sequence, const uint64_t *seed, uint32_t other) {
  const opi_turn *turn = &turns->turns[sequence];
  opi_turn *o = &turns->turns[other];
  *o = *turn;
  copy_sampling(o, &turn->sampling);
  o->n_answers = 0;
  o->n_told = 0;
  o->record = (opi_draft_record){0};
  if (seed == NULL) {
    opi_turn_family *family = &turns->families[turn->family];
    ++family->refs;
    o->branch = family->next_branch++;
  } else {
    o->sampling.seed = *seed;
    o->branch = 0;
    o->family = new_family(turns);
  }
}

opipe_status opi_turn_twin(opi_turns *turns, uint32_t sequence, uint32_t *out_sequence,
                           opipe_error *err) {
  OPI_TRY(opi_batch_fork(turns->batch, sequence, out_sequence, err));
  copy_turn(turns, sequence, NULL, *out_sequence);
  return OPIPE_OK;
}

/* Tokens that a fork of n_ids still has to show: those that may become a stop, in on_logits also
 * those of a draft. */
static void hold_back(const opi_turns *turns, uint32_t sequence, uint32_t n_ids, opi_turn *fork) {
  const opi_turn *turn = &turns->turns[sequence];
  const uint32_t n_old = opi_batch_info(turns->batch, sequence).n_ids;
  if (turn->shows) {
    fork->n_held = opi_turn_held(&turn->sampling, opi_batch_ids(turns->batch, sequence), n_ids,
                                 turn->n_prompt);
    memcpy(fork->held, turn->held + turn->told_at + 1 - fork->n_held,
           fork->n_held * sizeof *fork->held);
  }
  for (uint32_t i = 0; !turn->shows && n_old + i < n_ids; ++i)
    fork->held[fork->n_held++] = turns->sampled[i];
}

opipe_status opi_turns_fork(opi_turns *turns, uint32_t sequence, const uint64_t *seed,
                            uint32_t *out_sequence, uint32_t *out_end, opipe_error *err) {
  const uint32_t n = turns->params.batch.pool.n_sequences;
  const uint32_t n_open = opi_batch_count(turns->batch).open;
  if (n_open < n && n_open + turns->n_kept >= n) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u sequences are open and %u kept for answers, of %u",
                    n_open, turns->n_kept, n);
  }
  if (sequence >= n)
    return opi_fail(err, OPIPE_E_STATE, "sequence %u is not open", sequence);
  const opi_sequence_info info = opi_batch_info(turns->batch, sequence);
  const opi_turn *turn = &turns->turns[sequence];
  const uint32_t n_ids = turn->n_told != 0 ? turn->n_told : info.n_ids;
  bool goes_on = info.state != OPI_SEQUENCE_IDLE;
  uint32_t n_stop = 0;
  *out_end = OPI_TURN_GOES_ON;
  if (turn->n_told != 0) {
    *out_end = opi_turn_end(&turn->sampling, opi_batch_ids(turns->batch, sequence), n_ids,
                            turn->n_prompt, opi_batch_context(turns->batch), &n_stop);
    goes_on = *out_end == OPI_TURN_GOES_ON;
  }
  if (n_ids > info.n_ids && turn->n_held + n_ids - info.n_ids > OPI_SAMPLING_STOP_IDS) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "a fork with %u ids of a draft and %u more that are held back, %d at most",
                    n_ids - info.n_ids, turn->n_held, OPI_SAMPLING_STOP_IDS);
  }
  OPI_TRY(opi_batch_branch(turns->batch, sequence, n_ids, goes_on, out_sequence, err));
  copy_turn(turns, sequence, seed, *out_sequence);
  if (turn->n_told != 0 && goes_on)
    hold_back(turns, sequence, n_ids, &turns->turns[*out_sequence]);
  else if (turn->n_told != 0)
    turns->turns[*out_sequence].n_held = 0;
  return OPIPE_OK;
}

opipe_status opi_turns_truncate(opi_turns *turns, uint32_t sequence, uint32_t n_ids,
                                opipe_error *err) {
  return opi_batch_truncate(turns->batch, sequence, n_ids, err);
}

opipe_status opi_turns_draft(opi_turns *turns, uint32_t sequence, const uint32_t *ids,
                             uint32_t n_ids, opipe_error *err) {
  OPI_TRY(check_ids(turns, ids, n_ids, err));
  return opi_batch_draft(turns->batch, sequence, ids, n_ids, err);
}

/* Sequences that are kept free for it no longer are. */
static void give_up_answers(opi_turns *turns, uint32_t sequence) {
  opi_turn *turn = &turns->turns[sequence];
  turns->n_kept -= turn->n_answers;
  turn->n_answers = 0;
}

void opi_turn_tell_end(opi_turns *turns, uint32_t sequence, uint32_t reason,
                       const opipe_error *why) {
  const opi_turn_events *events = &turns->params.events;
  opi_turn_show(turns, sequence, opi_batch_info(turns->batch, sequence).n_ids, 0);
  give_up_answers(turns, sequence);
  if (events->on_end != NULL)
    events->on_end(events->ctx, sequence, reason, why);
}

opipe_status opi_turns_cancel(opi_turns *turns, uint32_t sequence, opipe_error *err) {
  const bool exists = sequence < turns->params.batch.pool.n_sequences;
  const uint32_t state = exists ? opi_batch_info(turns->batch, sequence).state : OPI_SEQUENCE_FREE;
  OPI_TRY(opi_batch_stop(turns->batch, sequence, true, err));
  if (state != OPI_SEQUENCE_IDLE)
    opi_turn_tell_end(turns, sequence, OPI_TURN_CANCELLED, NULL);
  return OPIPE_OK;
}

opipe_status opi_turns_release(opi_turns *turns, uint32_t sequence, opipe_error *err) {
  OPI_TRY(opi_batch_release(turns->batch, sequence, err));
  give_up_answers(turns, sequence);
  --turns->families[turns->turns[sequence].family].refs;
  return OPIPE_OK;
}

const opi_pass *opi_turns_next(opi_turns *turns) {
  return opi_batch_next(turns->batch);
}
