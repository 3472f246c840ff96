/* SPDX-License-Identifier: Apache-2.0 */
/* Splits whole backwards into halves, merges adjacent halves, and repeats forwards. */
#include "partition/schedule/passes.h"

static bool same_unit(const opi_do *a, const opi_do *b) {
  return a->stage == b->stage && a->replica == b->replica && a->microbatch == b->microbatch &&
         a->slice == b->slice && a->part == b->part && a->version == b->version;
}

static opipe_status split_item(opi_do_list *out, opi_do item, opipe_error *err) {
  if (item.kind != OPI_DO_B)
    return opi_do_list_add(out, item, err);
  opi_do input = item, weight = item;
  input.kind = OPI_DO_I;
  weight.kind = OPI_DO_W;
  /* In a pair, W follows the second action. */
  weight.flags = 0;
  OPI_TRY(opi_do_list_add(out, input, err));
  return (item.flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 ? OPIPE_OK
                                                       : opi_do_list_add(out, weight, err);
}

static opipe_status split_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                               opipe_error *err) {
  (void)ctx;
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    const opi_do *item = &list->items[i];
    OPI_TRY(split_item(out, *item, err));
    if (i > list->rank_first[rank] && item[-1].kind == OPI_DO_B &&
        (item[-1].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0) {
      opi_do weight = item[-1];
      weight.kind = OPI_DO_W;
      weight.flags = 0;
      OPI_TRY(opi_do_list_add(out, weight, err));
    }
  }
  return OPIPE_OK;
}

static opipe_status merge_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                               opipe_error *err) {
  (void)ctx;
  const uint32_t end = list->rank_first[rank + 1];
  for (uint32_t i = list->rank_first[rank]; i < end; ++i) {
    opi_do item = list->items[i];
    uint32_t next = i + 1;
    if (item.kind == OPI_DO_IDLE)
      continue;
    while (next < end && list->items[next].kind == OPI_DO_IDLE)
      ++next;
    if (item.kind == OPI_DO_I && item.flags == 0 && next < end &&
        list->items[next].kind == OPI_DO_W && same_unit(&item, &list->items[next])) {
      item.kind = OPI_DO_B;
      i = next;
    }
    OPI_TRY(opi_do_list_add(out, item, err));
  }
  return OPIPE_OK;
}

opipe_status opi_pass_split(const opi_do_list *list, const opipe_allocator *allocator,
                            opi_do_list **out_list, opipe_error *err) {
  const uint64_t n = (uint64_t)list->n_items + opi_do_list_count(list, 1u << OPI_DO_B);
  return opi_each_rank(list, split_rank, NULL, n, allocator, out_list, err);
}

opipe_status opi_pass_merge(const opi_do_list *list, const opipe_allocator *allocator,
                            opi_do_list **out_list, opipe_error *err) {
  return opi_each_rank(list, merge_rank, NULL, list->n_items, allocator, out_list, err);
}

static opipe_status recompute_rank(void *ctx, const opi_do_list *list, uint32_t rank,
                                   opi_do_list *out, opipe_error *err) {
  const bool *stages = ctx;
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    const opi_do *a = &list->items[i];
    if ((a->kind == OPI_DO_B || a->kind == OPI_DO_I) && a->part == 0 && stages[a->stage]) {
      opi_do again = *a;
      again.kind = OPI_DO_R;
      again.flags = 0;
      OPI_TRY(opi_do_list_add(out, again, err));
    }
    OPI_TRY(opi_do_list_add(out, *a, err));
  }
  return OPIPE_OK;
}

opipe_status opi_pass_recompute(const opi_do_list *list, const bool *stages,
                                const opipe_allocator *allocator, opi_do_list **out_list,
                                opipe_error *err) {
  const uint64_t n =
      (uint64_t)list->n_items + opi_do_list_count(list, 1u << OPI_DO_B | 1u << OPI_DO_I);
  return opi_each_rank(list, recompute_rank, (void *)(uintptr_t)stages, n, allocator, out_list,
                       err);
}
