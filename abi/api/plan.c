/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: made from a bound model or read from JSON. */
#include "abi/api/study.h"
#include "abi/api/team/plan_team.h"
#include "loader/base/fp.h"
#include "loader/gradient/account.h"
#include "partition/make/work.h"
#include "partition/program/assign.h"
#include "partition/program/batch.h"

void opi_plan_unref(void *plan) {
  opi_plan_object *p = plan;
  if (p == NULL || !opi_unref(&p->refs))
    return;
  opi_model_object *model = p->model;
  opi_plan_free(p->plan);
  opi_free(&model->context->allocator, p->places, p->n_places * sizeof *p->places);
  opi_free(&model->context->allocator, p, sizeof(*p));
  opi_model_unref(model);
}

static opipe_status new_plan(opi_model_object *model, opi_plan_object **out_plan,
                             opipe_error *err) {
  opi_plan_object *plan = opi_alloc_zero(&model->context->allocator, 1, sizeof(*plan));
  if (plan == NULL)
    return opi_fail_nomem(err, sizeof(*plan), "a plan");
  atomic_init(&plan->refs, 1);
  plan->model = model;
  opi_ref(&model->refs);
  *out_plan = plan;
  return OPIPE_OK;
}

opipe_status opi_plan_place(opi_plan_object *plan, const uint32_t *places, uint32_t size,
                            opipe_error *err) {
  const uint32_t n = plan->plan->decided.n_ranks;
  plan->places = opi_alloc_zero(&plan->model->context->allocator, n, sizeof *places);
  if (plan->places == NULL)
    return opi_fail_nomem(err, n * sizeof *places, "places of ranks");
  plan->n_places = n;
  for (uint32_t r = 0; r < n; ++r)
    plan->places[r] = places != NULL ? places[r] : r / (n / size);
  return OPIPE_OK;
}

opipe_status opi_plan_hand_out(opi_plan_object *plan, opipe_plan **out_plan, opipe_error *err) {
  uint64_t handle = 0;
  OPI_TRY(opi_handle_new(OPI_HANDLE_PLAN, plan, opi_plan_unref, plan->model->context->handle,
                         &handle, err));
  *out_plan = opi_handle_pointer(handle);
  return OPIPE_OK;
}

opi_plan_env opi_api_plan_env(opi_model_object *model, const opi_bind_options *bind) {
  return (opi_plan_env){.allocator = &model->context->allocator,
                        .logger = &model->context->logger,
                        .plugins = &model->context->plugins,
                        .model = model->file,
                        .bind = bind,
                        .search = opi_study_order_search(),
                        .now_ns = opi_now_ns};
}

static opipe_status check_replicas(const opipe_plan_params *p, opipe_error *err) {
  if (p->n_stage_replicas != 0 && p->replicas > 1) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "plan_make: replicas of %u stages, and %u copies of the whole pipeline: give only one",
        p->n_stage_replicas, p->replicas);
  }
  for (uint32_t i = 0; i < p->n_stage_replicas; ++i) {
    if (p->stage_replicas[i] == 0)
      return opi_fail(err, OPIPE_E_INVALID, "plan_make: stage %u has 0 replicas", i);
  }
  return OPIPE_OK;
}

static opipe_status make_training(const opi_plan_env *env, const opipe_plan_params *params,
                                  const opi_applied *as, opi_plan **out_plan, opipe_error *err) {
  opi_arena arena;
  opi_train_spec spec;
  if ((env->bind->flags & OPI_BIND_KEEP_PARAMETERS) == 0) {
    return opi_fail(err, OPIPE_E_STATE,
                    "plan_make: the model was bound for inference; bind it with OPIPE_BIND_TRAIN");
  }
  opi_arena_init(&arena, env->allocator, 0);
  opipe_status status = opi_train_options_read(params->train, "plan_make", &arena, &spec, err);
  spec.replicas = params->replicas;
  spec.rank_replicas = params->stage_replicas;
  spec.n_rank_replicas = params->n_stage_replicas;
  if (as != NULL && as->recompute && spec.recompute == OPI_RECOMPUTE_NONE)
    spec.recompute = OPI_RECOMPUTE_STAGE;
  if (as != NULL && as->sharded)
    spec.optimizer.shard = 1;
  if (status == OPIPE_OK)
    status = opi_plan_make_training(env, params, &spec, out_plan, err);
  opi_arena_release(&arena);
  return status;
}

