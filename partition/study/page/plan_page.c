/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's decision as JSON for a page; its devices and link as a cluster. */
#include "partition/study/page/plan_page.h"

#include <inttypes.h>

#include "loader/base/json.h"
#include "partition/plan/plan.h"
#include "partition/schedule/actions.h"

/* ---- for people ---- */

typedef struct writer {
  const opi_plan *plan;
  opi_text *to;
} writer;

static void put_text(const writer *w, const char *name, const char *value) {
  opi_text_puts(w->to, name);
  if (value == NULL)
    opi_text_puts(w->to, "null");
  else
    opi_text_json(w->to, value);
}

static void put_number(const writer *w, const char *name, double value) {
  opi_text_puts(w->to, name);
  opi_json_double(w->to, value);
}

/* The ranks of a stage's replicas. */
static void put_ranks(const writer *w, uint32_t stage) {
  bool first = true;
  opi_text_puts(w->to, "\"ranks\": [");
  for (uint32_t r = 0; r < w->plan->decided.n_replicas; ++r) {
    const uint32_t rank = opi_plan_rank(&w->plan->decided, stage, r);
    if (rank == OPIPE_NONE)
      continue;
    opi_text_printf(w->to, "%s%u", first ? "" : ", ", rank);
    first = false;
  }
  opi_text_puts(w->to, "]");
}

/* first [n_stages], last, n_nodes: of each stage, in the order of the graph. */
typedef struct extents {
  uint32_t first, last, n_nodes;
} extents;

static void find_extents(const opi_decision *plan, extents *out) {
  for (uint32_t n = 0; n < plan->n_nodes; ++n) {
    extents *e = &out[plan->stage_of_node[n]];
    if (e->n_nodes++ == 0)
      e->first = n;
    e->last = n;
  }
}

static void put_stage(const writer *w, uint32_t s, const extents *e) {
  const opi_plan *plan = w->plan;
  opi_text_printf(w->to, "%s\n  {\"stage\": %u, ", s == 0 ? "" : ",", s);
  put_ranks(w, s);
  opi_text_printf(w->to, ", \"nodes\": %u", e->n_nodes);
  put_text(w, ", \"first\": ", e->n_nodes == 0 ? NULL : plan->decided.node_keys[e->first]);
  put_text(w, ", \"last\": ", e->n_nodes == 0 ? NULL : plan->decided.node_keys[e->last]);
  put_number(w, ", \"forward_ns\": ",
             plan->predicted.times.stage_ns == NULL ? 0 : plan->predicted.times.stage_ns[s]);
  if (plan->predicted.times.input_ns != NULL && plan->predicted.times.weight_ns != NULL) {
    put_number(w, ", \"input_ns\": ", plan->predicted.times.input_ns[s]);
    put_number(w, ", \"weight_ns\": ", plan->predicted.times.weight_ns[s]);
  }
  if (plan->predicted.stage_stash_bytes != NULL)
    opi_text_printf(w->to, ", \"stash_bytes\": %" PRIu64, plan->predicted.stage_stash_bytes[s]);
  opi_text_puts(w->to, "}");
}

static void put_memory(const writer *w, uint32_t rank) {
  const opi_memory *m = &w->plan->predicted.memory[rank];
  const struct {
    const char *name;
    uint64_t n_bytes;
  } parts[] = {{"params_bytes", m->params_bytes},       {"activation_bytes", m->activation_bytes},
               {"workspace_bytes", m->workspace_bytes}, {"boundary_bytes", m->boundary_bytes},
               {"gradient_bytes", m->gradient_bytes},   {"optimizer_bytes", m->optimizer_bytes},
               {"version_bytes", m->version_bytes},     {"stash_bytes", m->stash_bytes},
               {"state_bytes", m->state_bytes},         {"total_bytes", m->total_bytes},
               {"mapped_bytes", m->mapped_bytes}};
  for (size_t i = 0; i < OPI_COUNT(parts); ++i)
    opi_text_printf(w->to, ", \"%s\": %" PRIu64, parts[i].name, parts[i].n_bytes);
  if (m->cap_bytes == UINT64_MAX)
    opi_text_puts(w->to, ", \"cap_bytes\": null");
  else
    opi_text_printf(w->to, ", \"cap_bytes\": %" PRIu64, m->cap_bytes);
  opi_text_printf(w->to, ", \"estimated\": %s", m->estimated ? "true" : "false");
}

static void put_rank(const writer *w, uint32_t r) {
  const opi_device_spec *d = &w->plan->decided.devices[r];
  opi_text_printf(w->to, "%s\n  {\"rank\": %u", r == 0 ? "" : ",", r);
  put_text(w, ", \"device\": ", d->kind);
  opi_text_printf(w->to, ", \"index\": %u, \"threads\": %u", d->index, d->threads);
  if (w->plan->predicted.memory != NULL)
    put_memory(w, r);
  opi_text_puts(w->to, "}");
}

