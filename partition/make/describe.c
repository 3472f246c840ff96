/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a plan for people: what runs where, how much memory and time it takes, and how far it
 * is from the bound. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/make/make.h"
#include "partition/make/passes.h"
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

static bool is_on(const opi_decision *plan, uint32_t stage, uint32_t rank) {
  for (uint32_t r = 0; r < plan->n_replicas; ++r) {
    if (opi_plan_rank(plan, stage, r) == rank - rank % opi_plan_width(plan))
      return true;
  }
  return false;
}

/* Writes the stages of a rank, as in "0,4,8", as far as they fit. Returns the length. */
static int list_stages(const opi_decision *plan, uint32_t rank, char *out, size_t room) {
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
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const int n = list_stages(&plan->decided, r, stages, sizeof stages);
    wide = n > wide ? n : wide;
  }
  opi_text_printf(t,
                  "rank  %-*s  device            nodes      time   parameters   activations  "
                  "workspace    boundaries        total          cap\n",
                  wide, "stages");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    uint32_t n_nodes = 0;
    double ns = 0;
    for (uint32_t s = plan->decided.n_stages; s-- > 0;) {
      if (!is_on(&plan->decided, s, r))
        continue;
      ns += plan->predicted.times.stage_ns[s] /
            (plan->decided.shares == NULL ? 1 : plan->decided.shares[s]);
      for (uint32_t n = 0; n < plan->decided.n_nodes; ++n)
        n_nodes += plan->decided.stage_of_node[n] == s;
    }
    char device[40];
    (void)list_stages(&plan->decided, r, stages, sizeof stages);
    (void)snprintf(device, sizeof(device), "%s:%u%s", plan->decided.devices[r].kind,
                   plan->decided.devices[r].index,
                   plan->decided.devices[r].threads == 1 ? " 1 thread" : "");
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

/* Caps shared by several ranks. */
static void describe_caps(opi_text *t, const opi_plan *plan) {
  bool any = false;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    any = any || plan->decided.devices[r].memory_with != 0;
  for (uint32_t r = 0; any && r < plan->decided.n_ranks; ++r) {
    uint32_t n = 0;
    if (plan->decided.devices[r].memory_with != 0)
      continue;
    const uint64_t sum = opi_caps_sum(plan, r, &n);
    if (n < 2)
      continue;
    opi_text_printf(t, "%s:%u: one cap for %u ranks, which need", plan->decided.devices[r].kind,
                    plan->decided.devices[r].index, n);
    bytes_text(t, sum);
    opi_text_puts(t, " together\n");
  }
}

/* Nodes that a device lacks run on the CPU and cost copies; the user should see that unasked. */
static void describe_fallback(opi_text *t, const opi_plan *plan) {
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    if (m->n_fallback == 0)
      continue;
    opi_text_printf(t,
                    "rank %u: %" PRIu64
                    " node%s that %s:%u lacks run%s on the CPU, with "
                    "%.1f KiB of pinned copies\n",
                    r, m->n_fallback, m->n_fallback == 1 ? "" : "s", plan->decided.devices[r].kind,
                    plan->decided.devices[r].index, m->n_fallback == 1 ? "s" : "",
                    (double)m->host_bytes / 1024.0);
  }
}

/* Precision of products with few-bit weights: rows are rounded to 8 bits if the file permits it and
 * the device does it. */
static void describe_few_bits(opi_text *t, const opi_plan *plan) {
  for (uint32_t i = 0; i < plan->predicted.n_few_bits; ++i) {
    const opi_few_bits *form = &plan->predicted.few_bits[i];
    opi_text_printf(t, "%s%u of %u bits at accuracy level %" PRId64,
                    i == 0 ? "products with weights of few bits: " : ", ", form->n, form->bits,
                    form->level);
  }
  if (plan->predicted.n_few_bits == 0)
    return;
  opi_text_puts(t, "\n");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    if (m->estimated)
      continue; /* nobody knows */
    opi_text_printf(t,
                    "rank %u: %" PRIu64
                    " of its products round%s the rows that they multiply to 8 bits a block\n",
                    r, m->n_rounded, m->n_rounded == 1 ? "s" : "");
  }
}

/* How messages travel between devices; within the host's memory or one device there is no choice.
 */
