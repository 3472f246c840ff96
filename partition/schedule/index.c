/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a problem and a list: edges by stage, the replica of every micro-batch, and the
 * inputs of an action. */
#include <string.h>

#include "partition/schedule/passes.h"

enum { UNITS_MOST = 1 << 27, STAGES_MOST = 1 << 16 };

static opipe_status check_problem(const opi_problem *p, opipe_error *err) {
  if (p->n_ranks == 0 || p->n_stages == 0 || p->n_replicas == 0 || p->n_microbatches == 0 ||
      p->n_slices == 0 || p->n_parts == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "a schedule of %u ranks, %u stages, %u replicas, %u micro-batches, %u slices, "
                    "%u parts: each must be at least 1",
                    p->n_ranks, p->n_stages, p->n_replicas, p->n_microbatches, p->n_slices,
                    p->n_parts);
  }
  if (p->n_stages > STAGES_MOST || p->n_replicas > UINT16_MAX || p->n_slices > UINT16_MAX ||
      p->n_parts > UINT8_MAX) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u stages, %u replicas, %u slices, %u parts", p->n_stages,
                    p->n_replicas, p->n_slices, p->n_parts);
  }
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    for (uint32_t r = 0; r < p->n_replicas; ++r) {
      const uint32_t rank = opi_problem_rank(p, s, r);
      if (rank != OPIPE_NONE && rank >= p->n_ranks) {
        return opi_fail(err, OPIPE_E_INVALID, "stage %u, replica %u lies on rank %u of %u", s, r,
                        rank, p->n_ranks);
      }
    }
    if (p->stage_shares != NULL &&
        (p->stage_shares[s] == 0 || p->stage_shares[s] > p->n_replicas)) {
      return opi_fail(err, OPIPE_E_INVALID, "stage %u is shared by %u of %u replicas", s,
                      p->stage_shares[s], p->n_replicas);
    }
  }
  for (uint32_t e = 0; e < p->n_edges; ++e) {
    if (p->edges[e].src >= p->edges[e].dst || p->edges[e].dst >= p->n_stages) {
      return opi_fail(err, OPIPE_E_INVALID, "edge %u goes from stage %u to stage %u of %u", e,
                      p->edges[e].src, p->edges[e].dst, p->n_stages);
    }
  }
  return OPIPE_OK;
}

static opipe_status sort_edges(opi_index *x, opi_arena *arena, opipe_error *err) {
  const opi_problem *p = x->problem;
  x->in_first = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)p->n_stages + 2);
  x->out_first = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)p->n_stages + 2);
  x->in_edges = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)p->n_edges + 1);
  x->out_edges = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)p->n_edges + 1);
  if (x->in_first == NULL || x->out_first == NULL || x->in_edges == NULL || x->out_edges == NULL)
    return opi_fail_nomem(err, p->n_edges * sizeof(uint32_t), "edges of a schedule");
  for (uint32_t e = 0; e < p->n_edges; ++e) {
    ++x->in_first[p->edges[e].dst + 2];
    ++x->out_first[p->edges[e].src + 2];
  }
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    x->in_first[s + 2] += x->in_first[s + 1];
    x->out_first[s + 2] += x->out_first[s + 1];
  }
  for (uint32_t e = 0; e < p->n_edges; ++e) {
    x->in_edges[x->in_first[p->edges[e].dst + 1]++] = e;
    x->out_edges[x->out_first[p->edges[e].src + 1]++] = e;
  }
  return OPIPE_OK;
}

static uint32_t most_shares(const opi_problem *p) {
  uint32_t most = 1;
  for (uint32_t s = 0; p->stage_shares != NULL && s < p->n_stages; ++s)
    most = p->stage_shares[s] > most ? p->stage_shares[s] : most;
  return most;
}

