/* SPDX-License-Identifier: Apache-2.0 */
/* What right results may differ by where numbers are rounded to few bits on the way.
 *
 * Two right kernels differ by the rounding of their sums. That is 1e-6 of a number, but a number
 * that lies in the middle between two steps goes one way or the other by it, and what follows goes
 * with it. How far the outputs move is found out: the uncut model runs with noise of 2^-14 in front
 * of everything that rounds (OPIPE_BIND_NOISE), in several patterns; its outputs differ among each
 * other by what such a noise makes of them, which is several times what fp32 does. Where nothing
 * falls the other way, the noise is doubled, up to 2^-9.
 *
 * Roundings that fall the other way are few and go both ways. A scale that is wrong by 1 % moves
 * numbers by 2^-7 everywhere and in one direction: the root of the mean square tells.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { PATTERNS = 4, LEAST_NOISE = 14, MOST_NOISE = 9 };

/* Of what patterns differ by: the largest of six pairs is no bound of the next. */
static const double rms_factor = 1.5, largest_factor = 2.0;

static bool same_form(const cli_tensor *a, const cli_tensor *b) {
  return a->dtype == b->dtype && cli_elems(a) == cli_elems(b);
}

static cli_rounding difference(const cli_tensor *a, const cli_tensor *b) {
  cli_rounding r = {0, 0, false};
  const size_t n = cli_elems(a);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = cli_tensor_get(a, i), y = cli_tensor_get(b, i);
    const double d = x == y || (isnan(x) && isnan(y)) ? 0 : fabs(x - y);
    r.largest = d > r.largest || isnan(d) ? d : r.largest;
    sum += d * d;
  }
  r.rms = n == 0 ? 0 : sqrt(sum / (double)n);
  return r;
}

bool cli_within_rounding(const cli_rounding *rounding, const cli_tensor *a, const cli_tensor *b,
                         double allowed) {
  if (!same_form(a, b))
    return false;
  const cli_rounding d = difference(a, b);
  return d.largest <= allowed + largest_factor * rounding->largest &&
         d.rms <= allowed + rms_factor * rounding->rms;
}

/* One run of the uncut model with noise. */
static int run_once(const cli_options *o, const cli_session *s, uint32_t noise,
                    const cli_tensor *inputs, uint32_t n_inputs, cli_result *out) {
  const cli_streaming how = {.n = 1};
  cli_options own = *o;
  cli_session session = *s;
  cli_timing timing;
  opipe_plan *plan = NULL;
  cli_cut_nothing(&own);
  own.n_devices = 0;
  own.noise = noise;
  own.quiet = true;
  session.bound = NULL;
  session.plan = NULL;
  int status = cli_bind(&own, &session, inputs, n_inputs);
  if (status == CLI_DONE)
    status = cli_make_plan(&own, &session, 1, &plan);
  if (status == CLI_DONE)
    status = cli_stream(&session, plan, &how, inputs, n_inputs, out, &timing);
  s->api->plan_destroy(plan);
  s->api->model_destroy(session.bound);
  return status;
}

/* The largest differences of any pair. */
static cli_rounding of_pairs(const cli_result *runs, uint32_t output) {
  cli_rounding most = {0, 0, false};
  for (uint32_t p = 0; p < PATTERNS; ++p) {
    for (uint32_t q = p + 1; q < PATTERNS; ++q) {
      if (!same_form(&runs[p].outputs[output], &runs[q].outputs[output]))
        continue;
      const cli_rounding d = difference(&runs[p].outputs[output], &runs[q].outputs[output]);
      most.largest = d.largest > most.largest ? d.largest : most.largest;
      most.rms = d.rms > most.rms ? d.rms : most.rms;
    }
  }
  return most;
}

/* Outputs that have not moved with less noise; the number of those that have now. What goes on
 * without being rounded moves by about the noise itself. */
static uint32_t compare_pairs(const cli_result *runs, uint32_t n_outputs, uint32_t bits,
                              cli_rounding *out) {
  uint32_t moved = 0;
  for (uint32_t i = 0; i < n_outputs; ++i) {
    if (!out[i].moved) {
      cli_difference scale;
      cli_compare(&runs[0].outputs[i], &runs[0].outputs[i], &scale);
      out[i] = of_pairs(runs, i);
      out[i].moved = out[i].largest > ldexp(4.0 * scale.scale, -(int)bits);
    }
    moved += out[i].moved;
  }
  return moved;
}

/* Does anything round at run time? */
static bool rounds(const cli_session *s) {
  cli_gathered text = {NULL, 0, 0};
  bool found = false;
  if (s->api->model_describe(s->bound, OPIPE_FORMAT_JSON, cli_gather, &text, NULL) == OPIPE_OK) {
    json_t *model = json_loadb(text.data, text.n, 0, NULL);
    json_t *operators = json_object_get(model, "operators");
    for (void *at = json_object_iter(operators); at != NULL;
         at = json_object_iter_next(operators, at)) {
      const char *name = json_object_iter_key(at);
      found = found || strstr(name, "QuantizeLinear") != NULL ||
              strstr(name, "DequantizeNBits") != NULL;
    }
    json_decref(model);
  }
  free(text.data);
  return found;
}

int cli_find_rounding(const cli_options *o, const cli_session *s, const cli_tensor *inputs,
                      uint32_t n_inputs, const cli_result *result, cli_rounding *out) {
  int status = CLI_DONE;
  uint32_t moved = 0;
  memset(out, 0, result->n_outputs * sizeof(*out));
  if (!rounds(s))
    return CLI_DONE;
  for (uint32_t bits = LEAST_NOISE;
       status == CLI_DONE && bits >= MOST_NOISE && moved < result->n_outputs; --bits) {
    cli_result runs[PATTERNS] = {{NULL}};
    for (uint32_t p = 0; p < PATTERNS && status == CLI_DONE; ++p)
      status = run_once(o, s, OPIPE_BIND_NOISE(bits, p), inputs, n_inputs, &runs[p]);
    if (status == CLI_DONE)
      moved = compare_pairs(runs, result->n_outputs, bits, out);
    for (uint32_t p = 0; p < PATTERNS; ++p)
      cli_result_free(&runs[p]);
  }
  return status;
}
