/* SPDX-License-Identifier: Apache-2.0 */
/* Described clusters by name, and orders and plans played on them. [any-thread] */
#include "abi/api/planning.h"
#include "loader/base/json.h"
#include "partition/make/make.h"
#include "partition/schedule/ask.h"
#include "partition/schedule/order.h"
#include "partition/schedule/proof.h"
#include "partition/study/page/plan_page.h"
#include "partition/study/page/play_page.h"
#include "partition/study/planners/loads.h"
#include "partition/study/simulate/plan_play.h"
#include "partition/study/simulate/report.h"

enum { PATH_ROOM = 4096, FOLDERS_MOST = 4 };

opipe_status opi_api_cluster_find(opi_context_object *context, const char *spec,
                                  opipe_write_fn write, void *ctx, opipe_error *err) {
  char paths[FOLDERS_MOST][PATH_ROOM];
  const char *folders[FOLDERS_MOST];
  uint32_t n = 0;
  opi_text text;
  if (spec == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "cluster_find: the name is NULL");
  while (n < FOLDERS_MOST && opi_installed(n, "clusters", paths[n], PATH_ROOM)) {
    folders[n] = paths[n];
    ++n;
  }
  opi_text_init(&text, &context->allocator);
  opipe_status status = opi_cluster_find(spec, folders, n, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

/* ---- what is asked ---- */

typedef struct asked {
  opi_arena arena; /* of the cluster, the loads, and what is played */
  opi_cluster cluster;
  opi_order_play how;
  opipe_play_params params;
} asked;

/* plan: whose own devices and link are taken where no cluster is given; NULL: there is none. */
static opipe_status read_cluster(asked *a, const char *call, const opi_plan *plan,
                                 opipe_error *err) {
  const opipe_play_params *p = &a->params;
  if (p->cluster == NULL && plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: there is no cluster", call);
  a->how = (opi_order_play){.cluster = &a->cluster,
                            .n_tensor = p->tensor,
                            .n_data = p->copies,
                            .collective = p->collective,
                            .dtype = p->dtype == 0 ? OPIPE_FLOAT : p->dtype,
                            .place = (p->flags & OPIPE_PLAY_PIPELINE_FIRST) != 0
                                         ? OPI_PLACE_TENSOR_PIPELINE_DATA
                                         : OPI_PLACE_TENSOR_DATA_PIPELINE,
                            .sharded = (p->flags & OPIPE_PLAY_SHARDED) != 0,
                            .scattered = (p->flags & OPIPE_PLAY_SCATTERED) != 0,
                            .waits_for_reductions = (p->flags & OPIPE_PLAY_WAITS) != 0};
  if (p->cluster == NULL)
    return opi_plan_cluster(plan, &a->arena, &a->cluster, err);
  return opi_cluster_read(p->cluster_name == NULL ? "the cluster" : p->cluster_name, p->cluster,
                          p->cluster_bytes, &a->arena, &a->cluster, err);
}

static opi_stage_load load_of(const opipe_play_params *p, uint32_t stage) {
  opipe_stage_load load = {0};
  if (p->n_stages > 0)
    opi_array_get(p->stages, p->stages_stride, p->n_stages == 1 ? 0 : stage, &load, sizeof load);
  return (opi_stage_load){.recompute_ns = load.recompute_ms * 1e6,
                          .step_ns = load.step_ms * 1e6,
                          .flops = load.flops,
                          .send_bytes = load.send_bytes,
                          .stash_bytes = load.stash_bytes,
                          .input_bytes = load.input_bytes,
                          .fixed_bytes = load.fixed_bytes,
                          .gradient_bytes = load.gradient_bytes,
                          .tensor_bytes = load.tensor_bytes,
                          .tensor_sums = load.tensor_sums};
}

static double stage_ns(const double *by_stage, double all, uint32_t stage) {
  return (by_stage == NULL ? all : by_stage[stage]) * 1e6;
}

static opipe_status read_loads(asked *a, const opi_costs *costs, uint32_t n_stages,
                               opipe_error *err) {
  const opipe_play_params *p = &a->params;
  opi_stage_load *loads = OPI_ARENA_ARRAY(&a->arena, opi_stage_load, n_stages);
  if (loads == NULL)
    return opi_fail_nomem(err, n_stages * sizeof *loads, "a simulation");
  if (p->n_stages > 1 && p->n_stages != n_stages) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "order_play: n_stages is %u; the order has %u (or one for all)", p->n_stages,
                    n_stages);
  }
  if (costs->comm != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "order_play: comm=%g, and a cluster whose links say it: one of both",
                    costs->comm);
  }
  OPI_TRY(opi_costs_check(costs, n_stages, err));
  for (uint32_t s = 0; s < n_stages; ++s) {
    loads[s] = load_of(p, s);
    loads[s].forward_ns = stage_ns(costs->stage_forward, costs->forward, s);
    loads[s].input_ns = stage_ns(costs->stage_input, costs->input, s);
    loads[s].weight_ns = stage_ns(costs->stage_weight, costs->weight, s);
  }
  a->how.stages = loads;
  return OPIPE_OK;
}

