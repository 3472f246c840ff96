/* SPDX-License-Identifier: Apache-2.0 */
/* A row of logits becomes scores, scores become weights, and a number from [0, 1) falls on one of
 * them. All of it in double, in order of ids, over the whole vocabulary. */
#include "runtime/generate/sample.h"

#include <float.h>
#include <math.h>

#include "loader/base/halves.h"
#include "runtime/generate/random.h"
#include "runtime/generate/select.h"

struct opi_sampler {
  const opipe_allocator *allocator;
  uint32_t n_vocab;
  double *scores;   /* [n_vocab] */
  double *weights;  /* [n_vocab] */
  uint32_t *counts; /* [n_vocab], zero between calls */
  uint32_t *room;   /* [n_vocab] */
};

enum { ID_BYTES = 2 * sizeof(double) + 2 * sizeof(uint32_t) };

uint64_t opi_sampler_bytes(uint32_t n_vocab) {
  return sizeof(opi_sampler) + (uint64_t)n_vocab * ID_BYTES;
}

opipe_status opi_sampler_create(const opipe_allocator *allocator, uint32_t n_vocab,
                                opi_sampler **out, opipe_error *err) {
  const uint64_t n_bytes = opi_sampler_bytes(n_vocab);
  opi_sampler *sampler = opi_alloc_zero(allocator, 1, (size_t)n_bytes);
  if (sampler == NULL)
    return opi_fail_nomem(err, n_bytes, "a sampler");
  sampler->allocator = allocator;
  sampler->n_vocab = n_vocab;
  sampler->scores = (double *)(void *)(sampler + 1);
  sampler->weights = sampler->scores + n_vocab;
  sampler->counts = (uint32_t *)(void *)(sampler->weights + n_vocab);
  sampler->room = sampler->counts + n_vocab;
  *out = sampler;
  return OPIPE_OK;
}

void opi_sampler_free(opi_sampler *sampler) {
  if (sampler != NULL)
    opi_free(sampler->allocator, sampler, (size_t)opi_sampler_bytes(sampler->n_vocab));
}

/* ---- the raw row ---- */

static double element(const opi_logits *row, uint32_t i) {
  switch (row->dtype) {
    case OPIPE_FLOAT16:
      return (double)opi_half_to_float(((const uint16_t *)row->values)[i]);
    case OPIPE_BFLOAT16:
      return (double)opi_bfloat_to_float(((const uint16_t *)row->values)[i]);
    case OPIPE_DOUBLE:
      return ((const double *)row->values)[i];
    default:
      return (double)((const float *)row->values)[i];
  }
}

static opipe_status refuse_element(const opi_logits *row, uint32_t n, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    const double x = element(row, i);
    if (!(x <= DBL_MAX)) {
      return opi_fail(err, OPIPE_E_INVALID, "the logits of position %u hold %s at id %u",
                      row->n_ids, isnan(x) ? "nan" : "+infinity", i);
    }
  }
  return opi_fail(err, OPIPE_E_INTERNAL, "the logits of position %u are numbers", row->n_ids);
}

static opipe_status load(opi_sampler *s, const opi_logits *row, opipe_error *err) {
  const uint32_t n = s->n_vocab;
  bool fine = true;
  if (row->dtype != OPIPE_FLOAT && row->dtype != OPIPE_FLOAT16 && row->dtype != OPIPE_BFLOAT16 &&
      row->dtype != OPIPE_DOUBLE) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "logits of type %s, a floating-point type is needed",
                    opi_dtype_name(row->dtype));
  }
  if (row->dtype == OPIPE_FLOAT) {
    const float *values = row->values;
    for (uint32_t i = 0; i < n; ++i) {
      s->scores[i] = (double)values[i];
      fine &= values[i] <= FLT_MAX;
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) {
      s->scores[i] = element(row, i);
      fine &= s->scores[i] <= DBL_MAX;
    }
  }
  return fine ? OPIPE_OK : refuse_element(row, n, err);
}

/* ---- scores ---- */

/* Ids without a logit, as of a vocabulary that is larger than its head, are passed over here and
 * below. */
