/* SPDX-License-Identifier: Apache-2.0 */
/* Times of an order alone, on the clock (partition/plan/clock.h), without links. A compute starts
 * after its rank's last compute and after its inputs; inputs from another rank take `comm` longer.
 */
#include "partition/schedule/events.h"

#include <string.h>

#include "partition/plan/clock.h"
#include "partition/schedule/passes.h"

const opi_costs opi_unit_costs = {.forward = 1, .input = 1, .weight = 1};

opipe_status opi_costs_check(const opi_costs *costs, uint32_t n_stages, opipe_error *err) {
  return costs->n_stages == 0 || costs->n_stages == n_stages
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "costs of %u stages for a schedule of %u",
                        costs->n_stages, n_stages);
}

typedef struct timer {
  const opi_problem *problem;
  double slices; /* opi_order_tokens */
  const opi_do_list *list;
  const uint32_t *step; /* [n_items] mini-batch, NULL: one */
  const opi_costs *costs;
  opi_index index;
  double *done;   /* [n_steps * n_units * OPI_PHASES] end; < 0: not yet */
  uint32_t *next; /* [n_ranks] item */
  opi_clock clock;
  opi_timeline *out;
  opipe_error *err;
} timer;

static uint32_t step_of(const timer *t, uint32_t item) {
  return t->step == NULL ? 0 : t->step[item];
}

/* Index in `done` of a unit's phase, in a micro-batch of mini-batch `step`. */
static uint64_t event_of(const timer *t, uint32_t step, uint32_t stage, uint32_t replica,
                         const opi_do *a, uint32_t slice, uint32_t part, uint32_t phase) {
  const uint64_t unit = opi_unit(&t->index, stage, replica, a->microbatch, slice, part);
  return ((uint64_t)step * t->index.n_units + unit) * OPI_PHASES + phase;
}

static void happen(timer *t, uint64_t event, double end) {
  t->done[event] = end;
  opi_clock_happen(&t->clock, event, end);
}

/* The earliest start of an action. */
typedef struct question {
  const timer *t;
  uint32_t step;
  double at;
  uint64_t missing; /* the first event without a time; OPI_CLOCK_NO_EVENT: all have one */
} question;

static bool follows(void *ctx, const opi_do *a, const opi_need *need) {
  question *q = ctx;
  const timer *t = q->t;
  if (need->replica == OPIPE_NONE)
    return false;
  const uint64_t event =
      event_of(t, q->step, need->stage, need->replica, a, need->slice, need->part, need->phase);
  const double made = t->done[event];
  if (made < 0) {
    q->missing = event;
    return false;
  }
  const bool here = opi_problem_rank(t->problem, need->stage, need->replica) ==
                    opi_problem_rank(t->problem, a->stage, a->replica);
  const double there = made + (here ? 0 : opi_edge_comm(t->costs, need->edge));
  q->at = there > q->at ? there : q->at;
  return true;
}

static double stage_cost(const double *by_stage, double all, uint32_t stage) {
  return by_stage == NULL ? all : by_stage[stage];
}

double opi_order_tokens(const opi_problem *p) {
  double total = 0;
  for (uint32_t i = 0; p->slice_lengths != NULL && i < p->n_slices; ++i)
    total += p->slice_lengths[i];
  return total;
}

/* The fraction of a micro-batch that a slice is. */
static double slice_part(const opi_problem *p, double total, uint32_t slice) {
  return total > 0 ? p->slice_lengths[slice] / total : 1.0 / p->n_slices;
}

double opi_compute_share(const opi_problem *p, double n_tokens, const opi_do *a) {
  const double shares = p->stage_shares == NULL ? 1 : p->stage_shares[a->stage];
  const double whole = shares / slice_part(p, n_tokens, a->slice);
  const bool forward = a->kind == OPI_DO_F || a->kind == OPI_DO_R;
  return forward ? 1 / whole : 1 / whole / p->n_parts;
}

