/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts for a point that is otherwise complete, by bisection on the time of the slowest stage. Each
 * stage takes as many layers as it may. A later start never moves a stage's end back, so this
 * greedy filling reaches the last layer if any cut does.
 */
#include <math.h>

#include "partition/study/auto/space.h"

enum { ROUNDS = 48, MEMO = 16384 };

typedef struct cutter {
  const opi_space *space;
  const opi_point *point;
  const opi_sums *
      *sums;     /* of the class of each stage's device; a single one if devices are equal */
  double passes; /* micro-batches that a stage computes: all of the mini-batch, or 1 */
  bool heads, held;
  uint32_t n_layers, n_stages;
  double cap;
} cutter;

static const opi_sums *sums_at(const cutter *c, uint32_t stage) {
  const opi_point *p = c->point;
  const opi_space *s = c->space;
  if (s->equal_devices)
    return c->sums[0];
  uint32_t rank = p->places->instance_rank[stage * p->places->n_replicas], first = 0;
  for (uint32_t r = 0; p->shares != NULL && r < rank; ++r)
    first += p->shares[r];
  const uint32_t device =
      opi_point_device(p, opi_point_ranks(p), p->shares == NULL ? rank : first, 0, 0);
  return c->sums[s->question->planning.cluster->class_of[device]];
}

static double share_of(const opi_point *p, uint32_t stage) {
  return p->shares == NULL ? 1 : opi_point_speed(p, p->places->instance_rank[stage]);
}

/* Time of layers [first, end) as a stage: its work and, if it is alone on its rank, the time before
 * its first forward and after its last backward. */
static double stage_ns(const cutter *c, const opi_sums *x, uint32_t stage, uint32_t first,
                       uint32_t end) {
  const double forward = x->forward[end] - x->forward[first];
  double work = forward, around = x->forward[first];
  if (opi_space_trains(c->space)) {
    work += x->input[end] - x->input[first] + x->weight[end] - x->weight[first] +
            (c->point->recompute ? forward : 0);
    around += x->input[first] + (c->point->recompute ? x->forward[first] : 0);
  }
  return work * c->passes / share_of(c->point, stage) +
         (c->heads ? around * opi_places_first_slice(c->point->places) : 0);
}

static bool stage_fits(const cutter *c, const opi_sums *x, uint32_t stage, uint32_t first,
                       uint32_t end) {
  const opi_point *p = c->point;
  if (!isfinite(c->cap))
    return true;
  const double chunks = (double)c->n_stages * p->places->n_replicas / p->places->n_ranks;
  const double fixed = opi_point_fixed_bytes(c->space, p, x->params[end] - x->params[first]);
  if (!opi_space_trains(c->space) || !c->held)
    return fixed * chunks <= c->cap;
  const double stash = (x->stash[end] - x->stash[first]) / share_of(p, stage);
  const double most = p->microbatches, wanted = c->n_stages - stage;
  const double held = most < wanted ? most : wanted;
  const double kept = p->recompute ? held * x->cut[first] + stash : held * stash;
  return chunks * fixed + kept <= c->cap;
}

/* The largest end of the stage that begins at `first` that leaves every later stage a layer. */
static uint32_t fill(const cutter *c, uint32_t stage, uint32_t first, double limit) {
  const opi_sums *x = sums_at(c, stage);
  uint32_t low = first, high = c->n_layers - (c->n_stages - 1 - stage);
  while (low < high) { /* find the largest allowed end */
    const uint32_t end = low + (high - low + 1) / 2;
    if (stage_ns(c, x, stage, first, end) <= limit && stage_fits(c, x, stage, first, end))
      low = end;
    else
      high = end - 1;
  }
  return low;
}

static bool reach(const cutter *c, double limit, uint32_t *ends) {
  ends[0] = 0;
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    ends[s + 1] = fill(c, s, ends[s], limit);
    if (ends[s + 1] == ends[s])
      return false;
  }
  return ends[c->n_stages] == c->n_layers;
}