/* Records the planner, and whether its search was complete. */
static opipe_status sign(opi_plan *plan, const opi_applied *as, opipe_error *err) {
  plan->predicted.planner =
      as->planner == NULL ? NULL : opi_arena_strdup(&plan->arena, as->planner);
  plan->predicted.stopped = as->stopped; /* static memory */
  for (uint32_t r = 0; as->n_rank_devices == plan->decided.n_ranks && r < plan->decided.n_ranks;
       ++r) {
    if (as->rank_devices[r] == r || plan->predicted.cluster_devices != NULL)
      continue;
    plan->predicted.cluster_devices =
        opi_arena_copy(&plan->arena, as->rank_devices, plan->decided.n_ranks * sizeof(uint32_t));
    if (plan->predicted.cluster_devices == NULL)
      return opi_fail_nomem(err, plan->decided.n_ranks * sizeof(uint32_t), "a plan");
  }
  return as->planner != NULL && plan->predicted.planner == NULL ? opi_fail_nomem(err, 1, "a plan")
                                                                : OPIPE_OK;
}

/* Lists devices by rank, as the strategy says; the host's last one stands for all later ranks. */
static opipe_status place_ranks(opi_arena *arena, const opi_applied *as,
                                opipe_plan_params *io_params, opipe_error *err) {
  opipe_plan_params *p = io_params;
  const uint32_t n = as->n_rank_devices, given = p->n_devices;
  if (n == 0 || given == 0 || (p->n_descriptions != 0 && p->n_descriptions != given))
    return OPIPE_OK; /* unchanged; plan making reports what does not fit together */
  opipe_device_choice *devices = OPI_ARENA_ARRAY(arena, opipe_device_choice, n);
  opipe_device_description *described = OPI_ARENA_ARRAY(arena, opipe_device_description, n);
  if (devices == NULL || described == NULL)
    return opi_fail_nomem(err, n * sizeof *described, "devices");
  for (uint32_t r = 0; r < n; ++r) {
    const uint32_t last = given - 1,
                   index = as->rank_devices[r] < last ? as->rank_devices[r] : last;
    opi_array_get(p->devices, p->devices_stride, index, &devices[r], sizeof *devices);
    if (p->n_descriptions != 0) {
      opi_array_get(p->descriptions, p->descriptions_stride, index, &described[r],
                    sizeof *described);
    }
  }
  p->devices = devices;
  p->devices_stride = (uint32_t)sizeof *devices;
  p->n_devices = n;
  if (p->n_descriptions == 0)
    return OPIPE_OK;
  p->descriptions = described;
  p->descriptions_stride = (uint32_t)sizeof *described;
  p->n_descriptions = n;
  return OPIPE_OK;
}

opipe_status opi_api_plan_make(opi_model_object *model, const opipe_plan_params *params,
                               opipe_plan **out_plan, opipe_error *err) {
  opipe_plan_params own = {.struct_size = (uint32_t)sizeof own};
  if (out_plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plan_make: out_plan is NULL");
  OPI_TRY(opi_params_read(&opi_struct_plan_params, "plan_make", params, &own, err));
  return opi_plan_make_as(model, &own, NULL, out_plan, err);
}

opipe_status opi_plan_make_as(opi_model_object *model, const opipe_plan_params *params,
                              const opi_applied *as, opipe_plan **out_plan, opipe_error *err) {
  opi_plan_object *plan = NULL;
  if (params->team == NULL && params->n_places != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_make: places of %u ranks, and no team",
                    params->n_places);
  }
  OPI_TRY(params->team != NULL ? opi_plan_make_together(model, params, as, &plan, err)
                               : opi_plan_make_object(model, params, as, NULL, &plan, err));
  return opi_plan_hand_out(plan, out_plan, err);
}

