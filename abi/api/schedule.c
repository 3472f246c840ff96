/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules without a model: orders made, read, lowered, proven, timed, drawn and written. An order
 * is immutable; lowering makes a new one. [any-thread]
 */
#include "abi/api/study.h"
#include "loader/base/json.h"
#include "partition/schedule/ask.h"
#include "partition/schedule/compute_order.h"
#include "partition/schedule/draw.h"

/* Makes the order's handle. Takes `order` over, also on failure. */
static opipe_status wrap(opi_context_object *context, opi_order *order, opipe_order **out_order,
                         opipe_error *err) {
  uint64_t handle = 0;
  opi_order_object *o = opi_alloc_zero(&context->allocator, 1, sizeof(*o));
  if (o == NULL) {
    opi_order_free(order);
    return opi_fail_nomem(err, sizeof(*o), "an order");
  }
  atomic_init(&o->refs, 1);
  opi_ref(&context->refs);
  o->context = context;
  o->order = order;
  OPI_TRY(opi_handle_new(OPI_HANDLE_ORDER, o, opi_order_unref, context->handle, &handle, err));
  *out_order = opi_handle_pointer(handle);
  return OPIPE_OK;
}

void opi_order_unref(void *order) {
  opi_order_object *o = order;
  if (o == NULL || !opi_unref(&o->refs))
    return;
  opi_context_object *context = o->context;
  opi_order_free(o->order);
  opi_free(&context->allocator, o, sizeof(*o));
  opi_context_unref(context);
}

static bool is_cost(double x) {
  return x >= 0 && x <= 1e9;
}

/* Per-stage costs, borrowed for the call. */
static opipe_status read_stage_costs(const opipe_order_costs *costs, opi_costs *out,
                                     opipe_error *err) {
  if (costs->n_stages == 0)
    return OPIPE_OK;
  const double *const arrays[] = {costs->stage_forward, costs->stage_input, costs->stage_weight};
  for (size_t k = 0; k < OPI_COUNT(arrays); ++k) {
    for (uint32_t s = 0; arrays[k] != NULL && s < costs->n_stages; ++s) {
      if (!is_cost(arrays[k][s])) {
        return opi_fail(err, OPIPE_E_INVALID, "costs: %c=%g of stage %u: it must lie in [0, 1e9]",
                        "FIW"[k], arrays[k][s], s);
      }
    }
  }
  out->n_stages = costs->n_stages;
  out->stage_forward = costs->stage_forward;
  out->stage_input = costs->stage_input;
  out->stage_weight = costs->stage_weight;
  return OPIPE_OK;
}

opipe_status opi_costs_from_host(const opipe_order_costs *given, const char *call, opi_costs *out,
                                 opipe_error *err) {
  opipe_order_costs costs = {0};
  *out = opi_unit_costs;
  if (given == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_params_read(&opi_struct_order_costs, call, given, &costs, err));
  if (!is_cost(costs.forward) || !is_cost(costs.input) || !is_cost(costs.weight) ||
      !is_cost(costs.comm)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "costs: F=%g, I=%g, W=%g, comm=%g: each must lie in [0, 1e9]", costs.forward,
                    costs.input, costs.weight, costs.comm);
  }
  *out = (opi_costs){
      .forward = costs.forward, .input = costs.input, .weight = costs.weight, .comm = costs.comm};
  return read_stage_costs(&costs, out, err);
}

/* ---- making and reading ---- */

/* Replaces the order by the aligned one. */
static opipe_status align(opi_order **io_order, const opipe_allocator *allocator,
                          opipe_error *err) {
  opi_order *aligned = NULL;
  const opipe_status status = opi_order_align(*io_order, allocator, &aligned, err);
  opi_order_free(*io_order);
  *io_order = aligned;
  return status;
}

