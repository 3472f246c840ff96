/* SPDX-License-Identifier: Apache-2.0 */
/* Bindings: a program with every operand resolved to an address, ready to run.
 */
#ifndef OPIPE_BACKEND_CPU_BINDING_H_
#define OPIPE_BACKEND_CPU_BINDING_H_

#include "program.h"

/* An operand whose address comes from a parameter or gradient set. */
typedef struct cpu_param_ref {
  const opipe_params *set;
  cpu_tensor *tensor;
  uint32_t slot;
  uint32_t kind;
  const cpu_matrix *matrix; /* of CODES */
} cpu_param_ref;

struct opipe_binding {
  const opipe_program *program;
  const opipe_params *params;    /* NULL: none */
  const opipe_params *gradients; /* NULL: none */
  cpu_pool pool;
  cpu_call *calls; /* [n_steps] */
  cpu_param_ref *refs;
  uint32_t n_refs;
  uint64_t params_version; /* of both sets, for which the addresses hold */
  char *arena;
  void **boundaries; /* [n_boundaries] */
  int64_t *scalars;  /* [n_scalars] of the run in progress */
  opipe_device *device;
  cpu_exec exec; /* of the run in progress: what every call points to */
};

/* Looks the addresses in both sets up again, where one may have changed. */
void cpu_refresh_params(opipe_binding *binding);

/* poison.c: the checks of OPIPE_COMPILE_POISON and OPIPE_COMPILE_CHECK_FINITE. */
void cpu_poison_start(const opipe_binding *binding);
void cpu_poison_before(const opipe_binding *binding, uint32_t step);
opipe_status cpu_poison_after(const opipe_binding *binding, uint32_t step, opipe_error *err);
opipe_status cpu_check_finite(const cpu_call *call, const opipe_program *program, uint32_t step,
                              opipe_error *err);

#endif
