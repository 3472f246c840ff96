/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: probabilities against those of transformers and of a plain program, draws against their
 * probabilities, ties, log-probabilities, stops, refusals. A wrong rule would give plausible text.
 */
#include <math.h>
#include <stdlib.h>

#include "loader/base/halves.h"
#include "loader/base/json.h"
#include "runtime/generate/random.h"
#include "runtime/generate/sample.h"
#include "runtime/generate/select.h"
#include "tests/support/support.h"

enum { VOCAB_MOST = 512 };

typedef struct bench {
  opi_test_memory memory;
  opi_arena arena;
  opi_sampler *sampler;
  opi_sampling how;
  opipe_error err;
} bench;

static void set_up(bench *b, uint32_t n_vocab) {
  memset(b, 0, sizeof *b);
  b->err = (opipe_error)OPIPE_ERROR_INIT;
  b->how = opi_sampling_default;
  opi_test_memory_init(&b->memory);
  opi_arena_init(&b->arena, &b->memory.allocator, 0);
  OPI_ASSERT_OK_FATAL(opi_sampler_create(&b->memory.allocator, n_vocab, &b->sampler, &b->err),
                      &b->err);
}

static void tear_down(bench *b) {
  opi_sampler_free(b->sampler);
  opi_arena_release(&b->arena);
  OPI_ASSERT(opi_test_memory_end(&b->memory));
}

static opipe_status read(bench *b, const char *text) {
  return opi_sampling_read(text, strlen(text), 0, &b->arena, &b->how, &b->err);
}

static opi_logits row_of(const float *values, const uint32_t *ids, uint32_t n_ids,
                         uint32_t n_prompt) {
  return (opi_logits){
      .values = values, .dtype = OPIPE_FLOAT, .ids = ids, .n_ids = n_ids, .n_prompt = n_prompt};
}

/* ---- probabilities ---- */

static uint32_t take_ids(const json_t *list, uint32_t *out) {
  for (size_t i = 0; i < json_array_size(list); ++i)
    out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
  return (uint32_t)json_array_size(list);
}

static void compare_row(const json_t *row) {
  bench b;
  float logits[VOCAB_MOST];
  uint32_t ids[64];
  const json_t *wanted = json_object_get(row, "probabilities");
  const uint32_t n = (uint32_t)json_array_size(wanted);
  const uint32_t n_prompt = take_ids(json_object_get(row, "prompt"), ids);
  const uint32_t n_ids = n_prompt + take_ids(json_object_get(row, "answer"), ids + n_prompt);
  char *text = json_dumps(json_object_get(row, "sampling"), 0);
  const double *weights = NULL;
  double sum = 0, worst = 0;
  set_up(&b, n);
  for (uint32_t i = 0; i < n; ++i)
    logits[i] = (float)json_number_value(json_array_get(json_object_get(row, "logits"), i));
  OPI_ASSERT_OK_FATAL(read(&b, text), &b.err);
  const opi_logits logits_row = row_of(logits, ids, n_ids, n_prompt);
  OPI_ASSERT_OK_FATAL(opi_sample_weights(b.sampler, &b.how, &logits_row, &weights, &sum, &b.err),
                      &b.err);
  for (uint32_t i = 0; i < n; ++i)
    worst = fmax(worst, fabs(weights[i] / sum - json_number_value(json_array_get(wanted, i))));
  if (!(worst <= 1e-6))
    OPI_FAIL("%s: a probability differs by %g", text, worst);
  OPI_ASSERT(n == 32);
  free(text);
  tear_down(&b);
}

static void test_probabilities_are_those_of_transformers(void) {
  size_t n_bytes = 0;
  char *text =
      opi_test_read_file(opi_test_source("tests/runtime/generate/processed.json"), &n_bytes);
  json_t *root = NULL, *row = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  size_t i = 0;
  OPI_ASSERT_FATAL(text != NULL);
  OPI_ASSERT_OK_FATAL(opi_json_parse(text, n_bytes, "processed.json", &root, &err), &err);
  OPI_ASSERT_INT(json_array_size(json_object_get(root, "rows")), 33);
  json_array_foreach(json_object_get(root, "rows"), i, row) compare_row(row);
  json_decref(root);
  free(text);
}

typedef struct ranked {
  double score;
  uint32_t id;
} ranked;

static int compare_ranked(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  if (x->score != y->score)
    return x->score > y->score ? -1 : 1;
  return x->id < y->id ? -1 : 1;
}

