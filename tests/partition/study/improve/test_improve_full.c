/* SPDX-License-Identifier: Apache-2.0 */
/* Three stages and four micro-batches: what is found is the best of all orders.
 * ctest: timeout=1800 label=full,nosan
 */
#include "tests/partition/study/improve/enumeration.h"

static void test_three_stages_four_microbatches_are_the_best_of_all(void) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const small p = small_random(seed, 3, 4);
    small_compare(seed, &p, true);
  }
}

OPI_TEST_MAIN("improve_full", OPI_TEST(test_three_stages_four_microbatches_are_the_best_of_all))
