/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the order of a plan into a search problem, and the result into the plan's records. */
#include "partition/study/improve/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/schedule/compute_order.h"
#include "partition/schedule/passes.h"
#include "partition/study/improve/named.h"

enum { ATTEMPTS = 4 }; /* each with less room for stashes */

typedef struct planned {
  opi_plan *plan;
  const opi_plugins *plugins;
  const opi_search_request *request;
  opi_problem problem;
  opi_costs costs;
  opi_do_list *own;     /* the plan's */
  opi_do_list *start;   /* own, or a better one */
  const char *own_from; /* schedules of `own` and `start` */
  const char *from;
  uint64_t *room; /* [n_ranks] for stashes; UINT64_MAX: unlimited */
  opi_finish_fn finish;
  void *finish_ctx;
  opi_arena scratch;
  opipe_error *err;
} planned;

/* ---- the problem ---- */

static opipe_status check(const planned *x) {
  const opi_decision *plan = &x->plan->decided;
  if (plan->in_turn) {
    return opi_fail(x->err, OPIPE_E_UNSUPPORTED,
                    "copies that take requests in turn: their order is not improved");
  }
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    if ((plan->actions[a].flags & OPIPE_ACTION_RECOMPUTE) != 0) {
      return opi_fail(x->err, OPIPE_E_UNSUPPORTED,
                      "action %u computes a forward again: such an order is not improved", a);
    }
  }
  return OPIPE_OK;
}

/* As in the replay of lists (partition/lists/replay.c): every tensor has its own stream.
 */
static double message_ns(const opi_link *link, uint64_t n_bytes) {
  return link->latency_ns + (link->bytes_per_ns > 0 ? (double)n_bytes / link->bytes_per_ns : 0);
}

/* Finds pairs of stages joined by tensors, and the link time of the largest. Crossings are sorted
 * by stages. */
static opipe_status find_edges(planned *x) {
  const opi_plan *plan = x->plan;
  const size_t n = plan->predicted.n_crossings;
  opi_stage_edge *edges = OPI_ARENA_ARRAY(&x->scratch, opi_stage_edge, n);
  double *comm = OPI_ARENA_ARRAY(&x->scratch, double, n);
  uint32_t n_edges = 0;
  if (edges == NULL || comm == NULL)
    return opi_fail_nomem(x->err, n * sizeof *edges, "an order to improve");
  for (size_t i = 0; i < n; ++i) {
    const opi_crossing *c = &plan->predicted.crossings[i];
    const double ns = message_ns(&plan->decided.link, c->message_bytes);
    if (n_edges == 0 || edges[n_edges - 1].src != c->src_stage ||
        edges[n_edges - 1].dst != c->dst_stage)
      edges[n_edges++] = (opi_stage_edge){c->src_stage, c->dst_stage};
    comm[n_edges - 1] = ns > comm[n_edges - 1] ? ns : comm[n_edges - 1];
  }
  x->problem.edges = edges;
  x->problem.n_edges = n_edges;
  x->costs = (opi_costs){.stage_forward = plan->predicted.times.stage_ns,
                         .stage_input = plan->predicted.times.input_ns,
                         .stage_weight = plan->predicted.times.weight_ns,
                         .n_stages = plan->decided.n_stages,
                         .edge_comm = comm};
  return OPIPE_OK;
}

typedef struct keeper {
  const opi_problem *p;
  const uint64_t *bytes; /* [stages] */
  double held, peak;
} keeper;

static bool keep(void *ctx, uint32_t item, const opi_do *of, int32_t n_parts) {
  keeper *k = ctx;
  (void)item;
  k->held += (double)k->bytes[of->stage] * n_parts / k->p->n_parts / k->p->n_slices;
  k->peak = k->held > k->peak ? k->held : k->peak;
  return true;
}

/* Room for stashes per rank: the peak of the plan's order plus what the plan leaves free. */
static opipe_status find_room(planned *x) {
  const opi_plan *plan = x->plan;
  const size_t instances = (size_t)plan->decided.n_stages * plan->decided.n_replicas;
  uint64_t *stash = OPI_ARENA_ARRAY(&x->scratch, uint64_t, instances);
  x->room = OPI_ARENA_ARRAY(&x->scratch, uint64_t, plan->decided.n_ranks);
  if (x->room == NULL || stash == NULL)
    return opi_fail_nomem(x->err, instances * sizeof *stash, "caps");
  for (size_t i = 0; i < instances && plan->predicted.stage_stash_bytes != NULL; ++i)
    stash[i] = plan->predicted.stage_stash_bytes[i / plan->decided.n_replicas];
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    keeper k = {.p = &x->problem, .bytes = plan->predicted.stage_stash_bytes};
    if (k.bytes != NULL)
      (void)opi_each_stash(&x->problem, x->own, r, keep, &k);
    const uint64_t left = m->cap_bytes > m->total_bytes ? m->cap_bytes - m->total_bytes : 0;
    const bool capped = m->cap_bytes != UINT64_MAX && k.bytes != NULL;
    x->room[r] = capped ? (uint64_t)k.peak + instances + left : UINT64_MAX; /* roundings */
  }
  x->problem.stash_bytes = stash;
  x->problem.rank_stash_bytes = x->room;
  return OPIPE_OK;
}

