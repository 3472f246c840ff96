/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of sampling, one function each; see generate.h. Logits that a rule removes become minus
 * infinity. */
#include "runtime/generate/generate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct opi_sampler {
  const opipe_allocator *allocator;
  int64_t n;       /* of the vocabulary */
  double *x;       /* [n] logits as the rules leave them, then weights */
  int64_t *order;  /* [n] tokens, the most likely first */
  int64_t *counts; /* [n] of a token in the history: 0 between calls */
};

static uint64_t bytes_of(int64_t n) {
  return (uint64_t)n * (sizeof(double) + 2 * sizeof(int64_t));
}

opipe_status opi_sampler_create(const opipe_allocator *allocator, int64_t vocabulary,
                                opi_sampler **out_sampler, opipe_error *err) {
  if (vocabulary < 1 || vocabulary > INT32_MAX) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "a vocabulary of %" PRId64 " tokens, 1 to %d are possible", vocabulary,
                    INT32_MAX);
  }
  opi_sampler *s = opi_alloc_zero(allocator, 1, sizeof *s);
  if (s == NULL)
    return opi_fail_nomem(err, sizeof *s, "a sampler");
  s->allocator = allocator;
  s->n = vocabulary;
  s->x = opi_alloc_zero(allocator, 1, bytes_of(vocabulary));
  if (s->x == NULL) {
    opi_free(allocator, s, sizeof *s);
    return opi_fail_nomem(err, bytes_of(vocabulary), "a sampler");
  }
  s->order = (int64_t *)(void *)(s->x + vocabulary);
  s->counts = s->order + vocabulary;
  *out_sampler = s;
  return OPIPE_OK;
}

void opi_sampler_free(opi_sampler *sampler) {
  if (sampler == NULL)
    return;
  opi_free(sampler->allocator, sampler->x, bytes_of(sampler->n));
  opi_free(sampler->allocator, sampler, sizeof *sampler);
}

/* ---- random numbers ---- */

/* Mixes all bits (Steele, Lea, Flood: SplitMix64). */
static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

double opi_sample_random(uint64_t seed, uint64_t branch, uint64_t position) {
  const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);
  uint64_t x = mix(seed + step);
  x = mix(x + (branch + 1) * step);
  x = mix(x + (position + 1) * step);
  return (double)(x >> 11) * 0x1p-53;
}

/* ---- rules ---- */

static void bias(opi_sampler *s, const opi_sampling *how, const opi_history *history) {
  for (uint32_t i = 0; i < how->n_biases; ++i)
    s->x[how->biases[i].token] += how->biases[i].bias;
  for (uint32_t i = 0; i < how->n_stops && history->n - history->n_prompt < how->min_tokens; ++i) {
    if (how->stops[i].n == 1)
      s->x[how->stops[i].tokens[0]] = -(double)INFINITY;
  }
}

/* Token i of the history; -1: it is none of the vocabulary's (an image's place). */
static int64_t token_at(const opi_sampler *s, const opi_history *history, int64_t i) {
  const int64_t token = history->tokens[i];
  return token >= 0 && token < s->n ? token : -1;
}

/* Each token once for repetition, by its number for the others. */
static void penalties(opi_sampler *s, const opi_sampling *how, const opi_history *history) {
  for (int64_t i = 0; i < history->n && how->repetition != 1; ++i) {
    const int64_t token = token_at(s, history, i);
    if (token >= 0 && s->counts[token]++ == 0)
      s->x[token] = s->x[token] < 0 ? s->x[token] * how->repetition : s->x[token] / how->repetition;
  }
  for (int64_t i = 0; i < history->n && how->repetition != 1; ++i) {
    if (token_at(s, history, i) >= 0)
      s->counts[history->tokens[i]] = 0;
  }
  if (how->presence == 0 && how->frequency == 0)
    return;
  for (int64_t i = history->n_prompt; i < history->n; ++i) {
    if (token_at(s, history, i) >= 0)
      ++s->counts[history->tokens[i]];
  }
  for (int64_t i = history->n_prompt; i < history->n; ++i) {
    const int64_t token = token_at(s, history, i);
    if (token < 0 || s->counts[token] == 0)
      continue;
    s->x[token] -= how->presence + how->frequency * (double)s->counts[token];
    s->counts[token] = 0;
  }
}