double opi_compute_takes(const opi_problem *p, const opi_costs *costs, double n_tokens,
                         const opi_do *a) {
  const double f = stage_cost(costs->stage_forward, costs->forward, a->stage);
  const double i = stage_cost(costs->stage_input, costs->input, a->stage);
  const double w = stage_cost(costs->stage_weight, costs->weight, a->stage);
  const double shares = p->stage_shares == NULL ? 1 : p->stage_shares[a->stage];
  const double whole = shares / slice_part(p, n_tokens, a->slice);
  switch (a->kind) {
    case OPI_DO_F:
    case OPI_DO_R:
      return f / whole;
    case OPI_DO_B:
      return (i + w) / whole / p->n_parts;
    case OPI_DO_I:
      return i / whole / p->n_parts;
    default:
      return w / whole / p->n_parts;
  }
}

static double cost_of(const timer *t, const opi_do *a) {
  return opi_compute_takes(t->problem, t->costs, t->slices, a);
}

/* Times the rank's next compute once all its inputs have times. It starts when the rank is free and
 * the last input is there. Actions other than computes take no time. */
static double act(void *ctx, uint32_t rank, double now) {
  timer *t = ctx;
  const uint32_t end_of_list = t->list->rank_first[rank + 1];
  while (t->next[rank] < end_of_list && !opi_do_is_compute(t->list->items[t->next[rank]].kind))
    ++t->next[rank];
  if (t->next[rank] == end_of_list)
    return OPI_CLOCK_STANDS;
  const uint32_t item = t->next[rank], step = step_of(t, item);
  const opi_do *a = &t->list->items[item];
  question q = {t, step, now, OPI_CLOCK_NO_EVENT};
  if (!opi_each_need(&t->index, a, follows, &q))
    return opi_clock_wait(&t->clock, rank, q.missing);
  const double end = q.at + cost_of(t, a);
  t->out->start[item] = q.at;
  t->out->end[item] = end;
  t->out->makespan = end > t->out->makespan ? end : t->out->makespan;
  ++t->next[rank];
  if (a->kind == OPI_DO_F)
    happen(t, event_of(t, step, a->stage, a->replica, a, a->slice, 0, OPI_PHASE_F), end);
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_I)
    happen(t, event_of(t, step, a->stage, a->replica, a, a->slice, a->part, OPI_PHASE_I), end);
  return end;
}

static opipe_status stands_still(const timer *t) {
  for (uint32_t rank = 0; rank < t->list->n_ranks; ++rank) {
    if (t->next[rank] == t->list->rank_first[rank + 1])
      continue;
    const opi_do_place place = opi_place_of(t->problem, t->list, rank, t->next[rank]);
    return opi_fail(t->err, OPIPE_E_INVALID, "the order deadlocks: %s waits forever", place.text);
  }
  return OPIPE_OK;
}

static opipe_status run(const opi_problem *problem, const opi_do_list *list, const uint32_t *step,
                        uint32_t n_steps, const opi_costs *costs, opi_arena *arena,
                        opi_timeline *out, opipe_error *err) {
  timer t = {.problem = problem,
             .slices = opi_order_tokens(problem),
             .list = list,
             .step = step,
             .costs = costs,
             .out = out,
             .err = err};
  OPI_TRY(opi_costs_check(costs, problem->n_stages, err));
  OPI_TRY(opi_index_build(problem, list, arena, &t.index, err));
  const uint64_t n = t.index.n_units * n_steps * OPI_PHASES;
  t.done = OPI_ARENA_ARRAY(arena, double, (size_t)n);
  t.next = OPI_ARENA_ARRAY(arena, uint32_t, list->n_ranks);
  *out = (opi_timeline){.start = OPI_ARENA_ARRAY(arena, double, (size_t)list->n_items + 1),
                        .end = OPI_ARENA_ARRAY(arena, double, (size_t)list->n_items + 1)};
  if (t.done == NULL || t.next == NULL || out->start == NULL || out->end == NULL)
    return opi_fail_nomem(err, n * sizeof(double), "a simulation");
  for (uint64_t i = 0; i < n; ++i)
    t.done[i] = -1;
  memcpy(t.next, list->rank_first, list->n_ranks * sizeof(uint32_t));
  const opi_clock_rules rules = {act, NULL, &t, OPI_CLOCK_TURNS};
  OPI_TRY(opi_clock_open(list->n_ranks, &rules, arena, &t.clock, err));
  OPI_TRY(opi_clock_run(&t.clock, err));
  return stands_still(&t);
}

