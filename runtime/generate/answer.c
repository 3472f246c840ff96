/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of passes: ids are sampled, shown, and given to the scheduler. */
#include <string.h>

#include "runtime/generate/asks.h"

/* Rows of logits that belong to one entry of a pass. */
typedef struct answer_rows {
  opi_turns *turns;
  uint32_t sequence;
  char *logits;
  uint64_t row_bytes;
  uint32_t dtype;
  const uint32_t *draft; /* [n_draft] */
  uint32_t n_draft;
} answer_rows;

static opipe_status ask_host(void *ctx, uint32_t position, void *row, int64_t *io_id,
                             opipe_error *err) {
  const answer_rows *rows = ctx;
  const opi_turn_events *events = &rows->turns->params.events;
  opi_turn *turn = &rows->turns->turns[rows->sequence];
  turn->n_told = position;
  turn->shows = false;
  const opipe_status status =
      events->on_logits(events->ctx, rows->sequence, position, row, io_id, err);
  turn->n_told = 0;
  return status;
}

void opi_turn_show(opi_turns *turns, uint32_t sequence, uint32_t n_ids, uint32_t n_left) {
  const opi_turn_events *events = &turns->params.events;
  opi_turn *turn = &turns->turns[sequence];
  const uint32_t n = turn->n_held > n_left ? turn->n_held - n_left : 0;
  for (uint32_t i = 0; events->on_token != NULL && i < n; ++i) {
    const uint32_t position = n_ids - turn->n_held + i;
    turn->n_told = position + 1;
    turn->told_at = i;
    turn->shows = true;
    events->on_token(events->ctx, sequence, position, &turn->held[i]);
  }
  turn->n_told = 0;
  turn->n_held -= n;
  memmove(turn->held, turn->held + n, turn->n_held * sizeof *turn->held);
}

/* Shows ids that were sampled behind the first n_old. Fewer than a stop's ids are ever held. */
static void show_new(opi_turns *turns, uint32_t sequence, uint32_t n_old,
                     const opi_draft_result *result) {
  opi_turn *turn = &turns->turns[sequence];
  const uint32_t *ids = opi_batch_ids(turns->batch, sequence);
  for (uint32_t i = 0; i < result->n; ++i) {
    const uint32_t n_ids = n_old + i + 1;
    const bool last = result->end != OPI_TURN_GOES_ON && i + 1 == result->n;
    turn->held[turn->n_held++] = turns->sampled[i];
    opi_turn_show(
        turns, sequence, n_ids,
        last ? result->n_stop : opi_turn_held(&turn->sampling, ids, n_ids, turn->n_prompt));
  }
}

static void propose(opi_turns *turns, uint32_t sequence) {
  const opi_sequence_info info = opi_batch_info(turns->batch, sequence);
  opi_turn *turn = &turns->turns[sequence];
  uint32_t draft[OPI_DRAFT_MOST];
  if (info.n_draft > 0)
    return; /* the host's, by on_token */
  const uint32_t most = opi_draft_length(&turns->params.ngrams, &turn->record);
  const uint32_t n = opi_draft_find(&turns->params.ngrams, opi_batch_ids(turns->batch, sequence),
                                    info.n_ids, most, draft);
  (void)opi_batch_draft(turns->batch, sequence, draft, n, NULL); /* it goes on: nothing in flight */
}

