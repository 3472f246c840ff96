/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts, by a small model whose next token depends on all before it: with any drafts, right and
 * wrong, its tokens, log-probabilities and ends are those without. */
#include <math.h>

#include "runtime/generate/drafts.h"
#include "tests/support/support.h"

enum { VOCAB = 12, CONTEXT = 160 };

/* ---- finding ---- */

static void test_drafts_continue_what_was_there_before(void) {
  static const struct {
    const char *ids, *draft;
    opi_ngrams how;
  } cases[] = {
      {"abcdXYab", "cdXY", {2, 4, 4}},
      {"abcdXYab", "", {3, 4, 4}},
      {"abcdXYab", "cd", {2, 4, 2}},
      {"1abc2abc3ab", "c3ab", {2, 4, 4}}, /* the latest */
      {"1abX2abY1ab", "X2ab", {2, 4, 4}}, /* the longest */
      {"1abX2abY1ab", "Y1ab", {2, 2, 4}},
      {"aaaa", "aaaa", {1, 3, 4}},
      {"xababab", "ababab", {2, 8, 6}}, /* it goes on into itself */
      {"abcdefgh", "", {1, 4, 4}},
      {"a", "", {1, 4, 4}},
      {"", "", {1, 4, 4}},
      {"aa", "aaa", {1, 4, 3}},
      {"abab", "", {1, 4, 0}},
  };
  for (uint32_t c = 0; c < OPI_COUNT(cases); ++c) {
    uint32_t ids[16], out[OPI_DRAFT_MOST];
    char text[OPI_DRAFT_MOST + 1];
    const uint32_t n = (uint32_t)strlen(cases[c].ids);
    for (uint32_t i = 0; i < n; ++i)
      ids[i] = (uint32_t)cases[c].ids[i];
    const uint32_t found = opi_draft_find(&cases[c].how, ids, n, cases[c].how.most, out);
    for (uint32_t i = 0; i < found; ++i)
      text[i] = (char)out[i];
    text[found] = '\0';
    OPI_ASSERT_STR(text, cases[c].draft);
  }
}

static void test_drafts_are_as_long_as_they_are_right(void) {
  const opi_ngrams how = {1, 4, 16};
  opi_draft_record record = {0};
  static const uint32_t waits[] = {1, 3, 7, 15, 31, 31};
  OPI_ASSERT_INT(opi_draft_length(&how, &record), 4);
  opi_draft_judge(&how, 4, 4, &record);
  OPI_ASSERT_INT(opi_draft_length(&how, &record), 8);
  opi_draft_judge(&how, 8, 8, &record);
  opi_draft_judge(&how, 16, 16, &record);
  OPI_ASSERT_INT(opi_draft_length(&how, &record), 16);
  opi_draft_judge(&how, 16, 3, &record);
  OPI_ASSERT_INT(opi_draft_length(&how, &record), 3);
  for (uint32_t i = 0; i < OPI_COUNT(waits); ++i) {
    opi_draft_judge(&how, 3, 0, &record);
    for (uint32_t w = 0; w < waits[i]; ++w)
      OPI_ASSERT_INT(opi_draft_length(&how, &record), 0);
    OPI_ASSERT_INT(opi_draft_length(&how, &record), 1);
  }
  opi_draft_judge(&how, 0, 0, &record); /* nothing was drafted: nothing is learned */
  OPI_ASSERT_INT(opi_draft_length(&how, &record), 1);
  OPI_ASSERT(record.n_drafted == 62 && record.n_accepted == 31);
}

/* ---- accepting ---- */

/* Logits behind ids [n]: mostly a repeating text, so that n-grams are often right. */
static void model(const uint32_t *ids, uint32_t n, uint32_t seed, float *out) {
  opi_test_random random = {seed + n % 7};
  uint32_t sum = 0;
  for (uint32_t i = 0; i < n; ++i)
    sum = sum * 31 + ids[i] + 1;
  opi_test_fill_f32(&random, out, VOCAB, -1, 1);
  out[(n * 5 + seed) % 7] += 4;
  out[sum % VOCAB] += 1.5F;
}

