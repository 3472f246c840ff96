/* SPDX-License-Identifier: Apache-2.0 */
/* The planner for streams: devices and layout first, then the cut (given, annotated or searched
 * under the caps: capped.h), then opi_plan_finish.
 */
#include <stdio.h>
#include <string.h>

#include "partition/cost/backward.h"
#include "partition/make/devices.h"
#include "partition/make/make.h"
#include "partition/memory/caps.h"
#include "partition/plan/spec.h"
#include "partition/program/batch.h"
#include "partition/program/batch_choose.h"
#include "partition/program/model.h"
#include "partition/program/states.h"
#include "partition/schedule/compute_order.h"
#include "partition/schedule/order_search.h"
#include "partition/search/capped.h"
#include "partition/search/given.h"
#include "partition/search/shared_caps.h"
#include "partition/search/taken.h"

enum { STAGES_MOST = 4096 };

typedef struct planner {
  const opi_plan_env *env;
  const opipe_plan_params *params;
  const opi_train_spec *spec; /* NULL: a forward plan */
  opi_plan *plan;
  const opi_bound *bound;                       /* the larger class */
  opi_bound *own_bound;                         /* the same, unless it was there before */
  opi_training *training;                       /* of a whole micro-batch, for costs */
  double **input_ns, **weight_ns, **forward_ns; /* training: [n_ranks][n_nodes] */
  opi_arena scratch;
  opi_device_facts *facts; /* [n_ranks] */
  opi_cut_edge *edges;
  uint32_t n_edges, n_boundaries;
  opi_profile **profiles;     /* [n_ranks] shared where devices are equal */
  uint32_t *profile_owner;    /* [n_ranks] the rank whose entry owns the profile */
  const char **other_options; /* [n_ranks] devices' options with kernels, or without them */
  bool kernels_chosen;        /* some rank's differ */
  bool searches;              /* for a better order: */
  opi_search_request search;
  const char *from; /* it begins with that schedule */
  opipe_error *err;
} planner;

static const char *text_or(const char *text, const char *fallback) {
  return text == NULL ? fallback : text;
}

/* ---- what the caller gave ---- */

/* What the model was bound with; cut tensors are barriers as well. */
static opipe_status copy_dims(planner *p) {
  opi_plan *plan = p->plan;
  OPI_TRY(opi_plan_take_binding(plan, p->env->bind, p->n_edges, p->err));
  for (uint32_t e = 0; e < p->n_edges; ++e) {
    const char *tensor = opi_arena_strdup(&plan->arena, p->edges[e].tensor);
    if (tensor == NULL)
      return opi_fail_nomem(p->err, 0, "a plan");
    plan->barriers[plan->n_barriers++] = tensor;
  }
  return OPIPE_OK;
}

static opipe_status check_costs(const planner *p) {
  const opi_costs *costs = p->env->costs;
  if (costs->comm != 0) {
    return opi_fail(p->err, OPIPE_E_INVALID,
                    "costs: comm=%g; how long messages take is declared by the transport, '%s'",
                    costs->comm, p->plan->transport);
  }
  return opi_costs_check(costs, p->plan->n_stages, p->err);
}

/* The schedule that is asked; of a search, that which it begins with: the best there is by equal
 * stages, where none is said. */
static opipe_status choose_schedule(planner *p, uint32_t n_stages, opi_schedule_ref *out_schedule) {
  opi_plan *plan = p->plan;
  const char *spec = p->params->schedule, *name = NULL;
  const uint32_t listed = p->params->n_stage_replicas; /* says it where nothing else does */
  const uint32_t n_ranks = p->params->n_ranks == 0 && n_stages == 0 ? listed : p->params->n_ranks;
  const uint32_t n_copies = plan->copies == 0 ? 1 : plan->copies;
  const opi_question question = {
      .mode = p->spec == NULL ? OPIPE_MODE_FORWARD : OPIPE_MODE_TRAIN,
      .n_ranks = n_ranks == 0 ? n_stages : n_ranks,
      .n_stages = n_stages == 0 ? n_ranks : n_stages,
      .n_microbatches = plan->n_microbatches / n_copies == 0 ? 1 : plan->n_microbatches / n_copies,
      .costs = &opi_unit_costs};
  p->searches = opi_is_search(spec) || (p->params->flags & OPIPE_PLAN_IMPROVE) != 0;
  p->from = text_or(spec, "gpipe");
  const opi_order_search *search = p->env->search;
  if (p->searches && search == NULL) {
    return opi_fail(p->err, OPIPE_E_UNSUPPORTED,
                    "a search for a better order: built without the study");
  }
  if (p->searches) {
    OPI_TRY(search->parse(spec, &p->scratch, &p->search, p->err));
    p->from = p->search.from;
  }
  if (p->from == NULL)
    OPI_TRY(search->best(p->env->plugins, &question, &p->scratch, &p->from, p->err));
  OPI_TRY(
      opi_schedule_split(p->from, &plan->arena, &name, &plan->settings, &plan->n_settings, p->err));
  plan->schedule = name;
  OPI_TRY(p->env->plugins->schedule(p->env->plugins->ctx, name, out_schedule, p->err));
  return opi_schedule_check_settings(out_schedule, plan->settings, plan->n_settings, p->err);
}