opipe_status opi_plan_make_object(opi_model_object *model, const opipe_plan_params *params,
                                  const opi_applied *as, const opi_devices_told *told,
                                  opi_plan_object **out_plan, opipe_error *err) {
  opipe_plan_params own = *params;
  opi_plan_object *plan = NULL;
  opi_bind_options bind = model->options;
  if (model->bound == NULL && own.generation == NULL)
    return opi_fail(err, OPIPE_E_STATE, "plan_make: the model is not bound; call model_bind first");
  if (model->bound == NULL) { /* passes have dimensions of their own */
    bind = (opi_bind_options){.allocator = &model->context->allocator,
                              .logger = &model->context->logger};
    OPI_TRY(opi_context_evaluator(model->context, &bind.evaluator, err));
  }
  OPI_TRY(check_replicas(&own, err));
  opi_plan_env env = opi_api_plan_env(model, &bind);
  env.bound = model->bound;
  env.stage_ends = as == NULL ? NULL : as->ends;
  env.told = told;
  opi_costs costs;
  if (own.costs != NULL) {
    OPI_TRY(opi_costs_from_host(own.costs, "plan_make", &costs, err));
    env.costs = &costs;
  }
  opi_arena arena;
  opi_arena_init(&arena, env.allocator, 0);
  opipe_status status = opi_study_take_cluster(&arena, &own, err);
  if (status == OPIPE_OK && as != NULL)
    status = place_ranks(&arena, as, &own, err);
  if (status == OPIPE_OK)
    status = new_plan(model, &plan, err);
  if (status == OPIPE_OK) {
    status = own.train != NULL ? make_training(&env, &own, as, &plan->plan, err)
                               : opi_plan_make(&env, &own, &plan->plan, err);
  }
  if (status == OPIPE_OK && as != NULL)
    status = sign(plan->plan, as, err);
  opi_arena_release(&arena);
  if (status < 0) {
    opi_plan_unref(plan);
    return status;
  }
  *out_plan = plan;
  return OPIPE_OK;
}

