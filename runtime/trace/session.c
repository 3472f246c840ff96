/* SPDX-License-Identifier: Apache-2.0 */
/* The last request or training step of a session: when its programs ran, and when the plan had them
 * run. */
#include "runtime/trace/trace.h"

#include "runtime/train/state.h"

opipe_status opi_trace_add(opi_trace_list *list, const opi_trace_event *event, opipe_error *err) {
  if (!opi_arena_grow(&list->arena, (void **)&list->events, &list->room, list->n + 1,
                      sizeof *list->events))
    return opi_fail_nomem(err, (list->n + 1) * sizeof *list->events, "a trace");
  list->events[list->n++] = *event;
  return OPIPE_OK;
}

opipe_status opi_session_trace(opi_session *s, bool picture, opipe_write_fn write, void *ctx,
                               opipe_error *err) {
  opi_trace_list list = {.n = 0};
  opi_text text;
  OPI_TRY(opi_session_check(s, err));
  opi_arena_init(&list.arena, s->allocator, 0);
  opi_text_init(&text, s->allocator);
  opipe_status status = opi_train_trace(s, &list, err);
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
