/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts of plans of passes: with as many pages as fit, and the fastest of those that balance passes
 * of many rows and of few. */
#include <string.h>

#include "partition/cost/profile.h"
#include "partition/make/passes.h"

/* ---- pages ---- */

/* As many pages as fit beside the cut at hand, which was made with `least`. */
static opipe_status fill_cut(opi_plan *plan, opi_bound *bound, const opi_passes_cutter *cutter,
                             uint32_t most, uint32_t *out_n, opipe_error *err) {
  enum { TRIES = 4 };
  const uint32_t least = plan->decided.binding.generation.n_pages;
  opipe_status status = OPIPE_E_LIMIT;
  opipe_error own = OPIPE_ERROR_INIT;
  uint32_t n = opi_passes_room(plan, &plan->predicted.pages_rank);
  n = n > most ? most : n;
  for (uint32_t i = 0; i < TRIES && n > least && status == OPIPE_E_LIMIT; ++i) {
    opi_passes_set_pages(plan, bound, n);
    status = cutter->finish(cutter->ctx, &own);
    n -= status == OPIPE_E_LIMIT;
  }
  *out_n = status == OPIPE_OK ? n : least;
  return status == OPIPE_OK || status == OPIPE_E_LIMIT ? OPIPE_OK
                                                       : opi_fail(err, status, "%s", own.message);
}

/* Another cut may leave room for more than `fits`, and fewer than `most`, which do not fit. */
static opipe_status search_pages(opi_plan *plan, opi_bound *bound, const opi_passes_cutter *cutter,
                                 uint32_t least, uint32_t fits, uint32_t most, opipe_error *err) {
  enum { TRIES = 8 };
  uint32_t made = 0; /* the last cut's */
  for (uint32_t i = 0; i < TRIES && most - fits > 1; ++i) {
    opipe_error own = OPIPE_ERROR_INIT;
    const uint32_t n = fits + (most - fits) / 2;
    opi_passes_set_pages(plan, bound, n);
    const opipe_status status = cutter->cut(cutter->ctx, &own);
    if (status < 0 && status != OPIPE_E_LIMIT)
      return opi_fail(err, status, "%s", own.message);
    made = status == OPIPE_OK ? n : 0;
    if (status == OPIPE_OK)
      fits = n;
    else
      most = n;
  }
  if (made == fits)
    return OPIPE_OK;
  opi_passes_set_pages(plan, bound, fits);
  const opipe_status status = cutter->cut(cutter->ctx, err);
  if (status != OPIPE_E_LIMIT)
    return status;
  /* only the cut that was made with `least` has room for them */
  opi_passes_set_pages(plan, bound, least);
  OPI_TRY(cutter->cut(cutter->ctx, err));
  opi_passes_set_pages(plan, bound, fits);
  return cutter->finish(cutter->ctx, err);
}

opipe_status opi_passes_cut(opi_plan *plan, opi_bound *bound, const opi_passes_cutter *cutter,
                            opipe_error *err) {
  const opi_generation *g = &plan->decided.binding.generation;
  const uint32_t least = (g->context - 1) / g->page + 1, asked = g->n_pages;
  const uint64_t all = (uint64_t)least * g->active;
  const uint32_t most = all < INT32_MAX ? (uint32_t)all : (uint32_t)INT32_MAX;
  opipe_error own = OPIPE_ERROR_INIT;
  uint32_t fits = least;
  plan->predicted.pages_rank = OPIPE_NONE;
  opi_passes_set_pages(plan, bound, asked != 0 ? asked : most);
  const opipe_status status = cutter->cut(cutter->ctx, &own);
  if (status == OPIPE_OK)
    return status;
  if (status != OPIPE_E_LIMIT || asked != 0 || most == least)
    return opi_fail(err, status, "%s", own.message);
  opi_passes_set_pages(plan, bound, least);
  OPI_TRY(cutter->cut(cutter->ctx, err));
  OPI_TRY(fill_cut(plan, bound, cutter, most, &fits, err));
  OPI_TRY(search_pages(plan, bound, cutter, least, fits, most, err));
  (void)opi_passes_room(plan, &plan->predicted.pages_rank);
  return OPIPE_OK;
}