static void add_biases(opi_sampler *s, const opi_sampling *how, const opi_logits *row) {
  for (uint32_t i = 0; i < how->n_biases; ++i) {
    if (how->biases[i].id < s->n_vocab)
      s->scores[how->biases[i].id] += how->biases[i].add;
  }
  for (uint32_t i = 0; row->n_ids - row->n_prompt < how->min_tokens && i < how->n_stops; ++i) {
    if (how->stops[i].n == 1 && how->stops[i].ids[0] < s->n_vocab)
      s->scores[how->stops[i].ids[0]] = -INFINITY;
  }
}

/* Every id counts once. */
static void penalise_repetition(opi_sampler *s, double penalty, const opi_logits *row) {
  for (uint32_t i = 0; i < row->n_ids; ++i) {
    const uint32_t id = row->ids[i];
    if (id >= s->n_vocab || s->counts[id]++ != 0)
      continue;
    s->scores[id] = s->scores[id] < 0 ? s->scores[id] * penalty : s->scores[id] / penalty;
  }
  for (uint32_t i = 0; i < row->n_ids; ++i) {
    if (row->ids[i] < s->n_vocab)
      s->counts[row->ids[i]] = 0;
  }
}

static void penalise_answer(opi_sampler *s, const opi_sampling *how, const opi_logits *row) {
  for (uint32_t i = row->n_prompt; i < row->n_ids; ++i) {
    if (row->ids[i] < s->n_vocab)
      ++s->counts[row->ids[i]];
  }
  for (uint32_t i = row->n_prompt; i < row->n_ids; ++i) {
    const uint32_t id = row->ids[i];
    if (id >= s->n_vocab || s->counts[id] == 0)
      continue;
    s->scores[id] -= how->frequency_penalty * s->counts[id];
    s->scores[id] -= how->presence_penalty;
    s->counts[id] = 0;
  }
}

static opipe_status score(opi_sampler *s, const opi_sampling *how, const opi_logits *row,
                          uint32_t *out_best, opipe_error *err) {
  const double *scores = s->scores;
  uint32_t best = 0;
  add_biases(s, how, row);
  if (how->repetition_penalty != 1)
    penalise_repetition(s, how->repetition_penalty, row);
  if (how->presence_penalty != 0 || how->frequency_penalty != 0)
    penalise_answer(s, how, row);
  double highest = scores[0];
  for (uint32_t i = 1; i < s->n_vocab; ++i)
    highest = scores[i] > highest ? scores[i] : highest;
  while (scores[best] != highest)
    ++best;
  *out_best = best;
  if (highest != -INFINITY)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID,
      "no id is left at position %u: every logit is -infinity or masked (min_tokens %u)",
      row->n_ids, how->min_tokens);
}

/* ---- weights ---- */

static void keep(double *values, double other, const double *scores, uint32_t n,
                 const opi_lowest *lowest) {
  for (uint32_t i = 0; i < n; ++i) {
    if (!opi_is_selected(lowest, scores[i], i))
      values[i] = other;
  }
}

static double sum_of(const double *values, uint32_t n) {
  double sum = 0;
  for (uint32_t i = 0; i < n; ++i)
    sum += values[i];
  return sum;
}

/* From scores to weights, of which the highest is 1. Returns their sum. */
static double weigh(opi_sampler *s, const opi_sampling *how, uint32_t best) {
  const uint32_t n = s->n_vocab;
  const double temperature = how->temperature;
  double *scores = s->scores;
  double highest = scores[best];
  if (highest > DBL_MAX) { /* a penalty may overflow */
    highest = DBL_MAX;
    for (uint32_t i = 0; i < n; ++i)
      scores[i] = scores[i] > DBL_MAX ? DBL_MAX : scores[i];
  }
  for (uint32_t i = 0; i < n; ++i)
    scores[i] = (scores[i] - highest) / temperature + 0.0; /* no -0 */
  if (how->top_k != 0 && how->top_k < n) {
    const opi_lowest lowest = opi_select(s->scores, NULL, n, how->top_k, s->room);
    keep(s->scores, -INFINITY, s->scores, n, &lowest);
  }
  for (uint32_t i = 0; i < n; ++i)
    s->weights[i] = s->scores[i] < -746 ? 0 : exp(s->scores[i]);
  if (how->top_p < 1) {
    const double target = how->top_p * sum_of(s->weights, n);
    const opi_lowest lowest = opi_select(s->scores, s->weights, n, target, s->room);
    keep(s->weights, 0, s->scores, n, &lowest);
  }
  for (uint32_t i = 0; how->min_p > 0 && i < n; ++i)
    s->weights[i] = s->weights[i] < how->min_p ? 0 : s->weights[i];
  return sum_of(s->weights, n);
}

