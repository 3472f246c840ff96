/* SPDX-License-Identifier: Apache-2.0 */
/* One run: launches, in the queue's order.
 *
 *   begin   the constants; the run's block: no report, the scalars, counters at 0 (where there are
 *           no scalars, in the graph)
 *   steps   a launch each, or all of them as one graph (graph.c)
 *   report  what was reported goes to the queue
 *
 * A step's launch directly behind another of ours may begin while that one ends (launch.c).
 *
 * With OPIPE_COMPILE_POISON values are filled with 0xff (NaN) before the first step and when their
 * last reader is done, and the zones around them are looked at in the end.
 */
#include "binding.h"

enum { ZONE = CUDA_ALIGN, POISON = 0xff };

static opipe_status check(const opipe_binding *binding, CUresult result, const char *what,
                          opipe_error *err) {
  return cuda_result(binding->program->device->place, result, what, err);
}

opipe_status cuda_run_begin(const opipe_binding *binding, CUstream stream, const int64_t *scalars,
                            uint32_t n_scalars, opipe_error *err) {
  const opipe_program *program = binding->program;
  const cuda_driver *driver = program->device->place->driver;
  cuda_begin_args args = {.block = (cuda_run_block *)(uintptr_t)binding->arena,
                          .n = n_scalars,
                          .n_counters = program->has_counters ? CUDA_COUNTERS : 0};
  cuda_launch launch;
  if (program->constant_bytes > 0) {
    CUDA_TRY(check(binding,
                   driver->write(binding->arena + program->block_bytes, program->constants,
                                 (size_t)program->constant_bytes, stream),
                   "constants", err));
  }
  if (!program->has_block)
    return OPIPE_OK;
  if (n_scalars > 0)
    memcpy(args.scalars, scalars, n_scalars * sizeof scalars[0]);
  (void)cuda_plan_begin(&args, &launch);
  return cuda_launch_on(program->device, binding->begin, &launch, launch.block_args.args, stream,
                        err);
}

/* is_behind: a launch of ours is the last thing that the stream was given. */
static opipe_status run_step(const opipe_binding *binding, const cuda_bound *bound, bool is_behind,
                             CUstream stream, opipe_error *err) {
  const opipe_program *program = binding->program;
  opipe_device *device = program->device;
  cuda_copy_args copy;
  switch (bound->step->kind) {
    case CUDA_STEP_LAUNCH:
      return (is_behind ? cuda_launch_behind : cuda_launch_on)(
          device, bound->kernel, &bound->step->launch, bound->args, stream, err);
    case CUDA_STEP_PRODUCT:
      return cuda_product_run(device, bound->product,
                              binding->workspace + bound->step->product->workspace_at,
                              bound->step->product->choice.workspace_bytes, stream, err);
    case CUDA_STEP_PLAN:
      return cuda_dnn_run(device, bound->plan, stream, err);
    case CUDA_STEP_FETCH:
    case CUDA_STEP_CALL:
    case CUDA_STEP_STORE:
      return cuda_section_step(device, bound->step, bound->args, stream, err);
    default:
      memcpy(&copy, bound->args, sizeof copy);
      if (copy.to == copy.from) /* a value that is written where it lies */
        return OPIPE_OK;
      return check(binding,
                   device->place->driver->copy(copy.to, copy.from, (size_t)copy.n_bytes, stream),
                   bound->step->node->name, err);
  }
}

static opipe_status report(const opipe_binding *binding, opipe_queue *queue, opipe_error *err) {
  const cuda_report_args args = {.to = queue->late,
                                 .from = &((cuda_run_block *)(uintptr_t)binding->arena)->status};
  cuda_launch launch;
  (void)cuda_plan_report(&args, &launch);
  queue->reports = true;
  return cuda_launch_on(queue->device, binding->report, &launch, launch.block_args.args,
                        queue->stream, err);
}

/* ---- poison ---- */

