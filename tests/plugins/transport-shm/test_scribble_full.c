/* SPDX-License-Identifier: Apache-2.0 */
/* Many seeds of scribble.h. ctest: timeout=600 label=full */
#include "tests/plugins/transport-shm/scribble.h"

static void test_no_scribble_crashes_or_hangs_the_other(void) {
  for (uint64_t seed = 1000; seed < 2500; ++seed)
    OPI_ASSERT(scribble_seed(seed));
}

OPI_TEST_MAIN("transport-shm beside a process that scribbles",
              OPI_TEST(test_no_scribble_crashes_or_hangs_the_other))
