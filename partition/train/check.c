/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule's records under the action language: the order checked, lowered with the model's own
 * edges between stages, and proven. The executor's lists (lists.c) are made from the same records
 * and matched by number, which is what is proven here.
 */
#include "partition/train/model.h"

static opipe_status prove(const opi_plan *plan, const opi_problem *problem, opipe_error *err) {
  const opi_lowering how = {.receive_depth = 0};
  opi_do_list *order = NULL, *lowered = NULL;
  opi_proof proof = {.peak_stash = NULL};
  opipe_status status = opi_do_list_from_records(problem, plan->actions, plan->n_actions,
                                                 plan->allocator, &order, err);
  if (status == OPIPE_OK)
    status = opi_lower_order(problem, order, &how, plan->allocator, &lowered, err);
  if (status == OPIPE_OK)
    status = opi_proof_check(problem, lowered, OPI_RULE_TAG, plan->allocator, &proof, err);
  opi_do_list_free(lowered);
  opi_do_list_free(order);
  return status < 0 ? opi_error_prefix(err, "schedule '%s': ", plan->schedule) : OPIPE_OK;
}

opipe_status opi_train_check(const opi_plan *plan, const opi_train_model *model, opipe_error *err) {
  opi_problem problem;
  opi_arena scratch;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = opi_train_problem(plan, model, &scratch, &problem, err);
  if (status == OPIPE_OK)
    status = prove(plan, &problem, err);
  opi_arena_release(&scratch);
  return status;
}
