/* SPDX-License-Identifier: Apache-2.0 */
/* Where the sums of gradients over replicas stand in the lists. Each stands where the schedule's
 * synchronization puts it, but not before a sum that another rank of both groups comes to first:
 * sums are ordered by the time at which their last rank comes, then by stage. Under GROUPED a rank
 * has one queue for messages and sums: each stands in all lists at that time, among the messages.
 */
#include <stdlib.h>
#include <string.h>

#include "partition/lists/listing.h"

/* All sums of one stage's gradients. */
typedef struct stage_sum {
  uint64_t last;  /* when the last rank comes, by the clock; UINT64_MAX: at the tail */
  uint32_t stage; /* of the plan */
} stage_sum;

typedef struct sum_placing {
  opi_listing *l;
  stage_sum *sums;          /* [whole stages] in order */
  uint32_t *first;          /* [whole stages + 1] by place in `sums`, into l->reductions */
  uint32_t *keys;           /* [reductions] */
  uint32_t n_stages, n_all; /* whole stages; reductions */
} sum_placing;

static int by_last(const void *x, const void *y) {
  const stage_sum *a = x, *b = y;
  if (a->last != b->last)
    return a->last < b->last ? -1 : 1;
  return a->stage < b->stage ? -1 : a->stage > b->stage;
}

/* The action after which an instance's sum stands, or its rank's tail. */
static uint32_t key_of(const opi_listing *l, uint32_t instance) {
  const opi_piece_plan *plan = l->plan;
  const uint32_t rank = plan->instance_rank[instance];
  const uint32_t after = l->reference ? OPIPE_NONE : plan->reduce_after[plan->whole_of[instance]];
  if (after == OPIPE_NONE)
    return plan->n_actions + rank;
  return plan->last_of == NULL ? after : plan->rank_first[rank] + plan->last_of[after];
}

/* Whether the piece is the first of its instance, or of a member's. */
static bool is_first_piece(const opi_listing *l, uint32_t instance) {
  const uint32_t n = l->plan->n_replicas;
  for (uint32_t v = instance / n / l->plan->n_pieces * l->plan->n_pieces; v < instance / n; ++v) {
    const uint32_t other = v * n + instance % n;
    if (l->plan->whole_of[other] == l->plan->whole_of[instance] &&
        l->plan->instance_rank[other] == l->plan->instance_rank[instance])
      return false;
  }
  return true;
}

/* Whether the instance is on a rank, which adds up its gradients here. */
static bool is_summed(const opi_listing *l, uint32_t instance) {
  return l->plan->instance_rank[instance] != OPIPE_NONE && is_first_piece(l, instance);
}

static uint32_t instances_of_stage(const opi_listing *l) {
  return l->plan->n_pieces * l->plan->n_replicas;
}

static void order_sums(const sum_placing *p) {
  const opi_listing *l = p->l;
  const uint32_t each = instances_of_stage(l);
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    p->sums[s] = (stage_sum){.stage = s};
    for (uint32_t i = s * each; i < (s + 1) * each; ++i) {
      const uint32_t key = is_summed(l, i) ? key_of(l, i) : OPIPE_NONE;
      const uint64_t at = key == OPIPE_NONE           ? 0
                          : key >= l->plan->n_actions ? UINT64_MAX
                                                      : l->times.clock_end[key];
      p->sums[s].last = at > p->sums[s].last ? at : p->sums[s].last;
    }
  }
  if (p->n_stages > 1)
    qsort(p->sums, p->n_stages, sizeof *p->sums, by_last);
}

static opipe_status list_reductions(sum_placing *p) {
  opi_listing *l = p->l;
  const uint32_t each = instances_of_stage(l), n = p->n_stages * each;
  l->reductions = OPI_ARENA_ARRAY(&l->scratch, opi_reduction, n);
  p->keys = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  if (l->reductions == NULL || p->keys == NULL)
    return opi_fail_nomem(l->err, n * sizeof *l->reductions, "sums");
  for (uint32_t k = 0; k < p->n_stages; ++k) {
    const uint32_t s = p->sums[k].stage;
    p->first[k] = p->n_all;
    for (uint32_t i = s * each; i < (s + 1) * each; ++i) {
      if (!is_summed(l, i))
        continue;
      p->keys[p->n_all] = key_of(l, i);
      l->reductions[p->n_all] = (opi_reduction){.instance = i,
                                                .rank = l->plan->instance_rank[i],
                                                .meeting = OPIPE_NONE,
                                                .at = p->sums[k].last};
      if (opi_listing_one_queue(l) &&
          p->sums[k].last != UINT64_MAX) /* lists.c merges it with the ends */
        p->keys[p->n_all] = l->plan->n_actions + l->plan->n_ranks;
      ++p->n_all;
    }
  }
  p->first[p->n_stages] = p->n_all;
  return OPIPE_OK;
}

/* ---- groups ---- */

