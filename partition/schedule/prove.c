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

opipe_status opi_prove(const opi_plan *plan, const opi_cutting *cutting,
                       const opi_program_list *list, const opipe_allocator *allocator,
                       opipe_error *err) {
  opi_replay_result ignored;
  const size_t n = (size_t)plan->n_stages * plan->n_microbatches;
  uint8_t *seen = opi_alloc_zero(allocator, n, 1);
  if (seen == NULL)
    return opi_fail_nomem(err, n, "the proof");
  opipe_status status = check_complete(plan, seen, err);
  opi_free(allocator, seen, n);
  if (status == OPIPE_OK)
    status = opi_replay(plan, cutting, list, NULL, 2, allocator, &ignored, err);
  return status;
}
