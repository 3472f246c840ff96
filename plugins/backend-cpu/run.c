/* SPDX-License-Identifier: Apache-2.0 */
/* A run: the kernels of a binding, one after the other, on the caller's thread and its team.
 */
#include "binding.h"

opipe_status cpu_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                     uint32_t n_scalars, opipe_error *err) {
  const opipe_program *program = binding->program;
  const bool poison = (program->flags & OPIPE_COMPILE_POISON) != 0;
  const bool finite = (program->flags & OPIPE_COMPILE_CHECK_FINITE) != 0;
  (void)queue;
  (void)scalars;
  if (n_scalars != program->graph->n_scalars) {
    return opipe_fail(err, OPIPE_E_INVALID, "run: %u scalars given, the program takes %u",
                      n_scalars, program->graph->n_scalars);
  }
  if (binding->n_refs > 0 && binding->params_version != cpu_params_version(binding->params)) {
    cpu_refresh_params(binding);
  }
  if (poison) {
    cpu_poison_start(binding);
  }
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const cpu_step *step = &program->steps[s];
    opipe_status status = OPIPE_OK;
    if (poison) {
      cpu_poison_before(binding, s);
    }
    if (step->run != NULL) {
      status = step->run(&binding->calls[s], err);
    }
    if (status >= 0 && finite && step->run != NULL) {
      status = cpu_check_finite(&binding->calls[s], program, s, err);
    }
    if (status >= 0 && poison) {
      status = cpu_poison_after(binding, s, err);
    }
    if (status < 0) {
      return status;
    }
  }
  return OPIPE_OK;
}
