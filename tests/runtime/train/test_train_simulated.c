/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator of plans plays the lists that run: to the times of the plan's own clock, and, on
 * emulated devices and links, of sessions; see simulated.h. Sessions of all cases:
 * test_train_simulated_full.c. ctest: timeout=180 label=nosan serial */
#include <math.h>

#include "tests/runtime/train/simulated.h"

/* Both clocks know the same waits; sums over replicas only the play. */
static void test_lists_are_played_to_the_plans_times(void) {
  for (size_t i = 0; i < SIMULATED_CASES; ++i) {
    const simulated_case *c = &simulated_cases[i];
    const bool sums = c->replicas > 1 || strncmp(c->schedule, "chimera", 7) == 0;
    double planned = 0, played = 0;
    simulated_play(c, &planned, &played);
    if (sums ? played <= planned : fabs(played - planned) > 1e-4 * planned) {
      OPI_FAIL("%s, rule %s: planned %.9g ms, played %.9g", c->schedule, c->rule, planned * 1e-6,
               played * 1e-6);
    }
    OPI_ASSERT(played > 100e6);
  }
}

static void test_sessions_take_the_simulated_time(void) {
  simulated_run(&simulated_cases[1]);
  simulated_run(&simulated_cases[2]);
}

OPI_TEST_MAIN("simulated training", OPI_TEST(test_lists_are_played_to_the_plans_times),
              OPI_TEST(test_sessions_take_the_simulated_time))
