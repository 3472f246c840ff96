/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies: asked of planners, described, made plans of, compared. [any-thread] */
#include "abi/api/api.h"
#include "abi/api/planning.h"
#include "partition/layers/apply.h"
#include "partition/layers/compare.h"

void opi_strategy_unref(void *strategy) {
  opi_strategy_object *s = strategy;
  if (s == NULL || !opi_unref(&s->refs))
    return;
  opi_profile_object *profile = s->profile;
  opi_strategy_free(s->strategy);
  opi_free(&profile->context->allocator, s, sizeof(*s));
  opi_profile_unref(profile);
}

/* ---- made ---- */

/* What only planner auto looks at. */
static opipe_status check_named(const opipe_strategy_params *p, opipe_error *err) {
  const struct {
    const char *name;
    bool given;
  } fields[] = {{"objective", p->objective != OPIPE_OBJECTIVE_STEP},
                {"limit_ms", p->limit_ms != 0},
                {"budget_s", p->budget_s != 0},
                {"schedule", p->schedule != NULL},
                {"n_stages", p->n_stages != 0},
                {"n_microbatches", p->n_microbatches != 0}};
  for (size_t i = 0; i < OPI_COUNT(fields); ++i) {
    if (fields[i].given) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "strategy_make: planner '%.40s' decides by its paper's rules: %s is planner "
                      "auto's",
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

static opipe_status ask_planner(const opi_profile_object *profile, const opipe_strategy_params *p,
                                double state_bytes, opi_arena *arena, opi_strategy **out_strategy,
                                opipe_error *err) {
  opi_cluster cluster;
  const char *name = p->planner == NULL ? "auto" : p->planner;
  const opi_planner_fn plan = opi_planner_find(name);
  const opi_cluster_text text = {p->cluster, p->cluster_bytes, p->cluster_name};
  if (plan == NULL) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "strategy_make: no planner '%.40s'; these are: %s", name,
                    opi_planner_names());
  }
  OPI_TRY(opi_api_take_cluster("strategy_make", &text, arena, &cluster, err));
  OPI_TRY(check_named(p, err));
  cap_memory(&cluster, p->memory_bytes);
  const opi_planning planning = {.layers = profile->layers,
                                 .cluster = &cluster,
                                 .allocator = &profile->context->allocator,
                                 .n_devices = p->n_devices,
                                 .batch = p->batch,
                                 .samples = p->samples,
                                 .state_bytes = state_bytes};
  OPI_TRY(plan(&planning, out_strategy, err));
  return opi_strategy_name_stages(*out_strategy, profile->layers, err);
}

/* Its handle, for the host. Takes the strategy over, also on failure. */
static opipe_status hand_out(opi_profile_object *profile, opi_strategy *strategy, bool forward,
                             double state_bytes, opipe_strategy **out_strategy, opipe_error *err) {
  uint64_t handle = 0;
  opi_context_object *context = profile->context;
  opi_strategy_object *s = opi_alloc_zero(&context->allocator, 1, sizeof(*s));
  if (s == NULL) {
    opi_strategy_free(strategy);
    return opi_fail_nomem(err, sizeof(*s), "a strategy");
  }
  atomic_init(&s->refs, 1);
  opi_ref(&profile->refs);
  s->profile = profile;
  s->strategy = strategy;
  s->forward = forward;
  s->state_bytes = state_bytes;
  OPI_TRY(
      opi_handle_new(OPI_HANDLE_STRATEGY, s, opi_strategy_unref, context->handle, &handle, err));
  *out_strategy = opi_handle_pointer(handle);
  return OPIPE_OK;
}

opipe_status opi_api_strategy_make(opi_profile_object *profile, const opipe_strategy_params *params,
                                   opipe_strategy **out_strategy, opipe_error *err) {
  enum { ADAM_STATE = 4 }; /* weight, gradient, two moments */
  opipe_strategy_params own = {.struct_size = (uint32_t)sizeof own};
  opi_strategy *strategy = NULL;
  opi_arena arena;
  if (params == NULL || out_strategy == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "strategy_make: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_strategy_params, "strategy_make", params, &own, err));
  const bool forward = profile->forward || (own.flags & OPIPE_STRATEGY_FORWARD) != 0;
  const double state = own.state_bytes != 0 ? own.state_bytes : forward ? 1 : ADAM_STATE;
  opi_arena_init(&arena, &profile->context->allocator, 0);
  const opipe_status status = ask_planner(profile, &own, state, &arena, &strategy, err);
  opi_arena_release(&arena);
  if (status < 0) {
    opi_strategy_free(strategy);
    return status;
  }
  return hand_out(profile, strategy, forward, state, out_strategy, err);
}

/* ---- asked ---- */

opipe_status opi_api_strategy_describe(opi_strategy_object *strategy, uint32_t format,
                                       opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  OPI_TRY(opi_choice_check("strategy_describe", "format", format, OPIPE_FORMAT_JSON, err));
  opi_text_init(&text, &strategy->profile->context->allocator);
  if (format == OPIPE_FORMAT_JSON)
    opi_strategy_write(strategy->strategy, &text);
  else
    opi_strategy_describe(strategy->strategy, strategy->profile->layers, &text);
  const opipe_status status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

static bool is_executable(const opi_strategy_object *o) {
  opi_arena arena;
  opi_applied applied;
  opi_arena_init(&arena, &o->profile->context->allocator, 0);
  const bool executable =
      opi_strategy_apply(o->strategy, !o->forward, &arena, &applied, NULL) == OPIPE_OK;
  opi_arena_release(&arena);
  return executable;
}

opipe_status opi_api_strategy_info(opi_strategy_object *strategy, opipe_strategy_info *io_info,
                                   opipe_error *err) {
  const opi_strategy *s = strategy->strategy;
  OPI_TRY(
      opi_info_check("strategy_info", io_info, OPIPE_END(opipe_strategy_info, memory_bytes), err));
  const opipe_strategy_info info = {
      .struct_size = io_info->struct_size,
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
                {"schedule", p->schedule != NULL},
                {"cut", p->cut != NULL},
                {"costs", p->costs != NULL}};
  for (size_t i = 0; i < OPI_COUNT(fields); ++i) {
    if (fields[i].given) {
      return opi_fail(err, OPIPE_E_INVALID, "strategy_plan: %s is the strategy's to say",
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
  return opi_plan_make_as(model, &own, applied.ends, applied.recompute, out_plan, err);
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
  OPI_TRY(opi_choice_check("plans_compare", "format", format, OPIPE_FORMAT_JSON, err));
  const opi_plan_text texts[2] = {{a, a_bytes, a_name == NULL ? "a" : a_name},
                                  {b, b_bytes, b_name == NULL ? "b" : b_name}};
  opi_text_init(&text, &context->allocator);
  opipe_status status =
      opi_plans_compare(texts, format == OPIPE_FORMAT_JSON, &context->allocator, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}
