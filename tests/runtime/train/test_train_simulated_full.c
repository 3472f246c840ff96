/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions on emulated devices and links, of several schedules, rules, replicas: the time of a step
 * is the simulated one within 1.5 %; see simulated.h. ctest: timeout=600 label=full nosan serial */
#include "tests/runtime/train/simulated.h"

static void test_sessions_take_the_simulated_time(void) {
  for (size_t i = 0; i < SIMULATED_CASES; ++i)
    simulated_run(&simulated_cases[i]);
}

OPI_TEST_MAIN("simulated training, all", OPI_TEST(test_sessions_take_the_simulated_time))