/* A device, and a cap of it, that no rank would have. */
static opipe_status check_device_count(const planner *p) {
  const uint32_t n = p->params->n_devices, n_ranks = p->plan->n_ranks;
  opipe_device_choice spare = {.kind = NULL};
  if (n <= n_ranks)
    return OPIPE_OK;
  opi_array_get(p->params->devices, p->params->devices_stride, n_ranks, &spare, sizeof spare);
  return opi_fail(p->err, OPIPE_E_INVALID,
                  "%u devices for %u rank%s: devices[%u], %s:%u, is no rank's", n, n_ranks,
                  n_ranks == 1 ? "" : "s", n_ranks, text_or(spare.kind, "cpu"), spare.index);
}

static opipe_status choose_layout(planner *p) {
  opi_plan *plan = p->plan;
  uint32_t n_stages = p->params->n_stages;
  opi_schedule_ref schedule;
  if (p->n_edges != 0) {
    if (n_stages != 0 && n_stages != p->n_boundaries + 1) {
      return opi_fail(p->err, OPIPE_E_INVALID,
                      "the cut has %u boundar%s, which makes %u stages, not %u", p->n_boundaries,
                      p->n_boundaries == 1 ? "y" : "ies", p->n_boundaries + 1, n_stages);
    }
    n_stages = p->n_boundaries + 1;
  }
  const bool annotated =
      p->env->model->n_stages > 1 && (p->params->flags & OPIPE_PLAN_IGNORE_ANNOTATIONS) == 0;
  const bool listed = p->spec != NULL ? p->spec->n_rank_replicas != 0
                                      : plan->n_rank_replicas != 0; /* says how many ranks */
  if (n_stages == 0 && p->params->n_ranks == 0 && (annotated || !listed)) {
    n_stages = annotated                  ? (uint32_t)p->env->model->n_stages
               : p->params->n_devices > 1 ? p->params->n_devices
                                          : 1;
  }
  if (n_stages > STAGES_MOST || p->params->n_ranks > STAGES_MOST) {
    return opi_fail(p->err, OPIPE_E_LIMIT, "%u stages on %u ranks: at most %d", n_stages,
                    p->params->n_ranks, STAGES_MOST);
  }
  OPI_TRY(choose_schedule(p, n_stages, &schedule));
  OPI_TRY(opi_schedule_layout(&schedule, p->params->n_ranks, n_stages, plan, p->err));
  if (plan->n_stages > STAGES_MOST || plan->n_ranks > STAGES_MOST) {
    return opi_fail(p->err, OPIPE_E_LIMIT, "schedule '%s' makes %u stages on %u ranks: at most %d",
                    plan->schedule, plan->n_stages, plan->n_ranks, STAGES_MOST);
  }
  if (n_stages != 0 && plan->n_stages != n_stages) {
    return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' makes %u stages, %u were asked for",
                    plan->schedule, plan->n_stages, n_stages);
  }
  if (p->env->costs != NULL)
    OPI_TRY(check_costs(p));
  if (p->params->cluster != NULL && p->params->n_devices < plan->n_ranks) {
    return opi_fail(p->err, OPIPE_E_INVALID, "the cluster has %u devices, the plan %u ranks",
                    p->params->n_devices, plan->n_ranks);
  }
  return p->params->cluster == NULL ? check_device_count(p) : OPIPE_OK;
}

