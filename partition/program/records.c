/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that a plan's records, forward or training, are complete under the action language.
 * Deadlocks are found when lists are made (partition/lists). */
#include "partition/program/records.h"

#include <string.h>

#include "partition/schedule/compute_order.h"

/* Pairs of stages that exchange activations; routes that end in one stage are consecutive. */
static opipe_status find_edges(const opi_cut *cut, uint32_t n_places, opi_arena *arena,
                               opi_problem *problem, opipe_error *err) {
  uint32_t *last = OPI_ARENA_ARRAY(arena, uint32_t, cut->n_stages);
  opi_stage_edge *edges = OPI_ARENA_ARRAY(arena, opi_stage_edge, cut->n_routes);
  if (last == NULL || edges == NULL)
    return opi_fail_nomem(err, cut->n_routes * sizeof *edges, "a schedule's edges");
  memset(last, 0xff, cut->n_stages * sizeof *last);
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    const uint32_t src = cut->routes[r].src_stage / n_places,
                   dst = cut->routes[r].dst_stage / n_places;
    if (src >= dst || last[src] == dst)
      continue;
    last[src] = dst;
    edges[problem->n_edges++] = (opi_stage_edge){.src = src, .dst = dst};
  }
  problem->edges = edges;
  return OPIPE_OK;
}

opipe_status opi_records_problem(const opi_decision *plan, const opi_cut *cut, opi_arena *arena,
                                 opi_problem *out_problem, opipe_error *err) {
  *out_problem = opi_plan_problem(plan);
  return find_edges(cut, cut->n_stages / plan->n_stages, arena, out_problem, err);
}

static opipe_status check_flags(const opi_decision *plan, const opipe_action *action,
                                opipe_error *err) {
  const bool twice = plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  const uint32_t known = OPIPE_ACTION_OVERLAP_NEXT | (twice ? OPIPE_ACTION_NEXT_STEP : 0u);
  const bool next = (action->flags & OPIPE_ACTION_NEXT_STEP) != 0;
  if ((action->flags & OPIPE_ACTION_RECOMPUTE) != 0) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "rank %u, stage %u, micro-batch %u: the backward recomputes its forward; plans do not "
        "execute such orders, since recomputation is an option of training (recompute)",
        action->rank, action->stage, action->microbatch);
  }
  if ((action->flags & ~known) != 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "rank %u, stage %u, micro-batch %u: flags 0x%x, known are 0x%x", action->rank,
                    action->stage, action->microbatch, action->flags, known);
  }
  if (action->version != (twice && !next ? 1 : 0)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "rank %u, stage %u, micro-batch %u: version %u of the "
                    "weights%s",
                    action->rank, action->stage, action->microbatch, action->version,
                    next ? " in a record of the next mini-batch" : "");
  }
  return OPIPE_OK;
}

/* A rank steps after the last record of the mini-batch; records of the next one that compute with
 * the weights before the step come earlier (Narayanan et al., PipeDream-2BW, section 3.1). */
static opipe_status check_versions(const opi_decision *plan, opipe_error *err) {
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    const uint32_t first = plan->rank_first[rank], end = plan->rank_first[rank + 1];
    for (uint32_t a = first; a < end; ++a)
      OPI_TRY(check_flags(plan, &plan->actions[a], err));
    if (end > first && opi_action_is_next(&plan->actions[end - 1])) {
      const opipe_action *action = &plan->actions[end - 1];
      return opi_fail(err, OPIPE_E_INVALID,
                      "rank %u, stage %u, micro-batch %u: a record of the next mini-batch behind "
                      "the last of its own, where the weights have made a step more",
                      rank, action->stage, action->microbatch);
    }
  }
  return OPIPE_OK;
}

static opipe_status check(const opi_decision *plan, const opi_problem *problem, opipe_error *err) {
  opi_do_list *order = NULL;
  OPI_TRY(opi_lower_limit(problem, err));
  OPI_TRY(opi_do_list_from_records(problem, plan->actions, plan->n_actions, plan->allocator, &order,
                                   err));
  const opipe_status status = opi_pass_check(problem, order, plan->allocator, err);
  opi_do_list_free(order);
  return status == OPIPE_OK ? check_versions(plan, err) : status;
}

opipe_status opi_records_check(const opi_decision *plan, const opi_cut *cut, opipe_error *err) {
  opi_problem problem;
  opi_arena scratch;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = opi_records_problem(plan, cut, &scratch, &problem, err);
  if (status == OPIPE_OK)
    status = check(plan, &problem, err);
  opi_arena_release(&scratch);
  return status < 0 ? opi_error_prefix(err, "schedule '%s': ", plan->schedule.name) : OPIPE_OK;
}

uint32_t opi_action_program(const opipe_action *action) {
  switch (action->pass) {
    case OPIPE_PASS_FORWARD:
      return OPI_PROGRAM_F;
    case OPIPE_PASS_BACKWARD:
      return OPI_PROGRAM_B;
    case OPIPE_PASS_BACKWARD_INPUT:
      return OPI_PROGRAM_I;
    case OPIPE_PASS_BACKWARD_WEIGHT:
      return OPI_PROGRAM_W;
    default:
      return OPIPE_NONE;
  }
}

void opi_programs_used(const opi_decision *plan, uint32_t *out_used) {
  memset(out_used, 0, plan->n_stages * sizeof *out_used);
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    const uint32_t program = opi_action_program(&plan->actions[a]);
    if (program != OPIPE_NONE && plan->actions[a].stage < plan->n_stages)
      out_used[plan->actions[a].stage] |= 1u << program;
  }
}
