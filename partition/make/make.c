/* SPDX-License-Identifier: Apache-2.0 */
/* The planner. Chooses devices and layout first, then the cut (given, annotated, or searched under
 * the caps: search/capped.h), then finishes the plan.
 */
#include <stdio.h>
#include <string.h>

#include "partition/cost/backward.h"
#include "partition/make/devices.h"
#include "partition/make/making.h"
#include "partition/make/passes.h"
#include "partition/make/tensor.h"
#include "partition/make/work.h"
#include "partition/memory/caps.h"
#include "partition/plan/spec.h"
#include "partition/program/batch.h"
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
  opipe_plan_params own_params; /* with the width of sharding specs */
  const opi_train_spec *spec;   /* NULL: a forward plan */
  opi_making making;
  opi_plan *plan;         /* making.plan */
  opi_layout_wish wish;   /* replicas are set at the start, the rest by the layout */
  const opi_bound *bound; /* of the larger shape class */
  opi_bound *own_bound;   /* the same if bound here, else NULL */
  opi_passes_env passes;  /* of a plan of passes */
  opi_pass_profiles pass_profiles;
  opi_training *training;                       /* of a whole micro-batch, for costs */
  double **input_ns, **weight_ns, **forward_ns; /* training: [n_ranks][n_nodes] */
  opi_arena scratch;
  opi_cut_edge *edges;
  uint32_t n_edges, n_boundaries;
  opi_profile **profiles;     /* [n_ranks] shared between equal devices */
  uint32_t *profile_owner;    /* [n_ranks] the rank that owns the profile */
  const char **other_options; /* [n_ranks] not in the plan now, with or without kernels */
  bool kernels_chosen;        /* the two differ for some rank */
  bool searches;              /* searches for a better order: */
  opi_search_request search;
  const char *from; /* the schedule that the search starts from */
  opipe_error *err;
} planner;

static const char *text_or(const char *text, const char *fallback) {
  return text == NULL ? fallback : text;
}

/* Copies the model's binding; cut tensors become barriers. */
static opipe_status copy_dims(planner *p) {
  opi_plan *plan = p->plan;
  OPI_TRY(opi_plan_take_binding(plan, p->env->bind, p->n_edges, p->err));
  for (uint32_t e = 0; e < p->n_edges; ++e) {
    const char *tensor = opi_arena_strdup(&plan->arena, p->edges[e].tensor);
    if (tensor == NULL)
      return opi_fail_nomem(p->err, 0, "a plan");
    plan->decided.binding.barriers[plan->decided.binding.n_barriers++] = tensor;
  }
  return OPIPE_OK;
}

static opipe_status check_costs(const planner *p) {
  const opi_costs *costs = p->env->costs;
  if (costs->comm != 0) {
    return opi_fail(p->err, OPIPE_E_INVALID,
                    "costs: comm=%g; how long messages take is declared by the transport, '%s'",
                    costs->comm, p->plan->decided.transport);
  }
  return opi_costs_check(costs, p->plan->decided.n_stages, p->err);
}

/* Chooses the schedule to ask. A search without one starts from the best for equal stages. */
static opipe_status choose_schedule(planner *p, uint32_t n_stages, opi_schedule_ref *out_schedule) {
  opi_decision *plan = &p->plan->decided;
  const char *spec = p->params->schedule;
  const uint32_t listed = p->params->n_stage_replicas; /* if nothing else gives the ranks */
  const uint32_t width = opi_plan_width(plan);
  const uint32_t n_ranks =
      p->params->n_ranks == 0 && n_stages == 0 ? listed : p->params->n_ranks / width;
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
  opi_plan_schedule *chosen = &plan->schedule;
  OPI_TRY(opi_schedule_split(p->from, &p->plan->arena, &chosen->name, &chosen->settings,
                             &chosen->n_settings, p->err));
  OPI_TRY(p->env->plugins->schedule(p->env->plugins->ctx, chosen->name, out_schedule, p->err));
  return opi_schedule_check_settings(out_schedule, chosen->settings, chosen->n_settings, p->err);
}

/* Refuses a device, and with it a cap, that no rank would use. */
static opipe_status check_device_count(const planner *p) {
  const uint32_t n = p->params->n_devices, n_ranks = p->plan->decided.n_ranks;
  opipe_device_choice spare = {.kind = NULL};
  if (n <= n_ranks)
    return OPIPE_OK;
  opi_array_get(p->params->devices, p->params->devices_stride, n_ranks, &spare, sizeof spare);
  return opi_fail(p->err, OPIPE_E_INVALID,
                  "%u devices for %u rank%s: devices[%u], %s:%u, has no rank", n, n_ranks,
                  n_ranks == 1 ? "" : "s", n_ranks, text_or(spare.kind, "cpu"), spare.index);
}

