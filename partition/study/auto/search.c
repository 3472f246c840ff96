/* SPDX-License-Identifier: Apache-2.0 */
/* The search. Candidates, sorted by guess (shortlist.c), are judged by the simulator in rounds of a
 * fixed size that threads share; those whose bounds cannot beat the best are dropped. The
 * neighbours of the best ones follow. The result does not depend on the number of threads.
 */
#include <math.h>
#include <string.h>

#include "partition/study/auto/run.h"

/* A play may add the same numbers in another order and come out lower than a bound by this much. */
#define ROUNDING 1e-12

/* ---- rounds ---- */

static bool is_better(double key, uint32_t index, const opi_candidate *than) {
  return key < than->key || (key == than->key && index < than->point.index);
}

enum { SHAPE_NUMBERS = 8 };

static void shape_of(const opi_point *p, uint32_t out[SHAPE_NUMBERS]) {
  const uint32_t numbers[SHAPE_NUMBERS] = {p->width,           p->copies,    p->samples,
                                           p->microbatches,    p->recompute, p->places->n_stages,
                                           opi_point_ranks(p), p->sharded};
  memcpy(out, numbers, sizeof numbers);
}

bool opi_points_alike(const opi_point *a, const opi_point *b) {
  uint32_t shapes[2][SHAPE_NUMBERS];
  shape_of(a, shapes[0]);
  shape_of(b, shapes[1]);
  return memcmp(shapes[0], shapes[1], sizeof shapes[0]) == 0;
}

uint64_t opi_point_kind(const opi_point *p) {
  uint32_t numbers[SHAPE_NUMBERS];
  uint64_t hash = UINT64_C(14695981039346656037) ^ p->method; /* FNV-1a */
  shape_of(p, numbers);
  for (size_t i = 0; i < SHAPE_NUMBERS; ++i)
    hash = (hash * UINT64_C(1099511628211)) ^ numbers[i];
  hash *= UINT64_C(1099511628211);
  return (hash ^ (hash >> 32)) | UINT64_C(1) << 63;
}

/* True for the same shape with another cut, or under a schedule that comes to the same: the better
 * one stands for both. */
static bool is_double(const opi_candidate *a, const opi_candidate *b) {
  const bool level = fabs(a->key - b->key) <= ROUNDING * b->key;
  return opi_points_alike(&a->point, &b->point) &&
         (a->point.method == b->point.method || (level && a->judged.bytes == b->judged.bytes));
}

/* Inserts a candidate into the best ones, and drops those that it or a better one stands for. */
static void rank_candidate(opi_auto_run *run, const opi_candidate *c) {
  uint32_t at = 0, kept = 0;
  bool stands = true;
  while (at < run->n_best && !is_better(c->key, c->point.index, &run->best[at])) {
    stands = stands && !is_double(c, &run->best[at]);
    ++at;
  }
  for (uint32_t i = 0; i < run->n_best; ++i) {
    if (i < at || !is_double(c, &run->best[i]))
      run->best[kept++] = run->best[i];
  }
  run->n_best = kept;
  if (!stands || at >= OPI_KEPT_MOST)
    return;
  run->n_best += run->n_best < OPI_KEPT_MOST;
  memmove(&run->best[at + 1], &run->best[at], (run->n_best - 1 - at) * sizeof *c);
  run->best[at] = *c;
}

bool opi_leads_as(const opi_point *a, const opi_point *b) {
  return a->places->n_stages == b->places->n_stages && a->copies == b->copies &&
         a->samples == b->samples && opi_point_ranks(a) == opi_point_ranks(b);
}

/* Makes a candidate the leader of its shape, in place of the previous one or, if all places are
 * taken, of the worst. */
static void lead(opi_auto_run *run, const opi_candidate *c) {
  uint32_t at = 0, worst = 0;
  for (; at < run->n_leaders && !opi_leads_as(&run->leaders[at].point, &c->point); ++at)
    worst = run->leaders[at].key > run->leaders[worst].key ? at : worst;
  if (at == OPI_LEADERS_MOST)
    at = worst;
  if (at < run->n_leaders && !is_better(c->key, c->point.index, &run->leaders[at]))
    return;
  run->n_leaders += at == run->n_leaders;
  run->leaders[at] = *c;
}

static opipe_status take_round(opi_auto_run *run) {
  for (uint32_t i = 0; i < run->n_round; ++i) {
    opi_candidate *c = &run->round[i];
    if (c->status == OPIPE_E_NOMEM)
      return opi_fail_nomem(run->space->err, 1, "a simulation");
    const bool again = c->from != NULL && c->from->fate != OPI_POINT_NONE;
    run->n_simulated += c->status == OPIPE_OK && !again;
    run->work += c->judged.n_ops + OPI_WORK_LEAST;
    c->key = c->status == OPIPE_OK ? opi_judged_key(run->space, &c->judged) : INFINITY;
    if ((c->point.index & OPI_LATER) != 0) /* may be lower only by rounding */
      c->key = fmax(c->key, c->point.bound);
    if (c->from != NULL)
      c->from->fate = isfinite(c->key) ? OPI_POINT_PLAYED : OPI_POINT_REFUSED;
    if (isfinite(c->key)) {
      rank_candidate(run, c);
      lead(run, c);
      continue;
    }
    ++run->n_refused;
    if (c->status < 0 && run->why[0] == '\0')
      (void)opi_text_line(run->why, c->err.message);
  }
  run->n_round = 0;
  return OPIPE_OK;
}

