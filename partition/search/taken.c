/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank supports which node. */
#include "partition/search/taken.h"

void opi_taken_nodes(const opi_decision *plan, uint32_t rank, bool *out_nodes) {
  const uint32_t first = rank - rank % opi_plan_width(plan);
  for (uint32_t n = 0; n < plan->n_nodes; ++n) {
    out_nodes[n] = false;
    for (uint32_t r = 0; r < plan->n_replicas && !out_nodes[n]; ++r)
      out_nodes[n] = opi_plan_rank(plan, plan->stage_of_node[n], r) == first;
  }
}

static bool anybody_takes(const opi_decision *plan, opi_profile *const *profiles, uint32_t node) {
  bool takes = false;
  for (uint32_t r = 0; r < plan->n_ranks && !takes; ++r)
    takes = opi_profile_takes(profiles[r], node);
  return takes;
}

opipe_status opi_taken_somewhere(const opi_decision *plan, const opi_graph *graph,
                                 opi_profile *const *profiles, opipe_error *err) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (!anybody_takes(plan, profiles, n))
      return opi_profile_refusal(profiles[0], graph, NULL, plan->devices[0].kind, err);
  }
  return OPIPE_OK;
}

/* True if the rank supports some wanted node, or none is wanted. */
static bool takes_some(const opi_profile *profile, const bool *wanted) {
  bool some = false, takes = false;
  for (uint32_t n = 0; n < profile->n_nodes && !takes; ++n) {
    some = some || wanted[n];
    takes = wanted[n] && opi_profile_takes(profile, n);
  }
  return takes || !some;
}

/* If the cut leaves this rank no node that it supports, reports over the whole graph. */
static opipe_status check_rank(const opi_decision *plan, const opi_graph *graph, uint32_t rank,
                               const opi_profile *profile, const bool *wanted, opipe_error *err) {
  const char *kind = plan->devices[rank].kind;
  opipe_status status = opi_profile_refusal(profile, graph, wanted, kind, err);
  if (status == OPIPE_E_UNSUPPORTED && !takes_some(profile, wanted)) {
    status = opi_profile_refusal(profile, graph, NULL, kind, err);
    (void)opi_error_prefix(err, "rank %u takes no node of its stages: ", rank);
  } else if (status < 0) {
    (void)opi_error_prefix(err, "rank %u: ", rank);
  }
  return status;
}

opipe_status opi_taken_by_ranks(const opi_decision *plan, const opi_graph *graph,
                                opi_profile *const *profiles, opipe_error *err) {
  bool *wanted = opi_alloc_zero(plan->allocator, plan->n_nodes, sizeof *wanted);
  opipe_status status = OPIPE_OK;
  if (wanted == NULL && plan->n_nodes != 0)
    return opi_fail_nomem(err, plan->n_nodes, "a plan");
  for (uint32_t r = 0; r < plan->n_ranks && status == OPIPE_OK; ++r) {
    opi_taken_nodes(plan, r, wanted);
    status = check_rank(plan, graph, r, profiles[r], wanted, err);
  }
  opi_free(plan->allocator, wanted, plan->n_nodes * sizeof *wanted);
  return status;
}
