/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's decision as JSON, and a plan on its own devices and link. */
#ifndef OPI_PLAN_PAGE_H
#define OPI_PLAN_PAGE_H

#include "partition/plan/plan.h"
#include "partition/study/cluster/cluster.h"
#include "partition/study/page/page.h"

/* Writes JSON: schedule, stages (ranks, nodes, times, stashes), tensors of the cut, ranks (device,
 * bytes by category, cap), predicted times. */
void opi_page_describe_plan(const opi_plan *plan, opi_text *out_json);

/* Makes a cluster of one device per rank and the plan's own link, which is not shared. Allocates in
 * `arena`. Errors: NOMEM. */
opipe_status opi_plan_cluster(const opi_plan *plan, opi_arena *arena, opi_cluster *out_cluster,
                              opipe_error *err);

#endif /* OPI_PLAN_PAGE_H */
