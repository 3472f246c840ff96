/* SPDX-License-Identifier: Apache-2.0 */
/* Plays the lists of a plan and measures the result. */
#include "partition/study/simulate/plan_play.h"

#include "partition/schedule/compute_order.h"
#include "partition/study/simulate/list_play.h"

static opipe_status check(const opi_decision *plan, const opi_order_play *how, opipe_error *err) {
  const bool groups = how->n_tensor > 1 || how->n_data > 1;
  if (!groups && !how->sharded && !how->sequence && !how->scattered && !how->waits_for_reductions)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID,
      "the lists of a plan (schedule '%s') are played as sessions execute them: without "
      "tensor groups, further copies, sharded steps, sequence groups, scattered "
      "messages, and reductions that hold ranks up",
      plan->schedule.name);
}

/* A rank's fixed bytes: the plan's bytes minus the most that the play takes at one time. */
static opipe_status measure_memory(const opi_plan *plan, opi_arena *arena, opi_order_played *out,
                                   opipe_error *err) {
  out->fixed_bytes = OPI_ARENA_ARRAY(arena, double, plan->decided.n_ranks);
  if (out->fixed_bytes == NULL)
    return opi_fail_nomem(err, plan->decided.n_ranks * sizeof(double), "a simulation");
  for (uint32_t rank = 0; plan->predicted.memory != NULL && rank < plan->decided.n_ranks; ++rank) {
    const double total = (double)plan->predicted.memory[rank].total_bytes;
    const double kept = out->result.peak_bytes[rank * out->result.n_classes];
    out->fixed_bytes[rank] = total > kept ? total - kept : 0;
  }
  return OPIPE_OK;
}

static void measure(const opi_plan *plan, const opi_order_play *how, uint32_t n_batches,
                    opi_order_played *out) {
  double busy = 0, busiest = 0, peak = 0;
  out->n_ranks = plan->decided.n_ranks;
  for (uint32_t rank = 0; rank < plan->decided.n_ranks; ++rank) {
    const double own = out->result.busy_ns[rank] / n_batches;
    busy += own;
    busiest = own > busiest ? own : busiest;
    peak += opi_cluster_flops(how->cluster, how->device == NULL ? rank : how->device[rank],
                              how->dtype, UINT64_MAX);
  }
  if (out->step_ns <= 0)
    return;
  out->bubble = 1 - busy / (out->n_ranks * out->step_ns);
  out->bubble_overhead = busiest > 0 ? (out->step_ns - busiest) / busiest : 0;
  out->flops = plan->predicted.flops / (out->step_ns * 1e-9);
  out->utilisation = peak > 0 ? out->flops / peak : 0;
}

opipe_status opi_plan_play_run(const opi_plan *plan, const opi_order_play *how, opi_arena *arena,
                               opi_plan_played *out, opipe_error *err) {
  opi_list_played played;
  OPI_TRY(check(&plan->decided, how, err));
  OPI_TRY(opi_list_play_run(plan, how, arena, &played, err));
  *out = (opi_plan_played){.problem = opi_plan_problem(&plan->decided),
                           .played = {.play = played.play,
                                      .result = played.result,
                                      .step_ns = played.step_ns,
                                      .list = played.labels}};
  if (how->own_machine) /* without sums of gradients and the update, as in all predictions */ {
    out->played.step_ns =
        opi_plan_trains(&plan->decided) ? plan->predicted.interval_ns : plan->predicted.request_ns;
  }
  measure(plan, how, played.n_batches, &out->played);
  const opipe_status status = measure_memory(plan, arena, &out->played, err);
  if (status < 0)
    opi_do_list_free(played.labels);
  return status;
}

void opi_plan_played_release(opi_plan_played *played) {
  opi_order_played_release(&played->played, NULL);
}
