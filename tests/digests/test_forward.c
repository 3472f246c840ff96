/* SPDX-License-Identifier: Apache-2.0 */
/* Inference gives its earlier results. ctest: timeout=2400 label=nosan */
#include "tests/digests/digests.h"

static void test_forward(void) {
  dg_forward();
}

OPI_TEST_MAIN("digests of inference", OPI_TEST(test_forward))