static bool balance(const opi_space *space, const opi_point *point, bool alone, bool held,
                    uint32_t *out_ends) {
  const opi_sums *sums[64] = {NULL};
  const opi_cluster *cluster = space->question->planning.cluster;
  cutter c = {.space = space,
              .point = point,
              .sums = sums,
              .passes = alone ? point->microbatches : 1,
              .heads = alone,
              .held = held,
              .n_layers = space->question->planning.layers->n_layers,
              .n_stages = point->places->n_stages,
              .cap = INFINITY};
  if (c.n_stages > c.n_layers || cluster->n_classes > OPI_COUNT(sums))
    return false;
  for (uint32_t k = 0; k < cluster->n_classes; ++k)
    sums[k] = opi_sums_of(space, point, k);
  sums[0] = space->equal_devices ? sums[cluster->class_of[0]] : sums[0];
  for (uint32_t i = 0; i < space->question->planning.n_devices; ++i)
    c.cap = fmin(c.cap, space->caps[i]);
  double low = 0, high = 0;
  for (uint32_t k = 0; k < cluster->n_classes; ++k) {
    if (sums[k] != NULL) {
      high = fmax(high, stage_ns(&c, sums[k], 0, 0, c.n_layers) + sums[k]->forward[c.n_layers] * 2 +
                            sums[k]->input[c.n_layers]);
    }
  }
  if (!reach(&c, high, out_ends))
    return false;
  for (uint32_t i = 0; i < ROUNDS && high - low > high * 1e-9; ++i) {
    const double middle = low + (high - low) / 2;
    if (reach(&c, middle, out_ends))
      high = middle;
    else
      low = middle;
  }
  return reach(&c, high, out_ends);
}

/* ---- cuts shared by similar shapes ---- */

typedef struct opi_cut_memo {
  double first;
  uint32_t n_stages, n_ranks, n_replicas, versions, samples, width, microbatches, copies, flags;
  const uint32_t *ends; /* NULL: no cut fits */
} opi_cut_memo;

static opi_cut_memo key_of(const opi_point *p, bool alone, bool held) {
  const opi_method_layout *l = p->places;
  return (opi_cut_memo){
      .first = alone ? opi_places_first_slice(l) : 0,
      .n_stages = l->n_stages,
      .n_ranks = l->n_ranks,
      .n_replicas = l->n_replicas,
      .versions = l->versions,
      .samples = p->samples,
      .width = p->width,
      .microbatches = alone || held ? p->microbatches : 0,
      .copies = p->sharded ? p->copies : 0,
      .flags = 8u | (alone ? 1u : 0u) | (held ? 2u : 0u) | (p->recompute ? 4u : 0u)};
}

static opi_cut_memo *memo_of(opi_space *s, const opi_cut_memo *key) {
  const uint32_t words[] = {key->n_stages, key->n_ranks,      key->samples, key->width,
                            key->versions, key->microbatches, key->copies,  key->flags};
  uint64_t h = 0;
  for (size_t i = 0; i < OPI_COUNT(words); ++i)
    h = (h ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 29;
  if (s->cut_memo == NULL)
    s->cut_memo = OPI_ARENA_ARRAY(&s->arena, opi_cut_memo, MEMO);
  return s->cut_memo == NULL ? NULL : &s->cut_memo[h % MEMO];
}

static bool same_key(const opi_cut_memo *a, const opi_cut_memo *b) {
  return a->first == b->first && a->n_stages == b->n_stages && a->n_ranks == b->n_ranks &&
         a->n_replicas == b->n_replicas && a->versions == b->versions && a->samples == b->samples &&
         a->width == b->width && a->microbatches == b->microbatches && a->copies == b->copies &&
         a->flags == b->flags;
}

opipe_status opi_cut_balanced(opi_space *s, const opi_point *p, bool held, const uint32_t **out) {
  const bool alone = p->places->n_stages == p->places->n_ranks && p->places->n_replicas == 1 &&
                     p->places->versions == OPIPE_VERSIONS_ONE;
  const size_t n = (size_t)p->places->n_stages + 1;
  opi_cut_memo key = key_of(p, alone, held);
  opi_cut_memo *memo = memo_of(s, &key);
  if (memo == NULL)
    return opi_fail_nomem(s->err, MEMO * sizeof *memo, "a planner");
  *out = memo->ends;
  if (s->equal_devices && p->shares == NULL && same_key(memo, &key))
    return OPIPE_OK;
  uint32_t *ends = OPI_ARENA_ARRAY(&s->arena, uint32_t, n);
  if (ends == NULL)
    return opi_fail_nomem(s->err, n * sizeof *ends, "a planner");
  *out = key.ends = balance(s, p, alone, held, ends) ? ends : NULL;
  *memo = key;
  return OPIPE_OK;
}
