/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: from a row of logits and a sequence's tokens to its next token.
 *
 * The order of the rules: bias, repetition, presence and frequency, temperature, top-k, top-p,
 * min-p. Each works on what the one before it left; arithmetic is in double precision and runs in
 * the order of the vocabulary, so that a draw depends on its own row and history alone. Random
 * numbers are a function of (seed, branch, position): nothing is drawn in between, whatever else is
 * in the batch. Log-probabilities are those of the raw logits.
 *
 * Where transformers has a rule, this is the same rule: repetition counts the prompt, top-k keeps
 * what equals its last entry, top-p keeps the most likely tokens until their sum reaches it (of
 * equal ones the lower ids first). Presence and frequency count generated tokens alone.
 */
#ifndef OPI_GENERATE_H
#define OPI_GENERATE_H

#include "loader/base/base.h"

typedef struct opi_token_bias {
  int64_t token;
  double bias; /* added to the logit; minus infinity bans the token */
} opi_token_bias;

/* A list of ids: tokens[n]. */
typedef struct opi_token_list {
  const int64_t *tokens;
  uint32_t n;
} opi_token_list;

typedef struct opi_sampling {
  double temperature; /* 0: the most likely token */
  int64_t top_k;      /* 0: all */
  double top_p;       /* 1: all */
  double min_p;       /* least probability, as a part of the greatest; 0: all */
  double repetition;  /* divides positive logits of earlier tokens, multiplies negative ones;
                         1: none */
  double presence,
      frequency; /* subtracted once, and for each time, from a generated token's logit */
  uint64_t seed;
  int64_t min_tokens;           /* before that many generated ones, stop ids are banned */
  int64_t max_tokens;           /* generated ones; 0: the context's */
  int64_t logprobs;             /* most likely tokens to report */
  int64_t answers;              /* forks of the prompt */
  const opi_token_bias *biases; /* [n_biases] */
  const opi_token_list *stops;  /* [n_stops] sequences of ids that end an answer; of one id: a stop
                                   id */
  uint32_t n_biases, n_stops;
} opi_sampling;

/* Greedy, one answer, no end but the context's. */
opi_sampling opi_sampling_default(void);
/* Sets one number by its name ("temperature", "top_k" ..., "seed"). Errors: NOTFOUND, no such key;
 * INVALID, no number, or out of range; names key and value. */
opipe_status opi_sampling_set(opi_sampling *sampling, const char *key, const char *value,
                              opipe_error *err);
/* Checks everything against a vocabulary. Errors: INVALID names key and value. */
opipe_status opi_sampling_check(const opi_sampling *sampling, int64_t vocabulary, opipe_error *err);

/* Scratch for one row at a time. */
typedef struct opi_sampler opi_sampler;
opipe_status opi_sampler_create(const opipe_allocator *allocator, int64_t vocabulary,
                                opi_sampler **out_sampler, opipe_error *err);
void opi_sampler_free(opi_sampler *sampler); /* accepts NULL */

/* A sequence at its next token: tokens[n], of which n_prompt are the prompt. */
typedef struct opi_history {
  const int64_t *tokens;
  int64_t n, n_prompt;
  uint64_t branch; /* number of the fork among the sequences of one seed */
} opi_history;

typedef struct opi_sampled {
  int64_t token;
  double logprob; /* of the token, by the raw logits */
} opi_sampled;

/* Allocates nothing. tops [sampling->logprobs]: the most likely tokens by the raw logits, of equal
 * ones the lower ids first. Errors: INVALID, a logit is NaN, or no token is left. */
opipe_status opi_sample(opi_sampler *sampler, const opi_sampling *sampling, const float *logits,
                        const opi_history *history, opi_sampled *out_sampled, opi_sampled *tops,
                        opipe_error *err);
/* The probabilities that opi_sample draws from: [vocabulary], valid until the next call. Greedy: 1
 * for its token. */
opipe_status opi_sample_weights(opi_sampler *sampler, const opi_sampling *sampling,
                                const float *logits, const opi_history *history,
                                const double **out_weights, opipe_error *err);
/* In [0, 1), with 53 bits. */
double opi_sample_random(uint64_t seed, uint64_t branch, uint64_t position);

/* Why an answer ends behind its last token. */
enum { OPI_STOP_NONE, OPI_STOP_TOKENS, OPI_STOP_LENGTH };
/* *out_length: length of the list that ended it (OPI_STOP_TOKENS). A list that begins before the
 * answer does not end it. */
uint32_t opi_sample_stop(const opi_sampling *sampling, const opi_history *history,
                         uint32_t *out_length);

#endif /* OPI_GENERATE_H */
