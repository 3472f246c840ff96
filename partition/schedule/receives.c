/* SPDX-License-Identifier: Apache-2.0 */
/* Moves receives towards their consumers. An early receive holds memory and, under rules that match
 * in order, delays the ones after it; a late one delays nobody, since the message has travelled
 * meanwhile. `depth` computes of lead hide the posting itself.
 *
 * Between two ranks, the lower never moves a receive after its own send to the other: of two
 * neighbours one sends first and one receives first, even if both block to meet. */
#include <string.h>

#include "partition/schedule/passes.h"

typedef struct deferrer {
  const opi_problem *problem;
  uint32_t depth;
  uint32_t *waiting; /* [n] held-back items, in order */
  uint32_t *target;  /* [n] compute (counted on the rank) before which the item must stand */
  uint32_t n_waiting;
  opi_arena arena;
} deferrer;

static uint32_t peer_rank(const opi_problem *p, const opi_do *a) {
  const opi_stage_edge edge = p->edges[a->edge];
  return opi_problem_rank(p, a->stage == edge.src ? edge.dst : edge.src, a->peer);
}

static bool consumes(const opi_do *compute, const opi_do *receive) {
  const bool kind = receive->kind == OPI_DO_RECV_F
                        ? compute->kind == OPI_DO_F
                        : compute->kind == OPI_DO_B || compute->kind == OPI_DO_I;
  const bool same_step =
      receive->kind != OPI_DO_RECV_F ||
      (compute->flags & OPIPE_ACTION_NEXT_STEP) == (receive->flags & OPIPE_ACTION_NEXT_STEP);
  return kind && same_step && compute->stage == receive->stage &&
         compute->replica == receive->replica && compute->microbatch == receive->microbatch &&
         compute->slice == receive->slice && compute->part == receive->part;
}

/* Releases receives that must stand before compute `next`, or come from `peer` (OPIPE_NONE: none).
 */
static opipe_status release(deferrer *d, const opi_do_list *list, uint32_t next, uint32_t peer,
                            opi_do_list *out, opipe_error *err) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < d->n_waiting; ++i) {
    const uint32_t item = d->waiting[i];
    if (d->target[i] <= next || peer_rank(d->problem, &list->items[item]) == peer) {
      OPI_TRY(opi_do_list_add(out, list->items[item], err));
      continue;
    }
    d->waiting[kept] = item;
    d->target[kept++] = d->target[i];
  }
  d->n_waiting = kept;
  return OPIPE_OK;
}

/* The compute (counted on the rank) that reads what `item` receives; a container counts as its
 * first. OPIPE_NONE: none after the item. */
static uint32_t consumer_of(const opi_do_list *list, uint32_t rank, uint32_t item,
                            uint32_t n_computes) {
  bool paired = false;
  for (uint32_t i = item + 1; i < list->rank_first[rank + 1]; ++i) {
    const opi_do *a = &list->items[i];
    if (!opi_do_is_compute(a->kind))
      continue;
    if (consumes(a, &list->items[item]))
      return paired ? n_computes - 1 : n_computes;
    paired = (a->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
    ++n_computes;
  }
  return OPIPE_NONE;
}

static opipe_status hold(deferrer *d, const opi_do_list *list, uint32_t rank, uint32_t item,
                         uint32_t n_computes, opi_do_list *out, opipe_error *err) {
  const uint32_t consumer = consumer_of(list, rank, item, n_computes);
  if (consumer == OPIPE_NONE) /* the next body reads it */
    return opi_do_list_add(out, list->items[item], err);
  const uint32_t lead = d->depth - 1;
  d->waiting[d->n_waiting] = item;
  d->target[d->n_waiting++] = consumer > lead ? consumer - lead : 0;
  return OPIPE_OK;
}

static opipe_status defer_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                               opipe_error *err) {
  deferrer *d = ctx;
  uint32_t n_computes = 0;
  d->n_waiting = 0;
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    const opi_do *a = &list->items[i];
    if (a->kind == OPI_DO_IDLE)
      continue;
    if (opi_do_is_message(a->kind) &&
        (a->edge >= d->problem->n_edges || a->peer >= d->problem->n_replicas)) {
      return opi_fail(err, OPIPE_E_INVALID, "rank %u, step %u: edge %u, replica %u", rank,
                      i - list->rank_first[rank], a->edge, a->peer);
    }
    if (a->kind == OPI_DO_RECV_F || a->kind == OPI_DO_RECV_B) {
      OPI_TRY(hold(d, list, rank, i, n_computes, out, err));
      continue;
    }
    if (a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B) {
      const uint32_t peer = peer_rank(d->problem, a);
      if (rank < peer && peer != OPIPE_NONE)
        OPI_TRY(release(d, list, 0, peer, out, err));
    } else if (opi_do_is_compute(a->kind)) {
      const bool second = i > list->rank_first[rank] && opi_do_is_compute(a[-1].kind) &&
                          (a[-1].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
      if (!second)
        OPI_TRY(release(d, list, n_computes, OPIPE_NONE, out, err));
      ++n_computes;
    }
    OPI_TRY(opi_do_list_add(out, *a, err));
  }
  return release(d, list, OPIPE_NONE, OPIPE_NONE, out, err);
}

opipe_status opi_pass_defer(const opi_problem *problem, const opi_do_list *list, uint32_t depth,
                            const opipe_allocator *allocator, opi_do_list **out_list,
                            opipe_error *err) {
  if (depth == 0)
    return opi_fail(err, OPIPE_E_INVALID, "receives are placed with a depth of at least 1");
  deferrer d = {.problem = problem, .depth = depth};
  uint32_t most = 1;
  for (uint32_t r = 0; r < list->n_ranks; ++r) {
    const uint32_t n = list->rank_first[r + 1] - list->rank_first[r];
    most = n > most ? n : most;
  }
  opi_arena_init(&d.arena, allocator, 0);
  d.waiting = OPI_ARENA_ARRAY(&d.arena, uint32_t, most);
  d.target = OPI_ARENA_ARRAY(&d.arena, uint32_t, most);
  opipe_status status = OPIPE_OK;
  if (d.waiting == NULL || d.target == NULL)
    status = opi_fail_nomem(err, most * sizeof(uint32_t), "receives");
  if (status == OPIPE_OK)
    status = opi_each_rank(list, defer_rank, &d, list->n_items, allocator, out_list, err);
  opi_arena_release(&d.arena);
  return status;
}
