/* SPDX-License-Identifier: Apache-2.0 */
/* Places collectives: tensor groups' around every pass, data groups' around every step. All ranks
 * of a tensor group, and all copies, share one list and so reach them in one order. Replicas have
 * lists of their own; the proof checks their order. */
#include "partition/schedule/passes.h"

typedef struct placer {
  const opi_problem *problem;
  opi_index index; /* built only if messages are scattered */
  bool *summed;    /* [instances] in the current mini-batch */
} placer;

bool opi_problem_has_groups(const opi_problem *p) {
  return p->n_copies > 1 || p->n_tensor > 1 || p->sharded;
}

bool opi_stage_sums(const opi_problem *p, uint32_t stage) {
  uint32_t n = p->n_copies > 1 ? p->n_copies : 0;
  for (uint32_t r = 0; r < p->n_replicas && n < 2; ++r)
    n += opi_problem_rank(p, stage, r) != OPIPE_NONE;
  return n > 1;
}

/* ---- around a pass ---- */

static bool is_here(void *ctx, const opi_do *a, const opi_need *need) {
  const opi_problem *p = ctx;
  return need->edge == OPIPE_NONE || need->replica == OPIPE_NONE ||
         opi_problem_rank(p, need->stage, need->replica) ==
             opi_problem_rank(p, a->stage, a->replica);
}

/* Whether the action reads another rank's message. */
static bool receives(const placer *g, const opi_do *a) {
  return a->stage < g->problem->n_stages && a->microbatch < g->problem->n_microbatches &&
         !opi_each_need(&g->index, a, is_here, (void *)(uintptr_t)g->problem);
}

static opipe_status add_group(opi_do_list *out, uint32_t kind, const opi_do *a, opipe_error *err) {
  opi_do item = *a;
  item.kind = (uint8_t)kind;
  item.version = 0;
  item.flags = a->flags & OPIPE_ACTION_NEXT_STEP;
  return opi_do_list_add(out, item, err);
}

static opipe_status add_before(const placer *g, const opi_do *a, opi_do_list *out,
                               opipe_error *err) {
  const opi_problem *p = g->problem;
  const bool forward = a->kind == OPI_DO_F || a->kind == OPI_DO_R;
  if (p->n_tensor <= 1 || a->kind == OPI_DO_W || !(p->sequence || (p->scattered && receives(g, a))))
    return OPIPE_OK;
  return add_group(out, forward ? OPI_DO_GATHER_F : OPI_DO_GATHER_B, a, err);
}

static opipe_status add_behind(const placer *g, const opi_do *a, opi_do_list *out,
                               opipe_error *err) {
  const bool forward = a->kind == OPI_DO_F || a->kind == OPI_DO_R;
  const uint32_t sum = forward ? OPI_DO_SUM_F : OPI_DO_SUM_B;
  const uint32_t scatter = forward ? OPI_DO_SCATTER_F : OPI_DO_SCATTER_B;
  if (g->problem->n_tensor <= 1 || a->kind == OPI_DO_W)
    return OPIPE_OK;
  return add_group(out, g->problem->sequence ? scatter : sum, a, err);
}

/* n: 1, or 2 for a pair. */
static opipe_status add_passes(const placer *g, const opi_do *a, uint32_t n, opi_do_list *out,
                               opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(add_before(g, &a[i], out, err));
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(opi_do_list_add(out, a[i], err));
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(add_behind(g, &a[i], out, err));
  return OPIPE_OK;
}

/* ---- around a step ---- */

static opipe_status add_of_instance(opi_do_list *out, uint32_t kind, uint32_t stage,
                                    uint32_t replica, opipe_error *err) {
  return opi_do_list_add(
      out,
      (opi_do){
          .kind = (uint8_t)kind, .stage = stage, .replica = (uint16_t)replica, .edge = OPIPE_NONE},
      err);
}

/* Whether another replica of the stage comes first on the same rank. */
static bool is_twin(const opi_problem *p, uint32_t instance) {
  for (uint32_t r = 0; r < instance % p->n_replicas; ++r) {
    if (opi_problem_rank(p, instance / p->n_replicas, r) == p->instance_rank[instance])
      return true;
  }
  return false;
}

