/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's record of the tensors that cross stages. */
#include <stdlib.h>
#include <string.h>

#include "partition/program/model.h"

static int by_stages(const void *left, const void *right) {
  const opi_route *a = *(const opi_route *const *)left, *b = *(const opi_route *const *)right;
  if (a->src_stage != b->src_stage)
    return a->src_stage < b->src_stage ? -1 : 1;
  if (a->dst_stage != b->dst_stage)
    return a->dst_stage < b->dst_stage ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

static int compare(const opi_crossing *a, const opi_crossing *b) {
  if (a->src_stage != b->src_stage)
    return a->src_stage < b->src_stage ? -1 : 1;
  if (a->dst_stage != b->dst_stage)
    return a->dst_stage < b->dst_stage ? -1 : 1;
  return strcmp(a->name, b->name);
}

static int by_names(const void *left, const void *right) {
  return compare(*(opi_crossing *const *)left, *(opi_crossing *const *)right);
}

/* Counts bytes of whole micro-batches; slices and pieces of rows are messages of their own. */
static opipe_status count_bytes(opi_plan *plan, const opi_cut_model *model, opipe_error *err) {
  const uint32_t n = plan->predicted.n_crossings;
  const opi_cut *cut = model->cuts[0];
  opi_crossing **sorted = OPI_ARENA_ARRAY(&plan->arena, opi_crossing *, (size_t)n + 1);
  if (sorted == NULL)
    return opi_fail_nomem(err, n * sizeof *sorted, "a plan");
  for (uint32_t i = 0; i < n; ++i)
    sorted[i] = &plan->predicted.crossings[i];
  if (n > 1)
    qsort(sorted, n, sizeof *sorted, by_names);
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    const opi_route *route = &cut->routes[r];
    const opi_crossing key = {.name = cut->cells[route->src_cell].name,
                              .src_stage = route->src_stage / model->n_pieces,
                              .dst_stage = route->dst_stage / model->n_pieces},
                       *at = &key;
    opi_crossing **found =
        route->phase != OPI_PHASE_F || route->empty
            ? NULL
            : bsearch(&at, sorted, n, sizeof *sorted, by_names); /* none: the tensor stays in its
                                                                    stage */
    if (found == NULL)
      continue;
    (*found)->n_bytes += route->n_bytes;
    if (route->n_bytes > (*found)->message_bytes)
      (*found)->message_bytes = route->n_bytes;
  }
  return OPIPE_OK;
}

/* Whether a tensor that several stretches read is in the list already; they follow each other. */
static bool is_listed(const opi_plan *plan, const opi_cut_model *model, const opi_cut *cut,
                      const opi_route *route) {
  const opi_crossing key = {.name = cut->cells[route->src_cell].name,
                            .src_stage = route->src_stage / model->n_places,
                            .dst_stage = route->dst_stage / model->n_places};
  uint32_t i = plan->predicted.n_crossings;
  while (model->n_places > 1 && i > 0 && compare(&plan->predicted.crossings[i - 1], &key) != 0 &&
         plan->predicted.crossings[i - 1].dst_stage >= key.dst_stage)
    --i;
  return model->n_places > 1 && i > 0 && compare(&plan->predicted.crossings[i - 1], &key) == 0;
}

opipe_status opi_plan_name_crossings(opi_plan *plan, const opi_cut_model *model, opipe_error *err) {
  const opi_cut *cut = model->variants[0].slices[0].cut;
  const opi_route **routes = OPI_ARENA_ARRAY(&plan->arena, const opi_route *, cut->n_routes);
  uint32_t n = 0;
  plan->predicted.n_crossings = 0;
  plan->predicted.crossings = OPI_ARENA_ARRAY(&plan->arena, opi_crossing, cut->n_routes);
  if (plan->predicted.crossings == NULL || routes == NULL)
    return opi_fail_nomem(err, cut->n_routes * sizeof *plan->predicted.crossings, "a plan");
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    if (cut->routes[r].phase == OPI_PHASE_F &&
        cut->routes[r].src_stage / model->n_places != cut->routes[r].dst_stage / model->n_places)
      routes[n++] = &cut->routes[r];
  }
  if (n > 1)
    qsort(routes, n, sizeof *routes, by_stages);
  for (uint32_t i = 0; i < n; ++i) {
    if (is_listed(plan, model, cut, routes[i]))
      continue;
    plan->predicted.crossings[plan->predicted.n_crossings++] =
        (opi_crossing){.name = opi_arena_strdup(&plan->arena, cut->cells[routes[i]->src_cell].name),
                       .src_stage = routes[i]->src_stage / model->n_places,
                       .dst_stage = routes[i]->dst_stage / model->n_places};
    if (plan->predicted.crossings[plan->predicted.n_crossings - 1].name == NULL)
      return opi_fail_nomem(err, 0, "a plan");
  }
  return plan->predicted.n_crossings == 0 ? OPIPE_OK : count_bytes(plan, model, err);
}