static opipe_status choose_layout(planner *p) {
  opi_decision *plan = &p->plan->decided;
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
  const bool listed = p->wish.n_rank_replicas != 0; /* the list determines the number of ranks */
  const uint32_t width = opi_plan_width(plan);
  if (n_stages == 0 && p->params->n_ranks == 0 && (annotated || !listed)) {
    n_stages = annotated                      ? (uint32_t)p->env->model->n_stages
               : p->params->n_devices > width ? p->params->n_devices / width
                                              : 1;
  }
  if (n_stages > STAGES_MOST || p->params->n_ranks > STAGES_MOST) {
    return opi_fail(p->err, OPIPE_E_LIMIT, "%u stages on %u ranks: at most %d", n_stages,
                    p->params->n_ranks, STAGES_MOST);
  }
  OPI_TRY(opi_tensor_asked(p->params, p->err));
  OPI_TRY(choose_schedule(p, n_stages, &schedule));
  p->wish.n_ranks = p->params->n_ranks / width;
  p->wish.n_stages = n_stages;
  OPI_TRY(opi_schedule_layout(&schedule, &p->wish, plan, &p->plan->arena, p->err));
  if (plan->n_stages > STAGES_MOST || plan->n_ranks > STAGES_MOST) {
    return opi_fail(p->err, OPIPE_E_LIMIT, "schedule '%s' makes %u stages on %u ranks: at most %d",
                    plan->schedule.name, plan->n_stages, plan->n_ranks, STAGES_MOST);
  }
  if (n_stages != 0 && plan->n_stages != n_stages) {
    return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' makes %u stages, %u were asked for",
                    plan->schedule.name, plan->n_stages, n_stages);
  }
  OPI_TRY(opi_tensor_check(plan, p->err));
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
    return opi_plan_find_link(p->env, &p->plan->decided, p->err);
  OPI_TRY(opi_link_describe(p->params->link, "link", &p->plan->decided.link, p->err));
  return opi_plan_check_link(&p->plan->decided, p->err);
}

/* ---- profiles ---- */

static opipe_status profile_rank(planner *p, uint32_t rank) {
  const opi_device_spec *spec = &p->plan->decided.devices[rank];
  for (uint32_t r = 0; r < rank; ++r) {
    if (!opi_devices_alike(&p->plan->decided, p->making.facts, r, rank))
      continue;
    p->profiles[rank] = p->profiles[r];
    p->profile_owner[rank] = p->profile_owner[r];
    return OPIPE_OK;
  }
  opi_backend_ref backend;
  opi_profile_place place = {
      .facts = &p->making.facts[rank], .threads = spec->threads, .may_refuse = true};
  if (!p->making.facts[rank].described) {
    place.backend = &backend;
    OPI_TRY(opi_device_open(p->env, spec, &backend, &place.device, p->err));
  }
  const opipe_status status =
      opi_profile_make(p->bound->graph, &place, p->params->cost, p->plan->decided.allocator,
                       p->env->now_ns, &p->profiles[rank], p->err);
  if (place.backend != NULL)
    backend.table->device_close(place.device);
  p->profile_owner[rank] = rank;
  return status;
}

/* Measures the backward's nodes if costs are measured. *out_ns NULL: use rates. */
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
  const opipe_status status = opi_train_measure(
      p->training, &backend, device, p->plan->decided.allocator, p->env->now_ns, ns, p->err);
  backend.table->device_close(device);
  *out_ns = ns;
  return status;
}

/* Training: adds the backward to each node's cost and keeps the parts for the stages' times.
 */
static opipe_status add_backward(planner *p, uint32_t rank) {
  const opi_device_spec *spec = &p->plan->decided.devices[rank];
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
  OPI_TRY(opi_train_costs(p->training, p->bound, measured, &p->making.facts[rank], spec->threads,
                          p->input_ns[rank], p->weight_ns[rank], p->err));
  for (uint32_t n = 0; n < n_nodes; ++n)
    profile->node_ns[n] += p->input_ns[rank][n] + p->weight_ns[rank][n];
  return OPIPE_OK;
}