/* Against sorting, with many equal scores, -infinity and weights that are whole numbers. */
static void test_selection_equals_sorting(void) {
  opi_test_random random = {7};
  double scores[VOCAB_MOST], weights[VOCAB_MOST];
  uint32_t room[VOCAB_MOST];
  ranked order[VOCAB_MOST];
  for (uint32_t round = 0; round < 2000; ++round) {
    const uint32_t n = 1 + (uint32_t)(opi_test_next(&random) % (round % 2 == 0 ? 9 : 300));
    const uint32_t levels = 1 + (uint32_t)(opi_test_next(&random) % 40);
    double total = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t x = opi_test_next(&random) % levels;
      scores[i] = x == 0 ? -(double)INFINITY : ((double)x - 20) * (round % 3 == 0 ? 1e-3 : 1e12);
      weights[i] = (double)(opi_test_next(&random) % 4);
      total += weights[i];
      order[i] = (ranked){scores[i], i};
    }
    qsort(order, n, sizeof *order, compare_ranked);
    const bool plain = round % 5 == 0;
    const double target =
        1 + (double)(opi_test_next(&random) % ((plain ? n : (uint64_t)total) + 2));
    uint32_t last = 0;
    double sum = 0;
    for (last = 0; last < n; ++last) {
      sum += plain ? 1 : weights[order[last].id];
      if (sum >= target)
        break;
    }
    const opi_lowest lowest = opi_select(scores, plain ? NULL : weights, n, target, room);
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; ++i)
      n_kept += opi_is_selected(&lowest, order[i].score, order[i].id) == (i <= last || last == n);
    OPI_ASSERT_INT(n_kept, n);
  }
}

/* Equal scores: the lower id counts as higher, in every rule. */
static void test_ties_go_to_lower_ids(void) {
  const float logits[8] = {1, 3, 2, 3, 3, 2, 3, -1};
  static const struct {
    const char *text;
    uint32_t kept; /* bits of ids with weight */
  } cases[] = {{"temperature=0", 0x02},
               {"top_k=1", 0x02},
               {"top_k=2", 0x0a},
               {"top_k=3", 0x1a},
               {"top_k=5", 0x5e},
               {"top_k=6", 0x7e},
               {"top_p=0.01", 0x02},
               {"top_p=0.3", 0x0a},
               {"temperature=0.01,top_p=0.6", 0x1a},
               {"temperature=0.01,top_p=0.5", 0x0a},
               {"min_p=1", 0x5a}};
  for (uint32_t c = 0; c < OPI_COUNT(cases); ++c) {
    bench b;
    const double *weights = NULL;
    double sum = 0;
    uint32_t kept = 0;
    set_up(&b, 8);
    const opi_logits row = row_of(logits, NULL, 0, 0);
    OPI_ASSERT_OK_FATAL(read(&b, cases[c].text), &b.err);
    OPI_ASSERT_OK(opi_sample_weights(b.sampler, &b.how, &row, &weights, &sum, &b.err), &b.err);
    for (uint32_t i = 0; i < 8; ++i)
      kept |= (uint32_t)(weights[i] > 0) << i;
    if (kept != cases[c].kept)
      OPI_FAIL("%s keeps %#x, not %#x", cases[c].text, kept, cases[c].kept);
    tear_down(&b);
  }
}

/* Numbers at the ends of what a row and its sampling may hold give weights that are numbers. */
static void test_extreme_numbers_have_weights(void) {
  static const char *const texts[] = {"temperature=1e-300",
                                      "temperature=1e9",
                                      "repetition_penalty=1e-300,temperature=1e-9",
                                      "repetition_penalty=1e9,top_p=0.5",
                                      "presence_penalty=-1e9,frequency_penalty=1e9,min_p=0.5",
                                      "logit_bias=1:1e9,top_k=3,top_p=1e-300"};
  const double logits[6] = {-(double)INFINITY, 1.7e308, -1.7e308, 1e-300, 0, 5};
  const uint32_t ids[5] = {0, 1, 2, 3, 5};
  for (uint32_t t = 0; t < OPI_COUNT(texts); ++t) {
    bench b;
    const double *weights = NULL;
    double sum = 0;
    opi_logits row = {.values = logits, .dtype = OPIPE_DOUBLE, .ids = ids, .n_ids = 5};
    set_up(&b, 6);
    OPI_ASSERT_OK_FATAL(read(&b, texts[t]), &b.err);
    OPI_ASSERT_OK(opi_sample_weights(b.sampler, &b.how, &row, &weights, &sum, &b.err), &b.err);
    OPI_ASSERT(isfinite(sum) && sum >= 1 && weights[0] == 0);
    tear_down(&b);
  }
}

/* ---- draws ---- */