/* ---- what is answered ---- */

typedef struct labels {
  const opi_problem *problem;
  const opi_do_list *list;
} labels;

static const char *item_text(void *ctx, uint32_t item, char *buffer, size_t room) {
  const labels *l = ctx;
  return opi_do_text(l->problem, &l->list->items[item], buffer, room);
}

static uint32_t item_kind(void *ctx, uint32_t item) {
  const labels *l = ctx;
  return l->list->items[item].kind;
}

/* What was played beside what was decided: by a planner, and in the plan (NULL: there is none). */
static opipe_status write_page(asked *a, const opi_plan *plan, const opi_problem *problem,
                               const opi_order_played *p, const opi_play_report *report,
                               opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_page page;
  opi_text decided;
  opi_page_begin(&page, a->arena.allocator, a->params.title == NULL ? "" : a->params.title, "ns");
  opi_text_init(&decided, a->arena.allocator);
  opipe_status status = opi_page_add_play(&page, "simulated", problem, p, report, &a->arena, err);
  if (plan != NULL) {
    opi_page_describe_plan(plan, &decided);
    opi_page_add_member(&page, "plan", decided.data);
  }
  if (status == OPIPE_OK && a->params.answer != NULL) {
    status = opi_page_add_json(&page, "answer", a->params.answer, a->params.answer_bytes,
                               "the page's answer", err);
  }
  if (status == OPIPE_OK) {
    status = decided.failed ? opi_fail_nomem(err, decided.room, "a page")
                            : opi_page_write(&page, write, ctx, err);
  }
  opi_text_release(&decided);
  opi_page_release(&page);
  return status;
}

