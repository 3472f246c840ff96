/* SPDX-License-Identifier: Apache-2.0 */
/* Does every rank's need fit its cap? */
#include "partition/memory/caps.h"

#include "loader/base/sizes.h"

static uint32_t stage_on(const opi_plan *plan, uint32_t rank) {
  uint32_t i = 0;
  while (i + 1 < plan->n_stages * plan->n_replicas && plan->instance_rank[i] != rank)
    ++i;
  return i / plan->n_replicas;
}

static opipe_status exceeds(const opi_plan *plan, uint32_t rank, opipe_error *err) {
  const opi_memory *m = &plan->memory[rank];
  const struct {
    const char *name;
    uint64_t n_bytes;
    bool always;
  } parts[] = {{"parameters", m->params_bytes, true},    {"gradients", m->gradient_bytes, false},
               {"optimizer", m->optimizer_bytes, false}, {"versions", m->version_bytes, false},
               {"stashes", m->stash_bytes, false},       {"activations", m->activation_bytes, true},
               {"workspace", m->workspace_bytes, true},  {"boundaries", m->boundary_bytes, true}};
  const uint64_t more = m->total_bytes - m->cap_bytes;
  opi_text text;
  opi_text_init(&text, plan->allocator);
  for (size_t i = 0; i < OPI_COUNT(parts); ++i) {
    if (parts[i].always || parts[i].n_bytes != 0) {
      opi_text_printf(&text, "%s%s %llu", text.n == 0 ? "" : ", ", parts[i].name,
                      (unsigned long long)parts[i].n_bytes);
    }
  }
  const opipe_status status = opi_fail(
      err, OPIPE_E_LIMIT, "rank %u (stage %u) needs %s (%s) and exceeds its cap of %s by %s", rank,
      stage_on(plan, rank), OPI_SIZE(m->total_bytes), text.data == NULL ? "" : text.data,
      OPI_SIZE(m->cap_bytes), OPI_SIZE(more));
  opi_text_release(&text);
  return status;
}

opipe_status opi_plan_check_caps(const opi_plan *plan, opipe_error *err) {
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    if (plan->memory[r].total_bytes > plan->memory[r].cap_bytes)
      return exceeds(plan, r, err);
  }
  return OPIPE_OK;
}
