/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's records in the action language (partition/schedule/actions.h). */
#ifndef OPI_RECORDS_H
#define OPI_RECORDS_H

#include "partition/program/model.h"
#include "partition/schedule/actions.h"

/* The plan's records as a problem of the action language, with the edges of `cut` (of whole
 * micro-batches, no pieces) in `arena`. */
opipe_status opi_records_problem(const opi_decision *plan, const opi_cut *cut, opi_arena *arena,
                                 opi_problem *out_problem, opipe_error *err);
/* Checks that every (stage, micro-batch, slice, part) occurs once per pass, at home, in an order
 * that its own rank can keep, with the weights that the version rule requires. Errors: INVALID with
 * rank, step, action; UNSUPPORTED, flags. */
opipe_status opi_records_check(const opi_decision *plan, const opi_cut *cut, opipe_error *err);

/* Fills model->piece_plan.reduce_after as the plan's sync says. Errors: INVALID, records. */
opipe_status opi_reductions_place(const opi_decision *plan, opi_cut_model *model, opipe_error *err);

#endif /* OPI_RECORDS_H */
