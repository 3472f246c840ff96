/* SPDX-License-Identifier: Apache-2.0 */
/* Plans on a cluster. */
#ifndef OPI_PLAN_PLAY_H
#define OPI_PLAN_PLAY_H

#include "partition/simulate/order_play.h"

typedef struct opi_plan_played {
  opi_problem problem; /* what the records are about; arrays in the arena */
  opi_do_list *list;   /* lowered */
  opi_order_played played;
} opi_plan_played;

/* The plan's records, lowered and proven under tag, on the first devices of how->cluster: rank r on
 * device r. Times of programs and bytes of memory are the plan's; what travels are its crossings;
 * of `how` are read cluster, collective, flags and dtype. In `arena`, but lists: release them.
 * Errors: as opi_lower_order, opi_proof_check, opi_order_play_run. */
opipe_status opi_plan_play_run(const opi_plan *plan, const opi_order_play *how, opi_arena *arena,
                               opi_plan_played *out_played, opipe_error *err);
void opi_plan_played_release(opi_plan_played *played);

#endif /* OPI_PLAN_PLAY_H */
