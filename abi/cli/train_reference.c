/* SPDX-License-Identifier: Apache-2.0 */
/* train --reference: the same mini-batches with the plan's stages run one by one, which must give
 * the same bits (be close where sums over ranks are unordered), and with the uncut model, which
 * must be close. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train_noise.h"

typedef struct differences {
  double loss;      /* largest, relative */
  double gradients; /* largest ratio of a parameter's ||a - b|| to its allowance */
  double weights;   /* largest ratio of an element's |a - b| to its allowance */
  double tolerance; /* of the loss */
  /* parameters with the largest ratios, borrowed from the second run; NULL: all are 0 */
  const char *gradient, *weight;
  bool bit_equal;
} differences;

double train_tolerance(uint32_t type) {
  return type == OPIPE_BFLOAT16 ? 2e-2 : type == OPIPE_FLOAT16 ? 2e-3 : 1e-5;
}

/* Gradients: 1e-4 in fp32; half types round every product: five times the loss's tolerance. */
static double gradient_tolerance(uint32_t type) {
  const double tolerance = train_tolerance(type);
  return tolerance == 1e-5 ? 1e-4 : 5 * tolerance;
}

/* Two runs in a half type, each as far from fp32 as the other, are at most this many times as far
 * from each other. */
static const double rounding_factor = 2;

static double norm_of(const cli_tensor *t) {
  double sum = 0;
  for (size_t i = 0; i < cli_elems(t); ++i)
    sum += cli_tensor_get(t, i) * cli_tensor_get(t, i);
  return sqrt(sum);
}

static const cli_tensor *named(const cli_tensor *list, uint32_t n, const char *name) {
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(list[i].name, name) == 0)
      return &list[i];
  }
  return NULL;
}

static double distance(const cli_tensor *a, const cli_tensor *b) {
  double sum = 0;
  for (size_t i = 0; i < cli_elems(a); ++i) {
    const double d = cli_tensor_get(a, i) - cli_tensor_get(b, i);
    sum += d * d;
  }
  return sqrt(sum);
}

static double rms_of(const train_result *r) {
  double square = 0, elems = 0;
  for (uint32_t i = 0; i < r->n_params; ++i) {
    const double norm = norm_of(&r->gradients[i]);
    square += norm * norm;
    elems += (double)cli_elems(&r->gradients[i]);
  }
  return elems == 0 ? 0 : sqrt(square / elems);
}

/* A step that neither run applied has a loss and gradients without effect. */
static bool both_skipped(const train_result *a, const train_result *b, uint64_t i) {
  return i < a->n_steps && i < b->n_steps && a->reports[i].skipped != OPIPE_SKIP_NONE &&
         b->reports[i].skipped != OPIPE_SKIP_NONE;
}

static bool same_bits(const cli_tensor *x, const cli_tensor *list, uint32_t n) {
  const cli_tensor *y = named(list, n, x->name);
  return y != NULL && x->n_bytes == y->n_bytes && memcmp(x->data, y->data, x->n_bytes) == 0;
}

/* A ratio that is not a number is the largest. */
static bool is_worse(double ratio, double than) {
  return !isnan(than) && !(ratio <= than);
}

/* ||a - b|| <= tolerance * max(||b||, 0.2 * RMS gradient of the model * sqrt(n)), and unless
 * `exact` is NULL, 2 ||b - exact|| more: how far rounding moves b itself. */
static void compare_gradients(const train_result *a, const train_result *b,
                              const train_result *exact, double tolerance, differences *io) {
  const double rms = rms_of(b);
  io->gradients = 0;
  io->gradient = NULL;
  for (uint32_t i = 0; i < b->n_params; ++i) {
    const cli_tensor *y = &b->gradients[i], *x = named(a->gradients, a->n_params, y->name);
    if (x != NULL && same_bits(x, y, 1))
      continue;
    const cli_tensor *z = exact == NULL ? NULL : named(exact->gradients, exact->n_params, y->name);
    const double allowed = tolerance * fmax(norm_of(y), 0.2 * rms * sqrt((double)cli_elems(y))) +
                           (z == NULL ? 0 : rounding_factor * distance(y, z));
    const double d = x == NULL ? INFINITY : distance(x, y);
    const double ratio = d == 0 ? 0 : d / allowed;
    if (is_worse(ratio, io->gradients)) {
      io->gradients = ratio;
      io->gradient = y->name;
    }
  }
}

static double largest_of(const cli_tensor *t) {
  double most = 0;
  for (size_t i = 0; i < cli_elems(t); ++i)
    most = fmax(most, fabs(cli_tensor_get(t, i)));
  return most;
}

