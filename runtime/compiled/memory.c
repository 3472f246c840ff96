/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a shape. It has a boundary buffer on every rank, its own or its lead's, registered with
 * the rank's endpoint, and uses the rank's arena, which shapes share. A shape that needs a larger
 * arena gets a new one; the old one is freed with the last shape bound to it. Memory is charged to
 * the budget before it is taken.
 */
#include "runtime/compiled/build.h"

#include "loader/base/sizes.h"

static opipe_status take_arena(opi_shape *shape, opi_rank *rank, uint64_t n_bytes,
                               opipe_error *err) {
  const uint64_t need = opi_align_up(n_bytes, rank->alignment);
  uint32_t i = 0, place = OPIPE_NONE;
  while (i < rank->n_arenas && rank->arenas[i].block.n_bytes < need) {
    if (rank->arenas[i].block.n_bytes == 0)
      place = i;
    ++i;
  }
  if (i == rank->n_arenas) {
    if (place == OPIPE_NONE && rank->n_arenas == OPI_ARENAS) {
      return opi_fail(err, OPIPE_E_LIMIT,
                      "rank %u: a shape needs an arena of %s, %d arenas are in use", rank->index,
                      OPI_SIZE(need), OPI_ARENAS);
    }
    opi_block block;
    OPI_TRY(opi_rank_take(rank, need, OPIPE_BUFFER_ARENA, "the arena of a session", &block, err));
    i = place == OPIPE_NONE ? rank->n_arenas++ : place;
    rank->arenas[i] = (opi_rank_arena){.block = block};
  }
  ++rank->arenas[i].n_shapes;
  shape->arena_of_rank[rank->index] = i;
  return OPIPE_OK;
}

opipe_status opi_shape_memory(opi_shape *shape, const opi_rank_needs *needs, opipe_error *err) {
  opi_setup *s = shape->setup;
  const uint32_t n = s->plan->decided.n_ranks;
  const bool leads = shape->lead == shape;
  shape->boundary = leads ? OPI_ARENA_ARRAY(&shape->arena, opi_block, n) : shape->lead->boundary;
  uint32_t *arenas = OPI_ARENA_ARRAY(&shape->arena, uint32_t, n);
  if (shape->boundary == NULL || arenas == NULL)
    return opi_fail_nomem(err, n * sizeof(opi_block), "a shape's memory");
  for (uint32_t r = 0; r < n; ++r)
    arenas[r] = OPIPE_NONE;
  shape->arena_of_rank = arenas;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    opi_rank *rank = &s->ranks[r];
    if (needs[r].arena_bytes != 0)
      OPI_TRY(take_arena(shape, rank, needs[r].arena_bytes, err));
    if (!leads)
      continue;
    OPI_TRY(opi_rank_take(rank, opi_align_up(needs[r].boundary_bytes, rank->alignment),
                          OPIPE_BUFFER_BOUNDARY, "the boundary buffer of a session",
                          &shape->boundary[r], err));
    OPI_TRY(opi_rank_register(rank, &shape->boundary[r], err));
  }
  return OPIPE_OK;
}

void opi_shape_memory_free(opi_shape *shape) {
  opi_setup *s = shape->setup;
  for (uint32_t i = 0; shape->arena_of_rank != NULL && i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    opi_rank *rank = &s->ranks[r];
    if (shape->lead == shape)
      opi_rank_give(rank, &shape->boundary[r]);
    if (shape->arena_of_rank[r] == OPIPE_NONE)
      continue;
    opi_rank_arena *arena = &rank->arenas[shape->arena_of_rank[r]];
    if (--arena->n_shapes == 0)
      opi_rank_give(rank, &arena->block);
  }
}
