/* SPDX-License-Identifier: Apache-2.0 */
/* Orders with explicit idle time: one cell per slot, so that a column is a moment. */
#include "partition/schedule/events.h"
#include "partition/schedule/order.h"
#include "partition/schedule/passes.h"

opipe_status opi_order_lower(const opi_order *order, const opi_lowering *how,
                             const opipe_allocator *allocator, opi_order **out_order,
                             opipe_error *err) {
  opi_do_list *list = NULL;
  OPI_TRY(opi_lower_order(&order->problem, order->list, how, allocator, &list, err));
  return opi_order_make(&order->problem, list, allocator, out_order, err);
}

typedef struct aligner {
  opi_timeline timeline;
} aligner;

static opipe_status align_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                               opipe_error *err) {
  const aligner *a = ctx;
  double slot = 0;
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    const opi_do *item = &list->items[i];
    const bool second =
        i > list->rank_first[rank] && (item[-1].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
    if (item->kind == OPI_DO_IDLE)
      continue;
    for (; opi_do_is_compute(item->kind) && !second && slot + 0.5 < a->timeline.start[i]; ++slot) {
      OPI_TRY(opi_do_list_add(
          out, (opi_do){.kind = OPI_DO_IDLE, .stage = OPIPE_NONE, .edge = OPIPE_NONE}, err));
    }
    OPI_TRY(opi_do_list_add(out, *item, err));
    slot += second ? 0 : 1;
  }
  return OPIPE_OK;
}

opipe_status opi_order_align(const opi_order *order, const opipe_allocator *allocator,
                             opi_order **out_order, opipe_error *err) {
  const opi_problem *p = &order->problem;
  opi_arena arena;
  opi_do_list *list = NULL;
  aligner a;
  bool halves = false;
  OPI_TRY(opi_pass_check(p, order->list, allocator, err));
  for (uint32_t i = 0; i < order->list->n_items; ++i)
    halves = halves || order->list->items[i].kind == OPI_DO_I;
  const double slice = p->n_slices, part = slice * p->n_parts;
  const opi_costs costs = {
      .forward = slice, .input = halves ? part : part / 2, .weight = halves ? part : part / 2};
  opi_arena_init(&arena, allocator, 0);
  opipe_status status = opi_timeline_build(p, order->list, &costs, &arena, &a.timeline, err);
  if (status == OPIPE_OK) {
    status =
        opi_each_rank(order->list, align_rank, &a, order->list->n_items, allocator, &list, err);
  }
  opi_arena_release(&arena);
  return status < 0 ? status : opi_order_make(p, list, allocator, out_order, err);
}
