/* SPDX-License-Identifier: Apache-2.0 */
/* Improves an order: prepared, searched, solved if small, proven. */
#include "partition/study/improve/improve.h"

#include <math.h>

#include "partition/study/improve/works.h"

enum { STATES_MOST = 60000 }; /* kept while a small problem is solved */

/* Keeps only computes, splits overlapping pairs, and splits B into halves unless `whole`. */
static opipe_status make_ready(const opi_do_list *start, bool whole,
                               const opipe_allocator *allocator, opi_do_list **out_list,
                               opipe_error *err) {
  OPI_TRY(whole ? opi_pass_merge(start, allocator, out_list, err)
                : opi_pass_split(start, allocator, out_list, err));
  for (uint32_t i = 0; i < (*out_list)->n_items; ++i)
    (*out_list)->items[i].flags &= (uint16_t)~OPIPE_ACTION_OVERLAP_NEXT;
  return OPIPE_OK;
}

typedef struct improvement {
  const opi_problem *problem;
  const opi_improve_effort *effort;
  const opipe_allocator *allocator;
  opi_works works;
  opi_works_order best;
  opi_arena arena;
  opi_improved result;
  opipe_error *err;
} improvement;

static opipe_status time_start(improvement *m) {
  opi_works_clock clock;
  uint32_t rank = 0;
  int64_t most = 0;
  if (!opi_works_clock_make(&m->works, &m->arena, &clock))
    return opi_fail_nomem(m->err, m->works.n * sizeof(double), "an order to improve");
  opi_works_clock_run(&m->works, &clock, &m->best);
  if (!isfinite(m->best.makespan))
    return opi_fail(m->err, OPIPE_E_INVALID, "the order to improve deadlocks");
  if (!opi_works_fits(&m->works, &m->best, &rank, &most)) {
    return opi_fail(m->err, OPIPE_E_INVALID,
                    "rank %u of the order to improve keeps %lld, its cap is %lld (in parts of %u)",
                    rank, (long long)most, (long long)m->works.cap[rank],
                    m->problem->n_slices * m->problem->n_parts);
  }
  return OPIPE_OK;
}

/* Times the start as given; it may be slower, because a backward in halves sends sooner. */
static opipe_status time_given(improvement *m, const opi_do_list *start, const opi_costs *costs) {
  opi_simulation given = {.peak_stash = OPI_ARENA_ARRAY(&m->arena, double, m->works.n_ranks)};
  if (given.peak_stash == NULL)
    return opi_fail_nomem(m->err, m->works.n_ranks * sizeof(double), "a simulation");
  OPI_TRY(opi_simulate_order(m->problem, start, costs, m->allocator, &given, m->err));
  m->result.start_ns = given.makespan;
  return OPIPE_OK;
}

static opipe_status search_and_solve(improvement *m) {
  OPI_TRY(opi_works_bound(&m->works, &m->arena, &m->result.bound_ns, m->err));
  OPI_TRY(opi_works_search(&m->works, m->effort, m->result.bound_ns, &m->arena, &m->best,
                           &m->result.moves, m->err));
  m->result.exact = m->best.makespan <= m->result.bound_ns * (1 + 1e-12);
  if (!m->result.exact && m->works.n <= OPI_SOLVED_MOST && !m->effort->no_exact)
    OPI_TRY(opi_works_solve(&m->works, STATES_MOST, &m->arena, &m->best, &m->result.exact, m->err));
  m->result.found_ns = m->best.makespan;
  if (m->result.exact)
    m->result.bound_ns = m->best.makespan;
  return OPIPE_OK;
}

static opipe_status write_list(const improvement *m, opi_do_list **out_list) {
  const opi_works *w = &m->works;
  OPI_TRY(opi_do_list_create(m->allocator, w->n_ranks, w->n, out_list, m->err));
  opipe_status status = OPIPE_OK;
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    opi_do_list_rank(*out_list, r);
    for (uint32_t i = w->rank_first[r]; status == OPIPE_OK && i < w->rank_first[r + 1]; ++i)
      status = opi_do_list_add(*out_list, w->items[m->best.work[i]], m->err);
  }
  opi_do_list_rank(*out_list, w->n_ranks);
  return status;
}

