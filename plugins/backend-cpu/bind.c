/* SPDX-License-Identifier: Apache-2.0 */
/* Binding: turns every operand of a program into an address, so that a run is a loop over kernels.
 */
#include "binding.h"

#include "ops/op.h"

void cpu_refresh_params(opipe_binding *binding) {
  uint64_t version = 0;
  version += binding->params != NULL ? cpu_params_version(binding->params) : 0;
  version += binding->gradients != NULL ? cpu_params_version(binding->gradients) : 0;
  if (version == binding->params_version)
    return;
  for (uint32_t i = 0; i < binding->n_refs; ++i) {
    const cpu_param_ref *ref = &binding->refs[i];
    const uint32_t kind =
        ref->kind == CPU_LAYOUT_MASTER ? cpu_params_master_kind(ref->set, ref->slot) : ref->kind;
    ref->tensor->data =
        (void *)(uintptr_t)(ref->matrix != NULL ? cpu_params_matrix(ref->set, ref->matrix)
                                                : cpu_params_data(ref->set, ref->slot, kind));
    ref->tensor->layout = kind;
  }
  binding->params_version = version;
}

static opipe_status bind_boundaries(opipe_binding *binding, const opipe_bind_params *params,
                                    opipe_error *err) {
  const opipe_graph *graph = binding->program->graph;
  if (params->n_boundaries != graph->n_boundaries) {
    return opipe_fail(err, OPIPE_E_INVALID, "bind: %u boundaries given, the program has %u",
                      params->n_boundaries, graph->n_boundaries);
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if (value->role != OPIPE_VALUE_INPUT && value->role != OPIPE_VALUE_OUTPUT)
      continue;
    const opipe_region *region = &params->boundaries[value->slot];
    void *data = NULL;
    CPU_TRY(cpu_region_data(region, value->name, &data, err));
    if (region->n_bytes < value->n_bytes) {
      return opipe_fail(err, OPIPE_E_INVALID, "bind: '%.80s' needs %llu bytes, its region has %llu",
                        value->name, (unsigned long long)value->n_bytes,
                        (unsigned long long)region->n_bytes);
    }
    if ((uintptr_t)data % CPU_ALIGN_BYTES != 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "bind: the region of '%.80s' is at offset %llu, not a multiple of %d",
                        value->name, (unsigned long long)region->offset_bytes, CPU_ALIGN_BYTES);
    }
    binding->boundaries[value->slot] = data;
  }
  return OPIPE_OK;
}

static opipe_status not_prepared(const opipe_value *value, opipe_error *err) {
  return opipe_fail(err, OPIPE_E_STATE,
                    "bind: parameter '%.80s' has not been prepared for this program", value->name);
}

static opipe_status bind_matrix(opipe_binding *binding, cpu_tensor *tensor,
                                const opipe_value *value, const cpu_matrix *matrix,
                                opipe_error *err) {
  const opipe_params *set = binding->params;
  if (set == NULL || cpu_params_matrix(set, matrix) == NULL)
    return not_prepared(value, err);
  binding->refs[binding->n_refs++] =
      (cpu_param_ref){set, tensor, value->slot, CPU_LAYOUT_CODES, matrix};
  return OPIPE_OK;
}

static opipe_status bind_param(opipe_binding *binding, cpu_tensor *tensor, const opipe_value *value,
                               uint32_t slot, uint32_t kind, opipe_error *err) {
  const opipe_params *set = binding->params;
  const bool known = set != NULL && slot < cpu_params_count(set);
  const uint32_t held =
      known && kind == CPU_LAYOUT_MASTER ? cpu_params_master_kind(set, slot) : kind;
  if (!known || held == CPU_LAYOUT_MASTER ||
      (cpu_params_data(set, slot, held) == NULL && value->n_bytes > 0))
    return not_prepared(value, err);
  binding->refs[binding->n_refs++] = (cpu_param_ref){set, tensor, slot, kind, NULL};
  return OPIPE_OK;
}

static opipe_status bind_gradient(opipe_binding *binding, cpu_tensor *tensor,
                                  const opipe_value *value, opipe_error *err) {
  const opipe_params *set = binding->gradients;
  if (set == NULL || value->slot >= cpu_params_count(set) ||
      cpu_params_master_kind(set, value->slot) == CPU_LAYOUT_MASTER) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "bind: gradient '%.80s' has no accumulator prepared for this program",
                      value->name);
  }
  binding->refs[binding->n_refs++] =
      (cpu_param_ref){set, tensor, value->slot, CPU_LAYOUT_MASTER, NULL};
  return OPIPE_OK;
}

