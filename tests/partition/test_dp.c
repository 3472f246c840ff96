/* SPDX-License-Identifier: Apache-2.0 */
/* The cut search against brute force over all contiguous cuts of small random graphs, under memory
 * caps; refinement keeps every edge forward and never makes it worse.
 */
#include <math.h>

#include "partition/search/dp.h"
#include "tests/partition/toy.h"

enum { NODES = 9, STAGES = 3 };

typedef struct problem {
  toy t;
  opi_profile profile;
  opi_cut single;
  double ns[NODES];
  uint64_t workspace[NODES], outputs[NODES];
  opi_node_param params[NODES];
  uint32_t first[NODES + 1];
  uint32_t param_of_node[NODES]; /* one parameter each; some are shared */
  const opi_profile *profiles[STAGES];
  uint64_t caps[STAGES];
  opi_cut_problem cut;
} problem;

/* chain: every node reads the one before; else any earlier one, so that nodes may move over a
 * boundary. */
static void make(problem *p, opi_test_random *random, bool chain) {
  uint32_t values[NODES];
  memset(p, 0, sizeof(*p));
  toy_open(&p->t);
  uint32_t before = toy_input(&p->t, "x", 4);
  for (uint32_t n = 0; n < NODES; ++n) {
    char name[16];
    uint32_t in[2] = {before, before};
    if (!chain && n > 0)
      in[0] = in[1] = values[opi_test_next(random) % n];
    (void)snprintf(name, sizeof(name), "v%u", n);
    if (n > 1)
      in[1] = values[opi_test_next(random) % (n - 1)]; /* skips */
    values[n] = before = toy_node(&p->t, name, in, 2, (int64_t)(1 + opi_test_next(random) % 64));
    p->ns[n] = opi_test_uniform(random, 1, 1000);
    p->outputs[n] = p->t.graph->values[before].n_bytes;
    p->workspace[n] = opi_test_next(random) % 256;
    p->param_of_node[n] = n % 4 == 3 ? 0 : n; /* ties to the first */
    p->params[n] = (opi_node_param){
        .param = p->param_of_node[n], .key = 1, .n_bytes = 100 + 50 * p->param_of_node[n]};
    p->first[n + 1] = n + 1;
  }
  toy_output(&p->t, before);
  p->single.n_params = NODES;
  p->profile = (opi_profile){.single = &p->single,
                             .node_ns = p->ns,
                             .workspace_bytes = p->workspace,
                             .output_bytes = p->outputs,
                             .params = p->params,
                             .param_first = p->first,
                             .n_nodes = NODES,
                             .transfer_bytes_per_ns = 10,
                             .transfer_ns = 20};
  for (uint32_t s = 0; s < STAGES; ++s) {
    p->profiles[s] = &p->profile;
    p->caps[s] = UINT64_MAX;
  }
  p->cut = (opi_cut_problem){.graph = p->t.graph,
                             .profiles = p->profiles,
                             .caps_bytes = p->caps,
                             .n_stages = STAGES,
                             .depth = 2};
}

/* Parameters of nodes [from, to), each layout once: the part of a stage's memory that does not rest
 * on an estimate. */
static uint64_t params_of(const problem *p, uint32_t from, uint32_t to) {
  uint64_t sum = 0;
  for (uint32_t n = from; n < to; ++n) {
    bool seen = false;
    for (uint32_t k = from; k < n; ++k)
      seen |= p->param_of_node[k] == p->param_of_node[n];
    if (!seen)
      sum += p->params[n].n_bytes;
  }
  return sum;
}

/* Compute plus all that crosses the position, as the search counts it. */
static double stage_ns(const problem *p, uint32_t from, uint32_t to) {
  const opi_graph *g = p->t.graph;
  double ns = 0;
  for (uint32_t n = from; n < to; ++n)
    ns += p->ns[n];
  for (uint32_t v = 0; from > 0 && v < g->n_values; ++v) {
    if (g->values[v].producer == OPIPE_NONE || g->values[v].producer >= from)
      continue;
    bool later = false;
    for (uint32_t n = from; n < NODES; ++n)
      later |= g->nodes[n].in[0] == v || g->nodes[n].in[1] == v;
    if (later) {
      ns +=
          p->profile.transfer_ns + (double)g->values[v].n_bytes / p->profile.transfer_bytes_per_ns;
    }
  }
  return ns;
}

static double worst_of(const problem *p, const uint32_t *ends) {
  double worst = 0;
  for (uint32_t s = 0; s < STAGES; ++s) {
    const double ns = stage_ns(p, ends[s], ends[s + 1]);
    if (ns > worst)
      worst = ns;
  }
  return worst;
}

