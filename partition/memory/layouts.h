/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of parameters that programs ask for, each counted once: summed by inference and training,
 * in predictions and sessions. */
#ifndef OPI_MEMORY_LAYOUTS_H
#define OPI_MEMORY_LAYOUTS_H

#include "partition/plan/plan.h"

/* One layout of a parameter in one place (a rank, a stage instance); a parameter's layouts form a
 * list. */
typedef struct opi_wanted_layout {
  opipe_param_layout layout;
  uint32_t place, next; /* next: index + 1, 0: the last */
} opi_wanted_layout;

typedef struct opi_layout_set {
  opi_arena *arena;        /* borrowed; everything below lies in it */
  opi_wanted_layout *list; /* [n] in the order of addition */
  uint32_t *first;         /* [n_params] index + 1, 0: none */
  uint32_t n, room, n_params;
} opi_layout_set;

opipe_status opi_layouts_begin(opi_layout_set *set, uint32_t n_params, opi_arena *arena,
                               opipe_error *err);
/* Adds the layouts that `program` wants in `place` (gradients: its accumulators) and the set lacks:
 * entries from the former set->n on. Errors: the backend's. */
opipe_status opi_layouts_add(opi_layout_set *set, uint32_t place, const opi_backend_ref *backend,
                             const opipe_program *program, bool gradients, opipe_error *err);

/* The same without a backend to ask (estimate.h), for the parameters in `slots` [n_slots]. trained
 * [n_params]: parameters with masters; NULL: none. */
opipe_status opi_layouts_estimate(opi_layout_set *set, uint32_t place,
                                  const opipe_param_source *sources, const uint32_t *slots,
                                  uint32_t n_slots, const bool *trained, opipe_error *err);

#endif /* OPI_MEMORY_LAYOUTS_H */
