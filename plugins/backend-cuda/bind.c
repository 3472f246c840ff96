/* SPDX-License-Identifier: Apache-2.0 */
/* Bindings: every step of a program with its addresses, ready to be launched again and again. */
#include "binding.h"

static opipe_status check_regions(const opipe_program *program, const opipe_bind_params *params,
                                  opipe_error *err) {
  const opipe_graph *graph = program->graph;
  CUdeviceptr address = 0;
  if (params->n_boundaries < graph->n_boundaries) {
    return opipe_fail(err, OPIPE_E_INVALID, "bind: %u boundaries, the program has %u",
                      params->n_boundaries, graph->n_boundaries);
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if ((value->role != OPIPE_VALUE_INPUT && value->role != OPIPE_VALUE_OUTPUT) ||
        value->n_bytes == 0)
      continue;
    const opipe_region *region = &params->boundaries[value->slot];
    CUDA_TRY(cuda_region(program->device, region, value->name, &address, err));
    if (region->n_bytes < value->n_bytes || region->offset_bytes % CUDA_ALIGN != 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "bind: '%.80s' needs %llu bytes at a multiple of %d, its region has %llu "
                        "at %llu",
                        value->name, (unsigned long long)value->n_bytes, CUDA_ALIGN,
                        (unsigned long long)region->n_bytes,
                        (unsigned long long)region->offset_bytes);
    }
  }
  return OPIPE_OK;
}

static opipe_status check_arena(opipe_binding *binding, const opipe_bind_params *params,
                                opipe_error *err) {
  const opipe_program *program = binding->program;
  if (program->arena_bytes == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_region(program->device, &params->arena, "bind: arena", &binding->arena, err));
  if (params->arena.n_bytes < program->arena_bytes ||
      params->arena.offset_bytes % CUDA_ALIGN != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "bind: the arena has %llu bytes at %llu, the program needs %llu at a "
                      "multiple of %d",
                      (unsigned long long)params->arena.n_bytes,
                      (unsigned long long)params->arena.offset_bytes,
                      (unsigned long long)program->arena_bytes, CUDA_ALIGN);
  }
  return OPIPE_OK;
}

/* Every parameter that the program touches must have been prepared. */
static opipe_status check_set(const opipe_program *program, const opipe_params *set,
                              const cuda_layout *layouts, uint32_t n, const char *what,
                              opipe_error *err) {
  if (n > 0 && set == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "bind: the program needs a set of %s", what);
  for (uint32_t i = 0; i < n; ++i) {
    if (layouts[i].key == CUDA_LAYOUT_F32)
      continue; /* no program reads it */
    if (layouts[i].slot >= cuda_params_count(set) ||
        cuda_params_address(set, layouts[i].slot, layouts[i].key) == 0) {
      return opipe_fail(err, OPIPE_E_STATE, "bind: '%.80s' was not prepared for the program",
                        program->graph->values[layouts[i].value].name);
    }
  }
  return OPIPE_OK;
}

static CUdeviceptr address_of(const opipe_binding *binding, const opipe_bind_params *params,
                              uint32_t value) {
  const opipe_program *program = binding->program;
  if (value == CUDA_AT_STATUS)
    return binding->arena + offsetof(cuda_run_block, status);
  if (value == CUDA_AT_COUNTERS)
    return binding->arena + offsetof(cuda_run_block, counters);
  if (value == CUDA_AT_WORKSPACE)
    return binding->workspace;
  if (value == CUDA_AT_KEPT)
    return binding->workspace - program->kept_bytes;
  const cuda_storage *storage = &program->storages[cuda_root(program, value)];
  switch (storage->kind) {
    case CUDA_PLACE_BOUNDARY: {
      const opipe_region *region = &params->boundaries[storage->slot];
      return region->buffer != NULL ? region->buffer->address + region->offset_bytes : 0;
    }
    case CUDA_PLACE_PARAM:
      return cuda_params_address(params->params, storage->slot, storage->key);
    case CUDA_PLACE_GRADIENT:
      return cuda_params_address(params->gradients, storage->slot, CUDA_LAYOUT_OWN);
    case CUDA_PLACE_SCALAR:
      return binding->arena + offsetof(cuda_run_block, scalars) + 8ull * storage->slot;
    default:
      return binding->arena + storage->offset;
  }
}

