/* SPDX-License-Identifier: Apache-2.0 */
/* Random and perturbed schedules are planned, run and compared, or refused with the reason; see
 * random.h. tests/fuzz/fuzz_training.c goes on from here. ctest: timeout=300 */
#include "tests/runtime/train/random.h"

static void test_random_schedules(void) {
  random_train_many(20261121, opi_test_is_cover() ? 120 : 240);
}

/* A forward of the next mini-batch in front of the backward that still needs its memory. */
static void test_a_tensor_held_too_long_is_refused(void) {
  kit k;
  const kit_case c = kit_case_of("csv:text=rank 0: 0F0+ 0B0'1\nrank 1: 1F0'1 1B0'1\n", 2, 1, false);
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), 2, 4),
                      &k.err);
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_UNSUPPORTED, &k.err, "longer than a mini-batch");
  kit_close(&k);
}

OPI_TEST_MAIN("random training schedules", OPI_TEST(test_random_schedules),
              OPI_TEST(test_a_tensor_held_too_long_is_refused))
