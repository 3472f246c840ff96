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

opipe_status cpu_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                     uint32_t n_scalars, opipe_error *err) {
  const opipe_program *program = binding->program;
  opipe_status status = OPIPE_OK;
  (void)queue;
  if (n_scalars != program->graph->n_scalars) {
    return opipe_fail(err, OPIPE_E_INVALID, "run: %u scalars given, the program takes %u",
                      n_scalars, program->graph->n_scalars);
  }
  if (n_scalars > 0)
    memcpy(binding->scalars, scalars, n_scalars * sizeof scalars[0]);
  cpu_refresh_params(binding);
  if ((program->flags & OPIPE_COMPILE_POISON) != 0)
    cpu_poison_start(binding);
  binding->exec = cpu_take_exec(binding->device);
  for (uint32_t s = 0; status >= 0 && s < program->n_steps; ++s)
    status = run_step(binding, s, err);
  cpu_give_exec(binding->device, &binding->exec);
  return status;
}
