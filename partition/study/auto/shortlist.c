/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which candidates are judged: the papers' plans first; then the best guess of each
 * kind (schedule, ranks, copies, rows...), then all others. A search that runs out of work has thus
 * seen more kinds; better cuts are found later as neighbours.
 */
#include <stdlib.h>

#include "partition/study/auto/run.h"

static int compare_points(const void *left, const void *right) {
  const opi_point *a = left, *b = right;
  const bool named[2] = {a->origin != NULL, b->origin != NULL};
  if (named[0] != named[1])
    return named[0] ? -1 : 1;
  if (a->first != b->first)
    return a->first ? -1 : 1;
  if (a->guess != b->guess)
    return a->guess < b->guess ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

/* True if the kind is present; inserts it if not. */
static bool is_seen(uint64_t *kinds, uint64_t room, uint64_t kind) {
  uint64_t at = kind % room;
  while (kinds[at] != 0 && kinds[at] != kind)
    at = (at + 1) % room;
  const bool seen = kinds[at] == kind;
  kinds[at] = kind;
  return seen;
}

opipe_status opi_run_sort(opi_auto_run *run) {
  opi_space *s = run->space;
  const uint64_t room = 2 * (uint64_t)s->n_points;
  if (s->n_points == 0)
    return OPIPE_OK;
  uint64_t *kinds = opi_alloc_zero(s->arena.allocator, room, sizeof *kinds);
  if (kinds == NULL)
    return opi_fail_nomem(s->err, room * sizeof *kinds, "a planner");
  qsort(s->points, s->n_points, sizeof *s->points, compare_points);
  for (uint32_t i = 0; i < s->n_points; ++i) {
    opi_point *p = &s->points[i];
    p->first = p->origin == NULL && !is_seen(kinds, room, opi_point_kind(p));
  }
  qsort(s->points, s->n_points, sizeof *s->points, compare_points);
  opi_free(s->arena.allocator, kinds, room * sizeof *kinds);
  return OPIPE_OK;
}
