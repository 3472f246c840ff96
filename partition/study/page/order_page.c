/* SPDX-License-Identifier: Apache-2.0 */
/* Orders without links: a compute's input from another rank arrives a delay after it was made,
 * which determines the waits. */
#include <math.h>

#include "partition/schedule/passes.h"
#include "partition/study/page/lane.h"
#include "partition/study/page/play_page.h"

typedef struct timed {
  opi_page *page;
  const opi_problem *problem;
  const opi_do_list *list; /* unrolled if it repeats */
  const uint32_t *step;    /* [items] mini-batch; NULL: one */
  uint32_t n_steps;
  const opi_page_kept *kept; /* NULL: activations are counted */
  opi_timeline line;
  opi_index index;
  uint32_t *maker; /* [steps * units * OPI_PHASES] item that makes the phase for its readers;
                      OPIPE_NONE */
} timed;

static uint64_t place_of(const timed *t, uint32_t item, uint32_t stage, uint32_t replica,
                         uint32_t slice, uint32_t part, uint32_t phase) {
  const uint64_t unit =
      opi_unit(&t->index, stage, replica, t->list->items[item].microbatch, slice, part);
  return ((t->step == NULL ? 0 : t->step[item]) * t->index.n_units + unit) * OPI_PHASES + phase;
}

static opipe_status find_makers(timed *t, opi_arena *arena, opipe_error *err) {
  const uint64_t n = t->n_steps * t->index.n_units * OPI_PHASES;
  t->maker = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n + 1);
  if (t->maker == NULL)
    return opi_fail_nomem(err, n * sizeof *t->maker, "a page");
  for (uint64_t i = 0; i < n; ++i)
    t->maker[i] = OPIPE_NONE;
  for (uint32_t i = 0; i < t->list->n_items; ++i) {
    const opi_do *a = &t->list->items[i];
    if (a->kind == OPI_DO_F)
      t->maker[place_of(t, i, a->stage, a->replica, a->slice, 0, OPI_PHASE_F)] = i;
    if (a->kind == OPI_DO_B || a->kind == OPI_DO_I)
      t->maker[place_of(t, i, a->stage, a->replica, a->slice, a->part, OPI_PHASE_I)] = i;
  }
  return OPIPE_OK;
}

/* ---- waits ---- */

/* The latest input of a compute from another rank. */
typedef struct question {
  const timed *t;
  uint32_t item;
  double made; /* < 0: nothing */
  uint32_t kind;
} question;

static bool ask(void *ctx, const opi_do *a, const opi_need *need) {
  question *q = ctx;
  const timed *t = q->t;
  if (need->replica == OPIPE_NONE || opi_problem_rank(t->problem, need->stage, need->replica) ==
                                         opi_problem_rank(t->problem, a->stage, a->replica))
    return true;
  const uint32_t item = t->maker[place_of(t, q->item, need->stage, need->replica, need->slice,
                                          need->part, need->phase)];
  const double made = item == OPIPE_NONE ? 0 : t->line.end[item];
  if (made >= q->made) {
    q->made = made;
    q->kind = need->phase == OPI_PHASE_F ? OPI_SPAN_WAIT_F : OPI_SPAN_WAIT_B;
  }
  return true;
}

static void add_wait(const timed *t, uint32_t item, double start, double end) {
  const opi_do *a = &t->list->items[item];
  question q = {t, item, -1, OPI_SPAN_OTHER};
  (void)opi_each_need(&t->index, a, ask, &q);
  opi_lane_wait(t->page, a, q.kind, q.made < 0 ? end : q.made, start, end);
}

/* ---- lanes ---- */

static double share_of(const opi_problem *p, const opi_do *a) {
  const double n_tokens = opi_order_tokens(p),
               shares = p->stage_shares == NULL ? 1 : p->stage_shares[a->stage];
  const double part = n_tokens > 0 ? p->slice_lengths[a->slice] / n_tokens : 1.0 / p->n_slices;
  return part / shares;
}

