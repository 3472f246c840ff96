/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of the last request or step: measured times of the lists' programs and of the sums over
 * replicas, and planned times of the programs. */
#include "runtime/trace/trace.h"

#include <time.h>

#include "partition/program/records.h"
#include "runtime/requests/requests.h"
#include "runtime/trace/page.h"

static opipe_status add_event(opi_trace_list *list, const opi_trace_event *event,
                              opipe_error *err) {
  if (!opi_arena_grow(&list->arena, (void **)&list->events, &list->room, list->n + 1,
                      sizeof *list->events))
    return opi_fail_nomem(err, (list->n + 1) * sizeof *list->events, "a trace");
  list->events[list->n++] = *event;
  return OPIPE_OK;
}

const char *const opi_trace_passes[OPI_TRACE_PASSES] = {
    "F", "B", "I", "W", "update", "reduce", "sum", "offload", "reload"};

/* By program. */
static const char *const passes[] = {"F", "B", "I", "W", "F"};

/* Has the stage several instances? */
static bool is_shared(const opi_decision *plan, uint32_t stage) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < plan->n_replicas; ++r)
    n += opi_plan_rank(plan, stage, r) != OPIPE_NONE;
  return n > 1;
}

static opi_trace_event describe(const opi_compiled *t, uint32_t rank, const opi_step *step,
                                const opi_span *span) {
  const uint32_t n_replicas = t->setup->plan->decided.n_replicas;
  const uint32_t whole = opi_whole_instance(t, step->stage * t->pieces->n_replicas + step->replica);
  opi_trace_event event = {.pass = "update",
                           .kind = OPI_TRACE_MEASURED,
                           .rank = rank,
                           .stage = OPIPE_NONE,
                           .microbatch = OPIPE_NONE,
                           .start_ns = span->start_ns,
                           .end_ns = span->end_ns};
  if (step->kind == OPI_ACT_UPDATE)
    return event;
  event.stage = whole / n_replicas;
  event.replica = whole % n_replicas;
  event.pass = step->kind == OPI_ACT_COMPUTE   ? passes[step->pass]
               : step->kind == OPI_ACT_SUM     ? "sum"
               : step->kind == OPI_ACT_OFFLOAD ? "offload"
               : step->kind == OPI_ACT_RELOAD  ? "reload"
                                               : "reduce";
  if (step->kind == OPI_ACT_COMPUTE)
    event.microbatch = t->parts[step->microbatch].in_request;
  if (step->kind == OPI_ACT_COMPUTE && t->model->n_slices > 1)
    event.slice = 1 + opi_piece_at(t, step->stage, step->microbatch)->slice;
  return event;
}

/* Stands for every request: in training all times in the lists are the last step's. */
#define EVERY UINT64_MAX

/* Did the step run for the last request? `last`: its number + 1. */
static bool is_last(const opi_ran *ran, uint64_t last) {
  return ran->span.end_ns != 0 && (last == EVERY || ran->request == last);
}

/* Does the step copy stashes to or from the host? */
static bool moves(const opi_step *step) {
  return step->kind == OPI_ACT_OFFLOAD || step->kind == OPI_ACT_RELOAD;
}

/* When a step ran, by the host's clock. The times of programs and copies may be their device's. */
static opi_span span_of(const opi_compiled *t, uint32_t rank, uint32_t index) {
  const opi_step *step = &t->lists->steps[index];
  opi_span span = opi_ran_at(t, rank, index)->span;
  if (step->kind == OPI_ACT_COMPUTE || moves(step)) {
    const uint32_t by = opi_piece_rank(t->pieces, step->stage, step->replica);
    const int64_t shift = opi_stamps_shift(&t->setup->ranks[by]);
    span.start_ns += (uint64_t)shift;
    span.end_ns += (uint64_t)shift;
  }
  return span;
}

/* The request that ran last here: its number + 1; 0: none has. */
static uint64_t find_last(const opi_compiled *t) {
  uint64_t last = 0;
  for (uint32_t k = 0; k < t->setup->n_here; ++k) {
    const uint32_t r = t->setup->here[k];
    for (uint32_t i = t->lists->rank_first[r]; i < t->lists->rank_first[r + 1]; ++i)
      last = opi_ran_at(t, r, i)->request > last ? opi_ran_at(t, r, i)->request : last;
  }
  return last;
}

/* Moves a sum or an update, whose times are the host's, behind the programs before it: the host may
 * have come to it before they were done, and the two clocks agree to some microseconds only. */
static void put_behind(opi_span *io_span, uint64_t end_ns) {
  if (io_span->start_ns < end_ns)
    io_span->start_ns = end_ns;
  if (io_span->end_ns < io_span->start_ns)
    io_span->end_ns = io_span->start_ns;
}

