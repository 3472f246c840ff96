/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks that wait for each other at an update. */
#include <string.h>

#include "partition/lists/lists.h"

static void join_group(uint32_t *group, uint32_t a, uint32_t b) {
  while (group[a] != a)
    a = group[a];
  while (group[b] != b)
    b = group[b];
  group[a < b ? b : a] = a < b ? a : b;
}

/* Joins ranks with instances that read the same trained parameter. */
static opipe_status join_sharers(const opi_piece_plan *plan, const opi_cut *cut, opi_arena *arena,
                                 uint32_t *group, opipe_error *err) {
  uint32_t *first = OPI_ARENA_ARRAY(arena, uint32_t, cut->n_params);
  if (first == NULL)
    return opi_fail_nomem(err, cut->n_params * sizeof *first, "a proof");
  memset(first, 0xff, cut->n_params * sizeof *first);
  for (uint32_t i = 0; i < cut->n_stages * cut->n_kinds * plan->n_replicas; ++i) {
    const uint32_t stage = i / (cut->n_kinds * plan->n_replicas);
    const opi_program *program = opi_program_of(cut, stage, i / plan->n_replicas % cut->n_kinds);
    const uint32_t rank = opi_piece_rank(plan, stage, i % plan->n_replicas);
    for (uint32_t k = 0; rank != OPIPE_NONE && k < program->n_params; ++k) {
      const uint32_t slot = program->params[k];
      if (!cut->trained[slot])
        continue;
      if (first[slot] == OPIPE_NONE)
        first[slot] = rank;
      join_group(group, first[slot], rank);
    }
  }
  return OPIPE_OK;
}

opipe_status opi_update_groups(const opi_piece_plan *plan, const opi_cut *cut, opi_arena *arena,
                               uint32_t **out_group, opipe_error *err) {
  const bool alone = plan->whole->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED && plan->trains &&
                     opi_plan_steps_alone(plan->whole);
  uint32_t *group = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_ranks);
  if (group == NULL)
    return opi_fail_nomem(err, plan->n_ranks * sizeof *group, "a proof");
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank)
    group[rank] = alone ? rank : 0;
  if (alone)
    OPI_TRY(join_sharers(plan, cut, arena, group, err));
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    while (group[rank] != group[group[rank]])
      group[rank] = group[group[rank]];
  }
  *out_group = group;
  return OPIPE_OK;
}
