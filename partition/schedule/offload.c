/* SPDX-License-Identifier: Apache-2.0 */
/* Offloads stashes to the host's memory between a forward and its backward: out after the forward,
 * back one compute before the backward, so that both transfers run beside computes. */
#include <string.h>

#include "partition/schedule/passes.h"

enum {
  COMPUTES_LEAST = 3
}; /* between: one beside which it leaves, one that has its room, one beside
      which it comes back */

typedef struct mover {
  const opi_problem *problem;
  const bool *stages;
  opi_index index;
  uint32_t *forward; /* [n_units] the rank's compute that is its forward; OPIPE_NONE: none that is
                        offloaded */
  uint32_t *next;    /* [n_units] next unit that is reloaded in front of the same compute */
  uint32_t *first;   /* [most computes + 1] first unit of each compute's list */
  uint8_t *moves;    /* [n_units] the unit is offloaded */
} mover;

static uint64_t unit_of(const mover *m, const opi_do *a) {
  return opi_unit(&m->index, a->stage, a->replica, a->microbatch, a->slice, 0);
}

/* The number of computes of one turn from `item` on. */
static uint32_t together(const opi_do_list *list, uint32_t item, uint32_t end) {
  return (list->items[item].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 && item + 1 < end ? 2 : 1;
}

/* Decides which of the rank's units are offloaded, and before which compute each comes back. */
static void decide(mover *m, const opi_do_list *list, uint32_t rank) {
  const uint32_t end = list->rank_first[rank + 1];
  uint32_t n_computes = 0;
  for (uint32_t i = list->rank_first[rank], n; i < end; i += n) {
    n = together(list, i, end);
    if (!opi_do_is_compute(list->items[i].kind))
      continue;
    for (uint32_t k = i; k < i + n; ++k) {
      const opi_do *a = &list->items[k];
      const uint64_t unit = unit_of(m, a);
      if (a->kind == OPI_DO_F && (a->flags & OPIPE_ACTION_NEXT_STEP) == 0 && m->stages[a->stage]) {
        m->forward[unit] = n_computes;
      } else if (a->kind != OPI_DO_W && m->forward[unit] != OPIPE_NONE) {
        m->moves[unit] = n_computes - m->forward[unit] - 1 >= COMPUTES_LEAST;
        m->forward[unit] = OPIPE_NONE;
        if (m->moves[unit] == 0)
          continue;
        m->next[unit] = m->first[n_computes - 1];
        m->first[n_computes - 1] = (uint32_t)unit;
      }
    }
    ++n_computes;
  }
}

static opipe_status add_move(opi_do_list *out, uint32_t kind, const opi_do *a, opipe_error *err) {
  opi_do item = *a;
  item.kind = (uint8_t)kind;
  item.part = 0;
  item.version = 0;
  item.flags = 0;
  return opi_do_list_add(out, item, err);
}

/* The inverse of opi_unit: an action of the unit. */
static opi_do of_unit(const mover *m, uint64_t unit) {
  const opi_problem *p = m->problem;
  opi_do a = {.edge = OPIPE_NONE};
  unit /= p->n_parts;
  a.slice = (uint16_t)(unit % p->n_slices);
  unit /= p->n_slices;
  a.microbatch = (uint32_t)(unit % p->n_microbatches);
  unit /= p->n_microbatches;
  a.stage = (uint32_t)(unit / m->index.n_shares);
  a.replica =
      (uint16_t)(p->stage_shares != NULL
                     ? unit % m->index.n_shares
                     : m->index.replica[(size_t)a.stage * p->n_microbatches + a.microbatch]);
  return a;
}

static opipe_status move_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                              opipe_error *err) {
  mover *m = ctx;
  const uint32_t end = list->rank_first[rank + 1];
  uint32_t n_computes = 0;
  memset(m->first, 0xff, ((size_t)end - list->rank_first[rank] + 1) * sizeof *m->first);
  decide(m, list, rank);
  for (uint32_t i = list->rank_first[rank], n; i < end; i += n) {
    n = together(list, i, end);
    const bool computes = opi_do_is_compute(list->items[i].kind);
    for (uint32_t u = computes ? m->first[n_computes] : OPIPE_NONE; u != OPIPE_NONE;
         u = m->next[u]) {
      const opi_do a = of_unit(m, u);
      OPI_TRY(add_move(out, OPI_DO_RELOAD, &a, err));
    }
    n_computes += computes;
    for (uint32_t k = i; k < i + n; ++k)
      OPI_TRY(opi_do_list_add(out, list->items[k], err));
    for (uint32_t k = i; k < i + n; ++k) {
      const opi_do *a = &list->items[k];
      if (a->kind == OPI_DO_F && (a->flags & OPIPE_ACTION_NEXT_STEP) == 0 &&
          m->moves[unit_of(m, a)] != 0)
        OPI_TRY(add_move(out, OPI_DO_OFFLOAD, a, err));
    }
  }
  return OPIPE_OK;
}

static opipe_status allocate(mover *m, const opi_do_list *list, opi_arena *arena,
                             opipe_error *err) {
  size_t most = 0;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    const size_t n = list->rank_first[rank + 1] - list->rank_first[rank];
    most = n > most ? n : most;
  }
  OPI_TRY(opi_index_build(m->problem, list, arena, &m->index, err));
  const size_t n = (size_t)m->index.n_units;
  m->forward = OPI_ARENA_ARRAY(arena, uint32_t, n);
  m->next = OPI_ARENA_ARRAY(arena, uint32_t, n);
  m->moves = OPI_ARENA_ARRAY(arena, uint8_t, n);
  m->first = OPI_ARENA_ARRAY(arena, uint32_t, most + 1);
  if (m->forward == NULL || m->next == NULL || m->moves == NULL || m->first == NULL)
    return opi_fail_nomem(err, n * sizeof(uint32_t), "offloads");
  memset(m->forward, 0xff, n * sizeof *m->forward);
  return OPIPE_OK;
}

opipe_status opi_pass_offload(const opi_problem *problem, const opi_do_list *list,
                              const bool *stages, const opipe_allocator *allocator,
                              opi_do_list **out_list, opipe_error *err) {
  mover m = {.problem = problem, .stages = stages};
  uint64_t n = (uint64_t)list->n_items + 2ull * opi_do_list_count(list, 1u << OPI_DO_F);
  opi_arena arena;
  OPI_TRY(opi_pass_check(problem, list, allocator, err));
  opi_arena_init(&arena, allocator, 0);
  opipe_status status = allocate(&m, list, &arena, err);
  n = n < OPI_ACTIONS_MOST ? n : OPI_ACTIONS_MOST; /* an upper bound */
  if (status == OPIPE_OK)
    status = opi_each_rank(list, move_rank, &m, n, allocator, out_list, err);
  opi_arena_release(&arena);
  return status;
}
