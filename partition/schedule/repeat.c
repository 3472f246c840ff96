/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats the order of one request for every request of a stream. */
#include "partition/schedule/order.h"
#include "partition/schedule/passes.h"

typedef struct repeater {
  uint32_t n, microbatches;
} repeater;

static opipe_status repeat_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                                opipe_error *err) {
  const repeater *r = ctx;
  for (uint32_t k = 0; k < r->n; ++k) {
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      opi_do item = list->items[i];
      item.microbatch += opi_do_has_microbatch(item.kind) ? k * r->microbatches : 0;
      OPI_TRY(opi_do_list_add(out, item, err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_order_repeat(const opi_order *order, uint32_t n, const opipe_allocator *allocator,
                              opi_order **out_order, opipe_error *err) {
  opi_problem problem = order->problem;
  opi_do_list *list = NULL;
  repeater r = {n, problem.n_microbatches};
  /* If the product of micro-batches overflows, the list is refused by its size. */
  OPI_TRY(opi_each_rank(order->list, repeat_rank, &r, (uint64_t)order->list->n_items * n, allocator,
                        &list, err));
  problem.n_microbatches *= n;
  return opi_order_make(&problem, list, allocator, out_order, err);
}
