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

#endif /* OPI_WORK_H */
