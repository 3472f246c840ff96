/* SPDX-License-Identifier: Apache-2.0 */
/* improve_grid [MOVES [FIRST END]]: 60 problems, and for each the best of the named schedules, what
 * search makes of it, and what no order beats, as a table. Schedules are plugins of
 * $OPIPE_PLUGIN_PATH. The same table on every machine: nothing is timed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi/api/plugins.h"
#include "partition/study/improve/improve.h"
#include "partition/study/improve/named.h"

enum { STAGES_MOST = 32, PROBLEMS = 60 };

typedef struct problem {
  char name[96];
  uint32_t n_ranks, n_stages, n_microbatches;
  double forward[STAGES_MOST], input[STAGES_MOST], weight[STAGES_MOST];
  double comm;
  uint32_t held; /* micro-batches that a rank has room for; 0: any number */
} problem;

/* ---- the grid ---- */

/* F, I, W of a transformer's blocks at three lengths of sequences. */
static const double ratios[3][3] = {{1, 1, 1}, {1, 1.25, 0.75}, {1, 1.6, 0.6}};

static void set_costs(problem *p, const double *ratio, double first, double last, double uneven) {
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    /* a pattern that repeats at no small number */
    const double wave = 1 + uneven * (((s * 7 + 3) % 11) / 5.0 - 1);
    const double size = wave * (s == 0 ? first : s + 1 == p->n_stages ? last : 1);
    p->forward[s] = ratio[0] * size * p->n_ranks / p->n_stages;
    p->input[s] = ratio[1] * size * p->n_ranks / p->n_stages;
    p->weight[s] = ratio[2] * size * p->n_ranks / p->n_stages;
  }
}

/* Five families of twelve: ranks 4 and 8, twice and four times as many micro-batches, three
 * degrees. */
static void make_problem(uint32_t k, problem *p) {
  const uint32_t family = k / 12, degree = k % 3, ranks = (k / 3) % 2, many = (k / 6) % 2;
  static const double first[3] = {1, 1.3, 0.8}, last[3] = {1.3, 1.6, 2};
  static const double uneven[3] = {0.15, 0.3, 0.45}, comm[3] = {0.25, 0.5, 1};
  *p = (problem){.n_ranks = ranks == 0 ? 4 : 8};
  p->n_stages = p->n_ranks;
  p->n_microbatches = p->n_ranks * (many == 0 ? 2 : 4);
  p->held = p->n_ranks; /* as 1F1B keeps on its first rank */
  const char *what = "";
  switch (family) {
    case 0:
      what = "uneven stages";
      set_costs(p, ratios[1], 1, 1, uneven[degree]);
      break;
    case 1:
      what = "heavy head";
      set_costs(p, ratios[1], first[degree], last[degree], 0.1);
      break;
    case 2:
      what = "slow links";
      set_costs(p, ratios[1], 1, 1, 0.1);
      p->comm = comm[degree];
      break;
    case 3:
      what = "tight caps";
      set_costs(p, ratios[degree], 1, 1.2, 0.15);
      p->held = p->n_ranks / 2 + 1;
      p->comm = 0.1;
      break;
    default:
      what = "two stages a rank";
      p->n_stages = 2 * p->n_ranks;
      set_costs(p, ratios[degree], 1, 1.4, 0.2);
      p->comm = 0.1;
      break;
  }
  (void)snprintf(p->name, sizeof p->name, "%s %u", what, degree + 1);
}

/* ---- one of them ---- */

typedef struct answer {
  double named, found, bound;
  const char *spec;
  bool exact;
} answer;

static opipe_status solve(const opi_plugins *plugins, const problem *p, uint64_t moves,
                          opi_arena *arena, answer *out, opipe_error *err) {
  uint64_t stash[STAGES_MOST], room[STAGES_MOST];
  opi_costs costs = {.comm = p->comm,
                     .stage_forward = p->forward,
                     .stage_input = p->input,
                     .stage_weight = p->weight,
                     .n_stages = p->n_stages};
  opi_question q = {.mode = OPIPE_MODE_TRAIN,
                    .n_ranks = p->n_ranks,
                    .n_stages = p->n_stages,
                    .n_microbatches = p->n_microbatches,
                    .costs = &costs};
  for (uint32_t s = 0; s < p->n_stages; ++s)
    stash[s] = (uint64_t)(1 << 20) * p->n_ranks / p->n_stages;
  for (uint32_t r = 0; r < p->n_ranks; ++r)
    room[r] = (uint64_t)p->held << 20;
  if (p->held != 0) {
    q.stash_bytes = stash;
    q.free_bytes = room;
  }
  opi_named named;
  opi_do_list *list = NULL;
  opi_improved found;
  const opi_improve_effort effort = {.moves = moves};
  OPI_TRY(opi_named_best(plugins, &q, NULL, arena, &named, err));
  const opipe_status status =
      opi_improve_order(&named.order->problem, named.order->list, &costs, &effort,
                        opi_allocator_system(), &list, &found, err);
  *out = (answer){named.ns, found.found_ns, found.bound_ns, named.spec, found.exact};
  opi_do_list_free(list);
  opi_order_free(named.order);
  return status;
}

static double per_cent(double ns, double bound) {
  return 100 * (ns / bound - 1);
}

static opipe_status print_all(const opi_plugins *plugins, uint64_t moves, uint32_t first,
                              uint32_t end, opipe_error *err) {
  double named = 0, found = 0;
  uint32_t improved = 0;
  opi_arena arena;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  opipe_status status = OPIPE_OK;
  (void)puts(
      "| problem | ranks | stages | micro-batches | best named | | found | bound | gap of the "
      "named | gap of what was found |\n|---|---|---|---|---|---|---|---|---|---|");
  for (uint32_t k = first; k < end && status == OPIPE_OK; ++k) {
    problem p;
    answer a = {0};
    make_problem(k, &p);
    status = solve(plugins, &p, moves, &arena, &a, err);
    if (status < 0)
      break;
    (void)printf("| %s | %u | %u | %u | %s | %.3f | %.3f | %.3f | %.2f %% | %.2f %% |\n", p.name,
                 p.n_ranks, p.n_stages, p.n_microbatches, a.spec, a.named, a.found, a.bound,
                 per_cent(a.named, a.bound), per_cent(a.found, a.bound));
    (void)fflush(stdout);
    named += per_cent(a.named, a.bound) / (end - first);
    found += per_cent(a.found, a.bound) / (end - first);
    improved += a.found < a.named * (1 - 1e-9);
  }
  opi_arena_release(&arena);
  if (status == OPIPE_OK) {
    (void)printf(
        "\n%u of %u improved; mean gap to the bound: %.2f %% of the best named, %.2f %% of "
        "what was found\n",
        improved, end - first, named, found);
  }
  return status;
}

int main(int argc, char **argv) {
  const opi_registry_params params = {.allocator = opi_allocator_system()};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_registry *registry = NULL;
  const uint64_t moves = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
  const uint32_t first = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
  const uint32_t end = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : PROBLEMS;
  opipe_status status = opi_registry_create(&params, &registry, &err);
  if (status == OPIPE_OK) {
    const opi_plugins plugins = opi_registry_plugins(registry);
    status = print_all(&plugins, moves, first, end, &err);
  }
  opi_registry_free(registry);
  if (status < 0)
    (void)fprintf(stderr, "improve_grid: %s\n", err.message);
  return status < 0;
}
