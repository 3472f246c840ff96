/* SPDX-License-Identifier: Apache-2.0 */
/* Plans on a cluster. */
#ifndef OPI_PLAN_PLAY_H
#define OPI_PLAN_PLAY_H

#include "partition/plan/plan.h"
#include "partition/study/simulate/order_play.h"

typedef struct opi_plan_played {
  opi_problem problem;     /* the problem of the labels; arrays are the plan's */
  opi_order_played played; /* list: a label for every item of the plan's playlist */
} opi_plan_played;

/* Plays the lists that a session of the plan executes (predicted.play), on how->device [n_ranks] of
 * how->cluster; NULL: rank r on device r. Plays one request, one mini-batch, or the steady state of
 * double-buffered ones. Times of programs and bytes of memory are the plan's. Reads cluster,
 * collective, dtype, n_bodies and apart from `how`. Allocates in `arena`, except labels: release
 * them. Errors: INVALID, groups and ways of reducing that lists do not have; as opi_list_play_run.
 */
opipe_status opi_plan_play_run(const opi_plan *plan, const opi_order_play *how, opi_arena *arena,
                               opi_plan_played *out_played, opipe_error *err);
void opi_plan_played_release(opi_plan_played *played);

#endif /* OPI_PLAN_PLAY_H */
