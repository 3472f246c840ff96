/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: probabilities are transformers' where it has the rule, else a plain program's; draws
 * have these probabilities, and depend on seed, branch and position alone; ends of answers; what is
 * refused.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/generate/generate.h"
#include "tests/support/support.h"

enum { WORDS = 24, HISTORY = 9 };

static opi_sampler *open_sampler(int64_t vocabulary) {
  opi_sampler *sampler = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_sampler_create(opi_allocator_system(), vocabulary, &sampler, &err), &err);
  return sampler;
}

static bool are_near(const double *a, const double *b, int64_t n) {
  bool near = true;
  for (int64_t i = 0; i < n; ++i)
    near = near && fabs(a[i] - b[i]) <= 1e-6;
  return near;
}

/* ---- probabilities ---- */

typedef struct stored {
  opi_sampling how;
  int64_t tokens[HISTORY];
  float logits[WORDS];
  double wanted[WORDS];
} stored;

static bool read_case(FILE *file, stored *c) {
  double top_k, n, x;
  c->how = opi_sampling_default();
  if (fscanf(file, "%lf %lf %lf %lf %lf %lf", &c->how.temperature, &top_k, &c->how.top_p,
             &c->how.min_p, &c->how.repetition, &n) != 6 ||
      n != HISTORY)
    return false;
  c->how.top_k = (int64_t)top_k;
  for (int i = 0; i < HISTORY + 2 * WORDS; ++i) {
    if (fscanf(file, "%lf", &x) != 1)
      return false;
    if (i < HISTORY)
      c->tokens[i] = (int64_t)x;
    else if (i < HISTORY + WORDS)
      c->logits[i - HISTORY] = (float)x;
    else
      c->wanted[i - HISTORY - WORDS] = x;
  }
  return true;
}

static void test_transformers(void) {
  FILE *file = fopen(opi_test_source("tests/data/sampling/probabilities.txt"), "r");
  opi_sampler *sampler = open_sampler(WORDS);
  stored c;
  int n = 0;
  OPI_ASSERT_FATAL(file != NULL);
  for (; read_case(file, &c); ++n) {
    const opi_history history = {c.tokens, HISTORY, 4, 0};
    const double *weights = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK_FATAL(opi_sampling_check(&c.how, WORDS, &err), &err);
    OPI_ASSERT_OK_FATAL(opi_sample_weights(sampler, &c.how, c.logits, &history, &weights, &err),
                        &err);
    (void)opi_test_check(are_near(weights, c.wanted, WORDS), __FILE__, __LINE__, false, "case %d",
                         n);
  }
  OPI_ASSERT_INT(n, 12);
  (void)fclose(file);
  opi_sampler_free(sampler);
}

/* Bias, banned stops, presence and frequency, then temperature, as a page of text would say it. */
static void plainly(const opi_sampling *how, const float *logits, const opi_history *history,
                    double *out) {
  double sum = 0;
  for (int64_t t = 0; t < WORDS; ++t) {
    int64_t count = 0;
    double x = (double)logits[t];
    for (uint32_t i = 0; i < how->n_biases; ++i)
      x += how->biases[i].token == t ? how->biases[i].bias : 0;
    for (int64_t i = history->n_prompt; i < history->n; ++i)
      count += history->tokens[i] == t;
    x -= how->presence * (count > 0) + how->frequency * (double)count;
    for (uint32_t i = 0; i < how->n_stops; ++i) {
      if (how->stops[i].n == 1 && how->stops[i].tokens[0] == t &&
          history->n - history->n_prompt < how->min_tokens)
        x = -(double)INFINITY;
    }
    sum += out[t] = exp(x / how->temperature);
  }
  for (int64_t t = 0; t < WORDS; ++t)
    out[t] /= sum;
}

