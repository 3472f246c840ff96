/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's training spec: which parameters, by which loss and optimizer. */
#ifndef OPI_PLAN_SPEC_H
#define OPI_PLAN_SPEC_H

#include "partition/plan/plan.h"

/* Records in the plan's spec which parameters a training graph, made without a choice, trains. */
opipe_status opi_train_choose(opi_plan *plan, const opi_training *training, opipe_error *err);
/* Checks that all parameters that the plan trains exist. */
opipe_status opi_train_check_choice(const opi_decision *plan, const opi_graph *graph,
                                    opipe_error *err);
/* Copies a spec into the plan. Errors: INVALID, its optimizer, or a loss scale without fp16. */
opipe_status opi_train_spec_copy(opi_plan *plan, const opi_train_spec *spec, opipe_error *err);

#endif /* OPI_PLAN_SPEC_H */