static void describe_ways(opi_text *t, const opi_plan *plan) {
  const opi_prediction *p = &plan->predicted;
  for (uint32_t way = OPIPE_WAY_PEER; way <= OPIPE_WAY_PAGEABLE; ++way) {
    const opi_way_told *first = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ways; ++i) {
      const opi_way_told *told = &p->ways[i];
      if (told->way != way)
        continue;
      if (first == NULL) {
        opi_text_printf(t, "messages %s: rank", opi_way_words(way));
        first = told;
      }
      if (++n <= CROSSINGS_MOST)
        opi_text_printf(t, "%s %u -> %u", n == 1 ? "" : ",", told->src_rank, told->dst_rank);
    }
    if (n > CROSSINGS_MOST)
      opi_text_printf(t, ", and %u more", n - CROSSINGS_MOST);
    if (first != NULL && first->why[0] != '\0')
      opi_text_printf(t, " (%s)", first->why);
    opi_text_puts(t, first == NULL ? "" : "\n");
  }
  uint32_t n = 0;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const uint64_t bytes = p->memory[r].staging_bytes;
    if (bytes == 0)
      continue;
    opi_text_printf(t, "%s rank %u:", n++ == 0 ? "pinned host memory for messages, by rank:" : ",",
                    r);
    bytes_text(t, bytes);
  }
  opi_text_puts(t, n == 0 ? "" : "\n");
}

static void describe_offloads(opi_text *t, const opi_plan *plan) {
  const opi_decision *d = &plan->decided;
  for (uint32_t r = 0; d->n_offload != 0 && r < d->n_ranks; ++r) {
    const double rate = d->devices[r].host_bytes_per_ns;
    if (r == 0) {
      opi_text_printf(t, "offloads of %u tensor%s, with host memory of", d->n_offload,
                      d->n_offload == 1 ? "" : "s");
    }
    opi_text_printf(t, "%s rank %u:", r == 0 ? "" : ",", r);
    bytes_text(t, plan->predicted.memory[r].offload_bytes);
    if (rate > 0)
      opi_text_printf(t, " at %.3g GB/s", rate);
  }
  opi_text_puts(t, d->n_offload == 0 ? "" : "\n");
}

static void describe_shares(opi_text *t, const opi_decision *plan) {
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    opi_text_printf(t, "%s%u", s == 0 ? "" : "+", plan->shares[s]);
  opi_text_puts(t, " replicas of the stages, which cut micro-batches between them");
}

static void describe_training(opi_text *t, const opi_plan *plan) {
  static const char *const recomputes[] = {"nothing", "whole stages", "blocks", "attention"};
  if (!opi_plan_trains(&plan->decided))
    return;
  opi_text_printf(t, "training: %s, ",
                  opipe_optimizer_row_of(plan->decided.train->optimizer.kind)->title);
  if (plan->decided.shares != NULL) {
    describe_shares(t, &plan->decided);
  } else {
    opi_text_printf(t, "%u replica%s of each stage", plan->decided.n_replicas,
                    plan->decided.n_replicas == 1 ? "" : "s");
  }
  opi_text_printf(
      t, ", %u slice%s, %s made again%s\n", plan->decided.n_slices,
      plan->decided.n_slices == 1 ? "" : "s", recomputes[plan->decided.train->recompute],
      plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? ", weights double-buffered" : "");
  const opi_train_choice *choice = &plan->decided.train->choice;
  opi_text_printf(t, "%u initializers are trained, %u doubtful (trained or not)\n",
                  choice->n_trained, choice->n_doubts);
  for (uint32_t i = 0; i < choice->n_doubts && i < CROSSINGS_MOST; ++i)
    opi_text_printf(t, "doubtful: %s: %s\n", choice->doubts[i].name, choice->doubts[i].why);
  if (choice->n_doubts > CROSSINGS_MOST)
    opi_text_printf(t, "... and %u more\n", choice->n_doubts - CROSSINGS_MOST);
  opi_text_puts(t, "rank      gradients    optimizer     versions      stashes\n");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    opi_text_printf(t, "%4u   ", r);
    bytes_text(t, m->gradient_bytes);
    bytes_text(t, m->optimizer_bytes);
    bytes_text(t, m->version_bytes);
    bytes_text(t, m->stash_bytes);
    opi_text_puts(t, "\n");
  }
  describe_offloads(t, plan);
}

