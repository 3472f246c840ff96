/* SPDX-License-Identifier: Apache-2.0 */
/* The kit: plugins, model, plans, sessions and batches of the training tests; see kit.h. */
#include "tests/runtime/train/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "abi/api/plugins.h"
#include "partition/program/batch.h"

const opipe_plugin *const *kit_static_plugins;

static uint64_t now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static opi_bind_options bind_options(const kit *k) {
  return (opi_bind_options){.dims = k->dims,
                            .n_dims = k->n_dims,
                            .flags = OPI_BIND_KEEP_PARAMETERS | k->bind_flags,
                            .dropout = k->dropout,
                            .evaluator = k->evaluator,
                            .allocator = opi_allocator_system()};
}

opipe_status kit_open(kit *k, const char *model_path, int64_t batch, int64_t tokens) {
  const char *paths[1] = {opi_test_build("lib/onnx-pipe")};
  const opi_registry_params params = {.allocator = opi_allocator_system(),
                                      .paths = paths,
                                      .n_paths = 1,
                                      .only_static = kit_static_plugins != NULL};
  opi_backend_ref cpu;
  memset(k, 0, sizeof *k);
  k->err.struct_size = (uint32_t)sizeof k->err;
  opi_arena_init(&k->arena, opi_allocator_system(), 0);
  OPI_TRY(opi_registry_create(&params, &k->registry, &k->err));
  for (uint32_t i = 0; kit_static_plugins != NULL && kit_static_plugins[i] != NULL; ++i)
    OPI_TRY(opi_registry_add_static(k->registry, kit_static_plugins[i], &k->err));
  k->plugins = opi_registry_plugins(k->registry);
  OPI_TRY(k->plugins.backend(k->plugins.ctx, "cpu", &cpu, &k->err));
  OPI_TRY(opi_evaluator_create(opi_allocator_system(), cpu.id, cpu.table, cpu.self, &k->evaluator,
                               &k->err));
  const opi_load_params load = {.path = model_path, .allocator = opi_allocator_system()};
  OPI_TRY(opi_model_load(&load, &k->model, &k->err));
  return kit_resize(k, batch, tokens);
}

static void name_dims(kit *k, int64_t batch, int64_t tokens) {
  const opi_graph *g = k->model->graph;
  k->n_dims = 0;
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const opi_value *value = &g->values[g->inputs[i]];
    for (int32_t d = 0; d < value->rank; ++d) {
      const char *name = value->dim_names == NULL ? NULL : value->dim_names[d];
      uint32_t j = 0;
      if (value->shape[d] >= 0 || name == NULL)
        continue;
      while (j < k->n_dims && strcmp(k->dims[j].name, name) != 0)
        ++j;
      if (j < k->n_dims || j == 4)
        continue;
      k->dims[k->n_dims++] = (opi_dim_binding){.name = name, .value = d == 0 ? batch : tokens};
      tokens = d == 0 ? tokens : tokens - 2; /* a decoder's sequences are shorter */
    }
  }
}

opipe_status kit_resize(kit *k, int64_t batch, int64_t tokens) {
  if (k->n_earlier == KIT_RESIZES)
    return opi_fail(&k->err, OPIPE_E_LIMIT, "%d sizes", KIT_RESIZES);
  if (k->bound != NULL)
    k->earlier[k->n_earlier++] = k->bound;
  k->bound = NULL;
  name_dims(k, batch, tokens);
  const opi_bind_options options = bind_options(k);
  return opi_bind(k->model, &options, &k->bound, &k->err);
}

void kit_close(kit *k) {
  opi_plan_free(k->plan);
  opi_bound_free(k->bound);
  for (uint32_t i = 0; i < k->n_earlier; ++i)
    opi_bound_free(k->earlier[i]);
  opi_model_free(k->model);
  opi_evaluator_free(k->evaluator);
  opi_registry_free(k->registry);
  opi_arena_release(&k->arena);
}

/* Finds the plugins that the plan names, by the options in its text. */
static opipe_status find_plugins(kit *k) {
  if (k->plan->decided.n_ranks > OPI_COUNT(k->backends))
    return opi_fail(&k->err, OPIPE_E_LIMIT, "%u ranks", k->plan->decided.n_ranks);
  for (uint32_t r = 0; r < k->plan->decided.n_ranks; ++r) {
    OPI_TRY(k->plugins.backend(k->plugins.ctx, k->plan->decided.devices[r].kind, &k->backends[r],
                               &k->err));
  }
  char id[64];
  OPI_TRY(opi_transport_split(k->plan->decided.transport, id, &k->transport_options, &k->err));
  return k->plugins.transport(k->plugins.ctx, id, &k->transport, &k->err);
}

