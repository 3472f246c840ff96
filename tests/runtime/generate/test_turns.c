/* SPDX-License-Identifier: Apache-2.0 */
/* Turns from end to end, by a small model whose logits follow from the ids before them: whatever is
 * computed together, in slices, with drafts, forked, evicted or cancelled, each sequence shows the
 * tokens that a plain loop over it alone gives, with the same end. */
#include <math.h>
#include <stdlib.h>

#include "runtime/generate/turns.h"
#include "tests/support/support.h"

enum { SEQUENCES = 8, CONTEXT = 60, VOCAB = 9, ROWS = 24 };

typedef struct record {
  uint32_t n_prompt, branch;
  uint32_t n_given; /* ids in `prompt`: of a fork also the first of its answer */
  opi_sampling how;
  uint32_t prompt[CONTEXT], shown[CONTEXT], n_shown, n_ends, reason;
  double logprobs[CONTEXT];
  bool open;
} record;

typedef struct world {
  opi_turns_params params;
  opi_test_memory memory;
  opi_turns *turns;
  opipe_error err;
  opi_test_random random;
  record records[SEQUENCES];
  uint32_t next_branch[SEQUENCES]; /* of each request, by its first sequence */
  uint32_t n_wrong, n_checked, n_failed, n_answers, n_forks, n_over, n_ends[6];
} world;

static uint32_t any(world *w, uint32_t below) {
  return (uint32_t)(opi_test_next(&w->random) % below);
}

/* Logits behind ids [n]. Mostly one id is likely; seldom they are no numbers. */
static void model(const uint32_t *ids, uint32_t n, float *out) {
  uint64_t word = 7;
  for (uint32_t i = 0; i < n; ++i)
    word = (word ^ (ids[i] + 1)) * UINT64_C(0x100000001b3);
  opi_test_random random = {word >> 7};
  opi_test_fill_f32(&random, out, VOCAB, -1, 1);
  out[n * 3 % 5] += (word >> 20) % 5 == 0 ? 0 : 6;
  if ((word >> 30) % 211 == 0)
    out[4] = NAN;
}

/* ---- alone ---- */

static void choose(uint32_t position, float *row, int64_t *io_id) {
  if (position % 13 == 0)
    *io_id = position % VOCAB;
  if (position % 7 == 0)
    row[2] += 3;
}

/* The record's turn by a plain loop; compares what was shown. */
static void compare_alone(world *w, const record *r) {
  opi_sampler *sampler = NULL;
  opi_sampled sampled;
  const uint32_t n_first = r->n_given - r->n_prompt,
                 context = opi_batch_context(opi_turns_batch(w->turns));
  uint32_t ids[CONTEXT + 1], n = r->n_given, end = OPI_TURN_GOES_ON, n_stop = 0;
  double logprobs[CONTEXT + 1] = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_sampler_create(opi_allocator_system(), VOCAB, &sampler, &err), &err);
  memcpy(ids, r->prompt, n * sizeof *ids);
  if (n_first > 0)
    end = opi_turn_end(&r->how, ids, n, r->n_prompt, context, &n_stop);
  while (end == OPI_TURN_GOES_ON) {
    float row[VOCAB];
    int64_t id = -1;
    const opi_logits logits = {row, OPIPE_FLOAT, r->branch, ids, n, r->n_prompt};
    model(ids, n, row);
    if (w->params.events.on_logits != NULL)
      choose(n, row, &id);
    const opipe_status status =
        id < 0 ? opi_sample(sampler, &r->how, &logits, &sampled, &err)
               : opi_sample_chosen(sampler, &r->how, &logits, id, &sampled, &err);
    if (status < 0) {
      end = OPI_TURN_FAILED;
      break;
    }
    logprobs[n] = sampled.logprob;
    ids[n++] = sampled.id;
    end = opi_turn_end(&r->how, ids, n, r->n_prompt, context, &n_stop);
  }
  opi_sampler_free(sampler);
  const bool cancelled = r->reason == OPI_TURN_CANCELLED;
  const uint32_t n_all = n - n_stop - r->n_prompt;
  w->n_wrong += !cancelled && (r->reason != end || r->n_shown != n_all);
  w->n_wrong += r->n_shown > n - r->n_prompt;
  w->n_wrong += memcmp(ids + r->n_prompt, r->shown, r->n_shown * sizeof *ids) != 0;
  for (uint32_t i = n_first; r->how.logprobs >= 0 && i < r->n_shown; ++i)
    w->n_wrong += memcmp(&logprobs[r->n_prompt + i], &r->logprobs[i], sizeof *logprobs) != 0;
  ++w->n_checked;
}

