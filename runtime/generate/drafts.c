/* SPDX-License-Identifier: Apache-2.0 */
/* n-grams of the sequence itself. */
#include "runtime/generate/drafts.h"

enum { FIRST_LENGTH = 4, MISSES_MOST = 5 };

/* How many ids before `at` equal those before the end, at most `longest`. */
static uint32_t match_before(const uint32_t *ids, uint32_t n_ids, uint32_t at, uint32_t longest) {
  const uint32_t most = at < longest ? at : longest;
  uint32_t n = 0;
  while (n < most && ids[at - 1 - n] == ids[n_ids - 1 - n])
    ++n;
  return n;
}

uint32_t opi_draft_find(const opi_ngrams *how, const uint32_t *ids, uint32_t n_ids, uint32_t most,
                        uint32_t *out) {
  uint32_t best = 0, place = 0;
  for (uint32_t at = n_ids; at > 1 && most > 0 && best < how->longest; --at) {
    const uint32_t n = match_before(ids, n_ids, at - 1, how->longest);
    if (n > best) {
      best = n;
      place = at - 1;
    }
  }
  if (best < how->shortest || best == 0)
    return 0;
  for (uint32_t i = 0; i < most; ++i)
    out[i] = place + i < n_ids ? ids[place + i] : out[place + i - n_ids];
  return most;
}

uint32_t opi_draft_length(const opi_ngrams *how, opi_draft_record *record) {
  const uint32_t length = record->length == 0 ? FIRST_LENGTH : record->length;
  if (record->wait > 0) {
    --record->wait;
    return 0;
  }
  return length < how->most ? length : how->most;
}

void opi_draft_judge(const opi_ngrams *how, uint32_t n_drafted, uint32_t n_accepted,
                     opi_draft_record *record) {
  record->n_drafted += n_drafted;
  record->n_accepted += n_accepted;
  if (n_drafted == 0)
    return;
  if (n_accepted == 0) {
    record->misses += record->misses < MISSES_MOST;
    record->wait = (UINT32_C(1) << record->misses) - 1;
    record->length = 1;
    return;
  }
  record->misses = 0;
  record->length = n_accepted == n_drafted ? 2 * n_drafted : n_accepted;
  record->length = record->length < how->most ? record->length : how->most;
}

static opipe_status sample_row(opi_sampler *sampler, const opi_sampling *sampling,
                               const opi_draft_rows *rows, uint32_t at, opi_sampled *out,
                               opipe_error *err) {
  char *row = (char *)rows->logits + at * rows->row_bytes;
  const opi_logits logits = {.values = row,
                             .dtype = rows->dtype,
                             .branch = rows->branch,
                             .ids = rows->ids,
                             .n_ids = rows->n_ids + at,
                             .n_prompt = rows->n_prompt};
  int64_t id = -1;
  if (rows->on_logits != NULL)
    OPI_TRY(rows->on_logits(rows->ctx, logits.n_ids, row, &id, err));
  if (id == -1)
    return opi_sample(sampler, sampling, &logits, out, err);
  return opi_sample_chosen(sampler, sampling, &logits, id, out, err);
}

opipe_status opi_draft_sample(opi_sampler *sampler, const opi_sampling *sampling,
                              const opi_draft_rows *rows, opi_sampled *sampled,
                              opi_draft_result *out, opipe_error *err) {
  *out = (opi_draft_result){.end = OPI_TURN_GOES_ON};
  for (bool right = true; right && out->end == OPI_TURN_GOES_ON;) {
    const uint32_t at = out->n;
    OPI_TRY(sample_row(sampler, sampling, rows, at, &sampled[at], err));
    rows->ids[rows->n_ids + at] = sampled[at].id;
    ++out->n;
    out->end = opi_turn_end(sampling, rows->ids, rows->n_ids + out->n, rows->n_prompt,
                            rows->context, &out->n_stop);
    right = at < rows->n_draft && rows->draft[at] == sampled[at].id;
  }
  return OPIPE_OK;
}
