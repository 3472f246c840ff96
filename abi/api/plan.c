/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: made from a bound model or read from JSON. */
#include <string.h>

#include "abi/api/api.h"
#include "partition/cut/batch.h"
#include "partition/cut/cutting.h"

static opipe_status check(const opipe_plan *plan, opipe_error *err) {
  return opi_handle_check(plan == NULL ? NULL : &plan->head, OPI_MAGIC_PLAN, "plan", err);
}

void opi_plan_unref(opipe_plan *plan) {
  if (plan == NULL || !opi_handle_drop(&plan->head))
    return;
  opipe_model *model = plan->model;
  opi_plan_free(plan->plan);
  opi_free(&model->context->allocator, plan, sizeof(*plan));
  opi_model_unref(model);
}

void opi_api_plan_destroy(opipe_plan *plan) {
  if (check(plan, NULL) == OPIPE_OK)
    opi_plan_unref(plan);
}

static opipe_status new_plan(opipe_model *model, opipe_plan **out_plan, opipe_error *err) {
  opipe_plan *plan = opi_alloc_zero(&model->context->allocator, 1, sizeof(*plan));
  if (plan == NULL)
    return opi_fail_nomem(err, sizeof(*plan), "a plan");
  opi_handle_init(&plan->head, OPI_MAGIC_PLAN);
  plan->model = model;
  (void)atomic_fetch_add_explicit(&model->head.refs, 1, memory_order_relaxed);
  *out_plan = plan;
  return OPIPE_OK;
}

static opi_plan_env env_of(opipe_model *model, const opi_bind_options *bind) {
  return (opi_plan_env){.allocator = &model->context->allocator,
                        .logger = &model->context->logger,
                        .plugins = &model->context->plugins,
                        .model = model->file,
                        .bind = bind,
                        .now_ns = opi_now_ns};
}

static opipe_status check_replicas(const opipe_plan_params *p, opipe_error *err) {
  if (p->n_stage_replicas != 0 && (p->stage_replicas == NULL || p->replicas > 1)) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_make: replicas of %u stages, %s",
                    p->n_stage_replicas,
                    p->stage_replicas == NULL ? "but no list of them"
                                              : "and copies of the whole pipeline: one of both");
  }
  if (p->train == NULL && p->replicas > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "plan_make: %u replicas; a plan for inference has one of each stage",
                    p->replicas);
  }
  for (uint32_t i = 0; i < p->n_stage_replicas; ++i) {
    if (p->stage_replicas[i] == 0)
      return opi_fail(err, OPIPE_E_INVALID, "plan_make: stage %u has 0 replicas", i);
    if (p->train == NULL && p->stage_replicas[i] > 1) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "plan_make: %u replicas of stage %u; a plan for inference has one of each "
                      "stage",
                      p->stage_replicas[i], i);
    }
  }
  return OPIPE_OK;
}

static opipe_status make_training(const opi_plan_env *env, const opipe_plan_params *params,
                                  opi_plan **out_plan, opipe_error *err) {
  opi_arena arena;
  opi_train_spec spec;
  if ((env->bind->flags & OPI_BIND_KEEP_PARAMETERS) == 0) {
    return opi_fail(err, OPIPE_E_STATE,
                    "plan_make: the model was bound for inference; bind it with OPIPE_BIND_TRAIN");
  }
  opi_arena_init(&arena, env->allocator, 0);
  opipe_status status = opi_train_options_read(params->train, &arena, &spec, err);
  spec.replicas = params->replicas;
  spec.rank_replicas = params->stage_replicas;
  spec.n_rank_replicas = params->n_stage_replicas;
  if (status == OPIPE_OK)
    status = opi_plan_make_training(env, params, &spec, out_plan, err);
  opi_arena_release(&arena);
  return status;
}

