/* SPDX-License-Identifier: Apache-2.0 */
/* --reference: the plan's stages, run one by one, must give the same bits, or close values where
 * sums over ranks are unordered; the uncut model must be close. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static double closeness(uint32_t dtype) {
  switch (dtype) {
    case OPIPE_FLOAT:
    case OPIPE_DOUBLE:
    case OPIPE_COMPLEX64:
    case OPIPE_COMPLEX128:
      return 1e-5;
    case OPIPE_FLOAT16:
      return 2e-3;
    case OPIPE_BFLOAT16:
      return 2e-2;
    default:
      return 0; /* integers */
  }
}

/* rounding [n_outputs]: allowed extra difference; NULL: none. */
static int compare_all(const cli_result *a, const cli_result *b, bool bits, const char *with,
                       const cli_rounding *rounding, FILE *says, double *out_largest) {
  int status = CLI_DONE;
  *out_largest = 0;
  for (uint32_t i = 0; i < a->n_outputs; ++i) {
    cli_difference d;
    cli_compare(&a->outputs[i], &b->outputs[i], &d);
    if (d.largest > *out_largest)
      *out_largest = d.largest;
    const double allowed = closeness(a->outputs[i].dtype) * d.scale;
    const bool ok =
        bits ? d.bit_equal
             : d.largest <= allowed ||
                   (rounding != NULL &&
                    cli_within_rounding(&rounding[i], &a->outputs[i], &b->outputs[i], allowed));
    if (ok)
      continue;
    status = CLI_CHECK_FAILED;
    if (says == NULL)
      continue;
    (void)fprintf(
        says, "output %s differs from %s: largest difference %g at element %zu, largest value %g\n",
        a->outputs[i].name, with, d.largest, d.at, d.scale);
  }
  return status;
}

/* Compares every request's bits; the reference has one request, or as many. */
static int compare_each(const cli_result *a, const cli_result *reference, FILE *says) {
  uint32_t n_differ = 0, first = 0, output = 0;
  for (uint32_t r = 0; r < a->n_requests; ++r) {
    const uint64_t *own = a->digests + (size_t)r * a->n_outputs;
    const uint64_t *its =
        reference->digests + (reference->n_requests == 1 ? 0 : (size_t)r * a->n_outputs);
    uint32_t i = 0;
    while (i < a->n_outputs && own[i] == its[i])
      ++i;
    if (i == a->n_outputs)
      continue;
    first = n_differ == 0 ? r : first;
    output = n_differ == 0 ? i : output;
    ++n_differ;
  }
  if (n_differ != 0 && says != NULL) {
    (void)fprintf(says,
                  "%u of %u requests differ from the plan's reference, the first is request %u: "
                  "output %s\n",
                  n_differ, a->n_requests, first, a->outputs[output].name);
  }
  return n_differ == 0 ? CLI_DONE : CLI_CHECK_FAILED;
}

/* Runs the reference for as many requests: with active Dropout each has masks of its own. */
static int run_as_often(const cli_options *o, cli_session *s, opipe_plan *plan,
                        const cli_tensor *inputs, uint32_t n_inputs, cli_result *out) {
  cli_timing timing;
  const uint32_t n = o->run.n_requests == 0 || (!o->graph.graph_dropout && !o->graph.ratio_dropout)
                         ? 1
                         : o->run.n_requests;
  const cli_streaming how = {.n = n, .session_flags = OPIPE_SESSION_REFERENCE, .digests = true};
  return cli_stream(s, plan, &how, inputs, n_inputs, out, &timing);
}

static int run_uncut(const cli_options *o, cli_session *s, const cli_tensor *inputs,
                     uint32_t n_inputs, cli_result *out) {
  cli_options own = *o;
  opipe_plan *plan = NULL;
  cli_cut_nothing(&own);
  own.on.n_devices = 0;
  int status = cli_make_plan(&own, s, 1, &plan);
  if (status == CLI_DONE)
    status = run_as_often(o, s, plan, inputs, n_inputs, out);
  s->api->plan_destroy(plan);
  return status;
}

/* Checks that results are close to the uncut model's, if need be after finding out how much
 * rounding to few bits may change. */