static opipe_status choose_link(planner *p) {
  if (p->params->link == NULL)
    return opi_plan_find_link(p->env, p->plan, p->err);
  OPI_TRY(opi_link_describe(p->params->link, "link", &p->plan->link, p->err));
  return opi_plan_check_link(p->plan, p->err);
}

/* ---- profiles ---- */

/* Does every node cost the same on both ranks? */
static bool same_device(const planner *p, uint32_t one, uint32_t other) {
  const opi_device_spec *a = &p->plan->devices[one], *b = &p->plan->devices[other];
  const opi_device_facts *x = &p->facts[one], *y = &p->facts[other];
  return strcmp(a->kind, b->kind) == 0 && strcmp(a->options, b->options) == 0 &&
         (x->described || a->index == b->index) && a->threads == b->threads &&
         x->described == y->described && x->flops == y->flops && x->fp64_flops == y->fp64_flops &&
         x->fp16_flops == y->fp16_flops && x->bf16_flops == y->bf16_flops &&
         x->bandwidth == y->bandwidth && x->launch_ns == y->launch_ns &&
         x->max_threads == y->max_threads;
}

static opipe_status profile_rank(planner *p, uint32_t rank) {
  const opi_device_spec *spec = &p->plan->devices[rank];
  for (uint32_t r = 0; r < rank; ++r) {
    if (!same_device(p, r, rank))
      continue;
    p->profiles[rank] = p->profiles[r];
    p->profile_owner[rank] = p->profile_owner[r];
    return OPIPE_OK;
  }
  opi_backend_ref backend;
  opi_profile_place place = {
      .facts = &p->facts[rank], .threads = spec->threads, .may_refuse = true};
  if (!p->facts[rank].described) {
    place.backend = &backend;
    OPI_TRY(opi_device_open(p->env, spec, &backend, &place.device, p->err));
  }
  const opipe_status status =
      opi_profile_make(p->bound->graph, &place, p->params->cost, p->plan->allocator, p->env->now_ns,
                       &p->profiles[rank], p->err);
  if (place.backend != NULL)
    backend.table->device_close(place.device);
  p->profile_owner[rank] = rank;
  return status;
}

/* Times of the backward's nodes where costs are measured; *out_ns NULL: by rates. */
static opipe_status measure_backward(planner *p, const opi_device_spec *spec, double **out_ns) {
  opi_backend_ref backend;
  opipe_device *device = NULL;
  *out_ns = NULL;
  if (p->params->cost != OPIPE_COST_MEASURED)
    return OPIPE_OK;
  const uint32_t n = p->training->graph->n_nodes;
  double *ns = OPI_ARENA_ARRAY(&p->scratch, double, n);
  if (ns == NULL)
    return opi_fail_nomem(p->err, n * sizeof *ns, "costs");
  OPI_TRY(opi_device_open(p->env, spec, &backend, &device, p->err));
  const opipe_status status = opi_train_measure(p->training, &backend, device, p->plan->allocator,
                                                p->env->now_ns, ns, p->err);
  backend.table->device_close(device);
  *out_ns = ns;
  return status;
}

/* Training: a node costs its forward and its backward; the parts are kept for the stages' times. */
static opipe_status add_backward(planner *p, uint32_t rank) {
  const opi_device_spec *spec = &p->plan->devices[rank];
  const uint32_t n_nodes = p->bound->graph->n_nodes, owner = p->profile_owner[rank];
  opi_profile *profile = p->profiles[rank];
  if (owner != rank) {
    p->forward_ns[rank] = p->forward_ns[owner];
    p->input_ns[rank] = p->input_ns[owner];
    p->weight_ns[rank] = p->weight_ns[owner];
    return OPIPE_OK;
  }
  p->forward_ns[rank] = opi_arena_copy(&p->scratch, profile->node_ns, n_nodes * sizeof(double));
  p->input_ns[rank] = OPI_ARENA_ARRAY(&p->scratch, double, n_nodes);
  p->weight_ns[rank] = OPI_ARENA_ARRAY(&p->scratch, double, n_nodes);
  if (p->forward_ns[rank] == NULL || p->input_ns[rank] == NULL || p->weight_ns[rank] == NULL)
    return opi_fail_nomem(p->err, n_nodes * sizeof(double), "costs");
  double *measured = NULL;
  OPI_TRY(measure_backward(p, spec, &measured));
  OPI_TRY(opi_train_costs(p->training, p->bound, measured, &p->facts[rank], spec->threads,
                          p->input_ns[rank], p->weight_ns[rank], p->err));
  for (uint32_t n = 0; n < n_nodes; ++n)
    profile->node_ns[n] += p->input_ns[rank][n] + p->weight_ns[rank][n];
  return OPIPE_OK;
}