opipe_status opi_api_plan_make(opipe_model *model, const opipe_plan_params *params,
                               opipe_plan **out_plan, opipe_error *err) {
  opipe_plan_params own = {.struct_size = (uint32_t)sizeof own};
  opipe_plan *plan = NULL;
  OPI_TRY(opi_handle_check(model == NULL ? NULL : &model->head, OPI_MAGIC_MODEL, "model", err));
  if (out_plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plan_make: out_plan is NULL");
  if (model->bound == NULL)
    return opi_fail(err, OPIPE_E_STATE, "plan_make: the model is not bound; call model_bind first");
  if (params != NULL) {
    if (params->struct_size < OPIPE_END(opipe_plan_params, n_devices)) {
      return opi_fail(err, OPIPE_E_ABI, "plan_make: struct_size is %u", params->struct_size);
    }
    memcpy(&own, params, params->struct_size < sizeof(own) ? params->struct_size : sizeof(own));
  }
  OPI_TRY(opi_array_check(
      &(opi_array){"plan_make", "devices", own.devices, own.n_devices, own.devices_stride,
                   OPIPE_END(opipe_device_choice, threads), sizeof(opipe_device_choice)},
      err));
  OPI_TRY(check_replicas(&own, err));
  opi_plan_env env = env_of(model, &model->options);
  opi_costs costs;
  if (own.costs != NULL) {
    OPI_TRY(opi_costs_from_host(own.costs, &costs, err));
    env.costs = &costs;
  }
  OPI_TRY(new_plan(model, &plan, err));
  const opipe_status status = own.train != NULL ? make_training(&env, &own, &plan->plan, err)
                                                : opi_plan_make(&env, &own, &plan->plan, err);
  if (status < 0) {
    opi_plan_unref(plan);
    return status;
  }
  *out_plan = plan;
  return OPIPE_OK;
}

opipe_status opi_api_plan_read(opipe_model *model, const void *json, uint64_t n_bytes,
                               opipe_plan **out_plan, opipe_error *err) {
  opipe_plan *plan = NULL;
  OPI_TRY(opi_handle_check(model == NULL ? NULL : &model->head, OPI_MAGIC_MODEL, "model", err));
  if (json == NULL || out_plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plan_read: an argument is NULL");
  opi_bind_options bind = {.allocator = &model->context->allocator,
                           .logger = &model->context->logger};
  OPI_TRY(opi_context_evaluator(model->context, &bind.evaluator, err));
  const opi_plan_env env = env_of(model, &bind);
  OPI_TRY(new_plan(model, &plan, err));
  const opipe_status status = opi_plan_read(&env, json, n_bytes, &plan->plan, err);
  if (status < 0) {
    opi_plan_unref(plan);
    return status;
  }
  *out_plan = plan;
  return OPIPE_OK;
}

static opipe_status check_sink(const opipe_plan *plan, opipe_write_fn write, const char *function,
                               opipe_error *err) {
  OPI_TRY(check(plan, err));
  return write == NULL ? opi_fail(err, OPIPE_E_INVALID, "%s: the sink is NULL", function)
                       : OPIPE_OK;
}

opipe_status opi_api_plan_write(opipe_plan *plan, opipe_write_fn write, void *ctx,
                                opipe_error *err) {
  OPI_TRY(check_sink(plan, write, "plan_write", err));
  return opi_plan_write(plan->plan, write, ctx, err);
}

opipe_status opi_api_plan_describe(opipe_plan *plan, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err) {
  OPI_TRY(check_sink(plan, write, "plan_describe", err));
  return format == OPIPE_FORMAT_JSON ? opi_plan_write(plan->plan, write, ctx, err)
                                     : opi_plan_describe(plan->plan, write, ctx, err);
}

/* ---- annotations ---- */

static opipe_status bind_unfused(const opipe_plan *plan, opi_bound **out_bound, opipe_error *err) {
  opi_plan plain = *plan->plan;
  opi_bind_options base = {.allocator = &plan->model->context->allocator,
                           .logger = &plan->model->context->logger};
  OPI_TRY(opi_context_evaluator(plan->model->context, &base.evaluator, err));
  plain.bind_flags |= OPI_BIND_NO_FUSE;
  const int64_t rows =
      plain.batch_dim == NULL ? 0 : opi_microbatch_rows(plain.batch_rows, plain.n_microbatches, 0);
  return opi_plan_bind(&plain, plan->model->file, &base, rows, out_bound, err);
}

/* What a reader of the annotations will find for bound node i: its file node's stage, else that of
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

/* The plan's stage of every node of the model bound without patterns: by name where the plan knows
 * the node, else (inside a pattern) that of its first reader. out_stage [nodes]. */
static opipe_status stages_unfused(const opi_plan *plan, const opi_graph *plain, int32_t *out_stage,
                                   opi_arena *scratch, opipe_error *err) {
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
    if (!opi_map_get(keys, opi_node_key(plain, node), &stage)) {
      for (uint32_t o = 0; o < node->n_out; ++o) {
        const uint32_t v = node->out[o];
        for (uint32_t u = v == OPIPE_NONE ? 0 : uses.first[v];
             v != OPIPE_NONE && u < uses.first[v + 1]; ++u) {
          if ((uint32_t)out_stage[uses.users[u]] < stage)
            stage = (uint32_t)out_stage[uses.users[u]];
        }
      }
    }
    out_stage[i] = (int32_t)stage;
  }
  opi_map_free(keys);
  return status;
}

/* A node of the file gets the latest stage of the nodes that came from it, later where their inputs
 * would otherwise come from behind. One that was folded away gets none: readers take it to be where
 * its inputs are. stage, as_read [nodes of plain]; out_stage [n]. */
static void stages_of_file(const opi_graph *plain, const int32_t *stage, int32_t *as_read,
                           int32_t *out_stage, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    out_stage[i] = -1;
  for (uint32_t i = 0; i < plain->n_nodes; ++i) {
    const uint32_t source = plain->nodes[i].source;
    if (source < n && out_stage[source] < stage[i])
      out_stage[source] = stage[i];
  }
  for (bool moved = true; moved;) { /* stages only rise, so that this ends */
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

static opipe_status annotate_bound(const opipe_plan *plan, const opi_graph *plain,
                                   opipe_write_fn write, void *ctx, opipe_error *err) {
  const opi_model *file = plan->model->file;
  const uint32_t n = count_sources(file->graph);
  opi_arena scratch;
  opi_arena_init(&scratch, plan->plan->allocator, 0);
  opipe_status status = OPIPE_OK;
  int32_t *of_file = OPI_ARENA_ARRAY(&scratch, int32_t, n);
  int32_t *stage = OPI_ARENA_ARRAY(&scratch, int32_t, plain->n_nodes);
  int32_t *as_read = OPI_ARENA_ARRAY(&scratch, int32_t, plain->n_nodes);
  if (of_file == NULL || stage == NULL || as_read == NULL)
    status = opi_fail_nomem(err, n * sizeof(*of_file), "annotations");
  if (status == OPIPE_OK)
    status = stages_unfused(plan->plan, plain, stage, &scratch, err);
  if (status == OPIPE_OK) {
    stages_of_file(plain, stage, as_read, of_file, n);
    status =
        opi_model_annotate(file, "onnx-pipe", of_file, n, plan->plan->n_ranks, write, ctx, err);
  }
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_api_plan_annotate(opipe_plan *plan, opipe_write_fn write, void *ctx,
                                   opipe_error *err) {
  opi_bound *bound = NULL;
  OPI_TRY(check_sink(plan, write, "plan_annotate", err));
  OPI_TRY(bind_unfused(plan, &bound, err));
  const opipe_status status = annotate_bound(plan, bound->graph, write, ctx, err);
  opi_bound_free(bound);
  return status;
}

opipe_status opi_api_plan_info(opipe_plan *plan, opipe_plan_info *io_info, opipe_error *err) {
  OPI_TRY(check(plan, err));
  if (io_info == NULL || io_info->struct_size < OPIPE_END(opipe_plan_info, n_microbatches)) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_info: struct_size is %u",
                    io_info == NULL ? 0 : io_info->struct_size);
  }
  const opi_plan *p = plan->plan;
  const opipe_plan_info info = {.struct_size = io_info->struct_size,
                                .n_ranks = p->n_ranks,
                                .n_stages = p->n_stages,
                                .n_microbatches = p->n_microbatches,
                                .request_ns = p->request_ns,
                                .interval_ns = p->interval_ns,
                                .bound_ns = p->bound_ns * p->n_microbatches};
  memcpy(io_info, &info, io_info->struct_size < sizeof(info) ? io_info->struct_size : sizeof(info));
  return OPIPE_OK;
}

opipe_status opi_api_plan_memory(opipe_plan *plan, uint32_t rank, opipe_memory_info *io_info,
                                 opipe_error *err) {
  OPI_TRY(check(plan, err));
  if (io_info == NULL || io_info->struct_size < OPIPE_END(opipe_memory_info, rank)) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_memory: struct_size is %u",
                    io_info == NULL ? 0 : io_info->struct_size);
  }
  if (rank >= plan->plan->n_ranks)
    return opi_fail(err, OPIPE_E_NOTFOUND, "plan_memory: rank %u of %u", rank, plan->plan->n_ranks);
  const opi_memory *m = &plan->plan->memory[rank];
  const opipe_memory_info info = {.struct_size = io_info->struct_size,
                                  .rank = rank,
                                  .params_bytes = m->params_bytes,
                                  .activation_bytes = m->activation_bytes,
                                  .workspace_bytes = m->workspace_bytes,
                                  .boundary_bytes = m->boundary_bytes,
                                  .gradient_bytes = m->gradient_bytes,
                                  .optimizer_bytes = m->optimizer_bytes,
                                  .version_bytes = m->version_bytes,
                                  .stash_bytes = m->stash_bytes,
                                  .total_bytes = m->total_bytes,
                                  .cap_bytes = m->cap_bytes,
                                  .mapped_bytes = m->mapped_bytes};
  memcpy(io_info, &info, io_info->struct_size < sizeof(info) ? io_info->struct_size : sizeof(info));
  return OPIPE_OK;
}

opipe_status opi_api_plan_cut_tensor(opipe_plan *plan, uint32_t index, const char **out_name,
                                     uint32_t *out_src_stage, uint32_t *out_dst_stage,
                                     opipe_error *err) {
  OPI_TRY(check(plan, err));
  if (out_name == NULL || out_src_stage == NULL || out_dst_stage == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_cut_tensor: an argument is NULL");
  }
  const opi_plan *p = plan->plan;
  if (index >= p->n_crossings)
    return opi_fail(err, OPIPE_E_NOTFOUND, "plan_cut_tensor: index %u of %u", index,
                    p->n_crossings);
  *out_name = p->crossings[index].name;
  *out_src_stage = p->crossings[index].src_stage;
  *out_dst_stage = p->crossings[index].dst_stage;
  return OPIPE_OK;
}
