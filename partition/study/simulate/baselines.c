/* SPDX-License-Identifier: Apache-2.0 */
/* Rank by rank, in order. */
#include "partition/study/simulate/baselines.h"

typedef opipe_status (*fill_fn)(opi_do_list *list, uint32_t rank, const opi_problem *problem,
                                opipe_error *err);

static opipe_status put(opi_do_list *list, opi_do item, opipe_error *err) {
  item.edge = OPIPE_NONE;
  return opi_do_list_add(list, item, err);
}

static opipe_status gems_rank(opi_do_list *list, uint32_t rank, const opi_problem *p,
                              opipe_error *err) {
  for (uint32_t m = 0; m < p->n_microbatches; ++m) {
    opi_do item = {.stage = m % 2 == 0 ? rank : p->n_ranks - 1 - rank, .microbatch = m};
    item.replica = (uint16_t)(m % 2);
    OPI_TRY(put(list, item, err));
    item.kind = OPI_DO_B;
    OPI_TRY(put(list, item, err));
  }
  return OPIPE_OK;
}

static opipe_status pipedream_rank(opi_do_list *list, uint32_t rank, const opi_problem *p,
                                   opipe_error *err) {
  const uint32_t n = p->n_microbatches, ahead = p->n_ranks - rank - 1;
  for (uint32_t m = 0; m < n; ++m) {
    const bool next = m + ahead >= n; /* version 1: the older one, as in all of its body */
    const opi_do forward = {.stage = rank,
                            .microbatch = next ? m + ahead - n : m + ahead,
                            .kind = OPI_DO_F,
                            .version = !next,
                            .flags = next ? OPIPE_ACTION_NEXT_STEP : 0};
    OPI_TRY(put(list, forward, err));
    OPI_TRY(
        put(list, (opi_do){.stage = rank, .microbatch = m, .kind = OPI_DO_B, .version = 1}, err));
  }
  return OPIPE_OK;
}

static opipe_status make(opi_problem *problem, fill_fn fill, const opipe_allocator *allocator,
                         opi_order **out_order, opipe_error *err) {
  const uint32_t n = problem->n_ranks;
  opi_do_list *list = NULL;
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  uint32_t *rank_of = OPI_ARENA_ARRAY(&arena, uint32_t, (size_t)n * problem->n_replicas);
  opi_stage_edge *edges = OPI_ARENA_ARRAY(&arena, opi_stage_edge, n);
  opipe_status status =
      rank_of == NULL || edges == NULL
          ? opi_fail_nomem(err, n * sizeof *edges, "an order")
          : opi_do_list_create(allocator, n, 2ull * problem->n_microbatches * n, &list, err);
  if (status == OPIPE_OK) {
    for (uint32_t k = 0; k < n * problem->n_replicas; ++k) {
      const uint32_t stage = k / problem->n_replicas;
      rank_of[k] = k % problem->n_replicas == 0 ? stage : n - 1 - stage;
    }
    opi_edges_chain(edges, n);
    problem->instance_rank = rank_of;
    problem->edges = edges;
    problem->n_edges = n - 1;
  }
  for (uint32_t rank = 0; rank < n && status == OPIPE_OK; ++rank) {
    opi_do_list_rank(list, rank);
    status = fill(list, rank, problem, err);
  }
  if (status == OPIPE_OK) {
    opi_do_list_rank(list, n);
    status = opi_order_make(problem, list, allocator, out_order, err);
    list = NULL; /* the order has taken it, even on failure */
  }
  opi_do_list_free(list);
  opi_arena_release(&arena);
  return status;
}

opipe_status opi_order_gems(uint32_t n_ranks, uint32_t n_microbatches,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err) {
  opi_problem problem = {.n_ranks = n_ranks,
                         .n_stages = n_ranks,
                         .n_replicas = 2,
                         .n_microbatches = n_microbatches,
                         .n_slices = 1,
                         .n_parts = 1,
                         .mode = OPIPE_MODE_TRAIN};
  if (n_ranks == 0 || n_ranks % 2 != 0 || n_microbatches == 0) {
    return opi_fail(err, OPIPE_E_INVALID, "gems: %u ranks, which must be even, %u micro-batches",
                    n_ranks, n_microbatches);
  }
  return make(&problem, gems_rank, allocator, out_order, err);
}

opipe_status opi_order_pipedream(uint32_t n_ranks, const opipe_allocator *allocator,
                                 opi_order **out_order, opipe_error *err) {
  opi_problem problem = {.n_ranks = n_ranks,
                         .n_stages = n_ranks,
                         .n_replicas = 1,
                         .n_microbatches = n_ranks,
                         .n_slices = 1,
                         .n_parts = 1,
                         .mode = OPIPE_MODE_TRAIN,
                         .versions = OPIPE_VERSIONS_DOUBLE_BUFFERED};
  if (n_ranks == 0)
    return opi_fail(err, OPIPE_E_INVALID, "pipedream: no rank");
  return make(&problem, pipedream_rank, allocator, out_order, err);
}