static void describe_states(opi_text *t, const opi_plan *plan) {
  if (plan->decided.n_states == 0)
    return;
  opi_text_printf(t, "streams: %u, each keeps %u tensor%s twice; bytes of one, by rank:",
                  plan->predicted.n_streams, plan->decided.n_states,
                  plan->decided.n_states == 1 ? "" : "s");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    bytes_text(t, plan->predicted.memory[r].stream_bytes);
  opi_text_puts(t, "\n");
  for (uint32_t i = 0; i < plan->decided.n_states && i < CROSSINGS_MOST; ++i) {
    const opi_state_pair *pair = &plan->decided.states[i];
    opi_text_printf(t, "state, stage %u: %s -> %s, %" PRIu64 " elements\n", pair->stage,
                    pair->output, pair->input, pair->capacity);
  }
  if (plan->decided.n_states > CROSSINGS_MOST)
    opi_text_printf(t, "... and %u more\n", plan->decided.n_states - CROSSINGS_MOST);
}

/* Tokens that ranks have room for. */
static void describe_pages(opi_text *t, const opi_plan *plan) {
  const opi_generation *g = &plan->decided.binding.generation;
  uint32_t least = OPIPE_NONE;
  uint64_t room = UINT64_MAX;
  opi_text_puts(t, "pages, by rank:");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    bytes_text(t, plan->predicted.memory[r].state_bytes);
  opi_text_puts(t, "; room for tokens:");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const uint64_t n = plan->predicted.memory[r].page_room;
    if (n == UINT64_MAX)
      opi_text_puts(t, " any");
    else
      opi_text_printf(t, " %" PRIu64, n * g->page);
    least = n < room ? r : least;
    room = n < room ? n : room;
  }
  if (least != OPIPE_NONE)
    opi_text_printf(t, "; rank %u limits", least);
  opi_text_puts(t, "\n");
}

static void describe_play(opi_text *t, const opi_plan *plan) {
  const opi_generation *g = &plan->decided.binding.generation;
  const opi_pass_played *p = &plan->predicted.passes;
  if (p->slice_rows != 0) {
    opi_text_printf(t, "%u passes in flight: %.0f tokens/s for %u sequences, stages idle %.1f %%\n",
                    g->groups, p->tokens_per_s, g->active, 100 * p->idle);
    opi_text_printf(t, "a prompt of %u tokens alone: %.3f ms in %u slices, of at most %u rows",
                    g->context, p->prompt_ns * 1e-6, p->n_slices, p->slice_rows);
    if (p->slice_ns > 0)
      opi_text_printf(t, " and %.3f ms", p->slice_ns * 1e-6);
    opi_text_puts(t, "\n");
  }
  if (p->replicas != 0) {
    opi_text_printf(t,
                    "%u copies of the whole model, one on each rank, would be faster: %.0f "
                    "tokens/s, each with",
                    p->replicas, p->replicas_tokens_per_s);
    bytes_text(t, p->replica_bytes);
    opi_text_puts(t, "\n");
  }
}

static void describe_passes(opi_text *t, const opi_plan *plan) {
  const opi_generation *g = &plan->decided.binding.generation;
  if (g->context == 0)
    return;
  opi_text_printf(t,
                  "generation: %" PRIu64
                  " tokens in %u pages of %u, context %u, %u sequences "
                  "active; passes of up to %u rows, %u in flight",
                  (uint64_t)g->n_pages * g->page, g->n_pages, g->page, g->context, g->active,
                  g->rows, g->groups);
  opi_text_printf(t, plan->decided.copies > 1 ? "; so in each of %u replicas\n" : "\n",
                  plan->decided.copies);
  describe_pages(t, plan);
  for (uint32_t c = 0; c < opi_generation_classes(g); ++c) {
    opi_text_printf(t, "%s%u rows %.3f ms", c == 0 ? "a pass without keys: " : ", ",
                    opi_generation_rows(g, c), plan->predicted.pass_ns[c] * 1e-6);
  }
  opi_text_printf(t, "; 1000 keys of a row %.3f ms\n", plan->predicted.key_ns * 1e-3);
  describe_play(t, plan);
}

static void describe_messages(opi_text *t, const opi_plan *plan) {
  if (plan->predicted.n_made_in_place + plan->predicted.n_copied != 0) {
    opi_text_printf(t,
                    "tensors between ranks in a %s: %u made where they are read, %u copied "
                    "(%.1f KiB)\n",
                    opi_plan_trains(&plan->decided) ? "mini-batch" : "request",
                    plan->predicted.n_made_in_place, plan->predicted.n_copied,
                    (double)plan->predicted.copied_bytes / 1024.0);
  }
}

static void describe_planner(opi_text *t, const opi_plan *plan) {
  char line[OPI_LINE_ROOM];
  if (plan->predicted.planner == NULL)
    return;
  opi_text_printf(t, "planner %s", opi_text_line(line, plan->predicted.planner));
  if (plan->predicted.stopped != NULL) {
    opi_text_printf(t, ", its search ended early, by %s",
                    opi_text_line(line, plan->predicted.stopped));
  }
  opi_text_puts(t, "\n");
}