opipe_status opi_api_plan_read(opi_model_object *model, const void *json, uint64_t n_bytes,
                               opipe_plan **out_plan, opipe_error *err) {
  opi_plan_object *plan = NULL;
  if (json == NULL || out_plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plan_read: an argument is NULL");
  OPI_TRY(opi_plan_read_object(model, json, n_bytes, &plan, err));
  return opi_plan_hand_out(plan, out_plan, err);
}

opipe_status opi_plan_read_object(opi_model_object *model, const void *json, uint64_t n_bytes,
                                  opi_plan_object **out_plan, opipe_error *err) {
  opi_plan_object *plan = NULL;
  opi_bind_options bind = {.allocator = &model->context->allocator,
                           .logger = &model->context->logger};
  OPI_TRY(opi_context_evaluator(model->context, &bind.evaluator, err));
  const opi_plan_env env = opi_api_plan_env(model, &bind);
  OPI_TRY(new_plan(model, &plan, err));
  const opipe_status status = opi_plan_read(&env, json, n_bytes, &plan->plan, err);
  if (status < 0) {
    opi_plan_unref(plan);
    return status;
  }
  *out_plan = plan;
  return OPIPE_OK;
}

/* ---- kernels ---- */

static void tell_measured(void *ctx, const opipe_kernel *kernel) {
  const opipe_tuning_params *p = ctx;
  const opipe_tuned tuned = {.struct_size = (uint32_t)sizeof tuned,
                             .n_tried = kernel->n_tried,
                             .n_dropped = kernel->n_dropped,
                             .own_ns = kernel->own_ns,
                             .ns = kernel->ns,
                             .what = kernel->what,
                             .choice = kernel->choice};
  opi_fp_border *lent = opi_fp_lend();
  opi_callback_enter();
  p->measured(p->measured_ctx, &tuned);
  opi_callback_leave();
  opi_fp_take(lent);
}

int opi_text_take(void *ctx, const void *data, size_t n_bytes) {
  opi_text *text = ctx;
  opi_text_add(text, data, n_bytes);
  return text->failed ? OPIPE_E_NOMEM : OPIPE_OK;
}

/* Copies a plan with its decisions and predictions: reads what the other one writes. */
static opipe_status copy_plan(const opi_plan_env *env, const opi_plan *plan, opi_plan **out_plan,
                              opipe_error *err) {
  opi_text text;
  opi_text_init(&text, env->allocator);
  opipe_status status = opi_plan_write(plan, opi_text_take, &text, err);
  if (status == OPIPE_OK)
    status = opi_plan_read(env, text.data, text.n, out_plan, err);
  opi_text_release(&text);
  return status;
}

opipe_status opi_api_plan_tune(opi_plan_object *plan, const opipe_tuning_params *params,
                               opipe_plan **out_plan, opipe_error *err) {
  opipe_tuning_params own = {.struct_size = (uint32_t)sizeof own};
  opi_model_object *model = plan->model;
  opi_plan_object *tuned = NULL;
  opi_bind_options bind = {.allocator = &model->context->allocator,
                           .logger = &model->context->logger};
  if (params == NULL || out_plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plan_tune: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_tuning_params, "plan_tune", params, &own, err));
  OPI_TRY(opi_context_evaluator(model->context, &bind.evaluator, err));
  const opi_plan_env env = opi_api_plan_env(model, &bind);
  const opi_tuning how = {.kind = own.kind,
                          .index = own.index,
                          .n_candidates = own.n_candidates,
                          .n_runs = own.n_runs,
                          .measured = own.measured == NULL ? NULL : tell_measured,
                          .ctx = &own};
  OPI_TRY(new_plan(model, &tuned, err));
  opipe_status status = copy_plan(&env, plan->plan, &tuned->plan, err);
  if (status == OPIPE_OK)
    status = opi_plan_tune(&env, tuned->plan, &how, err);
  if (status < 0) {
    opi_plan_unref(tuned);
    return status;
  }
  return opi_plan_hand_out(tuned, out_plan, err);
}

opipe_status opi_api_plan_write(opi_plan_object *plan, opipe_write_fn write, void *ctx,
                                opipe_error *err) {
  return opi_plan_write(plan->plan, write, ctx, err);
}

