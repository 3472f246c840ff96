/* SPDX-License-Identifier: Apache-2.0 */
/* The runners-up. A bound says that a candidate is no better than the best, not how good it is.
 * Once the best is found, others are dropped unplayed, and which of them were played before is
 * chance. So the candidate with the best guess of each kind is always played; and before another
 * schedule is said to be behind a better one of the same shape, it is played with that one's cut.
 */
#include <string.h>

#include "partition/study/auto/run.h"

enum { KINDS_MOST = 4 * OPI_ROUND };
/* Shapes within this factor of the best plan are tried under other schedules. */
#define NEAR 1.2

typedef struct others {
  opi_auto_run *run;
  uint64_t kinds[KINDS_MOST];
  uint32_t n_kinds;
} others;

static bool is_known(const others *o, uint64_t kind) {
  bool known = false;
  for (uint32_t k = 0; k < o->n_kinds && !known; ++k)
    known = o->kinds[k] == kind;
  return known;
}

static bool is_ranked(const opi_auto_run *run, const opi_point *p) {
  bool ranked = false;
  for (uint32_t i = 0; i < run->n_best && !ranked; ++i)
    ranked = run->best[i].from == p;
  return ranked;
}

static void offer(opi_auto_run *run, const opi_point *p, opi_point *from) {
  run->round[run->n_round] = (opi_candidate){.point = *p, .from = from};
  run->round[run->n_round++].point.index |= OPI_LATER;
}

/* Offers a point of the space; plays the round once it is full. *io_left: work is left. */
static opipe_status offer_in_turn(opi_auto_run *run, opi_point *p, uint64_t work_most,
                                  bool *io_left) {
  offer(run, p, p);
  if (run->n_round < OPI_ROUND)
    return OPIPE_OK;
  OPI_TRY(opi_run_round(run));
  *io_left = run->work < work_most && !opi_space_spent(run->space, 1);
  return OPIPE_OK;
}

/* ---- the best guess of every kind ---- */

/* A point that was played but is not ranked is played again, because its kind may be ranked now. */
static opipe_status play_kinds(others *o, uint64_t work_most) {
  opi_auto_run *run = o->run;
  opi_space *s = run->space;
  bool left = true;
  for (uint32_t i = 0; left && i < s->n_points && o->n_kinds < KINDS_MOST; ++i) {
    opi_point *p = &s->points[i]; /* sorted by guess; the planners' own come first */
    const uint64_t kind = opi_point_kind(p);
    if (p->origin != NULL || p->fate == OPI_POINT_REFUSED || is_known(o, kind))
      continue;
    o->kinds[o->n_kinds++] = kind;
    if (is_ranked(run, p))
      continue;
    run->n_bounded -= p->fate == OPI_POINT_NONE;
    OPI_TRY(offer_in_turn(run, p, work_most, &left));
  }
  return run->n_round == 0 ? OPIPE_OK : opi_run_round(run);
}

/* ---- the best guess of every shape ---- */

static bool is_led(const opi_auto_run *run, const opi_point *p) {
  bool led = false;
  for (uint32_t i = 0; i < run->n_leaders && !led; ++i)
    led = opi_leads_as(&run->leaders[i].point, p);
  return led;
}

/* Offers shapes without a leader so far; their bounds had excluded them. */
opipe_status opi_run_shapes(opi_auto_run *run, uint64_t work_most) {
  opi_space *s = run->space;
  bool left = true;
  for (uint32_t i = 0; left && i < s->n_points && run->n_leaders < OPI_LEADERS_MOST; ++i) {
    opi_point *p = &s->points[i];
    bool in_round = false;
    for (uint32_t k = 0; k < run->n_round && !in_round; ++k)
      in_round = opi_leads_as(&run->round[k].point, p);
    if (p->fate != OPI_POINT_NONE || in_round || is_led(run, p))
      continue;
    --run->n_bounded;
    OPI_TRY(offer_in_turn(run, p, work_most, &left));
  }
  return run->n_round == 0 ? OPIPE_OK : opi_run_round(run);
}

/* ---- their cuts ---- */

