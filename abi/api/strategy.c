/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies: made by planners, described, compared, turned into plans. [any-thread] */
#include "abi/api/planning.h"
#include "loader/base/nearest.h"
#include "partition/schedule/ask.h"
#include "partition/study/layers/compare.h"
#include "partition/study/page/compare_page.h"

#include <stdio.h>
#include <string.h>

void opi_strategy_unref(void *strategy) {
  opi_strategy_object *s = strategy;
  if (s == NULL || !opi_unref(&s->refs))
    return;
  opi_profile_object *profile = s->profile;
  if (s->found_by != NULL)
    opi_strategy_unref(s->found_by);
  else if (s->answer != NULL)
    opi_auto_free((opi_auto_answer *)(uintptr_t)s->answer);
  else
    opi_strategy_free((opi_strategy *)(uintptr_t)s->strategy);
  opi_free(&profile->context->allocator, s, sizeof(*s));
  opi_profile_unref(profile);
}

/* ---- making ---- */

/* Fields that only planner auto uses. */
static opipe_status check_named(const opipe_strategy_params *p, opipe_error *err) {
  const struct {
    const char *name;
    bool given;
  } fields[] = {{"objective", p->objective != OPIPE_OBJECTIVE_STEP},
                {"limit_ms", p->limit_ms != 0},
                {"budget_s", p->budget_s != 0},
                {"schedule", p->schedule != NULL},
                {"n_stages", p->n_stages != 0},
                {"n_microbatches", p->n_microbatches != 0},
                {"n_ranks", p->n_ranks != 0},
                {"replicas", p->replicas != 0},
                {"width", p->width != 0},
                {"recompute", p->recompute != OPIPE_STRATEGY_RECOMPUTES_FREE},
                {"spare_bytes", p->spare_bytes != 0},
                {"slice_ns", p->slice_ns != 0}};
  for (size_t i = 0; i < OPI_COUNT(fields); ++i) {
    if (fields[i].given) {
      return opi_fail(
          err, OPIPE_E_INVALID,
          "strategy_make: planner '%.40s' decides by its paper's rules: only planner auto takes %s",
          p->planner, fields[i].name);
    }
  }
  return OPIPE_OK;
}

static void cap_memory(opi_cluster *cluster, uint64_t memory_bytes) {
  for (uint32_t i = 0; i < cluster->n_devices; ++i) {
    if (cluster->descriptions[i].memory_bytes == 0)
      cluster->descriptions[i].memory_bytes = memory_bytes;
  }
}

/* An empty strategy. */
static opipe_status new_strategy(opi_profile_object *profile, opi_strategy_object **out_strategy,
                                 opipe_error *err) {
  opi_strategy_object *s = opi_alloc_zero(&profile->context->allocator, 1, sizeof(*s));
  if (s == NULL)
    return opi_fail_nomem(err, sizeof(*s), "a strategy");
  atomic_init(&s->refs, 1);
  opi_ref(&profile->refs);
  s->profile = profile;
  *out_strategy = s;
  return OPIPE_OK;
}

/* Makes the strategy's handle for the host if `status` is OK. Takes the strategy over, also on
 * failure. */
static opipe_status hand_out(opi_strategy_object *s, opipe_status status,
                             opipe_strategy **out_strategy, opipe_error *err) {
  uint64_t handle = 0;
  if (status < 0) {
    opi_strategy_unref(s);
    return status;
  }
  OPI_TRY(opi_handle_new(OPI_HANDLE_STRATEGY, s, opi_strategy_unref, s->profile->context->handle,
                         &handle, err));
  *out_strategy = opi_handle_pointer(handle);
  return OPIPE_OK;
}

/* One of the papers' planners. */
static opipe_status ask_planner(const opi_profile_object *profile, opi_planner_fn plan,
                                const opipe_strategy_params *p, const opi_cluster *cluster,
                                opi_strategy_object *io_strategy, opipe_error *err) {
  const opi_planning planning = {.layers = profile->layers,
                                 .cluster = cluster,
                                 .allocator = &profile->context->allocator,
                                 .n_devices = p->n_devices,
                                 .batch = p->batch,
                                 .samples = p->samples,
                                 .state_bytes = p->state_bytes};
  opi_strategy *strategy = NULL;
  OPI_TRY(check_named(p, err));
  const opipe_status status = plan(&planning, &strategy, err);
  io_strategy->strategy = strategy;
  return status < 0 ? status : opi_strategy_name_stages(strategy, profile->layers, err);
}