static opipe_status add_backwards(planner *p) {
  opi_stage_times *times = &p->plan->predicted.times;
  const uint32_t n = p->plan->decided.n_ranks;
  if (p->spec == NULL)
    return OPIPE_OK;
  p->forward_ns = OPI_ARENA_ARRAY(&p->scratch, double *, n);
  p->input_ns = OPI_ARENA_ARRAY(&p->scratch, double *, n);
  p->weight_ns = OPI_ARENA_ARRAY(&p->scratch, double *, n);
  times->input_ns = OPI_ARENA_ARRAY(&p->plan->arena, double, p->plan->decided.n_stages);
  times->weight_ns = OPI_ARENA_ARRAY(&p->plan->arena, double, p->plan->decided.n_stages);
  if (p->forward_ns == NULL || p->input_ns == NULL || p->weight_ns == NULL ||
      times->input_ns == NULL || times->weight_ns == NULL)
    return opi_fail_nomem(p->err, n * sizeof(double *), "costs");
  OPI_TRY(opi_train_gradient(&p->plan->decided, p->env->model, p->bound, NULL, NULL, NULL, NULL,
                             p->env->bind, &p->training, p->err));
  OPI_TRY(opi_train_choose(p->plan, p->training, p->err));
  for (uint32_t r = 0; r < n; ++r)
    OPI_TRY(add_backward(p, r));
  return OPIPE_OK;
}

/* Counts whole micro-batches, although profiles of the search may have counted shares. */
static void forward_times(planner *p) {
  const opi_decision *plan = &p->plan->decided;
  opi_stage_times *times = &p->plan->predicted.times;
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    times->stage_ns[s] = 0;
  for (uint32_t n = 0; n < plan->n_nodes; ++n) {
    const uint32_t s = plan->stage_of_node[n];
    times->stage_ns[s] += p->profiles[opi_plan_rank(plan, s, 0)]->node_ns[n];
  }
}

/* Sums the three times of every stage. */
static void train_times(planner *p) {
  const opi_decision *plan = &p->plan->decided;
  opi_stage_times *times = &p->plan->predicted.times;
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    times->stage_ns[s] = times->input_ns[s] = times->weight_ns[s] = 0;
  for (uint32_t n = 0; n < plan->n_nodes; ++n) {
    const uint32_t s = plan->stage_of_node[n], rank = opi_plan_rank(plan, s, 0);
    times->stage_ns[s] += p->forward_ns[rank][n];
    times->input_ns[s] += p->input_ns[rank][n];
    times->weight_ns[s] += p->weight_ns[rank][n];
  }
}

static opipe_status profile_ranks(planner *p) {
  const opi_decision *plan = &p->plan->decided;
  p->profiles = OPI_ARENA_ARRAY(&p->scratch, opi_profile *, plan->n_ranks);
  p->profile_owner = OPI_ARENA_ARRAY(&p->scratch, uint32_t, plan->n_ranks);
  if (p->profiles == NULL || p->profile_owner == NULL)
    return opi_fail_nomem(p->err, plan->n_ranks, "profiles");
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    OPI_TRY(profile_rank(p, r));
  OPI_TRY(opi_taken_somewhere(plan, p->bound->graph, p->profiles, p->err));
  p->plan->predicted.cost_kind = p->params->cost;
  OPI_TRY(add_backwards(p));
  const opi_tensor_costs costs = {plan,
                                  p->bound,
                                  p->env->bind,
                                  p->making.facts,
                                  p->profiles,
                                  p->profile_owner,
                                  {p->forward_ns, p->input_ns, p->weight_ns}};
  return opi_plan_width(plan) > 1 ? opi_tensor_share_costs(&costs, p->err) : OPIPE_OK;
}

/* ---- the cut ---- */

/* Refuses more stages than nodes. A stage without nodes only passes data on; up to ALWAYS stages
 * may be idle, for tiny models such as tests of single operators. */
static opipe_status check_stage_count(const planner *p) {
  enum { ALWAYS = 4 };
  const uint32_t n_stages = p->plan->decided.n_stages, n_nodes = p->bound->graph->n_nodes;
  if (n_stages <= ALWAYS || n_stages <= n_nodes)
    return OPIPE_OK;
  return opi_fail(p->err, OPIPE_E_INVALID,
                  "%u stages are more than the model has nodes: %u, once its shapes are known",
                  n_stages, n_nodes);
}

