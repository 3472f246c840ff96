/* SPDX-License-Identifier: Apache-2.0 */
/* Programs and runs: compiled and computed by the inner backend, timed and failed by the options.
 */
#include "emulated.h"

opipe_status emudev_support(opipe_device *device, const opipe_graph *graph,
                            opipe_support *out_support, opipe_error *err) {
  return device->self->inner->support(device->inner, graph, out_support, err);
}

/* A queue's copy of a run has room for its scalars beforehand. */
static opipe_status check_scalars(const opipe_device *device, const opipe_graph *graph,
                                  opipe_error *err) {
  const uint32_t n = OPIPE_HAS(graph, opipe_graph, n_scalars) ? graph->n_scalars : 0;
  if (!device->options.async || n <= SCALARS_MOST)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "emulated device %u: runs of a graph of %u scalars, at most %d are queued",
                    device->index, n, SCALARS_MOST);
}

static bool trains(const opipe_graph *graph) {
  uint32_t v = 0;
  while (v < graph->n_values && graph->values[v].role != OPIPE_VALUE_GRADIENT)
    ++v;
  return v < graph->n_values;
}

/* Programs that give no gradients need no parts. */
static opipe_status find_places(opipe_program *program, const opipe_graph *graph, uint32_t stage,
                                opipe_error *err) {
  const opipe_device *device = program->device;
  const opipe_backend *inner = device->self->inner;
  program->n_params = graph->n_params;
  if (!OPIPE_HAS(inner, opipe_backend, run_part) || inner->run_part == NULL || !trains(graph))
    return OPIPE_OK;
  program->ends = emudev_alloc(device, program->n_params * sizeof *program->ends);
  if (program->ends == NULL)
    return emudev_nomem(program->n_params * sizeof *program->ends, err);
  const opipe_status status =
      inner->program_places(program->inner, program->ends, &program->n_places, err);
  if (status < 0)
    return status;
  const size_t n_bytes = ((size_t)program->n_places + 1) * sizeof *program->places_ns;
  program->places_ns = emudev_alloc(device, n_bytes);
  if (program->places_ns == NULL)
    return emudev_nomem(n_bytes, err);
  emudev_spread_ns(&device->options, graph, stage, program);
  return OPIPE_OK;
}

opipe_status emudev_compile(opipe_device *device, const opipe_compile_params *params,
                            opipe_program **out_program, opipe_error *err) {
  const uint32_t stage =
      OPIPE_HAS(params, opipe_compile_params, stage) ? params->stage : OPIPE_NONE;
  uint64_t time_ns = 0;
  opipe_status status = check_scalars(device, params->graph, err);
  if (status == OPIPE_OK)
    status = emudev_graph_ns(&device->options, params->graph, stage, &time_ns, err);
  opipe_program *program = status < 0 ? NULL : emudev_alloc(device, sizeof *program);
  if (program == NULL)
    return status < 0 ? status : emudev_nomem(sizeof *program, err);
  program->device = device;
  program->time_ns = time_ns;
  status = device->self->inner->compile(device->inner, params, &program->inner, err);
  if (status == OPIPE_OK)
    status = find_places(program, params->graph, stage, err);
  if (status < 0) {
    emudev_program_free(program);
    return status;
  }
  *out_program = program;
  return OPIPE_OK;
}

void emudev_program_free(opipe_program *program) {
  if (program == NULL)
    return;
  const opipe_device *device = program->device;
  emudev_free(device, program->places_ns,
              ((size_t)program->n_places + 1) * sizeof *program->places_ns);
  emudev_free(device, program->ends, (size_t)program->n_params * sizeof *program->ends);
  device->self->inner->program_free(program->inner);
  emudev_free(device, program, sizeof *program);
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
  binding->program = params->program;
  binding->params = params->params;
  if (inner.gradients != NULL)
    binding->gradients = params->gradients;
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
  emudev_expect_idle(binding->device, &(target){.binding = binding}, "binding_free");
  binding->device->self->inner->binding_free(binding->inner);
  emudev_free(binding->device, binding, sizeof *binding);
}

