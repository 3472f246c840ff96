/* SPDX-License-Identifier: Apache-2.0 */
/* From a plan to its lists, as a session makes them, and what playing them comes to. */
#include "partition/lists/plan_play.h"

#include "partition/lists/list_play.h"
#include "partition/schedule/compute_order.h"

typedef struct source {
  const opi_plan *plan;
  const opi_order_play *how;
  opi_arena *arena;
  opi_cut_model *model;
  opi_lists *lists;
  opipe_error *err;
} source;

static opipe_status check(const opi_plan *plan, const opi_order_play *how, opipe_error *err) {
  const bool groups = how->n_tensor > 1 || how->n_data > 1;
  if (!groups && !how->sharded && !how->sequence && !how->scattered && !how->waits_for_reductions)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID,
      "the lists of a plan (schedule '%s') are played as sessions execute them: without "
      "tensor groups, further copies, sharded steps, sequence groups, scattered "
      "messages, and reductions that hold ranks up",
      plan->schedule);
}

static opipe_status make_lists(source *s, const opi_model *file, const opi_bind_options *bind) {
  const opi_plan *plan = s->plan;
  const opi_cut_sources from = {.plan = plan, .file = file, .base = bind};
  uint32_t *alignment = OPI_ARENA_ARRAY(s->arena, uint32_t, plan->n_ranks);
  if (alignment == NULL)
    return opi_fail_nomem(s->err, plan->n_ranks * sizeof *alignment, "a simulation");
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    alignment[r] = plan->devices[r].alignment == 0 ? 1 : plan->devices[r].alignment;
  OPI_TRY(opi_cut_model_build(&from, &s->model, s->err));
  if (plan->train == NULL) /* its cuts say how many requests the lists hold */
    OPI_TRY(opi_piece_plan_build(plan, s->model, s->err));
  return opi_lists_build(s->model, alignment, false, plan->allocator, &s->lists, s->err);
}

/* What a rank has beside its stashes, as far as these are known by stage. */
static opipe_status measure_memory(const source *s, opi_order_played *out) {
  const opi_plan *plan = s->plan;
  out->fixed_bytes = OPI_ARENA_ARRAY(s->arena, double, plan->n_ranks);
  if (out->fixed_bytes == NULL)
    return opi_fail_nomem(s->err, plan->n_ranks * sizeof(double), "a simulation");
  for (uint32_t rank = 0; plan->memory != NULL && rank < plan->n_ranks; ++rank) {
    const opi_memory *m = &plan->memory[rank];
    const uint64_t kept = plan->stage_stash_bytes == NULL ? 0 : m->stash_bytes;
    out->fixed_bytes[rank] = (double)(m->total_bytes - kept);
  }
  return OPIPE_OK;
}

static void measure(const source *s, uint32_t n_batches, opi_order_played *out) {
  const opi_plan *plan = s->plan;
  double busy = 0, busiest = 0, peak = 0;
  out->n_ranks = plan->n_ranks;
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    const double own = out->result.busy_ns[rank] / n_batches;
    busy += own;
    busiest = own > busiest ? own : busiest;
    peak += opi_cluster_flops(s->how->cluster, rank, s->how->dtype, UINT64_MAX);
  }
  if (out->step_ns <= 0)
    return;
  out->bubble = 1 - busy / (out->n_ranks * out->step_ns);
  out->bubble_overhead = busiest > 0 ? (out->step_ns - busiest) / busiest : 0;
  out->flops = plan->flops / (out->step_ns * 1e-9);
  out->utilisation = peak > 0 ? out->flops / peak : 0;
}

static opipe_status play(source *s, opi_order_played *out) {
  opi_list_played played;
  OPI_TRY(opi_list_play_run(s->model, s->lists, s->how, s->arena, &played, s->err));
  *out = (opi_order_played){.play = played.play,
                            .result = played.result,
                            .step_ns = played.step_ns,
                            .list = played.labels};
  measure(s, played.n_batches, out);
  const opipe_status status = measure_memory(s, out);
  if (status < 0)
    opi_do_list_free(played.labels);
  return status;
}

opipe_status opi_plan_play_run(const opi_plan *plan, const opi_model *file,
                               const opi_bind_options *bind, const opi_order_play *how,
                               opi_arena *arena, opi_plan_played *out, opipe_error *err) {
  source s = {.plan = plan, .how = how, .arena = arena, .err = err};
  OPI_TRY(check(plan, how, err));
  *out = (opi_plan_played){.problem = opi_plan_problem(plan)};
  opipe_status status = make_lists(&s, file, bind);
  if (status == OPIPE_OK)
    status = play(&s, &out->played);
  opi_lists_free(s.lists);
  opi_cut_model_free(s.model);
  return status;
}

void opi_plan_played_release(opi_plan_played *played) {
  opi_order_played_release(&played->played, NULL);
}
