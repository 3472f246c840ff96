/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the best candidates into strategies and says why each is not the first. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "loader/base/json.h"
#include "partition/study/auto/run.h"

static const char *const objectives[OPI_AUTO_OBJECTIVES] = {"step", "throughput", "memory",
                                                            "latency"};

const char *opi_auto_objective_name(uint32_t objective) {
  return objective < OPI_AUTO_OBJECTIVES ? objectives[objective] : "?";
}

/* ---- a point as a strategy ---- */

static opipe_status fill_devices(const opi_point *p, opi_strategy *out, opipe_error *err) {
  const uint32_t n = opi_point_ranks(p), total = n * p->copies * p->width;
  uint32_t *devices = OPI_ARENA_ARRAY(&out->arena, uint32_t, total);
  if (devices == NULL)
    return opi_fail_nomem(err, total * sizeof *devices, "a strategy");
  for (uint32_t i = 0; i < total; ++i) {
    const uint32_t outer = i / p->width;
    devices[i] = opi_point_device(p, n, outer % n, outer / n, i % p->width);
  }
  out->rank_devices = devices;
  out->n_ranks = n;
  return OPIPE_OK;
}

/* Devices of a stage in the first pipeline. */
static opipe_status fill_stage(const opi_space *s, const opi_point *p, uint32_t stage,
                               opi_strategy *out, opipe_error *err) {
  const opi_method_layout *l = p->places;
  const uint32_t rank = l->instance_rank[stage * l->n_replicas];
  const uint32_t n = p->shares == NULL ? l->n_replicas : p->shares[rank];
  opi_strategy_stage *x = &out->stages[stage];
  uint32_t *devices = OPI_ARENA_ARRAY(&out->arena, uint32_t, (size_t)n * p->width);
  uint32_t first = 0;
  if (devices == NULL)
    return opi_fail_nomem(err, n * sizeof *devices, "a strategy");
  for (uint32_t r = 0; p->shares != NULL && r < rank; ++r)
    first += p->shares[r];
  for (uint32_t i = 0; i < n * p->width; ++i) {
    const uint32_t k = i / p->width;
    const uint32_t at = p->shares == NULL ? l->instance_rank[stage * l->n_replicas + k] : first + k;
    devices[i] = out->rank_devices[at * p->width + i % p->width];
  }
  const opi_sums *sums = opi_sums_of(s, p, s->question->planning.cluster->class_of[devices[0]]);
  const uint32_t a = p->ends[stage], b = p->ends[stage + 1];
  const double share = p->shares == NULL ? 1 : n, forward = sums->forward[b] - sums->forward[a];
  *x = (opi_strategy_stage){.first = a,
                            .end = b,
                            .n_devices = n * p->width,
                            .devices = devices,
                            .forward_ns = forward / share};
  const double fixed = opi_point_fixed_bytes(s, p, sums->params[b] - sums->params[a]);
  x->memory_bytes = (uint64_t)fixed;
  if (opi_space_trains(s)) {
    x->backward_ns = (sums->input[b] - sums->input[a] + sums->weight[b] - sums->weight[a] +
                      (p->recompute ? forward : 0)) /
                     share;
    x->memory_bytes = (uint64_t)(fixed + (sums->stash[b] - sums->stash[a]) / share);
  }
  return OPIPE_OK;
}

/* Equal token slices, or those of the layout. */
static opipe_status fill_slices(const opi_space *s, const opi_point *p, opi_strategy *out,
                                opipe_error *err) {
  const uint32_t n = p->places->n_slices, tokens = s->question->planning.layers->tokens;
  opi_slice_group *group = OPI_ARENA_NEW(&out->arena, opi_slice_group);
  uint32_t *lengths = OPI_ARENA_ARRAY(&out->arena, uint32_t, n);
  if (group == NULL || lengths == NULL)
    return opi_fail_nomem(err, n * sizeof *lengths, "a strategy");
  for (uint32_t i = 0; i < n; ++i) {
    lengths[i] = p->places->slice_lengths != NULL ? p->places->slice_lengths[i]
                                                  : tokens / n + (i < tokens % n);
  }
  *group = (opi_slice_group){p->samples, n, lengths};
  out->groups = group;
  out->n_groups = 1;
  return OPIPE_OK;
}

static opipe_status fill(const opi_space *s, const opi_point *p, opi_strategy *out,
                         opipe_error *err) {
  OPI_TRY(fill_devices(p, out, err));
  for (uint32_t k = 0; k < p->places->n_stages; ++k)
    OPI_TRY(fill_stage(s, p, k, out, err));
  const bool known = p->places->slice_lengths != NULL || s->question->planning.layers->tokens > 0;
  return p->places->n_slices > 1 && known ? fill_slices(s, p, out, err) : OPIPE_OK;
}

