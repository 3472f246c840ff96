/* SPDX-License-Identifier: Apache-2.0 */
/* The uncut model: the whole mini-batch as one, one stage, and optimizers of the test's own in
 * double precision; only loss and gradients come from the library. With double-buffered weights the
 * step is by the gradient of the version before.
 *
 * Beside the weights it says what rounding may do to them. AdamW divides by the root of the second
 * moment: where a gradient is as small as the noise of its sums, the step is that noise divided by
 * itself, and two right answers are up to two learning rates apart. A tolerance that covers this
 * everywhere would cover errors too. So each element gets the bound of its own update: gradients
 * are given the compute type's `weights` of their parameter's largest element (or of 0.2 of the
 * model's RMS, where a gradient is zero by algebra), which is followed through the moments and the
 * quotient,
 *   |u' - u| <= (|dm| + |u| dr) / max(r - dr, 0) + eps,   r = root of the second moment,
 * but never beyond the longest step that the moments allow. Elements with a healthy gradient get a
 * bound near zero; how many do not is checked where it is used.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/runtime/train/cases.h"

typedef struct uncut {
  kit_bench *b;
  const opi_optimizer *o;
  float *gradients;
  double *weights, *before;       /* this version and the one before */
  double *first, *second;         /* moments */
  double *off_first, *off_second; /* allowed errors: the second in squares */
} uncut;

/* ---- one step ---- */

static double norm_of(const float *x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i)
    sum += (double)x[i] * (double)x[i];
  return sqrt(sum);
}

static double largest(const float *x, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; ++i)
    most = fmax(most, fabs((double)x[i]));
  return most;
}

/* Longest Adam step at update t, in learning rates: |m| <= r sqrt(sum a^2 / b) with the weights a
 * of the first and b of the second moment (Cauchy and Schwarz). */
static double longest(const opi_optimizer *o, uint32_t t) {
  const double c1 = 1 - pow(o->beta1, t + 1), c2 = 1 - pow(o->beta2, t + 1);
  double sum = 0;
  for (uint32_t i = 0; i <= t; ++i) {
    const double a = (1 - o->beta1) * pow(o->beta1, i) / c1;
    const double b = (1 - o->beta2) * pow(o->beta2, i) / c2;
    sum += a * a / b;
  }
  return sqrt(sum);
}

/* Linear in the gradient: it makes no noise louder, 1e-5 of the weights is enough. */
static void step_sgd(const uncut *u, size_t i, double g) {
  u->first[i] = u->o->momentum * u->first[i] + g;
  u->weights[i] -= u->o->lr * u->first[i];
}

static void step_adamw(const uncut *u, size_t i, uint32_t t, double g, double off, double *noise) {
  const opi_optimizer *o = u->o;
  const double c1 = 1 - pow(o->beta1, t + 1), c2 = 1 - pow(o->beta2, t + 1);
  u->first[i] = o->beta1 * u->first[i] + (1 - o->beta1) * g;
  u->second[i] = o->beta2 * u->second[i] + (1 - o->beta2) * g * g;
  u->off_first[i] = o->beta1 * u->off_first[i] + (1 - o->beta1) * off;
  u->off_second[i] = o->beta2 * u->off_second[i] + (1 - o->beta2) * off * off;
  const double r = sqrt(u->second[i] / c2), dr = sqrt(u->off_second[i] / c2);
  const double way = u->first[i] / c1 / (r + o->epsilon);
  const double other = (u->off_first[i] / c1 + fabs(way) * dr) / (fmax(r - dr, 0) + o->epsilon);
  u->weights[i] -= o->lr * (way + o->decay * u->weights[i]);
  *noise += o->lr * fmin(other, fabs(way) + longest(o, t));
}