static opipe_status add_step(placer *g, uint32_t rank, const opi_do *step, opi_do_list *out,
                             opipe_error *err) {
  const opi_problem *p = g->problem;
  const uint32_t sum = p->sharded ? OPI_DO_SCATTER : OPI_DO_REDUCE, n = p->n_replicas;
  for (uint32_t k = 0; k < p->n_stages * n; ++k) {
    if (p->instance_rank[k] == rank && !g->summed[k] && opi_stage_sums(p, k / n))
      OPI_TRY(add_of_instance(out, sum, k / n, k % n, err));
    if (p->instance_rank[k] == rank)
      g->summed[k] = false;
  }
  OPI_TRY(opi_do_list_add(out, *step, err));
  for (uint32_t k = 0; p->sharded && k < p->n_stages * n; ++k) {
    if (p->instance_rank[k] == rank && opi_stage_sums(p, k / n) && !is_twin(p, k))
      OPI_TRY(add_of_instance(out, OPI_DO_GATHER, k / n, k % n, err));
  }
  return OPIPE_OK;
}

static opipe_status add_sum(placer *g, const opi_do *a, opi_do_list *out, opipe_error *err) {
  const opi_problem *p = g->problem;
  opi_do item = *a;
  if (a->stage < p->n_stages && a->replica < p->n_replicas) {
    g->summed[a->stage * p->n_replicas + a->replica] = true;
    item.kind = p->sharded && opi_stage_sums(p, a->stage) ? OPI_DO_SCATTER : OPI_DO_REDUCE;
  }
  return opi_do_list_add(out, item, err);
}

/* ---- both ---- */

static opipe_status place_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                               opipe_error *err) {
  placer *g = ctx;
  const uint32_t end = list->rank_first[rank + 1];
  for (uint32_t i = list->rank_first[rank]; i < end; ++i) {
    const opi_do *a = &list->items[i];
    if (opi_do_is_group(a->kind) || a->kind == OPI_DO_GATHER)
      continue;
    if (opi_do_is_compute(a->kind)) {
      const bool pair = (a->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 && i + 1 < end &&
                        opi_do_is_compute(a[1].kind);
      OPI_TRY(add_passes(g, a, pair ? 2 : 1, out, err));
      i += pair;
    } else if (a->kind == OPI_DO_REDUCE || a->kind == OPI_DO_SCATTER) {
      OPI_TRY(add_sum(g, a, out, err));
    } else if (a->kind == OPI_DO_STEP) {
      OPI_TRY(add_step(g, rank, a, out, err));
    } else {
      OPI_TRY(opi_do_list_add(out, *a, err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_pass_groups(const opi_problem *problem, const opi_do_list *list,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err) {
  enum { PASSES = 1 << OPI_DO_F | 1 << OPI_DO_B | 1 << OPI_DO_I | 1 << OPI_DO_R };
  const size_t instances = (size_t)problem->n_stages * problem->n_replicas;
  const uint64_t around = problem->n_tensor <= 1                    ? 0
                          : problem->sequence || problem->scattered ? 2
                                                                    : 1;
  placer g = {.problem = problem};
  uint64_t n = list->n_items + 2 * instances + around * opi_do_list_count(list, PASSES);
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  opipe_status status = problem->n_tensor > 1 && problem->scattered
                            ? opi_index_build(problem, list, &arena, &g.index, err)
                            : OPIPE_OK;
  if (status == OPIPE_OK) {
    g.summed = OPI_ARENA_ARRAY(&arena, bool, instances);
    status = g.summed == NULL ? opi_fail_nomem(err, instances, "collectives") : OPIPE_OK;
  }
  n = n < OPI_ACTIONS_MOST ? n : OPI_ACTIONS_MOST; /* an upper bound if messages are scattered */
  if (status == OPIPE_OK)
    status = opi_each_rank(list, place_rank, &g, n, allocator, out_list, err);
  opi_arena_release(&arena);
  return status;
}
