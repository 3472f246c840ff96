/* SPDX-License-Identifier: Apache-2.0 */
/* Times of passes on a plan's stages, class by class of rows, and what follows from playing them:
 * passes in flight, slices of prompts, whether copies of the whole model would be faster. */
#include <string.h>

#include "partition/cost/profile.h"
#include "partition/make/devices.h"
#include "partition/make/passes.h"
#include "partition/make/passes_play.h"
#include "partition/program/assign.h"
#include "partition/program/bind.h"

/* ---- profiles ---- */

static opipe_status profile_rank(const opi_pass_profiles *p, const opi_plan *plan,
                                 const opi_device_facts *facts, uint32_t cost, uint32_t c,
                                 uint32_t rank, opipe_error *err) {
  const opi_device_spec *device = &plan->decided.devices[rank];
  const opi_graph *g = p->bound[c]->graph;
  opi_backend_ref backend;
  opi_profile *profile = NULL;
  opi_profile_place place = {.facts = &facts[rank], .threads = device->threads, .may_refuse = true};
  if (!facts[rank].described) {
    place.backend = &backend;
    OPI_TRY(opi_device_open(p->env, device, &backend, &place.device, err));
  }
  opipe_status status =
      opi_profile_make(g, &place, cost, plan->decided.allocator, p->env->now_ns, &profile, err);
  if (place.device != NULL)
    backend.table->device_close(place.device);
  if (status == OPIPE_OK)
    memcpy(p->node_ns[c][rank], profile->node_ns, g->n_nodes * sizeof(double));
  opi_profile_free(profile);
  return status;
}

static opipe_status profile_class(opi_pass_profiles *p, const opi_plan *plan,
                                  const opi_device_facts *facts, uint32_t cost, uint32_t c,
                                  opipe_error *err) {
  const uint32_t n_ranks = plan->decided.n_ranks;
  opi_decision given = plan->decided;
  opi_dim_binding dims[OPI_ROW_DIMS];
  opi_row_model_dims(plan->rows, opi_generation_rows(&given.binding.generation, c), dims);
  given.binding.dims = dims;
  given.binding.n_dims = OPI_ROW_DIMS;
  OPI_TRY(opi_plan_bind(&given, p->env->model, p->env->bind, 0, &p->bound[c], err));
  p->node_ns[c] = OPI_ARENA_ARRAY(&p->arena, double *, n_ranks);
  if (p->node_ns[c] == NULL)
    return opi_fail_nomem(err, n_ranks * sizeof(double *), "times of passes");
  for (uint32_t r = 0; r < n_ranks; ++r) {
    uint32_t like = 0;
    while (like < r && !opi_devices_alike(&plan->decided, facts, like, r))
      ++like;
    if (like < r) {
      p->node_ns[c][r] = p->node_ns[c][like];
      continue;
    }
    p->node_ns[c][r] = OPI_ARENA_ARRAY(&p->arena, double, p->bound[c]->graph->n_nodes);
    if (p->node_ns[c][r] == NULL)
      return opi_fail_nomem(err, p->bound[c]->graph->n_nodes * sizeof(double), "times of passes");
    OPI_TRY(profile_rank(p, plan, facts, cost, c, r, err));
  }
  return OPIPE_OK;
}

opipe_status opi_pass_profiles_make(const opi_plan_env *env, const opi_plan *plan,
                                    const opi_device_facts *facts, uint32_t cost,
                                    opi_pass_profiles *out, opipe_error *err) {
  *out = (opi_pass_profiles){
      .env = env, .n_classes = opi_generation_classes(&plan->decided.binding.generation)};
  opi_arena_init(&out->arena, plan->decided.allocator, 0);
  for (uint32_t c = 0; c < out->n_classes; ++c)
    OPI_TRY(profile_class(out, plan, facts, cost, c, err));
  return OPIPE_OK;
}

void opi_pass_profiles_free(opi_pass_profiles *p) {
  if (p->n_classes == 0)
    return;
  for (uint32_t c = 0; c < p->n_classes; ++c)
    opi_bound_free(p->bound[c]);
  opi_arena_release(&p->arena);
}

/* ---- times of stages ---- */

typedef struct timing {
  const opi_pass_profiles *profiles;
  opi_plan *plan;
  opi_pass_times times;
  double *whole_ns; /* [n_classes] of all nodes on the slowest rank */
  opi_arena scratch;
  opipe_error *err;
} timing;

