/* SPDX-License-Identifier: Apache-2.0 */
/* Offloaded stashes in a playlist: a group of one rank for the copies each way that are alike, to
 * which it comes once for each micro-batch. */
#include <string.h>

#include "partition/lists/playlist_build.h"

/* Are the copies of both moves one group's? Each passes a micro-batch once. */
static bool are_alike(const opi_playlist_maker *m, const opi_list_move *a, const opi_list_move *b) {
  const opipe_action *of = m->plan->actions;
  return a->rank == b->rank && a->stage == b->stage && a->n_bytes == b->n_bytes &&
         of[a->forward].replica == of[b->forward].replica &&
         of[a->reader].pass == of[b->reader].pass;
}

static opipe_status add_group(opi_playlist_maker *m, const opi_list_move *move, uint32_t how) {
  if (!opi_arena_grow(m->arena, (void **)&m->out->groups, &m->room_groups, m->out->n_groups + 1,
                      sizeof *m->out->groups))
    return opi_fail_nomem(m->err, m->out->n_groups * sizeof *m->out->groups, "a playlist");
  opi_playlist_group *group = &m->out->groups[m->out->n_groups++];
  *group = (opi_playlist_group){.stage = move->stage / opi_playlist_pieces(m),
                                .each = true,
                                .backward = how == OPI_PLAY_IN,
                                .how = how,
                                .n_bytes = move->n_bytes,
                                .n_ranks = 1,
                                .ranks = opi_arena_copy(m->arena, &move->rank, sizeof move->rank)};
  return group->ranks == NULL ? opi_fail_nomem(m->err, sizeof move->rank, "a playlist") : OPIPE_OK;
}

opipe_status opi_playlist_moves_make(opi_playlist_maker *m) {
  const opi_lists *l = m->lists;
  m->move_group = OPI_ARENA_ARRAY(&m->scratch, uint32_t, l->n_moves);
  if (m->move_group == NULL)
    return opi_fail_nomem(m->err, l->n_moves * sizeof *m->move_group, "a playlist");
  for (uint32_t i = 0; i < l->n_moves; ++i) {
    uint32_t like = 0;
    while (like < i && !are_alike(m, &l->moves[like], &l->moves[i]))
      ++like;
    m->move_group[i] = like < i ? m->move_group[like] : m->out->n_groups;
    if (like < i)
      continue;
    OPI_TRY(add_group(m, &l->moves[i], OPI_PLAY_OUT));
    OPI_TRY(add_group(m, &l->moves[i], OPI_PLAY_IN));
  }
  return OPIPE_OK;
}

opipe_status opi_playlist_move(opi_playlist_maker *m, const opi_step *step) {
  const uint32_t per_request = m->plan->n_microbatches / m->lists->n_positions;
  const bool back = step->kind == OPI_ACT_RELOAD || step->kind == OPI_ACT_RETURN;
  const bool begins = step->kind == OPI_ACT_OFFLOAD || step->kind == OPI_ACT_RELOAD;
  const opi_playlist_item item = {
      .kind = begins ? OPI_PLAY_START : OPI_PLAY_JOIN,
      .next = (uint8_t)(m->twice ? step->next : 0),
      .at = m->move_group[step->route] + back,
      .microbatch = m->lists->moves[step->route].microbatch % per_request};
  return opi_playlist_add(m, &item);
}