static opipe_status compute(opipe_queue *queue, const work *w, opipe_error *err) {
  const opipe_backend *inner = queue->self->inner;
  opipe_binding *binding = w->binding->inner;
  return w->last_place == 0 ? inner->run(binding, queue->inner, w->scalars, w->n_scalars, err)
                            : inner->run_part(binding, queue->inner, w->scalars, w->n_scalars,
                                              w->first_place, w->last_place, err);
}

static uint64_t time_of(const work *w) {
  const opipe_program *program = w->binding->program;
  return w->last_place == 0
             ? program->time_ns
             : program->places_ns[w->last_place] - program->places_ns[w->first_place];
}

/* A data error stays with the queue, as on a device that finishes later: what breaks a rule is
 * found when the run is done. */
static opipe_status run_now(opipe_queue *queue, const work *w, opipe_error *err) {
  const options *o = &queue->device->options;
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  if (o->compute)
    status = compute(queue, w, &why);
  if (status < 0 && !opipe_late_is_data(status)) {
    if (err != NULL)
      *err = why;
    return status;
  }
  opipe_late_add(&queue->late, status, &why);
  uint64_t free_ns = atomic_load_explicit(&queue->free_ns, memory_order_relaxed);
  if (free_ns < w->queued_ns)
    free_ns = w->queued_ns;
  free_ns += time_of(w) + (w->count != 0 && w->count == o->stall_run ? o->stall_ns : 0);
  atomic_store_explicit(&queue->free_ns, free_ns, memory_order_relaxed);
  if (w->count != 0 && w->count == o->fail_late) {
    (void)opipe_fail(&why, OPIPE_E_DEVICE,
                     "emulated device: run %llu fails late, as its options say",
                     (unsigned long long)w->count);
    opipe_late_add(&queue->late, why.status, &why);
  }
  return OPIPE_OK;
}

static opipe_status do_run(opipe_binding *binding, opipe_queue *queue, work *w, opipe_error *err) {
  opipe_device *device = binding->device;
  w->act = run_now;
  w->binding = binding;
  w->queued_ns = emudev_now();
  if (w->first_place == 0)
    w->count = atomic_fetch_add(&device->n_runs, 1) + 1;
  if (w->count != 0 && w->count == device->options.fail_run) {
    return opipe_fail(err, OPIPE_E_DEVICE, "emulated device: run %llu fails, as its options say",
                      (unsigned long long)w->count);
  }
  if (device->options.async && w->n_scalars > SCALARS_MOST) {
    return opipe_fail(err, OPIPE_E_INVALID, "run: %u scalars, at most %d", w->n_scalars,
                      SCALARS_MOST);
  }
  return emudev_do(queue, w, err);
}

opipe_status emudev_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                        uint32_t n_scalars, opipe_error *err) {
  work w = {.scalars = scalars, .n_scalars = n_scalars};
  return do_run(binding, queue, &w, err);
}

opipe_status emudev_program_places(const opipe_program *program, uint32_t *out_ends,
                                   uint32_t *out_n, opipe_error *err) {
  (void)err;
  for (uint32_t slot = 0; slot < program->n_params; ++slot)
    out_ends[slot] = program->ends == NULL ? 0 : program->ends[slot];
  *out_n = program->n_places;
  return OPIPE_OK;
}

opipe_status emudev_run_part(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                             uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err) {
  work w = {.scalars = scalars, .n_scalars = n_scalars, .first_place = from, .last_place = to};
  if (from >= to || to > binding->program->n_places) {
    return opipe_fail(err, OPIPE_E_INVALID, "a part of a run from place %u to %u, the last is %u",
                      from, to, binding->program->n_places);
  }
  return do_run(binding, queue, &w, err);
}
