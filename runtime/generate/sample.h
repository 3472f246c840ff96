/* SPDX-License-Identifier: Apache-2.0 */
/* One token from one row of logits, and where a sequence ends. Inside runtime/generate.
 *
 * The answer depends on the arguments alone: the row, the ids so far, the sampling and the branch.
 * Nothing is allocated after opi_sampler_create. */
#ifndef OPI_GENERATE_SAMPLE_H
#define OPI_GENERATE_SAMPLE_H

#include "runtime/generate/rules.h"

/* Room for the work on a row of n_vocab logits. One thread at a time. */
typedef struct opi_sampler opi_sampler;
uint64_t opi_sampler_bytes(uint32_t n_vocab);
/* n_vocab > 0. Errors: NOMEM. */
opipe_status opi_sampler_create(const opipe_allocator *allocator, uint32_t n_vocab,
                                opi_sampler **out, opipe_error *err);
void opi_sampler_free(opi_sampler *sampler); /* accepts NULL */

/* The row that follows a sequence's last id. */
typedef struct opi_logits {
  const void *values; /* [n_vocab] of dtype: float, double, float16 or bfloat16 */
  uint32_t dtype;
  uint32_t branch;
  const uint32_t *ids; /* [n_ids]: prompt, then answer; n_ids is the new token's position */
  uint32_t n_ids, n_prompt;
} opi_logits;

typedef struct opi_likely {
  uint32_t id;
  double logprob; /* natural logarithm, by the raw logits */
} opi_likely;

typedef struct opi_sampled {
  uint32_t id;
  uint32_t n_likely;                      /* sampling.logprobs, at most n_vocab */
  double logprob;                         /* of `id`; NaN unless sampling.logprobs >= 0 */
  opi_likely likely[OPI_SAMPLING_LIKELY]; /* the highest first */
} opi_sampled;

/* Errors: INVALID names position, id and value: a logit is NaN or +infinity, or no id is left
 * (-infinity everywhere, or stop ids masked by min_tokens). UNSUPPORTED: the type. */
opipe_status opi_sample(opi_sampler *sampler, const opi_sampling *sampling,
                        const opi_logits *logits, opi_sampled *out, opipe_error *err);
/* The same for an id that somebody else chose. Errors: INVALID also if it is outside the
 * vocabulary. */
opipe_status opi_sample_chosen(opi_sampler *sampler, const opi_sampling *sampling,
                               const opi_logits *logits, int64_t id, opi_sampled *out,
                               opipe_error *err);
/* The weights [n_vocab] from which opi_sample draws, and their sum: probabilities up to that
 * factor. Valid until the sampler's next call. Errors: those of opi_sample. */
opipe_status opi_sample_weights(opi_sampler *sampler, const opi_sampling *sampling,
                                const opi_logits *logits, const double **out_weights,
                                double *out_sum, opipe_error *err);

/* Why a sequence's turn has ended. */
enum {
  OPI_TURN_GOES_ON,
  OPI_TURN_STOP,    /* a stop id or sequence */
  OPI_TURN_TOKENS,  /* max_tokens */
  OPI_TURN_CONTEXT, /* no position is left */
};

/* Does the turn end with the last of ids [n_ids], of which n_prompt are the prompt? *out_n_stop: so
 * many of the last ids are the stop, the longest that fits. Stops count from min_tokens on, and lie
 * in the answer alone. `context`: most ids of a sequence. */
uint32_t opi_turn_end(const opi_sampling *sampling, const uint32_t *ids, uint32_t n_ids,
                      uint32_t n_prompt, uint32_t context, uint32_t *out_n_stop);
/* How many of the last ids may yet be the beginning of a stop sequence: whoever streams holds these
 * back until the turn ends or the number falls. */
uint32_t opi_turn_held(const opi_sampling *sampling, const uint32_t *ids, uint32_t n_ids,
                       uint32_t n_prompt);

#endif /* OPI_GENERATE_SAMPLE_H */