static void step_all(const uncut *u, uint32_t t, double *noise) {
  const kit_bench *b = u->b;
  const double norm = norm_of(u->gradients, b->n_elems);
  const double rms = norm / sqrt((double)b->n_elems);
  double clip = 1;
  if (u->o->clip_norm > 0 && norm + 1e-6 > u->o->clip_norm)
    clip = u->o->clip_norm / (norm + 1e-6);
  for (uint32_t p = 0; p < b->n_params; ++p) {
    const kit_parameter *param = &b->params[p];
    const double most = largest(u->gradients + param->first, param->n);
    for (size_t i = param->first; i < param->first + param->n; ++i) {
      const double g = (double)u->gradients[i];
      /* an exact zero has no contribution; the norm may be off as well */
      const double off = g == 0 ? 0 : b->compute->weights * (fmax(most, 0.2 * rms) + fabs(g));
      if (u->o->kind == OPIPE_OPTIMIZER_SGD)
        step_sgd(u, i, clip * g);
      else
        step_adamw(u, i, t, clip * g, clip * off, &noise[i]);
    }
  }
}

/* ---- ten of them ---- */

static opipe_status put_weights(uncut *u, opi_session *session, const double *weights) {
  kit_bench *b = u->b;
  for (uint32_t p = 0; p < b->n_params; ++p) {
    const kit_parameter *param = &b->params[p];
    float *values = u->gradients + param->first; /* free until the step is done */
    for (size_t i = 0; i < param->n; ++i)
      values[i] = (float)weights[param->first + i];
    OPI_TRY(opi_weights_set(opi_train_weights(session), param->name, OPI_TENSOR_WEIGHT, 0, values,
                            param->n * sizeof *values, &b->k.err));
  }
  return OPIPE_OK;
}

static opipe_status train(uncut *u, opi_session *session, bool lag, kit_uncut *out) {
  kit_bench *b = u->b;
  const size_t n_bytes = b->n_elems * sizeof(double);
  memcpy(u->before, u->weights, n_bytes);
  for (uint32_t t = 0; t < kit_n_steps(); ++t) {
    OPI_TRY(put_weights(u, session, lag ? u->before : u->weights));
    OPI_TRY(kit_step(&b->k, session, &b->batches[t], &out->losses[t]));
    OPI_TRY(kit_bench_weights(b, session, OPI_TENSOR_GRADIENT, u->gradients));
    memcpy(u->before, u->weights, n_bytes);
    step_all(u, t, out->noise);
  }
  memcpy(out->weights, u->weights, n_bytes);
  return OPIPE_OK;
}

static opipe_status train_one(kit_bench *b, opi_session *session, const float *start,
                              uint32_t optimizer, bool lag, kit_uncut *out) {
  const size_t n = b->n_elems;
  double *all = calloc(n, 8 * sizeof *all);
  out->weights = calloc(n, sizeof *out->weights);
  out->noise = calloc(n, sizeof *out->noise);
  opipe_status status = OPIPE_E_NOMEM;
  if (all != NULL && out->weights != NULL && out->noise != NULL) {
    uncut u = {.b = b,
               .o = &kit_optimizers[optimizer].spec,
               .weights = all,
               .before = all + n,
               .first = all + 2 * n,
               .second = all + 3 * n,
               .off_first = all + 4 * n,
               .off_second = all + 5 * n,
               .gradients = (float *)(void *)(all + 6 * n)};
    for (size_t i = 0; i < n; ++i)
      u.weights[i] = (double)start[i];
    status = train(&u, session, lag, out);
  }
  free(all);
  return status;
}

opipe_status kit_uncut_train(kit_bench *b, opi_session *session) {
  opipe_status status = kit_bench_weights(b, session, OPI_TENSOR_WEIGHT, b->weights[0]);
  for (uint32_t i = 0; i < 4 && status == OPIPE_OK; ++i)
    status = train_one(b, session, b->weights[0], i / 2, i % 2 != 0, &b->uncut[i / 2][i % 2]);
  return status;
}

double kit_uncut_loose(const kit_bench *b) {
  const double way = kit_n_steps() * kit_optimizers[1].spec.lr;
  size_t n = 0;
  for (size_t i = 0; i < b->n_elems; ++i)
    n += b->uncut[1][0].noise[i] > 0.1 * way;
  return (double)n / (double)b->n_elems;
}
