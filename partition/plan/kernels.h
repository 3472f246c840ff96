/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that were chosen by measuring (opi_plan_tune), beside a plan's decisions: which algorithm
 * computes what, on which kind of device. They stand in the plan's file outside its hash, with a
 * hash of their own, and hold for devices that say of themselves what was said when they were
 * measured; elsewhere a backend makes its own choices.
 */
#ifndef OPI_KERNELS_H
#define OPI_KERNELS_H

#include "partition/plan/plan.h"

/* Choices for one kind of device. */
typedef struct opi_kernel_table {
  const char *backend;         /* its id */
  const char *fit;             /* what they hold for: kernels_fit of backend.h */
  const opipe_kernel *kernels; /* [n] every `what` once */
  uint32_t n;
} opi_kernel_table;

typedef struct opi_kernels {
  const opi_kernel_table *tables; /* [n] every (backend, fit) once */
  uint32_t n;
  uint64_t hash[2]; /* of backends, fits, what is computed and how; not of times. XXH3-128 */
} opi_kernels;

enum { OPI_KERNELS_FIT_ROOM = 512, OPI_KERNELS_WHY_ROOM = 1200 };

/* Fills kernels->hash. */
void opi_kernels_hash(opi_kernels *kernels);

/* Does the backend choose kernels by measuring? */
static inline bool opi_backend_tunes(const opi_backend_ref *backend) {
  return OPIPE_HAS(backend->table, opipe_backend, kernel_tune) &&
         backend->table->kernel_tune != NULL;
}
/* Gives a device the table that fits it. *out_given false: there is none, as `out_why` says. A
 * backend that has no such choices is given nothing. Errors: the backend's. */
opipe_status opi_kernels_give(const opi_kernels *kernels, const opi_backend_ref *backend,
                              opipe_device *device, bool *out_given,
                              char out_why[OPI_KERNELS_WHY_ROOM], opipe_error *err);
/* The kernels of a program that have a choice, in the arena. */
opipe_status opi_kernels_ask(const opi_backend_ref *backend, const opipe_program *program,
                             opi_arena *arena, opipe_kernel **out_kernels, uint32_t *out_n,
                             opipe_error *err);
/* How many of these are not as the device was told; out_first: one of them. */
uint32_t opi_kernels_count_own(const opipe_kernel *kernels, uint32_t n, const char **out_first);

#endif /* OPI_KERNELS_H */