static void test_plain_rules(void) {
  static const int64_t tokens[HISTORY] = {1, 2, 3, 2, 5, 5, 5, 7, 2}, stop = 11, pair[2] = {5, 7};
  static const opi_token_bias biases[] = {{3, 1.5}, {5, -2}, {8, -(double)INFINITY}, {3, 0.25}};
  static const opi_token_list stops[] = {{&stop, 1}, {pair, 2}};
  opi_sampler *sampler = open_sampler(WORDS);
  opi_test_random random = {9};
  float logits[WORDS];
  double wanted[WORDS];
  for (int i = 0; i < 32; ++i) {
    opi_sampling how = opi_sampling_default();
    const opi_history history = {tokens, HISTORY, i % 2 != 0 ? 4 : 8, 0};
    const double *weights = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    opi_test_fill_f32(&random, logits, WORDS, -3, 3);
    how.temperature = 0.5 + 0.1 * i;
    how.presence = i & 2 ? 0.7 : 0;
    how.frequency = i & 4 ? 0.4 : 0;
    how.biases = biases;
    how.n_biases = i & 8 ? OPI_COUNT(biases) : 0;
    how.stops = stops;
    how.n_stops = OPI_COUNT(stops);
    how.min_tokens = i & 16 ? 3 : 0;
    OPI_ASSERT_OK_FATAL(opi_sampling_check(&how, WORDS, &err), &err);
    OPI_ASSERT_OK_FATAL(opi_sample_weights(sampler, &how, logits, &history, &weights, &err), &err);
    plainly(&how, logits, &history, wanted);
    OPI_ASSERT(are_near(weights, wanted, WORDS));
  }
  opi_sampler_free(sampler);
}

/* All rules at once, in their order: repetition and the others before the tail is cut. */
static void test_order_of_rules(void) {
  static const float logits[5] = {4, 3.9f, 3, 2, -1};
  static const int64_t tokens[4] = {0, 1, 1, 4};
  static const opi_token_bias bias = {4, 3};
  const opi_history history = {tokens, 4, 1, 0};
  opi_sampler *sampler = open_sampler(5);
  opi_sampling how = opi_sampling_default();
  const double *weights = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  how.temperature = 0.5;
  how.biases = &bias;
  how.n_biases = 1;
  how.repetition = 2; /* 2, 1.95, 3, 2, 1 */
  how.presence = 0.5;
  how.frequency = 0.1; /* 2, 1.25, 3, 2, 0.4 */
  how.top_k = 2;       /* 2 and the two that are equal behind it */
  OPI_ASSERT_OK_FATAL(opi_sample_weights(sampler, &how, logits, &history, &weights, &err), &err);
  const double rest = exp(-2), sum = 1 + 2 * rest;
  const double wanted[5] = {rest / sum, 0, 1 / sum, rest / sum, 0};
  OPI_ASSERT(are_near(weights, wanted, 5));
  OPI_ASSERT(weights[1] == 0 && weights[4] == 0);
  how.top_p = 1 / sum + 0.01; /* of the equal ones the lower id */
  OPI_ASSERT_OK_FATAL(opi_sample_weights(sampler, &how, logits, &history, &weights, &err), &err);
  OPI_ASSERT(weights[0] > 0 && weights[2] > 0 && weights[3] == 0);
  how.min_p = 0.2; /* exp(-2) is 0.135 */
  OPI_ASSERT_OK_FATAL(opi_sample_weights(sampler, &how, logits, &history, &weights, &err), &err);
  OPI_ASSERT(weights[2] == 1 && weights[0] == 0);
  opi_sampler_free(sampler);
}

/* ---- draws ---- */