static opipe_status add_backwards(planner *p) {
  const uint32_t n = p->plan->n_ranks;
  if (p->spec == NULL)
    return OPIPE_OK;
  p->forward_ns = OPI_ARENA_ARRAY(&p->scratch, double *, n);
  p->input_ns = OPI_ARENA_ARRAY(&p->scratch, double *, n);
  p->weight_ns = OPI_ARENA_ARRAY(&p->scratch, double *, n);
  p->plan->input_ns = OPI_ARENA_ARRAY(&p->plan->arena, double, p->plan->n_stages);
  p->plan->weight_ns = OPI_ARENA_ARRAY(&p->plan->arena, double, p->plan->n_stages);
  if (p->forward_ns == NULL || p->input_ns == NULL || p->weight_ns == NULL ||
      p->plan->input_ns == NULL || p->plan->weight_ns == NULL)
    return opi_fail_nomem(p->err, n * sizeof(double *), "costs");
  OPI_TRY(opi_train_gradient(p->plan, p->env->model, p->bound, NULL, NULL, NULL, p->env->bind,
                             &p->training, p->err));
  OPI_TRY(opi_train_choose(p->plan, p->training, p->err));
  for (uint32_t r = 0; r < n; ++r)
    OPI_TRY(add_backward(p, r));
  return OPIPE_OK;
}

/* Of a whole micro-batch, whatever shares of it the profiles of the search had. */
static void forward_times(planner *p) {
  opi_plan *plan = p->plan;
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    plan->stage_ns[s] = 0;
  for (uint32_t n = 0; n < plan->n_nodes; ++n) {
    const uint32_t s = plan->stage_of_node[n];
    plan->stage_ns[s] += p->profiles[opi_plan_rank(plan, s, 0)]->node_ns[n];
  }
}

/* The three times of every stage. */
static void train_times(planner *p) {
  opi_plan *plan = p->plan;
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    plan->stage_ns[s] = plan->input_ns[s] = plan->weight_ns[s] = 0;
  for (uint32_t n = 0; n < plan->n_nodes; ++n) {
    const uint32_t s = plan->stage_of_node[n], rank = opi_plan_rank(plan, s, 0);
    plan->stage_ns[s] += p->forward_ns[rank][n];
    plan->input_ns[s] += p->input_ns[rank][n];
    plan->weight_ns[s] += p->weight_ns[rank][n];
  }
}

static opipe_status profile_ranks(planner *p) {
  p->profiles = OPI_ARENA_ARRAY(&p->scratch, opi_profile *, p->plan->n_ranks);
  p->profile_owner = OPI_ARENA_ARRAY(&p->scratch, uint32_t, p->plan->n_ranks);
  if (p->profiles == NULL || p->profile_owner == NULL)
    return opi_fail_nomem(p->err, p->plan->n_ranks, "profiles");
  for (uint32_t r = 0; r < p->plan->n_ranks; ++r)
    OPI_TRY(profile_rank(p, r));
  OPI_TRY(opi_taken_somewhere(p->plan, p->bound->graph, p->profiles, p->err));
  p->plan->cost_kind = p->params->cost;
  return add_backwards(p);
}

/* ---- the cut ---- */

/* A stage without a node only passes on. A model of a node or two, as tests of operators have it,
 * may leave some of few stages idle. */
static opipe_status check_stage_count(const planner *p) {
  enum { ALWAYS = 4 };
  const uint32_t n_stages = p->plan->n_stages, n_nodes = p->bound->graph->n_nodes;
  if (n_stages <= ALWAYS || n_stages <= n_nodes)
    return OPIPE_OK;
  return opi_fail(p->err, OPIPE_E_INVALID,
                  "%u stages are more than the model has nodes: %u, once its shapes are known",
                  n_stages, n_nodes);
}

