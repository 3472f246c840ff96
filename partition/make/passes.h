/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of passes: their model, pages, predicted times. Private to this folder. */
#ifndef OPI_PASSES_PLAN_H
#define OPI_PASSES_PLAN_H

#include "loader/passes/row_model.h"
#include "partition/plan/env.h"

/* Reads params->generation into the plan and finds the model's row form: plan->rows. n_pages 0: as
 * many as fit; groups 0: not chosen yet. Errors: INVALID by field and number; those of the form. */
opipe_status opi_passes_begin(const opi_plan_env *env, const opipe_plan_params *params,
                              opi_plan *plan, opipe_error *err);
/* The same for a plan that was read. */
opipe_status opi_passes_open(const opi_plan_env *env, opi_plan *plan, opipe_error *err);
/* Errors: UNSUPPORTED, what plans of passes are not combined with. */
opipe_status opi_passes_check(const opi_decision *plan, opipe_error *err);
/* bound: of the plan's rows, in which pages are counted anew. */
void opi_passes_set_pages(opi_plan *plan, opi_bound *bound, uint32_t n_pages);
/* Pages that the caps, and devices' memory, leave room for beside everything else that was
 * predicted. *out_rank: has the least room; OPIPE_NONE: no limit is known. */
uint32_t opi_passes_room(const opi_plan *plan, uint32_t *out_rank);
/* Times of every class of rows, and where they were not given, the passes in flight. env: of the
 * plan's rows. */
opipe_status opi_passes_time(const opi_plan_env *env, opi_plan *plan, const opi_device_facts *facts,
                             uint32_t cost, opipe_error *err);

#endif /* OPI_PASSES_PLAN_H */
