/* SPDX-License-Identifier: Apache-2.0 */
/* Training in two shapes by turns: a cover of its matrix; see turns.h. ctest: timeout=240 */
#include "tests/matrix/turns.h"

static void test_cover(void) {
  kit_tally tally;
  mx_turns(false, &(kit_place){.transport = NULL}, 1, &tally);
  OPI_ASSERT_INT(tally.failed, 0);
  OPI_ASSERT(tally.passed > 0);
}

OPI_TEST_MAIN("training in two shapes", OPI_TEST(test_cover))