static opipe_status bind_step(opipe_binding *binding, const opipe_bind_params *params,
                              const cuda_step *step, cuda_bound *bound, opipe_error *err) {
  opipe_device *device = binding->program->device;
  const uint32_t n_bytes = step->kind == CUDA_STEP_LAUNCH    ? step->launch.args_bytes
                           : step->kind == CUDA_STEP_PRODUCT ? sizeof(cuda_product_args)
                           : step->kind == CUDA_STEP_COPY    ? sizeof(cuda_copy_args)
                           : step->kind == CUDA_STEP_PLAN    ? sizeof(cuda_dnn_args)
                                                             : sizeof(cuda_host_args);
  bound->step = step;
  bound->args = CUDA_POOL_ARRAY(&binding->pool, unsigned char, n_bytes);
  if (bound->args == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory to bind node '%.80s'", step->node->name);
  memcpy(bound->args, step->launch.block_args.args, n_bytes);
  for (const cuda_patch *patch = step->patches; patch != NULL; patch = patch->next) {
    const uint64_t address = address_of(binding, params, patch->value) + (uint64_t)patch->bytes;
    memcpy(bound->args + patch->offset, &address, sizeof address);
  }
  if (step->kind == CUDA_STEP_LAUNCH)
    return cuda_find_kernel(device, &step->launch, &bound->kernel, err);
  if (step->kind == CUDA_STEP_PRODUCT) {
    cuda_product_args args;
    memcpy(&args, bound->args, sizeof args);
    return cuda_product_bind(device, step->product, &args, &bound->product, err);
  }
  if (step->kind == CUDA_STEP_PLAN)
    return cuda_dnn_bind(device, step->plan, bound->args, &bound->plan, err);
  return OPIPE_OK;
}

/* The extra launches of every run of a program with a run block. */
static opipe_status bind_block(opipe_binding *binding, opipe_error *err) {
  static const cuda_begin_args begin;
  static const cuda_report_args report;
  static const cuda_zone_args zone;
  opipe_device *device = binding->program->device;
  cuda_launch launch;
  if (!cuda_plan_begin(&begin, &launch))
    return opipe_fail(err, OPIPE_E_INTERNAL, "backend cuda: no kernel begins runs");
  CUDA_TRY(cuda_find_kernel(device, &launch, &binding->begin, err));
  if (!cuda_plan_report(&report, &launch))
    return opipe_fail(err, OPIPE_E_INTERNAL, "backend cuda: no kernel reports");
  CUDA_TRY(cuda_find_kernel(device, &launch, &binding->report, err));
  if (!cuda_plan_zone(&zone, &launch))
    return opipe_fail(err, OPIPE_E_INTERNAL, "backend cuda: no kernel looks at red zones");
  return cuda_find_kernel(device, &launch, &binding->zone, err);
}

static opipe_status fill_binding(opipe_binding *binding, const opipe_bind_params *params,
                                 opipe_error *err) {
  const opipe_program *program = binding->program;
  uint32_t n = 0;
  binding->steps = CUDA_POOL_ARRAY(&binding->pool, cuda_bound, program->n_steps);
  if (binding->steps == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory to bind %u steps", program->n_steps);
  binding->workspace = binding->arena + program->block_bytes + program->constant_bytes +
                       program->temp_bytes + program->kept_bytes;
  if (program->has_block)
    CUDA_TRY(bind_block(binding, err));
  CUDA_TRY(cuda_sections_prepare(program, &binding->pool, err));
  for (const cuda_step *step = program->steps; step != NULL; step = step->next) {
    CUDA_TRY(bind_step(binding, params, step, &binding->steps[n], err));
    binding->n_steps = ++n;
  }
  return OPIPE_OK;
}

opipe_status cuda_bind(opipe_device *device, const opipe_bind_params *params,
                       opipe_binding **out_binding, opipe_error *err) {
  if (!OPIPE_HAS(params, opipe_bind_params, boundaries))
    return opipe_fail(err, OPIPE_E_ABI, "bind: struct_size %u is too small", params->struct_size);
  const opipe_program *program = params->program;
  const opipe_params *gradients =
      OPIPE_HAS(params, opipe_bind_params, gradients) ? params->gradients : NULL;
  if (program->device != device)
    return opipe_fail(err, OPIPE_E_INVALID, "bind: the program is of another opening");
  CUDA_TRY(check_regions(program, params, err));
  CUDA_TRY(
      check_set(program, params->params, program->layouts, program->n_layouts, "parameters", err));
  CUDA_TRY(
      check_set(program, gradients, program->gradients, program->n_gradients, "gradients", err));
  CUDA_TRY(cuda_enter(device, "bind", err));
  opipe_binding *binding =
      opipe_zeroed(device->host, "binding", sizeof *binding, _Alignof(opipe_binding), err);
  opipe_status status = binding == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  if (status >= 0) {
    binding->program = program;
    binding->pool.host = device->host;
    status = check_arena(binding, params, err);
  }
  if (status >= 0)
    status = fill_binding(binding, params, err);
  if (status >= 0)
    status = cuda_graph_make(binding, err);
  cuda_leave(device);
  if (status < 0)
    cuda_binding_free(binding);
  else
    *out_binding = binding;
  return status;
}

void cuda_binding_free(opipe_binding *binding) {
  if (binding == NULL)
    return;
  opipe_device *device = binding->program->device;
  const bool entered = cuda_enter(device, "binding_free", NULL) >= 0;
  for (uint32_t i = 0; i < binding->n_steps; ++i) {
    cuda_product_free(device, binding->steps[i].product);
    cuda_dnn_unbind(device, binding->steps[i].plan);
  }
  if (entered) {
    cuda_graph_free(binding);
    cuda_leave(device);
  }
  cuda_pool_release(&binding->pool);
  opipe_free(device->host, binding, sizeof *binding, _Alignof(opipe_binding));
}
