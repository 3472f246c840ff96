/* SPDX-License-Identifier: Apache-2.0 */
/* A lower bound on what ranks keep along an order, found before it is lowered and played. */
#include <math.h>

#include "partition/schedule/events.h"
#include "partition/study/auto/space.h"

/* A play may add the same numbers in another order and come out lower by this much. */
#define ROUNDING 1e-9

typedef struct keeper {
  const opi_problem *problem;
  const opi_stage_load *stages, *instances;
  bool recompute;
  double n_tokens, held, peak;
} keeper;

static const opi_stage_load *load_of(const keeper *k, const opi_do *a) {
  return k->instances == NULL
             ? &k->stages[a->stage]
             : &k->instances[(size_t)a->stage * k->problem->n_replicas + a->replica];
}

/* With recomputation, a stage has the full stash of a micro-batch from before its backward until
 * that is done. */
static void pass(keeper *k, const opi_do *a) {
  const double part = opi_compute_share(k->problem, k->n_tokens, a);
  const opi_stage_load *x = load_of(k, a);
  const double again = k->recompute ? x->stash_bytes * part : 0;
  const double kept = (k->recompute ? x->input_bytes : x->stash_bytes) * part;
  if (a->kind == OPI_DO_F)
    k->held += kept;
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_I)
    k->held += again;
  k->peak = fmax(k->peak, k->held);
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_W)
    k->held -= kept + again;
}

bool opi_order_must_exceed(const opi_order *order, const opi_stage_load *stages,
                           const opi_stage_load *instances, bool recompute, const double *slack,
                           uint32_t n_slack) {
  const opi_do_list *list = order->list;
  if (order->problem.mode == OPIPE_MODE_FORWARD)
    return false;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    keeper k = {.problem = &order->problem,
                .stages = stages,
                .instances = instances,
                .recompute = recompute,
                .n_tokens = opi_order_tokens(&order->problem)};
    const double room = slack[rank % n_slack];
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &list->items[i];
      if (a->kind == OPI_DO_OFFLOAD || a->kind == OPI_DO_R)
        return false; /* leave recomputation and offloading to the play */
      if (opi_do_is_compute(a->kind))
        pass(&k, a);
    }
    if (k.peak * (1 - ROUNDING) > room)
      return true;
  }
  return false;
}