static opipe_status poison_all(const opipe_binding *binding, CUstream stream, opipe_error *err) {
  const opipe_program *program = binding->program;
  if (program->temp_bytes == 0)
    return OPIPE_OK;
  return check(binding,
               program->device->place->driver->fill(
                   binding->arena + program->block_bytes + program->constant_bytes, POISON,
                   (size_t)program->temp_bytes, stream),
               "poison", err);
}

/* Values that the step was the last to touch. */
static opipe_status poison_dead(const opipe_binding *binding, uint32_t step, CUstream stream,
                                opipe_error *err) {
  const opipe_program *program = binding->program;
  opipe_status status = OPIPE_OK;
  for (uint32_t v = 0; status >= 0 && v < program->graph->n_values; ++v) {
    const cuda_storage *storage = &program->storages[v];
    if (storage->kind != CUDA_PLACE_ARENA || storage->first == UINT32_MAX || storage->last != step)
      continue;
    status =
        check(binding,
              program->device->place->driver->fill(binding->arena + storage->offset, POISON,
                                                   (size_t)storage->n_bytes - 2 * ZONE, stream),
              "poison", err);
  }
  return status;
}

static opipe_status look_at_zone(const opipe_binding *binding, CUdeviceptr at, uint32_t name,
                                 CUstream stream, opipe_error *err) {
  const cuda_zone_args args = {.data = (const void *)(uintptr_t)at,
                               .status = &((cuda_run_block *)(uintptr_t)binding->arena)->status,
                               .n = ZONE,
                               .node = name};
  cuda_launch launch;
  (void)cuda_plan_zone(&args, &launch);
  return cuda_launch_on(binding->program->device, binding->zone, &launch, launch.block_args.args,
                        stream, err);
}

/* Zones of values that a step begins to touch are whole until their place is taken by another:
 * looked at where the value dies. */
static opipe_status look_at_dead(const opipe_binding *binding, uint32_t step, CUstream stream,
                                 opipe_error *err) {
  const opipe_program *program = binding->program;
  opipe_device *device = program->device;
  uint32_t name = 0;
  for (uint32_t v = 0; v < program->graph->n_values; ++v) {
    const cuda_storage *storage = &program->storages[v];
    if (storage->kind != CUDA_PLACE_ARENA || storage->first == UINT32_MAX || storage->last != step)
      continue;
    const CUdeviceptr at = binding->arena + storage->offset;
    CUDA_TRY(
        cuda_names_add(&device->names, device->host, program->graph->values[v].name, &name, err));
    CUDA_TRY(look_at_zone(binding, at - ZONE, name, stream, err));
    CUDA_TRY(look_at_zone(binding, at + storage->n_bytes - 2 * ZONE, name, stream, err));
  }
  return OPIPE_OK;
}

/* Steps [from, to). */
static opipe_status run_steps(const opipe_binding *binding, CUstream stream, bool has_begun,
                              uint32_t from, uint32_t to, opipe_error *err) {
  const opipe_program *program = binding->program;
  const bool poison = (program->flags & OPIPE_COMPILE_POISON) != 0;
  bool is_behind = has_begun && program->has_block && program->sections == NULL;
  opipe_status status = OPIPE_OK;
  CUDA_TRY(cuda_sections_enter(program, stream, err));
  for (uint32_t i = from; status >= 0 && i < to; ++i) {
    status = run_step(binding, &binding->steps[i], is_behind, stream, err);
    is_behind = binding->steps[i].step->kind == CUDA_STEP_LAUNCH && !poison;
    if (status >= 0 && poison)
      status = look_at_dead(binding, i, stream, err);
    if (status >= 0 && poison)
      status = poison_dead(binding, i, stream, err);
  }
  return cuda_sections_leave(program, stream, status, err);
}

opipe_status cuda_run_steps(const opipe_binding *binding, CUstream stream, bool has_begun,
                            opipe_error *err) {
  return run_steps(binding, stream, has_begun, 0, binding->n_steps, err);
}

