/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions on emulated devices and links, of several schedules, rules, replicas: the time of a step
 * is the simulated one within 1.5 %; see simulated.h. ctest: timeout=600 label=full nosan serial */
#include "tests/runtime/train/simulated.h"

static void run_all(bool groups) {
  for (size_t i = 0; i < SIMULATED_CASES; ++i) {
    if ((simulated_cases[i].tensor != 0) == groups)
      simulated_run(&simulated_cases[i]);
  }
}

static void test_sessions_take_the_simulated_time(void) {
  run_all(false);
}

static void test_tensor_groups_take_the_simulated_time(void) {
  run_all(true);
}

OPI_TEST_MAIN("simulated training, all", OPI_TEST(test_sessions_take_the_simulated_time),
              OPI_TEST(test_tensor_groups_take_the_simulated_time))
