/* SPDX-License-Identifier: Apache-2.0 */
/* Some thousand random and perturbed schedules, planned, run and compared; see random.h.
 * ctest: timeout=900 label=full */
#include "tests/runtime/train/random.h"

static void test_many_random_schedules(void) {
  random_train_many(7, 6000);
}

OPI_TEST_MAIN("many random training schedules", OPI_TEST(test_many_random_schedules))
