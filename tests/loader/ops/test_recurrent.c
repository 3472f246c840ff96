/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM, GRU and RNN: what they become, shapes, the batch through them, what is refused. Values:
 * tests/nodes, tests/plugins/backend-cpu; gradients: tests/loader/gradient. */
#include "tests/loader/cases.h"

static void test_forms(void) {
  TEST_CASES(
      "LSTM@14 f[5,3,4]^1 f[1,24,4] f[1,24,6] -> Reshape f[5,1,3,6]^2 f[1,3,6]^1 f[1,3,6]^1",
      "LSTM@7 f[5,3,4]^1 f[2,24,4] f[2,24,6] f[2,48] | direction=$bidirectional -> "
      "Concat f[5,2,3,6]^2 f[2,3,6]^1",
      "LSTM@14 f[3,5,4]^0 f[1,24,4] f[1,24,6] | layout=1 -> Transpose f[3,5,1,6]^0 f[3,1,6]^0",
      "LSTM@14 h[5,3,4]^1 h[1,24,4] h[1,24,6] - u[3] -> !INVALID int32, int64",
      "GRU@14 f[5,3,4]^1 f[1,18,4] f[1,18,6] - i{5,2,0} -> !carry does not hold the rows",
      "GRU@14 f[5,3,4]^1 f[1,18,4] f[1,18,6] f[1,36] n[3]^0 f[1,3,6]^1 | linear_before_reset=1 -> "
      "Reshape f[5,1,3,6]^2 f[1,3,6]^1",
      "RNN@14 d[5,3,4]^1 d[1,6,4] d[1,6,6] -> Reshape d[5,1,3,6]^2 d[1,3,6]^1");
}

static void test_refusals(void) {
  TEST_CASES("RNN@14 f[5,3,4]^0 f[1,6,4] f[1,6,6] -> !carry each step depends on the one before",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,20,6] -> !INVALID [1, 24, 6] is needed",
             "LSTM@14 f[5,3,4] f[1,24,3] f[1,24,6] -> !INVALID [1, 24, 4] is needed",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,24,6] f[1,24] -> !INVALID [1, 48] is needed",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,24,6] - n[4] -> !INVALID [3] is needed",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,24,6] - - f[2,3,6] -> !INVALID [1, 3, 6] is needed",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,24,6] | hidden_size=5 -> !INVALID hidden_size is 5",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,24,6] | direction=$up -> !UNSUPPORTED 'up', "
             "supported: forward",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,24,6] | layout=2 -> !INVALID layout is 2",
             "LSTM@14 f[5,3,4] d[1,24,4] d[1,24,6] -> !INVALID type",
             "LSTM@14 f[5,3,4] f[1,24,4] f[1,24,6] | clip=-1.0f -> !INVALID clip is -1");
}

OPI_TEST_MAIN("recurrent", OPI_TEST(test_forms), OPI_TEST(test_refusals))
