/* SPDX-License-Identifier: Apache-2.0 */
/* A plan for people: who, where, what it takes, how long, and how far from the best possible. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/make/make.h"
#include "partition/make/work.h"
#include "partition/memory/caps.h"
#include "partition/plan/kernels.h"

enum { CROSSINGS_MOST = 40 };

static void bytes_text(opi_text *t, uint64_t bytes) {
  if (bytes >= UINT64_C(10) << 30)
    opi_text_printf(t, "%8.1f GiB", (double)bytes / 1073741824.0);
  else if (bytes >= 10u << 20)
    opi_text_printf(t, "%8.1f MiB", (double)bytes / 1048576.0);
  else
    opi_text_printf(t, "%8.1f KiB", (double)bytes / 1024.0);
}

static bool is_on(const opi_plan *plan, uint32_t stage, uint32_t rank) {
  for (uint32_t r = 0; r < plan->n_replicas; ++r) {
    if (opi_plan_rank(plan, stage, r) == rank)
      return true;
  }
  return false;
}

/* "0,4,8": the stages of a rank, as far as there is room. Returns the length. */
static int list_stages(const opi_plan *plan, uint32_t rank, char *out, size_t room) {
  size_t n = 0;
  out[0] = '\0';
  for (uint32_t s = 0; s < plan->n_stages && n + 12 < room; ++s) {
    if (is_on(plan, s, rank))
      n += (size_t)snprintf(out + n, room - n, n == 0 ? "%u" : ",%u", s);
  }
  return (int)n;
}

static void describe_ranks(opi_text *t, const opi_plan *plan) {
  enum { STAGES_ROOM = 400, STAGES_LEAST = 6 };
  uint32_t n_estimated = 0;
  char stages[STAGES_ROOM];
  int wide = STAGES_LEAST;
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const int n = list_stages(plan, r, stages, sizeof stages);
    wide = n > wide ? n : wide;
  }
  opi_text_printf(t,
                  "rank  %-*s  device            nodes      time   parameters   activations  "
                  "workspace    boundaries        total          cap\n",
                  wide, "stages");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const opi_memory *m = &plan->memory[r];
    uint32_t n_nodes = 0;
    double ns = 0;
    for (uint32_t s = plan->n_stages; s-- > 0;) {
      if (!is_on(plan, s, r))
        continue;
      ns += plan->stage_ns[s] / (plan->shares == NULL ? 1 : plan->shares[s]);
      for (uint32_t n = 0; n < plan->n_nodes; ++n)
        n_nodes += plan->stage_of_node[n] == s;
    }
    char device[40];
    (void)list_stages(plan, r, stages, sizeof stages);
    (void)snprintf(device, sizeof(device), "%s:%u%s", plan->devices[r].kind, plan->devices[r].index,
                   plan->devices[r].threads == 1 ? " 1 thread" : "");
    opi_text_printf(t, "%4u  %-*s  %-15s %6u %7.3f ms ", r, wide, stages, device, n_nodes,
                    ns * 1e-6);
    bytes_text(t, m->params_bytes);
    bytes_text(t, m->activation_bytes);
    bytes_text(t, m->workspace_bytes);
    bytes_text(t, m->boundary_bytes);
    bytes_text(t, m->total_bytes);
    const uint64_t cap = opi_memory_cap(m);
    if (cap == UINT64_MAX)
      opi_text_puts(t, "         none");
    else
      bytes_text(t, cap);
    opi_text_puts(t, "\n");
    n_estimated += m->estimated ? 1 : 0;
  }
  if (n_estimated != 0) {
    opi_text_printf(t,
                    "bytes of %u rank%s are estimates: their devices were described, not asked\n",
                    n_estimated, n_estimated == 1 ? "" : "s");
  }
}

/* Caps of which several ranks have one. */
static void describe_caps(opi_text *t, const opi_plan *plan) {
  bool any = false;
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    any = any || plan->devices[r].memory_with != 0;
  for (uint32_t r = 0; any && r < plan->n_ranks; ++r) {
    uint32_t n = 0;
    if (plan->devices[r].memory_with != 0)
      continue;
    const uint64_t sum = opi_caps_sum(plan, r, &n);
    if (n < 2)
      continue;
    opi_text_printf(t, "%s:%u: one cap for %u ranks, which need", plan->devices[r].kind,
                    plan->devices[r].index, n);
    bytes_text(t, sum);
    opi_text_puts(t, " together\n");
  }
}

/* Nodes that a device lacks run elsewhere, and cost copies: nobody should have to ask for that. */
static void describe_fallback(opi_text *t, const opi_plan *plan) {
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const opi_memory *m = &plan->memory[r];
    if (m->n_fallback == 0)
      continue;
    opi_text_printf(t,
                    "rank %u: %" PRIu64
                    " node%s that %s:%u lacks run%s on the CPU, with "
                    "%.1f KiB of pinned copies\n",
                    r, m->n_fallback, m->n_fallback == 1 ? "" : "s", plan->devices[r].kind,
                    plan->devices[r].index, m->n_fallback == 1 ? "s" : "",
                    (double)m->host_bytes / 1024.0);
  }
}

