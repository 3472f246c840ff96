/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of parameters that programs want, each counted once: what inference and training, their
 * predictions and their sessions add up. */
#ifndef OPI_MEMORY_LAYOUTS_H
#define OPI_MEMORY_LAYOUTS_H

#include "partition/plan/plan.h"

/* One layout of a parameter in one place (a rank, a stage instance); those of a parameter form a
 * list. */
typedef struct opi_wanted_layout {
  opipe_param_layout layout;
  uint32_t place, next; /* next: index + 1, 0: the last */
} opi_wanted_layout;

typedef struct opi_layout_set {
  opi_arena *arena;        /* borrowed; everything below lies in it */
  opi_wanted_layout *list; /* [n] in the order in which they were added */
  uint32_t *first;         /* [n_params] index + 1, 0: none */
  uint32_t n, room, n_params;
} opi_layout_set;

opipe_status opi_layouts_begin(opi_layout_set *set, uint32_t n_params, opi_arena *arena,
                               opipe_error *err);
/* Adds what `program` wants in `place` (gradients: its accumulators) and the set has not yet: those
 * stand from the former set->n on. Errors: what the backend says. */
opipe_status opi_layouts_add(opi_layout_set *set, uint32_t place, const opi_backend_ref *backend,
                             const opipe_program *program, bool gradients, opipe_error *err);

/* The same where there is no backend to ask (estimate.h), of the parameters in `slots` [n_slots].
 * trained [n_params]: of which masters are wanted; NULL: of none. */
opipe_status opi_layouts_estimate(opi_layout_set *set, uint32_t place,
                                  const opipe_param_source *sources, const uint32_t *slots,
                                  uint32_t n_slots, const bool *trained, opipe_error *err);

#endif /* OPI_MEMORY_LAYOUTS_H */
