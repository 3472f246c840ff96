/* SPDX-License-Identifier: Apache-2.0 */
/* Inference in token slices over every model folder; see slices.h.
 * ctest: timeout=1200 label=full
 */
#include "tests/matrix/slices.h"

static void test_full(void) {
  const char *names[MX_FOLDERS];
  mx_sliced count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_slices(true, &(kit_place){.transport = NULL}, 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.models >= 12 && count.refused > 0);
}

OPI_TEST_MAIN("inference in token slices, full", OPI_TEST(test_full))
