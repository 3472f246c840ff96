/* SPDX-License-Identifier: Apache-2.0 */
/* A stash leaves during the compute after its OFFLOAD, and the compute after that starts only once
 * it has left. It comes back during the operations between its RELOAD and its reader. */
#include "partition/study/simulate/order_build.h"

static opipe_status join(opi_order_builder *b, opi_leaving *l, uint32_t item) {
  const uint32_t collective = l->collective;
  l->collective = OPIPE_NONE;
  return collective == OPIPE_NONE ? OPIPE_OK : opi_builder_op(b, OPI_PLAY_JOIN, collective, item);
}

opipe_status opi_builder_drain(opi_order_builder *b, uint32_t item) {
  for (; b->moves.first_leaving < b->moves.n_leaving &&
         b->moves.leaving[b->moves.first_leaving].n_computes < b->moves.n_computes;
       ++b->moves.first_leaving)
    OPI_TRY(join(b, &b->moves.leaving[b->moves.first_leaving], item));
  return OPIPE_OK;
}

static opipe_status leave(opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  uint32_t c = 0;
  if (!opi_arena_grow(b->arena, (void **)&b->moves.leaving, &b->moves.room_leaving,
                      b->moves.n_leaving + 1, sizeof *b->moves.leaving))
    return opi_fail_nomem(b->err, b->moves.n_leaving * sizeof *b->moves.leaving, "a simulation");
  OPI_TRY(opi_builder_collective(b, GROUP_OUT, a->stage, a->replica, a->slice, &c));
  b->moves.leaving[b->moves.n_leaving++] =
      (opi_leaving){opi_builder_unit(b, item), c, b->moves.n_computes};
  return opi_builder_op(b, OPI_PLAY_START, c, item);
}

opipe_status opi_builder_move(opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const uint64_t unit = opi_builder_unit(b, item);
  if (a->kind == OPI_DO_OFFLOAD)
    return leave(b, item);
  for (uint32_t i = b->moves.first_leaving; i < b->moves.n_leaving; ++i) {
    if (b->moves.leaving[i].unit == unit)
      OPI_TRY(join(b, &b->moves.leaving[i], item));
  }
  OPI_TRY(
      opi_builder_collective(b, GROUP_IN, a->stage, a->replica, a->slice, &b->moves.coming[unit]));
  return opi_builder_op(b, OPI_PLAY_START, b->moves.coming[unit], item);
}

opipe_status opi_builder_arrive(opi_order_builder *b, uint32_t item) {
  const uint32_t kind = b->list->items[item].kind;
  if (b->moves.coming == NULL || kind == OPI_DO_F || kind == OPI_DO_W)
    return OPIPE_OK;
  uint32_t *collective = &b->moves.coming[opi_builder_unit(b, item)];
  const uint32_t c = *collective;
  *collective = OPIPE_NONE;
  return c == OPIPE_NONE ? OPIPE_OK : opi_builder_op(b, OPI_PLAY_JOIN, c, item);
}
