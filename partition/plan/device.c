/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of a plan: found, asked and opened; rates, modelled times, direct edges. */
#include <stdio.h>
#include <string.h>

#include "partition/plan/env.h"

/* Resolves "kind:uuid" to kind and index. A prefix of the uuid will do if it is unique. */
static opipe_status find_by_uuid(const opi_plan_env *env, opi_device_spec *io_spec,
                                 const char *colon, opipe_error *err) {
  char kind[64];
  const char *uuid = colon + 1;
  opi_backend_ref backend;
  uint32_t count = 0, n_found = 0;
  (void)snprintf(kind, sizeof kind, "%.*s", (int)(colon - io_spec->kind), io_spec->kind);
  OPI_TRY(env->plugins->backend(env->plugins->ctx, kind, &backend, err));
  OPI_TRY(OPI_ASK("backend", &backend, device_count, err, backend.self, &count));
  for (uint32_t i = 0; i < count; ++i) {
    opipe_device_info info;
    OPI_TRY(opi_device_ask(&backend, i, &info, err));
    if (uuid[0] == '\0' || strncmp(info.uuid, uuid, strlen(uuid)) != 0)
      continue;
    io_spec->index = i;
    ++n_found;
  }
  if (n_found != 1) {
    return opi_fail(
        err, OPIPE_E_NOTFOUND,
        "device '%s': %u of the %u devices of backend '%s' have a uuid with this prefix",
        io_spec->kind, n_found, count, kind);
  }
  io_spec->kind = backend.id;
  return OPIPE_OK;
}

opipe_status opi_device_answer(const opi_plan_env *env, opi_device_spec *io_spec,
                               opipe_device_info *out_info, opipe_error *err) {
  opi_backend_ref backend;
  const char *colon = strchr(io_spec->kind, ':');
  if (colon != NULL)
    OPI_TRY(find_by_uuid(env, io_spec, colon, err));
  OPI_TRY(env->plugins->backend(env->plugins->ctx, io_spec->kind, &backend, err));
  return opi_device_ask(&backend, io_spec->index, out_info, err);
}

static void take_answer(const opipe_device_info *info, opi_device_spec *io_spec,
                        opi_device_facts *out_facts) {
  io_spec->alignment = info->alignment;
  io_spec->flags = info->flags;
  io_spec->domain = 0; /* this process */
  *out_facts = (opi_device_facts){.flops = info->peak_flops,
                                  .fp64_flops = info->fp64_flops,
                                  .fp16_flops = info->fp16_flops,
                                  .bf16_flops = info->bf16_flops,
                                  .bandwidth = info->bandwidth,
                                  .launch_ns = info->launch_ns,
                                  .memory_bytes = info->memory_bytes,
                                  .max_threads = info->max_threads};
}

opipe_status opi_device_look(const opi_plan_env *env, opi_device_spec *io_spec,
                             opi_device_facts *out_facts, opipe_error *err) {
  opipe_device_info info;
  OPI_TRY(opi_device_answer(env, io_spec, &info, err));
  take_answer(&info, io_spec, out_facts);
  return OPIPE_OK;
}

/* True if programs have the same bytes, and the same nominal times, on both. */
static bool is_same_make(const opipe_device_info *a, const opipe_device_info *b) {
  return a->alignment == b->alignment && a->flags == b->flags && strcmp(a->name, b->name) == 0 &&
         a->peak_flops == b->peak_flops && a->fp64_flops == b->fp64_flops &&
         a->fp16_flops == b->fp16_flops && a->bf16_flops == b->bf16_flops &&
         a->bandwidth == b->bandwidth && a->launch_ns == b->launch_ns &&
         a->max_threads == b->max_threads;
}

/* A number for the device that no other has; 0: it has no name of its own. */
static uint32_t domain_of(const char *uuid) {
  uint32_t sum = 2166136261u; /* FNV-1a */
  for (const char *at = uuid; *at != '\0'; ++at)
    sum = (sum ^ (unsigned char)*at) * 16777619u;
  return uuid[0] == '\0' ? 0 : sum | 1u;
}