/* True if it lays out the same stages on the same ranks, cut elsewhere. */
static bool takes_cut(const opi_candidate *c, const opi_candidate *better) {
  const opi_point *p = &c->point, *q = &better->point;
  const size_t n = (size_t)p->places->n_stages + 1;
  return opi_points_alike(p, q) && p->method != q->method &&
         p->places->n_replicas == q->places->n_replicas &&
         memcmp(p->ends, q->ends, n * sizeof *p->ends) != 0;
}

/* Plays each with the cut of the best candidate like it. */
static opipe_status play_cuts(opi_auto_run *run) {
  for (uint32_t i = 1; i < run->n_best; ++i) {
    uint32_t k = 0;
    while (k < i && !takes_cut(&run->best[i], &run->best[k]))
      ++k;
    opi_point point = run->best[i].point;
    opi_bounds bounds;
    if (k == i)
      continue;
    point.ends = run->best[k].point.ends;
    point.index = run->space->n_points + run->n_neighbours++;
    OPI_TRY(opi_point_bound(run->space, &point, &bounds));
    if (bounds.bytes > 0)
      continue;
    point.bound = bounds.ns;
    point.guess = bounds.guess;
    offer(run, &point, NULL);
    if (run->n_round == OPI_ROUND)
      OPI_TRY(opi_run_round(run));
  }
  return run->n_round == 0 ? OPIPE_OK : opi_run_round(run);
}

/* ---- other schedules for a shape that leads ---- */

/* True if the point's schedule could be laid out like the leader. */
static bool fits_on(const opi_point *p, const opi_point *leader) {
  const opi_method_layout *a = p->places, *b = leader->places;
  return p->method != leader->method && a->n_stages == b->n_stages && a->n_ranks == b->n_ranks &&
         a->n_replicas == b->n_replicas && a->n_slices == b->n_slices &&
         p->width == leader->width && p->copies == leader->copies &&
         p->samples == leader->samples && p->recompute == leader->recompute &&
         p->sharded == leader->sharded;
}

/* Plays it with the leader's cut and replicas, unless its bound is no better than the best. */
static opipe_status play_method(opi_auto_run *run, const opi_point *p, const opi_point *leader) {
  opi_point point = *p;
  opi_bounds bounds;
  point.ends = leader->ends;
  point.shares = leader->shares;
  point.order = leader->order;
  point.place = leader->place;
  if (opi_run_saw(run, &point))
    return OPIPE_OK;
  OPI_TRY(opi_point_bound(run->space, &point, &bounds));
  if (bounds.bytes > 0)
    return OPIPE_OK;
  point.index = run->space->n_points + run->n_neighbours++;
  point.bound = bounds.ns;
  point.guess = bounds.guess;
  run->n_bounded += !opi_run_offer(run, &point);
  return run->n_round == OPI_ROUND ? opi_run_round(run) : OPIPE_OK;
}

opipe_status opi_run_methods(opi_auto_run *run, uint64_t work_most) {
  opi_space *s = run->space;
  for (uint32_t k = 0; k < run->n_leaders; ++k) {
    const opi_point leader = run->leaders[k].point;
    for (uint32_t i = 0; i < s->n_points && run->leaders[k].key < NEAR * run->best[0].key; ++i) {
      if (run->work >= work_most || opi_space_spent(s, 1))
        break;
      if (fits_on(&s->points[i], &leader))
        OPI_TRY(play_method(run, &s->points[i], &leader));
    }
  }
  return run->n_round == 0 ? OPIPE_OK : opi_run_round(run);
}

/* ---- all of it ---- */

opipe_status opi_run_kinds(opi_auto_run *run, uint64_t work_most) {
  others o = {.run = run};
  return play_kinds(&o, work_most);
}

opipe_status opi_run_cuts(opi_auto_run *run, uint64_t work_most) {
  uint32_t indices[OPI_KEPT_MOST], n = 0;
  bool moved = true;
  while (moved && run->work < work_most && !opi_space_spent(run->space, 1)) {
    n = run->n_best;
    for (uint32_t i = 0; i < n; ++i)
      indices[i] = run->best[i].point.index;
    OPI_TRY(play_cuts(run));
    moved = n != run->n_best; /* doubles were dropped, or one is different now */
    for (uint32_t i = 0; i < n && !moved; ++i)
      moved = indices[i] != run->best[i].point.index;
  }
  return OPIPE_OK;
}