/* Finds the best named schedule in the plan's places, if it beats the plan's own. */
static opipe_status find_better_start(planned *x) {
  const opi_plan *plan = x->plan;
  const uint32_t copies = opi_plan_copies(&plan->decided);
  opi_simulation own = {.peak_stash = OPI_ARENA_ARRAY(&x->scratch, double, plan->decided.n_ranks)};
  opi_named best;
  const opi_question q = {.mode = x->problem.mode,
                          .n_ranks = plan->decided.n_ranks / copies,
                          .n_stages = plan->decided.n_stages,
                          .n_microbatches = plan->decided.n_microbatches,
                          .replicas = copies,
                          .costs = &x->costs,
                          .stash_bytes = plan->predicted.stage_stash_bytes,
                          .free_bytes = plan->predicted.stage_stash_bytes == NULL ? NULL : x->room};
  if (x->request->from != NULL || plan->decided.shares != NULL || x->plugins->schedules == NULL)
    return OPIPE_OK;
  if (own.peak_stash == NULL)
    return opi_fail_nomem(x->err, plan->decided.n_ranks * sizeof(double), "a simulation");
  OPI_TRY(
      opi_simulate_order(&x->problem, x->own, &x->costs, plan->decided.allocator, &own, x->err));
  const opipe_status status =
      opi_named_best(x->plugins, &q, &x->problem, &x->scratch, &best, x->err);
  if (status == OPIPE_E_UNSUPPORTED)
    return OPIPE_OK; /* only the plan's own */
  OPI_TRY(status);
  if (best.ns < own.makespan) {
    x->start = best.order->list;
    x->from = best.spec;
    best.order->list = NULL;
  }
  opi_order_free(best.order);
  return OPIPE_OK;
}

/* ---- the plan's records ---- */

static opipe_status take_list(planned *x, const opi_do_list *list) {
  opi_plan *plan = x->plan;
  opipe_action *actions = OPI_ARENA_ARRAY(&plan->arena, opipe_action, list->n_items);
  uint32_t *first = opi_arena_copy(&plan->arena, list->rank_first,
                                   ((size_t)plan->decided.n_ranks + 1) * sizeof *first);
  if (actions == NULL || first == NULL)
    return opi_fail_nomem(x->err, list->n_items * sizeof *actions, "a plan");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    for (uint32_t i = first[r]; i < first[r + 1]; ++i)
      (void)opi_record_of_do(&list->items[i], r, &actions[i]);
  }
  plan->decided.actions = actions;
  plan->decided.n_actions = list->n_items;
  plan->decided.rank_first = first;
  return OPIPE_OK;
}

/* Restores decision and prediction; the arena keeps what was allocated since. */
static void restore(opi_plan *plan, const opi_plan *saved) {
  plan->decided = saved->decided;
  plan->predicted = saved->predicted;
}

/* Reduces the room on ranks that exceeded their caps. */
static bool tighten(planned *x, const opi_memory *memory) {
  bool less = false;
  for (uint32_t r = 0; r < x->plan->decided.n_ranks; ++r) {
    const opi_memory *m = &memory[r];
    if (m->total_bytes <= m->cap_bytes || x->room[r] == UINT64_MAX)
      continue;
    const uint64_t excess = m->total_bytes - m->cap_bytes;
    x->room[r] = x->room[r] > excess ? x->room[r] - excess : 0;
    less = true;
  }
  return less;
}

/* Compares requests alone and in a stream; for a mini-batch the two times are equal. */
static bool is_better(const opi_plan *plan, const opi_plan *than) {
  return plan->predicted.request_ns <= than->predicted.request_ns &&
         plan->predicted.interval_ns <= than->predicted.interval_ns &&
         (plan->predicted.request_ns < than->predicted.request_ns ||
          plan->predicted.interval_ns < than->predicted.interval_ns);
}

/* Goes back to the plan's own order. */
static void forget_start(planned *x) {
  if (x->start != x->own)
    opi_do_list_free(x->start);
  x->start = x->own;
  x->from = x->own_from;
}

/* Runs one search and makes its plan; keeps it if better. *out_fits: no cap was exceeded. */
static opipe_status attempt(planned *x, bool whole, uint64_t *io_moves, bool *out_fits) {
  opi_plan *plan = x->plan;
  const opi_plan saved = *plan;
  opi_do_list *list = NULL;
  opipe_error unused = OPIPE_ERROR_INIT;
  opi_improved found = {.moves = 0};
  opi_improve_effort effort = x->request->effort;
  effort.whole = whole;
  *out_fits = true;
  opipe_status status = opi_improve_order(&x->problem, x->start, &x->costs, &effort,
                                          plan->decided.allocator, &list, &found, &unused);
  *io_moves += found.moves;
  if (status == OPIPE_E_LIMIT || status == OPIPE_E_INVALID) { /* no room for the start itself */
    *out_fits = x->start == x->own;
    forget_start(x);
    return OPIPE_OK;
  }
  if (status < 0)
    return opi_fail(x->err, status, "%s", unused.message);
  status = take_list(x, list);
  opi_do_list_free(list);
  if (status == OPIPE_OK)
    status = x->finish(x->finish_ctx, x->err);
  if (status == OPIPE_E_LIMIT) {
    *out_fits = !tighten(x, plan->predicted.memory);
    status = OPIPE_OK;
    restore(plan, &saved);
  } else if (status == OPIPE_OK && !is_better(plan, &saved)) {
    restore(plan, &saved);
  }
  return status;
}

