/* SPDX-License-Identifier: Apache-2.0 */
/* A run: the kernels of a binding, one after the other, on the caller's thread and its team.
 */
#include "binding.h"

static opipe_status run_step(opipe_binding *binding, uint32_t s, opipe_error *err) {
  const opipe_program *program = binding->program;
  const cpu_step *step = &program->steps[s];
  const cpu_call *call = &binding->calls[s];
  const bool poison = (program->flags & OPIPE_COMPILE_POISON) != 0;
  opipe_status status = OPIPE_OK;
  if (poison)
    cpu_poison_before(binding, s);
  if (step->run != NULL) {
    status = step->run(call, err);
    if (status >= 0 && (program->flags & OPIPE_COMPILE_CHECK_FINITE) != 0)
      status = cpu_check_finite(call, program, s, err);
  }
  return status >= 0 && poison ? cpu_poison_after(binding, s, err) : status;
}

/* Steps `from` to `to` - 1. Scalars, parameters and poison are renewed by the first part alone. */
static opipe_status run_steps(opipe_binding *binding, const int64_t *scalars, uint32_t n_scalars,
                              uint32_t from, uint32_t to, opipe_error *err) {
  const opipe_program *program = binding->program;
  opipe_status status = OPIPE_OK;
  if (n_scalars != program->graph->n_scalars) {
    return opipe_fail(err, OPIPE_E_INVALID, "run: %u scalars given, the program takes %u",
                      n_scalars, program->graph->n_scalars);
  }
  if (n_scalars > 0)
    memcpy(binding->scalars, scalars, n_scalars * sizeof scalars[0]);
  if (from == 0)
    cpu_refresh_params(binding);
  if (from == 0 && (program->flags & OPIPE_COMPILE_POISON) != 0)
    cpu_poison_start(binding);
  binding->exec = cpu_take_exec(binding->device);
  for (uint32_t s = from; status >= 0 && s < to; ++s)
    status = run_step(binding, s, err);
  cpu_give_exec(binding->device, &binding->exec);
  return status;
}

opipe_status cpu_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                     uint32_t n_scalars, opipe_error *err) {
  (void)queue;
  return run_steps(binding, scalars, n_scalars, 0, binding->program->n_steps, err);
}

opipe_status cpu_program_places(const opipe_program *program, uint32_t *out_ends, uint32_t *out_n,
                                opipe_error *err) {
  const opipe_graph *graph = program->graph;
  (void)err;
  for (uint32_t slot = 0; slot < graph->n_params; ++slot)
    out_ends[slot] = 0;
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const cpu_step *step = &program->steps[s];
    for (uint32_t i = 0; i < step->n_out; ++i) {
      const uint32_t v = step->out[i].value;
      if (v != OPIPE_NONE && graph->values[v].role == OPIPE_VALUE_GRADIENT)
        out_ends[graph->values[v].slot] = s + 1;
    }
  }
  *out_n = program->n_steps;
  return OPIPE_OK;
}

opipe_status cpu_run_part(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                          uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err) {
  (void)queue;
  if (from >= to || to > binding->program->n_steps) {
    return opipe_fail(err, OPIPE_E_INVALID, "a part of a run from place %u to %u, the last is %u",
                      from, to, binding->program->n_steps);
  }
  return run_steps(binding, scalars, n_scalars, from, to, err);
}