/* One seed in a million exceeds 70 with 23 degrees of freedom. */
static void check_chi_square(const char *what, const opi_sampling *given, bool by_branch,
                             bool by_seed) {
  enum { DRAWS = 100000 };
  opi_sampler *sampler = open_sampler(WORDS);
  int64_t *tokens = calloc(DRAWS, sizeof *tokens);
  opi_test_random random = {3};
  float logits[WORDS];
  double weights[WORDS], square = 0;
  int64_t counts[WORDS] = {0};
  const double *found = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_FATAL(tokens != NULL);
  opi_test_fill_f32(&random, logits, WORDS, -1.5, 1.5);
  for (int i = 0; i < DRAWS; ++i) {
    const opi_history history = {tokens, by_branch || by_seed ? 1 : i, 0,
                                 by_branch ? (uint64_t)i : 0};
    opi_sampling how = *given;
    opi_sampled drawn;
    how.seed = by_seed ? (uint64_t)i : given->seed;
    OPI_ASSERT_OK_FATAL(opi_sample(sampler, &how, logits, &history, &drawn, NULL, &err), &err);
    ++counts[drawn.token];
  }
  const opi_history none = {tokens, 0, 0, 0};
  OPI_ASSERT_OK_FATAL(opi_sample_weights(sampler, given, logits, &none, &found, &err), &err);
  memcpy(weights, found, sizeof weights);
  for (int t = 0; t < WORDS; ++t) {
    const double wanted = weights[t] * DRAWS;
    OPI_ASSERT(wanted > 0 || counts[t] == 0);
    square += wanted > 0 ? ((double)counts[t] - wanted) * ((double)counts[t] - wanted) / wanted : 0;
  }
  (void)opi_test_check(square < 70, __FILE__, __LINE__, false, "%s: chi-square %g", what, square);
  free(tokens);
  opi_sampler_free(sampler);
}

static void test_draws(void) {
  opi_sampling how = opi_sampling_default();
  how.temperature = 1;
  how.seed = 17;
  check_chi_square("positions", &how, false, false);
  check_chi_square("branches", &how, true, false);
  check_chi_square("seeds", &how, false, true);
  how.top_p = 0.7;
  check_chi_square("a cut tail", &how, true, false);
}

/* Two sequences in turn and alone, by one sampler and by two: the same tokens. */
static void test_draws_in_mixes(void) {
  enum { STEPS = 200 };
  static float logits[2][STEPS][WORDS];
  int64_t tokens[3][2][STEPS];
  opi_test_random random = {5};
  opi_sampler *samplers[2] = {open_sampler(WORDS), open_sampler(WORDS)};
  opi_sampling how = opi_sampling_default();
  opipe_error err = OPIPE_ERROR_INIT;
  opi_test_fill_f32(&random, &logits[0][0][0], 2 * STEPS * WORDS, -2, 2);
  how.temperature = 1.2;
  how.top_k = 15;
  how.frequency = 0.1;
  how.repetition = 1.1;
  how.seed = 4;
  for (int way = 0; way < 3; ++way) {
    for (int i = 0; i < 2 * STEPS; ++i) {
      const int s = way == 0 ? i / STEPS : i % 2, k = way == 0 ? i % STEPS : i / 2;
      const opi_history history = {tokens[way][s], k, 0, (uint64_t)s};
      opi_sampled drawn;
      OPI_ASSERT_OK_FATAL(
          opi_sample(samplers[way == 2 ? s : 0], &how, logits[s][k], &history, &drawn, NULL, &err),
          &err);
      tokens[way][s][k] = drawn.token;
    }
  }
  OPI_ASSERT(memcmp(tokens[0], tokens[1], sizeof tokens[0]) == 0);
  OPI_ASSERT(memcmp(tokens[0], tokens[2], sizeof tokens[0]) == 0);
  OPI_ASSERT(memcmp(tokens[0][0], tokens[0][1], sizeof tokens[0][0]) != 0);
  opi_sampler_free(samplers[0]);
  opi_sampler_free(samplers[1]);
}

static void test_greedy_and_logprobs(void) {
  static const float logits[6] = {1, 5, 2, 5, -(float)INFINITY, 4};
  static const int64_t token = 1;
  const opi_history history = {&token, 1, 1, 0};
  opi_sampler *sampler = open_sampler(6);
  opi_sampling how = opi_sampling_default();
  opi_sampled drawn, tops[6];
  opipe_error err = OPIPE_ERROR_INIT;
  double sum = 0;
  for (int i = 0; i < 6; ++i)
    sum += exp((double)logits[i]);
  how.logprobs = 4;
  OPI_ASSERT_OK_FATAL(opi_sample(sampler, &how, logits, &history, &drawn, tops, &err), &err);
  OPI_ASSERT_INT(drawn.token, 1); /* of equal ones the lower */
  static const int64_t wanted[4] = {1, 3, 5, 2};
  for (int i = 0; i < 4; ++i) {
    OPI_ASSERT_INT(tops[i].token, wanted[i]);
    OPI_ASSERT(fabs(tops[i].logprob - ((double)logits[wanted[i]] - log(sum))) < 1e-12);
  }
  how.repetition = 2; /* of the logits as they are, whatever the rules do */
  OPI_ASSERT_OK_FATAL(opi_sample(sampler, &how, logits, &history, &drawn, tops, &err), &err);
  OPI_ASSERT_INT(drawn.token, 3);
  OPI_ASSERT(fabs(drawn.logprob - (5 - log(sum))) < 1e-12);
  opi_sampler_free(sampler);
}

