/* SPDX-License-Identifier: Apache-2.0 */
/* The best of the available schedules, as the start of a search. */
#ifndef OPI_IMPROVE_NAMED_H
#define OPI_IMPROVE_NAMED_H

#include "partition/schedule/ask.h"

typedef struct opi_named {
  opi_order *order; /* the caller's to free */
  const char *spec; /* "NAME:key=value" */
  double ns;        /* its makespan, in the unit of the costs */
} opi_named;

/* The order with the least makespan by the question's costs, among those within its caps
 * (stash_bytes, free_bytes) with one version of weights; the first of equals. It has the places of
 * `like` or, if that is NULL, one replica, one slice, whole backwards, and the question's ranks and
 * stages, both of which must be given. question->schedule is not read. `arena`: specs. Errors:
 * UNSUPPORTED, there is none. */
opipe_status opi_named_best(const opi_plugins *plugins, const opi_question *question,
                            const opi_problem *like, opi_arena *arena, opi_named *out_best,
                            opipe_error *err);

/* Applies the question's stash_bytes and free_bytes as caps to an order that answers it. */
opipe_status opi_order_limit(opi_order *order, const opi_question *question, opipe_error *err);

#endif /* OPI_IMPROVE_NAMED_H */
