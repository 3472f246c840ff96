/* SPDX-License-Identifier: Apache-2.0 */
/* Which dimensions are the batch: one rule for every plan that is made. */
#ifndef OPI_SEARCH_BATCH_H
#define OPI_SEARCH_BATCH_H

#include "partition/plan/env.h"

/* Takes the names of the batch from `asked` ("a" or "a,b"), or else the first dimensions of all
 * inputs that have as many rows as the first input; sets batch_dim and batch_rows. plan->dims must
 * be there. Errors: NOTFOUND (a name that is no free dimension), INVALID (names of different
 * lengths). */
opipe_status opi_batch_choose(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err);

/* Once it is known whether rows are cut: proves that they may be. What was not asked for is tried
 * in turn, all dimensions of one length together first; without a cut a forward plan keeps the
 * first one alone. Errors name input, dimension, the dimensions that could be named instead, and
 * the first reason. */
opipe_status opi_batch_settle(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err);

#endif /* OPI_SEARCH_BATCH_H */