/* ---- ends ---- */

static void test_stops(void) {
  static const int64_t tokens[] = {7, 8, 9, 7, 8, 9, 5}, end = 5, list[3] = {7, 8, 9};
  static const opi_token_list stops[] = {{&end, 1}, {list, 3}, {list + 2, 1}};
  static const struct {
    int64_t n, n_prompt, least, most;
    uint32_t n_stops, wanted, length;
  } cases[] = {
      {6, 3, 0, 0, 2, OPI_STOP_TOKENS, 3}, {6, 4, 0, 0, 2, OPI_STOP_NONE, 0}, /* begins before */
      {6, 4, 0, 0, 3, OPI_STOP_TOKENS, 1}, {6, 3, 0, 0, 3, OPI_STOP_TOKENS, 3},
      {7, 3, 0, 0, 2, OPI_STOP_TOKENS, 1}, {7, 3, 5, 0, 2, OPI_STOP_NONE, 0},
      {7, 3, 4, 0, 2, OPI_STOP_TOKENS, 1}, {5, 3, 0, 2, 2, OPI_STOP_LENGTH, 0},
      {5, 3, 0, 3, 2, OPI_STOP_NONE, 0},   {6, 3, 0, 3, 2, OPI_STOP_TOKENS, 3},
  };
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    opi_sampling how = opi_sampling_default();
    const opi_history history = {tokens, cases[i].n, cases[i].n_prompt, 0};
    uint32_t length = 77;
    how.stops = stops;
    how.n_stops = cases[i].n_stops;
    how.min_tokens = cases[i].least;
    how.max_tokens = cases[i].most;
    OPI_ASSERT_INT(opi_sample_stop(&how, &history, &length), cases[i].wanted);
    OPI_ASSERT_INT(length, cases[i].length);
  }
}

/* ---- refusals ---- */

static void test_keys(void) {
  static const struct {
    const char *key, *value, *why;
    opipe_status status;
  } keys[] = {
      {"temperature", "-0.1", "temperature is -0.1, not in [0, 1e+06]", OPIPE_E_INVALID},
      {"top_p", "0", "top_p is 0, not in (0, 1]", OPIPE_E_INVALID},
      {"top_p", "1.5", "top_p is 1.5, not in (0, 1]", OPIPE_E_INVALID},
      {"top_k", "2.5", "top_k is '2.5', no whole number", OPIPE_E_INVALID},
      {"answers", "0", "answers is 0, not in [1, 65536]", OPIPE_E_INVALID},
      {"min_p", "nan", "min_p is 'nan', no number", OPIPE_E_INVALID},
      {"seed", "-1", "seed is '-1', no whole number", OPIPE_E_INVALID},
      {"repetition", "0", "repetition is 0, not in (0, 1e+06]", OPIPE_E_INVALID},
      {"Temperature", "1", "no key 'Temperature'; did you mean 'temperature'?", OPIPE_E_NOTFOUND},
  };
  opi_sampling how = opi_sampling_default();
  opipe_error err = OPIPE_ERROR_INIT;
  for (size_t i = 0; i < OPI_COUNT(keys); ++i) {
    OPI_ASSERT_ERROR(opi_sampling_set(&how, keys[i].key, keys[i].value, &err), keys[i].status, &err,
                     keys[i].why);
  }
  OPI_ASSERT_OK(opi_sampling_set(&how, "temperature", "0.5", &err), &err);
  OPI_ASSERT_OK(opi_sampling_set(&how, "top_k", "40", &err), &err);
  OPI_ASSERT_OK(opi_sampling_set(&how, "seed", "18446744073709551615", &err), &err);
  OPI_ASSERT(how.temperature == 0.5 && how.top_k == 40 && how.seed == UINT64_MAX);
}

