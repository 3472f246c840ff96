/* SPDX-License-Identifier: Apache-2.0 */
/* The last step's trace: when the programs of the lists ran, and when the plan had them run. */
#include "runtime/trace/trace.h"

#include "runtime/train/state.h"

typedef struct gathering {
  opi_arena arena;
  opi_trace_event *events;
  uint32_t n, room;
} gathering;

static const char *const passes[] = {"F", "B", "I", "W", "F"};

static opipe_status add(gathering *g, const opi_trace_event *event, opipe_error *err) {
  if (!opi_arena_grow(&g->arena, (void **)&g->events, &g->room, g->n + 1, sizeof *g->events))
    return opi_fail_nomem(err, (g->n + 1) * sizeof *g->events, "a trace");
  g->events[g->n++] = *event;
  return OPIPE_OK;
}

static opipe_status add_measured(const opi_train *t, gathering *g, opipe_error *err) {
  uint64_t first = UINT64_MAX;
  const uint32_t n_replicas = t->session->plan->n_replicas;
  for (uint32_t i = 0; i < t->lists->n_steps; ++i) {
    if (t->spans[i].end_ns != 0 && t->spans[i].start_ns < first)
      first = t->spans[i].start_ns;
  }
  for (uint32_t r = 0; r < t->session->plan->n_ranks; ++r) {
    for (uint32_t i = t->lists->rank_first[r]; i < t->lists->rank_first[r + 1]; ++i) {
      const opi_step *step = &t->lists->steps[i];
      const opi_train_span *span = &t->spans[i];
      if (span->end_ns == 0)
        continue;
      const bool compute = step->kind == OPI_ACT_COMPUTE;
      const uint32_t whole =
          compute ? opi_train_whole(t, step->stage * t->plan->n_replicas + step->replica) : 0;
      const opi_trace_event event = {.pass = compute ? passes[step->pass] : "update",
                                     .kind = OPI_TRACE_MEASURED,
                                     .rank = r,
                                     .stage = compute ? whole / n_replicas : OPIPE_NONE,
                                     .replica = compute ? whole % n_replicas : step->replica,
                                     .microbatch = step->microbatch,
                                     .start_ns = span->start_ns - first,
                                     .end_ns = span->end_ns - first};
      OPI_TRY(add(g, &event, err));
    }
  }
  return OPIPE_OK;
}

/* A double-buffered plan's times are positions in a list without end: it has no times of its own.
 */
static opipe_status add_planned(const opi_train *t, gathering *g, opipe_error *err) {
  const opi_plan *plan = t->plan;
  const uint32_t n_replicas = t->session->plan->n_replicas;
  opi_train_times times;
  OPI_TRY(opi_train_times_build(plan, t->model->cuts[0], &g->arena, &times, err));
  for (uint32_t r = 0; r < plan->n_ranks && !times.periodic; ++r) {
    for (uint32_t a = plan->rank_first[r]; a < plan->rank_first[r + 1]; ++a) {
      const opipe_action *action = &plan->actions[a];
      const uint32_t program = opi_action_program(action);
      if (program == OPIPE_NONE)
        continue;
      const uint32_t whole = opi_train_whole(t, action->stage * plan->n_replicas + action->replica);
      const opi_trace_event event = {.pass = passes[program],
                                     .kind = OPI_TRACE_PLANNED,
                                     .rank = r,
                                     .stage = whole / n_replicas,
                                     .replica = whole % n_replicas,
                                     .microbatch = action->microbatch,
                                     .start_ns = times.start[a],
                                     .end_ns = times.end[a]};
      OPI_TRY(add(g, &event, err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_train_trace(opi_session *session, bool picture, opipe_write_fn write, void *ctx,
                             opipe_error *err) {
  const opi_train *t = session->train;
  gathering g = {.n = 0};
  opi_text text;
  OPI_TRY(opi_train_flush(session, UINT64_MAX, err));
  opi_arena_init(&g.arena, session->allocator, 0);
  opi_text_init(&text, session->allocator);
  opipe_status status = add_measured(t, &g, err);
  if (status == OPIPE_OK && g.n == 0)
    status = opi_fail(err, OPIPE_E_STATE, "there is nothing to trace: no step has been done");
  if (status == OPIPE_OK)
    status = add_planned(t, &g, err);
  if (status == OPIPE_OK) {
    if (picture) {
      opi_trace_svg(g.events, g.n, session->plan->n_ranks, &text);
    } else {
      opi_trace_chrome(g.events, g.n, session->plan->n_ranks, &text);
    }
    status = opi_text_write(&text, write, ctx, err);
  }
  opi_text_release(&text);
  opi_arena_release(&g.arena);
  return status;
}
