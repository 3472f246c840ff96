/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the cluster file of this machine: asks backend and transport, times products. */
#include "partition/study/layers/machine.h"

#include <inttypes.h>
#include <string.h>

#include "partition/cost/profile.h"
#include "partition/plan/flags.h"
#include "partition/study/cluster/cluster.h"

static const uint32_t extents[] = {32, 128, 512}; /* of square products */

/* ---- products ---- */

/* A one-node graph: A [n, n], fed, x B [n, n], a parameter. */
static opipe_status make_product(uint32_t n, opi_arena *arena, opi_graph **out_graph,
                                 opipe_error *err) {
  const int64_t shape[] = {n, n};
  const uint64_t n_bytes = (uint64_t)n * n * sizeof(float);
  static const char *const names[] = {"a", "b", "y"};
  opi_graph *g = opi_graph_new(arena, "product");
  void *zeros = opi_arena_alloc(arena, (size_t)n_bytes);
  opi_node *node = NULL;
  uint32_t values[3] = {OPIPE_NONE, OPIPE_NONE, OPIPE_NONE};
  for (uint32_t i = 0; g != NULL && i < 3; ++i)
    values[i] = opi_graph_add_value(g, names[i], OPIPE_FLOAT, shape, 2);
  if (g != NULL && zeros != NULL && values[2] != OPIPE_NONE)
    node = opi_graph_add_node(g, "product", "MatMul", "", 2, 1, 0);
  if (node == NULL || !opi_graph_add_input(g, values[0]) || !opi_graph_add_output(g, values[2]))
    return opi_fail_nomem(err, n_bytes, "a measurement");
  for (uint32_t i = 0; i < 3; ++i)
    g->values[values[i]].n_bytes = n_bytes;
  g->values[values[0]].flags |= OPI_VALUE_INPUT;
  g->values[values[1]].flags |= OPI_VALUE_INITIALIZER;
  g->values[values[1]].data = zeros;
  g->values[values[2]].flags |= OPI_VALUE_OUTPUT;
  g->values[values[2]].producer = 0;
  node->in[0] = values[0];
  node->in[1] = values[1];
  node->out[0] = values[2];
  *out_graph = g;
  return OPIPE_OK;
}

static opipe_status time_product(const opi_this_machine *m, const opi_profile_place *place,
                                 uint32_t n, double *out_flops, opipe_error *err) {
  opi_arena arena;
  opi_graph *graph = NULL;
  opi_profile *profile = NULL;
  opi_arena_init(&arena, m->env->allocator, 0);
  opipe_status status = make_product(n, &arena, &graph, err);
  if (status == OPIPE_OK) {
    status = opi_profile_make(graph, place, OPI_COST_MEASURED, m->env->allocator, m->env->now_ns,
                              &profile, err);
  }
  if (status == OPIPE_OK && profile->node_ns[0] > 0)
    *out_flops = 2.0 * n * n * n / profile->node_ns[0] * 1e9;
  opi_profile_free(profile);
  opi_arena_release(&arena);
  return status;
}

static opipe_status write_rates(const opi_this_machine *m, const opi_device_spec *spec,
                                const opi_device_facts *facts, opi_text *text, opipe_error *err) {
  opi_backend_ref backend;
  opi_profile_place place = {.backend = &backend, .facts = facts, .threads = spec->threads};
  opipe_status status = opi_device_open(m->env, spec, &backend, &place.device, err);
  if (status < 0)
    return status;
  opi_text_puts(text, ",\n     \"rates\": [");
  for (uint32_t i = 0; i < OPI_COUNT(extents) && status == OPIPE_OK; ++i) {
    double flops = 0;
    status = time_product(m, &place, extents[i], &flops, err);
    opi_text_printf(text, "%s\n       {\"dtype\": \"fp32\", \"least\": %u, \"flops\": ",
                    i == 0 ? "" : ",", i == 0 ? 0 : extents[i]);
    opi_json_double(text, flops < 1 ? 1 : flops);
    opi_text_puts(text, "}");
  }
  opi_text_puts(text, "]");
  backend.table->device_close(place.device);
  return status;
}

/* ---- the file ---- */

static void put(opi_text *text, const char *name, double value) {
  if (value <= 0)
    return;
  opi_text_printf(text, ", \"%s\": ", name);
  opi_json_double(text, value);
}

