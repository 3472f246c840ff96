/* SPDX-License-Identifier: Apache-2.0 */
/* A stash leaves beside the compute behind its OFFLOAD, and the rank does not begin the one after
 * that before it has; it comes back beside what stands between its RELOAD and its reader.
 */
#include "partition/study/simulate/order_build.h"

static opipe_status join(opi_order_builder *b, opi_leaving *l, uint32_t item) {
  const uint32_t collective = l->collective;
  l->collective = OPIPE_NONE;
  return collective == OPIPE_NONE ? OPIPE_OK : opi_builder_op(b, OPI_PLAY_JOIN, collective, item);
}

opipe_status opi_builder_drain(opi_order_builder *b, uint32_t item) {
  for (; b->first_leaving < b->n_leaving && b->leaving[b->first_leaving].n_computes < b->n_computes;
       ++b->first_leaving)
    OPI_TRY(join(b, &b->leaving[b->first_leaving], item));
  return OPIPE_OK;
}

static opipe_status leave(opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  uint32_t c = 0;
  if (!opi_arena_grow(b->arena, (void **)&b->leaving, &b->room_leaving, b->n_leaving + 1,
                      sizeof *b->leaving))
    return opi_fail_nomem(b->err, b->n_leaving * sizeof *b->leaving, "a simulation");
  OPI_TRY(opi_builder_collective(b, GROUP_OUT, a->stage, a->replica, a->slice, &c));
  b->leaving[b->n_leaving++] = (opi_leaving){opi_builder_unit(b, item), c, b->n_computes};
  return opi_builder_op(b, OPI_PLAY_START, c, item);
}

opipe_status opi_builder_move(opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const uint64_t unit = opi_builder_unit(b, item);
  if (a->kind == OPI_DO_OFFLOAD)
    return leave(b, item);
  for (uint32_t i = b->first_leaving; i < b->n_leaving; ++i) {
    if (b->leaving[i].unit == unit)
      OPI_TRY(join(b, &b->leaving[i], item));
  }
  OPI_TRY(opi_builder_collective(b, GROUP_IN, a->stage, a->replica, a->slice, &b->coming[unit]));
  return opi_builder_op(b, OPI_PLAY_START, b->coming[unit], item);
}

opipe_status opi_builder_arrive(opi_order_builder *b, uint32_t item) {
  const uint32_t kind = b->list->items[item].kind;
  if (b->coming == NULL || kind == OPI_DO_F || kind == OPI_DO_W)
    return OPIPE_OK;
  uint32_t *collective = &b->coming[opi_builder_unit(b, item)];
  const uint32_t c = *collective;
  *collective = OPIPE_NONE;
  return c == OPIPE_NONE ? OPIPE_OK : opi_builder_op(b, OPI_PLAY_JOIN, c, item);
}
