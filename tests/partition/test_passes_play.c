/* SPDX-License-Identifier: Apache-2.0 */
/* Plays of passes: stages that are equal are never idle with the number of passes in flight that is
 * chosen, which no other number beats; planned slices of prompts are never slower than equal ones
 * and keep to the gap; lists of passes hold under every rule for every number in flight. */
#include "partition/make/passes_play.h"

#include <math.h>

#include "tests/support/support.h"

enum { STAGES = 4, CLASSES = 7, ROWS = 64 };

typedef struct stages {
  double ns[STAGES * CLASSES], hop_ns[STAGES * CLASSES], key_ns[STAGES];
  opi_pass_times times;
} stages;

/* A pass takes `fixed` and `row` for each row, of every stage; others: up to twice that. */
static void make_stages(stages *s, uint32_t n, double fixed, double row, double key,
                        opi_test_random *random) {
  *s = (stages){.times = {.n_stages = n, .n_classes = CLASSES}};
  s->times.ns = s->ns;
  s->times.hop_ns = s->hop_ns;
  s->times.key_ns = s->key_ns;
  for (uint32_t i = 0; i < n; ++i) {
    const double more = random == NULL ? 1 : 1 + (double)(opi_test_next(random) % 1000) / 1000;
    s->key_ns[i] = key * more;
    for (uint32_t c = 0; c < CLASSES; ++c) {
      s->ns[i * CLASSES + c] = (fixed + row * (double)(1u << c)) * more;
      s->hop_ns[i * CLASSES + c] = random == NULL || i == 0 ? 0 : 1000;
    }
  }
}

static bool close_to(double found, double wanted) {
  return fabs(found - wanted) <= 1e-9 * fabs(wanted);
}

/* One stage works without a pause: its rate follows from the time of a pass alone. */
static void test_one_stage(void) {
  stages s;
  make_stages(&s, 1, 1e6, 1e5, 10, NULL);
  for (uint32_t groups = 1; groups <= 8; groups *= 2) {
    const uint32_t share = 8 / groups;
    const opi_decode_play play = opi_passes_play_decode(&s.times, 8, groups, 100);
    const double pass = 1e6 + 1e5 * share + 10 * 100 * share;
    OPI_ASSERT(close_to(play.tokens_per_s, share / pass * 1e9));
    OPI_ASSERT(play.idle < 1e-9);
  }
}

static void test_equal_stages_are_busy(void) {
  static const double fixed[] = {1e6, 1e6, 0, 1e5}, row[] = {0, 1e5, 1e5, 1};
  stages s;
  for (size_t i = 0; i < OPI_COUNT(fixed); ++i) {
    opi_decode_play play = {0, 0};
    make_stages(&s, STAGES, fixed[i], row[i], 1, NULL);
    const uint32_t groups = opi_passes_best_groups(&s.times, 16, 16, 100, &play);
    OPI_ASSERT(groups >= STAGES);
    OPI_ASSERT(play.idle <= 0.02);
  }
}

/* Two stages, by hand: with one pass in flight each is idle half of the time. */
static void test_one_pass_leaves_others_idle(void) {
  stages s;
  make_stages(&s, 2, 1e6, 0, 0, NULL);
  const opi_decode_play play = opi_passes_play_decode(&s.times, 6, 1, 0);
  OPI_ASSERT(close_to(play.idle, 0.5));
  OPI_ASSERT(close_to(play.tokens_per_s, 6 / 2e6 * 1e9));
}

static void test_no_number_of_passes_is_better(void) {
  opi_test_random random = {3};
  stages s;
  for (uint32_t round = 0; round < 40; ++round) {
    const uint32_t active = 1 + (uint32_t)(opi_test_next(&random) % 24);
    opi_decode_play best = {0, 0};
    make_stages(&s, 1 + round % STAGES, 1e5 * (round % 5), 1e4 * (1 + round % 3), round % 7,
                &random);
    const uint32_t groups = opi_passes_best_groups(&s.times, active, 1024, 200, &best);
    OPI_ASSERT(groups >= 1 && groups <= active);
    for (uint32_t n = 1; n <= active; ++n) {
      const opi_decode_play play = opi_passes_play_decode(&s.times, active, n, 200);
      OPI_ASSERT(play.tokens_per_s <= best.tokens_per_s * (1 + 2e-9));
    }
  }
}

static void test_slices_are_the_fastest(void) {
  opi_test_random random = {5};
  uint32_t n_shrinking = 0;
  stages s;
  for (uint32_t round = 0; round < 60; ++round) {
    const uint32_t n_ids = 2 + (uint32_t)(opi_test_next(&random) % 900), groups = 1 + round % 8;
    double ns = 0;
    uint32_t n = 0, again = 0;
    make_stages(&s, 1 + round % STAGES, 1e5 * (round % 5), 1e4, round % 3 == 0 ? 0 : 20,
                round % 2 == 0 ? &random : NULL);
    const opi_prompt_slices how = opi_passes_best_slices(&s.times, ROWS, n_ids, groups, 0, &ns, &n);
    OPI_ASSERT(close_to(opi_passes_play_prompt(&s.times, &how, n_ids, groups, &again), ns));
    OPI_ASSERT_INT(n, again);
    for (uint32_t rows = 1; rows <= ROWS; ++rows) {
      const opi_prompt_slices equal = {rows, 0};
      OPI_ASSERT(ns <= opi_passes_play_prompt(&s.times, &equal, n_ids, groups, NULL) * (1 + 2e-9));
    }
    n_shrinking += how.ns > 0;
  }
  OPI_ASSERT(n_shrinking > 5);
}

static void test_slices_keep_to_the_gap(void) {
  opi_pass_sums sums;
  stages s;
  make_stages(&s, 2, 1e5, 1e4, 50, NULL);
  opi_pass_sum(&s.times, &sums);
  const double gap = 2 * sums.class_ns[3];
  uint32_t n = 0, last = ROWS;
  double ns = 0;
  const opi_prompt_slices how = opi_passes_best_slices(&s.times, ROWS, 700, 4, gap, &ns, &n);
  for (uint32_t first = 0; first < 700;) {
    const uint32_t rows = opi_slice_rows(&sums, &how, first, 700);
    const double keys = (double)rows * first + rows * (rows + 1) / 2.0;
    uint32_t c = 0;
    while (1u << c < rows)
      ++c;
    OPI_ASSERT(rows == 1 || sums.class_ns[c] + sums.key_ns * keys <= gap);
    OPI_ASSERT(rows <= last);
    last = rows;
    first += rows;
  }
  OPI_ASSERT(last < ROWS / 2);
}

static void test_lists_hold_under_every_rule(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t n = 1; n <= 5; ++n) {
    for (uint32_t groups = 1; groups <= 16; ++groups)
      OPI_ASSERT_OK(opi_passes_prove(n, groups, opi_allocator_system(), &err), &err);
  }
  OPI_ASSERT_OK(opi_passes_prove(2, 300, opi_allocator_system(), &err), &err);
}

OPI_TEST_MAIN("passes/play", OPI_TEST(test_one_stage), OPI_TEST(test_equal_stages_are_busy),
              OPI_TEST(test_one_pass_leaves_others_idle),
              OPI_TEST(test_no_number_of_passes_is_better), OPI_TEST(test_slices_are_the_fastest),
              OPI_TEST(test_slices_keep_to_the_gap), OPI_TEST(test_lists_hold_under_every_rule))