static void report(const opi_auto_run *run) {
  const opi_auto *q = run->space->question;
  const opi_auto_progress now = {
      .n_candidates = run->space->n_points + run->n_neighbours,
      .n_bounded = run->n_bounded,
      .n_simulated = run->n_simulated,
      .best = run->n_best > 0 ? run->best[0].key : INFINITY,
      .best_ns = run->n_best > 0 ? run->best[0].judged.step_ns : INFINITY,
      .bound = run->bound};
  if (q->progress != NULL)
    q->progress(q->progress_ctx, &now);
}

static bool is_spent(opi_auto_run *run, uint64_t most) {
  if (run->work >= most)
    run->stopped = OPI_STOPPED_WORK;
  if (opi_space_spent(run->space, 1))
    run->stopped = OPI_STOPPED_CLOCK;
  return run->stopped != OPI_STOPPED_NOT;
}

opipe_status opi_run_round(opi_auto_run *run) {
  opi_crew_judge(run);
  OPI_TRY(take_round(run));
  report(run);
  return OPIPE_OK;
}

bool opi_run_offer(opi_auto_run *run, const opi_point *point) {
  const double best = run->n_best > 0 ? run->best[0].key : INFINITY;
  if (point->bound >= best)
    return false;
  run->round[run->n_round++] = (opi_candidate){.point = *point};
  return true;
}

/* ---- the shortlist ---- */

static opipe_status judge_points(opi_auto_run *run, uint64_t most) {
  opi_space *s = run->space;
  uint32_t i = 0;
  OPI_TRY(opi_run_sort(run));
  while (i < s->n_points && (i == 0 || !is_spent(run, most))) { /* at least one round */
    for (; i < s->n_points && run->n_round < OPI_ROUND; ++i) {
      if (opi_run_offer(run, &s->points[i]))
        run->round[run->n_round - 1].from = &s->points[i];
      else
        ++run->n_bounded;
    }
    OPI_TRY(opi_run_round(run));
  }
  for (; i < s->n_points; ++i) {
    const bool bounded = run->n_best > 0 && s->points[i].bound >= run->best[0].key;
    run->n_bounded += bounded;
    run->n_left += !bounded;
  }
  return OPIPE_OK;
}

/* Alternates neighbours and other kinds until neither finds a better plan: a trailing plan may have
 * better cuts, and its cut may suit others. */
static opipe_status look_around(opi_auto_run *run, bool is_partial, uint64_t most) {
  double before = INFINITY;
  if (is_partial)
    OPI_TRY(opi_refine(run, most));
  if (run->stopped == OPI_STOPPED_NOT && is_partial)
    OPI_TRY(opi_run_shapes(run, most));
  if (run->stopped == OPI_STOPPED_NOT)
    OPI_TRY(opi_run_kinds(run, most));
  while (run->stopped == OPI_STOPPED_NOT && run->n_best > 0 && run->best[0].key < before) {
    before = run->best[0].key;
    if (is_partial)
      OPI_TRY(opi_refine(run, most));
    if (run->stopped == OPI_STOPPED_NOT && is_partial)
      OPI_TRY(opi_run_methods(run, most));
    if (run->stopped == OPI_STOPPED_NOT)
      OPI_TRY(opi_run_cuts(run, most));
  }
  return OPIPE_OK;
}

