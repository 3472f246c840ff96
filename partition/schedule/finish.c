/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a step: reductions over replicas, frees of stashes, the optimizer's step. Also
 * parameters gathered and dropped around their use, and all passes in their usual order. */
#include <string.h>

#include "partition/schedule/events.h"
#include "partition/schedule/passes.h"

static bool is_flagged(const opi_do *a) {
  return (a->flags & OPIPE_ACTION_NEXT_STEP) != 0;
}
static bool closes(const opi_do *a) { /* ends a unit's stash */
  return a->kind == OPI_DO_B || a->kind == OPI_DO_W;
}

/* ---- reductions ---- */

typedef struct reducer {
  const opi_problem *problem;
  uint32_t *left; /* [instances] backwards still to come; NONE: summed; NONE - 1: summed at the end
                   */
  uint8_t *idle;  /* [n_items] the rank loses time after the item; NULL: reductions start at once */
  bool all, at_once;
} reducer;

static bool reduces(const reducer *d, uint32_t stage) {
  const opi_problem *p = d->problem;
  uint32_t n = 0;
  for (uint32_t r = 0; r < p->n_replicas; ++r)
    n += opi_problem_rank(p, stage, r) != OPIPE_NONE;
  return d->all || n > 1;
}

static opipe_status add_reduce(opi_do_list *out, uint32_t stage, uint32_t replica,
                               opipe_error *err) {
  return opi_do_list_add(
      out,
      (opi_do){
          .kind = OPI_DO_REDUCE, .stage = stage, .replica = (uint16_t)replica, .edge = OPIPE_NONE},
      err);
}

/* The index after the rank's last compute of this mini-batch. */
static uint32_t end_of_backward(const opi_do_list *list, uint32_t rank) {
  uint32_t end = list->rank_first[rank + 1];
  while (end > list->rank_first[rank] &&
         (!opi_do_is_compute(list->items[end - 1].kind) || is_flagged(&list->items[end - 1])))
    --end;
  return end;
}

/* Adds the reductions that wait for the rank's last compute. */
static opipe_status reduce_at_end(const reducer *d, uint32_t rank, opi_do_list *out,
                                  opipe_error *err) {
  const opi_problem *p = d->problem;
  for (uint32_t k = 0; k < p->n_stages * p->n_replicas; ++k) {
    if (d->left[k] == OPIPE_NONE - 1 && p->instance_rank[k] == rank)
      OPI_TRY(add_reduce(out, k / p->n_replicas, k % p->n_replicas, err));
  }
  return OPIPE_OK;
}

static opipe_status reduce_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                                opipe_error *err) {
  reducer *d = ctx;
  const opi_problem *p = d->problem;
  const uint32_t end = end_of_backward(list, rank);
  uint32_t pending = OPIPE_NONE;     /* of a pair: placed after its second */
  if (end == list->rank_first[rank]) /* only idle instances */
    OPI_TRY(reduce_at_end(d, rank, out, err));
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    const opi_do *a = &list->items[i];
    if (a->kind == OPI_DO_IDLE)
      continue;
    OPI_TRY(opi_do_list_add(out, *a, err));
    const uint32_t instance = a->stage * p->n_replicas + a->replica;
    const bool last = closes(a) && --d->left[instance] == 0 && reduces(d, a->stage);
    const bool now = last && d->at_once && (d->idle == NULL || d->idle[i] != 0);
    const bool paired = (a->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
    if (!paired && pending != OPIPE_NONE)
      OPI_TRY(add_reduce(out, pending / p->n_replicas, pending % p->n_replicas, err));
    pending = paired && now ? instance : OPIPE_NONE;
    if (now && !paired)
      OPI_TRY(add_reduce(out, a->stage, a->replica, err));
    if (last)
      d->left[instance] = now ? OPIPE_NONE : OPIPE_NONE - 1;
    if (i + 1 == end)
      OPI_TRY(reduce_at_end(d, rank, out, err));
  }
  return OPIPE_OK;
}

