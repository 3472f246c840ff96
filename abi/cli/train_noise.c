/* SPDX-License-Identifier: Apache-2.0 */
/* Follows the rounding of gradients through an optimizer: see train_noise.h. */
#include "train_noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train_state.h"

static void free_list(cli_tensor *list, uint32_t n) {
  for (uint32_t i = 0; list != NULL && i < n; ++i)
    cli_tensor_free(&list[i]);
  free(list);
}

void train_noise_free(train_noise *noise) {
  for (uint32_t i = 0; i < noise->n_params; ++i)
    free(noise->params[i].first);
  free(noise->params);
  noise->params = NULL;
  noise->n_params = 0;
}

/* A checkpoint's moments. */
static int take_moments(const train_loop *l, uint32_t state, train_noise *noise) {
  cli_tensor *list = NULL;
  uint32_t n = 0;
  const int status = train_keep_state(l, state, 0, &list, &n);
  for (uint32_t i = 0; status == CLI_DONE && i < n; ++i) {
    noise_param *p = &noise->params[i];
    memcpy(state == OPIPE_STATE_FIRST_MOMENT ? p->first : p->second, list[i].data,
           p->n * sizeof(float));
  }
  free_list(list, n);
  return status;
}

int train_noise_open(const train_loop *l, train_noise *noise) {
  const opipe_api *api = l->run->s->api;
  const uint32_t n_moments = train_n_moments(l->run);
  opipe_parameter_info info = {.struct_size = sizeof(info)};
  opipe_train_clock clock = {.struct_size = sizeof(clock)};
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t n = 0;
  if (api->session_clock(l->session, &clock, &err) < 0)
    return cli_report("train", &err);
  noise->n_updates = clock.updates;
  while (api->session_parameter(l->session, n, &info, NULL) == OPIPE_OK)
    ++n;
  noise->params = calloc((size_t)n + 1, sizeof(*noise->params));
  for (uint32_t i = 0; noise->params != NULL && i < n; ++i) {
    size_t elems = 1;
    if (api->session_parameter(l->session, i, &info, &err) < 0)
      return cli_report("train", &err);
    if (info.trained == 0)
      continue;
    for (uint32_t d = 0; d < info.rank; ++d)
      elems *= (size_t)info.shape[d];
    noise_param *p = &noise->params[noise->n_params++];
    float *all = calloc(elems == 0 ? 1 : elems, 5 * sizeof(*all));
    if (all == NULL)
      return cli_fail("out of memory for parameter '%s'", info.name);
    *p = (noise_param){all, all + elems, all + 2 * elems, all + 3 * elems, all + 4 * elems, elems};
  }
  if (noise->params == NULL)
    return cli_fail("out of memory");
  int status = CLI_DONE;
  for (uint32_t m = 0; l->run->o->t.resume != NULL && m < n_moments && status == CLI_DONE; ++m)
    status = take_moments(l, OPIPE_STATE_FIRST_MOMENT + m, noise);
  return status;
}

/* ---- one step ---- */

/* Longest step of a quotient of moments at update t (0: the first), in learning rates: |m| <= r
 * sqrt(sum a^2 / b) with the weights a of the first and b of the second moment (Cauchy and
 * Schwarz). */
static double longest(const opipe_train_options *o, uint64_t t) {
  const double c1 = 1 - pow(o->beta1, (double)t + 1), c2 = 1 - pow(o->beta2, (double)t + 1);
  double sum = 0;
  for (uint64_t i = 0; i <= t && i < 1000; ++i) { /* older terms do not matter */
    const double a = (1 - o->beta1) * pow(o->beta1, (double)i) / c1;
    const double b = (1 - o->beta2) * pow(o->beta2, (double)i) / c2;
    sum += a * a / b;
  }
  return sqrt(sum);
}

typedef struct one_step {
  const opipe_train_options *o;
  double lr, clip, c1, c2, longest;
  bool divides; /* divided by the root of a second moment */
} one_step;

