/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank has several stages, which share its cap: bounds are never above the best of all
 * orders, and near it; all orders of small problems are seen. ctest: timeout=300
 */
#include "tests/partition/study/improve/placed.h"

static uint64_t draw(uint64_t *io_seed) {
  *io_seed = *io_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *io_seed >> 33;
}

typedef struct layout {
  const char *name;
  uint32_t n_stages, n_microbatches, n_kinds;
  uint32_t rank[PLACED_STAGES];
} layout;

static const layout layouts[] = {{"V, halves", 4, 2, 3, {0, 1, 1, 0}},
                                 {"interleaved, halves", 4, 2, 3, {0, 1, 0, 1}},
                                 {"V, whole", 4, 3, 2, {0, 1, 1, 0}},
                                 {"interleaved, whole", 4, 3, 2, {0, 1, 0, 1}},
                                 {"three a rank", 6, 2, 2, {0, 1, 0, 1, 0, 1}}};

/* Whole numbers, so that sums are exact; a cap that one micro-batch alone keeps within. */
static placed placed_random(const layout *l, uint64_t seed) {
  placed p = {.n_stages = l->n_stages, .n_microbatches = l->n_microbatches, .n_kinds = l->n_kinds};
  uint64_t needs[2] = {0, 0};
  memcpy(p.rank, l->rank, sizeof p.rank);
  for (uint32_t s = 0; s < p.n_stages; ++s) {
    for (uint32_t kind = 0; kind < 3; ++kind)
      p.cost[kind][s] = (double)(1 + draw(&seed) % 7);
    p.takes[s] = 1 + draw(&seed) % 2;
    needs[p.rank[s]] += p.takes[s];
  }
  p.comm = (double)(draw(&seed) % 3);
  p.cap = (needs[0] > needs[1] ? needs[0] : needs[1]) + draw(&seed) % 3;
  return p;
}

enum { SEEDS = 12 };

/* Without what a cap that stages share makes wait the mean gap would be 20 %. */
static void test_bounds_are_not_beaten(void) {
  const opi_improve_effort few = {.moves = 1, .no_exact = true};
  const size_t n_problems = SEEDS * OPI_COUNT(layouts);
  double gaps = 0;
  for (size_t i = 0; i < OPI_COUNT(layouts); ++i) {
    for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
      const placed p = placed_random(&layouts[i], seed);
      const double bound = placed_improve(&p, &few, true).bound_ns, best = placed_orders(&p);
      if (bound > best || bound < placed_improve(&p, &few, false).bound_ns) {
        OPI_FAIL("%s, seed %llu: bound %g, the best order takes %g", layouts[i].name,
                 (unsigned long long)seed, bound, best);
      }
      gaps += (best / bound - 1) / (double)n_problems;
    }
  }
  if (gaps > 0.03)
    OPI_FAIL("the best orders are %g %% above the bounds on the mean", 100 * gaps);
}

/* Room that one stage takes another lacks: a gap that a forward would fill may have to stay. */
static void test_all_orders_find_the_best(void) {
  for (size_t i = 0; i < OPI_COUNT(layouts); ++i) {
    for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
      const placed p = placed_random(&layouts[i], seed);
      const opi_improve_effort effort = {.moves = 1};
      const opi_improved found = placed_improve(&p, &effort, true);
      const double best = placed_orders(&p);
      if (found.found_ns != best || found.bound_ns != best || !found.exact) {
        OPI_FAIL("%s, seed %llu: found %g%s, the best is %g", layouts[i].name,
                 (unsigned long long)seed, found.found_ns,
                 found.exact ? "" : " (not said to be exact)", best);
      }
    }
  }
}

OPI_TEST_MAIN("bound", OPI_TEST(test_bounds_are_not_beaten),
              OPI_TEST(test_all_orders_find_the_best))