/* By the host's clock, as it stands. */
static opipe_status add_measured(const opi_compiled *t, uint64_t last, opi_trace_list *list,
                                 opipe_error *err) {
  for (uint32_t k = 0; k < t->setup->n_here; ++k) {
    const uint32_t r = t->setup->here[k];
    uint64_t end_ns = 0; /* of the programs so far */
    for (uint32_t i = t->lists->rank_first[r]; i < t->lists->rank_first[r + 1]; ++i) {
      const opi_step *step = &t->lists->steps[i];
      opi_span span = span_of(t, r, i);
      if (!is_last(opi_ran_at(t, r, i), last))
        continue;
      if (step->kind == OPI_ACT_COMPUTE)
        end_ns = span.end_ns;
      else if (!moves(step) && opi_rank_has_stamps(&t->setup->ranks[r]))
        put_behind(&span, end_ns);
      const opi_trace_event event = describe(t, r, step, &span);
      if (step->kind == OPI_ACT_REDUCE && !is_shared(&t->setup->plan->decided, event.stage))
        continue; /* a single replica sums nothing */
      OPI_TRY(add_event(list, &event, err));
    }
  }
  return OPIPE_OK;
}

/* Start and end of every action of the view, in a request or mini-batch of its own, or in a
 * double-buffered body. */
static opipe_status plan_times(const opi_compiled *t, opi_arena *arena, opi_replay_result *out,
                               opipe_error *err) {
  enum { PROLOGUE_BODY_EPILOGUE = 3 };
  const bool twice = t->given.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  *out = (opi_replay_result){.start_ns = OPI_ARENA_ARRAY(arena, double, t->pieces->n_actions),
                             .end_ns = OPI_ARENA_ARRAY(arena, double, t->pieces->n_actions)};
  if (out->start_ns == NULL || out->end_ns == NULL)
    return opi_fail_nomem(err, t->pieces->n_actions * sizeof(double), "a trace");
  return opi_lists_replay(t->pieces, t->lists, t->model->cuts[0],
                          twice ? PROLOGUE_BODY_EPILOGUE : 1, arena->allocator, out, err);
}

/* Is it an action of the body's first request that runs a program? Sums of tensor groups run none.
 */
static bool is_planned(const opi_compiled *t, const opipe_action *action, uint32_t program) {
  if (program == OPIPE_NONE || action->microbatch >= t->given.n_microbatches)
    return false;
  const opi_cut *cut = t->model->cuts[opi_class_at(t, action->microbatch)];
  return t->model->n_members == 1 ||
         opi_program_of(cut, action->stage, program)->graph.n_nodes != 0;
}

static opipe_status add_planned(const opi_compiled *t, opi_trace_list *list, opipe_error *err) {
  const uint32_t n_replicas = t->given.n_replicas;
  opi_replay_result times;
  OPI_TRY(plan_times(t, &list->arena, &times, err));
  for (uint32_t a = 0; a < t->pieces->n_actions; ++a) {
    const opipe_action *action = &t->pieces->actions[a];
    const uint32_t program = opi_action_program(action);
    if (!is_planned(t, action, program))
      continue;
    const uint32_t slice = opi_piece_at(t, action->stage, action->microbatch)->slice;
    const uint32_t whole =
        opi_whole_instance(t, action->stage * t->pieces->n_replicas + action->replica);
    const opi_trace_event event = {.pass = passes[program],
                                   .kind = OPI_TRACE_PLANNED,
                                   .rank = action->rank,
                                   .stage = whole / n_replicas,
                                   .replica = whole % n_replicas,
                                   .microbatch = action->microbatch,
                                   .slice = t->model->n_slices > 1 ? 1u + slice : 0u,
                                   .start_ns = (uint64_t)times.start_ns[a],
                                   .end_ns = (uint64_t)times.end_ns[a]};
    OPI_TRY(add_event(list, &event, err));
  }
  return OPIPE_OK;
}

/* The shape of the last request or step. */
static const opi_compiled *last_used(const opi_session *session) {
  const opi_shape *last = session->shapes->list[0];
  for (uint32_t i = 1; i < session->shapes->n_places; ++i) {
    if (session->shapes->list[i] != NULL && session->shapes->list[i]->last_used > last->last_used)
      last = session->shapes->list[i];
  }
  return last->compiled;
}

static opipe_status list_clocks(const opi_session *s, opi_trace_list *list, opipe_error *err) {
  list->n_ranks = s->setup->plan->decided.n_ranks;
  list->clocks = OPI_ARENA_ARRAY(&list->arena, uint8_t, list->n_ranks);
  if (list->clocks == NULL)
    return opi_fail_nomem(err, list->n_ranks, "a trace");
  for (uint32_t k = 0; k < s->setup->n_here; ++k) {
    const uint32_t r = s->setup->here[k];
    list->clocks[r] = opi_rank_has_stamps(&s->setup->ranks[r]) ? OPI_CLOCK_DEVICE : OPI_CLOCK_HOST;
  }
  return opi_stamps_meet(s->setup, err);
}