static double brute_force(const problem *p) {
  double best = INFINITY;
  for (uint32_t a = 1; a < NODES; ++a) {
    for (uint32_t b = a + 1; b < NODES; ++b) {
      const double worst = worst_of(p, (uint32_t[]){0, a, b, NODES});
      if (worst < best)
        best = worst;
    }
  }
  return best;
}

static bool ends_of(const uint32_t *stage, uint32_t *ends) {
  uint32_t s = 0;
  ends[0] = 0;
  for (uint32_t n = 0; n < NODES; ++n) {
    if (stage[n] < s)
      return false;
    while (s < stage[n])
      ends[++s] = n;
  }
  while (s < STAGES)
    ends[++s] = NODES;
  return true;
}

static void test_the_search_equals_brute_force(void) {
  opi_test_random random = {1};
  opipe_error err = OPIPE_ERROR_INIT;
  for (int round = 0; round < 300; ++round) {
    problem p;
    uint32_t stage[NODES], ends[STAGES + 1];
    make(&p, &random, true);
    OPI_ASSERT_OK_FATAL(opi_cut_dp(&p.cut, opi_allocator_system(), stage, &err), &err);
    OPI_ASSERT_FATAL(ends_of(stage, ends));
    const double found = worst_of(&p, ends), best = brute_force(&p);
    if (fabs(found - best) > 1e-6 * best)
      OPI_FAIL("round %d: %.3f ns found, %.3f possible", round, found, best);
    toy_close(&p.t);
  }
}

static void test_caps_force_another_cut(void) {
  opi_test_random random = {2};
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t moved = 0, fitted = 0;
  for (int round = 0; round < 200; ++round) {
    problem p;
    uint32_t stage[NODES], ends[STAGES + 1], tight[STAGES + 1];
    make(&p, &random, true);
    OPI_ASSERT_OK_FATAL(opi_cut_dp(&p.cut, opi_allocator_system(), stage, &err), &err);
    (void)ends_of(stage, ends);
    p.caps[2] = params_of(&p, ends[2], ends[3]) - 1; /* the last stage may not keep what it had */
    const opipe_status status = opi_cut_dp(&p.cut, opi_allocator_system(), stage, &err);
    if (status == OPIPE_OK) {
      (void)ends_of(stage, tight);
      ++fitted;
      moved += memcmp(ends, tight, sizeof(ends)) != 0;
      OPI_ASSERT(params_of(&p, tight[2], tight[3]) <= p.caps[2]);
    } else {
      OPI_ASSERT_INT(status, OPIPE_E_LIMIT);
      OPI_ASSERT(strstr(err.message, "exceeds its cap of") != NULL);
    }
    toy_close(&p.t);
  }
  OPI_ASSERT(fitted > 20);
  OPI_ASSERT_INT(moved, fitted);
}

static void test_what_cannot_fit_says_by_how_much(void) {
  opi_test_random random = {3};
  opipe_error err = OPIPE_ERROR_INIT;
  problem p;
  uint32_t stage[NODES];
  make(&p, &random, true);
  for (uint32_t s = 0; s < STAGES; ++s)
    p.caps[s] = 10;
  OPI_ASSERT_ERROR(opi_cut_dp(&p.cut, opi_allocator_system(), stage, &err), OPIPE_E_LIMIT, &err,
                   "exceeds its cap of 10 bytes by");
  toy_close(&p.t);
}

static void test_refinement_only_improves(void) {
  opi_test_random random = {4};
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t improved = 0;
  for (int round = 0; round < 200; ++round) {
    problem p;
    uint32_t stage[NODES], moves = 0;
    double before[STAGES], after[STAGES], worst_before = 0, worst_after = 0;
    make(&p, &random, false);
    OPI_ASSERT_OK_FATAL(opi_cut_dp(&p.cut, opi_allocator_system(), stage, &err), &err);
    OPI_ASSERT_OK(opi_cut_times(&p.cut, stage, opi_allocator_system(), before, &err), &err);
    OPI_ASSERT_OK(opi_cut_refine(&p.cut, opi_allocator_system(), stage, &moves, &err), &err);
    OPI_ASSERT_OK(opi_cut_times(&p.cut, stage, opi_allocator_system(), after, &err), &err);
    for (uint32_t s = 0; s < STAGES; ++s) {
      worst_before = fmax(worst_before, before[s]);
      worst_after = fmax(worst_after, after[s]);
    }
    OPI_ASSERT(worst_after <= worst_before * (1 + 1e-9));
    improved += worst_after < worst_before * (1 - 1e-9);
    opi_cut *c = NULL;
    const opi_cut_source source = {.graph = p.t.graph, .stage = stage, .n_stages = STAGES};
    OPI_ASSERT_OK(opi_cut_build(&source, opi_allocator_system(), &c, &err),
                  &err); /* every edge goes forward */
    opi_cut_free(c);
    toy_close(&p.t);
  }
  OPI_ASSERT(improved > 5);
}