/* Marks the items after which the rank stands idle before its last compute ends. */
static opipe_status find_idle(const opi_problem *p, const opi_do_list *list, reducer *d,
                              opi_arena *arena, opipe_error *err) {
  opi_timeline timeline = {0};
  d->idle = OPI_ARENA_ARRAY(arena, uint8_t, (size_t)list->n_items + 1);
  if (d->idle == NULL)
    return opi_fail_nomem(err, list->n_items, "reductions");
  OPI_TRY(opi_timeline_build(p, list, &opi_unit_costs, arena, &timeline, err));
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    uint32_t later = OPIPE_NONE;
    bool idle = false;
    for (uint32_t i = list->rank_first[rank + 1]; i-- > list->rank_first[rank];) {
      if (!opi_do_is_compute(list->items[i].kind))
        continue;
      idle = idle || (later != OPIPE_NONE && timeline.start[later] > timeline.end[i] + 1e-9);
      d->idle[i] = idle;
      later = i;
    }
  }
  return OPIPE_OK;
}

opipe_status opi_pass_reduce(const opi_problem *problem, const opi_do_list *list, bool all,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err) {
  const size_t n = (size_t)problem->n_stages * problem->n_replicas;
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  reducer d = {.problem = problem, .all = all, .at_once = all || problem->sync != OPIPE_SYNC_END};
  d.left = OPI_ARENA_ARRAY(&arena, uint32_t, n);
  opipe_status status = d.left == NULL ? opi_fail_nomem(err, n * 4, "reductions") : OPIPE_OK;
  for (uint32_t i = 0; status == OPIPE_OK && i < list->n_items; ++i) {
    const opi_do *a = &list->items[i];
    if (!closes(a))
      continue;
    if (a->stage >= problem->n_stages || a->replica >= problem->n_replicas) {
      status = opi_fail(err, OPIPE_E_INVALID, "item %u: stage %u of %u, replica %u of %u", i,
                        a->stage, problem->n_stages, a->replica, problem->n_replicas);
    } else {
      ++d.left[a->stage * problem->n_replicas + a->replica];
    }
  }
  /* An instance without a micro-batch still needs the sum: its weights take the same step. */
  for (uint32_t i = 0; status == OPIPE_OK && !all && i < n; ++i) {
    if (d.left[i] == 0 && reduces(&d, i / problem->n_replicas))
      d.left[i] = OPIPE_NONE - 1;
  }
  if (status == OPIPE_OK && !all && problem->sync == OPIPE_SYNC_EAGER_OPT)
    status = find_idle(problem, list, &d, &arena, err);
  if (status == OPIPE_OK)
    status = opi_each_rank(list, reduce_rank, &d, list->n_items + n, allocator, out_list, err);
  opi_arena_release(&arena);
  return status;
}

/* ---- frees and the step ---- */

typedef struct finisher {
  const opi_problem *problem;
  opi_index index;
  uint16_t *closed; /* [n_units] parts of a slice whose backward is done, kept at part 0 */
} finisher;

static opipe_status add_free(finisher *f, const opi_do *a, opi_do_list *out, opipe_error *err) {
  const uint64_t unit = opi_unit(&f->index, a->stage, a->replica, a->microbatch, a->slice, 0);
  if (!closes(a) || ++f->closed[unit] < f->problem->n_parts)
    return OPIPE_OK;
  opi_do item = *a;
  item.kind = OPI_DO_FREE;
  item.part = 0;
  item.flags = 0;
  item.version = 0;
  return opi_do_list_add(out, item, err);
}

