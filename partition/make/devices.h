/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a plan's ranks, as the caller lists, describes and caps them. */
#ifndef OPI_SEARCH_DEVICES_H
#define OPI_SEARCH_DEVICES_H

#include "partition/plan/env.h"

/* Fills plan->devices and plan->facts, *out_facts too, [n_ranks], in `scratch`: every rank has its
 * entry of params->devices, the last one is for all ranks behind it. Errors: of backends; INVALID,
 * a description or an option. */
opipe_status opi_devices_choose(const opi_plan_env *env, const opipe_plan_params *params,
                                opi_plan *plan, opi_arena *scratch, opi_device_facts **out_facts,
                                opipe_error *err);

#endif /* OPI_SEARCH_DEVICES_H */