static opipe_status bind_operand(opipe_binding *binding, const cpu_operand *operand,
                                 const cpu_matrix *matrix, cpu_tensor *tensor, opipe_error *err) {
  const opipe_program *program = binding->program;
  if (operand->value == OPIPE_NONE)
    return OPIPE_OK;
  const opipe_value *value = &program->graph->values[operand->value];
  const cpu_storage *storage = &program->storages[program->storage_of[operand->value]];
  tensor->shape = value->shape;
  tensor->rank = value->rank;
  tensor->dtype = value->dtype;
  tensor->n_bytes = value->n_bytes;
  tensor->n = cpu_elems(value);
  if (operand->layout == CPU_LAYOUT_CODES)
    return bind_matrix(binding, tensor, value, matrix, err);
  if (value->role == OPIPE_VALUE_PARAMETER)
    return bind_param(binding, tensor, value, value->slot, operand->layout, err);
  if (value->role == OPIPE_VALUE_GRADIENT)
    return bind_gradient(binding, tensor, value, err);
  switch (storage->kind) {
    case CPU_PLACE_PARAM:
      return bind_param(binding, tensor, value, storage->slot, CPU_LAYOUT_COPY, err);
    case CPU_PLACE_CONSTANT:
      tensor->data = (void *)(uintptr_t)storage->data;
      break;
    case CPU_PLACE_SCALAR:
      tensor->data = &binding->scalars[storage->slot];
      break;
    case CPU_PLACE_BOUNDARY:
      tensor->data = binding->boundaries[storage->slot];
      break;
    default:
      tensor->data = binding->arena + storage->offset +
                     ((program->flags & OPIPE_COMPILE_POISON) != 0 ? CPU_RED_ZONE : 0);
      break;
  }
  return OPIPE_OK;
}

static opipe_status bind_step(opipe_binding *binding, uint32_t s, cpu_tensor *tensors,
                              opipe_error *err) {
  const opipe_program *program = binding->program;
  const cpu_step *step = &program->steps[s];
  cpu_call *call = &binding->calls[s];
  call->exec = &binding->exec;
  call->node = step->node;
  call->plan = step->plan;
  call->in = tensors;
  call->out = tensors + step->n_in;
  call->n_in = step->n_in;
  call->n_out = step->n_out;
  call->workspace = binding->arena + program->temp_bytes;
  for (uint32_t i = 0; i < step->n_in; ++i) {
    if (step->is_view && i > 0)
      break;
    CPU_TRY(bind_operand(binding, &step->in[i], step->matrix, &tensors[i], err));
  }
  for (uint32_t i = 0; i < step->n_out; ++i)
    CPU_TRY(bind_operand(binding, &step->out[i], NULL, &tensors[step->n_in + i], err));
  return OPIPE_OK;
}

static opipe_status bind_all(opipe_binding *binding, const opipe_bind_params *params,
                             opipe_error *err) {
  const opipe_program *program = binding->program;
  uint64_t n_operands = 0;
  void *arena = binding; /* never touched when the program needs no arena */
  for (uint32_t s = 0; s < program->n_steps; ++s)
    n_operands += program->steps[s].n_in + program->steps[s].n_out;
  cpu_tensor *tensors = CPU_POOL_ARRAY(&binding->pool, cpu_tensor, n_operands);
  binding->calls = CPU_POOL_ARRAY(&binding->pool, cpu_call, program->n_steps);
  binding->refs = CPU_POOL_ARRAY(&binding->pool, cpu_param_ref, n_operands);
  binding->boundaries = CPU_POOL_ARRAY(&binding->pool, void *, program->graph->n_boundaries);
  binding->scalars = CPU_POOL_ARRAY(&binding->pool, int64_t, program->graph->n_scalars);
  if (binding->scalars == NULL || tensors == NULL || binding->calls == NULL ||
      binding->refs == NULL || binding->boundaries == NULL) {
    return opipe_fail(err, OPIPE_E_NOMEM, "bind: no memory for %llu operands",
                      (unsigned long long)n_operands);
  }
  if (program->arena_bytes > 0) {
    CPU_TRY(cpu_region_data(&params->arena, "bind: arena", &arena, err));
    if (params->arena.n_bytes < program->arena_bytes || (uintptr_t)arena % CPU_ALIGN_BYTES != 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "bind: the program needs an arena of %llu bytes aligned to %d, got %llu at "
                        "offset %llu",
                        (unsigned long long)program->arena_bytes, CPU_ALIGN_BYTES,
                        (unsigned long long)params->arena.n_bytes,
                        (unsigned long long)params->arena.offset_bytes);
    }
  }
  binding->arena = arena;
  CPU_TRY(bind_boundaries(binding, params, err));
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    CPU_TRY(bind_step(binding, s, tensors, err));
    tensors += program->steps[s].n_in + program->steps[s].n_out;
  }
  binding->params_version = UINT64_MAX;
  cpu_refresh_params(binding);
  return OPIPE_OK;
}

opipe_status cpu_bind(opipe_device *device, const opipe_bind_params *params,
                      opipe_binding **out_binding, opipe_error *err) {
  if (!OPIPE_HAS(params, opipe_bind_params, boundaries))
    return opipe_fail(err, OPIPE_E_ABI, "bind: struct_size %u is too small", params->struct_size);
  opipe_binding *binding = cpu_acquire(device->host, sizeof *binding, "binding", err);
  if (binding == NULL)
    return OPIPE_E_NOMEM;
  binding->device = device;
  binding->program = params->program;
  binding->params = params->params;
  binding->gradients = OPIPE_HAS(params, opipe_bind_params, gradients) ? params->gradients : NULL;
  cpu_pool_init(&binding->pool, device->host);
  const opipe_status status = bind_all(binding, params, err);
  if (status < 0) {
    cpu_binding_free(binding);
    return status;
  }
  *out_binding = binding;
  return OPIPE_OK;
}

void cpu_binding_free(opipe_binding *binding) {
  if (binding != NULL) {
    const opipe_host *host = binding->device->host;
    cpu_pool_release(&binding->pool);
    cpu_release(host, binding, sizeof *binding);
  }
}