static opipe_status name_nodes(planner *p) {
  opi_plan *plan = p->plan;
  const opi_graph *g = p->bound->graph;
  plan->node_keys = OPI_ARENA_ARRAY(&plan->arena, const char *, g->n_nodes);
  plan->stage_of_node = OPI_ARENA_ARRAY(&plan->arena, uint32_t, g->n_nodes);
  plan->stage_ns = OPI_ARENA_ARRAY(&plan->arena, double, plan->n_stages);
  if (plan->node_keys == NULL || plan->stage_of_node == NULL || plan->stage_ns == NULL)
    return opi_fail_nomem(p->err, g->n_nodes * sizeof(char *), "a plan");
  plan->n_nodes = g->n_nodes;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    plan->node_keys[n] = opi_arena_strdup(&plan->arena, opi_node_key(g, &g->nodes[n]));
    if (plan->node_keys[n] == NULL)
      return opi_fail_nomem(p->err, 0, "a plan");
  }
  return OPIPE_OK;
}

/* max(sum / stages, largest node), with each node on the device that is best at it; where replicas
 * cut micro-batches, on as many as a stage has at most. */
static double lower_bound(const planner *p) {
  double sum = 0, largest = 0;
  for (uint32_t n = 0; n < p->plan->n_nodes; ++n) {
    double best = p->profiles[0]->node_ns[n];
    for (uint32_t r = 1; r < p->plan->n_ranks; ++r) {
      if (p->profiles[r]->node_ns[n] < best)
        best = p->profiles[r]->node_ns[n];
    }
    sum += best;
    if (best > largest)
      largest = best;
  }
  sum /= p->plan->n_ranks;
  largest /= p->plan->shares == NULL ? 1 : p->plan->n_replicas;
  return sum > largest ? sum : largest;
}

static double given_ns(const double *stages, double alike, uint32_t stage) {
  return (stages == NULL ? alike : stages[stage]) * 1e6;
}

/* The caller knows better: a profile of its own, or devices that only sleep. */
static void take_given_times(planner *p) {
  opi_plan *plan = p->plan;
  const opi_costs *costs = p->env->costs;
  double sum = 0;
  for (uint32_t s = 0; s < plan->n_stages; ++s) {
    plan->stage_ns[s] = given_ns(costs->stage_forward, costs->forward, s);
    sum += plan->stage_ns[s];
    if (p->spec == NULL)
      continue;
    plan->input_ns[s] = given_ns(costs->stage_input, costs->input, s);
    plan->weight_ns[s] = given_ns(costs->stage_weight, costs->weight, s);
    sum += plan->input_ns[s] + plan->weight_ns[s];
  }
  plan->bound_ns = sum / plan->n_ranks;
  plan->cost_kind = OPI_COST_GIVEN;
}

/* Devices' options: those that decide, and all that were given. */
static void swap_options(planner *p) {
  for (uint32_t r = 0; r < p->plan->n_ranks; ++r) {
    const char *now = p->plan->devices[r].options;
    p->plan->devices[r].options = p->other_options[r];
    p->other_options[r] = now;
  }
}

/* By decided options, then bytes and caps by the kernels that were asked for. */
static opipe_status finish(void *ctx, opipe_error *err) {
  planner *p = ctx;
  opipe_status status = opi_plan_finish(p->env, p->plan, p->bound, err);
  if (status == OPIPE_OK && p->kernels_chosen) { /* it must fit by those too */
    swap_options(p);
    status = opi_plan_finish(p->env, p->plan, p->bound, err);
    swap_options(p);
  }
  return status;
}

/* Of the stages that the plan says. */
static opipe_status finish_cut(void *ctx, const opi_cut_problem *problem, opipe_error *err) {
  planner *p = ctx;
  opi_cut_problem own = *problem;
  own.link_ns_per_byte = 0; /* no work of a stage */
  p->plan->actions = NULL;
  OPI_TRY(opi_taken_by_ranks(p->plan, p->bound->graph, p->profiles, err));
  OPI_TRY(opi_cut_times(&own, p->plan->stage_of_node, p->plan->allocator, p->plan->stage_ns, err));
  if (p->spec != NULL)
    train_times(p);
  else if (p->plan->shares != NULL)
    forward_times(p);
  if (p->env->costs != NULL)
    take_given_times(p);
  return finish(p, err);
}

/* A profile in which every node takes its share of the time: replicas of the stage have the rest of
 * the rows. */
