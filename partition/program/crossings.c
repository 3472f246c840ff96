/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says of the tensors that cross stages. */
#include <stdlib.h>

#include "partition/program/cut.h"

static int by_stages(const void *left, const void *right) {
  const opi_route *a = *(const opi_route *const *)left, *b = *(const opi_route *const *)right;
  if (a->src_stage != b->src_stage)
    return a->src_stage < b->src_stage ? -1 : 1;
  if (a->dst_stage != b->dst_stage)
    return a->dst_stage < b->dst_stage ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

opipe_status opi_plan_name_crossings(opi_plan *plan, const opi_cut *cut, opipe_error *err) {
  const opi_route **routes = OPI_ARENA_ARRAY(&plan->arena, const opi_route *, cut->n_routes);
  uint32_t n = 0;
  plan->crossings = OPI_ARENA_ARRAY(&plan->arena, opi_crossing, cut->n_routes);
  if (plan->crossings == NULL || routes == NULL)
    return opi_fail_nomem(err, cut->n_routes * sizeof *plan->crossings, "a plan");
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    if (cut->routes[r].phase == OPI_PHASE_F)
      routes[n++] = &cut->routes[r];
  }
  if (n > 1)
    qsort(routes, n, sizeof *routes, by_stages);
  plan->n_crossings = n;
  for (uint32_t i = 0; i < n; ++i) {
    plan->crossings[i] =
        (opi_crossing){.name = opi_arena_strdup(&plan->arena, cut->cells[routes[i]->src_cell].name),
                       .src_stage = routes[i]->src_stage,
                       .dst_stage = routes[i]->dst_stage,
                       .n_bytes = routes[i]->n_bytes};
    if (plan->crossings[i].name == NULL)
      return opi_fail_nomem(err, 0, "a plan");
  }
  return OPIPE_OK;
}
