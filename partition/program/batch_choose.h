/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the batch's dimensions: one rule for every plan that is made. */
#ifndef OPI_SEARCH_BATCH_H
#define OPI_SEARCH_BATCH_H

#include "partition/plan/env.h"

/* Takes the batch's names from `asked` ("a" or "a,b"), or else the first dimensions of all inputs
 * with as many rows as the first input; sets batch_dim and batch_rows. The dims must be set.
 * Errors: NOTFOUND (a name that is no free dimension), INVALID (names of different lengths). */
opipe_status opi_batch_choose(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err);

/* Proves that rows may be cut, once it is known whether they are. Without names in `asked`,
 * candidates are tried in turn, all dimensions of one length together first; without a cut a
 * forward plan keeps only the first. Errors name input, dimension, the dimensions that could be
 * named instead, and the first reason. */
opipe_status opi_batch_settle(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err);

#endif /* OPI_SEARCH_BATCH_H */