static void describe_kernels(opi_text *t, const opi_plan *plan) {
  char line[OPI_LINE_ROOM];
  for (uint32_t i = 0; plan->predicted.kernels != NULL && i < plan->predicted.kernels->n; ++i) {
    const opi_kernel_table *table = &plan->predicted.kernels->tables[i];
    opi_text_printf(t, "kernels: %u chosen by measuring, for %s\n", table->n,
                    opi_text_line(line, table->fit));
  }
}

static void describe_search(opi_text *t, const opi_plan *plan) {
  const opi_searched *s = &plan->predicted.searched;
  const double now = plan->predicted.request_ns;
  char line[OPI_LINE_ROOM];
  if (s->moves == 0)
    return;
  opi_text_printf(t, "order found in %" PRIu64 " moves, from ", s->moves);
  for (uint32_t i = 0; i < plan->decided.schedule.n_settings; ++i) {
    if (strcmp(plan->decided.schedule.settings[i].key, "from") == 0)
      opi_text_puts(t, opi_text_line(line, plan->decided.schedule.settings[i].value));
  }
  opi_text_printf(t, ": %.3f ms, before %.3f ms", now * 1e-6, s->start_ns * 1e-6);
  if (s->bound_ns > 0) {
    const double gap = 100 * (now / s->bound_ns - 1); /* rounding may make it negative */
    opi_text_printf(t, "; %.2f %% above the lower bound for these stages", gap > 0 ? gap : 0);
  }
  opi_text_puts(t, "\n");
}

static void describe_sums(opi_text *t, const opi_plan *plan) {
  if (opi_plan_is_unordered(&plan->decided)) {
    opi_text_printf(t,
                    "sums over ranks: unordered (by transport '%.100s'): close to the plan's "
                    "reference, not its bits\n",
                    plan->decided.transport);
  }
}

static void describe_reasons(opi_text *t, const char *word, const opi_whole_told *told,
                             uint32_t n) {
  enum { TOLD_MOST = 12 };
  for (uint32_t i = 0; i < n && i < TOLD_MOST; ++i)
    opi_text_printf(t, "%s: %s: %s\n", word, told[i].node, told[i].why);
  if (n > TOLD_MOST)
    opi_text_printf(t, "... and %u more\n", n - TOLD_MOST);
}

/* Whether members send parts of a tensor to another stage: not where all edges are direct. */
static bool sends_parts(const opi_plan *plan) {
  uint32_t i = 0;
  while (i < plan->predicted.n_crossings && plan->predicted.crossings[i].whole_bytes == 0)
    ++i;
  return i < plan->predicted.n_crossings;
}

/* Tensor groups: collectives by stage, what is not divided, and what rows are gathered for. */
static void describe_groups(opi_text *t, const opi_plan *plan) {
  const uint32_t width = opi_plan_width(&plan->decided);
  if (width == 1)
    return;
  opi_text_printf(t, "tensor groups of %u members%s", width,
                  plan->decided.division.sequence ? ", in rows"
                  : sends_parts(plan)             ? ", which send parts over links"
                                                  : "");
  if (plan->predicted.tensor.groups == NULL) {
    opi_text_puts(t, "\n");
    return;
  }
  opi_text_printf(t, ": %u products and tables divided, %u whole\n",
                  plan->predicted.tensor.n_divided, plan->predicted.tensor.n_whole);
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s) {
    const opi_group_told *g = &plan->predicted.tensor.groups[s];
    opi_text_printf(t, "stage %u: %u collective%s of a micro-batch, ", s, g->n_forward,
                    g->n_forward == 1 ? "" : "s");
    bytes_text(t, g->forward_bytes);
    if (g->n_backward != 0) {
      opi_text_printf(t, "; backward %u, ", g->n_backward);
      bytes_text(t, g->backward_bytes);
    }
    opi_text_puts(t, "\n");
  }
  describe_reasons(t, "whole", plan->predicted.tensor.whole, plan->predicted.tensor.n_whole);
  describe_reasons(t, "needs all rows", plan->predicted.tensor.mixed,
                   plan->predicted.tensor.n_mixed);
}

