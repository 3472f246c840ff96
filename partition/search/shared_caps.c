/* SPDX-License-Identifier: Apache-2.0 */
/* Needs of ranks that share a cap, and divisions of it. */
#include "partition/search/shared_caps.h"

#include "partition/memory/caps.h"

bool opi_shared_caps_lack(const opi_plan *plan) {
  bool lack = false;
  for (uint32_t r = 0; plan->predicted.memory != NULL && r < plan->decided.n_ranks; ++r) {
    uint32_t n = 0;
    if (plan->decided.devices[r].memory_with != 0)
      lack = lack || opi_caps_sum(plan, r, &n) > plan->decided.devices[r].memory_bytes;
  }
  return lack;
}

opipe_status opi_shared_caps_needs(const opi_plan *plan, opi_arena *arena, opi_rank_bytes *out,
                                   opi_device_spec **out_devices, opipe_error *err) {
  const uint32_t n = plan->decided.n_ranks;
  out->now = OPI_ARENA_ARRAY(arena, uint64_t, n);
  out->least = OPI_ARENA_ARRAY(arena, uint64_t, n);
  *out_devices = OPI_ARENA_ARRAY(arena, opi_device_spec, n);
  if (out->now == NULL || out->least == NULL || *out_devices == NULL)
    return opi_fail_nomem(err, n * sizeof **out_devices, "caps");
  for (uint32_t r = 0; r < n; ++r)
    out->now[r] = out->least[r] = plan->predicted.memory[r].total_bytes;
  return OPIPE_OK;
}

/* Total needs of the ranks that share a cap. */
typedef struct sums {
  double now, least;
  uint32_t n;
} sums;

/* A rank's part of `cap`: at least one byte, because 0 means no cap. */
static uint64_t part_of(uint64_t cap, double now, double least, const sums *all, uint32_t how) {
  const double shrinks = all->now - all->least, room = (double)cap - all->least;
  double part = 0;
  if (how == OPI_SHARE_EQUAL)
    part = (double)cap / all->n;
  else if (how == OPI_SHARE_REST)
    part = now + ((double)cap > all->now ? ((double)cap - all->now) / all->n : 0);
  else if (how == OPI_SHARE_LIKE && room > 0 && shrinks > 0)
    part = least + room * (now - least) / shrinks;
  else if (how == OPI_SHARE_LIKE && all->now > 0)
    part = (double)cap * now / all->now;
  return part < 1 ? 1 : (uint64_t)part;
}

static void set_cap(opi_plan *plan, uint32_t rank, uint64_t cap) {
  plan->decided.devices[rank].memory_bytes = cap;
  if (plan->predicted.memory != NULL)
    plan->predicted.memory[rank].cap_bytes = cap == 0 ? UINT64_MAX : cap;
}

void opi_shared_caps_divide(opi_plan *plan, const opi_rank_bytes *needs, uint32_t how,
                            opi_device_spec *out_devices) {
  const uint32_t n_ranks = plan->decided.n_ranks;
  bool any = false;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    out_devices[r] = plan->decided.devices[r];
    any = any || plan->decided.devices[r].memory_with != 0;
  }
  for (uint32_t r = 0; any && r < n_ranks; ++r) {
    const uint32_t holder = opi_cap_holder(out_devices, r);
    sums all = {.n = 0};
    for (uint32_t other = 0; other < n_ranks; ++other) {
      if (opi_cap_holder(out_devices, other) != holder)
        continue;
      all.now += (double)needs->now[other];
      all.least += (double)needs->least[other];
      ++all.n;
    }
    if (all.n > 1) {
      set_cap(plan, r,
              part_of(out_devices[r].memory_bytes, (double)needs->now[r], (double)needs->least[r],
                      &all, how));
    }
    plan->decided.devices[r].memory_with = 0;
  }
}

void opi_shared_caps_restore(opi_plan *plan, const opi_device_spec *devices) {
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    set_cap(plan, r, devices[r].memory_bytes);
    plan->decided.devices[r].memory_with = devices[r].memory_with;
  }
}