opipe_status opi_index_build(const opi_problem *problem, const opi_do_list *list, opi_arena *arena,
                             opi_index *x, opipe_error *err) {
  OPI_TRY(check_problem(problem, err));
  *x = (opi_index){.problem = problem, .n_shares = most_shares(problem)};
  uint64_t n = x->n_shares;
  if (opi_mul_u64(n, problem->n_stages, &n) || opi_mul_u64(n, problem->n_microbatches, &n) ||
      opi_mul_u64(n, problem->n_slices, &n) || opi_mul_u64(n, problem->n_parts, &n) ||
      n > UNITS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "%u stages x %u micro-batches x %u slices x %u parts x %u shares: at most %d",
                    problem->n_stages, problem->n_microbatches, problem->n_slices, problem->n_parts,
                    x->n_shares, UNITS_MOST);
  }
  x->n_units = n;
  const size_t places = (size_t)problem->n_stages * problem->n_microbatches;
  x->replica = OPI_ARENA_ARRAY(arena, uint32_t, places);
  if (x->replica == NULL)
    return opi_fail_nomem(err, places * sizeof(uint32_t), "replicas of a schedule");
  memset(x->replica, 0xff, places * sizeof(uint32_t));
  for (uint32_t i = 0; i < list->n_items; ++i) {
    const opi_do *item = &list->items[i];
    if (!opi_do_is_compute(item->kind) || item->stage >= problem->n_stages ||
        item->microbatch >= problem->n_microbatches || item->replica >= problem->n_replicas)
      continue;
    uint32_t *known = &x->replica[(size_t)item->stage * problem->n_microbatches + item->microbatch];
    *known = *known == OPIPE_NONE ? item->replica : *known;
  }
  return sort_edges(x, arena, err);
}

/* Replica i of n has rows [i/n, (i+1)/n) of a micro-batch. */
uint32_t opi_peers(const opi_index *x, uint32_t stage, uint32_t microbatch, uint32_t other,
                   uint32_t with, uint32_t *out_first) {
  const opi_problem *p = x->problem;
  if (p->stage_shares == NULL) {
    *out_first = x->replica[(size_t)stage * p->n_microbatches + microbatch];
    return *out_first == OPIPE_NONE ? 0 : 1;
  }
  const uint32_t here = p->stage_shares[stage], there = p->stage_shares[other];
  const uint32_t first = (uint32_t)((uint64_t)with * here / there);
  const uint32_t end = (uint32_t)(((uint64_t)(with + 1) * here + there - 1) / there);
  *out_first = first;
  return end - first;
}

/* Shows the inputs that arrive along an edge from the replicas of the stage at its other end. */
static bool needs_along(const opi_index *x, const opi_do *a, uint32_t edge, uint32_t phase,
                        opi_need_fn fn, void *ctx) {
  const bool forward = phase == OPI_PHASE_F;
  const uint32_t other = forward ? x->problem->edges[edge].src : x->problem->edges[edge].dst;
  opi_need need = {.stage = other,
                   .replica = OPIPE_NONE,
                   .slice = a->slice,
                   .part = forward ? 0 : a->part,
                   .phase = phase,
                   .edge = edge};
  uint32_t first = 0;
  const uint32_t count = opi_peers(x, other, a->microbatch, a->stage, a->replica, &first);
  bool more = count > 0 || fn(ctx, a, &need);
  for (uint32_t r = first; more && r < first + count; ++r) {
    need.replica = r;
    more = fn(ctx, a, &need);
  }
  return more;
}

static bool needs_own(const opi_do *a, uint32_t slice, uint32_t phase, opi_need_fn fn, void *ctx) {
  const opi_need need = {.stage = a->stage,
                         .replica = a->replica,
                         .slice = slice,
                         .part = phase == OPI_PHASE_F ? 0 : a->part,
                         .phase = phase,
                         .edge = OPIPE_NONE};
  return fn(ctx, a, &need);
}

bool opi_each_need(const opi_index *x, const opi_do *a, opi_need_fn fn, void *ctx) {
  bool more = true;
  if (a->kind == OPI_DO_F) {
    more = a->slice == 0 || needs_own(a, a->slice - 1u, OPI_PHASE_F, fn, ctx);
    for (uint32_t i = x->in_first[a->stage]; more && i < x->in_first[a->stage + 1]; ++i)
      more = needs_along(x, a, x->in_edges[i], OPI_PHASE_F, fn, ctx);
  } else if (a->kind == OPI_DO_B || a->kind == OPI_DO_I) {
    more = needs_own(a, a->slice, OPI_PHASE_F, fn, ctx) &&
           (a->slice + 1u == x->problem->n_slices ||
            needs_own(a, a->slice + 1u, OPI_PHASE_I, fn, ctx));
    for (uint32_t i = x->out_first[a->stage]; more && i < x->out_first[a->stage + 1]; ++i)
      more = needs_along(x, a, x->out_edges[i], OPI_PHASE_I, fn, ctx);
  }
  return more;
}