opipe_status opi_api_plan_describe(opi_plan_object *plan, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err) {
  OPI_TRY(opi_choice_check("plan_describe", "format", format, OPIPE_FORMAT_JSON, err));
  if (format == OPIPE_FORMAT_JSON)
    return opi_plan_write(plan->plan, write, ctx, err);
  OPI_TRY(opi_plan_describe(plan->plan, write, ctx, err));
  const opi_train_spec *train = plan->plan->decided.train;
  if (train == NULL)
    return OPIPE_OK;
  opi_text text;
  opi_text_init(&text, &plan->model->context->allocator);
  opipe_status status = opi_account_write(plan->model->file, train->choice.trained,
                                          train->choice.n_trained, false, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

/* ---- annotations ---- */

static opipe_status bind_unfused(const opi_plan_object *plan, opi_bound **out_bound,
                                 opipe_error *err) {
  opi_decision plain = plan->plan->decided;
  opi_bind_options base = {.allocator = &plan->model->context->allocator,
                           .logger = &plan->model->context->logger};
  OPI_TRY(opi_context_evaluator(plan->model->context, &base.evaluator, err));
  plain.binding.bind_flags |= OPI_BIND_NO_FUSE;
  const int64_t rows = opi_microbatch_rows_most(&plain);
  return opi_plan_bind(&plain, plan->model->file, &base, rows, out_bound, err);
}

/* The stage that a reader of the annotations finds for bound node i: its file node's, else that of
 * its latest producer. */
static int32_t stage_as_read(const opi_graph *bound, const int32_t *of_source, uint32_t n,
                             uint32_t i, const int32_t *as_read) {
  const opi_node *node = &bound->nodes[i];
  int32_t latest = 0;
  for (uint32_t k = 0; k < node->n_in; ++k) {
    const uint32_t producer =
        node->in[k] == OPIPE_NONE ? OPIPE_NONE : bound->values[node->in[k]].producer;
    if (producer != OPIPE_NONE && as_read[producer] > latest)
      latest = as_read[producer];
  }
  const int32_t own = node->source < n ? of_source[node->source] : -1;
  return own > latest ? own : latest;
}

/* The earliest stage that reads the node's outputs, at most `stage`. */
static uint32_t first_reading_stage(const opi_node *node, const opi_uses *uses,
                                    const int32_t *stage_of, uint32_t stage) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    for (uint32_t u = v == OPIPE_NONE ? 0 : uses->first[v];
         v != OPIPE_NONE && u < uses->first[v + 1]; ++u) {
      if ((uint32_t)stage_of[uses->users[u]] < stage)
        stage = (uint32_t)stage_of[uses->users[u]];
    }
  }
  return stage;
}

/* The plan's stage of every node of the model bound without patterns: by name if the plan has the
 * node, else (inside a pattern) that of its first reader. out_stage [nodes]. */
static opipe_status stages_unfused(const opi_decision *plan, const opi_graph *plain,
                                   int32_t *out_stage, opi_arena *scratch, opipe_error *err) {
  opi_map *keys = NULL;
  opi_uses uses;
  OPI_TRY(opi_graph_uses(plain, scratch, &uses, err));
  OPI_TRY(opi_map_create(plan->allocator, &keys, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < plan->n_nodes && status == OPIPE_OK; ++i)
    status = opi_map_set(keys, plan->node_keys[i], plan->stage_of_node[i], err);
  for (uint32_t i = plain->n_nodes; i-- > 0 && status == OPIPE_OK;) {
    const opi_node *node = &plain->nodes[i];
    uint32_t stage = plan->n_stages - 1;
    if (!opi_map_get(keys, opi_node_key(plain, node), &stage))
      stage = first_reading_stage(node, &uses, out_stage, stage);
    out_stage[i] = (int32_t)stage;
  }
  opi_map_free(keys);
  return status;
}

/* A node of the file gets the latest stage of the nodes that came from it, or a later one if its
 * inputs would otherwise come from a later stage. A node that was folded away gets none: readers
 * take the stage of its inputs. stage, as_read [nodes of plain]; out_stage [n]. */
static void stages_of_file(const opi_graph *plain, const int32_t *stage, int32_t *as_read,
                           int32_t *out_stage, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    out_stage[i] = -1;
  for (uint32_t i = 0; i < plain->n_nodes; ++i) {
    const uint32_t source = plain->nodes[i].source;
    if (source < n && out_stage[source] < stage[i])
      out_stage[source] = stage[i];
  }
  for (bool moved = true; moved;) { /* stages only rise, so this ends */
    moved = false;
    for (uint32_t i = 0; i < plain->n_nodes; ++i) {
      const uint32_t source = plain->nodes[i].source;
      as_read[i] = stage_as_read(plain, out_stage, n, i, as_read);
      if (source < n && out_stage[source] < as_read[i]) {
        out_stage[source] = as_read[i];
        moved = true;
      }
    }
  }
}

/* One more than the largest place of a node in the file's main graph. */
static uint32_t count_sources(const opi_graph *file) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < file->n_nodes; ++i) {
    if (file->nodes[i].source != OPIPE_NONE && file->nodes[i].source >= n)
      n = file->nodes[i].source + 1;
  }
  return n;
}

