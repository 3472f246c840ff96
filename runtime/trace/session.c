/* SPDX-License-Identifier: Apache-2.0 */
/* The last request or training step of a session: when its programs ran, and when the plan had them
 * run. */
#include "runtime/trace/trace.h"

#include "partition/simulate/replay.h"
#include "runtime/train/state.h"

opipe_status opi_trace_add(opi_trace_list *list, const opi_trace_event *event, opipe_error *err) {
  if (!opi_arena_grow(&list->arena, (void **)&list->events, &list->room, list->n + 1,
                      sizeof *list->events))
    return opi_fail_nomem(err, (list->n + 1) * sizeof *list->events, "a trace");
  list->events[list->n++] = *event;
  return OPIPE_OK;
}

static const opi_ran *ran_of(const opi_session *s, const opipe_action *action) {
  return opi_session_ran(s, action->stage, action->microbatch);
}

static opi_trace_event event_of(const opipe_action *action, uint32_t kind) {
  return (opi_trace_event){.pass = "F",
                           .kind = kind,
                           .rank = action->rank,
                           .stage = action->stage,
                           .replica = action->replica,
                           .microbatch = action->microbatch};
}

/* Programs of the last request that ran any. */
static opipe_status add_measured(const opi_session *s, opi_trace_list *list, opipe_error *err) {
  uint64_t last = 0, first_ns = UINT64_MAX;
  for (uint32_t a = 0; a < s->plan->n_actions; ++a) {
    const uint64_t request = atomic_load(&ran_of(s, &s->plan->actions[a])->request);
    last = request > last ? request : last;
  }
  for (uint32_t a = 0; a < s->plan->n_actions && last != 0; ++a) {
    const opi_ran *ran = ran_of(s, &s->plan->actions[a]);
    const uint64_t start = atomic_load(&ran->start_ns);
    if (atomic_load(&ran->request) == last && start < first_ns)
      first_ns = start;
  }
  for (uint32_t a = 0; a < s->plan->n_actions && last != 0; ++a) {
    const opi_ran *ran = ran_of(s, &s->plan->actions[a]);
    opi_trace_event event = event_of(&s->plan->actions[a], OPI_TRACE_MEASURED);
    event.start_ns = atomic_load(&ran->start_ns) - first_ns;
    event.end_ns = atomic_load(&ran->end_ns) - first_ns;
    if (atomic_load(&ran->request) == last)
      OPI_TRY(opi_trace_add(list, &event, err));
  }
  return OPIPE_OK;
}

/* One request alone, with the plan's times. */
static opipe_status add_planned(const opi_session *s, opi_trace_list *list, opipe_error *err) {
  const opi_plan *plan = s->plan;
  const opi_shape *shape = s->shapes[0];
  opi_replay_result times = {.start_ns = OPI_ARENA_ARRAY(&list->arena, double, plan->n_actions),
                             .end_ns = OPI_ARENA_ARRAY(&list->arena, double, plan->n_actions)};
  if (times.start_ns == NULL || times.end_ns == NULL)
    return opi_fail_nomem(err, plan->n_actions * sizeof(double), "a trace");
  OPI_TRY(opi_replay(plan, shape->cut, shape->list, plan->stage_ns, 1, s->allocator, &times, err));
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    opi_trace_event event = event_of(&plan->actions[a], OPI_TRACE_PLANNED);
    event.start_ns = (uint64_t)times.start_ns[a];
    event.end_ns = (uint64_t)times.end_ns[a];
    OPI_TRY(opi_trace_add(list, &event, err));
  }
  return OPIPE_OK;
}

static opipe_status gather(opi_session *s, opi_trace_list *list, opipe_error *err) {
  if (s->train != NULL)
    return opi_train_trace(s, list, err);
  if (atomic_load(&s->n_unfinished) != 0) {
    return opi_fail(err, OPIPE_E_STATE, "there is no last request yet: %u are unfinished",
                    atomic_load(&s->n_unfinished));
  }
  OPI_TRY(add_measured(s, list, err));
  if (list->n == 0)
    return opi_fail(err, OPIPE_E_STATE, "there is nothing to trace: no request has been computed");
  return add_planned(s, list, err);
}

opipe_status opi_session_trace(opi_session *s, bool picture, opipe_write_fn write, void *ctx,
                               opipe_error *err) {
  opi_trace_list list = {.n = 0};
  opi_text text;
  OPI_TRY(opi_session_check(s, err));
  opi_arena_init(&list.arena, s->allocator, 0);
  opi_text_init(&text, s->allocator);
  opipe_status status = gather(s, &list, err);
  if (status == OPIPE_OK) {
    if (picture)
      opi_trace_svg(list.events, list.n, s->plan->n_ranks, &text);
    else
      opi_trace_chrome(list.events, list.n, s->plan->n_ranks, &text);
    status = opi_text_write(&text, write, ctx, err);
  }
  opi_text_release(&text);
  opi_arena_release(&list.arena);
  return status;
}