typedef struct story {
  opi_sampling how;
  uint32_t seed, nan_at; /* position whose logits are NaN; 0: none */
  uint32_t ids[CONTEXT + OPI_DRAFT_MOST], n, end, n_stop;
  double logprobs[CONTEXT];
  opipe_status status;
  uint64_t n_passes, n_chosen;
  uint32_t position; /* of the row that on_logits sees */
} story;

/* Every ninth position the host takes an id of its own, every eleventh it changes the row. */
static opipe_status on_logits(void *ctx, uint32_t position, void *row, int64_t *io_id,
                              opipe_error *err) {
  story *s = ctx;
  (void)err;
  if (position % 9 == 0)
    *io_id = position % VOCAB;
  if (position % 11 == 0)
    ((float *)row)[3] += 6;
  s->n_chosen += position % 9 == 0;
  return OPIPE_OK;
}

/* Which drafts: none, n-grams, random ids, n-grams cut and continued wrongly. */
static uint32_t draft(uint32_t kind, opi_draft_record *record, const story *s,
                      opi_test_random *random, uint32_t *out) {
  const opi_ngrams how = {1, 4, 12};
  const uint32_t most = kind == 1 ? opi_draft_length(&how, record) : 12;
  uint32_t n = kind == 0 ? 0 : opi_draft_find(&how, s->ids, s->n, most, out);
  for (uint32_t i = 0; kind == 2 && i < 5; ++i) {
    out[i] = (uint32_t)(opi_test_next(random) % VOCAB);
    n = 5;
  }
  if (kind == 3 && n > 4)
    out[3] = (out[3] + 1) % VOCAB;
  return s->n + n < CONTEXT ? n : 0;
}

static void tell(opi_sampler *sampler, story *s, uint32_t kind) {
  static float logits[OPI_DRAFT_MOST + 1][VOCAB + 4];
  static opi_sampled sampled[OPI_DRAFT_MOST + 1];
  opi_draft_record record = {0};
  opi_draft_result result = {0};
  opi_test_random random = {kind + 1};
  opipe_error err = OPIPE_ERROR_INIT;
  for (s->n = 0; s->n < 5; ++s->n)
    s->ids[s->n] = s->n * 3 % VOCAB;
  while (result.end == OPI_TURN_GOES_ON && s->status == OPIPE_OK) {
    uint32_t ids[OPI_DRAFT_MOST];
    const uint32_t n_draft = draft(kind, &record, s, &random, ids);
    memcpy(s->ids + s->n, ids, n_draft * sizeof *ids);
    for (uint32_t i = 0; i <= n_draft; ++i) {
      model(s->ids, s->n + i, s->seed, logits[i]);
      if (s->nan_at == s->n + i)
        logits[i][5] = NAN;
    }
    memset(s->ids + s->n, 0xff, n_draft * sizeof *ids); /* nobody may read them */
    const opi_draft_rows rows = {.logits = logits,
                                 .row_bytes = sizeof logits[0],
                                 .dtype = OPIPE_FLOAT,
                                 .branch = 3,
                                 .ids = s->ids,
                                 .n_ids = s->n,
                                 .n_prompt = 5,
                                 .context = CONTEXT,
                                 .draft = ids,
                                 .n_draft = n_draft,
                                 .on_logits = s->seed % 2 == 0 ? on_logits : NULL,
                                 .ctx = s};
    s->status = opi_draft_sample(sampler, &s->how, &rows, sampled, &result, &err);
    for (uint32_t i = 0; i < result.n; ++i)
      s->logprobs[s->n + i] = sampled[i].logprob;
    opi_draft_judge(&(opi_ngrams){1, 4, 12}, n_draft, result.n > 0 ? result.n - 1 : 0, &record);
    s->n += result.n;
    s->end = result.end;
    s->n_stop = result.n_stop;
    ++s->n_passes;
  }
}