static opipe_status ask_auto(const opi_profile_object *profile, const opipe_strategy_params *p,
                             const opi_cluster *cluster, opi_arena *arena,
                             opi_strategy_object *io_strategy, opipe_error *err) {
  opi_auto_answer *answer = NULL;
  OPI_TRY(opi_profile_search(profile, p, cluster, io_strategy->forward, arena, &answer, err));
  io_strategy->answer = answer;
  io_strategy->strategy = answer->ranked[0].strategy;
  for (uint32_t i = 0; i < answer->n_ranked; ++i)
    OPI_TRY(opi_strategy_name_stages(answer->ranked[i].strategy, profile->layers, err));
  return OPIPE_OK;
}

static opipe_status no_planner(const char *name, opipe_error *err) {
  char known[256], meant[OPI_NEAREST_ROOM];
  (void)snprintf(known, sizeof known, "auto, %s", opi_planner_names());
  return opi_fail(err, OPIPE_E_NOTFOUND, "strategy_make: no planner '%.40s'; these are: %s%s", name,
                  known, opi_nearest_of(name, known, ", ", meant, sizeof meant));
}

static opipe_status ask(opi_profile_object *profile, const opipe_strategy_params *p,
                        opi_arena *arena, opi_strategy_object *io_strategy, opipe_error *err) {
  opi_cluster cluster;
  const bool decides = p->planner == NULL || strcmp(p->planner, "auto") == 0;
  const opi_planner_fn plan = decides ? NULL : opi_planner_find(p->planner);
  const opi_cluster_text text = {p->cluster, p->cluster_bytes, p->cluster_name};
  if (!decides && plan == NULL)
    return no_planner(p->planner, err);
  OPI_TRY(opi_api_take_cluster("strategy_make", &text, arena, &cluster, err));
  cap_memory(&cluster, p->memory_bytes);
  return decides ? ask_auto(profile, p, &cluster, arena, io_strategy, err)
                 : ask_planner(profile, plan, p, &cluster, io_strategy, err);
}

