/* SPDX-License-Identifier: Apache-2.0 */
/* If nothing fits: reports what is missing and the smallest change that helps. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "loader/base/sizes.h"
#include "partition/study/auto/run.h"

enum { HELP_WORK = 2000000 };

/* Bytes of the most frugal plan when caps and limits are ignored; 0: there is none. */
static double least_bytes(const opi_auto *question) {
  opi_auto q = *question;
  opi_auto_answer *answer = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  double bytes = 0;
  q.objective = OPI_AUTO_MEMORY;
  q.limit_ns = 0;
  q.uncapped = true;
  q.work_most = HELP_WORK;
  q.progress = NULL;
  if (opi_auto_search(&q, &answer, &err) == OPIPE_OK)
    bytes = answer->ranked[0].judged.bytes;
  opi_auto_free(answer);
  return bytes;
}

/* Finds the plan with the least excess over the devices' caps. over_bytes 0 or less: it fits. */
static bool find_nearest(const opi_auto *question, opi_judged *out) {
  opi_auto q = *question;
  opi_auto_answer *answer = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  q.objective = OPI_AUTO_MEMORY;
  q.limit_ns = 0;
  q.uncapped = q.nearest = true;
  q.work_most = HELP_WORK;
  q.progress = NULL;
  const bool found = opi_auto_search(&q, &answer, &err) == OPIPE_OK;
  if (found)
    *out = answer->ranked[0].judged;
  opi_auto_free(answer);
  return found;
}

/* Time of the fastest plan within all caps when the time limit is ignored: ns of a step. */
static double least_ns(const opi_auto *question) {
  opi_auto q = *question;
  opi_auto_answer *answer = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  double ns = 0;
  q.objective = q.mode == OPIPE_MODE_TRAIN ? OPI_AUTO_STEP : OPI_AUTO_LATENCY;
  q.limit_ns = 0;
  q.work_most = HELP_WORK;
  q.progress = NULL;
  q.no_help = true;
  if (opi_auto_search(&q, &answer, &err) == OPIPE_OK)
    ns = answer->ranked[0].judged.step_ns;
  opi_auto_free(answer);
  return ns;
}

static opipe_status say_time(const opi_auto_run *run, double ns) {
  const opi_auto *q = run->space->question;
  return opi_fail(run->space->err, OPIPE_E_LIMIT,
                  "planner 'auto': no plan that fits takes at most %.3f ms; the fastest plan "
                  "found takes %.3f ms, which is the smallest limit that helps",
                  q->limit_ns * 1e-6, ns * 1e-6);
}

static double least_cap(const opi_space *s) {
  double cap = INFINITY;
  for (uint32_t i = 0; i < s->question->planning.n_devices; ++i)
    cap = fmin(cap, s->caps[i]);
  return cap;
}

/* True if some plan fits when a choice of the caller is dropped, or when hypothetical plans are
 * allowed. The question is planned under the actual caps. */
static bool fits(const opi_auto *question) {
  opi_auto q = *question;
  opi_auto_answer *answer = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  q.objective = OPI_AUTO_MEMORY;
  q.limit_ns = 0;
  q.work_most = HELP_WORK;
  q.progress = NULL;
  q.no_help = true;
  const bool found = opi_auto_search(&q, &answer, &err) == OPIPE_OK;
  opi_auto_free(answer);
  return found;
}

/* The first change that leads to a plan under the caps; NULL: none. */
static const char *change_that_fits(const opi_auto *question) {
  enum { WIDER = 4, CHANGES };
  static const char *const changes[CHANGES] = {
      "another choice of recomputing does", "another number of micro-batches does",
      "another number of stages, ranks or copies does", "another schedule does",
      "tensor width and sharded optimizers (hypothetical) do"};
  const opi_auto_fixed *f = &question->fixed;
  const bool given[CHANGES] = {f->recompute != OPI_RECOMPUTES_FREE, f->microbatches != 0,
                               f->n_stages != 0 || f->n_ranks != 0 || f->pipelines != 0,
                               f->schedule != NULL, !question->hypothetical};
  for (uint32_t i = 0; i < CHANGES; ++i) {
    opi_auto q = *question;
    q.fixed.recompute = i == 0 ? OPI_RECOMPUTES_FREE : q.fixed.recompute;
    q.fixed.microbatches = i == 1 ? 0 : q.fixed.microbatches;
    if (i == 2)
      q.fixed.n_stages = q.fixed.n_ranks = q.fixed.pipelines = 0;
    q.fixed.schedule = i == 3 ? NULL : q.fixed.schedule;
    q.hypothetical = q.hypothetical || i == WIDER;
    if (given[i] && fits(&q))
      return changes[i];
  }
  return NULL;
}

static opipe_status say_bytes(const opi_auto_run *run, double bytes) {
  const opi_space *s = run->space;
  const double cap = least_cap(s);
  const char *change = change_that_fits(s->question);
  return opi_fail(s->err, OPIPE_E_LIMIT,
                  "planner 'auto': no plan fits %s on each of %u devices: the one that "
                  "needs least takes %s, %s more; caps of that help%s%s",
                  OPI_SIZE(cap), s->question->planning.n_devices, OPI_SIZE(ceil(bytes)),
                  OPI_SIZE(ceil(bytes - cap)),
                  change == NULL ? ", and no other change of what was asked for does" : ", and ",
                  change == NULL ? "" : change);
}