/* How tensor groups divide the parameters of the file; NULL: they do not. Allocates in `scratch`.
 */
static opipe_status shards_of_file(const opi_plan_object *plan, opi_arena *scratch,
                                   const opi_annotated_shards **out_shards, opipe_error *err) {
  const opi_decision *decided = &plan->plan->decided;
  const opi_cut_sources from = {
      .plan = decided, .file = plan->model->file, .base = &plan->model->options};
  opi_cut_model *model = NULL;
  *out_shards = NULL;
  if (opi_plan_width(decided) == 1)
    return OPIPE_OK;
  OPI_TRY(opi_cut_model_build(&from, &model, err));
  const opipe_status status = opi_shards_annotated(
      decided, model, plan->model->file, &plan->model->context->logger, scratch, out_shards, err);
  opi_cut_model_free(model);
  return status;
}

static opipe_status annotate_bound(const opi_plan_object *plan, const opi_graph *plain,
                                   opipe_write_fn write, void *ctx, opipe_error *err) {
  const opi_model *file = plan->model->file;
  const uint32_t n = count_sources(file->graph);
  opi_arena scratch;
  opi_arena_init(&scratch, plan->plan->decided.allocator, 0);
  opipe_status status = OPIPE_OK;
  const opi_annotated_shards *shards = NULL;
  int32_t *of_file = OPI_ARENA_ARRAY(&scratch, int32_t, n);
  int32_t *stage = OPI_ARENA_ARRAY(&scratch, int32_t, plain->n_nodes);
  int32_t *as_read = OPI_ARENA_ARRAY(&scratch, int32_t, plain->n_nodes);
  if (of_file == NULL || stage == NULL || as_read == NULL)
    status = opi_fail_nomem(err, n * sizeof(*of_file), "annotations");
  if (status == OPIPE_OK)
    status = stages_unfused(&plan->plan->decided, plain, stage, &scratch, err);
  if (status == OPIPE_OK) {
    stages_of_file(plain, stage, as_read, of_file, n);
    status = shards_of_file(plan, &scratch, &shards, err);
  }
  if (status == OPIPE_OK) {
    status = opi_model_annotate(file, "onnx-pipe", of_file, n, plan->plan->decided.n_ranks, shards,
                                write, ctx, err);
  }
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_api_plan_annotate(opi_plan_object *plan, opipe_write_fn write, void *ctx,
                                   opipe_error *err) {
  opi_bound *bound = NULL;
  if (plan->plan->rows != NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "plan_annotate: stages of a plan for generation are of token rows, not of the "
                    "file's nodes");
  }
  OPI_TRY(bind_unfused(plan, &bound, err));
  const opipe_status status = annotate_bound(plan, bound->graph, write, ctx, err);
  opi_bound_free(bound);
  return status;
}

opipe_status opi_api_plan_info(opi_plan_object *plan, opipe_plan_info *io_info, opipe_error *err) {
  OPI_TRY(opi_info_check("plan_info", io_info, OPIPE_END(opipe_plan_info, n_microbatches), err));
  const opi_plan *p = plan->plan;
  const opipe_plan_info info = {
      .struct_size = io_info->struct_size,
      .n_ranks = p->decided.n_ranks,
      .n_stages = p->decided.n_stages,
      .n_microbatches = p->decided.n_microbatches,
      .request_ns = p->predicted.request_ns,
      .interval_ns = p->predicted.interval_ns,
      .bound_ns = p->predicted.bound_ns * p->decided.n_microbatches,
      .flops = p->predicted.flops,
      .utilisation = opi_plan_utilisation(p),
      .flags = opi_plan_is_unordered(&p->decided) ? (uint32_t)OPIPE_PLAN_UNORDERED : 0};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

/* Lanes of letters that the rank has in a plan of a team; their buffers are boundaries. */
static uint32_t lanes_of(const opi_plan_object *plan, uint32_t rank) {
  uint32_t elsewhere = 0;
  for (uint32_t r = 0; r < plan->n_places; ++r)
    elsewhere += plan->places[r] != plan->places[0] ? 1 : 0;
  return plan->n_places == 0                     ? 0
         : rank == 0                             ? elsewhere
         : plan->places[rank] != plan->places[0] ? 1
                                                 : 0;
}

static uint32_t processes_of(const opi_plan_object *plan) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < plan->n_places; ++r)
    n = plan->places[r] + 1 > n ? plan->places[r] + 1 : n;
  return n;
}