static opipe_status check_run(const opipe_binding *binding, const opipe_queue *queue,
                              const int64_t *scalars, uint32_t n_scalars, opipe_error *err) {
  const opipe_program *program = binding->program;
  if (queue->device != program->device)
    return opipe_fail(err, OPIPE_E_INVALID, "run: the queue is of another opening");
  if (n_scalars < program->graph->n_scalars || n_scalars > CUDA_SCALARS ||
      (n_scalars > 0 && scalars == NULL)) {
    return opipe_fail(err, OPIPE_E_INVALID, "run: %u scalars, the program has %u", n_scalars,
                      program->graph->n_scalars);
  }
  return OPIPE_OK;
}

/* Everything in front of the first step. */
static opipe_status begin(const opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                          uint32_t n_scalars, opipe_error *err) {
  const opipe_program *program = binding->program;
  (void)__atomic_add_fetch(&queue->n_runs, 1, __ATOMIC_RELAXED);
  if ((program->flags & OPIPE_COMPILE_POISON) != 0)
    CUDA_TRY(poison_all(binding, queue->stream, err));
  return binding->graph == NULL || program->graph->n_scalars > 0
             ? cuda_run_begin(binding, queue->stream, scalars, n_scalars, err)
             : OPIPE_OK;
}

/* Everything behind the last one. */
static opipe_status end(const opipe_binding *binding, opipe_queue *queue, opipe_error *err) {
  const opipe_program *program = binding->program;
  return program->has_reports || (program->flags & OPIPE_COMPILE_POISON) != 0
             ? report(binding, queue, err)
             : OPIPE_OK;
}

opipe_status cuda_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                      uint32_t n_scalars, opipe_error *err) {
  const cuda_driver *driver = binding->program->device->place->driver;
  CUDA_TRY(check_run(binding, queue, scalars, n_scalars, err));
  CUDA_TRY(cuda_enter_queue(queue, "run", err));
  opipe_status status = begin(binding, queue, scalars, n_scalars, err);
  if (status >= 0 && binding->graph != NULL)
    status = check(binding, driver->graph_launch(binding->graph, queue->stream), "graph", err);
  else if (status >= 0)
    status = cuda_run_steps(binding, queue->stream, true, err);
  const opipe_status ended = status < 0 ? status : end(binding, queue, err);
  return cuda_leave_queue(queue, ended, err);
}

/* ---- parts ---- */

/* A place for each step. Programs that run as one graph, or that share memory with a section on the
 * CPU while they run, have no parts. */
opipe_status cuda_program_places(const opipe_program *program, uint32_t *out_ends, uint32_t *out_n,
                                 opipe_error *err) {
  const opipe_graph *graph = program->graph;
  uint32_t n = 0;
  (void)err;
  for (uint32_t slot = 0; slot < graph->n_params; ++slot)
    out_ends[slot] = 0;
  *out_n = 0;
  if (program->sections != NULL || program->device->graphs)
    return OPIPE_OK;
  for (const cuda_step *step = program->steps; step != NULL; step = step->next, ++n) {
    for (const cuda_patch *patch = step->patches; patch != NULL; patch = patch->next) {
      const cuda_storage *storage = patch->value < graph->n_values
                                        ? &program->storages[cuda_root(program, patch->value)]
                                        : NULL;
      if (storage != NULL && storage->kind == CUDA_PLACE_GRADIENT)
        out_ends[storage->slot] = n + 1;
    }
  }
  *out_n = n;
  return OPIPE_OK;
}

opipe_status cuda_run_part(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                           uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err) {
  const opipe_program *program = binding->program;
  const uint32_t n = program->sections != NULL || program->device->graphs ? 0 : binding->n_steps;
  CUDA_TRY(check_run(binding, queue, scalars, n_scalars, err));
  if (from >= to || to > n) {
    return opipe_fail(err, OPIPE_E_INVALID, "a part of a run from place %u to %u, the last is %u",
                      from, to, n);
  }
  CUDA_TRY(cuda_enter_queue(queue, "run_part", err));
  opipe_status status = from == 0 ? begin(binding, queue, scalars, n_scalars, err) : OPIPE_OK;
  if (status >= 0)
    status = run_steps(binding, queue->stream, from == 0, from, to, err);
  if (status >= 0 && to == n)
    status = end(binding, queue, err);
  return cuda_leave_queue(queue, status, err);
}
