/* SPDX-License-Identifier: Apache-2.0 */
/* A cover of the matrix: every model folder, every stage count, the other choices in pairs.
 * ctest: timeout=240
 */
#include "tests/matrix/cases.h"

static void test_cover(void) {
  const char *names[MX_FOLDERS];
  mx_count count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_matrix(&(mx_scope){.full = false}, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0 && count.capped > 0);
}

OPI_TEST_MAIN("model matrix, cover", OPI_TEST(test_cover))
