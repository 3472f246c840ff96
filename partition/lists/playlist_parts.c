/* SPDX-License-Identifier: Apache-2.0 */
/* Last backwards in a playlist, in the parts between which sums of gradients start. */
#include <stdlib.h>
#include <string.h>

#include "partition/lists/playlist_build.h"

static size_t program_at(const opi_step *step) {
  return (size_t)step->stage * OPI_PROGRAMS + step->pass;
}

static int by_share(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return a < b ? -1 : a > b;
}

/* Lists the cuts of every program, without repeats. */
static opipe_status list_cuts(opi_playlist_maker *m, uint32_t n_points) {
  opi_playlist_points *p = &m->points;
  const size_t n = (size_t)m->plan->n_stages * OPI_PROGRAMS;
  uint32_t at = 0;
  p->cut_first = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n + 1);
  p->cuts = OPI_ARENA_ARRAY(&m->scratch, double, (size_t)n_points + 1);
  if (p->cut_first == NULL || p->cuts == NULL)
    return opi_fail_nomem(m->err, n * sizeof *p->cuts, "a playlist");
  for (size_t program = 0; program < n && n_points != 0; ++program) {
    const uint32_t first = p->cut_first[program] = at;
    for (uint32_t i = 0; i < n_points; ++i) {
      if (program_at(&m->lists->steps[p->list[i].step]) == program && p->list[i].at > 0 &&
          p->list[i].at < 1)
        p->cuts[at++] = p->list[i].at;
    }
    if (at > first + 1)
      qsort(&p->cuts[first], at - first, sizeof *p->cuts, by_share);
    uint32_t kept = first;
    for (uint32_t i = first; i < at; ++i) {
      if (i == first || p->cuts[i] > p->cuts[kept - 1])
        p->cuts[kept++] = p->cuts[i];
    }
    at = kept;
    p->cut_first[program + 1] = at;
  }
  return OPIPE_OK;
}

/* Adds the points in front of a rank's REDUCE, if all earlier ones of the stage have come. */
static opipe_status find_points(opi_playlist_maker *m, uint32_t rank, uint32_t reduce,
                                uint32_t *io_room, uint32_t *io_n) {
  opi_playlist_points *p = &m->points;
  const opi_step *step = &m->lists->steps[reduce];
  const uint32_t whole = step->stage / opi_playlist_pieces(m);
  const uint32_t width = opi_plan_width(m->plan->whole), w = whole * width + rank % width;
  const uint32_t first = m->sums.slot_first[w];
  opi_passed *list = NULL;
  uint32_t n = 0, room = *io_room;
  if (++m->sums.n_come[w] < opi_playlist_reduces(m, rank, whole))
    return OPIPE_OK;
  const opi_passed_query from = {.plan = m->plan,
                                 .lists = m->lists,
                                 .cuts = (const opi_cut *const *)m->model->cuts,
                                 .rank = rank,
                                 .reduce = reduce,
                                 .slots = &m->sums.slots[first],
                                 .buckets = &m->sums.buckets[first],
                                 .n_slots = m->sums.slot_first[w + 1] - first};
  OPI_TRY(opi_passed_find(&from, &m->scratch, &list, &n, m->err));
  if (!opi_arena_grow(&m->scratch, (void **)&p->list, io_room, *io_n + n, sizeof *p->list) ||
      !opi_arena_grow(&m->scratch, (void **)&p->shard, &room, *io_n + n, sizeof *p->shard))
    return opi_fail_nomem(m->err, n * sizeof *p->list, "a playlist");
  for (uint32_t i = 0; i < n; ++i, ++*io_n) {
    p->list[*io_n] = list[i];
    p->shard[*io_n] = w;
    p->first[list[i].step + 1] = *io_n + 1;
  }
  return OPIPE_OK;
}

