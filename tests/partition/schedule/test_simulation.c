/* SPDX-License-Identifier: Apache-2.0 */
/* Makespans, bubbles and stashes of orders that the test makes itself, against closed formulas and
 * the regression values of bidirectional and one-way pipelines with and without latency.
 */
#include "tests/partition/schedule/orders.h"

static made m;

static opi_simulation simulate(const made *order, opi_costs costs, double *peak) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_simulation result = {.peak_stash = peak};
  opi_do_list *list = made_list(order);
  OPI_ASSERT_OK_FATAL(
      opi_simulate_order(&order->problem, list, &costs, opi_allocator_system(), &result, &err),
      &err);
  opi_do_list_free(list);
  return result;
}

static void near(double found, double wanted, const char *what, uint32_t d, uint32_t n) {
  if (found < wanted - 1e-6 || found > wanted + 1e-6)
    OPI_FAIL("%s, %u ranks, %u micro-batches: %g, wanted %g", what, d, n, found, wanted);
}

/* One forward 1, one backward 2; latency 0 and 0.25 per hop. */
static void test_regression_makespans(void) {
  static const struct {
    uint32_t d, n;
    double one[2], gpipe[2], chimera[2];
  } rows[] = {{4, 4, {21, 23.5}, {21, 22.5}, {16, 17.75}},
              {8, 8, {45, 51.5}, {45, 48.5}, {36, 40.75}},
              {4, 8, {33, 37}, {33, 34.5}, {0, 0}},
              {8, 32, {117, 134}, {117, 120.5}, {0, 0}}};
  double peak[64];
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    for (uint32_t c = 0; c < 2; ++c) {
      const opi_costs costs = {1, 1, 1, 0.25 * c, NULL, NULL, NULL};
      const uint32_t d = rows[i].d, n = rows[i].n;
      made_1f1b(&m, d, n, false);
      near(simulate(&m, costs, peak).makespan, rows[i].one[c], "1F1B", d, n);
      for (uint32_t s = 0; s < d; ++s)
        near(peak[s], d - s < n ? d - s : n, "1F1B's stash", d, n);
      made_1f1b(&m, d, n, true);
      near(simulate(&m, costs, peak).makespan, rows[i].gpipe[c], "GPipe", d, n);
      for (uint32_t s = 0; s < d; ++s)
        near(peak[s], n, "GPipe's stash", d, n);
      if (rows[i].chimera[0] == 0)
        continue;
      made_chimera(&m, d, n);
      near(simulate(&m, costs, peak).makespan, rows[i].chimera[c], "two directions", d, n);
    }
  }
}

static void test_stashes_of_two_directions(void) {
  static const double four[] = {3, 4, 4, 3}, eight[] = {5, 6, 7, 8, 8, 7, 6, 5};
  double peak[64];
  made_chimera(&m, 4, 4);
  (void)simulate(&m, opi_unit_costs, peak);
  for (uint32_t r = 0; r < 4; ++r)
    near(peak[r], four[r], "stash", 4, r);
  made_chimera(&m, 8, 8);
  (void)simulate(&m, opi_unit_costs, peak);
  for (uint32_t r = 0; r < 8; ++r)
    near(peak[r], eight[r], "stash", 8, r);
}

static void test_bubbles_are_the_formula(void) {
  double peak[64];
  for (uint32_t d = 1; d <= 8; ++d) {
    for (uint32_t n = 1; n <= 16; ++n) {
      for (uint32_t g = 0; g < 2; ++g) {
        made_1f1b(&m, d, n, g == 1);
        const opi_simulation s = simulate(&m, opi_unit_costs, peak);
        near(s.makespan, 3.0 * (n + d - 1), "makespan", d, n);
        near(s.bubble, (d - 1.0) / (n + d - 1.0), "bubble", d, n);
      }
    }
  }
}

