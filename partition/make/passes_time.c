/* SPDX-License-Identifier: Apache-2.0 */
/* Predicted times of passes, class by class of rows, and the number of passes in flight that gives
 * most tokens. */
#include <string.h>

#include "partition/cost/profile.h"
#include "partition/make/passes.h"
#include "partition/program/assign.h"
#include "partition/program/bind.h"

typedef struct timing {
  const opi_plan_env *env;
  opi_plan *plan;
  const opi_device_facts *facts;
  uint32_t cost;
  opi_arena scratch;
  opipe_error *err;
} timing;

static bool reads_pages(const opi_node *node) {
  return strcmp(node->op, "RowAttention") == 0 && strcmp(node->domain, "opipe") == 0;
}

/* The graph's nodes on one rank's device: adds each stage's time to stage_ns; attention goes to
 * *io_attention_ns. */
static opipe_status add_rank(timing *t, const opi_graph *g, const uint32_t *stage, uint32_t rank,
                             double *stage_ns, double *io_attention_ns) {
  const opi_decision *plan = &t->plan->decided;
  opi_backend_ref backend;
  opi_profile *profile = NULL;
  opi_profile_place place = {
      .facts = &t->facts[rank], .threads = plan->devices[rank].threads, .may_refuse = true};
  if (!t->facts[rank].described) {
    place.backend = &backend;
    OPI_TRY(opi_device_open(t->env, &plan->devices[rank], &backend, &place.device, t->err));
  }
  const opipe_status status = opi_profile_make(g, &place, t->cost, plan->allocator, t->env->now_ns,
                                               &profile, t->err);
  if (place.device != NULL)
    backend.table->device_close(place.device);
  OPI_TRY(status);
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (opi_plan_rank(plan, stage[n], 0) != rank)
      continue;
    if (reads_pages(&g->nodes[n]))
      *io_attention_ns += profile->node_ns[n];
    else
      stage_ns[stage[n]] += profile->node_ns[n];
  }
  opi_profile_free(profile);
  return OPIPE_OK;
}

static opipe_status time_graph(timing *t, uint32_t c, const opi_bound *bound) {
  const opi_decision *plan = &t->plan->decided;
  const opi_generation *g = &plan->generation;
  opi_prediction *out = &t->plan->predicted;
  const double rows = opi_generation_rows(g, c);
  uint32_t *stage = OPI_ARENA_ARRAY(&t->scratch, uint32_t, bound->graph->n_nodes);
  double *stage_ns = OPI_ARENA_ARRAY(&t->scratch, double, plan->n_stages);
  double attention_ns = 0;
  if (stage == NULL || stage_ns == NULL)
    return opi_fail_nomem(t->err, bound->graph->n_nodes * sizeof *stage, "times of passes");
  OPI_TRY(opi_plan_assign(plan, bound->graph, plan->allocator, stage, t->err));
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    OPI_TRY(add_rank(t, bound->graph, stage, r, stage_ns, &attention_ns));
  out->pass_ns[c] = out->stage_ns[c] = 0;
  for (uint32_t s = 0; s < plan->n_stages; ++s) {
    out->pass_ns[c] += stage_ns[s];
    out->stage_ns[c] = stage_ns[s] > out->stage_ns[c] ? stage_ns[s] : out->stage_ns[c];
  }
  for (uint32_t k = 0; k < out->n_crossings; ++k) {
    const double bytes = (double)out->crossings[k].n_bytes * rows / g->rows;
    out->pass_ns[c] += (double)opi_link_ns(&plan->link, (uint64_t)bytes);
  }
  const double keys = ((g->context - 1) / g->page + 1) * (double)g->page;
  out->key_ns = attention_ns / rows / keys; /* at last: of most rows */
  return OPIPE_OK;
}

static opipe_status time_class(timing *t, uint32_t c) {
  opi_decision given = t->plan->decided;
  opi_dim_binding dims[OPI_ROW_DIMS];
  opi_bound *bound = NULL;
  opi_row_model_dims(t->plan->rows, opi_generation_rows(&given.generation, c), dims);
  given.binding.dims = dims;
  given.binding.n_dims = OPI_ROW_DIMS;
  OPI_TRY(opi_plan_bind(&given, t->env->model, t->env->bind, 0, &bound, t->err));
  const opipe_status status = time_graph(t, c, bound);
  opi_bound_free(bound);
  return status;
}

/* The number of passes in flight under which a row of every active sequence is soonest done: passes
 * follow each other at the longest stage's pace, and a sequence's next pass follows its last. */
static uint32_t choose_groups(const opi_plan *plan) {
  const opi_generation *g = &plan->decided.generation;
  double least = 0;
  uint32_t best = 0;
  for (uint32_t n = 1; n <= g->active; ++n) {
    const uint32_t rows = (g->active + n - 1) / n;
    uint32_t c = 0;
    while (c + 1 < opi_generation_classes(g) && opi_generation_rows(g, c) < rows)
      ++c;
    const double busy = n * plan->predicted.stage_ns[c], alone = plan->predicted.pass_ns[c];
    const double round = busy > alone ? busy : alone;
    if (best != 0 && round >= least)
      continue;
    least = round;
    best = n;
  }
  return best;
}

opipe_status opi_passes_time(const opi_plan_env *env, opi_plan *plan, const opi_device_facts *facts,
                             uint32_t cost, opipe_error *err) {
  timing t = {.env = env, .plan = plan, .facts = facts, .cost = cost, .err = err};
  opipe_status status = OPIPE_OK;
  opi_arena_init(&t.scratch, plan->decided.allocator, 0);
  for (uint32_t c = 0; c < opi_generation_classes(&plan->decided.generation) && status >= 0; ++c)
    status = time_class(&t, c);
  opi_arena_release(&t.scratch);
  if (status == OPIPE_OK && plan->decided.generation.groups == 0)
    plan->decided.generation.groups = choose_groups(plan);
  return status;
}
