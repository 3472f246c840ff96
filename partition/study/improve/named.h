/* SPDX-License-Identifier: Apache-2.0 */
/* The best of the schedules that are there, for a search to begin with. */
#ifndef OPI_IMPROVE_NAMED_H
#define OPI_IMPROVE_NAMED_H

#include "partition/schedule/ask.h"

typedef struct opi_named {
  opi_order *order; /* the caller's to free */
  const char *spec; /* "NAME:key=value" */
  double ns;        /* its makespan, in the unit of the costs */
} opi_named;

/* The order of a schedule with the least makespan by the question's costs, of those within its caps
 * (stash_bytes, free_bytes): in the places of `like`, or (NULL) with one replica, one slice, whole
 * backwards, and the question's ranks and stages, both given. Weights of one version; of equals the
 * first. question->schedule is not read. `arena`: specs. Errors: UNSUPPORTED, there is none. */
opipe_status opi_named_best(const opi_plugins *plugins, const opi_question *question,
                            const opi_problem *like, opi_arena *arena, opi_named *out_best,
                            opipe_error *err);

/* The question's stash_bytes and free_bytes, as caps of an order that was asked with it. */
opipe_status opi_order_limit(opi_order *order, const opi_question *question, opipe_error *err);

#endif /* OPI_IMPROVE_NAMED_H */