/* ---- events ---- */

/* A fork that has the first n_ids, wherever the sequence is. */
static void fork_at(world *w, uint32_t sequence, uint32_t n_ids) {
  const uint64_t seed = any(w, 50);
  uint32_t other = 0, end = OPI_TURN_GOES_ON, n = 0;
  record o = w->records[sequence];
  memcpy(o.prompt, opi_turns_ids(w->turns, sequence, &n), n_ids * sizeof *o.prompt);
  if (opi_turns_fork(w->turns, sequence, &seed, &other, &end, &w->err) < 0)
    return; /* none is free */
  o.n_given = n_ids;
  o.n_shown = n_ids - o.n_prompt - opi_turns_info(w->turns, other).n_held;
  o.branch = 0;
  o.how.seed = seed;
  ++w->n_forks;
  w->n_wrong += w->records[other].open;
  w->next_branch[other] = 1;
  if (end != OPI_TURN_GOES_ON) { /* no event tells */
    o.reason = end;
    o.n_ends = 1;
    ++w->n_over;
    compare_alone(w, &o);
  }
  w->records[other] = o;
}

static opipe_status on_logits(void *ctx, uint32_t sequence, uint32_t position, void *row,
                              int64_t *io_id, opipe_error *err) {
  world *w = ctx;
  (void)err;
  if (any(w, 40) == 0)
    fork_at(w, sequence, position);
  choose(position, row, io_id);
  return OPIPE_OK;
}

static void on_token(void *ctx, uint32_t sequence, uint32_t position, const opi_sampled *token) {
  world *w = ctx;
  record *r = &w->records[sequence];
  w->n_wrong += !r->open || position != r->n_prompt + r->n_shown || r->n_shown >= CONTEXT;
  r->logprobs[r->n_shown] = token->logprob;
  r->shown[r->n_shown++] = token->id;
  if (any(w, 40) == 0)
    fork_at(w, sequence, position + 1);
}

static void on_end(void *ctx, uint32_t sequence, uint32_t reason, const opipe_error *why) {
  world *w = ctx;
  record *r = &w->records[sequence];
  w->n_wrong += ++r->n_ends != 1 || (why != NULL) != (reason == OPI_TURN_FAILED);
  w->n_failed += why != NULL && strstr(why->message, "hold nan at id 4") != NULL;
  r->reason = reason;
  ++w->n_ends[reason];
  compare_alone(w, r);
}

static void on_answer(void *ctx, uint32_t sequence, uint32_t other) {
  world *w = ctx;
  record *r = &w->records[sequence];
  w->n_wrong += w->records[other].open || r->n_shown != 0;
  w->records[other] = *r;
  w->records[other].branch = w->next_branch[sequence]++;
  ++w->n_answers;
}

/* ---- the host ---- */

static void set_up(world *w, uint32_t round) {
  memset(w, 0, sizeof *w);
  w->err = (opipe_error)OPIPE_ERROR_INIT;
  w->random.state = round + 1;
  opi_test_memory_init(&w->memory);
  w->params = (opi_turns_params){
      .batch = {.pool = {1 + round % 5, 20 + round * 7 % 40, SEQUENCES, CONTEXT, round % 4 != 3},
                .active = 1 + round % SEQUENCES,
                .rows = 1 + round * 5 % ROWS,
                .groups = 1 + round % 3,
                .draft = 6},
      .ngrams = {1, 3, round % 3 == 2 ? 0 : 6},
      .n_vocab = VOCAB,
      .n_known = VOCAB,
      .events = {w, round % 2 == 0 ? on_logits : NULL, on_token, on_end, on_answer}};
  OPI_ASSERT_OK_FATAL(opi_turns_create(&w->memory.allocator, &w->params, &w->turns, &w->err),
                      &w->err);
}