static void test_narrow_positions(void) {
  static const int64_t sizes[] = {8, 64, 4, 64, 64, 2, 2, 64};
  static const uint32_t narrow[] = {1, 3, 6, 7}, spread[] = {3, 7};
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t *positions = NULL, n = 0;
  toy_open(&t);
  uint32_t v = toy_input(&t, "x", 64);
  for (uint32_t i = 0; i < OPI_COUNT(sizes); ++i) {
    char name[16];
    (void)snprintf(name, sizeof name, "v%u", i);
    v = toy_node(&t, name, &v, 1, sizes[i]);
  }
  toy_output(&t, v);
  OPI_ASSERT_OK_FATAL(opi_cut_narrow(t.graph, 4, 9, &t.arena, &positions, &n, &err), &err);
  OPI_ASSERT(n == OPI_COUNT(narrow) && memcmp(positions, narrow, sizeof narrow) == 0);
  OPI_ASSERT_OK_FATAL(opi_cut_narrow(t.graph, 4, 2, &t.arena, &positions, &n, &err), &err);
  OPI_ASSERT(n == OPI_COUNT(spread) && memcmp(positions, spread, sizeof spread) == 0);
  OPI_ASSERT_OK_FATAL(opi_cut_narrow(t.graph, 5, 9, &t.arena, &positions, &n, &err), &err);
  OPI_ASSERT_INT(n, OPI_COUNT(sizes) - 1); /* too few: all of them */
  toy_close(&t);
}

/* More nodes than positions that are looked at: those kept are spread over the whole order, and the
 * narrowest of their neighbourhood. Every hundredth value is small. */
static void test_positions_of_a_long_chain(void) {
  enum { LONG = 30000, MANY = 7 };
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  toy_open(&t);
  double *ns = OPI_ARENA_ARRAY(&t.arena, double, LONG);
  uint64_t *zeros = OPI_ARENA_ARRAY(&t.arena, uint64_t, LONG);
  uint32_t *first = OPI_ARENA_ARRAY(&t.arena, uint32_t, LONG + 1);
  uint32_t *stage = OPI_ARENA_ARRAY(&t.arena, uint32_t, LONG);
  toy_need(ns != NULL && zeros != NULL && first != NULL && stage != NULL);
  uint32_t v = toy_input(&t, "x", 64);
  for (uint32_t n = 0; n < LONG; ++n) {
    char name[16];
    (void)snprintf(name, sizeof name, "v%u", n);
    v = toy_node(&t, name, &v, 1, n % 100 == 99 ? 1 : 64);
    ns[n] = 1;
  }
  toy_output(&t, v);
  opi_cut single = {.n_params = 0};
  const opi_profile profile = {.single = &single,
                               .node_ns = ns,
                               .workspace_bytes = zeros,
                               .output_bytes = zeros,
                               .param_first = first,
                               .n_nodes = LONG,
                               .transfer_bytes_per_ns = 10};
  const opi_profile *profiles[MANY];
  uint64_t caps[MANY];
  for (uint32_t s = 0; s < MANY; ++s) {
    profiles[s] = &profile;
    caps[s] = UINT64_MAX;
  }
  opi_cut_problem cut = {
      .graph = t.graph, .profiles = profiles, .caps_bytes = caps, .n_stages = MANY, .depth = 2};
  OPI_ASSERT_OK_FATAL(opi_cut_dp(&cut, opi_allocator_system(), stage, &err), &err);
  uint32_t nodes[MANY] = {0};
  for (uint32_t n = 0; n < LONG; ++n) {
    OPI_ASSERT(stage[n] < MANY && (n == 0 || stage[n] >= stage[n - 1]));
    ++nodes[stage[n]];
    if (n > 0 && stage[n] != stage[n - 1])
      OPI_ASSERT_INT(n % 100, 0); /* behind a small value */
  }
  for (uint32_t s = 0; s < MANY; ++s)
    OPI_ASSERT(nodes[s] > LONG / MANY - 150 && nodes[s] < LONG / MANY + 150);
  cut.n_stages = 1;
  OPI_ASSERT_OK(opi_cut_dp(&cut, opi_allocator_system(), stage, &err), &err);
  OPI_ASSERT_INT(stage[LONG - 1], 0);
  toy_close(&t);
}

OPI_TEST_MAIN("cut search", OPI_TEST(test_the_search_equals_brute_force),
              OPI_TEST(test_caps_force_another_cut),
              OPI_TEST(test_what_cannot_fit_says_by_how_much),
              OPI_TEST(test_refinement_only_improves), OPI_TEST(test_narrow_positions),
              OPI_TEST(test_positions_of_a_long_chain))