static void put_schedule(const writer *w) {
  const opi_plan *plan = w->plan;
  put_text(w, "{\"schedule\": ", plan->decided.schedule.name);
  opi_text_puts(w->to, ", \"settings\": {");
  for (uint32_t i = 0; i < plan->decided.schedule.n_settings; ++i) {
    put_text(w, i == 0 ? "" : ", ", plan->decided.schedule.settings[i].key);
    put_text(w, ": ", plan->decided.schedule.settings[i].value);
  }
  put_text(w, "}, \"transport\": ", plan->decided.transport);
  opi_text_printf(w->to, ",\n \"microbatches\": %u, \"slices\": %u, \"replicas\": %u",
                  plan->decided.n_microbatches,
                  plan->decided.n_slices < 2 ? 1 : plan->decided.n_slices,
                  plan->decided.n_replicas);
  put_text(w, ", \"cost\": ", opi_cost_name(plan->predicted.cost_kind));
  put_number(w, ",\n \"request_ns\": ", plan->predicted.request_ns);
  put_number(w, ", \"interval_ns\": ", plan->predicted.interval_ns);
  put_number(w, ", \"bound_ns\": ", plan->predicted.bound_ns * plan->decided.n_microbatches);
  put_number(w, ", \"flops\": ", plan->predicted.flops);
  put_number(w, ", \"utilisation\": ", opi_plan_utilisation(plan));
}

void opi_page_describe_plan(const opi_plan *plan, opi_text *out_json) {
  const writer w = {plan, out_json};
  extents *e = opi_alloc_zero(out_json->allocator, (size_t)plan->decided.n_stages + 1, sizeof *e);
  if (e == NULL) {
    out_json->failed = true;
    return;
  }
  find_extents(&plan->decided, e);
  put_schedule(&w);
  opi_text_puts(out_json, ",\n \"stages\": [");
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s)
    put_stage(&w, s, &e[s]);
  opi_text_puts(out_json, "],\n \"cut\": [");
  for (uint32_t i = 0; i < plan->predicted.n_crossings; ++i) {
    const opi_crossing *c = &plan->predicted.crossings[i];
    opi_text_printf(out_json, "%s\n  {\"from\": %u, \"to\": %u, \"bytes\": %" PRIu64,
                    i == 0 ? "" : ",", c->src_stage, c->dst_stage, c->n_bytes);
    put_text(&w, ", \"tensor\": ", c->name);
    opi_text_puts(out_json, "}");
  }
  opi_text_puts(out_json, "],\n \"ranks\": [");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    put_rank(&w, r);
  opi_text_puts(out_json, "]}");
  opi_free(out_json->allocator, e, ((size_t)plan->decided.n_stages + 1) * sizeof *e);
}

/* ---- as a cluster ---- */

static void put_device(const writer *w, uint32_t r) {
  const opi_plan *plan = w->plan;
  const opi_device_spec *d = &plan->decided.devices[r];
  const uint64_t cap =
      plan->predicted.memory == NULL || plan->predicted.memory[r].cap_bytes == UINT64_MAX
          ? 0
          : plan->predicted.memory[r].cap_bytes;
  put_text(w, r == 0 ? "{\"kind\": " : ", {\"kind\": ", d->kind);
  opi_text_printf(w->to, ", \"alignment\": %u, \"memory_bytes\": %" PRIu64,
                  d->alignment == 0 ? 1 : d->alignment, cap);
  opi_text_puts(w->to, "}");
}

opipe_status opi_plan_cluster(const opi_plan *plan, opi_arena *arena, opi_cluster *out_cluster,
                              opipe_error *err) {
  const opi_link *l = &plan->decided.link;
  opi_text text;
  const writer w = {plan, &text};
  opi_text_init(&text, arena->allocator);
  opi_text_puts(&text, "{\"format\": \"" OPI_CLUSTER_FORMAT "\", \"devices\": [");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    put_device(&w, r);
  put_text(&w, "], \"links\": [{\"transport\": ", plan->decided.transport);
  put_text(&w, ", \"rule\": ", opi_rule_name(l->rule));
  put_number(&w, ", \"latency_ns\": ", l->latency_ns);
  if (l->bytes_per_ns * 1e9 >= 1)
    put_number(&w, ", \"bandwidth\": ", l->bytes_per_ns * 1e9);
  opi_text_puts(&text, "}]}");
  const opipe_status status =
      text.failed ? opi_fail_nomem(err, text.room, "a cluster")
                  : opi_cluster_read("the plan", text.data, text.n, arena, out_cluster, err);
  opi_text_release(&text);
  return status;
}
