/* SPDX-License-Identifier: Apache-2.0 */
/* Training in two shapes by turns, every model under every schedule; see turns.h.
 * ctest: timeout=2400 label=full
 */
#include "tests/matrix/turns.h"

static void test_full(void) {
  kit_tally tally;
  mx_turns(true, &(kit_place){.transport = NULL}, 1, &tally);
  OPI_ASSERT_INT(tally.failed, 0);
  OPI_ASSERT(tally.passed > 0);
}

OPI_TEST_MAIN("training in two shapes, full", OPI_TEST(test_full))