/* Samples behind the rows, and tells scheduler and host. */
static void answer(const answer_rows *rows) {
  opi_turns *turns = rows->turns;
  opi_turn *turn = &turns->turns[rows->sequence];
  const uint32_t n_old = opi_batch_info(turns->batch, rows->sequence).n_ids;
  uint32_t *ids = opi_batch_ids(turns->batch, rows->sequence);
  opipe_error err = OPIPE_ERROR_INIT;
  opi_draft_result result;
  const opi_draft_rows how = {.logits = rows->logits,
                              .row_bytes = rows->row_bytes,
                              .dtype = rows->dtype,
                              .branch = turn->branch,
                              .ids = ids,
                              .n_ids = n_old,
                              .n_prompt = turn->n_prompt,
                              .context = opi_batch_context(turns->batch),
                              .draft = rows->draft,
                              .n_draft = rows->n_draft,
                              .on_logits = turns->params.events.on_logits == NULL ? NULL : ask_host,
                              .ctx = (void *)(uintptr_t)rows};
  opipe_status status =
      opi_draft_sample(turns->sampler, &turn->sampling, &how, turns->sampled, &result, &err);
  const opipe_status sampled = status;
  const bool goes_on = sampled == OPIPE_OK && result.end == OPI_TURN_GOES_ON;
  if (result.n > 0) {
    const uint32_t n_right = result.n - 1;
    turns->counts.tokens += result.n;
    turns->counts.drafted += rows->n_draft;
    turns->counts.accepted += n_right;
    opi_draft_judge(&turns->params.ngrams, rows->n_draft, n_right, &turn->record);
    status = opi_batch_accept(turns->batch, rows->sequence, ids + n_old, result.n,
                              goes_on || sampled < 0, sampled < 0 ? NULL : &err);
    show_new(turns, rows->sequence, n_old, &result);
  }
  if (sampled < 0 || status < 0) {
    (void)opi_batch_stop(turns->batch, rows->sequence, false, NULL);
    opi_turn_tell_end(turns, rows->sequence, OPI_TURN_FAILED, &err);
  } else if (goes_on) {
    propose(turns, rows->sequence);
  } else {
    turn->n_held = 0; /* of the stop */
    opi_turn_tell_end(turns, rows->sequence, result.end, NULL);
  }
}

/* The first token of a turn with several answers: each is a sequence and samples the same row. */
static void answer_all(answer_rows *rows) {
  opi_turns *turns = rows->turns;
  opi_turn *turn = &turns->turns[rows->sequence];
  const opi_turn_events *events = &turns->params.events;
  const uint32_t first = rows->sequence;
  char *logits = rows->logits;
  const uint64_t n_row = (uint64_t)turns->params.n_vocab * opi_dtype_bits(rows->dtype) / 8;
  /* Wider types are refused when they are sampled. */
  const uint64_t n_bytes = n_row <= turns->params.n_vocab * sizeof(double) ? n_row : 0;
  const uint32_t n_answers = turn->n_answers;
  uint32_t others[OPI_SAMPLING_ANSWERS];
  uint32_t n = 0;
  turn->n_answers = 0;
  for (; n < n_answers && opi_turn_twin(turns, first, &others[n], NULL) == OPIPE_OK; ++n) {
    --turns->n_kept; /* the rest stays kept: the host may open sequences */
    if (events->on_answer != NULL)
      events->on_answer(events->ctx, first, others[n]);
  }
  turns->n_kept -= n_answers - n;
  if (n > 0)
    memcpy(turns->row, logits, (size_t)n_bytes);
  answer(rows);
  for (uint32_t i = 0; i < n; ++i) { /* the host may have changed the row */
    memcpy(logits, turns->row, (size_t)n_bytes);
    rows->sequence = others[i];
    answer(rows);
  }
}

bool opi_turns_done(opi_turns *turns, void *logits, uint32_t dtype, uint64_t row_bytes,
                    const opipe_error *failed) {
  const opi_pass *pass = opi_batch_done(turns->batch);
  char *at = logits;
  if (pass == NULL)
    return false;
  for (uint32_t i = 0; i < pass->n_entries; ++i) {
    const opi_pass_entry *e = &pass->entries[i];
    uint32_t draft[OPI_DRAFT_MOST];
    char *rows_at = at;
    at = at == NULL ? NULL : at + e->n_wanted * row_bytes;
    if (!e->live)
      continue;
    if (failed != NULL) {
      (void)opi_batch_stop(turns->batch, e->sequence, false, NULL);
      opi_turn_tell_end(turns, e->sequence, OPI_TURN_FAILED, failed);
      continue;
    }
    if (e->n_wanted == 0)
      continue;
    opi_batch_draft_ids(turns->batch, e, draft);
    answer_rows rows = {turns, e->sequence, rows_at, row_bytes, dtype, draft, e->n_draft};
    answer_all(&rows);
  }
  return true;
}
