/* SPDX-License-Identifier: Apache-2.0 */
/* The proof of what was lowered, forward form, of records that are proven: by replaying two
 * requests, since slots couple a request with the next, freedom from deadlock under back-pressure.
 */
#include "partition/simulate/replay.h"

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
  opi_replay_result ignored = {0};
  OPI_TRY(check_order(plan, cut, allocator, err));
  return opi_replay(plan, cut, list, NULL, 2, allocator, &ignored, err);
}
