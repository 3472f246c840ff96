/* SPDX-License-Identifier: Apache-2.0 */
/* The proof before running, forward form: completeness and (by replaying two requests, since slots
 * couple a request with the next) dependencies and freedom from deadlock under back-pressure. What
 * was lowered is in range and in place.
 */
#include "partition/simulate/replay.h"

static opipe_status check_complete(const opi_plan *plan, uint8_t *seen, opipe_error *err) {
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    for (uint32_t a = plan->rank_first[rank]; a < plan->rank_first[rank + 1]; ++a) {
      const opipe_action *action = &plan->actions[a];
      uint8_t *mark = &seen[(size_t)action->stage * plan->n_microbatches + action->microbatch];
      if (*mark != 0) {
        return opi_fail(err, OPIPE_E_INVALID,
                        "schedule '%s', rank %u, action %u: %uF%u appears twice", plan->schedule,
                        rank, a - plan->rank_first[rank], action->stage, action->microbatch);
      }
      *mark = 1;
    }
  }
  const size_t n = (size_t)plan->n_stages * plan->n_microbatches;
  for (size_t i = 0; i < n; ++i) {
    if (seen[i] != 0)
      continue;
    return opi_fail(err, OPIPE_E_INVALID, "schedule '%s' leaves out %zuF%zu", plan->schedule,
                    i / plan->n_microbatches, i % plan->n_microbatches);
  }
  return OPIPE_OK;
}

/* Does a tensor of the stage go to another rank? */
static bool sends(const opi_plan *plan, const opi_cut *cut, uint32_t stage) {
  for (uint32_t i = cut->cell_first[stage]; i < cut->cell_first[stage + 1]; ++i) {
    for (uint32_t r = cut->cells[i].first_out; r != OPIPE_NONE; r = cut->routes[r].next_out) {
      if (opi_plan_rank(plan, stage, 0) != opi_plan_rank(plan, cut->routes[r].dst_stage, 0))
        return true;
    }
  }
  return false;
}

/* Receives are posted in the order of micro-batches. Where the transport matches first in, first
 * out, sends must come in that order too. next [n_stages], 0. */
static opipe_status check_rising(const opi_plan *plan, const opi_cut *cut, uint32_t *next,
                                 opipe_error *err) {
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    const opipe_action *action = &plan->actions[a];
    if (action->microbatch < next[action->stage] && sends(plan, cut, action->stage)) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "schedule '%s', rank %u, action %u: %uF%u comes after %uF%u, and transport "
                      "'%.100s' delivers in the order of micro-batches",
                      plan->schedule, action->rank, a - plan->rank_first[action->rank],
                      action->stage, action->microbatch, action->stage, next[action->stage] - 1,
                      plan->transport);
    }
    next[action->stage] = action->microbatch + 1;
  }
  return OPIPE_OK;
}

static opipe_status check_order(const opi_plan *plan, const opi_cut *cut,
                                const opipe_allocator *allocator, opipe_error *err) {
  const size_t n_bytes = plan->n_stages * sizeof(uint32_t);
  if (plan->link.rule == OPIPE_RULE_TAG)
    return OPIPE_OK;
  uint32_t *next = opi_alloc_zero(allocator, plan->n_stages, sizeof *next);
  if (next == NULL)
    return opi_fail_nomem(err, n_bytes, "the proof");
  const opipe_status status = check_rising(plan, cut, next, err);
  opi_free(allocator, next, n_bytes);
  return status;
}

opipe_status opi_prove(const opi_plan *plan, const opi_cut *cut, const opi_program_list *list,
                       const opipe_allocator *allocator, opipe_error *err) {
  opi_replay_result ignored;
  const size_t n = (size_t)plan->n_stages * plan->n_microbatches;
  uint8_t *seen = opi_alloc_zero(allocator, n, 1);
  if (seen == NULL)
    return opi_fail_nomem(err, n, "the proof");
  opipe_status status = check_complete(plan, seen, err);
  opi_free(allocator, seen, n);
  if (status == OPIPE_OK)
    status = check_order(plan, cut, allocator, err);
  if (status == OPIPE_OK)
    status = opi_replay(plan, cut, list, NULL, 2, allocator, &ignored, err);
  return status;
}
