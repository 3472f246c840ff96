/* SPDX-License-Identifier: Apache-2.0 */
/* The last step's trace: when the programs of the lists and the sums over replicas ran, and when
 * the plan had the programs run. */
#include "runtime/trace/trace.h"

#include "runtime/train/state.h"

static const char *const passes[] = {"F", "B", "I", "W", "F"};

/* Has the stage several instances? */
static bool is_shared(const opi_plan *plan, uint32_t stage) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < plan->n_replicas; ++r)
    n += opi_plan_rank(plan, stage, r) != OPIPE_NONE;
  return n > 1;
}

static opi_trace_event describe(const opi_train_shape *t, uint32_t rank, const opi_step *step,
                                const opi_span *span, uint64_t first) {
  const uint32_t n_replicas = t->session->plan->n_replicas;
  const uint32_t whole = opi_train_whole(t, step->stage * t->plan->n_replicas + step->replica);
  opi_trace_event event = {.pass = "update",
                           .kind = OPI_TRACE_MEASURED,
                           .rank = rank,
                           .stage = OPIPE_NONE,
                           .microbatch = OPIPE_NONE,
                           .start_ns = span->start_ns - first,
                           .end_ns = span->end_ns - first};
  if (step->kind == OPI_ACT_UPDATE)
    return event;
  event.stage = whole / n_replicas;
  event.replica = whole % n_replicas;
  event.pass = step->kind == OPI_ACT_COMPUTE ? passes[step->pass] : "reduce";
  if (step->kind == OPI_ACT_COMPUTE)
    event.microbatch = step->microbatch;
  return event;
}

static opipe_status add_measured(const opi_train_shape *t, opi_trace_list *list, opipe_error *err) {
  uint64_t first = UINT64_MAX;
  for (uint32_t i = 0; i < t->lists->n_steps; ++i) {
    if (t->spans[i].end_ns != 0 && t->spans[i].start_ns < first)
      first = t->spans[i].start_ns;
  }
  for (uint32_t r = 0; r < t->session->plan->n_ranks; ++r) {
    for (uint32_t i = t->lists->rank_first[r]; i < t->lists->rank_first[r + 1]; ++i) {
      const opi_step *step = &t->lists->steps[i];
      const opi_span *span = &t->spans[i];
      if (span->end_ns == 0)
        continue;
      const opi_trace_event event = describe(t, r, step, span, first);
      if (step->kind == OPI_ACT_REDUCE && !is_shared(t->session->plan, event.stage))
        continue; /* nothing to add up */
      OPI_TRY(opi_trace_add(list, &event, err));
    }
  }
  return OPIPE_OK;
}

/* Start and end of every action. A double-buffered plan's own times are positions in a list without
 * end: its body is simulated as it runs behind a prologue. */
static opipe_status plan_times(const opi_train_shape *t, opi_arena *arena, double *start,
                               double *end, opipe_error *err) {
  opi_train_times times;
  if (t->plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED)
    return opi_train_timeline(&t->given, t->model, arena, start, end, err);
  OPI_TRY(opi_train_times_build(t->plan, t->model->cuts[0], arena, &times, err));
  for (uint32_t a = 0; a < t->plan->n_actions; ++a) {
    start[a] = (double)times.start[a];
    end[a] = (double)times.end[a];
  }
  return OPIPE_OK;
}

static opipe_status add_planned(const opi_train_shape *t, opi_trace_list *list, opipe_error *err) {
  const opi_plan *plan = t->session->plan; /* whose actions are the view's, one by one */
  double *start = OPI_ARENA_ARRAY(&list->arena, double, plan->n_actions);
  double *end = OPI_ARENA_ARRAY(&list->arena, double, plan->n_actions);
  if (start == NULL || end == NULL)
    return opi_fail_nomem(err, plan->n_actions * sizeof *start, "a trace");
  OPI_TRY(plan_times(t, &list->arena, start, end, err));
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    const opipe_action *action = &plan->actions[a];
    const uint32_t program = opi_action_program(action);
    if (program == OPIPE_NONE)
      continue;
    const opi_trace_event event = {.pass = passes[program],
                                   .kind = OPI_TRACE_PLANNED,
                                   .rank = action->rank,
                                   .stage = action->stage,
                                   .replica = action->replica,
                                   .microbatch = action->microbatch,
                                   .start_ns = (uint64_t)start[a],
                                   .end_ns = (uint64_t)end[a]};
    OPI_TRY(opi_trace_add(list, &event, err));
  }
  return OPIPE_OK;
}

/* The shape of the last step. */
static const opi_train_shape *last_used(const opi_session *session) {
  const opi_shape *last = session->shapes[0];
  for (uint32_t i = 1; i < session->n_places; ++i) {
    if (session->shapes[i] != NULL && session->shapes[i]->last_used > last->last_used)
      last = session->shapes[i];
  }
  return last->train;
}

opipe_status opi_train_trace(opi_session *session, opi_trace_list *list, opipe_error *err) {
  OPI_TRY(opi_train_rest(session, err));
  opi_lock_take(&session->submit_lock); /* no shape comes or goes meanwhile */
  const opi_train_shape *t = last_used(session);
  opipe_status status = add_measured(t, list, err);
  if (status == OPIPE_OK && list->n == 0)
    status = opi_fail(err, OPIPE_E_STATE, "there is nothing to trace: no step has been done");
  if (status == OPIPE_OK)
    status = add_planned(t, list, err);
  opi_lock_give(&session->submit_lock);
  return status;
}