static void test_tokens_are_those_without_drafts(void) {
  static const uint32_t stop_ids[3] = {1, 4, 6};
  static const opi_stop stops[2] = {{stop_ids, 3}, {stop_ids + 1, 1}};
  opi_sampler *sampler = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint64_t n_without = 0, n_with = 0, n_failed = 0, n_ended[4] = {0};
  OPI_ASSERT_OK_FATAL(opi_sampler_create(opi_allocator_system(), VOCAB, &sampler, &err), &err);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    static story told[4];
    for (uint32_t kind = 0; kind < 4; ++kind) {
      story *s = &told[kind];
      memset(s, 0, sizeof *s);
      s->how = opi_sampling_default;
      s->how.temperature = seed % 3 == 0 ? 0 : 0.7;
      s->how.seed = seed;
      s->how.top_k = 5;
      s->how.logprobs = 1;
      s->how.frequency_penalty = seed % 5 == 0 ? 0.02 : 0;
      s->how.min_tokens = seed % 4 == 1 ? 60 : 0;
      s->how.max_tokens = seed % 4 == 2 ? 77 : UINT32_MAX;
      s->how.stops = stops;
      s->how.n_stops = seed % 4 == 1 ? 2 : seed % 4 == 3;
      s->seed = seed;
      s->nan_at = seed % 10 == 4 ? 50 + seed : 0;
      tell(sampler, s, kind);
      OPI_ASSERT(s->n == told[0].n && s->end == told[0].end && s->n_stop == told[0].n_stop);
      OPI_ASSERT_INT(s->status, told[0].status);
      OPI_ASSERT(memcmp(s->ids, told[0].ids, s->n * sizeof *s->ids) == 0);
      OPI_ASSERT(memcmp(s->logprobs, told[0].logprobs, sizeof s->logprobs) == 0);
      OPI_ASSERT_INT(s->n_chosen, told[0].n_chosen);
    }
    n_without += told[0].n_passes;
    n_with += told[1].n_passes;
    n_failed += told[0].status == OPIPE_E_INVALID;
    ++n_ended[told[0].end];
  }
  OPI_ASSERT(n_with < n_without * 3 / 4);
  OPI_ASSERT(n_failed > 2 && n_ended[1] > 4 && n_ended[2] > 4 && n_ended[3] > 4);
  opi_sampler_free(sampler);
}

static opipe_status choose_too_much(void *ctx, uint32_t position, void *row, int64_t *io_id,
                                    opipe_error *err) {
  (void)ctx, (void)row;
  if (position == 4)
    return opi_fail(err, OPIPE_E_CANCELLED, "the host says no");
  *io_id = position == 3 ? VOCAB : 1;
  return OPIPE_OK;
}

/* Ids that were sampled before the row that failed stay. */
static void test_an_id_that_does_not_exist_is_refused(void) {
  float logits[3][VOCAB] = {{0}};
  uint32_t ids[8] = {1, 1}, drafted[2] = {1, 1};
  opi_sampled sampled[3];
  opi_draft_result result;
  opi_sampler *sampler = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_draft_rows rows = {.logits = logits,
                         .row_bytes = sizeof logits[0],
                         .dtype = OPIPE_FLOAT,
                         .ids = ids,
                         .n_ids = 2,
                         .n_prompt = 2,
                         .context = 8,
                         .draft = drafted,
                         .n_draft = 2,
                         .on_logits = choose_too_much};
  OPI_ASSERT_OK_FATAL(opi_sampler_create(opi_allocator_system(), VOCAB, &sampler, &err), &err);
  OPI_ASSERT_ERROR(opi_draft_sample(sampler, &opi_sampling_default, &rows, sampled, &result, &err),
                   OPIPE_E_INVALID, &err, "id 12 was chosen for position 3, the vocabulary has 12");
  OPI_ASSERT(result.n == 1 && ids[2] == 1);
  rows.n_ids = 4;
  OPI_ASSERT_ERROR(opi_draft_sample(sampler, &opi_sampling_default, &rows, sampled, &result, &err),
                   OPIPE_E_CANCELLED, &err, "the host says no");
  OPI_ASSERT_INT(result.n, 0);
  opi_sampler_free(sampler);
}

OPI_TEST_MAIN("generate/drafts", OPI_TEST(test_drafts_continue_what_was_there_before),
              OPI_TEST(test_drafts_are_as_long_as_they_are_right),
              OPI_TEST(test_tokens_are_those_without_drafts),
              OPI_TEST(test_an_id_that_does_not_exist_is_refused))
