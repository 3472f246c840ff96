/* SPDX-License-Identifier: Apache-2.0 */
/* Places reductions through the passes of the action language (partition/program/records.h). */
#include <string.h>

#include "partition/program/model.h"
#include "partition/program/records.h"

/* Both lists have the plan's records in the same order. */
static void read_reductions(const opi_decision *plan, const opi_do_list *list,
                            uint32_t *out_after) {
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    uint32_t next = plan->rank_first[rank];
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &list->items[i];
      if (opi_do_is_compute(a->kind))
        ++next;
      else if (a->kind == OPI_DO_REDUCE && next > plan->rank_first[rank])
        out_after[a->stage * plan->n_replicas + a->replica] = next - 1;
    }
  }
}

static opipe_status reduce(const opi_decision *plan, const opi_cut_model *model, opi_arena *scratch,
                           uint32_t *out_after, opipe_error *err) {
  const opipe_allocator *allocator = scratch->allocator;
  opi_problem problem;
  opi_do_list *order = NULL, *reduced = NULL;
  OPI_TRY(opi_records_problem(plan, model->variants[0].slices[0].cut, scratch, &problem, err));
  opipe_status status =
      opi_do_list_from_records(&problem, plan->actions, plan->n_actions, allocator, &order, err);
  if (status == OPIPE_OK)
    status = opi_pass_check(&problem, order, allocator, err);
  if (status == OPIPE_OK)
    status = opi_pass_reduce(&problem, order, false, allocator, &reduced, err);
  if (status == OPIPE_OK)
    read_reductions(plan, reduced, out_after);
  opi_do_list_free(reduced);
  opi_do_list_free(order);
  return status < 0 ? opi_error_prefix(err, "schedule '%s': ", plan->schedule.name) : OPIPE_OK;
}

opipe_status opi_reductions_place(const opi_decision *plan, opi_cut_model *model,
                                  opipe_error *err) {
  const size_t n = (size_t)plan->n_stages * plan->n_replicas;
  opi_arena scratch;
  model->piece_plan.reduce_after = OPI_ARENA_ARRAY(&model->arena, uint32_t, n);
  if (model->piece_plan.reduce_after == NULL)
    return opi_fail_nomem(err, n * sizeof(uint32_t), "reductions");
  memset(model->piece_plan.reduce_after, 0xff, n * sizeof(uint32_t));
  if (plan->actions == NULL || plan->sync == OPIPE_SYNC_END ||
      plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED)
    return OPIPE_OK;
  opi_arena_init(&scratch, plan->allocator, 0);
  const opipe_status status = reduce(plan, model, &scratch, model->piece_plan.reduce_after, err);
  opi_arena_release(&scratch);
  return status;
}
