/* SPDX-License-Identifier: Apache-2.0 */
/* A cover of plans that several sessions run, each with some of the ranks.
 * ctest: timeout=240
 */
#include <stdio.h>

#include "tests/matrix/halves.h"

enum { ROWS = 8, MICROBATCHES = 4, ONE_IN = 8, SANITIZED_ONE_IN = 24 };
static const char *const FORWARD[] = {"gpipe", "1f1b", "interleaved:chunks=2", "chimera", "zbv"};

/* One model under one split, the i-th. */
typedef const char *(*run_fn)(const mx_folder *folder, size_t i, const mx_split *split,
                              bool *out_refused);

static const char *run_schedules(const mx_folder *folder, size_t i, const mx_split *split,
                                 bool *out_refused) {
  const char *wrong = mx_halves_infer(folder, FORWARD[i % OPI_COUNT(FORWARD)], split->n_ranks,
                                      split, (uint32_t)i / 2 % 2, out_refused);
  return *out_refused /* with one micro-batch it runs */
             ? mx_halves_infer(folder, "gpipe", 1, split, (uint32_t)i % 2, out_refused)
             : wrong;
}

static const char *run_replicas(const mx_folder *folder, size_t i, const mx_split *split,
                                bool *out_refused) {
  return mx_halves_infer(folder, "gpipe", 1, split, (uint32_t)i / 2 % 2, out_refused);
}

/* Runs the models that this run covers, each under the next of the splits. */
static void run_models(run_fn run, const mx_split *splits, size_t n_splits) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names), one_in = opi_test_is_sanitized() ? SANITIZED_ONE_IN : ONE_IN;
  uint32_t passed = 0, refused = 0;
  if (n == 0)
    OPI_SKIP("there are no model folders");
  const strict_seen before = strict_look();
  for (size_t i = 0; i < n; ++i) {
    mx_folder *folder = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    bool no = false;
    if (!opi_test_covers(i, one_in))
      continue;
    OPI_ASSERT_OK_FATAL(mx_folder_read(names[i], &folder, &err), &err);
    const size_t split = i / one_in % n_splits;
    const char *wrong = run(folder, i, &splits[split], &no);
    if (wrong != NULL)
      OPI_FAIL("%s, split %zu: %s", names[i], split, wrong);
    passed += wrong == NULL && !no;
    refused += no;
    mx_folder_free(folder);
  }
  (void)printf("%u models in several sessions, %u refused\n", passed, refused);
  OPI_ASSERT(passed > 0);
  strict_judge(&before, false);
}

static void test_inference(void) {
  run_models(run_schedules, mx_splits, mx_n_splits);
}

/* Replicas of a stage in one session, or in several; rows of an output come from each. */
static void test_replicas_of_single_stages(void) {
  static const mx_split splits[] = {{3, 2, {0, 0, 1}, {2, 1}, 2},
                                    {3, 2, {0, 1, 0}, {1, 2}, 2},
                                    {3, 3, {0, 1, 2}, {1, 2}, 2},
                                    {4, 2, {1, 0, 1, 0}, {1, 2, 1}, 3},
                                    {4, 4, {3, 2, 1, 0}, {2, 2}, 2}};
  run_models(run_replicas, splits, OPI_COUNT(splits));
}

/* Slices with halves, each in several sessions. */
static uint32_t train_pieces(void) {
  uint32_t passed = 0;
  for (size_t s = 0; s < OPI_COUNT(kit_pieces); ++s) {
    const mx_split *split = &mx_splits[1 + 4 * s];
    char name[600];
    kit_schedule_name(&kit_pieces[s], split->n_ranks, MICROBATCHES, name, sizeof name);
    const kit_case c = kit_case_of(name, split->n_ranks, MICROBATCHES, s == 0);
    const char *wrong =
        mx_halves_train(&c, kit_subject_path(&kit_subjects[0]), ROWS, split, (uint32_t)s);
    if (wrong != NULL)
      OPI_FAIL("pieces %zu: %s", s, wrong);
    passed += wrong == NULL;
  }
  return passed;
}

static void test_training(void) {
  const strict_seen before = strict_look();
  uint32_t passed = 0;
  for (size_t s = 0; s < kit_n_schedules; ++s) {
    const kit_schedule *schedule = &kit_schedules[s];
    const mx_split *split = &mx_splits[1 + s % 6];
    char name[600];
    if ((schedule->traits & KIT_BOUNDED) != 0 ||
        (opi_test_is_sanitized() && !opi_test_covers(s, 4)))
      continue;
    kit_schedule_name(schedule, split->n_ranks, MICROBATCHES, name, sizeof name);
    const kit_case c = kit_case_of(name, split->n_ranks, MICROBATCHES, s / 2 % 2);
    const char *wrong =
        mx_halves_train(&c, kit_subject_path(&kit_subjects[s % 2]), ROWS, split, (uint32_t)s % 2);
    if (wrong != NULL)
      OPI_FAIL("%s, split %zu: %s", schedule->name, 1 + s % 6, wrong);
    passed += wrong == NULL;
  }
  passed += train_pieces();
  (void)printf("%u schedules trained in several sessions\n", passed);
  OPI_ASSERT(passed > 0);
  strict_judge(&before, true);
}

OPI_TEST_MAIN("plans in several sessions, cover", OPI_TEST(test_inference),
              OPI_TEST(test_replicas_of_single_stages), OPI_TEST(test_training))
