/* SPDX-License-Identifier: Apache-2.0 */
/* The link that a plan's transport declares with its options, checked: rule, threads, ranks, times.
 */
#include <math.h>

#include "partition/plan/env.h"
#include "partition/plan/rules.h"

enum {
  BYTES_PER_NS = 8
}; /* copy rate assumed if a transport that passes addresses declares none */

opipe_status opi_transport_split(const char *spec, char out_id[64], const char **out_options,
                                 opipe_error *err) {
  const char *colon = strchr(spec, ':');
  const size_t n = colon == NULL ? strlen(spec) : (size_t)(colon - spec);
  if (n == 0 || n >= 64) {
    return opi_fail(err, OPIPE_E_INVALID, "transport '%.100s' names no plugin (1 to 63 characters)",
                    spec);
  }
  memcpy(out_id, spec, n);
  out_id[n] = '\0';
  *out_options = colon == NULL ? NULL : colon + 1;
  return OPIPE_OK;
}

static bool queues_batches(const opipe_transport *table, uint32_t rule) {
  return rule == OPIPE_RULE_GROUPED && OPIPE_HAS(table, opipe_transport, recv_after) &&
         table->recv_after != NULL && table->batch_begin != NULL;
}

/* Transports older than the slot world_info declare the same link whatever their options. */
static opipe_status ask(const opi_transport_ref *ref, const char *id, const char *options,
                        opi_link *out_link, opipe_error *err) {
  opipe_transport_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth)};
  OPI_TRY(ref->table->world_info != NULL
              ? OPI_ASK("transport", ref, world_info, err, ref->self, options, &info)
              : OPI_ASK("transport", ref, info, err, ref->self, &info));
  if (info.rule >= OPI_RULES || info.thread_rule > OPIPE_THREADS_PER_ENDPOINT ||
      !(info.latency_ns >= 0 && info.latency_ns <= 1e15) ||
      !(info.bandwidth == 0 || (info.bandwidth >= 1 && info.bandwidth <= 1e18))) {
    return opi_fail(
        err, OPIPE_E_ABI,
        "transport '%s' declares rule %u (of %d), thread rule %u (of %d), latency %g ns (0 to "
        "1e15), bandwidth %g bytes/s (0: none said, or 1 to 1e18)",
        id, info.rule, OPI_RULES, info.thread_rule, OPIPE_THREADS_PER_ENDPOINT + 1, info.latency_ns,
        info.bandwidth);
  }
  *out_link = (opi_link){.latency_ns = info.latency_ns,
                         .bytes_per_ns = info.bandwidth * 1e-9,
                         .rule = info.rule,
                         .thread_rule = info.thread_rule,
                         .flags = info.flags,
                         .max_ranks = info.max_ranks,
                         .queues = queues_batches(ref->table, info.rule)};
  return OPIPE_OK;
}

opipe_status opi_plan_check_link(const opi_decision *plan, opipe_error *err) {
  const opi_link *link = &plan->link;
  const uint32_t n_ranks = plan->n_ranks;
  if (link->max_ranks != 0 && link->max_ranks < n_ranks) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport '%.100s' supports at most %u ranks, the plan has %u",
                    plan->transport, link->max_ranks, n_ranks);
  }
  if (n_ranks > 1 && link->thread_rule != OPIPE_THREADS_PER_ENDPOINT) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport '%.100s' requires all calls from one thread, the plan has %u ranks",
                    plan->transport, n_ranks);
  }
  return OPIPE_OK;
}

static opipe_status find(const opi_plan_env *env, const opi_decision *plan, opi_link *out_link,
                         opipe_error *err) {
  char id[64];
  const char *options = NULL;
  opi_transport_ref ref;
  OPI_TRY(opi_transport_split(plan->transport, id, &options, err));
  OPI_TRY(env->plugins->transport(env->plugins->ctx, id, &ref, err));
  return ask(&ref, id, options, out_link, err);
}

opipe_status opi_plan_find_link(const opi_plan_env *env, opi_decision *plan, opipe_error *err) {
  OPI_TRY(find(env, plan, &plan->link, err));
  return opi_plan_check_link(plan, err);
}

opipe_status opi_plan_compare_link(const opi_plan_env *env, const opi_decision *plan,
                                   opipe_error *err) {
  opi_link here = {.rule = 0};
  const opi_link *then = &plan->link;
  OPI_TRY(find(env, plan, &here, err));
  if (here.rule == then->rule && here.thread_rule == then->thread_rule &&
      (here.flags & OPIPE_TRANSPORT_DIRECT) == (then->flags & OPIPE_TRANSPORT_DIRECT)) {
    return here.max_ranks == 0 || here.max_ranks >= plan->n_ranks
               ? OPIPE_OK
               : opi_fail(err, OPIPE_E_UNSUPPORTED,
                          "transport '%.100s' supports at most %u ranks, the plan has %u",
                          plan->transport, here.max_ranks, plan->n_ranks);
  }
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "transport '%.100s' has rule '%s', threads %u, flags 0x%x; the plan was made for "
                  "rule '%s', threads %u, flags 0x%x: make it again",
                  plan->transport, opi_rule_name(here.rule), here.thread_rule, here.flags,
                  opi_rule_name(then->rule), then->thread_rule, then->flags);
}

uint64_t opi_link_ns(const opi_link *link, uint64_t n_bytes) {
  const double rate = link->bytes_per_ns > 0 ? link->bytes_per_ns : BYTES_PER_NS;
  const double ns = link->latency_ns + (double)n_bytes / rate;
  return ns < 1e15 ? (uint64_t)ns : (uint64_t)1e15;
}

double opi_link_pass(const opi_link *link, double at, uint64_t n_bytes, double *io_free) {
  if (link->bytes_per_ns > 0) {
    at = at > *io_free ? at : *io_free;
    at += (double)n_bytes / link->bytes_per_ns;
    *io_free = at;
  }
  return at + link->latency_ns;
}
