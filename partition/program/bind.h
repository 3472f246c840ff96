/* SPDX-License-Identifier: Apache-2.0 */
/* The options with which a plan binds its model. */
#ifndef OPI_PLAN_BIND_H
#define OPI_PLAN_BIND_H

#include "partition/plan/env.h"

/* Copies a model's binding into the plan: dimensions, pins, barriers (with room for n_more of
 * them), flags. Errors: INVALID, a pin without a valid shape; NOMEM. */
opipe_status opi_plan_take_binding(opi_plan *plan, const opi_bind_options *bind, uint32_t n_more,
                                   opipe_error *err);
/* The bound graph of one micro-batch with `rows` rows under the plan (rows 0: the plan has no batch
 * dimension). */
opipe_status opi_plan_bind(const opi_decision *plan, const opi_model *model,
                           const opi_bind_options *base, int64_t rows, opi_bound **out_bound,
                           opipe_error *err);
/* The same with another function in place of opi_bind; NULL: opi_bind. */
typedef opipe_status (*opi_bind_fn)(const opi_model *model, const opi_bind_options *options,
                                    opi_bound **out_bound, opipe_error *err);
opipe_status opi_plan_bind_by(opi_bind_fn bind, const opi_decision *plan, const opi_model *model,
                              const opi_bind_options *base, int64_t rows, opi_bound **out_bound,
                              opipe_error *err);

/* The bound graph of a micro-batch with `rows` rows. *out_own: NULL if it is env->bound, else
 * *out_bound, which the caller frees, on failure too. */
opipe_status opi_plan_bound(const opi_plan_env *env, const opi_decision *plan, int64_t rows,
                            const opi_bound **out_bound, opi_bound **out_own, opipe_error *err);

#endif /* OPI_PLAN_BIND_H */