/* plan: that was played, or NULL. */
static opipe_status answer(asked *a, const opi_plan *plan, const opi_problem *problem,
                           const opi_order_played *p, uint32_t format, opipe_write_fn write,
                           void *ctx, opipe_error *err) {
  labels own = {problem, p->list};
  const opi_play_report report = {.play = &p->play,
                                  .result = &p->result,
                                  .n_ranks = p->n_ranks,
                                  .n_microbatches = problem->n_microbatches * p->play.n_data,
                                  .step_ns = p->step_ns,
                                  .request_ns = plan == NULL ? -1 : plan->request_ns,
                                  .interval_ns = plan == NULL ? -1 : plan->interval_ns,
                                  .bubble = p->bubble,
                                  .bubble_overhead = p->bubble_overhead,
                                  .flops = p->flops,
                                  .utilisation = p->utilisation,
                                  .fixed_bytes = p->fixed_bytes,
                                  .text = item_text,
                                  .kind = item_kind,
                                  .ctx = &own};
  opi_text text;
  opipe_status status = OPIPE_OK;
  if (format == OPIPE_PLAY_HTML)
    return write_page(a, plan, problem, p, &report, write, ctx, err);
  opi_text_init(&text, a->arena.allocator);
  if (format == OPIPE_PLAY_SVG)
    status = opi_play_draw(&report, &text, err);
  else if (format == OPIPE_PLAY_TRACE)
    opi_play_trace(&report, &text);
  else
    opi_play_describe(&report, format == OPIPE_PLAY_JSON, &text);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

/* ---- orders ---- */

static opipe_status play_order(asked *a, const opi_order *order, const opi_costs *costs,
                               uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err) {
  const opi_problem *problem = &order->problem;
  opi_order_played played;
  opi_proof proof = {0};
  OPI_TRY(read_cluster(a, "order_play", NULL, err));
  OPI_TRY(read_loads(a, costs, problem->n_stages, err));
  OPI_TRY(opi_proof_check(problem, order->list, OPI_RULE_TAG, a->arena.allocator, &proof, err));
  OPI_TRY(opi_order_play_run(problem, order->list, &a->how, &a->arena, &played, err));
  const opipe_status status = answer(a, NULL, problem, &played, format, write, ctx, err);
  opi_order_played_release(&played, order->list);
  return status;
}

opipe_status opi_api_order_play(opi_order_object *order, const opipe_order_costs *costs,
                                const opipe_play_params *params, uint32_t format,
                                opipe_write_fn write, void *ctx, opipe_error *err) {
  const opipe_allocator *allocator = &order->context->allocator;
  const opi_lowering how = {.receive_depth = 1};
  opi_order *lowered = NULL;
  opi_costs own;
  asked a = {.params = {0}};
  if (params == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "order_play: params is NULL");
  OPI_TRY(opi_choice_check("order_play", "format", format, OPIPE_PLAY_HTML, err));
  OPI_TRY(opi_params_read(&opi_struct_play_params, "order_play", params, &a.params, err));
  OPI_TRY(opi_costs_from_host(costs, "order_play", &own, err));
  if (!opi_order_is_lowered(order->order))
    OPI_TRY(opi_order_lower(order->order, &how, allocator, &lowered, err));
  opi_arena_init(&a.arena, allocator, 0);
  const opipe_status status =
      play_order(&a, lowered == NULL ? order->order : lowered, &own, format, write, ctx, err);
  opi_arena_release(&a.arena);
  opi_order_free(lowered);
  return status;
}

/* ---- plans ---- */

/* call: whose refusals they are. */
static opipe_status read_plan_params(const char *call, const opipe_play_params *params,
                                     uint32_t format, asked *out, opipe_error *err) {
  *out = (asked){.params = {0}};
  if (params == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: params is NULL", call);
  OPI_TRY(opi_choice_check(call, "format", format, OPIPE_PLAY_HTML, err));
  OPI_TRY(opi_params_read(&opi_struct_play_params, call, params, &out->params, err));
  const opipe_play_params *p = &out->params;
  if (p->n_stages == 0 && p->tensor <= 1 && p->copies <= 1)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s: %u stages, tensor %u, copies %u: a plan says them itself", call, p->n_stages,
                  p->tensor, p->copies);
}

/* A planner says on which of a cluster's devices ranks stand. NULL: on the first ones, as where the
 * cluster lacks one of these. */
static const uint32_t *devices_of(const asked *a, const opi_plan *plan) {
  const uint32_t *devices = a->params.cluster == NULL ? NULL : plan->cluster_devices;
  for (uint32_t r = 0; devices != NULL && r < plan->n_ranks; ++r) {
    if (plan->cluster_devices[r] >= a->cluster.n_devices)
      devices = NULL;
  }
  return devices;
}

static opipe_status play_plan(asked *a, const char *call, const opi_plan *plan, uint32_t format,
                              opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_plan_played played;
  OPI_TRY(read_cluster(a, call, plan, err));
  a->how.device = devices_of(a, plan);
  a->how.own_machine = a->params.cluster == NULL;
  OPI_TRY(opi_plan_play_run(plan, &a->how, &a->arena, &played, err));
  const opipe_status status =
      answer(a, plan, &played.problem, &played.played, format, write, ctx, err);
  opi_plan_played_release(&played);
  return status;
}

opipe_status opi_api_plan_play(opi_plan_object *plan, const opipe_play_params *params,
                               uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err) {
  static const char call[] = "plan_play";
  asked a;
  OPI_TRY(read_plan_params(call, params, format, &a, err));
  opi_arena_init(&a.arena, &plan->model->context->allocator, 0);
  const opipe_status status = play_plan(&a, call, plan->plan, format, write, ctx, err);
  opi_arena_release(&a.arena);
  return status;
}

opipe_status opi_api_plan_file_play(opi_context_object *context, const void *json, uint64_t n_bytes,
                                    const opipe_play_params *params, uint32_t format,
                                    opipe_write_fn write, void *ctx, opipe_error *err) {
  static const char call[] = "plan_file_play";
  opi_plan *plan = NULL;
  asked a;
  if (json == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: json is NULL", call);
  OPI_TRY(read_plan_params(call, params, format, &a, err));
  OPI_TRY(opi_plan_read_alone(&context->allocator, json, n_bytes, &plan, err));
  opi_arena_init(&a.arena, &context->allocator, 0);
  const opipe_status status = play_plan(&a, call, plan, format, write, ctx, err);
  opi_arena_release(&a.arena);
  opi_plan_free(plan);
  return status;
}

/* ---- strategies ---- */

/* Where ranks stand is said by the strategy, or stages have different numbers of replicas: as the
 * planner auto plays it. Else replicas are copies, in the order that `params` say. */
static bool says_devices(const opi_strategy *s) {
  return s->rank_devices != NULL || opi_strategy_replicas(s, NULL) == 0;
}

static opipe_status ask_order(const opi_strategy_object *o, bool trains, opi_order **out_order,
                              opipe_error *err) {
  const opi_strategy *s = o->strategy;
  const opi_context_object *context = o->profile->context;
  const opi_lowering how = {.receive_depth = 1};
  opi_order *order = NULL;
  const opi_question question = {.schedule = s->schedule,
                                 .mode = trains ? OPIPE_MODE_TRAIN : OPIPE_MODE_FORWARD,
                                 .n_ranks = s->n_stages / s->chunks,
                                 .n_stages = s->n_stages,
                                 .n_microbatches = s->microbatches,
                                 .costs = &opi_unit_costs};
  OPI_TRY(opi_order_ask(&context->plugins, &question, &context->allocator, &order, err));
  const opipe_status status = opi_order_lower(order, &how, &context->allocator, out_order, err);
  opi_order_free(order);
  return status;
}

static opipe_status play_strategy(asked *a, const opi_strategy_object *o, const opi_order *order,
                                  uint32_t format, opipe_write_fn write, void *ctx,
                                  opipe_error *err) {
  const opi_strategy *s = o->strategy;
  const opi_problem *problem = &order->problem;
  opi_stage_load *loads = OPI_ARENA_ARRAY(&a->arena, opi_stage_load, s->n_stages);
  opi_order_played played;
  opi_proof proof = {0};
  if (loads == NULL)
    return opi_fail_nomem(err, s->n_stages * sizeof *loads, "a simulation");
  OPI_TRY(read_cluster(a, "strategy_play", NULL, err));
  opi_strategy_loads(s, o->profile->layers, o->state_bytes, a->cluster.descriptions[0].bandwidth,
                     loads);
  a->how.stages = loads;
  a->how.n_tensor = s->width;
  a->how.n_data = s->pipelines * opi_strategy_replicas(s, NULL);
  OPI_TRY(opi_proof_check(problem, order->list, OPI_RULE_TAG, a->arena.allocator, &proof, err));
  OPI_TRY(opi_order_play_run(problem, order->list, &a->how, &a->arena, &played, err));
  const opipe_status status = answer(a, NULL, problem, &played, format, write, ctx, err);
  opi_order_played_release(&played, order->list);
  return status;
}

static opipe_status show_strategy(asked *a, const opi_strategy_object *o, uint32_t format,
                                  opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_layers **layers = NULL;
  opi_shown shown;
  OPI_TRY(read_cluster(a, "strategy_play", NULL, err));
  if ((a->params.flags & OPIPE_PLAY_PIPELINE_FIRST) != 0) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "strategy_play: PIPELINE_FIRST, and a strategy that says where its ranks stand");
  }
  OPI_TRY(opi_profile_by_class(o->profile, &a->cluster, &a->arena, &layers, err));
  opi_auto q = opi_profile_question(o->profile, &a->cluster, o->forward);
  q.planning.batch = o->batch;
  q.planning.state_bytes = o->state_bytes;
  q.class_layers = (const opi_layers *const *)layers;
  q.schedules = &o->strategy->schedule;
  q.n_schedules = 1;
  q.dtype = a->how.dtype;
  opipe_status status = opi_strategy_show(&q, o->strategy, &a->how, &shown, err);
  opi_profile_free_classes(layers, a->cluster.n_classes);
  if (status < 0)
    return status;
  status = answer(a, NULL, &shown.order->problem, &shown.played, format, write, ctx, err);
  opi_shown_release(&shown);
  return status;
}