opipe_status opi_device_take(const opi_plan_env *env, const opipe_device_info *told,
                             opi_device_spec *io_spec, opi_device_facts *out_facts,
                             opipe_error *err) {
  opipe_device_info own, there = *told;
  opi_device_spec here = *io_spec;
  opipe_error unused = OPIPE_ERROR_INIT;
  OPI_TRY(opi_device_check(&there, io_spec->kind, io_spec->index, err));
  take_answer(&there, io_spec, out_facts);
  const bool is_here =
      opi_device_answer(env, &here, &own, &unused) == OPIPE_OK && is_same_make(&own, &there);
  out_facts->described = !is_here;
  if (!is_here || strcmp(own.uuid, there.uuid) != 0)
    io_spec->domain = domain_of(there.uuid);
  return OPIPE_OK;
}

opipe_status opi_device_open(const opi_plan_env *env, const opi_device_spec *spec,
                             opi_backend_ref *out_backend, opipe_device **out_device,
                             opipe_error *err) {
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .index = spec->index,
      .threads = spec->threads,
      .options = spec->options[0] == '\0' ? NULL : spec->options};
  OPI_TRY(env->plugins->backend(env->plugins->ctx, spec->kind, out_backend, err));
  return OPI_MAKE("backend", out_backend, device_open, out_device, err, out_backend->self, &params);
}

void opi_options_decided(const char *options, opi_text *out_text) {
  static const char kernels[] = "kernels=";
  for (const char *at = options; *at != '\0';) {
    const size_t n = strcspn(at, ",");
    if (strncmp(at, kernels, sizeof kernels - 1) != 0)
      opi_text_printf(out_text, "%s%.*s", out_text->n == 0 ? "" : ",", (int)n, at);
    at += n + (at[n] == ',' ? 1 : 0);
  }
}

double opi_device_rate(const opi_device_facts *facts, uint32_t dtype) {
  const double own = dtype == OPIPE_DOUBLE     ? facts->fp64_flops
                     : dtype == OPIPE_FLOAT16  ? facts->fp16_flops
                     : dtype == OPIPE_BFLOAT16 ? facts->bf16_flops
                                               : 0;
  return own > 0 ? own : facts->flops;
}

uint32_t opi_node_type(const opi_graph *graph, const opi_node *node) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t dtype = node->in[i] == OPIPE_NONE ? 0 : graph->values[node->in[i]].dtype;
    if (dtype == OPIPE_FLOAT || dtype == OPIPE_DOUBLE || dtype == OPIPE_FLOAT16 ||
        dtype == OPIPE_BFLOAT16)
      return dtype;
  }
  return OPIPE_FLOAT;
}

double opi_device_ns(const opi_device_facts *facts, uint32_t threads, uint32_t dtype, double flops,
                     double bytes) {
  const double rate = opi_device_rate(facts, dtype);
  const bool part = threads != 0 && threads < facts->max_threads;
  const double share = part ? (double)threads / (double)facts->max_threads : 1.0;
  const double compute = rate > 0 ? flops / (rate * share) * 1e9 : 0;
  const double memory = facts->bandwidth > 0 ? bytes / (facts->bandwidth * share) * 1e9 : 0;
  return (compute > memory ? compute : memory) + facts->launch_ns;
}

bool opi_plan_edge_is_direct(const opi_decision *plan, uint32_t src_rank, uint32_t dst_rank) {
  const opi_device_spec *src = &plan->devices[src_rank], *dst = &plan->devices[dst_rank];
  return (plan->link.flags & OPIPE_TRANSPORT_DIRECT) != 0 &&
         (src->flags & dst->flags & OPIPE_DEVICE_HOST_MEMORY) != 0 && src->domain == dst->domain &&
         strcmp(src->kind, dst->kind) == 0;
}

bool opi_plan_is_direct(const opi_decision *plan) {
  for (uint32_t a = 0; a < plan->n_ranks; ++a) {
    for (uint32_t b = a + 1; b < plan->n_ranks; ++b) {
      if (opi_plan_edge_is_direct(plan, a, b))
        return true;
    }
  }
  return false;
}
