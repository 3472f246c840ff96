/* SPDX-License-Identifier: Apache-2.0 */
/* What devices have, where nobody has said how much of it may be used. */
#include "partition/search/own_memory.h"

static bool is_uncapped(const opi_plan *plan, const opi_device_facts *facts, uint32_t rank) {
  return plan->devices[rank].memory_bytes == 0 && facts[rank].memory_bytes != 0;
}

bool opi_own_memory_lacks(const opi_plan *plan, const opi_device_facts *facts) {
  bool lacks = false;
  for (uint32_t r = 0; r < plan->n_ranks && plan->memory != NULL; ++r) {
    lacks = lacks ||
            (is_uncapped(plan, facts, r) && plan->memory[r].total_bytes > facts[r].memory_bytes);
  }
  return lacks;
}

void opi_own_memory_set(opi_plan *plan, const opi_device_facts *facts, bool *out_set) {
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    out_set[r] = is_uncapped(plan, facts, r);
    if (out_set[r])
      plan->devices[r].memory_bytes = facts[r].memory_bytes;
  }
}

void opi_own_memory_unset(opi_plan *plan, const bool *set) {
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    if (set[r])
      plan->devices[r].memory_bytes = 0;
  }
}