static int by_number(const void *x, const void *y) {
  const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
  return a < b ? -1 : a > b;
}

/* Whether a program of the stage has gradients of a parameter. */
static bool is_trained(const opi_listing *l, uint32_t stage) {
  const opi_cut *cut = l->cut;
  const uint32_t each = l->plan->n_pieces * cut->n_kinds;
  for (uint32_t i = stage * each; i < (stage + 1) * each; ++i) {
    const opi_program *program = &cut->programs[i];
    for (uint32_t k = 0; k < program->n_params; ++k) {
      if (cut->trained[program->params[k]])
        return true;
    }
  }
  return false;
}

/* Makes the meeting of the ranks of a stage, if several have something to add up. */
static opipe_status add_meeting(sum_placing *p, uint32_t k) {
  opi_lists *lists = p->l->lists;
  const uint32_t first = p->first[k], n = p->first[k + 1] - first;
  uint32_t *ranks = OPI_ARENA_ARRAY(&lists->arena, uint32_t, n), n_ranks = 0;
  if (ranks == NULL)
    return opi_fail_nomem(p->l->err, n * sizeof *ranks, "sums");
  for (uint32_t i = 0; i < n; ++i)
    ranks[i] = p->l->reductions[first + i].rank;
  if (n > 1)
    qsort(ranks, n, sizeof *ranks, by_number);
  for (uint32_t i = 0; i < n; ++i) {
    if (n_ranks == 0 || ranks[n_ranks - 1] != ranks[i])
      ranks[n_ranks++] = ranks[i];
  }
  if (n_ranks < 2 || !is_trained(p->l, p->sums[k].stage))
    return OPIPE_OK;
  for (uint32_t i = first; i < first + n; ++i)
    p->l->reductions[i].meeting = lists->n_meetings;
  lists->meetings[lists->n_meetings++] =
      (opi_list_meeting){.ranks = ranks, .n_ranks = n_ranks, .stage = p->sums[k].stage};
  return OPIPE_OK;
}

static opipe_status list_meetings(sum_placing *p) {
  opi_lists *lists = p->l->lists;
  const uint32_t n = lists->n_meetings + p->n_stages;
  if (!opi_arena_grow(&lists->arena, (void **)&lists->meetings, &p->l->groups.room, n,
                      sizeof *lists->meetings))
    return opi_fail_nomem(p->l->err, n * sizeof *lists->meetings, "sums");
  for (uint32_t k = 0; k < p->n_stages; ++k)
    OPI_TRY(add_meeting(p, k));
  return OPIPE_OK;
}

/* ---- one order ---- */

/* The last of a stage's reductions on a rank, with which the rank comes to the sum. */
static uint32_t last_on(const sum_placing *p, uint32_t k, uint32_t rank) {
  uint32_t last = OPIPE_NONE;
  for (uint32_t i = p->first[k]; i < p->first[k + 1]; ++i) {
    if (p->l->reductions[i].rank == rank && (last == OPIPE_NONE || p->keys[i] >= p->keys[last]))
      last = i;
  }
  return last;
}

/* Moves a rank's coming to a sum behind that to an earlier one, if two ranks have both. */
static void follow(const sum_placing *p, uint32_t before, uint32_t k) {
  uint32_t n_shared = 0;
  for (uint32_t pass = 0; pass < 2; ++pass) {
    for (uint32_t i = p->first[k]; i < p->first[k + 1]; ++i) {
      const uint32_t rank = p->l->reductions[i].rank, other = last_on(p, before, rank);
      if (other == OPIPE_NONE || last_on(p, k, rank) != i)
        continue;
      n_shared += pass == 0;
      if (pass == 1 && p->keys[i] < p->keys[other])
        p->keys[i] = p->keys[other];
    }
    if (n_shared < 2)
      return;
  }
}

opipe_status opi_listing_sums(opi_listing *l) {
  sum_placing p = {.l = l, .n_stages = l->plan->n_stages / l->plan->n_pieces};
  if (!l->plan->trains)
    return OPIPE_OK;
  p.sums = OPI_ARENA_ARRAY(&l->scratch, stage_sum, p.n_stages);
  p.first = OPI_ARENA_ARRAY(&l->scratch, uint32_t, (size_t)p.n_stages + 1);
  if (p.sums == NULL || p.first == NULL)
    return opi_fail_nomem(l->err, p.n_stages * sizeof *p.sums, "sums");
  order_sums(&p);
  OPI_TRY(list_reductions(&p));
  OPI_TRY(list_meetings(&p));
  for (uint32_t k = 1; k < p.n_stages && p.sums[0].last != UINT64_MAX && !opi_listing_one_queue(l);
       ++k) {
    for (uint32_t before = 0; before < k; ++before)
      follow(&p, before, k);
  }
  return opi_bucket_make(l, p.keys, p.n_all, l->plan->n_actions + l->plan->n_ranks + 1,
                         &l->reductions_at);
}
