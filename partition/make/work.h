/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a plan. */
#ifndef OPI_WORK_H
#define OPI_WORK_H

#include "partition/cost/profile.h"
#include "partition/program/model.h"
#include "partition/schedule/events.h"

/* Sets the predicted flops of the plan's graphs, `model`, and the devices' peak if `facts`
 * [n_ranks] is not NULL. */
void opi_plan_count_work(opi_plan *plan, const opi_device_facts *facts, const opi_cut_model *model);

/* Sets the predicted few_bits: counts the readers, other than gathers, of matrices that nodes
 * unpack (OPI_KIND_UNPACK).
 */
opipe_status opi_plan_count_few_bits(opi_plan *plan, const opi_cut_model *model, opipe_error *err);

/* Replaces modelled times of stages by the caller's, in ms: profiles of their own, or devices that
 * only sleep. */
void opi_plan_given_times(opi_plan *plan, const opi_costs *costs);

/* max(sum / stages, largest node), with each node on its fastest device, or divided by the largest
 * number of replicas that share a micro-batch. profiles [n_ranks]. */
double opi_plan_lower_bound(const opi_decision *plan, opi_profile *const *profiles);

#endif /* OPI_WORK_H */