static void tear_down(world *w) {
  uint64_t n_bytes = 0;
  OPI_ASSERT_OK(opi_turns_bytes(&w->params, &n_bytes, &w->err), &w->err);
  OPI_ASSERT_INT(w->memory.peak_bytes, n_bytes);
  OPI_ASSERT_INT(w->memory.n_calls, 4);
  opi_turns_free(w->turns);
  OPI_ASSERT(opi_test_memory_end(&w->memory));
}

static void submit(world *w) {
  static const uint32_t stop_ids[4] = {0, 3, 1, 4};
  static const opi_stop stops[3] = {{stop_ids, 3}, {stop_ids + 3, 1}, {stop_ids + 1, 2}};
  record r = {.n_prompt = 1 + any(w, 20), .open = true};
  uint32_t sequence = 0;
  r.how = opi_sampling_default;
  r.how.temperature = any(w, 3) * 0.5;
  r.how.seed = any(w, 1000);
  r.how.top_k = any(w, 5);
  r.how.presence_penalty = any(w, 2) * 0.5;
  r.how.logprobs = (int32_t)any(w, 3) - 1;
  r.how.n = any(w, 4) == 0 ? 3 : 1;
  r.how.max_tokens = any(w, 2) == 0 ? 1 + any(w, 30) : UINT32_MAX;
  r.how.stops = stops;
  r.how.n_stops = any(w, 3);
  for (uint32_t i = 0; i < r.n_prompt; ++i)
    r.prompt[i] = i < 6 ? 1 : any(w, VOCAB);
  r.n_given = r.n_prompt;
  const opipe_status status =
      opi_turns_submit(w->turns, r.prompt, r.n_prompt, 0, &r.how, &sequence, &w->err);
  if (status == OPIPE_E_LIMIT)
    return; /* none is free, or not that many */
  OPI_ASSERT_OK_FATAL(status, &w->err);
  w->n_wrong += w->records[sequence].open;
  w->records[sequence] = r;
  w->next_branch[sequence] = 1;
}

/* Logits of a pass's wanted rows, as they are when it is scheduled. */
typedef struct queued {
  float logits[ROWS][VOCAB];
} queued;

static void fill(world *w, const opi_pass *pass, queued *out) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < pass->n_entries; ++i) {
    const opi_pass_entry *e = &pass->entries[i];
    uint32_t ids[CONTEXT + ROWS], rows[ROWS], n_ids = 0;
    const uint32_t *known = opi_turns_ids(w->turns, e->sequence, &n_ids);
    memcpy(ids, known, e->first * sizeof *ids);
    opi_batch_row_ids(opi_turns_batch(w->turns), e, rows);
    memcpy(ids + e->first, rows, e->n_rows * sizeof *ids);
    for (uint32_t k = 0; k < e->n_wanted; ++k)
      model(ids, e->first + e->n_rows - e->n_wanted + k + 1, out->logits[n++]);
  }
}

static void act(world *w) {
  const uint32_t s = any(w, SEQUENCES), what = any(w, 30);
  record *r = &w->records[s];
  if (what < 8) {
    submit(w);
  } else if (r->open && r->n_ends > 0) {
    OPI_ASSERT_OK(opi_turns_release(w->turns, s, &w->err), &w->err);
    r->open = false;
  } else if (r->open && what == 8) {
    OPI_ASSERT_OK(opi_turns_cancel(w->turns, s, &w->err), &w->err);
  } else if (r->open && what == 9) {
    uint32_t n_ids = 0;
    (void)opi_turns_ids(w->turns, s, &n_ids);
    fork_at(w, s, n_ids);
  }
}

