/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that every rank fits its cap, and that ranks on one device together fit the cap they
 * share, or the device's memory. */
#include "partition/memory/caps.h"

#include <inttypes.h>
#include <string.h>

#include "loader/base/sizes.h"

static uint32_t stage_on(const opi_decision *plan, uint32_t rank) {
  uint32_t i = 0;
  while (i + 1 < plan->n_stages * plan->n_replicas && plan->instance_rank[i] != rank)
    ++i;
  return i / plan->n_replicas;
}

static opipe_status exceeds(const opi_plan *plan, uint32_t rank, opipe_error *err) {
  const opi_memory *m = &plan->predicted.memory[rank];
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
  opi_text_init(&text, plan->decided.allocator);
  for (size_t i = 0; i < OPI_COUNT(parts); ++i) {
    if (parts[i].always || parts[i].n_bytes != 0) {
      opi_text_printf(&text, "%s%s %llu", text.n == 0 ? "" : ", ", parts[i].name,
                      (unsigned long long)parts[i].n_bytes);
    }
  }
  const opipe_status status = opi_fail(
      err, OPIPE_E_LIMIT, "rank %u (stage %u) needs %s (%s) and exceeds its cap of %s by %s", rank,
      stage_on(&plan->decided, rank), OPI_SIZE(m->total_bytes), text.data == NULL ? "" : text.data,
      OPI_SIZE(m->cap_bytes), OPI_SIZE(more));
  opi_text_release(&text);
  return status;
}

/* ---- several ranks on one device ---- */

/* Whether two ranks belong to one sum. */
typedef bool (*together_fn)(const opi_plan *plan, uint32_t a, uint32_t b);

static bool have_one_cap(const opi_plan *plan, uint32_t a, uint32_t b) {
  return opi_cap_holder(plan->decided.devices, a) == opi_cap_holder(plan->decided.devices, b);
}

/* Whether they are on one device with known memory. */
static bool have_one_device(const opi_plan *plan, uint32_t a, uint32_t b) {
  return plan->predicted.memory[a].device_bytes != 0 &&
         plan->predicted.memory[b].device_bytes != 0 &&
         opi_is_one_device(&plan->decided.devices[a], &plan->decided.devices[b]);
}

uint64_t opi_caps_sum(const opi_plan *plan, uint32_t rank, uint32_t *out_n) {
  uint64_t sum = 0;
  *out_n = 0;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    if (!have_one_cap(plan, r, rank))
      continue;
    sum = opi_add_u64(sum, plan->predicted.memory[r].total_bytes, &sum) ? UINT64_MAX : sum;
    ++*out_n;
  }
  return sum;
}

static void put_size(opi_text *t, uint64_t bytes) {
  if (bytes >= UINT64_C(10) << 30)
    opi_text_printf(t, "%.1f GiB", (double)bytes / 1073741824.0);
  else if (bytes >= 10u << 20)
    opi_text_printf(t, "%.1f MiB", (double)bytes / 1048576.0);
  else
    opi_text_printf(t, "%.1f KiB", (double)bytes / 1024.0);
}

/* "ranks 0 and 1 need 48.0 MiB together (24.0 MiB, 24.0 MiB; 50331648 bytes)" */
static void put_sum(opi_text *t, const opi_plan *plan, uint32_t rank, together_fn together,
                    uint32_t n, uint64_t sum) {
  enum { LISTED = 16 };
  uint32_t i = 0;
  opi_text_puts(t, n == 1 ? "rank " : "ranks ");
  for (uint32_t r = 0; r < plan->decided.n_ranks && i < LISTED; ++r) {
    if (together(plan, r, rank))
      opi_text_printf(t, "%s%u", i++ == 0 ? "" : i == n ? " and " : ", ", r);
  }
  if (n > LISTED)
    opi_text_printf(t, " and %u more", n - LISTED);
  opi_text_puts(t, n == 1 ? " needs " : " need ");
  put_size(t, sum);
  opi_text_puts(t, n == 1 ? " (" : " together (");
  i = 0;
  for (uint32_t r = 0; n > 1 && r < plan->decided.n_ranks && i < LISTED; ++r) {
    if (!together(plan, r, rank))
      continue;
    opi_text_puts(t, i++ == 0 ? "" : ", ");
    put_size(t, plan->predicted.memory[r].total_bytes);
  }
  opi_text_printf(t, "%s%" PRIu64 " bytes)", n == 1 ? "" : n > LISTED ? " ...; " : "; ", sum);
}

