/* SPDX-License-Identifier: Apache-2.0 */
/* Places of a pass's collectives: directly before or after the pass; in a pair that overlaps,
 * before its first or after its second. */
#include "partition/schedule/passes.h"

static bool is_pair(const opi_do_list *list, uint32_t item, uint32_t end) {
  return (list->items[item].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 && item + 1 < end &&
         opi_do_is_compute(list->items[item].kind) && opi_do_is_compute(list->items[item + 1].kind);
}

static bool same_unit(const opi_do *a, const opi_do *b) {
  return a->stage == b->stage && a->replica == b->replica && a->microbatch == b->microbatch &&
         a->slice == b->slice && a->part == b->part &&
         (a->flags & OPIPE_ACTION_NEXT_STEP) == (b->flags & OPIPE_ACTION_NEXT_STEP);
}

/* Whether the collective belongs to that compute. */
static bool belongs(const opi_do *group, const opi_do *a) {
  const bool of_kind = opi_do_group_is_backward(group->kind)
                           ? a->kind == OPI_DO_B || a->kind == OPI_DO_I
                           : a->kind == OPI_DO_F || a->kind == OPI_DO_R;
  return of_kind && same_unit(group, a);
}

/* Whether the action may stand between a collective and its pass. */
static bool is_beside(const opi_do *a, bool before) {
  return a->kind == OPI_DO_IDLE ||
         (opi_do_is_group(a->kind) && opi_do_group_is_before(a->kind) == before);
}

uint32_t opi_group_pass(const opi_do_list *list, uint32_t rank, uint32_t item) {
  const uint32_t first = list->rank_first[rank], end = list->rank_first[rank + 1];
  const opi_do *a = &list->items[item];
  const bool before = opi_do_group_is_before(a->kind);
  uint32_t i = item;
  if (before) {
    while (i < end && is_beside(&list->items[i], true))
      ++i;
    if (i < end && belongs(a, &list->items[i]))
      return i;
    return i < end && is_pair(list, i, end) && belongs(a, &list->items[i + 1]) ? i + 1 : OPIPE_NONE;
  }
  while (i > first && is_beside(&list->items[i], false))
    --i;
  if (belongs(a, &list->items[i]))
    return i;
  return i > first && is_pair(list, i - 1, end) && belongs(a, &list->items[i - 1]) ? i - 1
                                                                                   : OPIPE_NONE;
}

bool opi_group_repeats(const opi_do_list *list, uint32_t rank, uint32_t item) {
  const opi_do *a = &list->items[item];
  bool repeats = false;
  for (uint32_t i = item; !repeats && i > list->rank_first[rank] &&
                          is_beside(&list->items[i - 1], opi_do_group_is_before(a->kind));
       --i)
    repeats = list->items[i - 1].kind == a->kind && same_unit(&list->items[i - 1], a);
  return repeats;
}

uint32_t opi_groups_around(const opi_do_list *list, uint32_t rank, uint32_t item) {
  const uint32_t first = list->rank_first[rank], end = list->rank_first[rank + 1];
  const opi_do *a = &list->items[item];
  uint32_t from = item, to = item + 1, kinds = 0;
  if (item > first && is_pair(list, item - 1, end))
    --from;
  else if (is_pair(list, item, end))
    ++to;
  for (; from > first && is_beside(&list->items[from - 1], true); --from) {
    const opi_do *group = &list->items[from - 1];
    if (group->kind != OPI_DO_IDLE && belongs(group, a))
      kinds |= 1u << group->kind;
  }
  for (; to < end && is_beside(&list->items[to], false); ++to) {
    if (list->items[to].kind != OPI_DO_IDLE && belongs(&list->items[to], a))
      kinds |= 1u << list->items[to].kind;
  }
  return kinds;
}