/* How exactly they compute: rows of 8 bits where the file lets them and the device does it. */
static void describe_few_bits(opi_text *t, const opi_plan *plan) {
  for (uint32_t i = 0; i < plan->n_few_bits; ++i) {
    const opi_few_bits *form = &plan->few_bits[i];
    opi_text_printf(t, "%s%u of %u bits at accuracy level %" PRId64,
                    i == 0 ? "products with weights of few bits: " : ", ", form->n, form->bits,
                    form->level);
  }
  if (plan->n_few_bits == 0)
    return;
  opi_text_puts(t, "\n");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const opi_memory *m = &plan->memory[r];
    if (m->estimated)
      continue; /* nobody knows */
    opi_text_printf(t,
                    "rank %u: %" PRIu64
                    " of its products round%s the rows that they multiply to 8 bits a block\n",
                    r, m->n_rounded, m->n_rounded == 1 ? "s" : "");
  }
}

static void describe_shares(opi_text *t, const opi_plan *plan) {
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    opi_text_printf(t, "%s%u", s == 0 ? "" : "+", plan->shares[s]);
  opi_text_puts(t, " replicas of the stages, which cut micro-batches between them");
}

static void describe_training(opi_text *t, const opi_plan *plan) {
  static const char *const recomputes[] = {"nothing", "whole stages", "blocks", "attention"};
  if (plan->train == NULL)
    return;
  opi_text_printf(t, "training: %s, ", opipe_optimizer_row_of(plan->train->optimizer.kind)->title);
  if (plan->shares != NULL) {
    describe_shares(t, plan);
  } else {
    opi_text_printf(t, "%u replica%s of each stage", plan->n_replicas,
                    plan->n_replicas == 1 ? "" : "s");
  }
  opi_text_printf(
      t, ", %u slice%s, %s made again%s\n", plan->n_slices, plan->n_slices == 1 ? "" : "s",
      recomputes[plan->train->recompute],
      plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? ", weights double-buffered" : "");
  const opi_train_choice *choice = &plan->train->choice;
  opi_text_printf(t, "%u initializers are trained, %u doubtful (trained or not)\n",
                  choice->n_trained, choice->n_doubts);
  for (uint32_t i = 0; i < choice->n_doubts && i < CROSSINGS_MOST; ++i)
    opi_text_printf(t, "doubtful: %s: %s\n", choice->doubts[i].name, choice->doubts[i].why);
  if (choice->n_doubts > CROSSINGS_MOST)
    opi_text_printf(t, "... and %u more\n", choice->n_doubts - CROSSINGS_MOST);
  opi_text_puts(t, "rank      gradients    optimizer     versions      stashes\n");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const opi_memory *m = &plan->memory[r];
    opi_text_printf(t, "%4u   ", r);
    bytes_text(t, m->gradient_bytes);
    bytes_text(t, m->optimizer_bytes);
    bytes_text(t, m->version_bytes);
    bytes_text(t, m->stash_bytes);
    opi_text_puts(t, "\n");
  }
}

static void describe_states(opi_text *t, const opi_plan *plan) {
  if (plan->n_states == 0)
    return;
  opi_text_printf(t, "streams: %u, each keeps %u tensor%s twice; bytes of one, by rank:",
                  plan->n_streams, plan->n_states, plan->n_states == 1 ? "" : "s");
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    bytes_text(t, plan->memory[r].stream_bytes);
  opi_text_puts(t, "\n");
  for (uint32_t i = 0; i < plan->n_states && i < CROSSINGS_MOST; ++i) {
    const opi_state_pair *pair = &plan->states[i];
    opi_text_printf(t, "state, stage %u: %s -> %s, %" PRIu64 " elements\n", pair->stage,
                    pair->output, pair->input, pair->capacity);
  }
  if (plan->n_states > CROSSINGS_MOST)
    opi_text_printf(t, "... and %u more\n", plan->n_states - CROSSINGS_MOST);
}

static void describe_messages(opi_text *t, const opi_plan *plan) {
  if (plan->n_made_in_place + plan->n_copied != 0) {
    opi_text_printf(t,
                    "tensors between ranks in a %s: %u made where they are read, %u copied "
                    "(%.1f KiB)\n",
                    plan->train != NULL ? "mini-batch" : "request", plan->n_made_in_place,
                    plan->n_copied, (double)plan->copied_bytes / 1024.0);
  }
}

static void describe_planner(opi_text *t, const opi_plan *plan) {
  char line[OPI_LINE_ROOM];
  if (plan->planner == NULL)
    return;
  opi_text_printf(t, "planner %s", opi_text_line(line, plan->planner));
  if (plan->stopped != NULL)
    opi_text_printf(t, ", its search ended early, by %s", opi_text_line(line, plan->stopped));
  opi_text_puts(t, "\n");
}

static void describe_kernels(opi_text *t, const opi_plan *plan) {
  char line[OPI_LINE_ROOM];
  for (uint32_t i = 0; plan->kernels != NULL && i < plan->kernels->n; ++i) {
    const opi_kernel_table *table = &plan->kernels->tables[i];
    opi_text_printf(t, "kernels: %u chosen by measuring, for %s\n", table->n,
                    opi_text_line(line, table->fit));
  }
}