/* Sets the rank's stash, in bytes or in stage activations. */
static void set_kept(const timed *t, const opi_do *a, opi_page_span *io_span) {
  const opi_problem *p = t->problem;
  const double one = t->kept == NULL ? 1 : t->kept->stash[a->stage];
  if (a->kind == OPI_DO_F && p->mode != OPIPE_MODE_FORWARD)
    io_span->take = one * share_of(p, a);
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_W)
    io_span->give = one * share_of(p, a) / p->n_parts;
}

static void add_rank(const timed *t, uint32_t rank) {
  opi_lane_cursor lane = {.page = t->page};
  for (uint32_t i = t->list->rank_first[rank]; i < t->list->rank_first[rank + 1]; ++i) {
    const opi_do *a = &t->list->items[i];
    if (!opi_do_is_compute(a->kind))
      continue;
    opi_page_span span = opi_lane_span(a, opi_lane_pass(a->kind), t->line.start[i], t->line.end[i]);
    set_kept(t, a, &span);
    if (lane.began) {
      add_wait(t, i, lane.at, span.start);
      lane.at = span.start;
    }
    opi_lane_program(&lane, &span);
  }
  opi_lane_end(&lane, t->line.makespan);
}

/* ---- all of it ---- */

/* The end of the mini-batch in the middle, where the period begins. */
static double middle_of(const timed *t) {
  double end = 0;
  for (uint32_t i = 0; i < t->list->n_items; ++i) {
    if (t->step[i] < OPI_BODIES / 2)
      end = fmax(end, t->line.end[i]);
  }
  return end;
}

static opipe_status add_track(timed *t, const char *name, const char *figures, double step,
                              opi_arena *arena, opipe_error *err) {
  OPI_TRY(opi_index_build(t->problem, t->list, arena, &t->index, err));
  OPI_TRY(find_makers(t, arena, err));
  opi_page_add_track(t->page, &(opi_page_track){.name = name,
                                                .figures = figures,
                                                .kept = t->kept == NULL ? "stages" : "bytes",
                                                .end = t->line.makespan,
                                                .first = t->step == NULL ? 0 : middle_of(t),
                                                .step = step});
  for (uint32_t rank = 0; rank < t->list->n_ranks; ++rank) {
    opi_page_add_lane(t->page,
                      &(opi_page_lane){.rank = rank,
                                       .peer = OPIPE_NONE,
                                       .copies = 1,
                                       .fixed_bytes = t->kept == NULL ? 0 : t->kept->fixed[rank],
                                       .cap_bytes = t->kept == NULL ? 0 : t->kept->cap[rank]});
    add_rank(t, rank);
  }
  return OPIPE_OK;
}

opipe_status opi_page_add_order(opi_page *page, const char *name, const opi_problem *problem,
                                const opi_do_list *list, const opi_costs *costs,
                                const opi_page_kept *kept, const char *figures, double step,
                                opi_arena *arena, opipe_error *err) {
  timed t = {.page = page, .problem = problem, .list = list, .n_steps = 1, .kept = kept};
  opi_do_list *unrolled = NULL;
  uint32_t *steps = NULL;
  if (problem->versions != OPIPE_VERSIONS_DOUBLE_BUFFERED) {
    OPI_TRY(opi_timeline_build(problem, list, costs, arena, &t.line, err));
    return add_track(&t, name, figures, step, arena, err);
  }
  OPI_TRY(opi_unroll(list, OPI_BODIES, arena->allocator, arena, &unrolled, &steps, err));
  t.list = unrolled;
  t.step = steps;
  t.n_steps = OPI_BODIES + 1;
  opipe_status status =
      opi_timeline_unrolled(problem, unrolled, steps, t.n_steps, costs, arena, &t.line, err);
  if (status == OPIPE_OK)
    status = add_track(&t, name, figures, step, arena, err);
  opi_do_list_free(unrolled);
  return status;
}
