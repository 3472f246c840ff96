/* SPDX-License-Identifier: Apache-2.0 */
/* A cover of inference in token slices; see slices.h. ctest: timeout=120 */
#include "tests/matrix/slices.h"

static void test_cover(void) {
  const char *names[MX_FOLDERS];
  mx_sliced count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_slices(false, &(kit_place){.transport = NULL}, 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0 && count.refused > 0);
}

OPI_TEST_MAIN("inference in token slices, cover", OPI_TEST(test_cover))