/* Writes entry i for itself and the equal devices after it, `count` in all. */
static opipe_status write_device(const opi_this_machine *m, uint32_t i, uint32_t count,
                                 opi_text *text, opipe_error *err) {
  opi_device_spec spec = m->devices[i];
  opi_device_facts facts;
  opi_backend_ref backend;
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  OPI_TRY(opi_device_look(m->env, &spec, &facts, err));
  OPI_TRY(m->env->plugins->backend(m->env->plugins->ctx, spec.kind, &backend, err));
  OPI_TRY(opi_device_ask(&backend, spec.index, &info, err));
  info.name[sizeof info.name - 1] = '\0';
  const bool part = spec.threads != 0 && spec.threads < facts.max_threads;
  const double share = part ? (double)spec.threads / facts.max_threads : 1;
  uint32_t n_sharing = 0; /* entries that share the device's memory */
  for (uint32_t other = 0; other < m->n_devices; ++other)
    n_sharing += opi_is_one_device(&m->devices[other], &m->devices[i]) ? 1 : 0;
  const uint64_t memory =
      spec.memory_bytes != 0 ? spec.memory_bytes : info.memory_bytes / n_sharing;
  opi_text_puts(text, i == 0 ? "    {\"name\": " : ",\n    {\"name\": ");
  opi_text_json(text, info.name);
  opi_text_puts(text, ", \"kind\": ");
  opi_text_json(text, spec.kind);
  if (spec.options[0] != '\0') {
    opi_text_puts(text, ", \"options\": ");
    opi_text_json(text, spec.options);
  }
  opi_text_printf(text, ", \"count\": %u, \"memory_bytes\": %" PRIu64 ", \"threads\": %u", count,
                  memory, spec.threads);
  put(text, "flops", facts.flops * share);
  put(text, "bandwidth", facts.bandwidth * share);
  put(text, "launch_ns", facts.launch_ns);
  opi_text_printf(text, ", \"alignment\": %u, \"flags\": ", spec.alignment);
  opi_json_write_flags(text, OPI_FLAGS_DEVICE, spec.flags);
  if (m->rates)
    OPI_TRY(write_rates(m, &spec, &facts, text, err));
  opi_text_puts(text, "}");
  return OPIPE_OK;
}

static bool same_device(const opi_device_spec *a, const opi_device_spec *b) {
  return strcmp(a->kind, b->kind) == 0 && strcmp(a->options, b->options) == 0 &&
         a->index == b->index && a->threads == b->threads && a->memory_bytes == b->memory_bytes;
}

opipe_status opi_this_machine_write(const opi_this_machine *m, opi_text *text, opipe_error *err) {
  enum { BYTES_PER_NS = 8 }; /* a copy, for transports that pass addresses */
  opi_decision plan = {.allocator = m->env->allocator, .transport = m->transport, .n_ranks = 1};
  OPI_TRY(opi_plan_find_link(m->env, &plan, err));
  const double latency = m->latency_ns > 0 ? m->latency_ns : plan.link.latency_ns;
  const double rate = m->bytes_per_ns > 0          ? m->bytes_per_ns
                      : plan.link.bytes_per_ns > 0 ? plan.link.bytes_per_ns
                                                   : BYTES_PER_NS;
  opi_text_puts(text, "{\n  \"format\": \"" OPI_CLUSTER_FORMAT
                      "\",\n  \"name\": \"this machine\",\n  \"devices\": [\n");
  for (uint32_t i = 0, n = 0; i < m->n_devices; i += n) {
    for (n = 1; i + n < m->n_devices && same_device(&m->devices[i], &m->devices[i + n]);)
      ++n;
    OPI_TRY(write_device(m, i, n, text, err));
  }
  opi_text_puts(text, "\n  ],\n  \"links\": [{\"transport\": ");
  opi_text_json(text, m->transport);
  opi_text_printf(text, ", \"rule\": \"%s\", \"flags\": ", opi_rule_name(plan.link.rule));
  opi_json_write_flags(text, OPI_FLAGS_LINK, plan.link.flags);
  if (plan.link.max_ranks != 0)
    opi_text_printf(text, ", \"max_ranks\": %u", plan.link.max_ranks);
  put(text, "latency_ns", latency);
  put(text, "bandwidth", m->bytes_per_ns > 0 ? rate * 1e9 : plan.link.bytes_per_ns * 1e9);
  opi_text_printf(text, "}],\n  \"tiers\": [{\"name\": \"%s\"", m->tier);
  put(text, "latency_ns", latency);
  put(text, "bandwidth", rate * 1e9);
  opi_text_puts(text, "}]\n}\n");
  return OPIPE_OK;
}
