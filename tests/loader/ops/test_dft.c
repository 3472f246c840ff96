/* SPDX-License-Identifier: Apache-2.0 */
/* DFT: its forms, shapes and axes. Values: tests/nodes, tests/plugins/backend-cpu; gradients:
 * tests/loader/gradient. */
#include "tests/loader/cases.h"

static void test_forms(void) {
  TEST_CASES("DFT@17 f[2,8,3,1]^0 -> DFT f[2,8,3,2]^0",
             "DFT@17 f[2,8,3,2]^0 | axis=2 inverse=1 -> DFT f[2,8,3,2]^0",
             "DFT@17 d[2,8,1] | axis=1 onesided=1 -> DFT d[2,5,2]",
             "DFT@17 f[2,8,1] i=5 | onesided=1 -> DFT f[2,3,2]",
             "DFT@20 f[2,8,1] - - -> DFT f[2,8,2]", "DFT@20 f[2,8,1] - i=0 -> DFT f[2,8,2]",
             "DFT@20 f[2,8,1] i=16 i=-2 -> DFT f[2,16,2]",
             "DFT@20 f[2,5,2]^0 - i=1 | inverse=1 onesided=1 -> DFT f[2,8,1]^0",
             "DFT@20 f[2,5,2] i=9 i=1 | inverse=1 onesided=1 -> DFT f[2,9,1]");
}

static void test_refusals(void) {
  TEST_CASES("DFT@20 f[2,8,1]^1 -> !carry transformed together",
             "DFT@20 f[2,8,2]^2 -> !carry transformed together",
             "DFT@20 f[2,8,3] -> !INVALID has 3 numbers an element",
             "DFT@20 f[2,8,2] | onesided=1 -> !INVALID a onesided transform needs 1",
             "DFT@20 f[2,8,1] | onesided=1 inverse=1 -> !INVALID onesided transform needs 2",
             "DFT@20 f[2,8,1] - i=2 -> !INVALID axis 2 is no signal axis",
             "DFT@20 f[2,8,1] i=0 -> !INVALID transforms 0 elements",
             "DFT@20 f[2,1,2] | onesided=1 inverse=1 -> !INVALID transforms 0 elements",
             "DFT@20 f[2,8,1] i{1,2} -> !INVALID has 2 numbers, not 1",
             "DFT@20 i[2,8,1] -> !INVALID floating-point",
             "DFT@20 f[2,8,1] i[1] -> !UNSUPPORTED needs the value of graph input");
}

OPI_TEST_MAIN("dft", OPI_TEST(test_forms), OPI_TEST(test_refusals))