opipe_device_choice kit_place_device(const kit_place *place) {
  return (opipe_device_choice){.kind = place->device == NULL ? "cpu" : place->device,
                               .index = place->device_index,
                               .options = place->device_options,
                               .threads = 1};
}

opipe_status kit_plan(kit *k, const kit_case *c) {
  const opi_bind_options bind = bind_options(k);
  const opi_plan_env env = {.allocator = opi_allocator_system(),
                            .plugins = &k->plugins,
                            .model = k->model,
                            .bind = &bind,
                            .costs = c->stages,
                            .now_ns = now_ns};
  const opipe_device_choice device = {.kind = c->device == NULL ? "cpu" : c->device,
                                      .index = c->device_index,
                                      .options = c->device_options,
                                      .memory_bytes = c->memory_bytes,
                                      .threads = 1};
  opipe_device_choice devices[8];
  const bool apart = (c->last_options != NULL || c->caps != NULL || c->spread > 1) &&
                     c->n_ranks > 0 && c->n_ranks <= 8;
  for (uint32_t r = 0; r < 8; ++r) {
    devices[r] = device;
    if (c->spread > 1)
      devices[r].index = r % c->spread;
    if (apart && c->caps != NULL && r < c->n_ranks)
      devices[r].memory_bytes = c->caps[r];
  }
  if (apart && c->last_options != NULL)
    devices[c->n_ranks - 1].options = c->last_options;
  const opipe_plan_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_plan_params, offload_bytes),
      .tensor = c->tensor,
      .offload = c->offload,
      .offload_bytes = c->offload_bytes,
      .flags = c->sequence ? OPIPE_PLAN_SEQUENCE : 0u,
      .n_ranks = c->n_ranks,
      .n_stages = c->n_stages,
      .devices = devices,
      .n_devices = apart ? c->n_ranks : 1,
      .devices_stride = sizeof(opipe_device_choice),
      .n_microbatches = c->n_microbatches,
      .schedule = c->schedule,
      .cut = c->cut,
      .cost = c->cost,
      .depth = c->depth,
      .transport = c->transport};
  opi_plan_free(k->plan);
  k->plan = NULL;
  OPI_TRY(opi_plan_make_training(&env, &params, &c->spec, &k->plan, &k->err));
  return find_plugins(k);
}

opipe_status kit_read_plan(kit *k, const char *json, size_t n_bytes) {
  const opi_bind_options bind = bind_options(k);
  const opi_plan_env env = {.allocator = opi_allocator_system(),
                            .plugins = &k->plugins,
                            .model = k->model,
                            .bind = &bind,
                            .now_ns = now_ns};
  opi_plan_free(k->plan);
  k->plan = NULL;
  OPI_TRY(opi_plan_read(&env, json, n_bytes, &k->plan, &k->err));
  return find_plugins(k);
}

opipe_status kit_session(kit *k, uint32_t flags, opi_session **out_session) {
  const opi_session_env env = {.allocator = opi_allocator_system(),
                               .model = k->model,
                               .plan = k->plan,
                               .backends = k->backends,
                               .transport = k->transport,
                               .transport_options = k->transport_options,
                               .evaluator = k->evaluator,
                               .local = k->local,
                               .budget = k->budget};
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .flags = flags,
      .threads = k->threads,
      .max_in_flight = 16,
      .max_shapes = k->max_shapes,
      .watchdog_ns = k->watchdog_ns != 0 ? k->watchdog_ns : UINT64_C(5000000000),
      .spin_us = UINT32_MAX};
  return opi_session_open(&env, &params, out_session, &k->err);
}

void kit_batch_add(kit_batch *batch, const char *name, uint32_t dtype, const int64_t *shape,
                   uint32_t rank, void *data) {
  if (batch->n_inputs == KIT_INPUTS)
    return;
  int64_t *own = batch->shapes[batch->n_inputs];
  for (uint32_t d = 0; d < rank; ++d)
    own[d] = shape[d];
  batch->inputs[batch->n_inputs++] = (opipe_binding_io){.name = name,
                                                        .tensor = {.data = data,
                                                                   .device_type = OPIPE_DL_CPU,
                                                                   .rank = (int32_t)rank,
                                                                   .dtype = opi_dtype_to_dl(dtype),
                                                                   .shape = own}};
}