/* Lowers and proves: completeness, deadlock, caps. */
static opipe_status prove(const improvement *m, const opi_do_list *list) {
  const opi_lowering how = {.receive_depth = 1};
  opi_do_list *lowered = NULL;
  opi_proof proof = {.peak_stash = NULL};
  OPI_TRY(opi_pass_check(m->problem, list, m->allocator, m->err));
  OPI_TRY(opi_lower_order(m->problem, list, &how, m->allocator, &lowered, m->err));
  const opipe_status status =
      opi_proof_check(m->problem, lowered, OPI_RULE_TAG, m->allocator, &proof, m->err);
  opi_do_list_free(lowered);
  return status;
}

opipe_status opi_improve_order(const opi_problem *problem, const opi_do_list *start,
                               const opi_costs *costs, const opi_improve_effort *effort,
                               const opipe_allocator *allocator, opi_do_list **out_list,
                               opi_improved *out_result, opipe_error *err) {
  improvement m = {.problem = problem, .effort = effort, .allocator = allocator, .err = err};
  opi_do_list *ready = NULL, *list = NULL;
  OPI_TRY(make_ready(start, effort->whole, allocator, &ready, err));
  opi_arena_init(&m.arena, allocator, 0);
  opipe_status status = opi_works_build(problem, ready, costs, &m.arena, &m.works, &m.best, err);
  if (status == OPIPE_OK)
    status = time_start(&m);
  if (status == OPIPE_OK)
    status = time_given(&m, start, costs);
  if (status == OPIPE_OK)
    status = search_and_solve(&m);
  if (status == OPIPE_OK)
    status = write_list(&m, &list);
  if (status == OPIPE_OK)
    status = prove(&m, list);
  opi_arena_release(&m.arena);
  opi_do_list_free(ready);
  if (status < 0) {
    opi_do_list_free(list);
    return status;
  }
  *out_list = list;
  *out_result = m.result;
  return OPIPE_OK;
}

/* The computes of a list that may be lowered. */
static opipe_status computes_of(const opi_do_list *list, const opipe_allocator *allocator,
                                opi_do_list **out_list, opipe_error *err) {
  OPI_TRY(opi_do_list_create(allocator, list->n_ranks, list->n_items, out_list, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t r = 0; r < list->n_ranks; ++r) {
    opi_do_list_rank(*out_list, r);
    for (uint32_t i = list->rank_first[r]; status == OPIPE_OK && i < list->rank_first[r + 1]; ++i) {
      if (opi_do_is_compute(list->items[i].kind))
        status = opi_do_list_add(*out_list, list->items[i], err);
    }
  }
  opi_do_list_rank(*out_list, list->n_ranks);
  return status;
}

opipe_status opi_improve_bound(const opi_problem *problem, const opi_do_list *list,
                               const opi_costs *costs, const opipe_allocator *allocator,
                               double *out_ns, opipe_error *err) {
  opi_do_list *computes = NULL, *ready = NULL;
  opi_works works;
  opi_works_order unused;
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  opipe_status status = computes_of(list, allocator, &computes, err);
  if (status == OPIPE_OK)
    status = make_ready(computes, false, allocator, &ready, err);
  if (status == OPIPE_OK && ready->n_items > OPI_BOUND_MOST) {
    status = opi_fail(err, OPIPE_E_LIMIT, "a bound of %u computes: at most %d", ready->n_items,
                      OPI_BOUND_MOST);
  }
  if (status == OPIPE_OK)
    status = opi_works_build(problem, ready, costs, &arena, &works, &unused, err);
  if (status == OPIPE_OK)
    status = opi_works_bound(&works, &arena, out_ns, err);
  opi_arena_release(&arena);
  opi_do_list_free(ready);
  opi_do_list_free(computes);
  return status;
}
