/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of sampling by name, and their ranges. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/base/nearest.h"
#include "runtime/generate/generate.h"

typedef struct option {
  const char *key;
  size_t at;
  bool whole;         /* int64, else double */
  double least, most; /* allowed */
  bool above;         /* `least` itself is not */
} option;

#define OPTION(key_, whole_, least_, most_, above_) \
  { #key_, offsetof(opi_sampling, key_), whole_, least_, most_, above_ }

static const option options[] = {
    OPTION(temperature, false, 0, 1e6, false),
    OPTION(top_k, true, 0, INT32_MAX, false),
    OPTION(top_p, false, 0, 1, true),
    OPTION(min_p, false, 0, 1, false),
    OPTION(repetition, false, 0, 1e6, true),
    OPTION(presence, false, -1e6, 1e6, false),
    OPTION(frequency, false, -1e6, 1e6, false),
    OPTION(min_tokens, true, 0, INT32_MAX, false),
    OPTION(max_tokens, true, 0, INT32_MAX, false),
    OPTION(logprobs, true, 0, 1024, false),
    OPTION(answers, true, 1, 1 << 16, false),
};

opi_sampling opi_sampling_default(void) {
  return (opi_sampling){.top_p = 1, .repetition = 1, .answers = 1};
}

static double number_of(const opi_sampling *s, const option *o) {
  const char *at = (const char *)s + o->at;
  return o->whole ? (double)*(const int64_t *)(const void *)at : *(const double *)(const void *)at;
}

static bool is_allowed(const option *o, double x) {
  return x <= o->most && (o->above ? x > o->least : x >= o->least);
}

static opipe_status refuse(const option *o, const char *value, opipe_error *err) {
  return opi_fail(err, OPIPE_E_INVALID, "%s is %.40s, not in %c%g, %g]", o->key, value,
                  o->above ? '(' : '[', o->least, o->most);
}

static opipe_status set_seed(opi_sampling *s, const char *value, opipe_error *err) {
  char *end = NULL;
  const unsigned long long seed = strtoull(value, &end, 10);
  if (value[0] < '0' || value[0] > '9' || *end != '\0')
    return opi_fail(err, OPIPE_E_INVALID, "seed is '%.40s', no whole number", value);
  s->seed = seed;
  return OPIPE_OK;
}

opipe_status opi_sampling_set(opi_sampling *sampling, const char *key, const char *value,
                              opipe_error *err) {
  opi_nearest nearest = {.word = key, .n = strlen(key)};
  char meant[OPI_NEAREST_ROOM], *end = NULL;
  if (strcmp(key, "seed") == 0)
    return set_seed(sampling, value, err);
  for (uint32_t i = 0; i < OPI_COUNT(options); ++i) {
    const option *o = &options[i];
    opi_nearest_look(&nearest, o->key);
    if (strcmp(o->key, key) != 0)
      continue;
    const double x = strtod(value, &end);
    if (end == value || *end != '\0' || isnan(x) || (o->whole && x != floor(x))) {
      return opi_fail(err, OPIPE_E_INVALID, "%s is '%.40s', no %snumber", key, value,
                      o->whole ? "whole " : "");
    }
    if (!is_allowed(o, x))
      return refuse(o, value, err);
    char *at = (char *)sampling + o->at;
    if (o->whole)
      *(int64_t *)(void *)at = (int64_t)x;
    else
      *(double *)(void *)at = x;
    return OPIPE_OK;
  }
  return opi_fail(err, OPIPE_E_NOTFOUND, "sampling has no key '%.40s'%s", key,
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

static opipe_status check_token(const char *what, int64_t token, int64_t vocabulary,
                                opipe_error *err) {
  if (token >= 0 && token < vocabulary)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s of token %" PRId64 ": the vocabulary has %" PRId64,
                  what, token, vocabulary);
}

opipe_status opi_sampling_check(const opi_sampling *sampling, int64_t vocabulary,
                                opipe_error *err) {
  char value[40];
  for (uint32_t i = 0; i < OPI_COUNT(options); ++i) {
    const double x = number_of(sampling, &options[i]);
    (void)snprintf(value, sizeof value, "%g", x);
    if (!is_allowed(&options[i], x))
      return refuse(&options[i], value, err);
  }
  if (sampling->max_tokens > 0 && sampling->min_tokens > sampling->max_tokens) {
    return opi_fail(err, OPIPE_E_INVALID, "min_tokens %" PRId64 " is above max_tokens %" PRId64,
                    sampling->min_tokens, sampling->max_tokens);
  }
  if (sampling->logprobs > vocabulary) {
    return opi_fail(err, OPIPE_E_INVALID, "logprobs is %" PRId64 ": the vocabulary has %" PRId64,
                    sampling->logprobs, vocabulary);
  }
  for (uint32_t i = 0; i < sampling->n_biases; ++i) {
    OPI_TRY(check_token("a bias", sampling->biases[i].token, vocabulary, err));
    if (isnan(sampling->biases[i].bias) || sampling->biases[i].bias == (double)INFINITY) {
      return opi_fail(err, OPIPE_E_INVALID, "the bias of token %" PRId64 " is %g",
                      sampling->biases[i].token, sampling->biases[i].bias);
    }
  }
  for (uint32_t i = 0; i < sampling->n_stops; ++i) {
    if (sampling->stops[i].n == 0)
      return opi_fail(err, OPIPE_E_INVALID, "stop list %" PRIu32 " is empty", i);
    for (uint32_t k = 0; k < sampling->stops[i].n; ++k)
      OPI_TRY(check_token("a stop", sampling->stops[i].tokens[k], vocabulary, err));
  }
  return OPIPE_OK;
}