static int64_t best(const opi_sampler *s) {
  int64_t found = 0;
  for (int64_t i = 1; i < s->n; ++i)
    found = s->x[i] > s->x[found] ? i : found;
  return found;
}

static bool comes_before(const double *x, int64_t a, int64_t b) {
  return x[a] > x[b] || (x[a] == x[b] && a < b);
}

/* Moves order[at] down to its place in a heap of n tokens with the most likely at its root. */
static void sink(const double *x, int64_t *order, int64_t at, int64_t n) {
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    child += child + 1 < n && comes_before(x, order[child + 1], order[child]);
    if (!comes_before(x, order[child], order[at]))
      return;
    const int64_t other = order[at];
    order[at] = order[child];
    order[child] = other;
  }
}

/* order[0, n): the tokens that are left, as a heap. Returns n. */
static int64_t heap(opi_sampler *s) {
  int64_t n = 0;
  for (int64_t i = 0; i < s->n; ++i) {
    if (s->x[i] > -(double)INFINITY)
      s->order[n++] = i;
  }
  for (int64_t i = n / 2; i-- > 0;)
    sink(s->x, s->order, i, n);
  return n;
}

/* Moves the root of a heap of n tokens behind the others, to order[n - 1], and returns it. */
static int64_t pop(opi_sampler *s, int64_t n) {
  const int64_t root = s->order[0];
  s->order[0] = s->order[n - 1];
  s->order[n - 1] = root;
  sink(s->x, s->order, 0, n - 1);
  return root;
}

static void remove_heap(opi_sampler *s, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    s->x[s->order[i]] = -(double)INFINITY;
}

/* The sum of exp(x) over what is left, in the order of the vocabulary. */
static double sum_of(const opi_sampler *s) {
  double sum = 0;
  for (int64_t i = 0; i < s->n; ++i)
    sum += exp(s->x[i]);
  return sum;
}

/* Each of these rules works on logits whose greatest is 0, and takes the most likely tokens one by
 * one: a few of a large vocabulary cost little. */
static void keep_top_k(opi_sampler *s, int64_t k) {
  const int64_t n = heap(s);
  int64_t left = n;
  while (left > 0 && (n - left < k || s->x[s->order[0]] == s->x[s->order[left]]))
    (void)pop(s, left--);
  remove_heap(s, left);
}

static void keep_top_p(opi_sampler *s, double p) {
  const double sum = sum_of(s);
  const int64_t n = heap(s);
  int64_t left = n;
  double before = 0;
  while (left > 0 && (left == n || before < p)) {
    const int64_t token = pop(s, left--);
    before += exp(s->x[token]) / sum;
  }
  remove_heap(s, left);
}

static void keep_min_p(opi_sampler *s, double p) {
  for (int64_t i = 0; i < s->n; ++i)
    s->x[i] = exp(s->x[i]) < p ? -(double)INFINITY : s->x[i];
}

static opipe_status check_logits(const opi_sampler *s, const float *logits, opipe_error *err) {
  for (int64_t i = 0; i < s->n; ++i) {
    if (isnan(logits[i]) || logits[i] == INFINITY) {
      return opi_fail(err, OPIPE_E_INVALID, "the logit of token %" PRId64 " is %s", i,
                      isnan(logits[i]) ? "NaN" : "infinite");
    }
  }
  return OPIPE_OK;
}