static void follow_sum(const one_step *s, noise_param *p, size_t i, double off) {
  p->off_first[i] = (float)(s->o->momentum * (double)p->off_first[i] + off);
  p->bound[i] += (float)(s->lr * (double)p->off_first[i]);
}

static void follow_quotient(const one_step *s, noise_param *p, size_t i, double g, double off) {
  const double b1 = s->o->beta1, b2 = s->o->beta2;
  p->first[i] = (float)(b1 * (double)p->first[i] + (1 - b1) * g);
  p->second[i] = (float)(b2 * (double)p->second[i] + (1 - b2) * g * g);
  p->off_first[i] = (float)(b1 * (double)p->off_first[i] + (1 - b1) * off);
  p->off_second[i] = (float)(b2 * (double)p->off_second[i] + (1 - b2) * off * off);
  const double r = sqrt((double)p->second[i] / s->c2), dr = sqrt((double)p->off_second[i] / s->c2);
  const double way = (double)p->first[i] / s->c1 / (r + s->o->epsilon);
  const double other =
      ((double)p->off_first[i] / s->c1 + fabs(way) * dr) / (fmax(r - dr, 0) + s->o->epsilon);
  p->bound[i] += (float)(s->lr * fmin(other, fabs(way) + s->longest));
}

/* True if no element of a row has a contribution. A zero among others is a sum that happens to be
 * zero, and could be noise. */
static bool untouched(const cli_tensor *gradient, size_t first, size_t n) {
  for (size_t i = first; i < first + n; ++i) {
    if (cli_tensor_get(gradient, i) != 0)
      return false;
  }
  return true;
}

/* gradient [.., columns] */
static void follow(const one_step *s, const cli_tensor *gradient, double floor, double tolerance,
                   noise_param *p) {
  const size_t columns = gradient->rank == 0 ? 1 : (size_t)gradient->shape[gradient->rank - 1];
  bool exact = false; /* the row's zeros */
  double most = 0;
  for (size_t i = 0; i < p->n; ++i)
    most = fmax(most, fabs(cli_tensor_get(gradient, i)));
  for (size_t i = 0; i < p->n; ++i) {
    const double g = cli_tensor_get(gradient, i);
    if (i % columns == 0)
      exact = untouched(gradient, i, columns);
    /* the norm may be off too */
    const double off = exact ? 0 : tolerance * (fmax(most, floor) + fabs(g));
    if (s->divides)
      follow_quotient(s, p, i, s->clip * g, s->clip * off);
    else
      follow_sum(s, p, i, s->clip * off);
  }
}

int train_noise_step(const train_loop *l, const opipe_train_report *report, train_noise *noise) {
  const opipe_train_options *o = l->run->options;
  const double norm = report->gradient_norm, t = (double)noise->n_updates + 1;
  cli_tensor *gradients = NULL;
  uint32_t n = 0;
  double elems = 0;
  if (report->skipped != OPIPE_SKIP_NONE)
    return CLI_DONE;
  const int status = train_keep_state(l, OPIPE_STATE_GRADIENT, 0, &gradients, &n);
  const one_step s = {
      .o = o,
      .lr = report->lr,
      .clip = o->clip_norm > 0 && norm + 1e-6 > o->clip_norm ? o->clip_norm / (norm + 1e-6) : 1,
      .c1 = 1 - pow(o->beta1, t),
      .c2 = 1 - pow(o->beta2, t),
      .longest = longest(o, noise->n_updates),
      .divides = opipe_optimizer_row_of(o->optimizer)->moments > 1};
  for (uint32_t i = 0; i < noise->n_params; ++i)
    elems += (double)noise->params[i].n;
  for (uint32_t i = 0; status == CLI_DONE && i < n && i < noise->n_params; ++i)
    follow(&s, &gradients[i], 0.2 * norm / sqrt(elems), noise->tolerance, &noise->params[i]);
  ++noise->n_updates;
  free_list(gradients, n);
  return status;
}