/* ---- times ---- */

/* groups, pages: as they were asked for. */
typedef struct passes_placing {
  const opi_pass_profiles *profiles;
  opi_plan *plan;
  opi_bound *bound;
  const opi_passes_cutter *cutter;
  uint32_t groups, pages;
} passes_placing;

static opipe_status cut_and_play(const passes_placing *p, uint32_t pages, opipe_error *err) {
  p->plan->decided.binding.generation.n_pages = pages;
  OPI_TRY(opi_passes_cut(p->plan, p->bound, p->cutter, err));
  return opi_passes_time(p->profiles, p->plan, p->groups, err);
}

/* Cuts balance the times of this class from now on. */
static void take_times(const passes_placing *p, uint32_t c) {
  for (uint32_t r = 0; r < p->plan->decided.n_ranks; ++r) {
    opi_profile *profile = p->cutter->profiles[r];
    memcpy(profile->node_ns, p->profiles->node_ns[c][r], profile->n_nodes * sizeof(double));
  }
}

static bool same_nodes(const opi_graph *g, const opi_graph *of) {
  bool same = g->n_nodes == of->n_nodes;
  for (uint32_t n = 0; same && n < g->n_nodes; ++n)
    same = strcmp(opi_node_key(g, &g->nodes[n]), opi_node_key(of, &of->nodes[n])) == 0;
  return same;
}

static opipe_status place(const opi_pass_profiles *profiles, opi_plan *plan, opi_bound *bound,
                          const opi_passes_cutter *cutter, opipe_error *err) {
  const opi_generation *g = &plan->decided.binding.generation;
  const passes_placing p = {profiles, plan, bound, cutter, g->groups, g->n_pages};
  const uint32_t many = profiles->n_classes - 1, few = opi_passes_decode_class(&plan->decided);
  opipe_error own = OPIPE_ERROR_INIT;
  OPI_TRY(cut_and_play(&p, p.pages, err));
  const double rate = plan->predicted.passes.tokens_per_s;
  const uint32_t n_pages = g->n_pages, limits = plan->predicted.pages_rank;
  const size_t n_bytes = plan->decided.n_nodes * sizeof *plan->decided.stage_of_node;
  if (plan->decided.n_stages == 1 || cutter->given || few == many ||
      opi_plan_width(&plan->decided) > 1 || /* members' costs are theirs alone */
      !same_nodes(bound->graph, profiles->bound[few]->graph))
    return OPIPE_OK;
  const uint32_t *before = opi_arena_copy(&plan->arena, plan->decided.stage_of_node, n_bytes);
  if (before == NULL)
    return opi_fail_nomem(err, n_bytes, "a cut");
  take_times(&p, few);
  const opipe_status status = cut_and_play(&p, n_pages, &own);
  if (status < 0 && status != OPIPE_E_LIMIT)
    return opi_fail(err, status, "%s", own.message);
  const bool same = memcmp(before, plan->decided.stage_of_node, n_bytes) == 0;
  const bool faster = plan->predicted.passes.tokens_per_s > rate;
  if (status == OPIPE_OK && (faster || same)) {
    if (limits != OPIPE_NONE)
      (void)opi_passes_room(plan, &plan->predicted.pages_rank);
    return OPIPE_OK;
  }
  take_times(&p, many);
  return cut_and_play(&p, p.pages, err);
}

opipe_status opi_passes_place(const opi_pass_profiles *profiles, opi_plan *plan, opi_bound *bound,
                              const opi_passes_cutter *cutter, opipe_error *err) {
  OPI_TRY(place(profiles, plan, bound, cutter, err));
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    plan->predicted.memory[r].page_room = opi_passes_rank_room(plan, r);
  return OPIPE_OK;
}
