/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels chosen by measuring (opi_plan_tune): which algorithm computes which operation on which
 * kind of device. They stand in the plan's file beside the decisions, outside its hash, with a hash
 * of their own. A table applies to devices whose kernels_fit is the one that was measured; on
 * others the backend makes its own choices.
 */
#ifndef OPI_KERNELS_H
#define OPI_KERNELS_H

#include "partition/plan/plan.h"

/* Choices for one kind of device. */
typedef struct opi_kernel_table {
  const char *backend; /* its id */
  const char *fit;     /* identifies the devices that the table is for: kernels_fit of backend.h */
  const opipe_kernel *kernels; /* [n] each `what` occurs once */
  uint32_t n;
} opi_kernel_table;

typedef struct opi_kernels {
  const opi_kernel_table *tables; /* [n] each (backend, fit) occurs once */
  uint32_t n;
  uint64_t hash[2]; /* XXH3-128 of backends, fits, operations and choices, without times */
} opi_kernels;

enum { OPI_KERNELS_FIT_ROOM = 512, OPI_KERNELS_WHY_ROOM = 1200 };

/* Fills kernels->hash. */
void opi_kernels_hash(opi_kernels *kernels);

/* True if the backend chooses kernels by measuring. */
static inline bool opi_backend_tunes(const opi_backend_ref *backend) {
  return OPIPE_HAS(backend->table, opipe_backend, kernel_tune) &&
         backend->table->kernel_tune != NULL;
}
/* Gives a device the table that fits it. If there is none, or the backend does not choose kernels,
 * *out_given is false and `out_why` says why. Errors: the backend's. */
opipe_status opi_kernels_give(const opi_kernels *kernels, const opi_backend_ref *backend,
                              opipe_device *device, bool *out_given,
                              char out_why[OPI_KERNELS_WHY_ROOM], opipe_error *err);
/* The kernels of a program that have alternatives, in the arena. */
opipe_status opi_kernels_ask(const opi_backend_ref *backend, const opipe_program *program,
                             opi_arena *arena, opipe_kernel **out_kernels, uint32_t *out_n,
                             opipe_error *err);
/* Number of kernels that differ from what the device was given; *out_first is one of them. */
uint32_t opi_kernels_count_own(const opipe_kernel *kernels, uint32_t n, const char **out_first);

#endif /* OPI_KERNELS_H */
