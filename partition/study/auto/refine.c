/* SPDX-License-Identifier: Apache-2.0 */
/* Explores the neighbours of the best candidates, then of the better ones found, until none
 * improves.
 */
#include <math.h>
#include <string.h>

#include "partition/study/auto/run.h"

enum { STAGES_ALL = 16, SEEN_MOST = OPI_SEEN_ROOM / 4 * 3 };
enum { OFFERED = 1, EXPANDED = 2 };

typedef struct refiner {
  opi_auto_run *run;
  uint64_t work_most;
  double limit; /* key of the candidate whose neighbours are offered */
} refiner;

static bool is_spent(const refiner *r) {
  if (opi_space_spent(r->run->space, 1))
    r->run->stopped = OPI_STOPPED_CLOCK;
  return r->run->work >= r->work_most || r->run->stopped == OPI_STOPPED_CLOCK ||
         r->run->n_seen >= SEEN_MOST;
}

/* ---- points seen before ---- */

static uint64_t hash_numbers(uint64_t hash, const uint32_t *numbers, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    hash = (hash ^ numbers[i]) * UINT64_C(1099511628211); /* FNV-1a */
  return hash;
}

/* Finds the slot of the point's hash in the run's table. */
static uint64_t *seen_at(opi_auto_run *run, const opi_point *p, uint32_t what, uint64_t *out_hash) {
  const uint32_t more[] = {what, p->place, p->scattered};
  uint64_t hash = hash_numbers(opi_point_kind(p), more, 3);
  if (p->order != run->space->identity)
    hash = hash_numbers(hash, p->order, opi_point_ranks(p) * p->width);
  hash = hash_numbers(hash, p->ends, p->places->n_stages + 1);
  if (p->shares != NULL)
    hash = hash_numbers(hash, p->shares, p->places->n_ranks);
  hash = (hash ^ (hash >> 29)) | 1;
  uint32_t at = (uint32_t)(hash >> 8) % OPI_SEEN_ROOM;
  while (run->seen[at] != 0 && run->seen[at] != hash)
    at = (at + 1) % OPI_SEEN_ROOM;
  *out_hash = hash;
  return &run->seen[at];
}

/* True if it was seen in that role before; marks it. The table must have room. */
static bool is_seen(opi_auto_run *run, const opi_point *p, uint32_t what) {
  uint64_t hash;
  uint64_t *at = seen_at(run, p, what, &hash);
  const bool seen = *at == hash;
  run->n_seen += !seen;
  *at = hash;
  return seen;
}

static opipe_status flush(refiner *r) {
  return r->run->n_round == 0 ? OPIPE_OK : opi_run_round(r->run);
}

/* Adds a neighbour to the next round if it fits and its bound is better. */
static opipe_status offer(refiner *r, opi_point point) {
  opi_space *s = r->run->space;
  opi_bounds bounds;
  if (is_spent(r) || opi_run_saw(r->run, &point))
    return OPIPE_OK;
  OPI_TRY(opi_point_bound(s, &point, &bounds));
  if (bounds.bytes > 0)
    return OPIPE_OK;
  point.bound = bounds.ns;
  point.guess = bounds.guess;
  point.index = s->n_points + r->run->n_neighbours++;
  if (point.bound < r->limit)
    r->run->round[r->run->n_round++] = (opi_candidate){.point = point};
  else
    ++r->run->n_bounded;
  return r->run->n_round == OPI_ROUND ? flush(r) : OPIPE_OK;
}

bool opi_run_saw(opi_auto_run *run, const opi_point *point) {
  return run->n_seen >= SEEN_MOST || is_seen(run, point, OFFERED);
}

/* ---- cuts ---- */

/* Moves boundaries [first, end) by one layer, forward or back. */
static opipe_status shift(refiner *r, const opi_point *p, uint32_t first, uint32_t end,
                          int32_t by) {
  const uint32_t n = p->places->n_stages;
  opi_point q = *p;
  uint32_t *ends = opi_arena_copy(&r->run->space->arena, p->ends, (n + 1) * sizeof *ends);
  if (ends == NULL)
    return opi_fail_nomem(r->run->space->err, n * sizeof *ends, "a planner");
  for (uint32_t i = first; i < end; ++i)
    ends[i] += (uint32_t)by;
  for (uint32_t i = 0; i < n; ++i) {
    if (ends[i] >= ends[i + 1])
      return OPIPE_OK;
  }
  q.ends = ends;
  return offer(r, q);
}