static opipe_status name_nodes(planner *p) {
  opi_decision *plan = &p->plan->decided;
  const opi_graph *g = p->bound->graph;
  plan->node_keys = OPI_ARENA_ARRAY(&p->plan->arena, const char *, g->n_nodes);
  plan->stage_of_node = OPI_ARENA_ARRAY(&p->plan->arena, uint32_t, g->n_nodes);
  p->plan->predicted.times.stage_ns = OPI_ARENA_ARRAY(&p->plan->arena, double, plan->n_stages);
  if (plan->node_keys == NULL || plan->stage_of_node == NULL ||
      p->plan->predicted.times.stage_ns == NULL)
    return opi_fail_nomem(p->err, g->n_nodes * sizeof(char *), "a plan");
  plan->n_nodes = g->n_nodes;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    plan->node_keys[n] = opi_arena_strdup(&p->plan->arena, opi_node_key(g, &g->nodes[n]));
    if (plan->node_keys[n] == NULL)
      return opi_fail_nomem(p->err, 0, "a plan");
  }
  return OPIPE_OK;
}

/* Exchanges the devices' decided options with those that were given. */
static void swap_options(planner *p) {
  for (uint32_t r = 0; r < p->plan->decided.n_ranks; ++r) {
    const char *now = p->plan->decided.devices[r].options;
    p->plan->decided.devices[r].options = p->other_options[r];
    p->other_options[r] = now;
  }
}

/* Finishes with decided options, then counts bytes and checks caps with the requested kernels.
 */
static opipe_status finish(void *ctx, opipe_error *err) {
  planner *p = ctx;
  opipe_status status = opi_making_finish(&p->making, p->bound, err);
  if (status == OPIPE_OK && p->kernels_chosen) { /* must fit with these as well */
    swap_options(p);
    status = opi_making_finish(&p->making, p->bound, err);
    swap_options(p);
  }
  return status;
}

/* Finishes the cut; the stages are already in the plan. */
static opipe_status finish_cut(void *ctx, const opi_cut_problem *problem, opipe_error *err) {
  planner *p = ctx;
  opi_cut_problem own = *problem;
  own.link_ns_per_byte = 0; /* not part of a stage's work */
  p->plan->decided.actions = NULL;
  OPI_TRY(opi_taken_by_ranks(&p->plan->decided, p->bound->graph, p->profiles, err));
  OPI_TRY(opi_cut_times(&own, p->plan->decided.stage_of_node, p->plan->decided.allocator,
                        p->plan->predicted.times.stage_ns, err));
  if (p->spec != NULL)
    train_times(p);
  else if (p->plan->decided.shares != NULL)
    forward_times(p);
  if (p->env->costs != NULL)
    opi_plan_given_times(p->plan, p->env->costs);
  return finish(p, err);
}

/* Scales a profile by the stage's number of shares, because replicas take the other rows. */
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

/* Finds nodes that must stay together: around the states of streams, and where a tensor's rows
 * cannot be divided. */
static opipe_status tie_nodes(planner *p, opi_cut_problem *problem) {
  const opi_decision *plan = &p->plan->decided;
  const uint32_t n = plan->n_nodes;
  if (plan->n_states == 0 && plan->shares == NULL)
    return OPIPE_OK;
  bool *stays = OPI_ARENA_ARRAY(&p->scratch, bool, n);
  bool *closed = OPI_ARENA_ARRAY(&p->scratch, bool, (size_t)n + 1);
  if (stays == NULL || closed == NULL)
    return opi_fail_nomem(p->err, n, "a cut");
  problem->stays = stays;
  problem->closed = closed;
  OPI_TRY(opi_rows_tie(plan, p->env->model, p->bound->graph, stays, closed, p->err));
  return opi_states_tie(plan, p->env->model->graph, p->bound->graph, stays, closed, p->err);
}

/* The model's file says where its stages are. */
static bool is_annotated(const planner *p) {
  return p->env->model->n_stages > 1 && (p->params->flags & OPIPE_PLAN_IGNORE_ANNOTATIONS) == 0 &&
         (uint32_t)p->env->model->n_stages == p->plan->decided.n_stages;
}

static opipe_status cut_once(planner *p) {
  opi_decision *plan = &p->plan->decided;
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
  p->plan->predicted.bound_ns = opi_plan_lower_bound(&p->plan->decided, p->profiles);
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
  if (is_annotated(p)) {
    OPI_TRY(opi_cut_annotated(p->bound->graph, plan->n_stages, plan->stage_of_node, p->err));
    return finish_cut(p, &problem, p->err);
  }
  const opi_capped c = {.env = p->env,
                        .plan = p->plan,
                        .facts = p->making.facts,
                        .bound = p->bound,
                        .problem = &problem,
                        .same_device = p->profile_owner,
                        .told = &p->making.told,
                        .finish = finish_cut,
                        .ctx = p};
  return opi_cut_capped(&c, p->err);
}