/* Known answers of Random123 1.14. */
static void test_philox_gives_the_known_answers(void) {
  static const uint32_t cases[3][10] = {
      {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
       0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
      {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
       0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (uint32_t c = 0; c < 3; ++c) {
    uint32_t counter[4];
    memcpy(counter, cases[c], sizeof counter);
    opi_philox(counter, cases[c] + 4);
    for (uint32_t i = 0; i < 4; ++i)
      OPI_ASSERT_INT(counter[i], cases[c][6 + i]);
  }
}

enum { DRAWS = 100000 };

/* The chi-square statistic of draws whose position, branch or seed counts up. */
static double chi_square(bench *b, const float *logits, uint32_t n, uint32_t counted) {
  uint32_t counts[VOCAB_MOST] = {0};
  const double *weights = NULL;
  double sum = 0, chi = 0;
  const opi_logits one = row_of(logits, NULL, 0, 0);
  opi_sampled sampled;
  static uint32_t ids[DRAWS];
  for (uint32_t i = 0; i < DRAWS; ++i) {
    opi_logits row = row_of(logits, ids, counted == 0 ? i : 9, counted == 0 ? i : 9);
    row.branch = counted == 1 ? i : 0;
    b->how.seed = counted == 2 ? i : 12345;
    if (opi_sample(b->sampler, &b->how, &row, &sampled, &b->err) < 0)
      OPI_FAIL("%s", b->err.message);
    ++counts[sampled.id];
  }
  OPI_ASSERT_OK(opi_sample_weights(b->sampler, &b->how, &one, &weights, &sum, &b->err), &b->err);
  for (uint32_t i = 0; i < n; ++i) {
    const double expected = weights[i] / sum * DRAWS;
    const double off = counts[i] - expected;
    OPI_ASSERT(expected > 0 || counts[i] == 0);
    chi += expected > 0 ? off * off / expected : 0;
  }
  return chi;
}

/* 15 degrees of freedom: 44.3 is exceeded once in 10,000 times; with top_k 8 there are 7: 29.9. */
static void test_draws_follow_the_probabilities(void) {
  float logits[16];
  for (uint32_t i = 0; i < 16; ++i)
    logits[i] = (float)(i * 7 % 16) * 0.25F;
  for (uint32_t counted = 0; counted < 3; ++counted) {
    bench b;
    set_up(&b, 16);
    if (counted > 0)
      OPI_ASSERT_OK_FATAL(read(&b, "top_k=8,temperature=0.8"), &b.err);
    const double chi = chi_square(&b, logits, 16, counted);
    if (!(chi < (counted > 0 ? 29.9 : 44.3) && chi > (counted > 0 ? 0.4 : 2.5)))
      OPI_FAIL("chi-square %g of %d degrees", chi, counted > 0 ? 7 : 15);
    tear_down(&b);
  }
}

enum { MIXED = 24, STEPS = 12 };

typedef struct mixed {
  float logits[STEPS][64];
  uint32_t ids[STEPS + 1];
  opi_sampling how;
} mixed;

static void step(bench *b, opi_sampler *sampler, const mixed *m, uint32_t branch, uint32_t at,
                 uint32_t *ids) {
  opi_sampled sampled;
  opi_logits row = row_of(m->logits[at], ids, at + 1, 1);
  row.branch = branch;
  OPI_ASSERT_OK(opi_sample(sampler, &m->how, &row, &sampled, &b->err), &b->err);
  ids[at + 1] = sampled.id;
}

/* Sequences alone, each with a sampler of its own, and any mixture of them through one sampler,
 * with rows of NaN between: the same tokens, and no allocation after opening. */
static void test_draws_are_the_same_in_every_mix(void) {
  static mixed all[MIXED];
  opi_test_random random = {11};
  bench b;
  uint32_t at[MIXED] = {0}, ids[MIXED][STEPS + 1] = {{0}}, n_left = MIXED * STEPS, n_differ = 0;
  set_up(&b, 64);
  for (uint32_t i = 0; i < MIXED; ++i) {
    opi_sampler *alone = NULL;
    all[i].how = opi_sampling_default;
    all[i].how.seed = i / 2;
    all[i].how.top_k = i % 3 * 10;
    all[i].how.repetition_penalty = 1 + i % 2;
    all[i].how.presence_penalty = i % 4;
    for (uint32_t s = 0; s < STEPS; ++s)
      opi_test_fill_f32(&random, all[i].logits[s], 64, -3, 3);
    OPI_ASSERT_OK_FATAL(opi_sampler_create(&b.memory.allocator, 64, &alone, &b.err), &b.err);
    for (uint32_t s = 0; s < STEPS; ++s)
      step(&b, alone, &all[i], i % 2, s, all[i].ids);
    opi_sampler_free(alone);
  }
  const uint64_t n_calls = b.memory.n_calls;
  while (n_left > 0) {
    const uint32_t i = (uint32_t)(opi_test_next(&random) % MIXED);
    float broken[64] = {0};
    opi_sampled sampled;
    opi_logits row = row_of(broken, all[i].ids, STEPS, 1);
    broken[i] = NAN;
    OPI_ASSERT_ERROR(opi_sample(b.sampler, &all[i].how, &row, &sampled, &b.err), OPIPE_E_INVALID,
                     &b.err, "position 12 hold nan at id");
    if (at[i] < STEPS) {
      step(&b, b.sampler, &all[i], i % 2, at[i]++, ids[i]);
      --n_left;
    }
  }
  OPI_ASSERT_INT(b.memory.n_calls, n_calls);
  for (uint32_t i = 0; i < MIXED; ++i) {
    OPI_ASSERT(memcmp(ids[i], all[i].ids, sizeof ids[i]) == 0);
    n_differ += i > 0 && memcmp(ids[i], ids[i - 1], sizeof ids[i]) != 0;
  }
  OPI_ASSERT(n_differ > MIXED / 2);
  tear_down(&b);
}

/* Branches of one seed, and seeds of one branch, draw independently of each other. */
static void test_branches_and_seeds_differ(void) {
  double products[4] = {0};
  enum { N = 20000 };
  for (uint32_t i = 0; i < N; ++i) {
    const double x = opi_draw(1, 0, i) - 0.5;
    products[0] += x * (opi_draw(1, 1, i) - 0.5);
    products[1] += x * (opi_draw(2, 0, i) - 0.5);
    products[2] += x * (opi_draw(UINT64_C(1) << 32 | 1, 0, i) - 0.5);
    products[3] += x * (opi_draw(1, 0, i + 1) - 0.5);
  }
  for (uint32_t i = 0; i < 4; ++i) /* standard deviation 1/12/sqrt(N) */
    OPI_ASSERT(fabs(products[i] / N) < 4.0 / 12 / 141.4);
}

/* ---- log-probabilities, types ---- */

static void test_logprobs_are_of_the_raw_row(void) {
  float logits[100];
  opi_test_random random = {3};
  const uint32_t ids[2] = {4, 5};
  bench b;
  opi_sampled sampled, chosen;
  double total = 0;
  set_up(&b, 100);
  opi_test_fill_f32(&random, logits, 100, -4, 4);
  logits[70] = logits[20]; /* a tie */
  for (uint32_t i = 0; i < 100; ++i)
    total += exp((double)logits[i]);
  const opi_logits row = row_of(logits, ids, 2, 1);
  OPI_ASSERT_OK_FATAL(read(&b,
                           "logprobs=20,temperature=0.2,top_k=3,presence_penalty=2,"
                           "logit_bias=9:30"),
                      &b.err);
  OPI_ASSERT_OK_FATAL(opi_sample(b.sampler, &b.how, &row, &sampled, &b.err), &b.err);
  OPI_ASSERT_INT(sampled.id, 9);
  OPI_ASSERT(fabs(sampled.logprob - ((double)logits[9] - log(total))) < 1e-9);
  OPI_ASSERT_INT(sampled.n_likely, 20);
  for (uint32_t i = 0; i < 20; ++i) {
    uint32_t n_above = 0;
    const opi_likely *one = &sampled.likely[i];
    OPI_ASSERT(fabs(one->logprob - ((double)logits[one->id] - log(total))) < 1e-9);
    for (uint32_t k = 0; k < 100; ++k)
      n_above += logits[k] > logits[one->id] || (logits[k] == logits[one->id] && k < one->id);
    OPI_ASSERT_INT(n_above, i);
  }
  OPI_ASSERT_OK(opi_sample_chosen(b.sampler, &b.how, &row, 42, &chosen, &b.err), &b.err);
  OPI_ASSERT(chosen.id == 42 && fabs(chosen.logprob - ((double)logits[42] - log(total))) < 1e-9);
  OPI_ASSERT_ERROR(opi_sample_chosen(b.sampler, &b.how, &row, 100, &chosen, &b.err),
                   OPIPE_E_INVALID, &b.err,
                   "id 100 was chosen for position 2, the vocabulary has 100");
  OPI_ASSERT_ERROR(opi_sample_chosen(b.sampler, &b.how, &row, -1, &chosen, &b.err), OPIPE_E_INVALID,
                   &b.err, "id -1");
  b.how.logprobs = -1;
  OPI_ASSERT_OK(opi_sample(b.sampler, &b.how, &row, &sampled, &b.err), &b.err);
  OPI_ASSERT(isnan(sampled.logprob) && sampled.n_likely == 0);
  tear_down(&b);
}

static void test_every_type_of_logits(void) {
  bench b;
  float as_float[64];
  double as_double[64];
  uint16_t half[64], bfloat[64];
  opi_test_random random = {5};
  set_up(&b, 64);
  for (uint32_t position = 0; position < 50; ++position) {
    opi_test_fill_f32(&random, as_float, 64, -2, 2);
    for (uint32_t i = 0; i < 64; ++i) {
      bfloat[i] = opi_bfloat_of(as_float[i]);
      as_float[i] = opi_bfloat_to_float(bfloat[i]);
      half[i] = opi_half_of(as_float[i]);
      as_float[i] = opi_half_to_float(half[i]); /* both hold it, but for the smallest */
      bfloat[i] = opi_bfloat_of(as_float[i]);
      as_double[i] = (double)as_float[i];
    }
    const void *const values[] = {as_float, as_double, half};
    static const uint32_t dtypes[] = {OPIPE_FLOAT, OPIPE_DOUBLE, OPIPE_FLOAT16};
    uint32_t ids[3];
    for (uint32_t t = 0; t < 3; ++t) {
      const opi_logits row = {.values = values[t], .dtype = dtypes[t], .branch = position};
      opi_sampled sampled;
      OPI_ASSERT_OK_FATAL(opi_sample(b.sampler, &b.how, &row, &sampled, &b.err), &b.err);
      ids[t] = sampled.id;
    }
    OPI_ASSERT(ids[0] == ids[1] && ids[0] == ids[2]);
  }
  const opi_logits narrow = {.values = bfloat, .dtype = OPIPE_BFLOAT16};
  const opi_logits whole = {.values = bfloat, .dtype = OPIPE_INT8};
  opi_sampled sampled;
  OPI_ASSERT_OK(opi_sample(b.sampler, &b.how, &narrow, &sampled, &b.err), &b.err);
  OPI_ASSERT_ERROR(opi_sample(b.sampler, &b.how, &whole, &sampled, &b.err), OPIPE_E_UNSUPPORTED,
                   &b.err, "type int8");
  tear_down(&b);
}

static void test_rows_without_numbers_are_refused(void) {
  bench b;
  float logits[5] = {1, 2, 3, 4, 5};
  const uint32_t ids[3] = {1, 1, 1};
  const opi_logits row = row_of(logits, ids, 3, 2);
  opi_sampled sampled;
  set_up(&b, 5);
  logits[3] = NAN;
  OPI_ASSERT_ERROR(opi_sample(b.sampler, &b.how, &row, &sampled, &b.err), OPIPE_E_INVALID, &b.err,
                   "the logits of position 3 hold nan at id 3");
  logits[3] = (float)INFINITY;
  b.how.temperature = 0;
  OPI_ASSERT_ERROR(opi_sample(b.sampler, &b.how, &row, &sampled, &b.err), OPIPE_E_INVALID, &b.err,
                   "+infinity at id 3");
  for (uint32_t i = 0; i < 5; ++i)
    logits[i] = i == 2 ? 1 : -(float)INFINITY;
  OPI_ASSERT_OK(opi_sample(b.sampler, &b.how, &row, &sampled, &b.err), &b.err);
  OPI_ASSERT_INT(sampled.id, 2);
  OPI_ASSERT_OK_FATAL(read(&b, "stop=2,min_tokens=9,logprobs=3"), &b.err);
  OPI_ASSERT_ERROR(opi_sample(b.sampler, &b.how, &row, &sampled, &b.err), OPIPE_E_INVALID, &b.err,
                   "no id is left at position 3");
  tear_down(&b);
}

/* ---- ends ---- */

static void test_turns_end_at_stops(void) {
  static const struct {
    const char *text;
    uint32_t n_ids, end, n_stop, held;
  } cases[] = {
      /* ids: 1 2 3 (the prompt), then 3 1 2 3 1 2 4 */
      {"stop=9", 10, OPI_TURN_GOES_ON, 0, 0},
      {"stop=3", 3, OPI_TURN_GOES_ON, 0, 0},
      {"stop=3", 4, OPI_TURN_STOP, 1, 0},
      {"stop=3,min_tokens=1", 4, OPI_TURN_GOES_ON, 0, 0},
      {"stop=3,min_tokens=1", 7, OPI_TURN_STOP, 1, 0},
      {"stop=2+3+3", 4, OPI_TURN_GOES_ON, 0, 0}, /* across the prompt's end */
      {"stop=3+1+2", 4, OPI_TURN_GOES_ON, 0, 1},
      {"stop=3+1+2", 5, OPI_TURN_GOES_ON, 0, 2},
      {"stop=3+1+2", 6, OPI_TURN_STOP, 3, 0},
      {"stop=3+1+2,stop=2", 6, OPI_TURN_STOP, 3, 0},
      {"stop=2,stop=3+1+2", 6, OPI_TURN_STOP, 3, 0},
      {"stop=3+1+2,min_tokens=3", 6, OPI_TURN_GOES_ON, 0, 0},
      {"stop=3+1+2,min_tokens=3", 7, OPI_TURN_GOES_ON, 0, 1},
      {"stop=3+1+2,min_tokens=3", 9, OPI_TURN_STOP, 3, 0},
      {"stop=1+2+3+1+2+4", 8, OPI_TURN_GOES_ON, 0, 4},
      {"stop=1+2+3+1+2+4", 10, OPI_TURN_STOP, 6, 0},
      {"stop=3+1+2+3+1+3", 9, OPI_TURN_GOES_ON, 0, 3}, /* begins anew at the second 3 */
      {"max_tokens=3", 5, OPI_TURN_GOES_ON, 0, 0},
      {"max_tokens=3", 6, OPI_TURN_TOKENS, 0, 0},
      {"stop=2,max_tokens=3", 6, OPI_TURN_STOP, 1, 0},
      {"max_tokens=100", 10, OPI_TURN_CONTEXT, 0, 0},
  };
  const uint32_t ids[10] = {1, 2, 3, 3, 1, 2, 3, 1, 2, 4};
  for (uint32_t c = 0; c < OPI_COUNT(cases); ++c) {
    bench b;
    uint32_t n_stop = 99;
    const uint32_t context = strcmp(cases[c].text, "max_tokens=100") == 0 ? 10 : 11;
    set_up(&b, 16);
    OPI_ASSERT_OK_FATAL(read(&b, cases[c].text), &b.err);
    const uint32_t end = opi_turn_end(&b.how, ids, cases[c].n_ids, 3, context, &n_stop);
    if (end != cases[c].end || n_stop != cases[c].n_stop)
      OPI_FAIL("%s at %u: end %u, stop of %u", cases[c].text, cases[c].n_ids, end, n_stop);
    const uint32_t held = opi_turn_held(&b.how, ids, cases[c].n_ids, 3);
    if (end == OPI_TURN_GOES_ON && held != cases[c].held)
      OPI_FAIL("%s at %u: %u ids held, not %u", cases[c].text, cases[c].n_ids, held, cases[c].held);
    OPI_ASSERT(cases[c].n_ids <= 10);
    tear_down(&b);
  }
}

/* Random answers and stops: what was not held is never part of a stop. */
static void test_streamed_ids_are_no_part_of_a_stop(void) {
  opi_test_random random = {19};
  uint32_t n_stopped = 0;
  for (uint32_t round = 0; round < 3000; ++round) {
    uint32_t ids[40], stop_ids[3][4], n_streamed = 2, n_stop = 0;
    opi_stop stops[3];
    opi_sampling how = opi_sampling_default;
    for (uint32_t s = 0; s < 3; ++s) {
      stops[s] = (opi_stop){stop_ids[s], 2 + (uint32_t)(opi_test_next(&random) % 3)};
      for (uint32_t i = 0; i < 4; ++i)
        stop_ids[s][i] = (uint32_t)(opi_test_next(&random) % 3);
    }
    how.stops = stops;
    how.n_stops = 3;
    how.min_tokens = (uint32_t)(opi_test_next(&random) % 6);
    ids[0] = ids[1] = 1;
    for (uint32_t n = 3; n <= 40; ++n) {
      ids[n - 1] = (uint32_t)(opi_test_next(&random) % 3);
      if (opi_turn_end(&how, ids, n, 2, 1000, &n_stop) == OPI_TURN_STOP) {
        OPI_ASSERT(n_streamed <= n - n_stop);
        ++n_stopped;
        break;
      }
      const uint32_t shown = n - opi_turn_held(&how, ids, n, 2);
      n_streamed = shown > n_streamed ? shown : n_streamed;
    }
  }
  OPI_ASSERT(n_stopped > 2000);
}

/* ---- keys ---- */

static void test_both_forms_say_the_same(void) {
  static const char *const texts[] = {
      "temperature=0.5,top_k=40,top_p=0.9,min_p=0.05,repetition_penalty=1.1,presence_penalty=-0.5,"
      "frequency_penalty=0.25,seed=18446744073709551615,n=3,min_tokens=2,max_tokens=9,logprobs=4,"
      "stop=2,stop=13+17,logit_bias=5:-1.5,logit_bias=7:2",
      " {\"temperature\": 0.5, \"top_k\": 40, \"top_p\": 0.9, \"min_p\": 0.05, "
      "\"repetition_penalty\": 1.1, \"presence_penalty\": -0.5, \"frequency_penalty\": 0.25, "
      "\"seed\": \"18446744073709551615\", \"n\": 3, \"min_tokens\": 2, \"max_tokens\": 9, "
      "\"logprobs\": 4, \"stop\": [2, [13, 17]], \"logit_bias\": {\"5\": -1.5, \"7\": 2}}"};
  for (uint32_t t = 0; t < 2; ++t) {
    bench b;
    set_up(&b, 8);
    OPI_ASSERT_OK_FATAL(read(&b, texts[t]), &b.err);
    const opi_sampling *s = &b.how;
    OPI_ASSERT(s->temperature == 0.5 && s->top_k == 40 && s->top_p == 0.9 && s->min_p == 0.05);
    OPI_ASSERT(s->repetition_penalty == 1.1 && s->presence_penalty == -0.5);
    OPI_ASSERT(s->frequency_penalty == 0.25 && s->seed == UINT64_MAX && s->n == 3);
    OPI_ASSERT(s->min_tokens == 2 && s->max_tokens == 9 && s->logprobs == 4);
    OPI_ASSERT_FATAL(s->n_stops == 2 && s->n_biases == 2);
    OPI_ASSERT(s->stops[0].n == 1 && s->stops[0].ids[0] == 2 && s->stops[1].n == 2);
    OPI_ASSERT(s->stops[1].ids[0] == 13 && s->stops[1].ids[1] == 17);
    OPI_ASSERT(s->biases[0].id == 5 && s->biases[0].add == -1.5 && s->biases[1].add == 2);
    OPI_ASSERT_OK(read(&b, "stop=3"), &b.err); /* later lists replace earlier ones */
    OPI_ASSERT(b.how.n_stops == 1 && b.how.stops[0].ids[0] == 3 && b.how.n_biases == 2);
    OPI_ASSERT_OK(read(&b, t == 0 ? "" : "{}"), &b.err);
    OPI_ASSERT(b.how.n_stops == 1 && b.how.top_k == 40);
    tear_down(&b);
  }
}

static void test_keys_are_refused_by_name_and_value(void) {
  static const struct {
    const char *text, *part;
  } cases[] = {
      {"temperature=-1", "temperature is -1, it must be a number from 0"},
      {"{\"temperature\": -0.5}", "temperature is -0.5, it must be"},
      {"temperature=nan", "temperature is nan"},
      {"temperature=0x1", "temperature is 0x1"},
      {"temperature=", "temperature is , it must be"},
      {"temperature", "temperature is without a value"},
      {"temperature=1,temperature=2", "temperature is given twice"},
      {"{\"temperature\": 1, \"temperature\": 2}", "duplicate"},
      {"{\"temperature\": \"1\"}", "temperature is \"1\""},
      {"{\"temperature\": true}", "temperature is true"},
      {"{\"temperature\": 1e400}", "not valid JSON"},
      {"temperatures=1", "no key 'temperatures'; did you mean 'temperature'?"},
      {"{\"top_q\": 1}", "no key 'top_q'"},
      {"=1", "no key ''"},
      {"top_p=0", "top_p is 0, it must be a number above 0 and at most 1"},
      {"top_p=1.0001", "top_p is 1.0001"},
      {"min_p=-0.1", "min_p is -0.1"},
      {"top_k=-1", "top_k is -1"},
      {"top_k=2.5", "top_k is 2.5"},
      {"top_k=4294967296", "top_k is 4294967296"},
      {"repetition_penalty=0", "repetition_penalty is 0"},
      {"presence_penalty=1e10", "presence_penalty is 10000000000.0"},
      {"n=0", "n is 0, it must be an integer from 1 to 1024"},
      {"{\"n\": 1025}", "n is 1025"},
      {"seed=-1", "seed is -1"},
      {"seed=18446744073709551616", "seed is 18446744073709551616"},
      {"max_tokens=0", "max_tokens is 0"},
      {"min_tokens=9,max_tokens=8", "min_tokens is 9, above max_tokens, which is 8"},
      {"logprobs=21", "logprobs is 21"},
      {"logprobs=-2", "logprobs is -2"},
      {"stop=-1", "stop is -1"},
      {"stop=1+", "stop is 1+"},
      {"stop=1+x", "stop is 1+x"},
      {"{\"stop\": []}", ""},
      {"{\"stop\": [[]]}", "stop is []"},
      {"{\"stop\": [[1, [2]]]}", "stop is [1,[2]]"},
      {"{\"stop\": \"</s>\"}", "stop is \"</s>\""},
      {"logit_bias=5", "logit_bias is 5"},
      {"logit_bias=x:1", "logit_bias is x"},
      {"logit_bias=5:x", "logit_bias is x"},
      {"logit_bias=5:1e10", "logit_bias of id 5 is 1e+10"},
      {"logit_bias=5:1,logit_bias=5:2", "logit_bias has id 5 twice"},
      {"{\"logit_bias\": [5]}", "logit_bias is [5]"},
      {"{\"logit_bias\": {\"-5\": 1}}", "logit_bias is -5"},
      {"logit_bias=100:1", "logit_bias has id 100, the vocabulary has 100"},
      {"stop=99+100", "stop has id 100, the vocabulary has 100"},
      {"{\"n\": [", "not valid JSON"},
  };
  for (uint32_t c = 0; c < OPI_COUNT(cases); ++c) {
    bench b;
    set_up(&b, 8);
    const opi_sampling before = b.how;
    const opipe_status status =
        opi_sampling_read(cases[c].text, strlen(cases[c].text), 100, &b.arena, &b.how, &b.err);
    if (cases[c].part[0] == '\0') {
      OPI_ASSERT_OK(status, &b.err); /* no stops */
      OPI_ASSERT_INT(b.how.n_stops, 0);
    } else {
      OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &b.err, cases[c].part);
      OPI_ASSERT(memcmp(&before, &b.how, sizeof before) == 0);
    }
    tear_down(&b);
  }
}

static void test_lists_have_bounds(void) {
  bench b;
  opi_text text;
  set_up(&b, 8);
  opi_text_init(&text, opi_allocator_system());
  for (uint32_t i = 0; i <= OPI_SAMPLING_STOPS; ++i)
    opi_text_printf(&text, "%sstop=%u", i == 0 ? "" : ",", i);
  OPI_ASSERT_ERROR(read(&b, text.data), OPIPE_E_LIMIT, &b.err, "stop has more than 64 ids");
  text.n = 0;
  for (uint32_t i = 0; i <= OPI_SAMPLING_STOP_IDS; ++i)
    opi_text_printf(&text, "%s%u", i == 0 ? "stop=" : "+", i);
  OPI_ASSERT_ERROR(read(&b, text.data), OPIPE_E_LIMIT, &b.err, "sequence of 65 ids, at most 64");
  text.n = 0;
  for (uint32_t i = 0; i <= OPI_SAMPLING_BIASES; ++i)
    opi_text_printf(&text, "%slogit_bias=%u:1", i == 0 ? "" : ",", i);
  OPI_ASSERT_ERROR(read(&b, text.data), OPIPE_E_LIMIT, &b.err, "more than 1024 ids");
  /* A struct that nobody read is checked too. */
  b.how = opi_sampling_default;
  b.how.top_p = NAN;
  OPI_ASSERT_ERROR(opi_sampling_check(&b.how, 0, &b.err), OPIPE_E_INVALID, &b.err, "top_p is nan");
  b.how = opi_sampling_default;
  b.how.n = 0;
  OPI_ASSERT_ERROR(opi_sampling_check(&b.how, 0, &b.err), OPIPE_E_INVALID, &b.err, "n is 0");
  b.how = opi_sampling_default;
  b.how.n_stops = 65;
  OPI_ASSERT_ERROR(opi_sampling_check(&b.how, 0, &b.err), OPIPE_E_LIMIT, &b.err, "65 stops");
  opi_text_release(&text);
  tear_down(&b);
}

static opipe_status read_once(opi_test_memory *memory, void *arg) {
  static const char text[] = "stop=1,stop=2+3,logit_bias=1:2,n=4";
  opi_sampling how = opi_sampling_default;
  opi_sampler *sampler = NULL;
  opi_arena arena;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)arg;
  opi_arena_init(&arena, &memory->allocator, 0);
  opipe_status status = opi_sampling_read(text, sizeof text - 1, 0, &arena, &how, &err);
  if (status == OPIPE_OK)
    status = opi_sampler_create(&memory->allocator, 100, &sampler, &err);
  opi_sampler_free(sampler);
  opi_arena_release(&arena);
  return status;
}

static void test_every_allocation_may_fail(void) {
  OPI_ASSERT(opi_test_every_allocation(read_once, NULL, 50) > 2);
}

OPI_TEST_MAIN("generate/sample", OPI_TEST(test_probabilities_are_those_of_transformers),
              OPI_TEST(test_selection_equals_sorting), OPI_TEST(test_ties_go_to_lower_ids),
              OPI_TEST(test_extreme_numbers_have_weights),
              OPI_TEST(test_philox_gives_the_known_answers),
              OPI_TEST(test_draws_follow_the_probabilities),
              OPI_TEST(test_draws_are_the_same_in_every_mix),
              OPI_TEST(test_branches_and_seeds_differ), OPI_TEST(test_logprobs_are_of_the_raw_row),
              OPI_TEST(test_every_type_of_logits), OPI_TEST(test_rows_without_numbers_are_refused),
              OPI_TEST(test_turns_end_at_stops), OPI_TEST(test_streamed_ids_are_no_part_of_a_stop),
              OPI_TEST(test_both_forms_say_the_same),
              OPI_TEST(test_keys_are_refused_by_name_and_value), OPI_TEST(test_lists_have_bounds),
              OPI_TEST(test_every_allocation_may_fail))
