/* SPDX-License-Identifier: Apache-2.0 */
/* Random and perturbed schedules are planned, run and compared, or refused with the reason; see
 * random.h. tests/fuzz/fuzz_training.c goes on from here. ctest: timeout=300 */
#include <stdio.h>

#include "tests/runtime/train/random.h"

enum { TRIES = 240, BYTES = 400 };

static void test_random_schedules(void) {
  random_trainer *trainer = random_trainer_open(opi_test_tmpdir(), NULL);
  opi_test_random random = {20261121};
  random_count n = {.tried = 0};
  for (uint32_t i = 0; i < TRIES; ++i) {
    uint8_t data[BYTES];
    for (uint32_t k = 0; k < BYTES; ++k)
      data[k] = (uint8_t)(opi_test_next(&random) >> 33);
    const char *why = random_train(trainer, data, BYTES, &n);
    if (why != NULL)
      OPI_FAIL("schedule %u: %s", i, why);
  }
  random_trainer_close(trainer);
  (void)printf(
      "\n%llu schedules: %llu trained (%llu sliced, %llu with replicas, %llu in parts, %llu with "
      "halves, %llu double-buffered), %llu + %llu refused, %llu not executed",
      (unsigned long long)n.tried, (unsigned long long)n.trained, (unsigned long long)n.sliced,
      (unsigned long long)n.replicated, (unsigned long long)n.parted, (unsigned long long)n.halves,
      (unsigned long long)n.buffered, (unsigned long long)n.refused,
      (unsigned long long)n.buffered_refused, (unsigned long long)n.not_executed);
  OPI_ASSERT(n.trained > n.tried / 3 && n.refused > n.tried / 10);
  OPI_ASSERT(n.sliced > 0 && n.replicated > 0 && n.halves > 0 && n.buffered > 0);
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