/* Is the rank the first of its process, in a plan of several? */
static bool leads(const opi_plan_object *plan, uint32_t rank) {
  uint32_t first = 0;
  while (first < plan->n_places && plan->places[first] != plan->places[rank])
    ++first;
  return processes_of(plan) >= 2 && first == rank;
}

/* Lanes of values, which only first ranks of processes have. */
static uint32_t values_of(const opi_plan_object *plan, uint32_t rank) {
  return !leads(plan, rank) ? 0 : plan->places[rank] == 0 ? processes_of(plan) - 1 : 1;
}

opipe_status opi_api_plan_memory(opi_plan_object *plan, uint32_t rank, opipe_memory_info *io_info,
                                 opipe_error *err) {
  OPI_TRY(opi_info_check("plan_memory", io_info, OPIPE_END(opipe_memory_info, rank), err));
  if (rank >= plan->plan->decided.n_ranks) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "plan_memory: rank %u of %u", rank,
                    plan->plan->decided.n_ranks);
  }
  const opi_memory *m = &plan->plan->predicted.memory[rank];
  const uint32_t asked = OPIPE_HAS(io_info, opipe_memory_info, flags) ? io_info->flags : 0;
  const uint32_t travels = plan->plan->rows != NULL && plan->n_places != 0
                               ? OPIPE_MEMORY_TRAVELS
                               : asked & OPIPE_MEMORY_TRAVELS;
  const uint64_t letters =
      opi_peers_bytes(&plan->plan->decided, rank, lanes_of(plan, rank),
                      travels == 0 ? 0 : values_of(plan, rank), leads(plan, rank));
  const opipe_memory_info info = {.struct_size = io_info->struct_size,
                                  .rank = rank,
                                  .flags = (m->estimated ? OPIPE_MEMORY_ESTIMATED : 0u) | travels,
                                  .params_bytes = m->params_bytes,
                                  .activation_bytes = m->activation_bytes,
                                  .workspace_bytes = m->workspace_bytes,
                                  .boundary_bytes = m->boundary_bytes + letters,
                                  .gradient_bytes = m->gradient_bytes,
                                  .optimizer_bytes = m->optimizer_bytes,
                                  .version_bytes = m->version_bytes,
                                  .stash_bytes = m->stash_bytes,
                                  .total_bytes = m->total_bytes + letters,
                                  .cap_bytes = m->cap_bytes,
                                  .mapped_bytes = m->mapped_bytes,
                                  .state_bytes = m->state_bytes,
                                  .stream_bytes = m->stream_bytes,
                                  .host_bytes = m->host_bytes,
                                  .offload_bytes = m->offload_bytes,
                                  .staging_bytes = m->staging_bytes};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

opipe_status opi_api_plan_cut_tensor(opi_plan_object *plan, uint32_t index, const char **out_name,
                                     uint32_t *out_src_stage, uint32_t *out_dst_stage,
                                     opipe_error *err) {
  if (out_name == NULL || out_src_stage == NULL || out_dst_stage == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plan_cut_tensor: an argument is NULL");
  const opi_plan *p = plan->plan;
  if (index >= p->predicted.n_crossings) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "plan_cut_tensor: index %u of %u", index,
                    p->predicted.n_crossings);
  }
  *out_name = p->predicted.crossings[index].name;
  *out_src_stage = p->predicted.crossings[index].src_stage;
  *out_dst_stage = p->predicted.crossings[index].dst_stage;
  return OPIPE_OK;
}