/* Tries backwards in halves, then whole ones if no order of halves is better. */
static opipe_status improve(planned *x, uint64_t *io_moves) {
  const opi_plan before = *x->plan;
  const uint32_t forms = x->problem.mode == OPIPE_MODE_FORWARD ? 1 : 2;
  for (uint32_t form = 0; form < forms; ++form) {
    bool fits = false;
    OPI_TRY(find_room(x));
    for (uint32_t i = 0; i < ATTEMPTS && !fits; ++i)
      OPI_TRY(attempt(x, form == 1, io_moves, &fits));
    if (is_better(x->plan, &before))
      break;
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

/* The bound ignores memory and gradients, which may be smaller than activations. */
static opipe_status find_bound(planned *x, double *out_ns) {
  opi_problem problem = x->problem;
  opi_costs costs = x->costs;
  problem.rank_stash_bytes = NULL;
  costs.edge_comm = NULL;
  costs.comm = x->plan->decided.link.latency_ns;
  const opipe_status status =
      opi_improve_bound(&problem, x->own, &costs, x->plan->decided.allocator, out_ns, x->err);
  return status == OPIPE_E_LIMIT ? OPIPE_OK : status; /* very long lists have no bound */
}

static opipe_status say(planned *x, double start_ns, uint64_t moves) {
  opi_plan *plan = x->plan;
  const opi_improve_effort *effort = &x->request->effort;
  opipe_schedule_setting *settings = OPI_ARENA_ARRAY(&plan->arena, opipe_schedule_setting, 3);
  const uint64_t most = effort->moves == 0 ? OPI_IMPROVE_MOVES : effort->moves;
  double bound_ns = 0;
  if (settings == NULL)
    return opi_fail_nomem(x->err, sizeof *settings, "a plan");
  OPI_TRY(find_bound(x, &bound_ns));
  settings[0] = (opipe_schedule_setting){"moves", opi_arena_printf(&plan->arena, "%" PRIu64, most)};
  settings[1] =
      (opipe_schedule_setting){"seed", opi_arena_printf(&plan->arena, "%" PRIu64, effort->seed)};
  settings[2] = (opipe_schedule_setting){"from", opi_arena_strdup(&plan->arena, x->from)};
  for (uint32_t i = 0; i < 3; ++i) {
    if (settings[i].value == NULL)
      return opi_fail_nomem(x->err, 1, "a plan");
  }
  plan->decided.schedule.name = "search";
  plan->decided.schedule.settings = settings;
  plan->decided.schedule.n_settings = 3;
  plan->predicted.searched =
      (opi_searched){.start_ns = start_ns, .bound_ns = bound_ns, .moves = moves};
  return OPIPE_OK;
}

static opipe_status improve_plan(const opi_plugins *plugins, const opi_search_request *request,
                                 const char *from, opi_plan *plan, opi_finish_fn finish, void *ctx,
                                 opipe_error *err) {
  planned x = {.plan = plan,
               .plugins = plugins,
               .request = request,
               .problem = opi_plan_problem(&plan->decided),
               .own_from = from,
               .from = from,
               .finish = finish,
               .finish_ctx = ctx,
               .err = err};
  uint64_t moves = 1; /* includes the plan's own order */
  const double start_ns = plan->predicted.request_ns;
  OPI_TRY(check(&x));
  opi_arena_init(&x.scratch, plan->decided.allocator, 0);
  opipe_status status = find_edges(&x);
  if (status == OPIPE_OK) {
    status = opi_do_list_from_records(&x.problem, plan->decided.actions, plan->decided.n_actions,
                                      plan->decided.allocator, &x.own, err);
    x.start = x.own;
  }
  if (status == OPIPE_OK)
    status = find_room(&x);
  if (status == OPIPE_OK)
    status = find_better_start(&x);
  if (status == OPIPE_OK)
    status = improve(&x, &moves);
  if (status == OPIPE_OK)
    status = say(&x, start_ns, moves);
  forget_start(&x);
  opi_do_list_free(x.own);
  opi_arena_release(&x.scratch);
  return status < 0 ? opi_error_prefix(err, "schedule 'search': ") : OPIPE_OK;
}

static opipe_status best(const opi_plugins *plugins, const opi_question *question, opi_arena *arena,
                         const char **out_spec, opipe_error *err) {
  opi_named found;
  OPI_TRY(opi_named_best(plugins, question, NULL, arena, &found, err));
  opi_order_free(found.order);
  *out_spec = found.spec;
  return OPIPE_OK;
}

const opi_order_search opi_study_search = {
    .parse = opi_search_parse, .best = best, .improve = improve_plan};
