/* SPDX-License-Identifier: Apache-2.0 */
/* A cover of training on the doubles; see training.h. ctest: timeout=240
 */
#include "tests/plugins/backend-cuda/training.h"

/* Models, types, schedules (of kit_schedules, by name), optimizers and places by turns. */
static const struct {
  size_t subject, compute;
  const char *schedule;
  uint32_t optimizer;
  size_t place;
} cases[] = {{0, 0, "1f1b", 0, 1},
             {1, 0, "interleaved:chunks=2", 1, 0},
             {0, 1, "zbv", 0, 0},
             {1, 2, "2bw", 0, 1}};

static void run_case(size_t i) {
  kit_bench b;
  kit_tally tally = {.passed = 0};
  const kit_subject *subject = &ct_subjects[cases[i].subject];
  const opipe_status status =
      kit_bench_open(&b, subject, &kit_computes[cases[i].compute], CT_TRAIN_ROWS);
  OPI_ASSERT_OK(status, &b.k.err);
  size_t s = 0;
  while (s + 1 < kit_n_schedules && strcmp(kit_schedules[s].name, cases[i].schedule) != 0)
    ++s;
  if (status >= 0)
    ct_schedule(&b, s, 2, cases[i].optimizer, cases[i].place, &tally);
  kit_bench_close(&b);
  kit_tally_print(subject->name, &tally);
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
}

static void test_schedules(void) {
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  const size_t n = opi_test_is_sanitized() ? 1 : sizeof cases / sizeof cases[0];
  for (size_t i = 0; i < n; ++i)
    run_case(i);
}

OPI_TEST_MAIN("training on doubles of CUDA, cover", OPI_TEST(test_schedules))