static void test_checks(void) {
  static const opi_token_bias far = {24, 1}, nan = {3, NAN};
  static const int64_t token = -1;
  static const opi_token_list empty = {&token, 0}, outside = {&token, 1};
  opi_sampling bad[8];
  static const char *const why[8] = {"min_tokens 4 is above max_tokens 3",
                                     "temperature is nan, not in [0, 1e+06]",
                                     "logprobs is 25: the vocabulary has 24",
                                     "a bias of token 24: the vocabulary has 24",
                                     "the bias of token 3 is nan",
                                     "stop list 0 is empty",
                                     "a stop of token -1: the vocabulary has 24",
                                     "answers is 0, not in [1, 65536]"};
  opipe_error err = OPIPE_ERROR_INIT;
  for (int i = 0; i < 8; ++i)
    bad[i] = opi_sampling_default();
  bad[0].min_tokens = 4;
  bad[0].max_tokens = 3;
  bad[1].temperature = NAN;
  bad[2].logprobs = 25;
  bad[3].biases = &far;
  bad[4].biases = &nan;
  bad[3].n_biases = bad[4].n_biases = bad[5].n_stops = bad[6].n_stops = 1;
  bad[5].stops = &empty;
  bad[6].stops = &outside;
  bad[7].answers = 0;
  for (int i = 0; i < 8; ++i)
    OPI_ASSERT_ERROR(opi_sampling_check(&bad[i], WORDS, &err), OPIPE_E_INVALID, &err, why[i]);
}

static void test_bad_logits(void) {
  float logits[4] = {1, 2, NAN, 3};
  static const int64_t outside[2] = {9, -5}; /* no tokens of the vocabulary: not counted */
  const opi_history history = {outside, 2, 0, 0};
  opi_sampler *sampler = open_sampler(4);
  opi_sampling how = opi_sampling_default();
  opi_sampled drawn;
  opipe_error err = OPIPE_ERROR_INIT;
  how.repetition = 2;
  how.frequency = 1;
  OPI_ASSERT_ERROR(opi_sample(sampler, &how, logits, &history, &drawn, NULL, &err), OPIPE_E_INVALID,
                   &err, "the logit of token 2 is NaN");
  logits[2] = INFINITY;
  OPI_ASSERT_ERROR(opi_sample(sampler, &how, logits, &history, &drawn, NULL, &err), OPIPE_E_INVALID,
                   &err, "the logit of token 2 is infinite");
  for (int i = 0; i < 4; ++i)
    logits[i] = -INFINITY;
  OPI_ASSERT_ERROR(opi_sample(sampler, &how, logits, &history, &drawn, NULL, &err), OPIPE_E_INVALID,
                   &err, "no token can be sampled");
  logits[1] = -FLT_MAX;
  OPI_ASSERT_OK(opi_sample(sampler, &how, logits, &history, &drawn, NULL, &err), &err);
  OPI_ASSERT_INT(drawn.token, 1);
  opi_sampler_free(sampler);
  sampler = NULL;
  OPI_ASSERT_ERROR(opi_sampler_create(opi_allocator_system(), 0, &sampler, &err), OPIPE_E_INVALID,
                   &err, "a vocabulary of 0 tokens");
}

OPI_TEST_MAIN("sampling", OPI_TEST(test_transformers), OPI_TEST(test_plain_rules),
              OPI_TEST(test_order_of_rules), OPI_TEST(test_draws), OPI_TEST(test_draws_in_mixes),
              OPI_TEST(test_greedy_and_logprobs), OPI_TEST(test_stops), OPI_TEST(test_keys),
              OPI_TEST(test_checks), OPI_TEST(test_bad_logits))
