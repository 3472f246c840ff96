/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a plan's ranks as the caller lists, describes and caps them. */
#ifndef OPI_SEARCH_DEVICES_H
#define OPI_SEARCH_DEVICES_H

#include "partition/plan/env.h"

/* Fills the decision's devices and *out_facts [n_ranks], in `scratch`. Rank r takes entry r of
 * params->devices; ranks beyond the list take the last entry. Errors: the backends'; INVALID, a
 * description or an option. */
opipe_status opi_devices_choose(const opi_plan_env *env, const opipe_plan_params *params,
                                opi_plan *plan, opi_arena *scratch,
                                const opi_device_facts **out_facts, opipe_error *err);

/* True if every node costs the same on both ranks. facts [n_ranks]. */
bool opi_devices_alike(const opi_decision *plan, const opi_device_facts *facts, uint32_t one,
                       uint32_t other);

#endif /* OPI_SEARCH_DEVICES_H */