static int compare_uncut(const cli_options *o, const cli_session *s, const cli_tensor *inputs,
                         uint32_t n_inputs, const cli_result *result, const cli_result *uncut,
                         FILE *says, double *out_largest) {
  cli_rounding *rounding = NULL;
  bool close = true;
  for (uint32_t i = 0; i < result->n_outputs; ++i) {
    cli_difference d;
    cli_compare(&result->outputs[i], &uncut->outputs[i], &d);
    close = close && d.largest <= closeness(result->outputs[i].dtype) * d.scale;
  }
  if (!close)
    rounding = calloc(result->n_outputs, sizeof(*rounding));
  if (rounding != NULL && cli_find_rounding(o, s, inputs, n_inputs, result, rounding) != CLI_DONE) {
    free(rounding);
    rounding = NULL;
  }
  const int status =
      compare_all(result, uncut, false, "the uncut model", rounding, says, out_largest);
  free(rounding);
  return status;
}

bool cli_is_unordered(const cli_session *s, opipe_plan *plan) {
  opipe_plan_info info = {.struct_size = sizeof(info)};
  return s->api->plan_info(plan, &info, NULL) == OPIPE_OK &&
         (info.flags & OPIPE_PLAN_UNORDERED) != 0;
}

/* The bits; where sums are unordered only that the last request's values are close. */
static int compare_reference(const cli_result *result, const cli_result *reference, bool unordered,
                             FILE *says, bool *out_bits, double *out_largest) {
  FILE *hears = unordered ? NULL : says;
  const int each = compare_each(result, reference, hears);
  const int last =
      compare_all(result, reference, true, "the plan's reference", NULL, hears, out_largest);
  const int equal = each != CLI_DONE ? each : last;
  *out_bits = equal == CLI_DONE;
  return equal == CLI_DONE || !unordered
             ? equal
             : compare_all(result, reference, false, "the plan's reference", NULL, says,
                           out_largest);
}

static int run_reference(const cli_options *o, cli_session *s, const cli_tensor *inputs,
                         uint32_t n_inputs, const cli_result *result, const cli_json *json) {
  FILE *says = json->file == NULL ? stdout : stderr;
  cli_result reference = {NULL}, uncut = {NULL};
  double bits = 0, close = 0;
  int status = run_as_often(o, s, s->plan, inputs, n_inputs, &reference);
  if (status == CLI_DONE)
    status = run_uncut(o, s, inputs, n_inputs, &uncut);
  if (status == CLI_DONE) {
    const bool unordered = cli_is_unordered(s, s->plan);
    bool identical = false;
    const int equal = compare_reference(result, &reference, unordered, says, &identical, &bits);
    const int near = compare_uncut(o, s, inputs, n_inputs, result, &uncut, says, &close);
    if (json->file != NULL) {
      (void)fprintf(json->file, ", \"reference\": {\"identical\": %s, \"difference_reference\": ",
                    identical ? "true" : "false");
      cli_json_number(json->file, bits);
      (void)fprintf(json->file,
                    ", \"close\": %s, \"difference_uncut\": ", near == CLI_DONE ? "true" : "false");
      cli_json_number(json->file, close);
      (void)fputs("}", json->file);
    } else {
      static const char near_it[] = "close to the plan's reference (sums are unordered)";
      if (identical)
        (void)printf("identical to the plan's reference\n");
      else if (equal == CLI_DONE)
        (void)printf("%s: largest difference %g\n", near_it, bits);
      (void)printf("largest difference from the uncut model: %g%s\n", close,
                   near == CLI_DONE ? "" : " (too large)");
    }
    status = equal != CLI_DONE ? equal : near;
  }
  cli_result_free(&reference);
  cli_result_free(&uncut);
  return status;
}

int cli_compare_with_reference(const cli_options *o, const cli_session *s, const cli_tensor *inputs,
                               uint32_t n_inputs, int status, const cli_result *result,
                               const cli_json *json) {
  cli_session alone = cli_alone(s);
  status = cli_agree(s, "before the reference", status);
  if (status != CLI_DONE)
    return status;
  if (s->team_rank == 0)
    status = run_reference(o, &alone, inputs, n_inputs, result, json);
  return cli_status_of_0(s, status);
}
