/* SPDX-License-Identifier: Apache-2.0 */
/* How much correct results may differ if numbers are rounded to few bits on the way.
 *
 * Two correct kernels differ by the rounding of their sums, about 2^-22 of a number. A number
 * halfway between two steps may therefore be rounded either way, and later values change with it:
 * after a few layers one such step moves everything by about as much as many do. To find out how
 * far the outputs move, the uncut model runs with noise of 2^-20 before everything that rounds
 * (OPIPE_BIND_NOISE), in eight patterns, and its outputs are compared with each other. If no step
 * changes in any of them, nothing may differ beyond the tolerance.
 *
 * A scale that is wrong by 1 %, or a zero point by 1, moves numbers everywhere: many steps change
 * at once. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { PATTERNS = 8, NOISE_BITS = 20 };

/* Factors on the differences between patterns: the largest of all pairs does not bound the next. */
static const double rms_factor = 1.25, largest_factor = 1.5;

static bool same_form(const cli_tensor *a, const cli_tensor *b) {
  return a->dtype == b->dtype && cli_elems(a) == cli_elems(b);
}

static cli_rounding difference(const cli_tensor *a, const cli_tensor *b) {
  cli_rounding r = {0, 0};
  const size_t n = cli_elems(a);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const double d = cli_distance(a, b, i);
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

/* Runs the uncut model once with noise. */
static int run_once(const cli_options *o, const cli_session *s, uint32_t noise,
                    const cli_tensor *inputs, uint32_t n_inputs, cli_result *out) {
  const cli_streaming how = {.n = 1};
  cli_options own = *o;
  cli_session session = *s;
  cli_timing timing;
  opipe_plan *plan = NULL;
  cli_cut_nothing(&own);
  own.on.n_devices = 0;
  own.graph.noise = noise;
  own.out.quiet = true;
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

/* Largest differences of any pair. */
static cli_rounding of_pairs(const cli_result *runs, uint32_t output) {
  cli_rounding most = {0, 0};
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

/* True if anything is rounded to few bits at run time. */
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
  cli_result runs[PATTERNS] = {{NULL}};
  int status = CLI_DONE;
  memset(out, 0, result->n_outputs * sizeof(*out));
  if (!rounds(s))
    return CLI_DONE;
  for (uint32_t p = 0; p < PATTERNS && status == CLI_DONE; ++p)
    status = run_once(o, s, OPIPE_BIND_NOISE(NOISE_BITS, p), inputs, n_inputs, &runs[p]);
  for (uint32_t i = 0; i < result->n_outputs && status == CLI_DONE; ++i)
    out[i] = of_pairs(runs, i);
  for (uint32_t p = 0; p < PATTERNS; ++p)
    cli_result_free(&runs[p]);
  return status;
}
