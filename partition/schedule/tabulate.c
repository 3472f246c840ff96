/* SPDX-License-Identifier: Apache-2.0 */
/* Idle cells of PyTorch's schedule tables. Its generators write a rank's waiting down by counts of
 * their own: so many before the first action, so many between warm-up and the first backward, one
 * before each backward of the cool-down; interleaved zero-bubble tables then wait, slot by slot,
 * for forwards of the stage before.
 */
#include <string.h>

#include "partition/schedule/order.h"
#include "partition/schedule/passes.h"

typedef struct table {
  const opi_problem *problem;
  uint32_t kind;
  uint32_t n_microbatches;
} table;

static opipe_status add_idle(opi_do_list *out, uint32_t n, opipe_error *err) {
  const opi_do idle = {.kind = OPI_DO_IDLE, .stage = OPIPE_NONE, .edge = OPIPE_NONE};
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(opi_do_list_add(out, idle, err));
  return OPIPE_OK;
}

/* Forwards before the first pair of forward and backward. */
static uint32_t warm_up(const table *t, uint32_t rank) {
  const opi_problem *p = t->problem;
  const uint32_t n = p->n_ranks, m = p->n_microbatches, chunks = p->n_stages / n;
  const uint32_t rounds = m / n > 1 ? m / n : 1, hops = n - 1 - rank;
  if (t->kind == OPI_TABLE_GPIPE || t->kind == OPI_TABLE_LOOPED_BFS)
    return m * chunks;
  const uint32_t warm =
      (chunks - 1) * (m / rounds) + (t->kind == OPI_TABLE_INTERLEAVED ? 2 : 1) * hops;
  return warm < m * chunks ? warm : m * chunks;
}

static uint32_t gap(const table *t, uint32_t rank, uint32_t warm) {
  const uint32_t hops = t->problem->n_ranks - 1 - rank;
  const uint32_t first_backward = t->problem->n_stages + 2 * hops;
  switch (t->kind) {
    case OPI_TABLE_GPIPE:
      return 3 * hops;
    case OPI_TABLE_LOOPED_BFS:
      return 2 * hops;
    case OPI_TABLE_INTERLEAVED:
      return first_backward > warm + rank ? first_backward - warm - rank : 0;
    default:
      return hops;
  }
}

static opipe_status counted_rank(void *ctx, const opi_do_list *list, uint32_t rank,
                                 opi_do_list *out, opipe_error *err) {
  const table *t = ctx;
  const uint32_t total = t->problem->n_microbatches * (t->problem->n_stages / t->problem->n_ranks);
  const uint32_t warm = warm_up(t, rank);
  uint32_t forwards = 0, backwards = 0;
  OPI_TRY(add_idle(out, rank, err));
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    const opi_do *a = &list->items[i];
    if (a->kind == OPI_DO_F && forwards++ == warm && warm == 0)
      OPI_TRY(add_idle(out, gap(t, rank, warm), err));
    backwards += a->kind == OPI_DO_B;
    if (t->kind == OPI_TABLE_INTERLEAVED && a->kind == OPI_DO_B && backwards > total - warm)
      OPI_TRY(add_idle(out, 1, err));
    OPI_TRY(opi_do_list_add(out, *a, err));
    if (a->kind == OPI_DO_F && forwards == warm)
      OPI_TRY(add_idle(out, gap(t, rank, warm), err));
  }
  return OPIPE_OK;
}

static opipe_status cut_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                             opipe_error *err) {
  const table *t = ctx;
  OPI_TRY(add_idle(out, rank, err));
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    if (list->items[i].microbatch < t->n_microbatches)
      OPI_TRY(opi_do_list_add(out, list->items[i], err));
    else
      OPI_TRY(add_idle(out, 1, err));
  }
  return OPIPE_OK;
}

/* ---- slot by slot ---- */

typedef struct slots {
  const opi_problem *problem;
  const opi_do_list *list;
  uint32_t *done_at; /* [n_stages * M] slot in which its forward stands, OPIPE_NONE: none yet */
} slots;