static opipe_status search(opi_auto_run *run) {
  opi_space *s = run->space;
  const opi_auto *q = s->question;
  const uint64_t preset = OPI_WORK_PRESET * (1 + q->planning.n_devices / OPI_DEVICES_PRESET);
  const uint64_t most = q->work_most == 0 ? preset : q->work_most;
  OPI_TRY(opi_methods_find(s));
  OPI_TRY(opi_named_add(s));
  OPI_TRY(opi_shapes_all(s));
  run->bound = opi_space_bound(s);
  OPI_TRY(judge_points(run, s->complete ? most : most - most / 4));
  if (run->stopped != OPI_STOPPED_CLOCK)
    OPI_TRY(look_around(run, !s->complete || run->n_left > 0, most));
  if (s->hurried)
    run->stopped = OPI_STOPPED_CLOCK;
  if (run->n_best == 0)
    return opi_infeasible(run);
  /* all cuts were candidates and none left could be better, so this is the optimum */
  const double best = run->best[0].key;
  if (s->complete && run->n_left == 0 && best > run->bound)
    run->bound = best;
  if (best < run->bound && run->bound <= best * (1 + ROUNDING))
    run->bound = best;
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status run_search(const opi_auto *question, opi_space *space, opi_auto_answer **out,
                               opipe_error *err) {
  opi_auto_run *run = opi_alloc_zero(question->planning.allocator, 1, sizeof *run);
  if (run == NULL)
    return opi_fail_nomem(err, sizeof *run, "a planner");
  run->space = space;
  opipe_status status = search(run);
  if (status == OPIPE_OK)
    status = opi_run_answer(run, out);
  opi_free(question->planning.allocator, run, sizeof *run);
  return status;
}

/* Checks the times of the model and of every class of devices. */
static opipe_status check_times(const opi_auto *q, opipe_error *err) {
  OPI_TRY(opi_planning_check_times("auto", q->planning.layers, err));
  for (uint32_t k = 0; q->class_layers != NULL && k < q->planning.cluster->n_classes; ++k)
    OPI_TRY(opi_planning_check_times("auto", q->class_layers[k], err));
  return OPIPE_OK;
}

static opipe_status search_once(const opi_auto *question, opi_auto_answer **out_answer,
                                opipe_error *err) {
  opi_space space;
  OPI_TRY(check_times(question, err));
  OPI_TRY(opi_space_open(question, &space, err));
  const opipe_status status = run_search(question, &space, out_answer, err);
  opi_space_close(&space);
  return status;
}

/* The objective of the best plan. */
static double best_of(const opi_auto *q, const opi_auto_answer *answer) {
  const opi_judged *best = &answer->ranked[0].judged;
  return q->objective == OPI_AUTO_MEMORY       ? best->bytes
         : q->objective == OPI_AUTO_THROUGHPUT ? best->interval_ns
                                               : best->step_ns;
}

/* Searches with tensor groups and sharded optimizers, too, in what is left of the budget, and takes
 * the plan if it is better. Without them all else is equal, so they must gain more than rounding.
 */
static void compare_wider(const opi_auto *wider, uint64_t began_ns, opi_auto_answer **io_answer) {
  opi_auto own = *wider;
  opi_auto_answer *other = NULL;
  opipe_error unused = OPIPE_ERROR_INIT;
  if (own.budget_s > 0)
    own.budget_s -= (double)(own.now_ns() - began_ns) * 1e-9;
  if ((wider->budget_s > 0 && own.budget_s <= 0) || search_once(&own, &other, &unused) != OPIPE_OK)
    return;
  const bool better = best_of(wider, other) < best_of(wider, *io_answer) * (1 - ROUNDING);
  opi_auto_free(better ? *io_answer : other);
  *io_answer = better ? other : *io_answer;
}

opipe_status opi_auto_search(const opi_auto *question, opi_auto_answer **out_answer,
                             opipe_error *err) {
  opi_auto wider = *question;
  opipe_error unused = OPIPE_ERROR_INIT;
  const bool timed = question->budget_s > 0 && question->now_ns != NULL;
  const uint64_t began_ns = timed ? question->now_ns() : 0;
  wider.widens = question->groups && !question->hypothetical;
  if (!wider.widens || question->fixed.width > 1)
    return search_once(&wider, out_answer, err);
  const opipe_status status = search_once(question, out_answer, err);
  if (question->widens || question->fixed.width == 1 || question->planning.n_devices == 1 ||
      question->uncapped)
    return status;
  if (status == OPIPE_OK && !question->no_help)
    compare_wider(&wider, began_ns, out_answer);
  /* nothing fits: groups have less on each device */
  if (status == OPIPE_E_LIMIT && search_once(&wider, out_answer, &unused) == OPIPE_OK)
    return OPIPE_OK;
  return status;
}

/* ---- any strategy ---- */

/* Opens the strategy under its own schedule. `own` stays in use. */
static opipe_status open_strategy(const opi_auto *question, const opi_strategy *strategy,
                                  opi_auto *own, opi_space *out_space, opi_point *out_point,
                                  opipe_error *err) {
  *own = *question;
  own->fixed = (opi_auto_fixed){.schedule = strategy->schedule};
  own->allow_stale = own->causal = true;
  OPI_TRY(opi_space_open(own, out_space, err));
  opipe_status status = opi_methods_find(out_space);
  if (status == OPIPE_OK)
    status = opi_point_of_strategy(out_space, strategy, false, out_point);
  if (status < 0)
    opi_space_close(out_space);
  return status;
}

opipe_status opi_strategy_judge(const opi_auto *question, const opi_strategy *strategy,
                                opi_judged *out_judged, opipe_error *err) {
  opi_auto own;
  opi_space space;
  opi_point point;
  OPI_TRY(open_strategy(question, strategy, &own, &space, &point, err));
  const opipe_status status = opi_point_judge(&space, &point, false, out_judged, err);
  opi_space_close(&space);
  return status;
}

opipe_status opi_strategy_show(const opi_auto *question, const opi_strategy *strategy,
                               const opi_order_play *more, opi_shown *out, opipe_error *err) {
  opi_auto own;
  opi_space space;
  opi_point point;
  OPI_TRY(open_strategy(question, strategy, &own, &space, &point, err));
  const opipe_status status = opi_point_show(&space, &point, more, out, err);
  opi_space_close(&space);
  return status;
}