opipe_status kit_batch_random(kit *k, const kit_case *c, int64_t n_classes, uint64_t seed,
                              kit_batch *batch) {
  const opi_graph *g = k->bound->graph;
  opi_test_random random = {seed};
  batch->n_inputs = 0;
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const opi_value *value = &g->values[g->inputs[i]];
    const int64_t limit = k->bound->index_limits[i] > 0 ? k->bound->index_limits[i] : 2;
    char *data = opi_arena_alloc(&k->arena, (size_t)value->n_bytes);
    if (data == NULL)
      return OPIPE_E_NOMEM;
    if (value->dtype == OPIPE_FLOAT)
      opi_test_fill_f32(&random, (float *)(void *)data, (size_t)value->n_bytes / 4, -1, 1);
    const bool mask = strstr(value->name, "mask") != NULL;
    const uint64_t n = value->dtype == OPIPE_INT64 ? value->n_bytes / 8 : 0;
    for (uint64_t e = 0; e < n; ++e) { /* of a mask the last two tokens of the last row are 0 */
      ((int64_t *)(void *)data)[e] =
          mask ? e + 2 < n : (int64_t)(opi_test_next(&random) % (uint64_t)limit);
    }
    kit_batch_add(batch, value->name, value->dtype, value->shape, (uint32_t)value->rank, data);
  }
  if (c->spec.loss.kind != OPI_LOSS_CROSS_ENTROPY)
    return OPIPE_OK;
  const opi_value *logits = &g->values[g->outputs[0]];
  const uint32_t rank = (uint32_t)logits->rank - 1;
  uint64_t n = 0;
  (void)opi_shape_elems(logits->shape, rank, &n);
  int64_t *labels = OPI_ARENA_ARRAY(&k->arena, int64_t, n);
  if (labels == NULL)
    return OPIPE_E_NOMEM;
  for (uint64_t e = 0; e < n; ++e) {
    labels[e] = opi_test_next(&random) % 7 == 0
                    ? -100
                    : (int64_t)(opi_test_next(&random) % (uint64_t)n_classes);
  }
  kit_batch_add(batch, c->spec.loss.labels, OPIPE_INT64, logits->shape, rank, labels);
  return OPIPE_OK;
}

static opipe_submit_params submit_params(const kit_batch *batch) {
  return (opipe_submit_params){.struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
                               .n_inputs = batch->n_inputs,
                               .io_stride = sizeof(opipe_binding_io),
                               .inputs = batch->inputs};
}

opipe_status kit_step(kit *k, opi_session *session, const kit_batch *batch, double *out_loss) {
  const opipe_submit_params params = submit_params(batch);
  opi_request *ticket = NULL;
  opi_train_result result;
  opipe_status status = opi_train_step(session, &params, &ticket, NULL, &k->err);
  if (status != OPIPE_OK)
    return status;
  status = opi_request_wait(ticket, UINT64_C(60000000000), &k->err);
  if (status == OPIPE_OK)
    status = opi_train_report(ticket, &result, &k->err);
  if (status == OPIPE_OK)
    *out_loss = result.loss;
  opi_request_release(ticket);
  return status;
}

opipe_status kit_evaluate(kit *k, opi_session *session, const kit_batch *batch, double *out_loss,
                          float **out_logits, size_t *out_n) {
  const opipe_submit_params params = submit_params(batch);
  opi_request *ticket = NULL;
  opi_train_result result;
  opipe_tensor logits;
  opipe_status status = opi_train_evaluate(session, &params, &ticket, NULL, &k->err);
  if (status != OPIPE_OK)
    return status;
  status = opi_request_wait(ticket, UINT64_C(60000000000), &k->err);
  if (status == OPIPE_OK)
    status = opi_train_report(ticket, &result, &k->err);
  *out_loss = status == OPIPE_OK ? result.loss : 0;
  if (status == OPIPE_OK)
    status = opi_request_output(ticket, 1, &logits, &k->err);
  if (status == OPIPE_OK) {
    *out_n = 1;
    for (int32_t d = 0; d < logits.rank; ++d)
      *out_n *= (size_t)logits.shape[d];
    *out_logits = opi_arena_copy(&k->arena, logits.data, *out_n * sizeof(float));
  }
  opi_request_release(ticket);
  return status;
}

opipe_status kit_state(kit *k, opi_session *session, uint32_t state, float **out_data,
                       size_t *out_n) {
  opi_weights *weights = opi_train_weights(session);
  opi_weight_info info;
  size_t n = 0, at = 0;
  for (uint32_t i = 0; opi_weights_info(weights, i, &info); ++i)
    n += info.trained != 0 ? (size_t)info.source->n_bytes / 4 : 0;
  *out_data = OPI_ARENA_ARRAY(&k->arena, float, n);
  *out_n = n;
  for (uint32_t i = 0; *out_data != NULL && opi_weights_info(weights, i, &info); ++i) {
    if (info.trained == 0)
      continue;
    OPI_TRY(opi_weights_get(weights, info.source->name, state, 0, *out_data + at,
                            info.source->n_bytes, &k->err));
    at += (size_t)info.source->n_bytes / 4;
  }
  return *out_data == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
}