static void describe_times(opi_text *t, const opi_plan *plan) {
  enum { TIMES_LEAST = 2 }; /* smaller gaps are printed in per cent */
  const double bound = plan->predicted.bound_ns * plan->decided.n_microbatches;
  static const char *const bases[] = {"device rates", "measured nodes", "given times of stages"};
  const char *basis =
      bases[plan->predicted.cost_kind <= OPI_COST_GIVEN ? plan->predicted.cost_kind : 0];
  if (opi_plan_trains(&plan->decided)) {
    opi_text_printf(t, "predicted (%s): %.3f ms for one mini-batch, without its update", basis,
                    plan->predicted.interval_ns * 1e-6);
    if (plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED)
      opi_text_printf(t, " (%.3f ms alone)", plan->predicted.request_ns * 1e-6);
  } else {
    opi_text_printf(t,
                    "predicted (%s): %.3f ms for one request, %.3f ms between requests of a stream",
                    basis, plan->predicted.request_ns * 1e-6, plan->predicted.interval_ns * 1e-6);
  }
  if (bound >= 1) {                                           /* ns */
    const double times = plan->predicted.interval_ns / bound; /* rounding may make it less than 1 */
    if (times < TIMES_LEAST)
      opi_text_printf(t, "; %.1f %% above", 100.0 * (times > 1 ? times - 1 : 0));
    else
      opi_text_printf(t, "; %.2f times", times);
    opi_text_printf(t, " the lower bound of %.3f ms (equal stages that never wait)", bound * 1e-6);
  }
  opi_text_puts(t, "\n");
  opi_text_printf(t, "work: %.3f Gflop", plan->predicted.flops * 1e-9);
  if (opi_plan_utilisation(plan) > 0) {
    opi_text_printf(t, ", %.1f %% of what the devices could do by their rates",
                    100 * opi_plan_utilisation(plan));
  }
  opi_text_puts(t, "\n");
}

opipe_status opi_plan_describe(const opi_plan *plan, opipe_write_fn write, void *ctx,
                               opipe_error *err) {
  opi_text t;
  opi_text_init(&t, plan->decided.allocator);
  opi_text_printf(&t, "plan: %u stage%s on %u rank%s, schedule %s, %u micro-batch%s",
                  plan->decided.n_stages, plan->decided.n_stages == 1 ? "" : "s",
                  plan->decided.n_ranks, plan->decided.n_ranks == 1 ? "" : "s",
                  plan->decided.schedule.name, plan->decided.n_microbatches,
                  plan->decided.n_microbatches == 1 ? "" : "es");
  if (!opi_plan_trains(&plan->decided) && plan->decided.n_slices > 1)
    opi_text_printf(&t, " in %u token slices", plan->decided.n_slices);
  for (uint32_t i = 0; i < plan->decided.binding.n_dims; ++i) {
    opi_text_printf(&t, "%s%s=%" PRId64, i == 0 ? "; " : ", ", plan->decided.binding.dims[i].name,
                    plan->decided.binding.dims[i].value);
  }
  opi_text_puts(&t, "\n");
  describe_ranks(&t, plan);
  describe_caps(&t, plan);
  describe_fallback(&t, plan);
  describe_ways(&t, plan);
  describe_few_bits(&t, plan);
  if (!opi_plan_trains(&plan->decided) && plan->decided.shares != NULL) {
    describe_shares(&t, &plan->decided);
    opi_text_puts(&t, "\n");
  }
  describe_groups(&t, plan);
  describe_training(&t, plan);
  describe_sums(&t, plan);
  describe_states(&t, plan);
  describe_passes(&t, plan);
  for (uint32_t i = 0; i < plan->predicted.n_crossings && i < CROSSINGS_MOST; ++i) {
    opi_text_printf(&t, "cut %u -> %u: ", plan->predicted.crossings[i].src_stage,
                    plan->predicted.crossings[i].dst_stage);
    bytes_text(&t, plan->predicted.crossings[i].n_bytes);
    if (plan->predicted.crossings[i].whole_bytes != 0) {
      opi_text_puts(&t, " in parts, whole ");
      bytes_text(&t, plan->predicted.crossings[i].whole_bytes);
    }
    opi_text_printf(&t, "  %s\n", plan->predicted.crossings[i].name);
  }
  if (plan->predicted.n_crossings > CROSSINGS_MOST)
    opi_text_printf(&t, "... and %u more\n", plan->predicted.n_crossings - CROSSINGS_MOST);
  describe_messages(&t, plan);
  describe_planner(&t, plan);
  describe_search(&t, plan);
  describe_kernels(&t, plan);
  describe_times(&t, plan);
  const opipe_status status = opi_text_write(&t, write, ctx, err);
  opi_text_release(&t);
  return status;
}