/* max|a - b| <= tolerance max|b| + the effect of rounding on the element. */
static void compare_weights(const train_result *a, const train_result *b, const train_noise *noise,
                            double tolerance, differences *io) {
  for (uint32_t i = 0; i < b->n_params; ++i) {
    const cli_tensor *y = &b->weights[i], *x = named(a->weights, a->n_params, y->name);
    const double most = largest_of(y);
    for (size_t e = 0; x != NULL && e < cli_elems(y); ++e) {
      const double d = fabs(cli_tensor_get(x, e) - cli_tensor_get(y, e));
      const double bound = noise == NULL ? 0 : (double)noise->params[i].bound[e];
      const double ratio = d == 0 ? 0 : d / (tolerance * most + bound);
      if (is_worse(ratio, io->weights)) {
        io->weights = ratio;
        io->weight = y->name;
      }
    }
    if (x == NULL && is_worse(INFINITY, io->weights)) {
      io->weights = INFINITY;
      io->weight = y->name;
    }
  }
}

static double compare_losses(const train_result *a, const train_result *b) {
  double worst = 0;
  for (uint64_t i = 0; i < a->n_steps && i < b->n_steps; ++i) {
    const double x = a->reports[i].loss, y = b->reports[i].loss;
    const bool left_out = both_skipped(a, b, i) && !isfinite(x) && !isfinite(y);
    const double d = x == y || left_out ? 0 : fabs(x - y) / fmax(fabs(y), 1e-30);
    worst = d > worst || isnan(d) ? d : worst;
  }
  return worst;
}

static bool are_bit_equal(const train_result *a, const train_result *b) {
  bool equal = a->n_steps == b->n_steps && a->n_params == b->n_params;
  for (uint64_t i = 0; equal && i < a->n_steps; ++i) {
    const opipe_train_report *x = &a->reports[i], *y = &b->reports[i];
    equal = memcmp(&x->loss, &y->loss, sizeof(x->loss)) == 0;
  }
  for (uint32_t i = 0; equal && i < a->n_params; ++i) {
    equal = same_bits(&a->weights[i], b->weights, b->n_params) &&
            same_bits(&a->gradients[i], b->gradients, b->n_params);
  }
  return equal;
}

static void compare(const train_result *a, const train_result *b, const train_noise *noise,
                    differences *out) {
  const bool no_gradients = a->n_steps == b->n_steps && both_skipped(a, b, a->n_steps - 1);
  *out = (differences){.loss = compare_losses(a, b),
                       .tolerance = train_tolerance(a->coarsest),
                       .bit_equal = are_bit_equal(a, b)};
  if (!no_gradients)
    compare_gradients(a, b, NULL, gradient_tolerance(a->coarsest), out);
  compare_weights(a, b, noise, out->tolerance, out);
}

static bool close_enough(const differences *d) {
  return d->loss <= d->tolerance && d->gradients <= 1 && d->weights <= 1;
}

static void print(const train_run *run, const char *name, const differences *d) {
  FILE *out = run->o->out.json ? stderr : stdout;
  const char *verdict = d->bit_equal ? "bit-equal" : close_enough(d) ? "close" : "differs";
  (void)fprintf(
      out, "%-16s %-9s  loss %.3g (relative)  gradients %.3g, weights %.3g (of what is allowed)\n",
      name, verdict, train_shown(d->loss), train_shown(d->gradients), train_shown(d->weights));
  if (d->bit_equal || close_enough(d))
    return;
  if (!(d->gradients <= 1))
    (void)fprintf(out, "  furthest: the gradient of '%s'\n", d->gradient);
  if (!(d->weights <= 1))
    (void)fprintf(out, "  furthest: the weight '%s'\n", d->weight);
}

bool train_is_double_buffered(const train_run *run) {
  opipe_plan_info info = {.struct_size = sizeof(info)};
  opipe_memory_info memory = {.struct_size = sizeof(memory)};
  bool found = false;
  (void)run->s->api->plan_info(run->plan, &info, NULL);
  for (uint32_t r = 0; r < info.n_ranks && !found; ++r) {
    found = run->s->api->plan_memory(run->plan, r, &memory, NULL) == OPIPE_OK &&
            memory.version_bytes != 0;
  }
  return found;
}

/* Double-buffered schedules apply gradients of the previous version, so the uncut model does too.
 */
