/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's stash between forwards and backwards, along its list. */
#include "partition/schedule/passes.h"

bool opi_each_stash(const opi_problem *p, const opi_do_list *list, uint32_t rank, opi_stash_fn fn,
                    void *ctx) {
  const uint32_t first = list->rank_first[rank], end = list->rank_first[rank + 1];
  const int32_t all = (int32_t)p->n_parts;
  uint32_t last = first; /* the compute before */
  uint32_t left = first; /* stashes offloaded in front of it have left */
  bool more = true;
  for (uint32_t i = first; more && i < end && p->mode != OPIPE_MODE_FORWARD; ++i) {
    const uint32_t kind = list->items[i].kind;
    if (opi_do_is_compute(kind) && !opi_is_second(list, first, i)) {
      for (; more && left < last; ++left) {
        if (list->items[left].kind == OPI_DO_OFFLOAD)
          more = fn(ctx, i, &list->items[left], -all);
      }
      last = i;
    }
    if (more && (kind == OPI_DO_F || kind == OPI_DO_RELOAD))
      more = fn(ctx, i, &list->items[i], all);
    else if (more && (kind == OPI_DO_B || kind == OPI_DO_W))
      more = fn(ctx, i, &list->items[i], -1);
  }
  return more;
}
