/* SPDX-License-Identifier: Apache-2.0 */
/* A cover of both matrices over transport-strict, which refuses what breaks a rule of transports.
 * ctest: timeout=240
 */
#include <stdio.h>

#include "tests/matrix/strict.h"
#include "tests/runtime/train/cases.h"

enum { ONE_IN = 5, SANITIZED_ONE_IN = 15, ROWS = 8, MICROBATCHES = 4 };

static void test_inference(void) {
  const char *names[MX_FOLDERS];
  const kit_place places[2] = {{.transport = STRICT[0]}, {.transport = STRICT[1]}};
  const mx_scope scope = {.one_in = opi_test_is_sanitized() ? SANITIZED_ONE_IN : ONE_IN,
                          .places = places,
                          .n_places = 2};
  mx_count count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  const strict_seen before = strict_look();
  mx_matrix(&scope, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0);
  strict_judge(&before, false);
}

/* Every schedule; rules and ranks in turn. */
static void test_training(void) {
  kit_tally tally = {.passed = 0};
  kit_bench b;
  const strict_seen before = strict_look();
  const opipe_status status = kit_bench_open(&b, &kit_subjects[0], &kit_computes[0], ROWS);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t s = 0; s < kit_n_schedules && status == OPIPE_OK; ++s) {
    const uint32_t n_ranks = (kit_schedules[s].traits & KIT_FOUR) != 0 || s % 3 == 0 ? 4 : 2;
    if (opi_test_is_sanitized() && !opi_test_covers(s, 3))
      continue;
    b.place.transport = STRICT[s % 2];
    kit_case_run(&b, &kit_schedules[s], n_ranks, MICROBATCHES, s / 2 % 2, &tally);
  }
  kit_bench_close(&b);
  kit_tally_print(kit_subjects[0].name, &tally);
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
  strict_judge(&before, true);
}

/* Sums wait for events of devices that answer later, and record their own. */
static void test_asynchronous_devices(void) {
  static const char *const schedules[] = {"1f1b", "chimera:sync=eager", "2bw"};
  const strict_seen before = strict_look();
  for (size_t i = 0; i < 2 * OPI_COUNT(schedules); ++i) {
    kit k;
    kit_outcome a, b;
    kit_case c = kit_case_of(schedules[i / 2], 4, MICROBATCHES * (1 + (uint32_t)i % 2), i % 2 == 0);
    c.spec.replicas = 1 + (uint32_t)i % 2;
    c.device = "emulated";
    c.device_options = "time_us=50";
    c.transport = STRICT[i % 2];
    OPI_ASSERT_OK_FATAL(kit_open(&k, kit_subject_path(&kit_subjects[0]), ROWS, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, 32, 0, &a), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, 32, OPIPE_SESSION_REFERENCE, &b), &k.err);
    kit_compare(schedules[i / 2], &a, &b, 0);
    kit_close(&k);
  }
  strict_judge(&before, true);
}

OPI_TEST_MAIN("matrix over a strict transport, cover", OPI_TEST(test_inference),
              OPI_TEST(test_training), OPI_TEST(test_asynchronous_devices))