opipe_status opi_timeline_unrolled(const opi_problem *problem, const opi_do_list *unrolled,
                                   const uint32_t *step, uint32_t n_steps, const opi_costs *costs,
                                   opi_arena *arena, opi_timeline *out, opipe_error *err) {
  return run(problem, unrolled, step, n_steps, costs, arena, out, err);
}

/* ---- double-buffered bodies ---- */

static opipe_status copy_items(const opi_do_list *list, uint32_t rank, uint32_t step, bool flagged,
                               bool plain, opi_do_list *out, uint32_t *out_step, opipe_error *err) {
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    const bool next = (list->items[i].flags & OPIPE_ACTION_NEXT_STEP) != 0;
    if (next ? !flagged : !plain)
      continue;
    out_step[out->n_items] = step + (next && plain);
    OPI_TRY(opi_do_list_add(out, list->items[i], err));
  }
  return OPIPE_OK;
}

opipe_status opi_unroll(const opi_do_list *list, uint32_t n_bodies,
                        const opipe_allocator *allocator, opi_arena *arena, opi_do_list **out_list,
                        uint32_t **out_step, opipe_error *err) {
  opi_do_list *out = NULL;
  uint64_t n = list->n_items;
  if (opi_mul_u64(n, (uint64_t)n_bodies + 1, &n) || n > UINT32_MAX)
    return opi_fail(err, OPIPE_E_LIMIT, "%u actions %u times", list->n_items, n_bodies + 1);
  uint32_t *step = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n + 1);
  if (step == NULL)
    return opi_fail_nomem(err, n * sizeof *step, "an unrolled schedule");
  OPI_TRY(opi_do_list_create(allocator, list->n_ranks, n, &out, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t rank = 0; status == OPIPE_OK && rank < list->n_ranks; ++rank) {
    opi_do_list_rank(out, rank);
    status = copy_items(list, rank, 0, true, false, out, step, err);
    for (uint32_t b = 0; status == OPIPE_OK && b < n_bodies; ++b)
      status = copy_items(list, rank, b, true, true, out, step, err);
    if (status == OPIPE_OK)
      status = copy_items(list, rank, n_bodies, false, true, out, step, err);
  }
  opi_do_list_rank(out, list->n_ranks);
  if (status < 0) {
    opi_do_list_free(out);
    return status;
  }
  *out_list = out;
  *out_step = step;
  return OPIPE_OK;
}

opipe_status opi_timeline_build(const opi_problem *problem, const opi_do_list *list,
                                const opi_costs *costs, opi_arena *arena, opi_timeline *out,
                                opipe_error *err) {
  if (problem->versions != OPIPE_VERSIONS_DOUBLE_BUFFERED)
    return run(problem, list, NULL, 1, costs, arena, out, err);
  opi_do_list *unrolled = NULL;
  uint32_t *step = NULL;
  opi_timeline all;
  OPI_TRY(opi_unroll(list, 1, arena->allocator, arena, &unrolled, &step, err));
  opipe_status status = run(problem, unrolled, step, 2, costs, arena, &all, err);
  *out = (opi_timeline){.start = OPI_ARENA_ARRAY(arena, double, (size_t)list->n_items + 1),
                        .end = OPI_ARENA_ARRAY(arena, double, (size_t)list->n_items + 1)};
  if (status == OPIPE_OK && (out->start == NULL || out->end == NULL))
    status = opi_fail_nomem(err, list->n_items * sizeof(double), "a simulation");
  for (uint32_t rank = 0; status == OPIPE_OK && rank < list->n_ranks; ++rank) {
    uint32_t from = unrolled->rank_first[rank];
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i)
      from += (list->items[i].flags & OPIPE_ACTION_NEXT_STEP) != 0;
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i, ++from) {
      out->start[i] = all.start[from];
      out->end[i] = all.end[from];
      out->makespan = all.end[from] > out->makespan ? all.end[from] : out->makespan;
    }
  }
  opi_do_list_free(unrolled);
  return status;
}

