/* SPDX-License-Identifier: Apache-2.0 */
/* What is ranked behind the best. A bound says that a candidate is no better, not how good it is;
 * once the best one is found the others are left out unplayed, and which of them had been played
 * before is chance. So of each kind the one with the best guess is played in any case.
 */
#include "partition/search/auto/run.h"

enum { KINDS_MOST = 4 * OPI_ROUND };

typedef struct others {
  opi_run *run;
  const opi_point *kinds[KINDS_MOST];
  uint32_t n_kinds;
} others;

static bool is_known(const others *o, const opi_point *p) {
  bool known = false;
  for (uint32_t k = 0; k < o->n_kinds && !known; ++k)
    known = p->method == o->kinds[k]->method && opi_points_alike(p, o->kinds[k]);
  return known;
}

static bool is_ranked(const opi_run *run, const opi_point *p) {
  bool ranked = false;
  for (uint32_t i = 0; i < run->n_best && !ranked; ++i)
    ranked = run->best[i].from == p;
  return ranked;
}

/* One that was played and is not ranked is played again: what it stands for may be ranked. */
static void offer(others *o, opi_point *p) {
  opi_run *run = o->run;
  o->kinds[o->n_kinds++] = p;
  if (is_ranked(run, p))
    return;
  run->n_bounded -= p->fate == OPI_FATE_NONE;
  run->round[run->n_round] = (opi_candidate){.point = *p, .from = p};
  run->round[run->n_round++].point.index |= OPI_LATER;
}

opipe_status opi_run_others(opi_run *run, uint64_t work_most) {
  others o = {.run = run};
  opi_space *s = run->space;
  for (uint32_t i = 0; i < s->n_points && o.n_kinds < KINDS_MOST; ++i) {
    opi_point *p = &s->points[i]; /* by guess, behind the planners' own */
    if (p->origin != NULL || p->fate == OPI_FATE_REFUSED || is_known(&o, p))
      continue;
    offer(&o, p);
    if (run->n_round < OPI_ROUND)
      continue;
    OPI_TRY(opi_run_round(run));
    if (run->work >= work_most || opi_space_spent(s, 1))
      return OPIPE_OK;
  }
  return run->n_round == 0 ? OPIPE_OK : opi_run_round(run);
}