static opipe_status shared_profile(planner *p, const opi_profile *profile, uint32_t n_shares,
                                   const opi_profile **out_profile) {
  opi_profile *own = opi_arena_copy(&p->scratch, profile, sizeof *profile);
  *out_profile = own;
  if (own == NULL)
    return opi_fail_nomem(p->err, sizeof *own, "a cut");
  own->node_ns =
      opi_arena_copy(&p->scratch, profile->node_ns, profile->n_nodes * sizeof *profile->node_ns);
  if (own->node_ns == NULL)
    return opi_fail_nomem(p->err, profile->n_nodes * sizeof *profile->node_ns, "a cut");
  for (uint32_t n = 0; n < profile->n_nodes; ++n)
    own->node_ns[n] /= n_shares;
  return OPIPE_OK;
}

/* Where the pairs of streams, and tensors of which no rows can travel, leave a cut, and which nodes
 * they hold together. */
static opipe_status tie_nodes(planner *p, opi_cut_problem *problem) {
  const uint32_t n = p->plan->n_nodes;
  if (p->plan->n_states == 0 && p->plan->shares == NULL)
    return OPIPE_OK;
  bool *stays = OPI_ARENA_ARRAY(&p->scratch, bool, n);
  bool *closed = OPI_ARENA_ARRAY(&p->scratch, bool, (size_t)n + 1);
  if (stays == NULL || closed == NULL)
    return opi_fail_nomem(p->err, n, "a cut");
  problem->stays = stays;
  problem->closed = closed;
  OPI_TRY(opi_rows_tie(p->plan, p->env->model, p->bound->graph, stays, closed, p->err));
  return opi_states_tie(p->plan, p->env->model->graph, p->bound->graph, stays, closed, p->err);
}

static opipe_status cut_once(planner *p) {
  opi_plan *plan = p->plan;
  uint64_t *caps = OPI_ARENA_ARRAY(&p->scratch, uint64_t, plan->n_stages);
  const opi_profile **profiles = OPI_ARENA_ARRAY(&p->scratch, const opi_profile *, plan->n_stages);
  if (caps == NULL || profiles == NULL)
    return opi_fail_nomem(p->err, plan->n_stages, "a cut");
  for (uint32_t s = 0; s < plan->n_stages; ++s) {
    caps[s] = UINT64_MAX;
    profiles[s] = p->profiles[opi_plan_rank(plan, s, 0)];
    if (plan->shares != NULL && plan->shares[s] > 1)
      OPI_TRY(shared_profile(p, profiles[s], plan->shares[s], &profiles[s]));
  }
  opi_cut_problem problem = {
      .graph = p->bound->graph,
      .profiles = profiles,
      .caps_bytes = caps,
      .n_stages = plan->n_stages,
      .depth = opi_route_depth(plan),
      .link_ns_per_byte = plan->link.bytes_per_ns > 0 ? 1 / plan->link.bytes_per_ns : 0};
  plan->bound_ns = lower_bound(p);
  OPI_TRY(tie_nodes(p, &problem));
  if (p->env->stage_ends != NULL) {
    OPI_TRY(opi_cut_behind(p->bound->graph, p->env->stage_ends, plan->n_stages, plan->stage_of_node,
                           p->err));
    return finish_cut(p, &problem, p->err);
  }
  if (p->n_edges != 0) {
    OPI_TRY(opi_cut_given(p->bound, p->env->model->graph, p->edges, p->n_edges, plan->n_stages,
                          plan->allocator, plan->stage_of_node, p->err));
    return finish_cut(p, &problem, p->err);
  }
  if (p->env->model->n_stages > 1 && (p->params->flags & OPIPE_PLAN_IGNORE_ANNOTATIONS) == 0 &&
      (uint32_t)p->env->model->n_stages == plan->n_stages) {
    OPI_TRY(opi_cut_annotated(p->bound->graph, plan->n_stages, plan->stage_of_node, p->err));
    return finish_cut(p, &problem, p->err);
  }
  const opi_capped c = {.env = p->env,
                        .plan = plan,
                        .bound = p->bound,
                        .problem = &problem,
                        .same_device = p->profile_owner,
                        .finish = finish_cut,
                        .ctx = p};
  return opi_cut_capped(&c, p->err);
}

/* What the ranks of the cut at hand need where their schedule keeps as little as it can. */
static void find_least(planner *p, opi_rank_bytes *io_needs, opi_device_spec *devices) {
  opipe_error unused = OPIPE_ERROR_INIT;
  if (p->plan->train == NULL)
    return;
  opi_shared_caps_divide(p->plan, io_needs, OPI_SHARE_LEAST, devices);
  p->plan->memory = NULL;
  p->plan->actions = NULL;
  (void)finish(p, &unused);
  for (uint32_t r = 0; p->plan->memory != NULL && r < p->plan->n_ranks; ++r) {
    const uint64_t bytes = p->plan->memory[r].total_bytes;
    io_needs->least[r] = bytes < io_needs->now[r] ? bytes : io_needs->now[r];
  }
  opi_shared_caps_restore(p->plan, devices);
}

