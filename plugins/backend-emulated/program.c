/* SPDX-License-Identifier: Apache-2.0 */
/* Programs and runs: compiled and computed by the inner backend, timed and failed by the options.
 */
#include "emulated.h"

opipe_status emudev_support(opipe_device *device, const opipe_graph *graph,
                            opipe_support *out_support, opipe_error *err) {
  return device->self->inner->support(device->inner, graph, out_support, err);
}

opipe_status emudev_compile(opipe_device *device, const opipe_compile_params *params,
                            opipe_program **out_program, opipe_error *err) {
  const uint32_t stage =
      OPIPE_HAS(params, opipe_compile_params, stage) ? params->stage : OPIPE_NONE;
  uint64_t time_ns = 0;
  opipe_status status = emudev_graph_ns(&device->options, params->graph, stage, &time_ns, err);
  opipe_program *program = status < 0 ? NULL : emudev_alloc(device, sizeof *program);
  if (program == NULL)
    return status < 0 ? status : emudev_nomem(sizeof *program, err);
  program->device = device;
  program->time_ns = time_ns;
  status = device->self->inner->compile(device->inner, params, &program->inner, err);
  if (status < 0) {
    emudev_free(device, program, sizeof *program);
    return status;
  }
  *out_program = program;
  return OPIPE_OK;
}

void emudev_program_free(opipe_program *program) {
  if (program == NULL)
    return;
  program->device->self->inner->program_free(program->inner);
  emudev_free(program->device, program, sizeof *program);
}

opipe_status emudev_program_info(const opipe_program *program, opipe_program_info *io_info,
                                 opipe_error *err) {
  return program->device->self->inner->program_info(program->inner, io_info, err);
}

opipe_status emudev_program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                   uint32_t *io_count, opipe_error *err) {
  return program->device->self->inner->program_params(program->inner, out_layouts, io_count, err);
}

opipe_status emudev_bind(opipe_device *device, const opipe_bind_params *params,
                         opipe_binding **out_binding, opipe_error *err) {
  const size_t regions_bytes =
      (params->n_boundaries == 0 ? 1 : params->n_boundaries) * sizeof(opipe_region);
  opipe_region *regions = emudev_alloc(device, regions_bytes);
  opipe_binding *binding = emudev_alloc(device, sizeof *binding);
  opipe_status status = OPIPE_OK;
  if (regions == NULL || binding == NULL) {
    status = emudev_nomem(regions_bytes + sizeof *binding, err);
    goto done;
  }
  for (uint32_t i = 0; i < params->n_boundaries; ++i)
    regions[i] = emudev_region(&params->boundaries[i]);
  opipe_bind_params inner;
  const size_t known = sizeof inner < params->struct_size ? sizeof inner : params->struct_size;
  memset(&inner, 0, sizeof inner);
  memcpy(&inner, params, known);
  inner.struct_size = (uint32_t)known;
  if (OPIPE_HAS(params, opipe_bind_params, gradients) && params->gradients != NULL)
    inner.gradients = params->gradients->inner;
  inner.program = params->program->inner;
  inner.params = params->params == NULL ? NULL : params->params->inner;
  inner.arena = emudev_region(&params->arena);
  inner.boundaries = regions;
  binding->device = device;
  binding->time_ns = params->program->time_ns;
  status = device->self->inner->bind(device->inner, &inner, &binding->inner, err);
done:
  emudev_free(device, regions, regions_bytes);
  if (status < 0) {
    emudev_free(device, binding, sizeof *binding);
    return status;
  }
  *out_binding = binding;
  return OPIPE_OK;
}

void emudev_binding_free(opipe_binding *binding) {
  if (binding == NULL)
    return;
  binding->device->self->inner->binding_free(binding->inner);
  emudev_free(binding->device, binding, sizeof *binding);
}

opipe_status emudev_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                        uint32_t n_scalars, opipe_error *err) {
  opipe_device *device = binding->device;
  const options *o = &device->options;
  const uint64_t count = atomic_fetch_add(&device->n_runs, 1) + 1;
  const uint64_t now = emudev_now();
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  if (count == o->fail_run) {
    return opipe_fail(err, OPIPE_E_DEVICE, "emulated device: run %llu fails, as its options say",
                      (unsigned long long)count);
  }
  if (o->compute)
    status = device->self->inner->run(binding->inner, queue->inner, scalars, n_scalars, &why);
  /* As on a device that finishes later: what breaks a rule is found when the run is done. */
  if (status < 0 && !opipe_late_is_data(status)) {
    if (err != NULL)
      *err = why;
    return status;
  }
  opipe_late_add(&queue->late, status, &why);
  if (queue->free_ns < now)
    queue->free_ns = now;
  queue->free_ns += binding->time_ns + (count == o->stall_run ? o->stall_ns : 0);
  if (count == o->fail_late) {
    (void)opipe_fail(&why, OPIPE_E_DEVICE,
                     "emulated device: run %llu fails late, as its options say",
                     (unsigned long long)count);
    opipe_late_add(&queue->late, why.status, &why);
  }
  return OPIPE_OK;
}