opipe_status opi_api_order_make(opi_context_object *context, const opipe_order_params *params,
                                opipe_order **out_order, opipe_error *err) {
  opipe_order_params own = {0};
  opi_costs costs;
  opi_order *order = NULL;
  if (params == NULL || out_order == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "order_make: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_order_params, "order_make", params, &own, err));
  OPI_TRY(opi_costs_from_host(own.costs, "order_make", &costs, err));
  const opi_question question = {
      .schedule = own.schedule,
      .mode = (own.flags & OPIPE_ORDER_FORWARD) != 0 ? OPIPE_MODE_FORWARD : OPIPE_MODE_TRAIN,
      .n_ranks = own.n_ranks,
      .n_stages = own.n_stages,
      .n_microbatches = own.n_microbatches,
      .replicas = own.replicas,
      .costs = &costs};
  const bool aligned = (own.flags & OPIPE_ORDER_ALIGNED) != 0;
  const bool improve = (own.flags & OPIPE_ORDER_IMPROVE) != 0 || opi_is_search(own.schedule);
  if (improve || opi_is_baseline(own.schedule))
    OPI_TRY(opi_study_order(context, &question, own.flags, &order, err));
  else if (aligned)
    OPI_TRY(opi_order_ask_aligned(&context->plugins, &question, &context->allocator, &order, err));
  else
    OPI_TRY(opi_order_ask(&context->plugins, &question, &context->allocator, &order, err));
  if (aligned && improve)
    OPI_TRY(align(&order, &context->allocator, err));
  return wrap(context, order, out_order, err);
}

opipe_status opi_api_order_read(opi_context_object *context, const void *text, uint64_t n_bytes,
                                uint32_t dialect, opipe_order **out_order, opipe_error *err) {
  opi_order *order = NULL;
  if ((text == NULL && n_bytes > 0) || out_order == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "order_read: an argument is NULL");
  OPI_TRY(opi_choice_check("order_read", "dialect", dialect, OPIPE_DIALECT_TORCH_OLD, err));
  OPI_TRY(opi_order_read(text == NULL ? "" : text, (size_t)n_bytes, dialect, &context->allocator,
                         &order, err));
  return wrap(context, order, out_order, err);
}

opipe_status opi_api_order_info(opi_order_object *order, opipe_order_info *io_info,
                                opipe_error *err) {
  OPI_TRY(opi_info_check("order_info", io_info, OPIPE_END(opipe_order_info, n_actions), err));
  const opi_problem *p = &order->order->problem;
  const opipe_order_info info = {.struct_size = io_info->struct_size,
                                 .n_ranks = p->n_ranks,
                                 .n_stages = p->n_stages,
                                 .n_replicas = p->n_replicas,
                                 .n_microbatches = p->n_microbatches,
                                 .n_slices = p->n_slices,
                                 .n_parts = p->n_parts,
                                 .n_actions = order->order->list->n_items,
                                 .lowered = opi_order_is_lowered(order->order),
                                 .forward_only = p->mode == OPIPE_MODE_FORWARD};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

/* ---- passes ---- */

opipe_status opi_api_order_lower(opi_order_object *order, uint32_t receive_depth, uint32_t flags,
                                 opipe_order **out_order, opipe_error *err) {
  const opi_lowering how = {receive_depth, (flags & OPIPE_LOWER_MESSAGES) != 0};
  opi_order *lowered = NULL;
  if (out_order == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "order_lower: out_order is NULL");
  OPI_TRY(opi_flags_check("order_lower", "flags", flags, OPIPE_LOWER_MESSAGES, err));
  OPI_TRY(opi_order_lower(order->order, &how, &order->context->allocator, &lowered, err));
  return wrap(order->context, lowered, out_order, err);
}

opipe_status opi_api_order_check(opi_order_object *order, uint32_t rule, opipe_error *err) {
  opi_proof proof = {0};
  opi_order *lowered = NULL;
  OPI_TRY(opi_choice_check("order_check", "rule", rule, OPI_RULES - 1, err));
  const opipe_allocator *allocator = &order->context->allocator;
  if (!opi_order_is_lowered(order->order)) {
    const opi_lowering how = {0};
    OPI_TRY(opi_order_lower(order->order, &how, allocator, &lowered, err));
  }
  const opi_order *o = lowered != NULL ? lowered : order->order;
  const opipe_status status = opi_proof_check(&o->problem, o->list, rule, allocator, &proof, err);
  opi_order_free(lowered);
  return status;
}

/* ---- writing ---- */

opipe_status opi_api_order_write(opi_order_object *order, uint32_t format, uint32_t dialect,
                                 opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  OPI_TRY(opi_choice_check("order_write", "format", format, OPIPE_FORMAT_CSV, err));
  OPI_TRY(opi_choice_check("order_write", "dialect", dialect, OPIPE_DIALECT_TORCH_OLD, err));
  const uint32_t own = format == OPIPE_FORMAT_JSON  ? OPI_ORDER_JSON
                       : format == OPIPE_FORMAT_CSV ? OPI_ORDER_CSV
                                                    : OPI_ORDER_TEXT;
  opi_text_init(&text, &order->context->allocator);
  opipe_status status = opi_order_write(order->order, own, dialect, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

opipe_status opi_api_order_draw(opi_order_object *order, const opipe_order_costs *costs,
                                opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  opi_costs own;
  OPI_TRY(opi_costs_from_host(costs, "order_draw", &own, err));
  opi_text_init(&text, &order->context->allocator);
  opipe_status status = opi_draw_order(&order->order->problem, order->order->list, &own,
                                       &order->context->allocator, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

/* bound: lower bound on any order's makespan; 0: not known. */
static void describe_simulation(const opi_problem *p, const opi_simulation *s, double bound,
                                bool json, opi_text *t) {
  const struct {
    const char *name;
    double value;
  } figures[] = {{"makespan", s->makespan}, {"span", s->span}, {"bubble", s->bubble}};
  if (json) {
    opi_text_printf(t, "{\"ranks\": %u, \"stages\": %u, \"microbatches\": %u", p->n_ranks,
                    p->n_stages, p->n_microbatches);
  }
  for (size_t i = 0; i < OPI_COUNT(figures); ++i) {
    if (json) {
      opi_text_printf(t, ", \"%s\": ", figures[i].name);
      opi_json_double(t, figures[i].value);
    } else {
      opi_text_printf(t, "%-10s %g\n", figures[i].name, figures[i].value);
    }
  }
  opi_text_puts(t, json ? ", \"peak_stash\": [" : "peak stash");
  for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
    if (json) {
      opi_text_puts(t, rank == 0 ? "" : ", ");
      opi_json_double(t, s->peak_stash[rank]);
    } else {
      opi_text_printf(t, " %g", s->peak_stash[rank]);
    }
  }
  opi_text_puts(t, json ? "]" : "\n");
  if (bound > 0 && json) {
    opi_text_puts(t, ", \"bound\": ");
    opi_json_double(t, bound);
  } else if (bound > 0) {
    const double gap = 100 * (s->makespan / bound - 1); /* rounding may put it below */
    opi_text_printf(t, "%-10s %g (the makespan is %.2f %% above)\n", "bound", bound,
                    gap > 0 ? gap : 0);
  }
  opi_text_puts(t, json ? "}\n" : "");
}

/* Lower bound for the order's computes; 0 if none is known. */
static opipe_status find_bound(const opi_order *order, const opi_costs *costs,
                               const opi_simulation *s, double *out_bound, opipe_error *err) {
  opipe_error unused = OPIPE_ERROR_INIT;
  *out_bound = 0;
  const opipe_status status = opi_study_bound(order, costs, out_bound, &unused);
  *out_bound = status < 0 || s->makespan <= 0 ? 0 : *out_bound;
  return status == OPIPE_E_NOMEM ? opi_fail_nomem(err, 1, "a bound") : OPIPE_OK;
}

opipe_status opi_api_order_simulate(opi_order_object *order, const opipe_order_costs *costs,
                                    uint32_t format, opipe_write_fn write, void *ctx,
                                    opipe_error *err) {
  opi_text text;
  opi_costs own;
  OPI_TRY(opi_form_check("order_simulate", format, err));
  OPI_TRY(opi_costs_from_host(costs, "order_simulate", &own, err));
  const opipe_allocator *allocator = &order->context->allocator;
  const opi_problem *p = &order->order->problem;
  double bound = 0;
  opi_simulation result = {.peak_stash = opi_alloc_zero(allocator, p->n_ranks, sizeof(double))};
  if (result.peak_stash == NULL)
    return opi_fail_nomem(err, p->n_ranks * sizeof(double), "a simulation");
  opi_text_init(&text, allocator);
  opipe_status status = opi_simulate_order(p, order->order->list, &own, allocator, &result, err);
  if (status == OPIPE_OK)
    status = find_bound(order->order, &own, &result, &bound, err);
  if (status == OPIPE_OK) {
    describe_simulation(p, &result, bound, format != OPIPE_FORMAT_TEXT, &text);
    status = format == OPIPE_FORMAT_HTML
                 ? opi_study_order_page(order->order, &own, &result, text.data, allocator, write,
                                        ctx, err)
                 : opi_text_write(&text, write, ctx, err);
  }
  opi_text_release(&text);
  opi_free(allocator, result.peak_stash, p->n_ranks * sizeof(double));
  return status;
}

/* ---- list ---- */

typedef struct lister {
  opi_text *text;
  bool json;
  uint32_t n;
} lister;

static void list_text(opi_text *t, const char *name, const char *value) {
  char line[OPI_LINE_ROOM];
  opi_text_puts(t, name);
  opi_text_json(t, opi_text_line(line, value));
}

/* The option's type in words; an unknown type is text, as in the checks of values. */
static const char *type_name(const opipe_schedule_option *o) {
  return o->type == 'i'   ? "integer"
         : o->type == 'x' ? "number"
         : o->type == 's' ? "choice"
                          : "text";
}

/* Larger bounds of a number count as none. */
static bool is_bound(double x) {
  return x > -9e18 && x < 9e18;
}

static void list_range(const opipe_schedule_option *o, bool json, opi_text *t) {
  const bool low = is_bound(o->min), high = is_bound(o->max);
  if (o->type != 'i' && o->type != 'x')
    return;
  if (json) {
    opi_text_puts(t, low ? ", \"min\": " : "");
    if (low)
      opi_json_double(t, o->min);
    opi_text_puts(t, high ? ", \"max\": " : "");
    if (high)
      opi_json_double(t, o->max);
  } else if (low && high) {
    opi_text_printf(t, ", %.15g to %.15g", o->min, o->max);
  } else if (low || high) {
    opi_text_printf(t, ", at %s %.15g", low ? "least" : "most", low ? o->min : o->max);
  }
}

static void list_option(const opipe_schedule_option *o, bool first, const lister *l) {
  opi_text *t = l->text;
  char line[OPI_LINE_ROOM];
  if (l->json) {
    list_text(t, first ? "{\"key\": " : ", {\"key\": ", o->key);
    list_text(t, ", \"type\": ", type_name(o));
    list_range(o, true, t);
    list_text(t, ", \"help\": ", o->help);
    if (o->choices != NULL)
      list_text(t, ", \"choices\": ", o->choices);
    if (o->preset != NULL)
      list_text(t, ", \"preset\": ", o->preset);
    opi_text_puts(t, "}");
    return;
  }
  opi_text_printf(t, "    %s=", opi_text_line(line, o->key));
  opi_text_printf(t, "%s  ", o->choices == NULL ? "..." : opi_text_line(line, o->choices));
  opi_text_printf(t, "%s (%s", opi_text_line(line, o->help), type_name(o));
  list_range(o, false, t);
  if (o->preset != NULL)
    opi_text_printf(t, "; default: %s", opi_text_line(line, o->preset));
  opi_text_puts(t, ")\n");
}

/* why: the reason that its options are not known; NULL: they are. */
static void list_entry(lister *l, const char *id, const char *summary, const char *why,
                       const opipe_schedule_option *options, uint32_t n) {
  char line[OPI_LINE_ROOM];
  if (l->json) {
    list_text(l->text, l->n++ == 0 ? "[\n {\"name\": " : ",\n {\"name\": ", id);
    list_text(l->text, ", \"summary\": ", summary);
    if (why != NULL)
      list_text(l->text, ", \"reason\": ", why);
    opi_text_puts(l->text, ", \"options\": [");
  } else {
    opi_text_printf(l->text, "%-16s %s\n", id, opi_text_line(line, summary));
    if (why != NULL)
      opi_text_printf(l->text, "    its options are not known: %s\n", why);
  }
  for (uint32_t i = 0; i < n; ++i)
    list_option(&options[i], i == 0, l);
  opi_text_puts(l->text, l->json ? "]}" : "");
}

/* A schedule that cannot list its options is listed with the reason, and does not hide the others.
 */
static opipe_status list_schedule(void *ctx, const opipe_plugin *plugin, const opi_plugin_ref *ref,
                                  opipe_error *err) {
  const opi_schedule_ref schedule = {.table = ref->table, .self = ref->self, .id = ref->id};
  const opipe_schedule_option *options = NULL;
  opipe_error why = OPIPE_ERROR_INIT;
  uint32_t n = 0;
  (void)err;
  const bool known = opi_schedule_options(&schedule, &options, &n, &why) >= 0;
  list_entry(ctx, plugin->id, plugin->summary, known ? NULL : why.message, options, n);
  return OPIPE_OK;
}

opipe_status opi_api_schedule_list(opi_context_object *context, uint32_t format,
                                   opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  OPI_TRY(opi_choice_check("schedule_list", "format", format, OPIPE_FORMAT_JSON, err));
  opi_text_init(&text, &context->allocator);
  lister l = {&text, format != OPIPE_FORMAT_TEXT, 0};
  opipe_status status =
      opi_registry_each(context->registry, OPIPE_KIND_SCHEDULE, list_schedule, &l, err);
  if (status >= 0) {
    const opipe_schedule_option *options = NULL;
    const char *summary = NULL;
    const uint32_t n = opi_study_search_options(&options, &summary);
    if (summary != NULL)
      list_entry(&l, "search", summary, NULL, options, n);
    opi_text_puts(&text, l.json ? "\n]\n" : "");
    status = opi_text_write(&text, write, ctx, err);
  }
  opi_text_release(&text);
  return status;
}
