/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor groups in a playlist: a group for every collect of a place and pass, which its members
 * come to once for each micro-batch. */
#include <string.h>

#include "loader/ops/collective.h"
#include "partition/lists/playlist_build.h"

/* The piece and pass of a meeting, as an index. */
static size_t place_of(const opi_playlist_maker *m, const opi_list_meeting *meeting) {
  const size_t at = meeting->at / opi_plan_width(m->plan->whole);
  return (at * OPI_PROGRAMS + meeting->pass) * m->plan->n_replicas + meeting->replica;
}

static bool is_group(const opi_list_meeting *meeting) {
  return meeting->n_values != 0;
}

static opipe_status add_groups(opi_playlist_maker *m, const opi_list_meeting *meeting) {
  static const uint32_t hows[] = {[OPI_COLLECTIVE_SUM] = OPI_PLAY_SUM,
                                  [OPI_COLLECTIVE_GATHER] = OPI_PLAY_GATHER,
                                  [OPI_COLLECTIVE_SCATTER] = OPI_PLAY_SCATTER};
  const size_t n_bytes = meeting->n_ranks * sizeof *meeting->ranks;
  for (uint32_t i = 0; i < meeting->n_values;) {
    const opi_meeting_call call = opi_meeting_call_at(meeting, i);
    if (!opi_arena_grow(m->arena, (void **)&m->out->groups, &m->room_groups, m->out->n_groups + 1,
                        sizeof *m->out->groups))
      return opi_fail_nomem(m->err, n_bytes, "a playlist");
    opi_playlist_group *group = &m->out->groups[m->out->n_groups++];
    *group = (opi_playlist_group){.stage = meeting->stage,
                                  .each = true,
                                  .backward = meeting->pass != OPI_PROGRAM_F,
                                  .how = hows[call.kind],
                                  .n_bytes = call.n_bytes,
                                  .n_ranks = meeting->n_ranks,
                                  .ranks = opi_arena_copy(m->arena, meeting->ranks, n_bytes)};
    if (group->ranks == NULL)
      return opi_fail_nomem(m->err, n_bytes, "a playlist");
    i += call.n;
  }
  return OPIPE_OK;
}

opipe_status opi_playlist_groups_make(opi_playlist_maker *m) {
  const size_t n = (size_t)m->plan->n_stages * OPI_PROGRAMS * m->plan->n_replicas;
  if (opi_plan_width(m->plan->whole) == 1)
    return OPIPE_OK;
  m->group_first = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n);
  m->group_calls = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n);
  if (m->group_first == NULL || m->group_calls == NULL)
    return opi_fail_nomem(m->err, n * sizeof *m->group_first, "a playlist");
  for (uint32_t i = 0; i < m->lists->n_meetings; ++i) {
    const opi_list_meeting *meeting = &m->lists->meetings[i];
    const size_t at = is_group(meeting) ? place_of(m, meeting) : 0;
    if (!is_group(meeting) || m->group_calls[at] != 0)
      continue;
    m->group_first[at] = m->out->n_groups;
    OPI_TRY(add_groups(m, meeting));
    m->group_calls[at] = m->out->n_groups - m->group_first[at];
  }
  return OPIPE_OK;
}

opipe_status opi_playlist_groups_step(opi_playlist_maker *m, const opi_step *step) {
  const uint32_t per_request = m->plan->n_microbatches / m->lists->n_positions;
  if (step->route == OPIPE_NONE)
    return OPIPE_OK;
  const size_t at = place_of(m, &m->lists->meetings[step->route]);
  for (uint32_t i = 0; i < m->group_calls[at]; ++i) {
    const opi_playlist_item item = {
        .kind = step->kind == OPI_ACT_SUM ? OPI_PLAY_START : OPI_PLAY_JOIN,
        .next = (uint8_t)(m->twice ? step->next : 0),
        .at = m->group_first[at] + i,
        .microbatch = step->microbatch % per_request};
    OPI_TRY(opi_playlist_add(m, &item));
  }
  return OPIPE_OK;
}