/* Finds the least that the ranks of the current cut need: schedules keep as little as they can.
 */
static void find_least(planner *p, opi_rank_bytes *io_needs, opi_device_spec *devices) {
  opipe_error unused = OPIPE_ERROR_INIT;
  if (!opi_plan_trains(&p->plan->decided))
    return;
  opi_shared_caps_divide(p->plan, io_needs, OPI_SHARE_LEAST, devices);
  p->plan->predicted.memory = NULL;
  p->plan->decided.actions = NULL;
  (void)finish(p, &unused);
  for (uint32_t r = 0; p->plan->predicted.memory != NULL && r < p->plan->decided.n_ranks; ++r) {
    const uint64_t bytes = p->plan->predicted.memory[r].total_bytes;
    io_needs->least[r] = bytes < io_needs->now[r] ? bytes : io_needs->now[r];
  }
  opi_shared_caps_restore(p->plan, devices);
}

/* If a shared cap is exceeded, divides it between its ranks and searches within the parts. */
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
    p->plan->predicted.memory = NULL;
    p->err = &own;
    status = cut_once(p);
    p->err = err;
    opi_shared_caps_restore(p->plan, devices);
    if (status < 0 && status != OPIPE_E_LIMIT)
      return opi_fail(err, status, "%s", own.message);
  }
  if (status == OPIPE_OK || n < p->plan->decided.n_ranks)
    return status;
  const opipe_error first = *err;
  return opi_fail(err, status, "%s; a cap of %llu bytes is enough", first.message,
                  (unsigned long long)enough);
}

static opipe_status begin_passes(planner *p) {
  OPI_TRY(opi_passes_begin(p->env, p->params, p->spec != NULL, p->plan, p->err));
  opi_passes_env_make(p->env, p->plan, &p->passes);
  p->env = p->making.env = &p->passes.env;
  return OPIPE_OK;
}

static opipe_status cut_anew(void *ctx, opipe_error *err) {
  planner *p = ctx;
  opipe_error *kept = p->err;
  p->err = err;
  p->plan->predicted.memory = NULL;
  const opipe_status status = cut(p);
  p->err = kept;
  return status;
}

static opipe_status finish_anew(void *ctx, opipe_error *err) {
  planner *p = ctx;
  p->plan->decided.actions = NULL;
  return finish(p, err);
}

static opipe_status cut_passes(planner *p) {
  const bool given = p->env->stage_ends != NULL || p->n_edges != 0 || is_annotated(p);
  const opi_passes_cutter cutter = {cut_anew, finish_anew, p, p->profiles, given};
  OPI_TRY(opi_pass_profiles_make(p->env, p->plan, p->making.facts, p->params->cost,
                                 &p->pass_profiles, p->err));
  return opi_passes_place(&p->pass_profiles, p->plan, p->own_bound, &cutter, p->err);
}

/* Ranks that share a cap get equal parts of what it leaves free. */
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

/* Plans by what devices need regardless of their kernels: they are opened as if no choice had been
 * made. Measured costs are still those of the requested kernels. */
static opipe_status leave_kernels_out(planner *p) {
  opi_decision *plan = &p->plan->decided;
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
  p->other_options = OPI_ARENA_ARRAY(&p->scratch, const char *, p->plan->decided.n_ranks);
  if (p->other_options == NULL)
    return opi_fail_nomem(p->err, p->plan->decided.n_ranks * sizeof(char *), "devices");
  opipe_status status = leave_kernels_out(p);
  if (status == OPIPE_OK)
    status = profile_ranks(p);
  if (status == OPIPE_OK)
    status = p->plan->rows == NULL ? cut(p) : cut_passes(p);
  if (status == OPIPE_OK)
    status = improve(p);
  swap_options(p);
  return status;
}

/* For inference: copies, or replicas of single stages. A list of ones counts as none. */
static void take_replicas(planner *p) {
  const uint32_t *list = p->params->stage_replicas, n = p->params->n_stage_replicas;
  uint32_t i = 0;
  while (i < n && list[i] == 1)
    ++i;
  p->plan->decided.copies = i == n ? p->params->replicas : 0;
  if (i == n)
    return;
  p->wish.n_rank_replicas = n;
  p->wish.rank_replicas = list;
}