static opipe_status list_ways(const opi_compiled *t, opi_trace_list *list, opipe_error *err) {
  list->ways = OPI_ARENA_ARRAY(&list->arena, uint8_t, list->n_ranks);
  if (list->ways == NULL)
    return opi_fail_nomem(err, list->n_ranks, "a trace");
  for (uint32_t i = 0; t->wires != NULL && i < t->lists->n_streams; ++i) {
    const uint32_t src = t->lists->streams[i].src_rank;
    if (t->wires[i].way > list->ways[src])
      list->ways[src] = (uint8_t)t->wires[i].way;
  }
  return OPIPE_OK;
}

/* Waits for ranks that have yet to pass requests whose callers have the results already. Does not
 * wait for host-driven ranks, which the caller may have to drive. */
static void wait_for_passes(opi_session *s) {
  const struct timespec again = {.tv_nsec = 100000};
  const uint64_t until = opi_later_ns(opi_clock_ns(), s->setup->watchdog_ns);
  while (s->setup->threads != OPIPE_THREADS_HOST && !opi_session_failed(s->setup) &&
         atomic_load(&s->n_unfinished) != 0 && opi_session_only_passes(s) && opi_clock_ns() < until)
    (void)nanosleep(&again, NULL);
}

/* Counts the times from the first of them. */
static void count_from_first(opi_trace_list *list) {
  uint64_t first = UINT64_MAX;
  for (uint32_t i = 0; i < list->n; ++i)
    first = list->events[i].start_ns < first ? list->events[i].start_ns : first;
  for (uint32_t i = 0; i < list->n; ++i) {
    list->events[i].start_ns -= first;
    list->events[i].end_ns -= first;
  }
}

/* Under submit_lock, which keeps shapes from changing, and requests from beginning. *out_last: 0 of
 * a step. */
static opipe_status list_measured(opi_session *session, bool trains, opi_trace_list *list,
                                  uint64_t *out_last, opipe_error *err) {
  const opi_compiled *t = last_used(session);
  *out_last = trains ? 0 : find_last(t);
  if (!trains && atomic_load(&session->n_unfinished) != 0) {
    return opi_fail(err, OPIPE_E_STATE, "there is no last request yet: %u are unfinished",
                    atomic_load(&session->n_unfinished));
  }
  OPI_TRY(list_clocks(session, list, err));
  OPI_TRY(list_ways(t, list, err));
  return add_measured(t, trains ? EVERY : *out_last, list, err);
}

/* trains: the session is at rest, between steps. */
static opipe_status list_spans(opi_session *session, bool trains, opi_trace_list *list,
                               opipe_error *err) {
  uint64_t last = 0;
  wait_for_passes(session);
  opi_lock_take(&session->shapes->submit_lock);
  opipe_status status = list_measured(session, trains, list, &last, err);
  opi_lock_give(&session->shapes->submit_lock);
  OPI_TRY(opi_trace_merge(&session->setup->env.together, list, last, status, err));
  if (list->n == 0) {
    return opi_fail(err, OPIPE_E_STATE, "there is nothing to trace: no %s",
                    trains ? "step has been done" : "request has been computed");
  }
  count_from_first(list);
  opi_lock_take(&session->shapes->submit_lock);
  status = add_planned(last_used(session), list, err);
  opi_lock_give(&session->shapes->submit_lock);
  return status;
}

static opipe_status list_all(opi_session *session, opi_trace_list *list, opipe_error *err) {
  if (!opi_session_trains(session->setup))
    return list_spans(session, false, list, err);
  opipe_status status = opi_train_rest(session, err);
  if (status < 0)
    return opi_trace_merge(&session->setup->env.together, list, 0, status, err);
  status = list_spans(session, true, list, err);
  opi_train_go_on(session);
  return status;
}

opipe_status opi_session_trace(opi_session *s, uint32_t format, const char *title,
                               opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_trace_list list = {.n = 0};
  opi_text text;
  OPI_TRY(opi_session_check(s->setup, err));
  opi_arena_init(&list.arena, s->setup->allocator, 0);
  opi_text_init(&text, s->setup->allocator);
  opipe_status status = list_all(s, &list, err);
  if (status == OPIPE_OK && format == OPIPE_TRACE_HTML) {
    status = opi_trace_page(s->setup->plan, title, &list, s->setup->allocator, write, ctx, err);
  } else if (status == OPIPE_OK) {
    if (format == OPIPE_TRACE_SVG)
      opi_trace_svg(&list, &text);
    else
      opi_trace_chrome(&list, &text);
    status = opi_text_write(&text, write, ctx, err);
  }
  opi_text_release(&text);
  opi_arena_release(&list.arena);
  return status;
}