static void describe_search(opi_text *t, const opi_plan *plan) {
  const opi_searched *s = &plan->searched;
  const double now = plan->request_ns;
  char line[OPI_LINE_ROOM];
  if (s->moves == 0)
    return;
  opi_text_printf(t, "order found in %" PRIu64 " moves, from ", s->moves);
  for (uint32_t i = 0; i < plan->n_settings; ++i) {
    if (strcmp(plan->settings[i].key, "from") == 0)
      opi_text_puts(t, opi_text_line(line, plan->settings[i].value));
  }
  opi_text_printf(t, ": %.3f ms, before %.3f ms", now * 1e-6, s->start_ns * 1e-6);
  if (s->bound_ns > 0) {
    const double gap = 100 * (now / s->bound_ns - 1); /* a rounding may lie below */
    opi_text_printf(t, "; %.2f %% above what no order of these stages beats", gap > 0 ? gap : 0);
  }
  opi_text_puts(t, "\n");
}

static void describe_times(opi_text *t, const opi_plan *plan) {
  enum { TIMES_LEAST = 2 }; /* a gap below is told in per cent */
  const double bound = plan->bound_ns * plan->n_microbatches;
  static const char *const bases[] = {"device rates", "measured nodes", "given times of stages"};
  const char *basis = bases[plan->cost_kind <= OPI_COST_GIVEN ? plan->cost_kind : 0];
  if (plan->train != NULL) {
    opi_text_printf(t, "predicted (%s): %.3f ms for one mini-batch, its update left out", basis,
                    plan->interval_ns * 1e-6);
    if (plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED)
      opi_text_printf(t, " (%.3f ms alone)", plan->request_ns * 1e-6);
  } else {
    opi_text_printf(t,
                    "predicted (%s): %.3f ms for one request, %.3f ms between requests of a stream",
                    basis, plan->request_ns * 1e-6, plan->interval_ns * 1e-6);
  }
  if (bound >= 1) {                                 /* ns */
    const double times = plan->interval_ns / bound; /* a rounding may lie below 1 */
    if (times < TIMES_LEAST)
      opi_text_printf(t, "; %.1f %% above", 100.0 * (times > 1 ? times - 1 : 0));
    else
      opi_text_printf(t, "; %.2f times", times);
    opi_text_printf(t, " the lower bound of %.3f ms (equal stages that never wait)", bound * 1e-6);
  }
  opi_text_puts(t, "\n");
  opi_text_printf(t, "work: %.3f Gflop", plan->flops * 1e-9);
  if (opi_plan_utilisation(plan) > 0) {
    opi_text_printf(t, ", %.1f %% of what the devices could do by their rates",
                    100 * opi_plan_utilisation(plan));
  }
  opi_text_puts(t, "\n");
}

opipe_status opi_plan_describe(const opi_plan *plan, opipe_write_fn write, void *ctx,
                               opipe_error *err) {
  opi_text t;
  opi_text_init(&t, plan->allocator);
  opi_text_printf(&t, "plan: %u stage%s on %u rank%s, schedule %s, %u micro-batch%s",
                  plan->n_stages, plan->n_stages == 1 ? "" : "s", plan->n_ranks,
                  plan->n_ranks == 1 ? "" : "s", plan->schedule, plan->n_microbatches,
                  plan->n_microbatches == 1 ? "" : "es");
  if (plan->train == NULL && plan->n_slices > 1)
    opi_text_printf(&t, " in %u token slices", plan->n_slices);
  for (uint32_t i = 0; i < plan->n_dims; ++i) {
    opi_text_printf(&t, "%s%s=%" PRId64, i == 0 ? "; " : ", ", plan->dims[i].name,
                    plan->dims[i].value);
  }
  opi_text_puts(&t, "\n");
  describe_ranks(&t, plan);
  describe_caps(&t, plan);
  describe_fallback(&t, plan);
  describe_few_bits(&t, plan);
  if (plan->train == NULL && plan->shares != NULL) {
    describe_shares(&t, plan);
    opi_text_puts(&t, "\n");
  }
  describe_training(&t, plan);
  describe_states(&t, plan);
  for (uint32_t i = 0; i < plan->n_crossings && i < CROSSINGS_MOST; ++i) {
    opi_text_printf(&t, "cut %u -> %u: ", plan->crossings[i].src_stage,
                    plan->crossings[i].dst_stage);
    bytes_text(&t, plan->crossings[i].n_bytes);
    opi_text_printf(&t, "  %s\n", plan->crossings[i].name);
  }
  if (plan->n_crossings > CROSSINGS_MOST)
    opi_text_printf(&t, "... and %u more\n", plan->n_crossings - CROSSINGS_MOST);
  describe_messages(&t, plan);
  describe_planner(&t, plan);
  describe_search(&t, plan);
  describe_kernels(&t, plan);
  describe_times(&t, plan);
  const opipe_status status = opi_text_write(&t, write, ctx, err);
  opi_text_release(&t);
  return status;
}