static void test_turns_are_those_of_each_sequence_alone(void) {
  static world w;
  static queued passes[4];
  uint32_t sums[6] = {0}, n_checked = 0, n_failed = 0, n_answers = 0, n_forks = 0, n_over = 0;
  uint64_t n_accepted = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    uint64_t n_made = 0, n_done = 0;
    set_up(&w, round);
    for (uint32_t i = 0; i < 900; ++i) {
      const opi_pass *pass = NULL;
      if (i < 500)
        act(&w);
      if ((pass = opi_turns_next(w.turns)) != NULL)
        fill(&w, pass, &passes[n_made++ % 4]);
      if (n_made > n_done &&
          (n_made - n_done == w.params.batch.groups || any(&w, 2) == 0 || !pass)) {
        OPI_ASSERT(opi_turns_done(w.turns, passes[n_done++ % 4].logits, OPIPE_FLOAT,
                                  sizeof passes[0].logits[0], NULL));
      }
    }
    for (uint32_t s = 0; s < SEQUENCES; ++s)
      OPI_ASSERT(!w.records[s].open || w.records[s].n_ends == 1);
    OPI_ASSERT_INT(w.n_wrong, 0);
    for (uint32_t i = 0; i < 6; ++i)
      sums[i] += w.n_ends[i];
    n_checked += w.n_checked;
    n_failed += w.n_failed;
    n_answers += w.n_answers;
    n_forks += w.n_forks;
    n_over += w.n_over;
    n_accepted += opi_turns_count(w.turns).accepted;
    tear_down(&w);
  }
  if (n_checked < 1000 || n_failed < 20 || n_answers < 100 || n_accepted < 500 || n_forks < 300 ||
      n_over < 3 || sums[OPI_TURN_STOP] < 100 || sums[OPI_TURN_TOKENS] < 100 ||
      sums[OPI_TURN_CONTEXT] < 20 || sums[OPI_TURN_CANCELLED] < 20) {
    OPI_FAIL(
        "%u turns, %u failed, %u answers, %u accepted; %u stops, %u by number, %u by context, "
        "%u cancelled; %u forks, %u of them over",
        n_checked, n_failed, n_answers, (uint32_t)n_accepted, sums[1], sums[2], sums[3], sums[5],
        n_forks, n_over);
  }
}

/* ---- single rules ---- */

static void test_asking_is_refused_by_name_and_value(void) {
  static world w;
  const uint32_t ids[3] = {1, 2, 9};
  uint32_t s = 0, n = 0, end = 0;
  uint64_t n_bytes = 0;
  opi_sampling how = opi_sampling_default;
  set_up(&w, 0);
  OPI_ASSERT_ERROR(opi_turns_submit(w.turns, ids, 3, 0, &how, &s, &w.err), OPIPE_E_INVALID, &w.err,
                   "id 9 at place 2, the vocabulary has 9");
  OPI_ASSERT_ERROR(opi_turns_submit(w.turns, ids, 0, 0, &how, &s, &w.err), OPIPE_E_INVALID, &w.err,
                   "without ids");
  how.top_p = 2;
  OPI_ASSERT_ERROR(opi_turns_submit(w.turns, ids, 2, 0, &how, &s, &w.err), OPIPE_E_INVALID, &w.err,
                   "top_p is 2");
  how.top_p = 1;
  how.n = 9;
  OPI_ASSERT_ERROR(opi_turns_submit(w.turns, ids, 2, 0, &how, &s, &w.err), OPIPE_E_LIMIT, &w.err,
                   "9 answers, 8 of 8 sequences are free");
  how.n = 7;
  OPI_ASSERT_OK(opi_turns_submit(w.turns, ids, 2, 0, &how, &s, &w.err), &w.err);
  w.records[s] = (record){.open = true, .how = how, .n_prompt = 2, .n_given = 2};
  how.n = 2; /* six are kept for the answers */
  OPI_ASSERT_ERROR(opi_turns_submit(w.turns, ids, 2, 0, &how, &s, &w.err), OPIPE_E_LIMIT, &w.err,
                   "2 answers, 1 of 8 sequences are free");
  OPI_ASSERT_OK(opi_turns_fork(w.turns, 0, NULL, &n, &end, &w.err), &w.err);
  OPI_ASSERT_ERROR(opi_turns_fork(w.turns, 0, NULL, &n, &end, &w.err), OPIPE_E_LIMIT, &w.err,
                   "2 sequences are open and 6 kept for answers, of 8");
  OPI_ASSERT_ERROR(opi_turns_extend(w.turns, 0, ids, 1, NULL, &w.err), OPIPE_E_STATE, &w.err,
                   "sequence 0 is waiting");
  OPI_ASSERT_ERROR(opi_turns_extend(w.turns, 0, ids, 1, &how, &w.err), OPIPE_E_INVALID, &w.err,
                   "n is 2, a further turn has one answer");
  OPI_ASSERT_ERROR(opi_turns_draft(w.turns, 0, ids, 3, &w.err), OPIPE_E_INVALID, &w.err, "id 9");
  OPI_ASSERT_OK(opi_turns_release(w.turns, 0, &w.err), &w.err);
  OPI_ASSERT_OK(opi_turns_submit(w.turns, ids, 2, 0, &how, &s, &w.err), &w.err);
  OPI_ASSERT_ERROR(opi_turns_cancel(w.turns, 99, &w.err), OPIPE_E_STATE, &w.err, "99 is not open");
  OPI_ASSERT(!opi_turns_done(w.turns, NULL, OPIPE_FLOAT, 0, NULL));
  tear_down(&w);
  w.params.ngrams.most = 7;
  OPI_ASSERT_ERROR(opi_turns_bytes(&w.params, &n_bytes, &w.err), OPIPE_E_INVALID, &w.err,
                   "drafts of 7 ids");
}