/* Where ranks need more than a cap that they have together, they get parts of it, and other cuts
 * and orders are looked for within these. */
static opipe_status cut(planner *p) {
  opipe_error *err = p->err;
  opi_rank_bytes needs;
  opi_device_spec *devices = NULL;
  uint32_t n = 0;
  opipe_status status = cut_once(p);
  if (status != OPIPE_E_LIMIT || !opi_shared_caps_lack(p->plan))
    return status;
  const uint64_t enough = opi_caps_sum(p->plan, 0, &n);
  OPI_TRY(opi_shared_caps_needs(p->plan, &p->scratch, &needs, &devices, p->err));
  find_least(p, &needs, devices);
  for (uint32_t how = OPI_SHARE_LIKE; status == OPIPE_E_LIMIT && how <= OPI_SHARE_EQUAL; ++how) {
    opipe_error own = OPIPE_ERROR_INIT;
    opi_shared_caps_divide(p->plan, &needs, how, devices);
    p->plan->memory = NULL;
    p->err = &own;
    status = cut_once(p);
    p->err = err;
    opi_shared_caps_restore(p->plan, devices);
    if (status < 0 && status != OPIPE_E_LIMIT)
      return opi_fail(err, status, "%s", own.message);
  }
  if (status == OPIPE_OK || n < p->plan->n_ranks)
    return status;
  const opipe_error first = *err;
  return opi_fail(err, status, "%s; a cap of %llu bytes is enough", first.message,
                  (unsigned long long)enough);
}

/* Ranks that have a cap together get equal parts of what it leaves free. */
static opipe_status improve(planner *p) {
  opi_rank_bytes needs;
  opi_device_spec *devices = NULL;
  if (!p->searches)
    return OPIPE_OK;
  OPI_TRY(opi_shared_caps_needs(p->plan, &p->scratch, &needs, &devices, p->err));
  opi_shared_caps_divide(p->plan, &needs, OPI_SHARE_REST, devices);
  const opipe_status status =
      p->env->search->improve(p->env->plugins, &p->search, p->from, p->plan, finish, p, p->err);
  opi_shared_caps_restore(p->plan, devices);
  return status;
}

/* Decides by what devices need whatever their kernels are: opened as they open without the choice.
 * Measured costs are those of the kernels that were asked for. */
static opipe_status leave_kernels_out(planner *p) {
  opi_plan *plan = p->plan;
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    opi_text kept;
    const char *real = p->other_options[r] = plan->devices[r].options;
    if (strstr(real, "kernels=") == NULL || p->params->cost == OPIPE_COST_MEASURED)
      continue;
    opi_text_init(&kept, plan->allocator);
    opi_options_decided(real, &kept);
    plan->devices[r].options = opi_arena_strdup(&p->scratch, kept.data == NULL ? "" : kept.data);
    const bool failed = kept.failed || plan->devices[r].options == NULL;
    opi_text_release(&kept);
    if (failed)
      return opi_fail_nomem(p->err, strlen(real), "devices");
    p->kernels_chosen = true;
  }
  return OPIPE_OK;
}

static opipe_status cut_for_any_kernels(planner *p) {
  p->other_options = OPI_ARENA_ARRAY(&p->scratch, const char *, p->plan->n_ranks);
  if (p->other_options == NULL)
    return opi_fail_nomem(p->err, p->plan->n_ranks * sizeof(char *), "devices");
  opipe_status status = leave_kernels_out(p);
  if (status == OPIPE_OK)
    status = profile_ranks(p);
  if (status == OPIPE_OK)
    status = cut(p);
  if (status == OPIPE_OK)
    status = improve(p);
  swap_options(p);
  return status;
}

