/* SPDX-License-Identifier: Apache-2.0 */
/* How much a plan computes. */
#ifndef OPI_WORK_H
#define OPI_WORK_H

#include "partition/program/model.h"

/* Sets plan->flops and, where the devices are known (plan->facts), plan->peak_flops; model: the
 * plan's graphs. */
void opi_plan_count_work(opi_plan *plan, const opi_cut_model *model);

/* Sets plan->few_bits: readers, but gathers, of the matrices that nodes unpack (OPI_KIND_UNPACK).
 */
opipe_status opi_plan_count_few_bits(opi_plan *plan, const opi_cut_model *model, opipe_error *err);

/* Model-flops utilisation in the steady state: flops over what the plan's devices could do in
 * interval_ns. 0: not known. */
static inline double opi_plan_utilisation(const opi_plan *plan) {
  return plan->peak_flops > 0 && plan->interval_ns > 0
             ? plan->flops / (plan->peak_flops * plan->interval_ns * 1e-9)
             : 0;
}

#endif /* OPI_WORK_H */