static opipe_status finish_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                                opipe_error *err) {
  finisher *f = ctx;
  const uint32_t first = list->rank_first[rank], last = list->rank_first[rank + 1];
  uint32_t step_at = OPIPE_NONE; /* the item after which the step stands */
  for (uint32_t i = first; i < last; ++i) {
    const opi_do *a = &list->items[i];
    if (a->kind == OPI_DO_REDUCE || (opi_do_is_compute(a->kind) && !is_flagged(a)))
      step_at = i;
  }
  while (step_at != OPIPE_NONE && step_at + 1 < last &&
         (list->items[step_at + 1].kind == OPI_DO_SEND_B))
    ++step_at;
  for (uint32_t i = first; i < last; ++i) {
    const opi_do *a = &list->items[i];
    const bool second = i > first && (a[-1].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 &&
                        opi_do_is_compute(a[-1].kind);
    if (a->kind == OPI_DO_IDLE)
      continue;
    OPI_TRY(opi_do_list_add(out, *a, err));
    if ((a->flags & OPIPE_ACTION_OVERLAP_NEXT) == 0) {
      if (second)
        OPI_TRY(add_free(f, a - 1, out, err));
      OPI_TRY(add_free(f, a, out, err));
    }
    if (i == step_at) {
      OPI_TRY(opi_do_list_add(
          out, (opi_do){.kind = OPI_DO_STEP, .stage = OPIPE_NONE, .edge = OPIPE_NONE}, err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_pass_finish(const opi_problem *problem, const opi_do_list *list,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err) {
  if (problem->mode == OPIPE_MODE_FORWARD)
    return opi_do_list_without(list, OPI_DO_IDLE, allocator, out_list, err);
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  finisher f = {.problem = problem};
  const uint64_t n_items =
      (uint64_t)list->n_items + list->n_ranks +
      opi_do_list_count(list, 1u << OPI_DO_B | 1u << OPI_DO_W) / problem->n_parts;
  opipe_status status = opi_pass_check(problem, list, allocator, err);
  if (status == OPIPE_OK)
    status = opi_index_build(problem, list, &arena, &f.index, err);
  if (status == OPIPE_OK) {
    f.closed = OPI_ARENA_ARRAY(&arena, uint16_t, (size_t)f.index.n_units);
    if (f.closed == NULL)
      status = opi_fail_nomem(err, f.index.n_units * sizeof(uint16_t), "frees");
  }
  if (status == OPIPE_OK)
    status = opi_each_rank(list, finish_rank, &f, n_items, allocator, out_list, err);
  opi_arena_release(&arena);
  return status;
}

/* ---- parameters gathered and dropped ---- */

typedef struct sharder {
  uint32_t max_active, n_active, n_next;
  uint32_t *active; /* [max_active + 2] stages, oldest first */
  uint32_t *next;   /* [max_active + 2] stages that compute next, soonest first */
} sharder;

static bool has_stage(const uint32_t *stages, uint32_t n, uint32_t stage) {
  for (uint32_t i = 0; i < n; ++i) {
    if (stages[i] == stage)
      return true;
  }
  return false;
}

static void look_ahead(sharder *s, const opi_do_list *list, uint32_t from, uint32_t end) {
  s->n_next = 0;
  for (uint32_t i = from; i < end && s->n_next < s->max_active; ++i) {
    const opi_do *a = &list->items[i];
    if (!opi_do_is_compute(a->kind))
      continue;
    if (!has_stage(s->next, s->n_next, a->stage))
      s->next[s->n_next++] = a->stage;
    if ((a->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 && i + 1 < end &&
        !has_stage(s->next, s->n_next, a[1].stage))
      s->next[s->n_next++] = a[1].stage;
  }
}

static opipe_status add_shard(opi_do_list *out, uint32_t kind, uint32_t stage, opipe_error *err) {
  return opi_do_list_add(out, (opi_do){.kind = (uint8_t)kind, .stage = stage, .edge = OPIPE_NONE},
                         err);
}

static opipe_status swap_active(sharder *s, opi_do_list *out, opipe_error *err) {
  uint32_t kept = 0;
  for (uint32_t k = 0; k < s->n_active; ++k) {
    if (has_stage(s->next, s->n_next, s->active[k]))
      s->active[kept++] = s->active[k];
    else
      OPI_TRY(add_shard(out, OPI_DO_RESHARD, s->active[k], err));
  }
  s->n_active = kept;
  for (uint32_t k = 0; k < s->n_next; ++k) {
    if (has_stage(s->active, s->n_active, s->next[k]))
      continue;
    OPI_TRY(add_shard(out, OPI_DO_UNSHARD, s->next[k], err));
    s->active[s->n_active++] = s->next[k];
  }
  return OPIPE_OK;
}

static opipe_status unshard_rank(void *ctx, const opi_do_list *list, uint32_t rank,
                                 opi_do_list *out, opipe_error *err) {
  sharder *s = ctx;
  const uint32_t end = list->rank_first[rank + 1];
  s->n_active = 0;
  for (uint32_t i = list->rank_first[rank]; i < end; ++i) {
    const opi_do *a = &list->items[i];
    const bool second = i > list->rank_first[rank] && opi_do_is_compute(a->kind) &&
                        (a[-1].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
    if (a->kind == OPI_DO_IDLE)
      continue;
    if (opi_do_is_compute(a->kind) && !second) {
      look_ahead(s, list, i, end);
      OPI_TRY(swap_active(s, out, err));
    }
    OPI_TRY(opi_do_list_add(out, *a, err));
  }
  s->n_next = 0;
  return swap_active(s, out, err);
}

opipe_status opi_pass_unshard(const opi_do_list *list, uint32_t max_active,
                              const opipe_allocator *allocator, opi_do_list **out_list,
                              opipe_error *err) {
  if (max_active == 0 || max_active > 1u << 16) {
    return opi_fail(err, OPIPE_E_INVALID, "%u stages with their parameters loaded at once",
                    max_active);
  }
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  sharder s = {.max_active = max_active};
  s.active = OPI_ARENA_ARRAY(&arena, uint32_t, 2 * ((size_t)max_active + 2));
  s.next = OPI_ARENA_ARRAY(&arena, uint32_t, (size_t)max_active + 2);
  opipe_status status = OPIPE_OK;
  if (s.active == NULL || s.next == NULL)
    status = opi_fail_nomem(err, max_active * sizeof(uint32_t), "gathered stages");
  if (status == OPIPE_OK)
    status = opi_each_rank(list, unshard_rank, &s, 0, allocator, out_list, err);
  opi_arena_release(&arena);
  return status;
}

/* ---- all of them ---- */

/* Kinds that lowering places itself are dropped: an order may bring reductions of its own. */
enum {
  PLACED_KINDS = 1 << OPI_DO_REDUCE | 1 << OPI_DO_FREE | 1 << OPI_DO_STEP | 1 << OPI_DO_SCATTER |
                 1 << OPI_DO_GATHER | 1 << OPI_DO_SUM_F | 1 << OPI_DO_SUM_B | 1 << OPI_DO_GATHER_F |
                 1 << OPI_DO_GATHER_B | 1 << OPI_DO_SCATTER_F | 1 << OPI_DO_SCATTER_B
};

static opipe_status bare_rank(void *ctx, const opi_do_list *list, uint32_t rank, opi_do_list *out,
                              opipe_error *err) {
  (void)ctx;
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    if ((PLACED_KINDS >> list->items[i].kind & 1) == 0)
      OPI_TRY(opi_do_list_add(out, list->items[i], err));
  }
  return OPIPE_OK;
}

/* Actions of one slice of one micro-batch: computes, frees, collectives, both ends of messages. */
static uint64_t actions_of_slice(const opi_problem *p) {
  const bool trains = p->mode != OPIPE_MODE_FORWARD;
  const uint64_t per_message = 2 * (trains ? 1 + (uint64_t)p->n_parts : 1);
  uint64_t n = 0;
  const uint64_t passes = trains ? 1 + (uint64_t)p->n_parts : 1;
  const uint64_t around = p->n_tensor <= 1 ? 0 : p->sequence || p->scattered ? 2 : 1;
  for (uint32_t s = 0; s < p->n_stages; ++s)
    n += (passes * (1 + around) + trains) * (p->stage_shares == NULL ? 1 : p->stage_shares[s]);
  for (uint32_t e = 0; e < p->n_edges; ++e) {
    const uint32_t src = p->edges[e].src, dst = p->edges[e].dst;
    if (opi_problem_rank(p, src, 0) != opi_problem_rank(p, dst, 0))
      n += per_message;
  }
  return n;
}

opipe_status opi_lower_limit(const opi_problem *problem, opipe_error *err) {
  const uint64_t slices = (uint64_t)problem->n_microbatches * problem->n_slices;
  uint64_t n = 0;
  if (opi_mul_u64(slices, actions_of_slice(problem), &n))
    n = UINT64_MAX;
  if (n <= OPI_ACTIONS_MOST)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_LIMIT,
                  "%u stages x %u micro-batches come to %llu actions once lowered: at most %d are "
                  "possible",
                  problem->n_stages, problem->n_microbatches, (unsigned long long)n,
                  OPI_ACTIONS_MOST);
}

/* Replaces a list by its next form. */
static void replace(opi_do_list **io_list, opi_do_list *next) {
  opi_do_list_free(*io_list);
  *io_list = next;
}

/* Places the groups' collectives; the list is otherwise lowered. */
static opipe_status place_groups(const opi_problem *problem, const opipe_allocator *allocator,
                                 opi_do_list **io_list, opipe_error *err) {
  opi_do_list *bare = *io_list;
  *io_list = NULL;
  const opipe_status status = opi_pass_groups(problem, bare, allocator, io_list, err);
  opi_do_list_free(bare);
  return status;
}

/* Places messages. A deadlock is reported with the steps of the order as it was given. */
static opipe_status place_messages(const opi_problem *problem, const opi_do_list *order,
                                   const opi_do_list *list, const opipe_allocator *allocator,
                                   opi_do_list **out_list, opipe_error *err) {
  const opipe_status status = opi_pass_messages(problem, list, allocator, out_list, err);
  return status == OPIPE_E_INVALID ? opi_pass_messages(problem, order, allocator, out_list, err)
                                   : status;
}

opipe_status opi_lower_order(const opi_problem *problem, const opi_do_list *order,
                             const opi_lowering *how, const opipe_allocator *allocator,
                             opi_do_list **out_list, opipe_error *err) {
  opi_do_list *list = NULL, *next = NULL;
  OPI_TRY(opi_lower_limit(problem, err));
  OPI_TRY(opi_pass_check(problem, order, allocator, err));
  OPI_TRY(opi_each_rank(order, bare_rank, NULL,
                        order->n_items - opi_do_list_count(order, PLACED_KINDS), allocator, &list,
                        err));
  opipe_status status = OPIPE_OK;
  if (problem->mode != OPIPE_MODE_FORWARD && !how->messages_only) {
    status = opi_pass_reduce(problem, list, false, allocator, &next, err);
    if (status == OPIPE_OK)
      replace(&list, next);
  }
  if (status == OPIPE_OK)
    status = place_messages(problem, order, list, allocator, &next, err);
  if (status == OPIPE_OK)
    replace(&list, next);
  if (status == OPIPE_OK && how->receive_depth > 0) {
    status = opi_pass_defer(problem, list, how->receive_depth, allocator, &next, err);
    if (status == OPIPE_OK)
      replace(&list, next);
  }
  if (status == OPIPE_OK) {
    status = how->messages_only ? opi_do_list_without(list, OPI_DO_IDLE, allocator, out_list, err)
                                : opi_pass_finish(problem, list, allocator, out_list, err);
  }
  opi_do_list_free(list);
  return status < 0 || how->messages_only || !opi_problem_has_groups(problem)
             ? status
             : place_groups(problem, allocator, out_list, err);
}
