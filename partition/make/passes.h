/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of passes: their model, pages, predicted times. Private to this folder. */
#ifndef OPI_PASSES_PLAN_H
#define OPI_PASSES_PLAN_H

#include "loader/passes/row_model.h"
#include "partition/plan/env.h"

/* Reads params->generation into the plan and finds the model's row form: plan->rows. n_pages 0: as
 * many as fit; groups 0: not chosen yet. Errors: INVALID by field and number; those of the form. */
opipe_status opi_passes_begin(const opi_plan_env *env, const opipe_plan_params *params, bool trains,
                              opi_plan *plan, opipe_error *err);
/* The environment of the plan's rows, in place of the caller's; it must not move. */
typedef struct opi_passes_env {
  opi_plan_env env;
  opi_bind_options bind;
  opi_dim_binding dims[OPI_ROW_DIMS];
} opi_passes_env;
void opi_passes_env_make(const opi_plan_env *env, const opi_plan *plan, opi_passes_env *out);
/* The same for a plan that was read. */
opipe_status opi_passes_open(const opi_plan_env *env, opi_plan *plan, opipe_error *err);
/* Errors: UNSUPPORTED, what plans of passes are not combined with. */
opipe_status opi_passes_check(const opi_decision *plan, opipe_error *err);
/* bound: of the plan's rows, in which pages are counted anew. */
void opi_passes_set_pages(opi_plan *plan, opi_bound *bound, uint32_t n_pages);
/* Pages for which a rank has room beside everything else that was predicted, by its cap or its
 * device's memory; UINT64_MAX: no limit is known, or it holds none. */
uint64_t opi_passes_rank_room(const opi_plan *plan, uint32_t rank);
/* Pages that the caps, and devices' memory, leave room for beside everything else that was
 * predicted. *out_rank: has the least room; OPIPE_NONE: no limit is known. */
uint32_t opi_passes_room(const opi_plan *plan, uint32_t *out_rank);
/* Times of the nodes of every class of rows on every rank's device. */
typedef struct opi_pass_profiles {
  const opi_plan_env *env;
  opi_arena arena;
  uint32_t n_classes;
  opi_bound *bound[OPI_GENERATION_CLASSES];
  double **node_ns[OPI_GENERATION_CLASSES]; /* [n_ranks] [nodes]; shared between equal devices */
} opi_pass_profiles;
/* env: of the plan's rows. Free it whatever is returned. */
opipe_status opi_pass_profiles_make(const opi_plan_env *env, const opi_plan *plan,
                                    const opi_device_facts *facts, uint32_t cost,
                                    opi_pass_profiles *out, opipe_error *err);
void opi_pass_profiles_free(opi_pass_profiles *profiles); /* accepts zeros */
/* The class of the rows that a stage has if all active sequences generate and each stage has some
 * of them. */
uint32_t opi_passes_decode_class(const opi_decision *plan);
/* How the planner finds a cut, and how it finishes the last one anew. Errors: LIMIT: caps. */
typedef struct opi_passes_cutter {
  opipe_status (*cut)(void *ctx, opipe_error *err);
  opipe_status (*finish)(void *ctx, opipe_error *err);
  void *ctx;
  struct opi_profile **profiles; /* [n_ranks] whose times of nodes decide the cut */
  bool given;                    /* no times do */
} opi_passes_cutter;
/* Cuts with the pages that were asked for; or with all that active sequences can use; or, where
 * these do not fit, with as many as fit beside the cut that is found with one sequence's. */
opipe_status opi_passes_cut(opi_plan *plan, opi_bound *bound, const opi_passes_cutter *cutter,
                            opipe_error *err);
/* Cuts and plays. A pass of few rows spends its time otherwise than one of many: of the cuts that
 * balance one and the other, the plan keeps the one with more tokens per second, unless fewer
 * pages fit. Predicted times of stages are then those of such a pass. */
opipe_status opi_passes_place(const opi_pass_profiles *profiles, opi_plan *plan, opi_bound *bound,
                              const opi_passes_cutter *cutter, opipe_error *err);
/* Plays the plan's cut: times of every class; where `groups` is 0, the passes in flight, of which
 * the ranks' lists are then proven; slices of prompts; whether replicas would be faster. */
opipe_status opi_passes_time(const opi_pass_profiles *profiles, opi_plan *plan, uint32_t groups,
                             opipe_error *err);

#endif /* OPI_PASSES_PLAN_H */
