/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan decided, and plans on the devices and the link that they say themselves. */
#ifndef OPI_PLAN_PAGE_H
#define OPI_PLAN_PAGE_H

#include "partition/plan/plan.h"
#include "partition/study/cluster/cluster.h"
#include "partition/study/page/page.h"

/* As JSON: schedule, stages (ranks, nodes, times, what is kept), tensors of the cut, ranks (device,
 * bytes by category, cap), predicted times. */
void opi_page_describe_plan(const opi_plan *plan, opi_text *out_json);

/* A cluster of a device for each rank and the plan's own link, which nobody shares. In `arena`.
 * Errors: NOMEM. */
opipe_status opi_plan_cluster(const opi_plan *plan, opi_arena *arena, opi_cluster *out_cluster,
                              opipe_error *err);

#endif /* OPI_PLAN_PAGE_H */
