/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that several sessions run: every model folder in every split; every schedule, two models,
 * optimizers and rules in turn, copies of the pipeline, in every split of four ranks and of two.
 * ctest: timeout=1800 label=full
 */
#include <stdio.h>

#include "tests/matrix/halves.h"

enum { ROWS = 8, MICROBATCHES = 4 };
static const char *const FORWARD[] = {"gpipe", "1f1b", "interleaved:chunks=2", "chimera", "zbv"};

static void one_folder(const char *name, uint32_t turn, uint32_t *io_passed, uint32_t *io_refused) {
  mx_folder *folder = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(mx_folder_read(name, &folder, &err), &err);
  for (uint32_t i = 0; i < mx_n_splits; ++i) {
    const char *schedule = FORWARD[(turn + i) % OPI_COUNT(FORWARD)];
    const mx_split *split = &mx_splits[i];
    bool no = false;
    const char *wrong =
        mx_halves_infer(folder, schedule, split->n_ranks, split, (turn + i) / 2 % 2, &no);
    if (no)
      wrong = mx_halves_infer(folder, "gpipe", 1, split, (turn + i) % 2, &no);
    if (wrong != NULL)
      OPI_FAIL("%s under %s, split %u: %s", name, schedule, i, wrong);
    *io_passed += wrong == NULL && !no;
    *io_refused += no;
  }
  mx_folder_free(folder);
}

static void test_inference(void) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names);
  uint32_t passed = 0, refused = 0;
  if (n == 0)
    OPI_SKIP("there are no model folders");
  const strict_seen before = strict_look();
  for (size_t i = 0; i < n; ++i)
    one_folder(names[i], (uint32_t)i, &passed, &refused);
  (void)printf("%u cases in several sessions, %u refused\n", passed, refused);
  OPI_ASSERT(passed > 10 * refused);
  strict_judge(&before, false);
}

static void one_schedule(size_t s, const mx_split *split, size_t turn, uint32_t *io_passed) {
  const kit_schedule *schedule = &kit_schedules[s];
  const bool four = (schedule->traits & KIT_FOUR) != 0;
  char name[600];
  if ((schedule->traits & KIT_BOUNDED) != 0 || split->n_ranks == 3 ||
      (four && split->n_ranks % 4 != 0))
    return;
  kit_schedule_name(schedule, split->n_ranks, MICROBATCHES, name, sizeof name);
  const kit_case c = kit_case_of(name, split->n_ranks, MICROBATCHES, turn / 2 % 2);
  const char *wrong = mx_halves_train(&c, kit_subject_path(&kit_subjects[turn % 2]), ROWS, split,
                                      (uint32_t)turn % 2);
  if (wrong != NULL) {
    OPI_FAIL("%s, %u ranks in %u sessions: %s", schedule->name, split->n_ranks, split->n_parts,
             wrong);
  }
  *io_passed += wrong == NULL;
}

static void test_training(void) {
  const strict_seen before = strict_look();
  uint32_t passed = 0;
  for (size_t s = 0; s < kit_n_schedules; ++s) {
    for (size_t i = 0; i < mx_n_splits; ++i)
      one_schedule(s, &mx_splits[i], s + i, &passed);
  }
  (void)printf("%u cases trained in several sessions\n", passed);
  OPI_ASSERT(passed > 5 * kit_n_schedules);
  strict_judge(&before, true);
}

/* Sums between sessions: two copies of a pipeline of two, one in each. */
static void test_copies(void) {
  static const char *const schedules[] = {"1f1b", "chimera", "2bw", "zb-h1", "gpipe"};
  uint32_t passed = 0;
  for (size_t s = 0; s < OPI_COUNT(schedules); ++s) {
    for (size_t i = 1; i < 6; ++i) {
      kit_case c = kit_case_of(schedules[s], 4, 2 * MICROBATCHES, s % 2);
      c.spec.replicas = 2;
      const char *wrong =
          mx_halves_train(&c, kit_subject_path(&kit_subjects[i % 2]), ROWS, &mx_splits[i], i % 2);
      if (wrong != NULL)
        OPI_FAIL("2 copies of %s, split %zu: %s", schedules[s], i, wrong);
      passed += wrong == NULL;
    }
  }
  OPI_ASSERT(passed > 0);
}

OPI_TEST_MAIN("plans in several sessions, full", OPI_TEST(test_inference), OPI_TEST(test_training),
              OPI_TEST(test_copies))