static opipe_status make(planner *p) {
  opi_plan *plan = p->plan;
  opi_decision *decided = &plan->decided;
  opi_model_fingerprint(p->env->model, decided->fingerprint);
  decided->depth = p->params->depth == 0 ? 2 : p->params->depth;
  OPI_TRY(opi_shardings_take(p->env->model, &p->params, &p->own_params, &p->making.specs, p->err));
  opi_tensor_take(p->params, decided);
  decided->transport = opi_arena_strdup(&plan->arena, text_or(p->params->transport, "local"));
  if (decided->transport == NULL)
    return opi_fail_nomem(p->err, 0, "a plan");
  if (!opi_text_is_utf8(decided->transport)) {
    return opi_fail(p->err, OPIPE_E_INVALID, "transport '%.*s': its options are not UTF-8",
                    (int)strcspn(decided->transport, ":"), decided->transport);
  }
  if (p->params->cut != NULL && p->params->cut[0] != '\0') {
    OPI_TRY(opi_cut_parse(p->params->cut, &p->scratch, &p->edges, &p->n_edges, &p->n_boundaries,
                          p->err));
  }
  if (p->params->generation != NULL)
    OPI_TRY(begin_passes(p));
  OPI_TRY(copy_dims(p));
  OPI_TRY(opi_states_copy(plan, p->params, p->err));
  if (p->spec == NULL) {
    take_replicas(p);
  } else {
    decided->binding.bind_flags |= OPI_BIND_KEEP_PARAMETERS;
    OPI_TRY(opi_train_spec_copy(plan, p->spec, p->err));
    p->wish.n_rank_replicas = p->spec->n_rank_replicas;
    p->wish.rank_replicas = p->spec->rank_replicas;
  }
  decided->n_microbatches = p->params->n_microbatches == 0 ? 1 : p->params->n_microbatches;
  if (plan->rows == NULL)
    OPI_TRY(opi_batch_choose(p->env, p->params->batch_dim, plan, p->err));
  OPI_TRY(choose_layout(p));
  OPI_TRY(opi_schedule_limit(decided, p->err));
  OPI_TRY(opi_passes_check(decided, p->err));
  OPI_TRY(opi_batch_settle(p->env, p->params->batch_dim, plan, p->err));
  OPI_TRY(opi_devices_choose(p->env, p->params, plan, &p->scratch, &p->making.facts, p->err));
  OPI_TRY(opi_tensor_devices(decided, p->err));
  OPI_TRY(choose_link(p));
  opi_tensor_meet_link(decided);
  const int64_t rows = opi_microbatch_rows_most(decided);
  OPI_TRY(opi_plan_bound(p->env, decided, rows, &p->bound, &p->own_bound, p->err));
  OPI_TRY(opi_states_check(decided, p->env->model->graph, p->bound->graph, p->err));
  OPI_TRY(check_stage_count(p));
  OPI_TRY(name_nodes(p));
  return cut_for_any_kernels(p);
}

opipe_status opi_plan_make_so(const opi_plan_env *env, const opipe_plan_params *params,
                              const opi_train_spec *spec, const opi_offloading *offload,
                              opi_plan **out_plan, opipe_error *err) {
  planner p = {.env = env, .params = params, .spec = spec, .err = err};
  OPI_TRY(opi_plan_new(env->allocator, &p.plan, err));
  p.making = (opi_making){.env = env,
                          .plan = p.plan,
                          .offload = offload->glob,
                          .offload_least = offload->least,
                          .offload_bytes = params->offload_bytes};
  opi_arena_init(&p.scratch, env->allocator, 0);
  opipe_status status = make(&p);
  if (status == OPIPE_OK)
    status = opi_plan_hash(p.plan, err);
  for (uint32_t r = 0; p.profiles != NULL && p.profile_owner != NULL && r < p.plan->decided.n_ranks;
       ++r) {
    if (p.profile_owner[r] == r)
      opi_profile_free(p.profiles[r]);
  }
  opi_training_free(p.training);
  opi_pass_profiles_free(&p.pass_profiles);
  opi_bound_free(p.own_bound);
  opi_arena_release(&p.scratch);
  if (status < 0)
    opi_plan_free(p.plan);
  else
    *out_plan = p.plan;
  return status < 0 ? status : OPIPE_OK;
}
