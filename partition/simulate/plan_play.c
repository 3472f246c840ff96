/* SPDX-License-Identifier: Apache-2.0 */
/* From a plan to an order with what its stages cost. */
#include "partition/simulate/plan_play.h"

#include "partition/schedule/compute_order.h"

/* Crossings lie by source, then by destination: those of one pair of stages are one edge. */
static opipe_status find_edges(const opi_plan *plan, opi_arena *arena, opi_problem *out_problem,
                               double **out_bytes, opipe_error *err) {
  opi_stage_edge *edges = OPI_ARENA_ARRAY(arena, opi_stage_edge, plan->n_crossings);
  double *n_bytes = OPI_ARENA_ARRAY(arena, double, plan->n_crossings);
  uint32_t n = 0;
  if (edges == NULL || n_bytes == NULL)
    return opi_fail_nomem(err, plan->n_crossings * sizeof *edges, "a simulation");
  for (uint32_t i = 0; i < plan->n_crossings; ++i) {
    const opi_crossing *c = &plan->crossings[i];
    if (n == 0 || edges[n - 1].src != c->src_stage || edges[n - 1].dst != c->dst_stage)
      edges[n++] = (opi_stage_edge){c->src_stage, c->dst_stage};
    n_bytes[n - 1] += (double)c->n_bytes;
  }
  out_problem->edges = edges;
  out_problem->n_edges = n;
  *out_bytes = n_bytes;
  return OPIPE_OK;
}

static uint32_t instances_on(const opi_plan *plan, uint32_t rank) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < plan->n_stages * plan->n_replicas; ++k)
    n += plan->instance_rank[k] == rank;
  return n;
}

/* Gradients of a rank are shared out over its instances. */
static double gradients_of(const opi_plan *plan, uint32_t stage) {
  uint32_t rank = OPIPE_NONE;
  for (uint32_t r = 0; r < plan->n_replicas && rank == OPIPE_NONE; ++r)
    rank = opi_plan_rank(plan, stage, r);
  return rank == OPIPE_NONE || plan->memory == NULL
             ? 0
             : (double)plan->memory[rank].gradient_bytes / instances_on(plan, rank);
}

static opi_stage_load *make_loads(const opi_plan *plan, opi_arena *arena) {
  opi_stage_load *loads = OPI_ARENA_ARRAY(arena, opi_stage_load, plan->n_stages);
  for (uint32_t s = 0; loads != NULL && s < plan->n_stages; ++s) {
    loads[s] = (opi_stage_load){
        .forward_ns = plan->stage_ns == NULL ? 0 : plan->stage_ns[s],
        .flops = plan->flops / plan->n_microbatches / plan->n_stages, /* only their sum is told */
        .input_ns = plan->input_ns == NULL ? 0 : plan->input_ns[s],
        .weight_ns = plan->weight_ns == NULL ? 0 : plan->weight_ns[s],
        .stash_bytes = plan->stage_stash_bytes == NULL ? 0 : (double)plan->stage_stash_bytes[s],
        .gradient_bytes = gradients_of(plan, s)};
  }
  return loads;
}

/* What a rank has beside its stashes, as far as these are known by stage. */
static void set_fixed_bytes(const opi_plan *plan, opi_order_played *io_played) {
  for (uint32_t rank = 0; plan->memory != NULL && rank < plan->n_ranks; ++rank) {
    const opi_memory *m = &plan->memory[rank];
    const uint64_t kept = plan->stage_stash_bytes == NULL ? 0 : m->stash_bytes;
    io_played->fixed_bytes[rank] = (double)(m->total_bytes - kept);
  }
}

static opipe_status lower(const opi_plan *plan, opi_plan_played *out, opipe_error *err) {
  const opi_lowering how = {.receive_depth = 1};
  opi_proof proof = {0};
  opi_do_list *order = NULL;
  OPI_TRY(opi_do_list_from_records(&out->problem, plan->actions, plan->n_actions, plan->allocator,
                                   &order, err));
  const opipe_status status =
      opi_lower_order(&out->problem, order, &how, plan->allocator, &out->list, err);
  opi_do_list_free(order);
  return status < 0 ? status
                    : opi_proof_check(&out->problem, out->list, OPI_RULE_TAG, plan->allocator,
                                      &proof, err);
}

opipe_status opi_plan_play_run(const opi_plan *plan, const opi_order_play *how, opi_arena *arena,
                               opi_plan_played *out, opipe_error *err) {
  opi_order_play own = *how;
  double *edge_bytes = NULL;
  *out = (opi_plan_played){.problem = opi_plan_problem(plan)};
  OPI_TRY(find_edges(plan, arena, &out->problem, &edge_bytes, err));
  own.stages = make_loads(plan, arena);
  own.edge_bytes = edge_bytes;
  own.n_tensor = own.n_data = 1;
  if (own.stages == NULL)
    return opi_fail_nomem(err, plan->n_stages * sizeof *own.stages, "a simulation");
  opipe_status status = lower(plan, out, err);
  if (status == OPIPE_OK)
    status = opi_order_play_run(&out->problem, out->list, &own, arena, &out->played, err);
  if (status < 0) {
    opi_do_list_free(out->list);
    out->list = NULL;
    return status;
  }
  set_fixed_bytes(plan, &out->played);
  return OPIPE_OK;
}

void opi_plan_played_release(opi_plan_played *played) {
  opi_order_played_release(&played->played, played->list);
  opi_do_list_free(played->list);
  played->list = NULL;
}