opipe_status opi_api_strategy_make(opi_profile_object *profile, const opipe_strategy_params *params,
                                   opipe_strategy **out_strategy, opipe_error *err) {
  opipe_strategy_params own = {.struct_size = (uint32_t)sizeof own};
  opi_strategy_object *s = NULL;
  opi_arena arena;
  if (params == NULL || out_strategy == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "strategy_make: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_strategy_params, "strategy_make", params, &own, err));
  OPI_TRY(new_strategy(profile, &s, err));
  s->forward = profile->forward || (own.flags & OPIPE_STRATEGY_FORWARD) != 0;
  s->batch = own.batch;
  if (own.state_bytes == 0)
    own.state_bytes = opi_profile_state_bytes(profile, s->forward);
  s->state_bytes = own.state_bytes;
  opi_arena_init(&arena, &profile->context->allocator, 0);
  const opipe_status status = ask(profile, &own, &arena, s, err);
  opi_arena_release(&arena);
  return hand_out(s, status, out_strategy, err);
}

opipe_status opi_api_strategy_ranked(opi_strategy_object *strategy, uint32_t index,
                                     opipe_strategy **out_strategy, opipe_error *err) {
  opi_strategy_object *s = NULL,
                      *owner = strategy->found_by != NULL ? strategy->found_by : strategy;
  const uint32_t n = strategy->answer == NULL ? 0 : strategy->answer->n_ranked;
  if (out_strategy == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "strategy_ranked: out_strategy is NULL");
  if (index >= n)
    return opi_fail(err, OPIPE_E_NOTFOUND, "strategy_ranked: index %u of %u", index, n);
  OPI_TRY(new_strategy(strategy->profile, &s, err));
  opi_ref(&owner->refs);
  s->found_by = owner;
  s->answer = owner->answer;
  s->index = index;
  s->strategy = owner->answer->ranked[index].strategy;
  s->forward = owner->forward;
  s->batch = owner->batch;
  s->state_bytes = owner->state_bytes;
  return hand_out(s, OPIPE_OK, out_strategy, err);
}

/* ---- describing ---- */

opipe_status opi_api_strategy_describe(opi_strategy_object *strategy, uint32_t format,
                                       opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  OPI_TRY(opi_choice_check("strategy_describe", "format", format, OPIPE_FORMAT_JSON, err));
  opi_text_init(&text, &strategy->profile->context->allocator);
  if (strategy->answer != NULL && format == OPIPE_FORMAT_JSON)
    opi_auto_write(strategy->answer, strategy->index, &text);
  else if (strategy->answer != NULL)
    opi_auto_describe(strategy->answer, strategy->index, strategy->profile->layers, &text);
  else if (format == OPIPE_FORMAT_JSON)
    opi_strategy_write(strategy->strategy, &text);
  else
    opi_strategy_describe(strategy->strategy, strategy->profile->layers, strategy->forward, &text);
  const opipe_status status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

/* True if its schedule can lay it out, as a plan would require. */
static opipe_status lay_out(const opi_strategy_object *o, const opi_applied *applied,
                            opipe_error *err) {
  const opi_context_object *context = o->profile->context;
  const opi_question question = {.schedule = applied->schedule,
                                 .mode = o->forward ? OPIPE_MODE_FORWARD : OPIPE_MODE_TRAIN,
                                 .n_stages = applied->n_stages,
                                 .n_microbatches = applied->n_microbatches,
                                 .replicas = applied->replicas,
                                 .n_rank_replicas = applied->n_stage_replicas,
                                 .rank_replicas = applied->stage_replicas};
  opi_schedule_ref schedule;
  opi_plan *plan = NULL;
  OPI_TRY(opi_plan_new(&context->allocator, &plan, err));
  const opipe_status status = opi_order_lay_out(&context->plugins, &question, plan, &schedule, err);
  opi_plan_free(plan);
  return status;
}

static bool is_executable(const opi_strategy_object *o) {
  opi_arena arena;
  opi_applied applied;
  opipe_error unused = OPIPE_ERROR_INIT;
  opi_arena_init(&arena, &o->profile->context->allocator, 0);
  const bool executable =
      opi_strategy_apply(o->strategy, !o->forward, &arena, &applied, &unused) == OPIPE_OK &&
      lay_out(o, &applied, &unused) == OPIPE_OK;
  opi_arena_release(&arena);
  return executable;
}

/* The search's part of the info. */
static void tell_search(const opi_strategy_object *o, opipe_strategy_info *io_info) {
  const opi_auto_answer *a = o->answer;
  if (a == NULL)
    return;
  io_info->flags |= a->stopped != OPI_STOPPED_NOT ? OPIPE_STRATEGY_STOPPED : 0u;
  io_info->bound = a->bound;
  io_info->gap = a->bound > 0 ? a->gap : 0;
  io_info->n_candidates = a->n_candidates;
  io_info->n_bounded = a->n_bounded;
  io_info->n_simulated = a->n_simulated;
  io_info->n_left = a->n_left;
  io_info->rank = o->index;
  io_info->n_ranked = a->n_ranked;
  io_info->reason = a->ranked[o->index].reason;
}

opipe_status opi_api_strategy_info(opi_strategy_object *strategy, opipe_strategy_info *io_info,
                                   opipe_error *err) {
  const opi_strategy *s = strategy->strategy;
  OPI_TRY(
      opi_info_check("strategy_info", io_info, OPIPE_END(opipe_strategy_info, memory_bytes), err));
  opipe_strategy_info info = {.struct_size = io_info->struct_size,
                              .flags = is_executable(strategy) ? OPIPE_STRATEGY_EXECUTABLE : 0u,
                              .planner = s->planner,
                              .schedule = s->schedule,
                              .n_stages = s->n_stages,
                              .chunks = s->chunks,
                              .pipelines = s->pipelines,
                              .width = s->width,
                              .samples = s->samples,
                              .microbatches = s->microbatches,
                              .recompute = s->recompute,
                              .n_slices = s->n_groups,
                              .objective = s->objective,
                              .step_ns = s->step_ns,
                              .memory_bytes = s->memory_bytes};
  tell_search(strategy, &info);
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

opipe_status opi_api_strategy_stage(opi_strategy_object *strategy, uint32_t index,
                                    opipe_strategy_stage_info *io_info, opipe_error *err) {
  const opi_strategy *s = strategy->strategy;
  OPI_TRY(opi_info_check("strategy_stage", io_info,
                         OPIPE_END(opipe_strategy_stage_info, memory_bytes), err));
  if (index >= s->n_stages)
    return opi_fail(err, OPIPE_E_NOTFOUND, "strategy_stage: index %u of %u", index, s->n_stages);
  const opi_strategy_stage *stage = &s->stages[index];
  const opipe_strategy_stage_info info = {.struct_size = io_info->struct_size,
                                          .first = stage->first,
                                          .end = stage->end,
                                          .n_devices = stage->n_devices,
                                          .devices = stage->devices,
                                          .forward_ns = stage->forward_ns,
                                          .backward_ns = stage->backward_ns,
                                          .memory_bytes = stage->memory_bytes};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

/* ---- plans ---- */

static opipe_status check_free(const opipe_plan_params *p, opipe_error *err) {
  const struct {
    const char *name;
    bool given;
  } fields[] = {{"n_stages", p->n_stages != 0},
                {"n_ranks", p->n_ranks != 0},
                {"n_microbatches", p->n_microbatches != 0},
                {"replicas", p->replicas != 0},
                {"stage_replicas", p->n_stage_replicas != 0},
                {"tensor", p->tensor > 1},
                {"schedule", p->schedule != NULL},
                {"cut", p->cut != NULL},
                {"costs", p->costs != NULL}};
  for (size_t i = 0; i < OPI_COUNT(fields); ++i) {
    if (fields[i].given) {
      return opi_fail(err, OPIPE_E_INVALID, "strategy_plan: the strategy decides %s",
                      fields[i].name);
    }
  }
  return OPIPE_OK;
}

static opipe_status make_plan(const opi_strategy_object *o, opi_model_object *model,
                              const opipe_plan_params *params, opi_arena *arena,
                              opipe_plan **out_plan, opipe_error *err) {
  opipe_plan_params own = *params;
  opi_applied applied;
  OPI_TRY(opi_strategy_apply(o->strategy, own.train != NULL, arena, &applied, err));
  own.n_stages = applied.n_stages;
  own.n_microbatches = applied.n_microbatches;
  own.replicas = applied.replicas;
  own.stage_replicas = applied.stage_replicas;
  own.n_stage_replicas = applied.n_stage_replicas;
  own.schedule = applied.schedule;
  own.tensor = applied.tensor;
  own.flags |= applied.scattered ? OPIPE_PLAN_SCATTERED : 0u;
  if (o->answer != NULL && o->answer->stopped != OPI_STOPPED_NOT)
    applied.stopped = opi_auto_stop_name(o->answer->stopped);
  return opi_plan_make_as(model, &own, &applied, out_plan, err);
}

opipe_status opi_api_strategy_plan(opi_strategy_object *strategy, opipe_model *model,
                                   const opipe_plan_params *params, opipe_plan **out_plan,
                                   opipe_error *err) {
  opipe_plan_params own = {.struct_size = (uint32_t)sizeof own};
  opi_entry in;
  opi_arena arena;
  if (out_plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "strategy_plan: out_plan is NULL");
  OPI_TRY(opi_params_read(&opi_struct_plan_params, "strategy_plan", params, &own, err));
  OPI_TRY(check_free(&own, err));
  OPI_TRY(opi_handle_enter(model, OPI_HANDLE_MODEL, "strategy_plan", &in, err));
  opi_arena_init(&arena, &strategy->profile->context->allocator, 0);
  const opipe_status status = make_plan(strategy, in.object, &own, &arena, out_plan, err);
  opi_arena_release(&arena);
  opi_handle_leave(&in);
  return status;
}

opipe_status opi_api_plans_compare(opi_context_object *context, const void *a, uint64_t a_bytes,
                                   const char *a_name, const void *b, uint64_t b_bytes,
                                   const char *b_name, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err) {
  opi_text text;
  if (a == NULL || b == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plans_compare: an argument is NULL");
  OPI_TRY(opi_form_check("plans_compare", format, err));
  const opi_plan_text texts[2] = {{a, a_bytes, a_name == NULL ? "a" : a_name},
                                  {b, b_bytes, b_name == NULL ? "b" : b_name}};
  if (format == OPIPE_FORMAT_HTML)
    return opi_plans_page(texts, &context->allocator, write, ctx, err);
  opi_text_init(&text, &context->allocator);
  opipe_status status =
      opi_plans_compare(texts, format == OPIPE_FORMAT_JSON, &context->allocator, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}
