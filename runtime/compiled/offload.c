/* SPDX-License-Identifier: Apache-2.0 */
/* A shape's moves: host memory in which stashes wait, and the events that tell when they have left
 * and returned. */
#include "runtime/compiled/build.h"

/* Whether the executor will give the rank stamps. */
static bool has_stamps(const opi_rank *rank) {
  return (rank->setup->flags & OPIPE_SESSION_TRACE) != 0 &&
         OPIPE_HAS(rank->backend, opipe_backend, event_elapsed) &&
         rank->backend->event_elapsed != NULL;
}

static opipe_status make_events(opi_move_run *run, const opi_rank *rank, opipe_error *err) {
  opipe_event **const events[] = {&run->left, &run->returned, &run->left_begun, &run->return_begun};
  const bool timed = has_stamps(rank);
  for (uint32_t i = 0; i < (timed ? 4 : 2); ++i) {
    OPI_TRY(timed ? OPI_MAKE_RANK(rank, event_create_timed, events[i], err, rank->device)
                  : OPI_MAKE_RANK(rank, event_create, events[i], err, rank->device));
  }
  return OPIPE_OK;
}

opipe_status opi_moves_make(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_lists *lists = t->lists;
  t->offloads = OPI_ARENA_ARRAY(&t->arena, opi_pinned, s->plan->decided.n_ranks);
  t->move_runs = OPI_ARENA_ARRAY(&t->arena, opi_move_run, (size_t)lists->n_moves + 1);
  if (t->offloads == NULL || t->move_runs == NULL)
    return opi_fail_nomem(err, lists->n_moves * sizeof *t->move_runs, "offloads");
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const opi_rank *rank = &s->ranks[s->here[i]];
    const uint64_t n_bytes = lists->offload_bytes[rank->index];
    if (n_bytes != 0) {
      OPI_TRY(opi_pinned_take(opi_rank_backend(rank), rank->device, s->allocator, n_bytes,
                              "offloaded stashes", &t->offloads[rank->index], err));
    }
  }
  for (uint32_t i = 0; i < lists->n_moves; ++i) {
    if (opi_rank_is_here(s, lists->moves[i].rank))
      OPI_TRY(make_events(&t->move_runs[i], &s->ranks[lists->moves[i].rank], err));
  }
  return OPIPE_OK;
}

void opi_moves_stop(opi_compiled *t) {
  const opi_setup *s = t->setup;
  for (uint32_t i = 0; t->move_runs != NULL && i < t->lists->n_moves; ++i) {
    const opi_rank *rank = &s->ranks[t->lists->moves[i].rank];
    const opi_move_run *run = &t->move_runs[i];
    if (!opi_rank_is_here(s, t->lists->moves[i].rank))
      continue;
    rank->backend->event_destroy(run->left);
    rank->backend->event_destroy(run->returned);
    rank->backend->event_destroy(run->left_begun);
    rank->backend->event_destroy(run->return_begun);
  }
  for (uint32_t i = 0; t->offloads != NULL && i < s->n_here; ++i) {
    const opi_rank *rank = &s->ranks[s->here[i]];
    if (t->offloads[rank->index].data != NULL) {
      opi_pinned_give(opi_rank_backend(rank), rank->device, s->allocator,
                      &t->offloads[rank->index]);
    }
  }
  t->move_runs = NULL;
  t->offloads = NULL;
}