/* A second turn, a pass that fails, and the next turn from what is left. */
static void test_a_failed_pass_ends_its_turns(void) {
  static world w;
  static queued rows;
  const uint32_t ids[4] = {1, 1, 1, 2};
  opi_sampling how = opi_sampling_default;
  opipe_error why = OPIPE_ERROR_INIT;
  uint32_t a = 0, n = 0;
  set_up(&w, 5);
  how.max_tokens = 3;
  OPI_ASSERT_OK(opi_turns_submit(w.turns, ids, 4, 0, &how, &a, &w.err), &w.err);
  w.records[a] = (record){.open = true, .how = how, .n_prompt = 4, .n_given = 4};
  OPI_ASSERT_FATAL(opi_turns_next(w.turns) != NULL);
  (void)opi_fail(&why, OPIPE_E_DEVICE, "rank 1 is gone");
  OPI_ASSERT(opi_turns_done(w.turns, NULL, OPIPE_FLOAT, 0, &why));
  OPI_ASSERT_INT(w.records[a].reason, OPI_TURN_FAILED);
  OPI_ASSERT_INT(opi_kv_count(opi_batch_pool(opi_turns_batch(w.turns))).kept, 0);
  OPI_ASSERT_OK(opi_turns_truncate(w.turns, a, 3, &w.err), &w.err);
  OPI_ASSERT_OK(opi_turns_extend(w.turns, a, ids, 2, NULL, &w.err), &w.err);
  w.n_wrong = 0;
  w.records[a] =
      (record){.open = true, .how = how, .n_prompt = 5, .n_given = 5, .prompt = {1, 1, 1, 1, 1}};
  for (uint32_t i = 0; i < 40 && w.records[a].n_ends == 0; ++i) {
    const opi_pass *pass = opi_turns_next(w.turns);
    if (pass != NULL)
      fill(&w, pass, &rows);
    OPI_ASSERT(opi_turns_done(w.turns, rows.logits, OPIPE_FLOAT, sizeof rows.logits[0], NULL));
  }
  OPI_ASSERT_INT(w.n_wrong, 0);
  OPI_ASSERT_INT(w.records[a].reason, OPI_TURN_TOKENS);
  (void)opi_turns_ids(w.turns, a, &n);
  OPI_ASSERT_INT(n, 8);
  tear_down(&w);
}

static opipe_status create_once(opi_test_memory *memory, void *arg) {
  opi_turns *turns = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = opi_turns_create(&memory->allocator, arg, &turns, &err);
  if (status == OPIPE_OK)
    opi_turns_free(turns);
  return status;
}

static void test_every_allocation_may_fail(void) {
  static world w;
  set_up(&w, 1);
  OPI_ASSERT_INT(opi_test_every_allocation(create_once, &w.params, 10), 5);
  tear_down(&w);
}

OPI_TEST_MAIN("generate/turns", OPI_TEST(test_turns_are_those_of_each_sequence_alone),
              OPI_TEST(test_asking_is_refused_by_name_and_value),
              OPI_TEST(test_a_failed_pass_ends_its_turns), OPI_TEST(test_every_allocation_may_fail))
