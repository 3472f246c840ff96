/* SPDX-License-Identifier: Apache-2.0 */
/* Both matrices on devices that do everything later (async.h): every model folder with all that is
 * in cases.h, by copies, in token slices; every schedule on six models, 2 and 4 ranks, optimizers
 * in turn; two shapes in turn. The two places take turns, and models, schedules and ranks pass
 * both. ctest: timeout=3600 label=full
 */
#include <stdio.h>

#include "tests/matrix/async.h"
#include "tests/matrix/shares.h"
#include "tests/matrix/slices.h"
#include "tests/matrix/turns.h"

enum { ROWS = 11, MICROBATCHES = 4 };

static void test_inference(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_count count;
  async_inference(0, &count);
  OPI_ASSERT(count.capped > 0);
}

static void run_model(const kit_subject *subject, kit_tally *tally) {
  kit_bench b;
  const opipe_status status = kit_bench_open(&b, subject, &kit_computes[0], ROWS);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t s = 0; s < kit_n_schedules && status == OPIPE_OK; ++s) {
    for (uint32_t c = 0; c < 2; ++c) {
      b.place = ASYNC[(s + c) % ASYNC_PLACES];
      kit_case_run(&b, &kit_schedules[s], 2 + c * 2, MICROBATCHES, (uint32_t)(s / 2 + c) % 2,
                   tally);
    }
  }
  kit_bench_close(&b);
}

static void test_training(void) {
  kit_tally tally = {.passed = 0};
  for (size_t i = 0; i < kit_n_subjects; ++i) {
    if (kit_subject_path(&kit_subjects[i]) == NULL)
      continue;
    run_model(&kit_subjects[i], &tally);
    kit_tally_print(kit_subjects[i].name, &tally);
  }
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
}

static void test_copies(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_count count;
  mx_copies(true, ASYNC, ASYNC_PLACES, &count);
  OPI_ASSERT_INT(count.failed, 0);
}

static void test_shares(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_count count;
  mx_shares(true, ASYNC, ASYNC_PLACES, &count);
  OPI_ASSERT_INT(count.failed, 0);
}

static void test_slices(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_sliced count;
  mx_slices(true, ASYNC, ASYNC_PLACES, &count);
  OPI_ASSERT_INT(count.failed, 0);
}

static void test_two_shapes_in_turn(void) {
  kit_tally tally;
  mx_turns(true, ASYNC, ASYNC_PLACES, &tally);
  OPI_ASSERT_INT(tally.failed, 0);
}

OPI_TEST_MAIN("matrix on asynchronous devices, full", OPI_TEST(test_inference),
              OPI_TEST(test_training), OPI_TEST(test_copies), OPI_TEST(test_shares),
              OPI_TEST(test_slices), OPI_TEST(test_two_shapes_in_turn))
