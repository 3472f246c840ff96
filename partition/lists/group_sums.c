/* SPDX-License-Identifier: Apache-2.0 */
/* The meetings of tensor groups, at the odd places between stretches: one for every place, pass and
 * micro-batch. All members have the same records, so they come to them in one order. */
#include <string.h>

#include "partition/lists/listing.h"

/* The cut's meeting of a record: of a whole backward, of both its phases. False: nothing is summed
 * there. */
static bool find_meeting(const opi_cut *cut, const opipe_action *action, opi_group_meeting *out) {
  const uint32_t phases = opi_program_phases(opi_action_program(action));
  uint32_t low = 0, high = cut->n_meetings;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (cut->meetings[middle].at < action->stage)
      low = middle + 1;
    else
      high = middle;
  }
  out->n_values = 0;
  for (; low < cut->n_meetings && cut->meetings[low].at == action->stage; ++low) {
    const opi_group_meeting *m = &cut->meetings[low];
    if ((phases & 1u << m->phase) == 0)
      continue;
    const uint32_t n_before = out->n_values;
    if (n_before == 0)
      *out = *m;
    out->n_values = n_before + m->n_values;
  }
  return out->n_values != 0;
}

static uint64_t bytes_of(const opi_group_meeting *from) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < from->n_values; ++i)
    sum += from->values[i].n_bytes;
  return sum;
}

static opipe_status add_meeting(opi_listing *l, const opi_group_meeting *from,
                                const opipe_action *action) {
  opi_lists *lists = l->lists;
  const uint32_t width = opi_plan_width(l->plan->whole);
  uint32_t *ranks = OPI_ARENA_ARRAY(&lists->arena, uint32_t, width);
  if (ranks == NULL || !opi_arena_grow(&lists->arena, (void **)&lists->meetings, &l->groups.room,
                                       lists->n_meetings + 1, sizeof *lists->meetings))
    return opi_fail_nomem(l->err, sizeof *lists->meetings, "sums");
  for (uint32_t k = 0; k < width; ++k)
    ranks[k] = action->rank + k;
  lists->meetings[lists->n_meetings++] = (opi_list_meeting){.ranks = ranks,
                                                            .n_ranks = width,
                                                            .at = from->at,
                                                            .stage = from->stage,
                                                            .tensor = from->values[0].name,
                                                            .n_bytes = bytes_of(from),
                                                            .values = from->values,
                                                            .n_values = from->n_values,
                                                            .place = from->place,
                                                            .pass = opi_action_program(action),
                                                            .replica = action->replica,
                                                            .microbatch = action->microbatch};
  return OPIPE_OK;
}

/* The next meeting of each member's rank is the one that member 0's record at the same index in its
 * rank's list has. */
static void follow_members(opi_listing *l) {
  const opi_piece_plan *plan = l->plan;
  const uint32_t width = opi_plan_width(plan->whole);
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    const uint32_t first = plan->rank_first[rank], of = plan->rank_first[rank - rank % width];
    for (uint32_t a = first; rank % width != 0 && a < plan->rank_first[rank + 1]; ++a)
      l->groups.meeting_at[a] = l->groups.meeting_at[of + a - first];
  }
}

/* Finds the records in front of which ranks wait. */
static opipe_status list_awaits(opi_listing *l) {
  const uint32_t n = l->plan->n_actions;
  opi_group_sums *g = &l->groups;
  uint32_t *keys = OPI_ARENA_ARRAY(&l->scratch, uint32_t, (size_t)n + 1);
  g->awaited = OPI_ARENA_ARRAY(&l->scratch, uint32_t, (size_t)n + 1);
  if (keys == NULL || g->awaited == NULL)
    return opi_fail_nomem(l->err, n * sizeof *keys, "sums");
  for (uint32_t a = 0; a < n; ++a) {
    if (g->meeting_at[a] == OPIPE_NONE || l->times.await_at[a] == a)
      continue;
    keys[g->n_awaited] = l->times.await_at[a];
    g->awaited[g->n_awaited++] = a;
  }
  return opi_bucket_make(l, keys, g->n_awaited, n, &l->awaits_at);
}

opipe_status opi_listing_group_sums(opi_listing *l) {
  const opi_piece_plan *plan = l->plan;
  const uint32_t width = opi_plan_width(plan->whole);
  if (width == 1)
    return OPIPE_OK;
  l->groups.meeting_at = OPI_ARENA_ARRAY(&l->scratch, uint32_t, (size_t)plan->n_actions + 1);
  if (l->groups.meeting_at == NULL)
    return opi_fail_nomem(l->err, plan->n_actions * sizeof(uint32_t), "sums");
  memset(l->groups.meeting_at, 0xff, plan->n_actions * sizeof(uint32_t));
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    const opipe_action *action = &plan->actions[a];
    const opi_cut *cut = l->cuts[opi_row_class_of(plan->whole, action->microbatch)];
    opi_group_meeting from;
    if (action->rank % width != 0 || !find_meeting(cut, action, &from))
      continue;
    l->groups.meeting_at[a] = l->lists->n_meetings;
    OPI_TRY(add_meeting(l, &from, action));
  }
  follow_members(l);
  return list_awaits(l);
}