/* Does the node see keys of before? */
static bool reads_pages(const opi_graph *g, const opi_node *node) {
  bool reads = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    reads = reads || (v != OPIPE_NONE && (g->values[v].flags & OPI_VALUE_HELD) != 0);
  }
  return reads;
}

static double context_keys(const opi_generation *g) {
  return ((g->context - 1) / g->page + 1) * (double)g->page;
}

static opipe_status time_class(timing *t, uint32_t c) {
  const opi_decision *plan = &t->plan->decided;
  const opi_generation *g = &plan->binding.generation;
  const opi_graph *graph = t->profiles->bound[c]->graph;
  const double rows = opi_generation_rows(g, c), keys = context_keys(g);
  opi_pass_times *out = &t->times;
  uint32_t *stage = OPI_ARENA_ARRAY(&t->scratch, uint32_t, graph->n_nodes);
  if (stage == NULL)
    return opi_fail_nomem(t->err, graph->n_nodes * sizeof *stage, "times of passes");
  OPI_TRY(opi_plan_assign(plan, graph, plan->allocator, stage, t->err));
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    out->key_ns[s] = 0; /* at last: of most rows */
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    double ns = 0; /* on the slowest replica */
    for (uint32_t k = 0; k < plan->n_replicas; ++k) {
      const double one = t->profiles->node_ns[c][opi_plan_rank(plan, stage[n], k)][n];
      ns = one > ns ? one : ns;
    }
    if (reads_pages(graph, &graph->nodes[n]))
      out->key_ns[stage[n]] += ns / rows / keys;
    else
      out->ns[stage[n] * out->n_classes + c] += ns;
  }
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    double sum = 0;
    for (uint32_t n = 0; n < graph->n_nodes; ++n)
      sum += reads_pages(graph, &graph->nodes[n]) ? 0 : t->profiles->node_ns[c][r][n];
    t->whole_ns[c] = sum > t->whole_ns[c] ? sum : t->whole_ns[c];
  }
  for (uint32_t k = 0; k < t->plan->predicted.n_crossings; ++k) {
    const opi_crossing *x = &t->plan->predicted.crossings[k];
    const double bytes = (double)x->n_bytes * rows / g->rows;
    out->hop_ns[x->dst_stage * out->n_classes + c] +=
        (double)opi_link_ns(&plan->link, (uint64_t)bytes);
  }
  return OPIPE_OK;
}

/* Times that were given hold for any number of rows and keys. */
static void give_times(timing *t) {
  opi_pass_times *out = &t->times;
  const opi_stage_times *given = &t->plan->predicted.times;
  double sum = 0;
  for (uint32_t s = 0; s < out->n_stages; ++s) {
    out->key_ns[s] = 0;
    sum += given->stage_ns[s];
    for (uint32_t c = 0; c < out->n_classes; ++c)
      out->ns[s * out->n_classes + c] = given->stage_ns[s];
  }
  for (uint32_t c = 0; c < out->n_classes; ++c)
    t->whole_ns[c] = sum;
}

static opipe_status time_stages(timing *t) {
  const uint32_t n_stages = t->plan->decided.n_stages, n_classes = t->profiles->n_classes;
  const size_t n = (size_t)n_stages * n_classes;
  t->times = (opi_pass_times){.n_stages = n_stages,
                              .n_classes = n_classes,
                              .ns = OPI_ARENA_ARRAY(&t->scratch, double, n),
                              .hop_ns = OPI_ARENA_ARRAY(&t->scratch, double, n),
                              .key_ns = OPI_ARENA_ARRAY(&t->scratch, double, n_stages)};
  t->whole_ns = OPI_ARENA_ARRAY(&t->scratch, double, n_classes);
  if (t->times.ns == NULL || t->times.hop_ns == NULL || t->times.key_ns == NULL ||
      t->whole_ns == NULL)
    return opi_fail_nomem(t->err, n * sizeof(double), "times of passes");
  for (uint32_t c = 0; c < n_classes; ++c)
    OPI_TRY(time_class(t, c));
  if (t->plan->predicted.cost_kind == OPI_COST_GIVEN)
    give_times(t);
  return OPIPE_OK;
}

/* ---- choices ---- */

static void sum_times(timing *t) {
  opi_prediction *out = &t->plan->predicted;
  const opi_pass_times *times = &t->times;
  opi_pass_sums sums;
  opi_pass_sum(times, &sums);
  memcpy(out->pass_ns, sums.class_ns, sizeof out->pass_ns);
  out->key_ns = sums.key_ns;
  for (uint32_t c = 0; c < times->n_classes; ++c) {
    out->stage_ns[c] = 0;
    for (uint32_t s = 0; s < times->n_stages; ++s) {
      const double ns = times->ns[s * times->n_classes + c];
      out->stage_ns[c] = ns > out->stage_ns[c] ? ns : out->stage_ns[c];
    }
  }
}

