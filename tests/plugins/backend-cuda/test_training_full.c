/* SPDX-License-Identifier: Apache-2.0 */
/* Training on the doubles under every schedule, in fp32; in half types under every third. See
 * training.h. ctest: timeout=1800 label=full
 */
#include "tests/plugins/backend-cuda/training.h"

static void run_all(const kit_subject *subject, size_t compute, size_t first, size_t step) {
  kit_bench b;
  kit_tally tally = {.passed = 0};
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  const opipe_status status = kit_bench_open(&b, subject, &kit_computes[compute], CT_TRAIN_ROWS);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t s = first; s < kit_n_schedules && status >= 0; s += step)
    ct_schedule(&b, s, s % 3 == 0 ? 4 : 2, (uint32_t)(s + compute) % 2, s / 2 % 2, &tally);
  kit_bench_close(&b);
  kit_tally_print(subject->name, &tally);
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
}

static void test_gpt(void) {
  run_all(&ct_subjects[0], 0, 0, 1);
}
static void test_llama(void) {
  run_all(&ct_subjects[1], 0, 0, 1);
}
static void test_bf16(void) {
  run_all(&ct_subjects[0], 1, 0, 3);
  run_all(&ct_subjects[1], 1, 1, 3);
}
static void test_fp16(void) {
  run_all(&ct_subjects[0], 2, 1, 3);
  run_all(&ct_subjects[1], 2, 2, 3);
}

OPI_TEST_MAIN("training on doubles of CUDA", OPI_TEST(test_gpt), OPI_TEST(test_llama),
              OPI_TEST(test_bf16), OPI_TEST(test_fp16))
