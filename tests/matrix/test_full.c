/* SPDX-License-Identifier: Apache-2.0 */
/* The whole matrix over every model folder; see cases.h.
 * ctest: timeout=2400 label=full
 */
#include "tests/matrix/cases.h"

static void test_full(void) {
  const char *names[MX_FOLDERS];
  mx_count count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_matrix(&(mx_scope){.full = true}, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0 && count.capped > 0);
}

OPI_TEST_MAIN("model matrix, full", OPI_TEST(test_full))