opipe_status opi_playlist_points_find(opi_playlist_maker *m) {
  opi_playlist_points *p = &m->points;
  const opi_lists *l = m->lists;
  uint32_t room = 0, n = 0;
  if (!m->plan->trains || !m->in_parts || m->sums.bucket_first[opi_playlist_shards(m)] == 0)
    return OPIPE_OK;
  p->first = OPI_ARENA_ARRAY(&m->scratch, uint32_t, (size_t)l->n_steps + 1);
  if (p->first == NULL)
    return opi_fail_nomem(m->err, l->n_steps * sizeof *p->first, "a playlist");
  for (uint32_t rank = 0; rank < m->plan->n_ranks; ++rank) {
    for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
      if (l->steps[i].kind == OPI_ACT_REDUCE)
        OPI_TRY(find_points(m, rank, i, &room, &n));
    }
    memset(m->sums.n_come, 0, opi_playlist_shards(m) * sizeof *m->sums.n_come);
  }
  for (uint32_t i = 1; i <= l->n_steps; ++i)
    p->first[i] = p->first[i] < p->first[i - 1] ? p->first[i - 1] : p->first[i];
  return list_cuts(m, n);
}

/* ---- works ---- */

static uint32_t n_cuts(const opi_playlist_maker *m, size_t program, const double **out_cuts) {
  const opi_playlist_points *p = &m->points;
  if (p->cut_first == NULL)
    return 0;
  *out_cuts = &p->cuts[p->cut_first[program]];
  return p->cut_first[program + 1] - p->cut_first[program];
}

opipe_status opi_playlist_works_add(opi_playlist_maker *m, const opi_playlist_work *whole) {
  const double *cuts = NULL;
  const uint32_t n = n_cuts(m, (size_t)whole->piece * OPI_PROGRAMS + whole->pass, &cuts);
  double from = 0;
  if (!opi_arena_grow(m->arena, (void **)&m->out->works, &m->room_works, m->out->n_works + n + 2,
                      sizeof *m->out->works))
    return opi_fail_nomem(m->err, (n + 2) * sizeof *m->out->works, "a playlist");
  m->out->works[m->out->n_works++] = *whole;
  for (uint32_t i = 0; n != 0 && i <= n; ++i) {
    const double to = i == n ? 1 : cuts[i];
    opi_playlist_work *part = &m->out->works[m->out->n_works++];
    *part = *whole;
    part->part = i + 1;
    part->ns = whole->ns * (to - from);
    part->take_bytes = i == 0 ? whole->take_bytes : 0;
    part->give_bytes = i == n ? whole->give_bytes : 0;
    from = to;
  }
  return OPIPE_OK;
}

/* ---- items ---- */

/* Starts the sums of a step's points up to a share of its time. */
static opipe_status start(opi_playlist_maker *m, const opi_step *step, double until,
                          uint32_t *io_next, uint32_t end) {
  const opi_playlist_points *p = &m->points;
  for (; *io_next < end && p->list[*io_next].at <= until; ++*io_next)
    OPI_TRY(opi_playlist_buckets_start(m, p->shard[*io_next], step->replica, p->list[*io_next].n));
  return OPIPE_OK;
}

opipe_status opi_playlist_compute(opi_playlist_maker *m, const opi_step *step,
                                  const opi_playlist_item *item) {
  const opi_playlist_points *p = &m->points;
  const uint32_t index = (uint32_t)(step - m->lists->steps);
  uint32_t next = p->first == NULL ? 0 : p->first[index];
  const uint32_t end = p->first == NULL ? 0 : p->first[index + 1];
  const double *cuts = NULL;
  const uint32_t n = next == end ? 0 : n_cuts(m, program_at(step), &cuts);
  opi_playlist_item part = *item;
  OPI_TRY(start(m, step, 0, &next, end));
  for (uint32_t i = 0; i <= n; ++i) {
    part.part = (uint16_t)(n == 0 ? 0 : i + 1);
    OPI_TRY(opi_playlist_add(m, &part));
    OPI_TRY(start(m, step, i == n ? 1 : cuts[i], &next, end));
  }
  return OPIPE_OK;
}
