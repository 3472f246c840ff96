/* SPDX-License-Identifier: Apache-2.0 */
/* Inference by replicas of single stages: a cover of its matrix; see shares.h.
 * ctest: timeout=240
 */
#include "tests/matrix/shares.h"

static void test_cover(void) {
  const char *names[MX_FOLDERS];
  mx_count count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_shares(false, &(kit_place){.transport = NULL}, 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0);
}

OPI_TEST_MAIN("replicas of single stages", OPI_TEST(test_cover))