opipe_status opi_point_strategy(const opi_space *s, const opi_point *p, const opi_judged *judged,
                                opi_strategy **out_strategy) {
  const opi_method_layout *l = p->places;
  opi_strategy *x = NULL;
  OPI_TRY(opi_strategy_new("auto", l->n_stages, s->arena.allocator, &x, s->err));
  opipe_status status = fill(s, p, x, s->err);
  x->schedule = opi_arena_strdup(&x->arena, s->methods[p->method].spec);
  if (status == OPIPE_OK && x->schedule == NULL)
    status = opi_fail_nomem(s->err, 1, "a strategy");
  x->chunks = l->n_replicas == 1 ? l->n_stages / l->n_ranks : 1;
  x->pipelines = p->copies;
  x->width = p->width;
  x->samples = p->samples;
  x->microbatches = p->microbatches;
  x->recompute = p->recompute;
  x->sharded = p->sharded;
  x->scattered = p->scattered;
  x->counts_bytes = s->question->objective == OPI_AUTO_MEMORY;
  x->objective = opi_judged_key(s, judged);
  x->step_ns = judged->step_ns;
  x->memory_bytes = (uint64_t)judged->bytes;
  if (status < 0) {
    opi_strategy_free(x);
    return status;
  }
  *out_strategy = x;
  return OPIPE_OK;
}

/* ---- why a candidate is not the first ---- */

static const char *write_reason(opi_arena *arena, uint32_t objective, const opi_candidate *best,
                                const opi_candidate *c) {
  const opi_judged *a = &best->judged, *b = &c->judged;
  const double step = b->step_ns - a->step_ns, compute = b->compute_ns - a->compute_ns;
  const double exposed = b->exposed_ns - a->exposed_ns, idle = step - compute - exposed;
  const double mib = (b->bytes - a->bytes) / (1 << 20);
  if (objective == OPI_AUTO_MEMORY && mib > 0)
    return opi_arena_printf(arena, "%.1f MiB more on its fullest device", mib);
  if (c->key == best->key) {
    return mib > 0   ? opi_arena_printf(arena, "as good; %.1f MiB more on its fullest device", mib)
           : mib < 0 ? opi_arena_printf(arena, "as good, and found later; %.1f MiB less", -mib)
                     : opi_arena_strdup(arena, "as good, and found later");
  }
  const struct {
    double ns;
    const char *what;
  } parts[] = {{compute, "more computing on its busiest rank"},
               {exposed, "more reductions and updates behind the last backward"},
               {idle, "more waiting: bubbles, messages"}};
  size_t worst = 0;
  for (size_t i = 1; i < OPI_COUNT(parts); ++i)
    worst = parts[i].ns > parts[worst].ns ? i : worst;
  return opi_arena_printf(arena, "%.3f ms behind: %.3f ms %s", (c->key - best->key) * 1e-6,
                          parts[worst].ns * 1e-6, parts[worst].what);
}

static opipe_status fill_ranked(const opi_auto_run *run, opi_auto_answer *a) {
  const opi_space *s = run->space;
  for (uint32_t i = 0; i < run->n_best && i < OPI_AUTO_RANKED_MOST; ++i) {
    const opi_candidate *c = &run->best[i];
    opi_auto_ranked *to = &a->ranked[i];
    OPI_TRY(opi_point_strategy(s, &c->point, &c->judged, &to->strategy));
    a->n_ranked = i + 1;
    to->judged = c->judged;
    to->bound_ns = s->question->objective == OPI_AUTO_MEMORY ? 0 : c->point.bound;
    if (i == 0)
      continue;
    to->reason = write_reason(&a->arena, s->question->objective, &run->best[0], c);
    if (to->reason == NULL)
      return opi_fail_nomem(s->err, 1, "an answer");
  }
  return OPIPE_OK;
}

static opipe_status keep_whole(const opi_space *s, opi_auto_answer *a) {
  const char *why = s->question->planning.layers->whole;
  a->whole = why == NULL ? NULL : opi_arena_strdup(&a->arena, why);
  return why != NULL && a->whole == NULL ? opi_fail_nomem(s->err, 1, "an answer") : OPIPE_OK;
}

opipe_status opi_run_answer(opi_auto_run *run, opi_auto_answer **out_answer) {
  const opi_space *s = run->space;
  opi_auto_answer *a = opi_alloc_zero(s->arena.allocator, 1, sizeof *a);
  if (a == NULL)
    return opi_fail_nomem(s->err, sizeof *a, "an answer");
  opi_arena_init(&a->arena, s->arena.allocator, 0);
  a->objective = s->question->objective;
  a->forward = !opi_space_trains(s);
  a->n_candidates = s->n_points + run->n_neighbours;
  a->n_bounded = run->n_bounded;
  a->n_simulated = run->n_simulated;
  a->n_refused = s->n_refused + run->n_refused;
  a->n_left = run->n_left;
  a->complete = s->complete;
  a->bound = run->bound;
  a->gap = run->bound > 0 ? run->best[0].key / run->bound - 1 : INFINITY;
  a->stopped = run->stopped;
  opipe_status status = keep_whole(s, a);
  if (status == OPIPE_OK)
    status = opi_run_turns(run, &a->turns);
  if (status == OPIPE_OK)
    status = fill_ranked(run, a);
  if (status < 0) {
    opi_auto_free(a);
    return status;
  }
  *out_answer = a;
  return OPIPE_OK;
}

void opi_auto_free(opi_auto_answer *answer) {
  if (answer == NULL)
    return;
  const opipe_allocator *allocator = answer->arena.allocator;
  for (uint32_t i = 0; i < answer->n_ranked; ++i)
    opi_strategy_free(answer->ranked[i].strategy);
  opi_arena_release(&answer->arena);
  opi_free(allocator, answer, sizeof *answer);
}