/* ---- figures ---- */

typedef struct keeper {
  const opi_problem *problem;
  double n_tokens, held, peak;
} keeper;

static bool keep(void *ctx, uint32_t item, const opi_do *of, int32_t n_parts) {
  keeper *k = ctx;
  const opi_problem *p = k->problem;
  const double share = p->stage_shares == NULL ? 1 : p->stage_shares[of->stage];
  (void)item;
  k->held += slice_part(p, k->n_tokens, of->slice) * n_parts / p->n_parts / share;
  k->peak = k->held > k->peak + 1e-9 ? k->held : k->peak;
  return true;
}

static void measure_stash(const opi_problem *p, const opi_do_list *list, double *peak) {
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    keeper k = {.problem = p, .n_tokens = opi_order_tokens(p)};
    (void)opi_each_stash(p, list, rank, keep, &k);
    peak[rank] = k.peak;
  }
}

/* Sums busy time from the costs, so that a body counts once. */
static void measure_busy(const opi_problem *problem, const opi_do_list *list,
                         const opi_costs *costs, opi_simulation *result) {
  const timer t = {.problem = problem, .slices = opi_order_tokens(problem), .costs = costs};
  double total = 0;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    double busy = 0;
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i)
      busy += opi_do_is_compute(list->items[i].kind) ? cost_of(&t, &list->items[i]) : 0;
    if (result->busy != NULL)
      result->busy[rank] = busy;
    total += busy;
  }
  result->bubble = result->makespan > 0 ? 1 - total / (list->n_ranks * result->makespan) : 0;
}

static double longest_span(const opi_do_list *list, const opi_timeline *line) {
  double span = 0;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    double first = -1, last = 0;
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      if (!opi_do_is_compute(list->items[i].kind))
        continue;
      first = first < 0 ? line->start[i] : first;
      last = line->end[i];
    }
    if (first >= 0 && last - first > span)
      span = last - first;
  }
  return span;
}

/* Measures the period of the steady state, between the ends of mini-batches in the middle. */
static opipe_status measure_body(const opi_problem *problem, const opi_do_list *list,
                                 const opi_costs *costs, opi_arena *arena, opi_simulation *result,
                                 opipe_error *err) {
  opi_do_list *unrolled = NULL;
  uint32_t *step = NULL;
  opi_timeline line;
  double end[OPI_BODIES + 1] = {0};
  OPI_TRY(opi_unroll(list, OPI_BODIES, arena->allocator, arena, &unrolled, &step, err));
  const opipe_status status =
      run(problem, unrolled, step, OPI_BODIES + 1, costs, arena, &line, err);
  if (status == OPIPE_OK) {
    for (uint32_t i = 0; i < unrolled->n_items; ++i)
      end[step[i]] = line.end[i] > end[step[i]] ? line.end[i] : end[step[i]];
    measure_stash(problem, unrolled, result->peak_stash);
    result->makespan =
        (end[OPI_BODIES - 1] - end[OPI_BODIES / 2 - 1]) / (OPI_BODIES - OPI_BODIES / 2);
    result->span = result->makespan;
  }
  opi_do_list_free(unrolled);
  return status;
}

opipe_status opi_simulate_order(const opi_problem *problem, const opi_do_list *list,
                                const opi_costs *costs, const opipe_allocator *allocator,
                                opi_simulation *result, opipe_error *err) {
  opi_arena arena;
  opi_timeline line;
  opi_arena_init(&arena, allocator, 0);
  opipe_status status = opi_pass_check(problem, list, allocator, err);
  if (status == OPIPE_OK && problem->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED) {
    status = measure_body(problem, list, costs, &arena, result, err);
  } else if (status == OPIPE_OK) {
    status = run(problem, list, NULL, 1, costs, &arena, &line, err);
    if (status == OPIPE_OK) {
      result->makespan = line.makespan;
      measure_stash(problem, list, result->peak_stash);
      result->span = longest_span(list, &line);
    }
  }
  if (status == OPIPE_OK)
    measure_busy(problem, list, costs, result);
  opi_arena_release(&arena);
  return status;
}
