/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that keep their keys and values: three of them, interleaved and in flight at once, on 1,
 * 2 and 4 ranks, in copies of the pipeline, on devices of several kinds, have the bits of the same
 * requests with the host feeding outputs back, and are close to the whole prompt at once. Bytes are
 * those predicted, and go when a state is closed. ctest: timeout=120 */
#include "tests/runtime/streams/runs.h"

static void test_ranks(void) {
  for (uint32_t n = 1; n <= 4; n *= 2) {
    check_streams(&(plan_case){.n_stages = n, .n_streams = STREAMS}, 0);
    check_streams(&(plan_case){.n_stages = n, .n_streams = STREAMS}, OPIPE_SESSION_POISON);
  }
}

static void test_reference(void) {
  check_streams(&(plan_case){.n_stages = 2, .n_streams = STREAMS}, OPIPE_SESSION_REFERENCE);
}

static void test_copies_of_the_pipeline(void) {
  check_streams(&(plan_case){.n_stages = 1, .replicas = 3, .n_streams = STREAMS}, 0);
  check_streams(&(plan_case){.n_stages = 2, .replicas = 2, .n_streams = STREAMS}, 0);
}

static void test_emulated_devices(void) {
  check_streams(&(plan_case){.n_stages = 2, .n_streams = STREAMS, .kind = "emulated"}, 0);
  check_streams(
      &(plan_case){.n_stages = 4, .n_streams = STREAMS, .kind = "emulated", .options = "async=1"},
      0);
}

OPI_TEST_MAIN("states of streams", OPI_TEST(test_ranks), OPI_TEST(test_reference),
              OPI_TEST(test_copies_of_the_pipeline), OPI_TEST(test_emulated_devices))