static bool caps_differ(const opi_space *s) {
  bool differ = false;
  for (uint32_t i = 1; i < s->question->planning.n_devices; ++i)
    differ = differ || s->caps[i] != s->caps[0];
  return differ;
}

/* As say_bytes, for devices with caps of their own. */
static opipe_status say_caps(const opi_auto_run *run, const opi_judged *nearest) {
  const opi_space *s = run->space;
  const double cap = s->caps[nearest->over_device], over = nearest->over_bytes;
  const char *change = change_that_fits(s->question);
  char helps[OPI_LINE_ROOM];
  if (nearest->n_over == 1) {
    (void)snprintf(helps, sizeof helps, "a cap of that on it helps");
  } else {
    (void)snprintf(helps, sizeof helps, "%u are over theirs; caps that are larger by that help",
                   nearest->n_over);
  }
  return opi_fail(
      s->err, OPIPE_E_LIMIT,
      "planner 'auto': no plan fits the caps of the %u devices: the one that is nearest "
      "to them takes %s on device %u, whose cap is %s, %s more; %s%s%s",
      s->question->planning.n_devices, OPI_SIZE(ceil(cap + over)), nearest->over_device,
      OPI_SIZE(cap), OPI_SIZE(ceil(over)), helps,
      change == NULL ? ", and no other change of what was asked for does" : ", and ",
      change == NULL ? "" : change);
}

/* There was no candidate at all. */
static opipe_status say_shape(const opi_auto_run *run) {
  const opi_space *s = run->space;
  const opi_auto *q = s->question;
  const opi_auto_fixed *f = &q->fixed;
  const char *why = run->why[0] != '\0' ? run->why : s->why;
  if (f->microbatches != 0 && f->pipelines != 0 && f->microbatches % f->pipelines != 0) {
    return opi_fail(s->err, OPIPE_E_LIMIT,
                    "planner 'auto': %u micro-batches cannot be shared by %u pipelines: %u, or %u, "
                    "can",
                    f->microbatches, f->pipelines, f->microbatches / f->pipelines * f->pipelines,
                    (f->microbatches / f->pipelines + 1) * f->pipelines);
  }
  if (f->microbatches > q->planning.batch) {
    return opi_fail(s->err, OPIPE_E_LIMIT,
                    "planner 'auto': %u micro-batches of %" PRIu64
                    " samples: at most one for each sample",
                    f->microbatches, q->planning.batch);
  }
  if (f->n_stages > q->planning.layers->n_layers) {
    return opi_fail(s->err, OPIPE_E_LIMIT,
                    "planner 'auto': %u stages of %u layers: at most one for each layer",
                    f->n_stages, q->planning.layers->n_layers);
  }
  if (f->n_ranks > q->planning.n_devices) {
    return opi_fail(s->err, OPIPE_E_LIMIT,
                    "planner 'auto': %u ranks on %u devices: at most one each", f->n_ranks,
                    q->planning.n_devices);
  }
  if (f->width > q->planning.n_devices) {
    return opi_fail(s->err, OPIPE_E_LIMIT, "planner 'auto': tensor width %u on %u devices",
                    f->width, q->planning.n_devices);
  }
  if (f->width > 1 && !opi_auto_widens(q)) {
    return opi_fail(
        s->err, OPIPE_E_LIMIT,
        "planner 'auto': no session executes tensor width %u of layers without a model: "
        "1, or a hypothetical plan",
        f->width);
  }
  return opi_fail(s->err, OPIPE_E_LIMIT,
                  "planner 'auto': no layout with these options exists on %u devices%s%s",
                  q->planning.n_devices, why[0] == '\0' ? "" : "; last: ", why);
}

/* The search ended before it saw all candidates. */
static opipe_status say_stopped(const opi_auto_run *run) {
  const opi_auto *q = run->space->question;
  if (run->stopped == OPI_STOPPED_CLOCK && run->n_simulated == 0) {
    return opi_fail(run->space->err, OPIPE_E_LIMIT,
                    "planner 'auto': the budget of %g s was over before a plan was simulated, and "
                    "%u are left: a larger budget helps",
                    q->budget_s, run->n_left);
  }
  if (run->stopped == OPI_STOPPED_CLOCK) {
    return opi_fail(run->space->err, OPIPE_E_LIMIT,
                    "planner 'auto': none of the %u plans fits that were simulated within the "
                    "budget of %g s, and %u are left: a larger budget helps",
                    run->n_simulated, q->budget_s, run->n_left);
  }
  return opi_fail(run->space->err, OPIPE_E_LIMIT,
                  "planner 'auto': none of the %u plans fits that were simulated, and %u are left; "
                  "the objective 'memory' finds one that fits",
                  run->n_simulated, run->n_left);
}

opipe_status opi_infeasible(opi_auto_run *run) {
  const opi_auto *q = run->space->question;
  if (run->stopped == OPI_STOPPED_CLOCK)
    return say_stopped(run);
  if (q->uncapped || q->no_help)
    return say_shape(run);
  if (q->limit_ns > 0) {
    const double ns = least_ns(q);
    if (ns > 0)
      return say_time(run, ns);
  }
  if (caps_differ(run->space)) {
    opi_judged nearest;
    if (!find_nearest(q, &nearest))
      return say_shape(run);
    return nearest.over_bytes <= 0 ? say_stopped(run) : say_caps(run, &nearest);
  }
  const double bytes = least_bytes(q);
  if (bytes <= 0)
    return say_shape(run);
  if (bytes <= least_cap(run->space))
    return say_stopped(run);
  return say_bytes(run, bytes);
}
