/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says of its training: which parameters, by what loss and optimizer. */
#ifndef OPI_PLAN_SPEC_H
#define OPI_PLAN_SPEC_H

#include "partition/plan/plan.h"

/* Writes into the plan's spec what a training graph made without a choice trains. */
opipe_status opi_train_choose(opi_plan *plan, const opi_training *training, opipe_error *err);
/* Is all that the plan trains there? */
opipe_status opi_train_check_choice(const opi_plan *plan, const opi_graph *graph, opipe_error *err);
/* Copies a spec into the plan. Errors: INVALID, its optimizer; a loss scale without fp16. */
opipe_status opi_train_spec_copy(opi_plan *plan, const opi_train_spec *spec, opipe_error *err);

#endif /* OPI_PLAN_SPEC_H */