/* A rank's cells in slot order would need all ranks at once: the slots of all are found first. */
static opipe_status find_slots(const slots *s, uint32_t *slot_of, opi_arena *arena,
                               opipe_error *err) {
  const opi_problem *p = s->problem;
  uint32_t *next = OPI_ARENA_ARRAY(arena, uint32_t, p->n_ranks);
  if (next == NULL)
    return opi_fail_nomem(err, p->n_ranks * sizeof *next, "slots");
  memcpy(next, s->list->rank_first, p->n_ranks * sizeof *next);
  uint32_t left = s->list->n_items;
  for (uint32_t slot = 0; left > 0; ++slot) {
    const uint32_t before = left;
    for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
      if (next[rank] == s->list->rank_first[rank + 1])
        continue;
      const opi_do *a = &s->list->items[next[rank]];
      const uint32_t m = a->microbatch;
      if (a->kind == OPI_DO_F && a->stage > 0 &&
          s->done_at[(size_t)(a->stage - 1) * p->n_microbatches + m] >= slot)
        continue;
      if (a->kind == OPI_DO_F)
        s->done_at[(size_t)a->stage * p->n_microbatches + m] = slot;
      slot_of[next[rank]++] = slot;
      --left;
    }
    if (left == before)
      return opi_fail(err, OPIPE_E_INVALID, "the table deadlocks in slot %u", slot);
  }
  return OPIPE_OK;
}

static opipe_status slot_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                              opipe_error *err) {
  const uint32_t *slot_of = ctx;
  uint32_t slot = 0;
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i, ++slot) {
    OPI_TRY(add_idle(out, slot_of[i] - slot, err));
    slot = slot_of[i];
    OPI_TRY(opi_do_list_add(out, list->items[i], err));
  }
  return OPIPE_OK;
}

static opipe_status wait_for_forwards(const opi_problem *p, const opi_do_list *list,
                                      const opipe_allocator *allocator, opi_do_list **out_list,
                                      opipe_error *err) {
  const size_t n = (size_t)p->n_stages * p->n_microbatches;
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  slots s = {p, list, OPI_ARENA_ARRAY(&arena, uint32_t, n)};
  uint32_t *slot_of = OPI_ARENA_ARRAY(&arena, uint32_t, (size_t)list->n_items + 1);
  opipe_status status = OPIPE_OK;
  if (s.done_at == NULL || slot_of == NULL)
    status = opi_fail_nomem(err, n * sizeof(uint32_t), "slots");
  if (status == OPIPE_OK) {
    memset(s.done_at, 0xff, n * sizeof(uint32_t));
    status = find_slots(&s, slot_of, &arena, err);
  }
  if (status == OPIPE_OK)
    status = opi_each_rank(list, slot_rank, slot_of, allocator, out_list, err);
  opi_arena_release(&arena);
  return status;
}

opipe_status opi_order_tabulate(const opi_order *order, uint32_t kind, uint32_t n_microbatches,
                                const opipe_allocator *allocator, opi_order **out_order,
                                opipe_error *err) {
  opi_problem problem = order->problem;
  table t = {&problem, kind, n_microbatches};
  opi_do_list *list = NULL;
  OPI_TRY(opi_pass_check(&problem, order->list, allocator, err));
  if (kind == OPI_TABLE_DUALPIPEV) {
    OPI_TRY(opi_do_list_without(order->list, OPI_DO_IDLE, allocator, &list, err));
  } else if (kind == OPI_TABLE_ZBV) {
    OPI_TRY(opi_each_rank(order->list, cut_rank, &t, allocator, &list, err));
  } else {
    OPI_TRY(opi_each_rank(order->list, counted_rank, &t, allocator, &list, err));
  }
  problem.n_microbatches = n_microbatches;
  if (kind == OPI_TABLE_INTERLEAVED_ZB) {
    opi_do_list *counted = list;
    const opipe_status status = wait_for_forwards(&problem, counted, allocator, &list, err);
    opi_do_list_free(counted);
    OPI_TRY(status);
  }
  return opi_order_make(&problem, list, allocator, out_order, err);
}