static uint32_t pick(const double *weights, uint32_t n, double at) {
  double sum = 0;
  uint32_t last = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (weights[i] == 0)
      continue;
    sum += weights[i];
    last = i;
    if (sum > at)
      break;
  }
  return last;
}

/* ---- log-probabilities ---- */

/* Scores are the raw row. *out_total: log of the sum of all exponentials. */
static void find_likely(const opi_sampler *s, uint32_t most, opi_sampled *out, double *out_total) {
  double highest = -INFINITY, sum = 0;
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n_vocab; ++i)
    highest = s->scores[i] > highest ? s->scores[i] : highest;
  for (uint32_t i = 0; i < s->n_vocab; ++i) {
    const double x = s->scores[i];
    sum += x - highest < -746 ? 0 : exp(x - highest);
    if (most == 0 || (n == most && !(x > out->likely[n - 1].logprob)))
      continue;
    uint32_t at = n < most ? n++ : n - 1;
    for (; at > 0 && x > out->likely[at - 1].logprob; --at)
      out->likely[at] = out->likely[at - 1];
    out->likely[at] = (opi_likely){i, x};
  }
  *out_total = highest + log(sum);
  out->n_likely = n;
  for (uint32_t i = 0; i < n; ++i)
    out->likely[i].logprob -= *out_total;
}

/* Loads the row; finds what log-probabilities need before it is changed. */
static opipe_status begin(opi_sampler *s, const opi_sampling *how, const opi_logits *row,
                          opi_sampled *out, double *out_total, opipe_error *err) {
  *out = (opi_sampled){.logprob = NAN};
  *out_total = NAN;
  OPI_TRY(load(s, row, err));
  if (how->logprobs >= 0)
    find_likely(s, (uint32_t)how->logprobs, out, out_total);
  return OPIPE_OK;
}

/* ---- the whole ---- */

opipe_status opi_sample(opi_sampler *sampler, const opi_sampling *sampling,
                        const opi_logits *logits, opi_sampled *out, opipe_error *err) {
  double total = NAN;
  OPI_TRY(begin(sampler, sampling, logits, out, &total, err));
  OPI_TRY(score(sampler, sampling, logits, &out->id, err));
  if (sampling->temperature > 0) {
    const double sum = weigh(sampler, sampling, out->id);
    const double at = opi_draw(sampling->seed, logits->branch, logits->n_ids) * sum;
    out->id = pick(sampler->weights, sampler->n_vocab, at);
  }
  out->logprob = element(logits, out->id) - total;
  return OPIPE_OK;
}

opipe_status opi_sample_chosen(opi_sampler *sampler, const opi_sampling *sampling,
                               const opi_logits *logits, int64_t id, opi_sampled *out,
                               opipe_error *err) {
  double total = NAN;
  if (id < 0 || id >= sampler->n_vocab) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "id %lld was chosen for position %u, the vocabulary has %u", (long long)id,
                    logits->n_ids, sampler->n_vocab);
  }
  OPI_TRY(begin(sampler, sampling, logits, out, &total, err));
  out->id = (uint32_t)id;
  out->logprob = element(logits, out->id) - total;
  return OPIPE_OK;
}

opipe_status opi_sample_weights(opi_sampler *sampler, const opi_sampling *sampling,
                                const opi_logits *logits, const double **out_weights,
                                double *out_sum, opipe_error *err) {
  opi_sampled sampled;
  double total = NAN;
  OPI_TRY(begin(sampler, sampling, logits, &sampled, &total, err));
  OPI_TRY(score(sampler, sampling, logits, &sampled.id, err));
  *out_sum = 1;
  *out_weights = sampler->weights;
  if (sampling->temperature > 0) {
    *out_sum = weigh(sampler, sampling, sampled.id);
    return OPIPE_OK;
  }
  for (uint32_t i = 0; i < sampler->n_vocab; ++i)
    sampler->weights[i] = i == sampled.id ? 1 : 0;
  return OPIPE_OK;
}
