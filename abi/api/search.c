/* SPDX-License-Identifier: Apache-2.0 */
/* Planner auto for strategy_make: converts the host's question to the engine's, with all installed
 * schedules. [any-thread] */
#include "abi/api/planning.h"
#include "loader/base/fp.h"

_Static_assert((int)OPI_AUTO_STEP == (int)OPIPE_OBJECTIVE_STEP &&
                   (int)OPI_AUTO_THROUGHPUT == (int)OPIPE_OBJECTIVE_THROUGHPUT &&
                   (int)OPI_AUTO_MEMORY == (int)OPIPE_OBJECTIVE_MEMORY &&
                   (int)OPI_AUTO_LATENCY == (int)OPIPE_OBJECTIVE_LATENCY,
               "objectives are passed on as they are");
_Static_assert((int)OPI_RECOMPUTES_NEVER == (int)OPIPE_STRATEGY_RECOMPUTES_NEVER &&
                   (int)OPI_RECOMPUTES_ALWAYS == (int)OPIPE_STRATEGY_RECOMPUTES_ALWAYS,
               "and so is recomputation");

static const double NS_PER_MS = 1e6;

/* ---- progress ---- */

static void tell_progress(void *ctx, const opi_auto_progress *now) {
  const opipe_strategy_params *p = ctx;
  opi_fp_border *lent = opi_fp_lend();
  opi_callback_enter();
  p->progress(p->progress_ctx, now->n_bounded, now->n_simulated, now->best_ns);
  opi_callback_leave();
  opi_fp_take(lent);
}

/* ---- the question ---- */

opi_auto opi_profile_question(const opi_profile_object *profile, const opi_cluster *cluster,
                              bool forward) {
  const opi_context_object *context = profile->context;
  return (opi_auto){
      .planning = {.layers = profile->layers, .cluster = cluster, .allocator = &context->allocator},
      .plugins = &context->plugins,
      .mode = forward ? OPIPE_MODE_FORWARD : OPIPE_MODE_TRAIN,
      .dtype = profile->layers->weight_bytes == 2 ? OPIPE_FLOAT16 : OPIPE_FLOAT,
      .now_ns = opi_now_ns};
}

static opipe_status check(const opipe_strategy_params *p, opipe_error *err) {
  if (p->limit_ms != 0 && p->objective != OPIPE_OBJECTIVE_MEMORY) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "strategy_make: limit_ms is %g, but the objective is %s: only objective memory "
                    "has a time limit",
                    p->limit_ms, opi_auto_objective_name(p->objective));
  }
  return OPIPE_OK;
}

opipe_status opi_profile_search(const opi_profile_object *profile, const opipe_strategy_params *p,
                                const opi_cluster *cluster, bool forward, opi_arena *arena,
                                opi_auto_answer **out_answer, opipe_error *err) {
  const opi_plugins *plugins = &profile->context->plugins;
  opi_layers **layers = NULL;
  opi_auto q = opi_profile_question(profile, cluster, forward);
  OPI_TRY(check(p, err));
  OPI_TRY(plugins->schedules(plugins->ctx, arena, &q.schedules, &q.n_schedules, err));
  OPI_TRY(opi_profile_by_class(profile, cluster, arena, &layers, err));
  q.planning.n_devices = p->n_devices;
  q.planning.batch = p->batch;
  q.planning.samples = p->samples;
  q.planning.state_bytes = p->state_bytes;
  q.class_layers = (const opi_layers *const *)layers;
  q.objective = p->objective;
  q.limit_ns = p->limit_ms * NS_PER_MS;
  q.spare_bytes = p->spare_bytes;
  q.allow_stale = (p->flags & OPIPE_STRATEGY_ALLOW_STALE) != 0;
  q.groups = profile->source.model != NULL;
  q.hypothetical = (p->flags & OPIPE_STRATEGY_HYPOTHETICAL) != 0;
  q.causal = (p->flags & OPIPE_STRATEGY_CAUSAL) != 0;
  q.slice_ns = p->slice_ns;
  q.fixed = (opi_auto_fixed){.schedule = p->schedule,
                             .n_stages = p->n_stages,
                             .n_ranks = p->n_ranks,
                             .microbatches = p->n_microbatches,
                             .pipelines = p->replicas,
                             .width = p->width,
                             .recompute = p->recompute};
  q.n_threads = p->n_threads;
  q.budget_s = p->budget_s;
  q.progress = p->progress == NULL ? NULL : tell_progress;
  q.progress_ctx = (void *)(uintptr_t)p;
  const opipe_status status = opi_auto_search(&q, out_answer, err);
  opi_profile_free_classes(layers, cluster->n_classes);
  return status;
}