opipe_status opi_api_strategy_play(opi_strategy_object *strategy, const opipe_play_params *params,
                                   uint32_t format, opipe_write_fn write, void *ctx,
                                   opipe_error *err) {
  asked a = {.params = {0}};
  opi_order *order = NULL;
  if (params == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "strategy_play: params is NULL");
  OPI_TRY(opi_choice_check("strategy_play", "format", format, OPIPE_PLAY_HTML, err));
  OPI_TRY(opi_params_read(&opi_struct_play_params, "strategy_play", params, &a.params, err));
  if (a.params.n_stages != 0 || a.params.tensor > 1 || a.params.copies > 1) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "strategy_play: %u stages, tensor %u, copies %u: a strategy says them itself",
                    a.params.n_stages, a.params.tensor, a.params.copies);
  }
  if (a.params.dtype == 0 && strategy->profile->layers->weight_bytes == 2)
    a.params.dtype = OPIPE_FLOAT16;
  opi_arena_init(&a.arena, &strategy->profile->context->allocator, 0);
  if (says_devices(strategy->strategy)) {
    const opipe_status status = show_strategy(&a, strategy, format, write, ctx, err);
    opi_arena_release(&a.arena);
    return status;
  }
  opipe_status status = ask_order(strategy, !strategy->forward, &order, err);
  if (status == OPIPE_OK)
    status = play_strategy(&a, strategy, order, format, write, ctx, err);
  opi_arena_release(&a.arena);
  opi_order_free(order);
  return status;
}