static double stage_work(const refiner *r, const opi_point *p, uint32_t stage) {
  const opi_cluster *c = r->run->space->question->planning.cluster;
  const uint32_t rank = p->places->instance_rank[stage * p->places->n_replicas];
  uint32_t first = p->shares == NULL ? rank : 0;
  for (uint32_t k = 0; p->shares != NULL && k < rank; ++k)
    first += p->shares[k];
  const uint32_t device = opi_point_device(p, opi_point_ranks(p), first, 0, 0);
  const opi_sums *x = opi_sums_of(r->run->space, p, c->class_of[device]);
  const uint32_t a = p->ends[stage], b = p->ends[stage + 1];
  return (x->forward[b] - x->forward[a] + x->input[b] - x->input[a] + x->weight[b] - x->weight[a]) /
         opi_point_speed(p, rank);
}

/* Moves every boundary both ways. With many stages, only those of the slowest stage, and one layer
 * from it to each of the fastest stages. */
static opipe_status move_cuts(refiner *r, const opi_point *p) {
  const uint32_t n = p->places->n_stages;
  uint32_t slow = 0, fast = 0;
  for (uint32_t i = 1; i < n; ++i) {
    slow = stage_work(r, p, i) > stage_work(r, p, slow) ? i : slow;
    fast = stage_work(r, p, i) < stage_work(r, p, fast) ? i : fast;
    if (n > STAGES_ALL)
      continue;
    OPI_TRY(shift(r, p, i, i + 1, 1));
    OPI_TRY(shift(r, p, i, i + 1, -1));
  }
  if (slow > 0)
    OPI_TRY(shift(r, p, slow, slow + 1, 1));
  if (slow + 1 < n)
    OPI_TRY(shift(r, p, slow + 1, slow + 2, -1));
  return slow < fast   ? shift(r, p, slow + 1, fast + 1, -1)
         : slow > fast ? shift(r, p, fast + 1, slow + 1, 1)
                       : OPIPE_OK;
}

/* ---- replicas ---- */

/* Moves a replica from one rank to another, or adds an idle one. */
static opipe_status move_share(refiner *r, const opi_point *p, uint32_t from, uint32_t to) {
  const uint32_t n = p->places->n_ranks;
  const opi_auto *q = r->run->space->question;
  opi_point next = *p;
  uint32_t *shares = OPI_ARENA_ARRAY(&r->run->space->arena, uint32_t, n);
  if (shares == NULL)
    return opi_fail_nomem(r->run->space->err, n * sizeof *shares, "a planner");
  for (uint32_t i = 0; i < n; ++i)
    shares[i] = p->shares == NULL ? 1 : p->shares[i];
  if (to == from || (from < n && shares[from] == 1) ||
      shares[to] >= opi_point_rows(r->run->space, p))
    return OPIPE_OK;
  if (from < n)
    --shares[from];
  else if (opi_point_ranks(p) * p->width >= q->planning.n_devices)
    return OPIPE_OK;
  ++shares[to];
  next.shares = shares;
  if (from == n && p->order != r->run->space->identity) {
    /* unknown which device is last, so keep the order */
    next.order = r->run->space->identity;
  }
  return offer(r, next);
}

static opipe_status move_shares(refiner *r, const opi_point *p) {
  const uint32_t n = p->places->n_ranks;
  const opi_auto *q = r->run->space->question;
  if (!opi_space_trains(r->run->space) || p->copies > 1 || p->places->n_replicas > 1 ||
      p->places->n_slices > 1 || p->sharded || n > STAGES_ALL)
    return OPIPE_OK;
  for (uint32_t to = 0; to < n; ++to) {
    for (uint32_t from = 0; from < n; ++from)
      OPI_TRY(move_share(r, p, from, to));
    if (q->fixed.n_ranks == 0)
      OPI_TRY(move_share(r, p, n, to));
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

static bool is_expanded(const refiner *r, const opi_candidate *c) {
  uint64_t hash;
  return *seen_at(r->run, &c->point, EXPANDED, &hash) == hash;
}

/* The best unexpanded candidate of a list, if it is better than `than`. */
static const opi_candidate *better_of(const refiner *r, const opi_candidate *list, uint32_t n,
                                      const opi_candidate *than) {
  for (uint32_t i = 0; i < n; ++i) {
    if ((than == NULL || list[i].key < than->key) && !is_expanded(r, &list[i]))
      than = &list[i];
  }
  return than;
}

/* Also considers the leaders of other shapes: a trailing candidate may win once its cut improves.
 */
static const opi_candidate *next_parent(const refiner *r) {
  const opi_auto_run *run = r->run;
  return better_of(r, run->leaders, run->n_leaders, better_of(r, run->best, run->n_best, NULL));
}

opipe_status opi_refine(opi_auto_run *run, uint64_t work_most) {
  refiner r = {.run = run, .work_most = work_most};
  const opi_candidate *parent;
  while (!is_spent(&r) && (parent = next_parent(&r)) != NULL) {
    const opi_point point = parent->point;
    r.limit = parent->key;
    (void)is_seen(run, &point, EXPANDED);
    OPI_TRY(move_cuts(&r, &point));
    OPI_TRY(move_shares(&r, &point));
    OPI_TRY(flush(&r));
  }
  return OPIPE_OK;
}