static opipe_status too_much(const opi_plan *plan, uint32_t rank, together_fn together, uint32_t n,
                             uint64_t sum, opipe_error *err) {
  const opi_device_spec *spec = &plan->decided.devices[rank];
  const opi_memory *m = &plan->predicted.memory[rank];
  const bool capped = together == have_one_cap;
  const uint64_t most = capped ? m->cap_bytes : m->device_bytes, more = sum - most;
  opi_text text;
  opi_text_init(&text, plan->decided.allocator);
  opi_text_printf(&text, "device %s:%u: ", spec->kind, spec->index);
  put_sum(&text, plan, rank, together, n, sum);
  if (capped) {
    opi_text_printf(&text, ", which exceeds its cap of %" PRIu64 " (", most);
    put_size(&text, most);
    opi_text_puts(&text, ")");
  } else {
    opi_text_puts(&text, ", which exceeds the ");
    put_size(&text, most);
    opi_text_printf(&text, " (%" PRIu64 " bytes) that it has in all", most);
  }
  const opipe_status status =
      opi_fail(err, OPIPE_E_LIMIT, "%s by %" PRIu64 " byte%s", text.data == NULL ? "" : text.data,
               more, more == 1 ? "" : "s");
  opi_text_release(&text);
  return status;
}

/* Checks caps that several ranks share. */
static opipe_status check_shared(const opi_plan *plan, opipe_error *err) {
  bool any = false;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    any = any || plan->decided.devices[r].memory_with != 0;
  for (uint32_t r = 0; any && r < plan->decided.n_ranks; ++r) {
    uint32_t n = 0;
    if (plan->decided.devices[r].memory_with != 0 ||
        plan->predicted.memory[r].cap_bytes == UINT64_MAX)
      continue;
    const uint64_t sum = opi_caps_sum(plan, r, &n);
    if (n > 1 && sum > plan->predicted.memory[r].cap_bytes)
      return too_much(plan, r, have_one_cap, n, sum, err);
  }
  return OPIPE_OK;
}

/* Checks the memory of devices with a rank that has no cap. */
static opipe_status check_device(const opi_plan *plan, uint32_t rank, opipe_error *err) {
  uint64_t sum = 0;
  uint32_t n = 0, n_uncapped = 0, first = rank;
  for (uint32_t r = 0; plan->predicted.memory[rank].device_bytes != 0 && r < plan->decided.n_ranks;
       ++r) {
    if (!have_one_device(plan, r, rank))
      continue;
    first = r < first ? r : first;
    sum = opi_add_u64(sum, plan->predicted.memory[r].total_bytes, &sum) ? UINT64_MAX : sum;
    n_uncapped += plan->decided.devices[r].memory_bytes == 0;
    ++n;
  }
  return first == rank && n_uncapped != 0 && sum > plan->predicted.memory[rank].device_bytes
             ? too_much(plan, rank, have_one_device, n, sum, err)
             : OPIPE_OK;
}

opipe_status opi_plan_check_caps(const opi_plan *plan, opipe_error *err) {
  OPI_TRY(check_shared(plan, err));
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    if (plan->predicted.memory[r].total_bytes > plan->predicted.memory[r].cap_bytes)
      return exceeds(plan, r, err);
    OPI_TRY(check_device(plan, r, err));
  }
  return OPIPE_OK;
}