static uint32_t class_of(const opi_generation *g, uint32_t rows) {
  uint32_t c = 0;
  while (c + 1 < opi_generation_classes(g) && opi_generation_rows(g, c) < rows)
    ++c;
  return c;
}

uint32_t opi_passes_decode_class(const opi_decision *plan) {
  const opi_generation *g = &plan->binding.generation;
  const uint32_t n = plan->n_stages < g->active ? plan->n_stages : g->active;
  return class_of(g, (g->active + n - 1) / n);
}

static void choose_slices(timing *t) {
  const opi_generation *g = &t->plan->decided.binding.generation;
  opi_prediction *out = &t->plan->predicted;
  const uint32_t decode = class_of(g, (g->active + g->groups - 1) / g->groups);
  const double gap = g->gap_ms > 0 ? g->gap_ms * 1e6 : g->gap * out->pass_ns[decode];
  const opi_prompt_slices how =
      opi_passes_best_slices(&t->times, g->rows, g->context, g->groups, gap, &out->passes.prompt_ns,
                             &out->passes.n_slices);
  out->passes.slice_rows = how.rows;
  out->passes.slice_ns = how.ns;
}

/* A copy of the whole model on every rank, each with its share of the sequences and pages. */
static void try_replicas(timing *t) {
  const opi_decision *plan = &t->plan->decided;
  const opi_generation *g = &plan->binding.generation;
  opi_prediction *out = &t->plan->predicted;
  const uint32_t n = plan->n_ranks, n_active = (g->active + n - 1) / n;
  double key_ns = 0;
  uint64_t kept = 0, scratch = 0;
  if (plan->n_stages < 2 || plan->n_replicas > 1 || n > g->active)
    return;
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    key_ns += t->times.key_ns[s];
  double *none = OPI_ARENA_ARRAY(&t->scratch, double, t->times.n_classes);
  if (none == NULL)
    return;
  const opi_pass_times one = {.n_stages = 1,
                              .n_classes = t->times.n_classes,
                              .ns = t->whole_ns,
                              .hop_ns = none,
                              .key_ns = &key_ns};
  const opi_decode_play play = opi_passes_play_decode(&one, n_active, 1, 0.5 * g->context);
  for (uint32_t r = 0; r < n; ++r) {
    const opi_memory *m = &out->memory[r];
    kept += m->params_bytes + m->state_bytes / n;
    const uint64_t rest = m->total_bytes - m->params_bytes - m->state_bytes;
    scratch = rest > scratch ? rest : scratch;
  }
  for (uint32_t r = 0; r < n; ++r) {
    if (kept + scratch > opi_memory_cap(&out->memory[r]))
      return;
  }
  if (play.tokens_per_s * n <= out->passes.tokens_per_s)
    return;
  out->passes.replicas = n;
  out->passes.replicas_tokens_per_s = play.tokens_per_s * n;
  out->passes.replica_bytes = kept + scratch;
}

static opipe_status play(timing *t, uint32_t groups) {
  opi_generation *g = &t->plan->decided.binding.generation;
  opi_pass_played *out = &t->plan->predicted.passes;
  opi_decode_play played = {.tokens_per_s = 0};
  const double keys = 0.5 * g->context;
  *out = (opi_pass_played){.tokens_per_s = 0};
  g->groups = groups;
  if (groups == 0)
    g->groups = opi_passes_best_groups(&t->times, g->active, OPI_GROUPS_MOST, keys, &played);
  else
    played = opi_passes_play_decode(&t->times, g->active, groups, keys);
  out->tokens_per_s = played.tokens_per_s * t->plan->decided.n_replicas;
  out->idle = played.idle;
  choose_slices(t);
  try_replicas(t);
  return opi_passes_prove(t->times.n_stages, g->groups, t->plan->decided.allocator, t->err);
}

opipe_status opi_passes_time(const opi_pass_profiles *profiles, opi_plan *plan, uint32_t groups,
                             opipe_error *err) {
  timing t = {.profiles = profiles, .plan = plan, .err = err};
  opi_arena_init(&t.scratch, plan->decided.allocator, 0);
  opipe_status status = time_stages(&t);
  if (status == OPIPE_OK) {
    sum_times(&t);
    status = play(&t, groups);
  }
  opi_arena_release(&t.scratch);
  return status;
}