static int plan_uncut(const train_run *run, opipe_train_options options, opipe_plan **out_plan) {
  cli_options *o = malloc(sizeof(*o));
  if (o == NULL)
    return cli_fail("out of memory");
  *o = *run->o;
  cli_cut_nothing(o);
  o->plan.schedule = train_is_double_buffered(run) ? "2bw" : NULL;
  const int status = cli_make_train_plan(o, run->s, 1, &options, out_plan);
  free(o);
  return status;
}

static void put(FILE *json, const char *name, const differences *d) {
  (void)fprintf(json, "\"%s\": {\"loss\": ", name);
  cli_json_number(json, d->loss);
  (void)fputs(", \"gradients\": ", json);
  cli_json_number(json, d->gradients);
  (void)fputs(", \"weights\": ", json);
  cli_json_number(json, d->weights);
  (void)fputs("}", json);
}

/* The uncut model with the same mini-batches in fp32, where rounding to the compute type alone
 * takes some gradients further than the tolerance: what it does to them is allowed too. */
static int allow_for_rounding(const train_run *again, const train_result *result,
                              const train_result *uncut, differences *io) {
  train_run exact = *again;
  opipe_train_options options = *again->options;
  train_result other;
  opipe_plan *plan = NULL;
  options.compute = OPIPE_FLOAT;
  options.loss_scaling = 0;
  exact.options = &options;
  exact.noise = NULL;
  int status = plan_uncut(again, options, &plan);
  if (status != CLI_DONE)
    return status;
  exact.plan = plan;
  status = train_go(&exact, &other);
  if (status == CLI_DONE)
    compare_gradients(result, uncut, &other, gradient_tolerance(result->coarsest), io);
  train_result_free(&other);
  again->s->api->plan_destroy(plan);
  return status;
}

/* Repeats the run as in `again`, and compares. */
static int run_and_compare(const train_run *run, const train_run *again, const char *name,
                           const train_result *result, differences *out) {
  const bool rounds = train_tolerance(again->options->compute) > train_tolerance(OPIPE_FLOAT);
  train_result other;
  int status = train_go(again, &other);
  if (status == CLI_DONE) {
    compare(result, &other, again->noise, out);
    if (rounds && out->gradients > 1)
      status = allow_for_rounding(again, result, &other, out);
  }
  if (status == CLI_DONE)
    print(run, name, out);
  train_result_free(&other);
  return status;
}

static int run_reference(const train_run *run, const train_result *result, const cli_json *json) {
  train_run again = *run;
  train_noise noise = {.tolerance = gradient_tolerance(result->coarsest)}, sums = noise;
  const bool unordered = cli_is_unordered(run->s, run->plan);
  differences plain, uncut;
  opipe_plan *plan = NULL;
  again.quiet = true;
  again.start = run->o->t.resume == NULL ? NULL : &result->start;
  again.session_flags = (run->session_flags | OPIPE_SESSION_REFERENCE) &
                        ~(uint32_t)(OPIPE_SESSION_HOLD | OPIPE_SESSION_TRACE);
  if (unordered) /* an optimizer may make much of the last bits of small gradients */
    again.noise = &sums;
  int status = run_and_compare(run, &again, "plan's reference", result, &plain);
  train_noise_free(&sums);
  if (status == CLI_DONE)
    status = plan_uncut(run, *run->options, &plan);
  if (status != CLI_DONE)
    return status;
  again.plan = plan;
  /* it has its own kernels */
  again.session_flags &= ~(uint32_t)(OPIPE_SESSION_REFERENCE | OPIPE_SESSION_TUNED);
  again.noise = &noise;
  status = run_and_compare(run, &again, "uncut model", result, &uncut);
  train_noise_free(&noise);
  run->s->api->plan_destroy(plan);
  if (status != CLI_DONE)
    return status;
  const bool close = close_enough(&uncut);
  const bool alike = plain.bit_equal || (unordered && close_enough(&plain));
  if (json->file != NULL) {
    (void)fprintf(json->file, ", \"reference\": {\"identical\": %s, \"close\": %s, ",
                  plain.bit_equal ? "true" : "false", close ? "true" : "false");
    put(json->file, "plan", &plain);
    (void)fputs(", ", json->file);
    put(json->file, "uncut", &uncut);
    (void)fputs("}", json->file);
  }
  return alike && close ? CLI_DONE : CLI_CHECK_FAILED;
}

/* All processes have helped process 0 to the weights and gradients; it goes on alone. */
int train_reference(const train_run *run, const train_result *result, const cli_json *json) {
  cli_session alone = cli_alone(run->s);
  train_run own = *run;
  own.s = &alone;
  return cli_status_of_0(run->s,
                         run->s->team_rank == 0 ? run_reference(&own, result, json) : CLI_DONE);
}