opipe_status opi_sample_weights(opi_sampler *sampler, const opi_sampling *sampling,
                                const float *logits, const opi_history *history,
                                const double **out_weights, opipe_error *err) {
  opi_sampler *s = sampler;
  OPI_TRY(check_logits(s, logits, err));
  for (int64_t i = 0; i < s->n; ++i)
    s->x[i] = (double)logits[i];
  bias(s, sampling, history);
  penalties(s, sampling, history);
  const int64_t most = best(s);
  const double top = s->x[most];
  if (!isfinite(top))
    return opi_fail(err, OPIPE_E_INVALID, "no token can be sampled: the greatest logit is %g", top);
  if (sampling->temperature == 0) {
    memset(s->x, 0, (size_t)s->n * sizeof *s->x);
    s->x[most] = 1;
    *out_weights = s->x;
    return OPIPE_OK;
  }
  for (int64_t i = 0; i < s->n; ++i)
    s->x[i] = (s->x[i] - top) / sampling->temperature;
  if (sampling->top_k > 0)
    keep_top_k(s, sampling->top_k);
  if (sampling->top_p < 1)
    keep_top_p(s, sampling->top_p);
  if (sampling->min_p > 0)
    keep_min_p(s, sampling->min_p);
  const double sum = sum_of(s);
  for (int64_t i = 0; i < s->n; ++i)
    s->x[i] = exp(s->x[i]) / sum;
  *out_weights = s->x;
  return OPIPE_OK;
}

/* ---- log-probabilities ---- */

static double raw_logarithm(const opi_sampler *s, const float *logits) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t i = 0; i < s->n; ++i)
    top = fmax(top, (double)logits[i]);
  for (int64_t i = 0; i < s->n; ++i)
    sum += exp((double)logits[i] - top);
  return top + log(sum);
}

/* By insertion: few are asked for. */
static void find_tops(const opi_sampler *s, const float *logits, double whole, int64_t n,
                      opi_sampled *tops) {
  int64_t have = 0;
  for (int64_t i = 0; i < s->n; ++i) {
    const double x = (double)logits[i] - whole;
    int64_t at = have;
    if (have == n && !(x > tops[n - 1].logprob))
      continue;
    at -= have == n;
    for (; at > 0 && x > tops[at - 1].logprob; --at)
      tops[at] = tops[at - 1];
    tops[at] = (opi_sampled){i, x};
    have += have < n;
  }
}

opipe_status opi_sample(opi_sampler *sampler, const opi_sampling *sampling, const float *logits,
                        const opi_history *history, opi_sampled *out_sampled, opi_sampled *tops,
                        opipe_error *err) {
  const double *weights;
  OPI_TRY(opi_sample_weights(sampler, sampling, logits, history, &weights, err));
  const double u = opi_sample_random(sampling->seed, history->branch, (uint64_t)history->n);
  double sum = 0;
  int64_t found = -1;
  for (int64_t i = 0; i < sampler->n && (found < 0 || sum <= u); ++i) {
    sum += weights[i];
    found = weights[i] > 0 ? i : found; /* the last one, should rounding leave the sum below u */
  }
  const double whole = raw_logarithm(sampler, logits);
  *out_sampled = (opi_sampled){found, (double)logits[found] - whole};
  if (sampling->logprobs > 0)
    find_tops(sampler, logits, whole, sampling->logprobs, tops);
  return OPIPE_OK;
}

/* ---- the end of an answer ---- */

uint32_t opi_sample_stop(const opi_sampling *sampling, const opi_history *history,
                         uint32_t *out_length) {
  const int64_t generated = history->n - history->n_prompt;
  *out_length = 0;
  for (uint32_t i = 0; i < sampling->n_stops && generated >= sampling->min_tokens; ++i) {
    const opi_token_list *list = &sampling->stops[i];
    if ((int64_t)list->n <= generated && list->n > *out_length &&
        memcmp(history->tokens + history->n - list->n, list->tokens,
               list->n * sizeof *list->tokens) == 0)
      *out_length = list->n;
  }
  if (*out_length > 0)
    return OPI_STOP_TOKENS;
  return sampling->max_tokens > 0 && generated >= sampling->max_tokens ? OPI_STOP_LENGTH
                                                                       : OPI_STOP_NONE;
}