/* For inference: copies, or replicas of single stages; one of each stage is no list. */
static opipe_status take_replicas(planner *p) {
  opi_plan *plan = p->plan;
  const uint32_t *list = p->params->stage_replicas, n = p->params->n_stage_replicas;
  uint32_t i = 0;
  while (i < n && list[i] == 1)
    ++i;
  plan->copies = p->params->replicas;
  if (i == n)
    return OPIPE_OK;
  plan->copies = 0;
  plan->n_rank_replicas = n;
  plan->rank_replicas = opi_arena_copy(&plan->arena, list, n * sizeof *list);
  return plan->rank_replicas == NULL ? opi_fail_nomem(p->err, n * sizeof *list, "a plan")
                                     : OPIPE_OK;
}

static opipe_status make(planner *p) {
  opi_plan *plan = p->plan;
  opi_model_fingerprint(p->env->model, plan->fingerprint);
  plan->depth = p->params->depth == 0 ? 2 : p->params->depth;
  plan->transport = opi_arena_strdup(&plan->arena, text_or(p->params->transport, "local"));
  if (plan->transport == NULL)
    return opi_fail_nomem(p->err, 0, "a plan");
  if (!opi_text_is_utf8(plan->transport)) {
    return opi_fail(p->err, OPIPE_E_INVALID, "transport '%.*s': its options are not UTF-8",
                    (int)strcspn(plan->transport, ":"), plan->transport);
  }
  if (p->params->cut != NULL && p->params->cut[0] != '\0') {
    OPI_TRY(opi_cut_parse(p->params->cut, &p->scratch, &p->edges, &p->n_edges, &p->n_boundaries,
                          p->err));
  }
  OPI_TRY(copy_dims(p));
  OPI_TRY(opi_states_copy(plan, p->params, p->err));
  if (p->spec == NULL)
    OPI_TRY(take_replicas(p));
  if (p->spec != NULL) {
    plan->bind_flags |= OPI_BIND_KEEP_PARAMETERS;
    OPI_TRY(opi_train_spec_copy(plan, p->spec, p->err));
  }
  plan->n_microbatches = p->params->n_microbatches == 0 ? 1 : p->params->n_microbatches;
  OPI_TRY(opi_batch_choose(p->env, p->params->batch_dim, plan, p->err));
  OPI_TRY(choose_layout(p));
  OPI_TRY(opi_schedule_limit(plan, p->err));
  OPI_TRY(opi_batch_settle(p->env, p->params->batch_dim, plan, p->err));
  OPI_TRY(opi_devices_choose(p->env, p->params, plan, &p->scratch, &p->facts, p->err));
  OPI_TRY(choose_link(p));
  const int64_t rows =
      plan->batch_dim == NULL ? 0 : opi_microbatch_rows(plan->batch_rows, plan->n_microbatches, 0);
  OPI_TRY(opi_plan_bound(p->env, plan, rows, &p->bound, &p->own_bound, p->err));
  OPI_TRY(opi_states_check(plan, p->env->model->graph, p->bound->graph, p->err));
  OPI_TRY(check_stage_count(p));
  OPI_TRY(name_nodes(p));
  return cut_for_any_kernels(p);
}

static opipe_status plan_with(const opi_plan_env *env, const opipe_plan_params *params,
                              const opi_train_spec *spec, opi_plan **out_plan, opipe_error *err) {
  planner p = {.env = env, .params = params, .spec = spec, .err = err};
  OPI_TRY(opi_plan_new(env->allocator, &p.plan, err));
  opi_arena_init(&p.scratch, env->allocator, 0);
  opipe_status status = make(&p);
  if (status == OPIPE_OK)
    status = opi_plan_hash(p.plan, err);
  for (uint32_t r = 0; p.profiles != NULL && p.profile_owner != NULL && r < p.plan->n_ranks; ++r) {
    if (p.profile_owner[r] == r)
      opi_profile_free(p.profiles[r]);
  }
  opi_training_free(p.training);
  opi_bound_free(p.own_bound);
  opi_arena_release(&p.scratch);
  p.plan->facts = NULL;
  if (status < 0) {
    opi_plan_free(p.plan);
    return status;
  }
  *out_plan = p.plan;
  return OPIPE_OK;
}

opipe_status opi_plan_make(const opi_plan_env *env, const opipe_plan_params *params,
                           opi_plan **out_plan, opipe_error *err) {
  return plan_with(env, params, NULL, out_plan, err);
}

opipe_status opi_plan_make_training(const opi_plan_env *env, const opipe_plan_params *params,
                                    const opi_train_spec *spec, opi_plan **out_plan,
                                    opipe_error *err) {
  return plan_with(env, params, spec, out_plan, err);
}