/* Costs by stage: the slowest stage sets the pace. */
static void test_unequal_stages(void) {
  static const double forward[] = {1, 2, 1}, input[] = {1, 2, 1}, weight[] = {1, 2, 1};
  double peak[64];
  made_1f1b(&m, 3, 4, true);
  const opi_costs costs = {0, 0, 0, 0, forward, input, weight};
  const opi_simulation s = simulate(&m, costs, peak);
  /* 1, then four forwards of 2 and one of 1; back: 2, four of 4, 2 */
  near(s.makespan, 1 + 8 + 1 + 2 + 16 + 2, "makespan", 3, 4);
  near(s.span, s.makespan, "span", 3, 4);
}

/* A slice costs its share of the tokens. */
static void test_uneven_slices(void) {
  static const uint32_t lengths[] = {3, 1};
  opi_order *order = order_read(
      "#onnx-pipe-schedule v1\n"
      "#ranks=1 stages=1 replicas=1 microbatches=1 slices=2 parts=1 mode=train versions=one "
      "sync=end\n#place=0\n#lengths=3,1\n0F0/0,0F0/1,0B0/1,0B0/0\n",
      OPI_DIALECT_OPIPE);
  const opi_costs costs = {.forward = 4, .input = 4, .weight = 4};
  opi_arena arena;
  opi_timeline line;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_INT(order->problem.slice_lengths[0], lengths[0]);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_timeline_build(&order->problem, order->list, &costs, &arena, &line, &err),
                      &err);
  near(line.end[0], 3, "first slice", 1, 1);
  near(line.end[1], 4, "second slice", 1, 1);
  near(line.end[2], 6, "second slice back", 1, 1);
  near(line.end[3], 12, "first slice back", 1, 1);
  opi_arena_release(&arena);
  opi_order_free(order);
}

/* A body of two micro-batches whose next forwards run ahead has no bubble once it runs. */
static void test_double_buffered_body(void) {
  double peak[64];
  const uint32_t f = OPIPE_PASS_FORWARD, b = OPIPE_PASS_BACKWARD;
  made_begin(&m, 2, 2);
  m.problem.versions = OPIPE_VERSIONS_DOUBLE_BUFFERED;
  const struct {
    uint32_t rank, pass, microbatch, version, flags;
  } rows[] = {{0, f, 1, 1, 0}, {0, b, 0, 1, 0}, {0, f, 0, 0, OPIPE_ACTION_NEXT_STEP},
              {0, b, 1, 1, 0}, {1, f, 0, 1, 0}, {1, b, 0, 1, 0},
              {1, f, 1, 1, 0}, {1, b, 1, 1, 0}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    made_add(&m, rows[i].rank, rows[i].rank, rows[i].pass, rows[i].microbatch);
    m.records[m.n - 1].version = (uint16_t)rows[i].version;
    m.records[m.n - 1].flags = rows[i].flags;
  }
  const opi_simulation s = simulate(&m, opi_unit_costs, peak);
  near(s.makespan, 6, "period", 2, 2);
  near(s.bubble, 0, "bubble", 2, 2);
  near(peak[0], 2, "stash", 2, 2);
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = made_list(&m), *lowered = NULL;
  const opi_lowering how = {.receive_depth = 1};
  opi_proof proof = {0};
  OPI_ASSERT_OK_FATAL(
      opi_lower_order(&m.problem, list, &how, opi_allocator_system(), &lowered, &err), &err);
  OPI_ASSERT_OK(
      opi_proof_check(&m.problem, lowered, OPI_RULE_TAG, opi_allocator_system(), &proof, &err),
      &err);
  for (uint32_t i = 0; i < lowered->n_items; ++i) {
    if (lowered->items[i].kind == OPI_DO_F && lowered->items[i].flags != 0)
      lowered->items[i].version = 1; /* before the step the newest is the right one */
  }
  OPI_ASSERT_ERROR(
      opi_proof_check(&m.problem, lowered, OPI_RULE_TAG, opi_allocator_system(), &proof, &err),
      OPIPE_E_INVALID, &err, "the rule says");
  opi_do_list_free(lowered);
  opi_do_list_free(list);
}

OPI_TEST_MAIN("simulation of orders", OPI_TEST(test_regression_makespans),
              OPI_TEST(test_stashes_of_two_directions), OPI_TEST(test_bubbles_are_the_formula),
              OPI_TEST(test_unequal_stages), OPI_TEST(test_uneven_slices),
              OPI_TEST(test_double_buffered_body))
