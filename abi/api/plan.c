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

opipe_status opi_api_plan_make(opipe_model *model, const opipe_plan_params *params,
                               opipe_plan **out_plan, opipe_error *err) {
  opipe_plan_params own = {.struct_size = (uint32_t)OPIPE_END(opipe_plan_params, transport)};
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
  const opi_plan_env env = env_of(model, &model->options);
  OPI_TRY(new_plan(model, &plan, err));
  const opipe_status status = opi_plan_make(&env, &own, &plan->plan, err);
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

/* ---- the plan's graph, for annotations and cut tensors ---- */

static opipe_status bind_plan(const opipe_plan *plan, opi_bound **out_bound, opipe_error *err) {
  const opi_plan *p = plan->plan;
  opi_bind_options base = {.allocator = &plan->model->context->allocator,
                           .logger = &plan->model->context->logger};
  OPI_TRY(opi_context_evaluator(plan->model->context, &base.evaluator, err));
  const int64_t rows =
      p->batch_dim == NULL ? 0 : opi_microbatch_rows(p->batch_rows, p->n_microbatches, 0);
  return opi_plan_bind(p, plan->model->file, &base, rows, out_bound, err);
}

/* A node of the file gets the latest stage of the bound nodes that came from it; one that was
 * folded away gets none. */
static void stages_of_file(const opi_plan *plan, const opi_graph *bound, int32_t *out_stage,
                           uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    out_stage[i] = -1;
  for (uint32_t i = 0; i < bound->n_nodes && i < plan->n_nodes; ++i) {
    const uint32_t source = bound->nodes[i].source;
    if (source < n && out_stage[source] < (int32_t)plan->stage_of_node[i])
      out_stage[source] = (int32_t)plan->stage_of_node[i];
  }
}

/* Nodes inside a fused group have no bound node of their own: they go where their consumers are, so
 * that the annotation names a stage for all that a stage computes and every edge goes forward. */
static void spread_stages(const opi_graph *file, int32_t *io_stage) {
  for (uint32_t n = file->n_nodes; n-- > 0;) {
    int32_t least = INT32_MAX;
    for (uint32_t c = n + 1; c < file->n_nodes; ++c) {
      for (uint32_t i = 0; i < file->nodes[c].n_in; ++i) {
        const uint32_t v = file->nodes[c].in[i];
        if (v == OPIPE_NONE || file->values[v].producer != n || io_stage[c] < 0)
          continue;
        if (io_stage[c] < least)
          least = io_stage[c];
      }
    }
    if (io_stage[n] < 0 && least != INT32_MAX)
      io_stage[n] = least;
    if (io_stage[n] > least)
      io_stage[n] = least;
  }
}

opipe_status opi_api_plan_annotate(opipe_plan *plan, opipe_write_fn write, void *ctx,
                                   opipe_error *err) {
  OPI_TRY(check_sink(plan, write, "plan_annotate", err));
  const opi_model *file = plan->model->file;
  const opipe_allocator *allocator = &plan->model->context->allocator;
  const size_t n = file->graph->n_nodes;
  opi_bound *bound = NULL;
  int32_t *stages = opi_alloc_zero(allocator, n + 1, sizeof(*stages));
  if (stages == NULL)
    return opi_fail_nomem(err, n * sizeof(*stages), "annotations");
  opipe_status status = bind_plan(plan, &bound, err);
  if (status == OPIPE_OK) {
    stages_of_file(plan->plan, bound->graph, stages, (uint32_t)n);
    spread_stages(file->graph, stages);
    status = opi_model_annotate(file, "onnx-pipe", stages, (uint32_t)n, plan->plan->n_ranks, write,
                                ctx, err);
  }
  opi_bound_free(bound);
  opi_free(allocator, stages, (n + 1) * sizeof(*stages));
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
