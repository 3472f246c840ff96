/* SPDX-License-Identifier: Apache-2.0 */
/* Both matrices over transport-strict, which refuses what breaks a rule of transports: every model
 * folder with all that is in cases.h, by copies, in token slices; every schedule on six models, 2
 * and 4 ranks, whole and uneven micro-batches, optimizers and rules in turn; two shapes in turn.
 * ctest: timeout=2400 label=full
 */
#include <stdio.h>

#include "tests/matrix/shares.h"
#include "tests/matrix/slices.h"
#include "tests/matrix/strict.h"
#include "tests/matrix/turns.h"

static const struct {
  int64_t rows;
  uint32_t microbatches;
} BATCHES[] = {{8, 8}, {11, 4}};

static void test_inference(void) {
  const char *names[MX_FOLDERS];
  const kit_place places[2] = {{.transport = STRICT[0]}, {.transport = STRICT[1]}};
  const mx_scope scope = {.full = true, .places = places, .n_places = 2};
  mx_count count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  const strict_seen before = strict_look();
  mx_matrix(&scope, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0 && count.capped > 0);
  strict_judge(&before, false);
}

static void run_batch(const kit_subject *subject, size_t batch, kit_tally *tally) {
  kit_bench b;
  const opipe_status status = kit_bench_open(&b, subject, &kit_computes[0], BATCHES[batch].rows);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t s = 0; s < kit_n_schedules && status == OPIPE_OK; ++s) {
    for (uint32_t c = 0; c < 2; ++c) {
      b.place.transport = STRICT[(s + c) % 2];
      kit_case_run(&b, &kit_schedules[s], 2 + 2 * c, BATCHES[batch].microbatches,
                   (uint32_t)(s / 2 + c + batch) % 2, tally);
    }
  }
  kit_bench_close(&b);
}

static void test_training(void) {
  kit_tally tally = {.passed = 0};
  const strict_seen before = strict_look();
  for (size_t i = 0; i < kit_n_subjects; ++i) {
    for (size_t batch = 0; kit_subject_path(&kit_subjects[i]) != NULL && batch < OPI_COUNT(BATCHES);
         ++batch)
      run_batch(&kit_subjects[i], batch, &tally);
    kit_tally_print(kit_subjects[i].name, &tally);
  }
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
  strict_judge(&before, true);
}

static void test_copies(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  const strict_seen before = strict_look();
  mx_count count;
  mx_copies(true, &(kit_place){.transport = STRICT[1]}, 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
  strict_judge(&before, false);
}

static void test_shares(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  const strict_seen before = strict_look();
  mx_count count;
  mx_shares(true, &(kit_place){.transport = STRICT[1]}, 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
  strict_judge(&before, false);
}

static void test_slices(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  const strict_seen before = strict_look();
  mx_sliced count;
  mx_slices(true, &(kit_place){.transport = STRICT[0]}, 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
  strict_judge(&before, false);
}

static void test_two_shapes_in_turn(void) {
  const strict_seen before = strict_look();
  kit_tally tally;
  mx_turns(true, &(kit_place){.transport = STRICT[0]}, 1, &tally);
  OPI_ASSERT_INT(tally.failed, 0);
  strict_judge(&before, true);
}

OPI_TEST_MAIN("matrix over a strict transport, full", OPI_TEST(test_inference),
              OPI_TEST(test_training), OPI_TEST(test_copies), OPI_TEST(test_shares),
              OPI_TEST(test_slices), OPI_TEST(test_two_shapes_in_turn))
