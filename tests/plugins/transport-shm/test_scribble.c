/* SPDX-License-Identifier: Apache-2.0 */
/* Some seeds of scribble.h. */
#include "tests/plugins/transport-shm/scribble.h"

static void test_no_scribble_crashes_or_hangs_the_other(void) {
  for (uint64_t seed = 1; seed < 31; ++seed)
    OPI_ASSERT(scribble_seed(seed));
}

OPI_TEST_MAIN("transport-shm beside a process that scribbles",
              OPI_TEST(test_no_scribble_crashes_or_hangs_the_other))
