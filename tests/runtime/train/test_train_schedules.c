/* SPDX-License-Identifier: Apache-2.0 */
/* Every schedule on one model at 2 and 4 ranks, and some on models of today: after 10 steps losses
 * and weights have the bits of the plan's reference (no schedule, no transport), and are close to
 * the uncut model's. All of it: tests/matrix/test_train_full.c. ctest: timeout=600 label=twice */
#include <stdlib.h>

#include "tests/runtime/train/cases.h"

static const int64_t ROWS = 8, UNEVEN = 11;

/* One case in n; in 2 n under a sanitizer, where rarer ones would leave out a type or a model. */
static size_t twice_as_rare(size_t n) {
  return opi_test_is_sanitized() ? 2 * n : n;
}

static void run_all(kit_bench *b, uint32_t m, bool both, kit_tally *tally) {
  for (size_t s = 0; s < kit_n_schedules; ++s) {
    if (!opi_test_covers(s, opi_test_sparse(4)))
      continue;
    for (uint32_t c = 0; c < 2 && both; ++c) /* ranks and optimizers in turn */
      kit_case_run(b, &kit_schedules[s], c == 0 ? 4 : 2, m, (uint32_t)(s + c) % 2, tally);
    if (!both)
      kit_case_run(b, &kit_schedules[s], 4, m, s % 2, tally);
  }
}

/* Rows of two; then 3, 3, 3, 2 of them. */
static void test_every_schedule(void) {
  kit_tally tally = {.passed = 0};
  kit_bench b;
  if (opi_test_is_sanitized())
    OPI_SKIP("a sanitizer sees test_uneven_rows");
  OPI_ASSERT_OK_FATAL(kit_bench_open(&b, &kit_subjects[0], &kit_computes[0], ROWS), &b.k.err);
  OPI_ASSERT(kit_uncut_loose(&b) < 0.02);
  run_all(&b, 4, true, &tally);
  kit_bench_close(&b);
  kit_tally_print("2 and 4 ranks", &tally);
  OPI_ASSERT(tally.failed == 0 &&
             tally.passed * 2 > opi_test_covered(kit_n_schedules, opi_test_sparse(4)) * 3);
}

static void test_uneven_rows(void) {
  kit_tally tally = {.passed = 0};
  kit_bench b;
  OPI_ASSERT_OK_FATAL(kit_bench_open(&b, &kit_subjects[0], &kit_computes[0], UNEVEN), &b.k.err);
  run_all(&b, 4, false, &tally);
  kit_case_run(&b, &kit_schedules[0], 4, 12, 0, &tally); /* more than rows */
  kit_bench_close(&b);
  kit_tally_print("uneven rows", &tally);
  OPI_ASSERT(tally.failed == 0 && tally.refused > 0);
  OPI_ASSERT(tally.passed * 5 > opi_test_covered(kit_n_schedules, opi_test_sparse(4)) * 3);
}

/* Token slices whose weights' gradients come later, with and without halves of the rows. */
static void test_pieces_together(void) {
  kit_tally tally = {.passed = 0};
  kit_bench b;
  OPI_ASSERT_OK_FATAL(kit_bench_open(&b, &kit_subjects[1], &kit_computes[0], UNEVEN), &b.k.err);
  for (size_t s = 0; s < OPI_COUNT(kit_pieces); ++s)
    kit_case_run(&b, &kit_pieces[s], s == 0 ? 4 : 2, 3, s % 2, &tally);
  kit_bench_close(&b);
  kit_tally_print("pieces together", &tally);
  OPI_ASSERT(tally.failed == 0 && tally.passed == OPI_COUNT(kit_pieces));
}

/* Half types: token slices, and a schedule of each kind. */
static void test_half_types(void) {
  for (size_t c = 1; c < OPI_COUNT(kit_computes); ++c) {
    kit_tally tally = {.passed = 0};
    kit_bench b;
    OPI_ASSERT_OK_FATAL(kit_bench_open(&b, &kit_subjects[1], &kit_computes[c], UNEVEN), &b.k.err);
    for (size_t s = 0; s < kit_n_schedules; ++s) {
      if ((s % 6 == c || (kit_schedules[s].traits & KIT_SLICED) != 0) &&
          opi_test_covers(s / 2, twice_as_rare(4)))
        kit_case_run(&b, &kit_schedules[s], c == 1 ? 2 : 4, 3, s / 2 % 2 != 0, &tally);
    }
    kit_bench_close(&b);
    kit_tally_print(kit_computes[c].name, &tally);
    OPI_ASSERT(tally.failed == 0 && tally.passed >= (opi_test_is_cover() ? 1 : 7));
  }
}

/* Rotary embeddings, ties, no causality, an encoder beside a decoder: one schedule of each kind. */
static void check_modern(size_t subject) {
  static const char *const some[] = {
      "1f1b", "zb-h1", "interleaved:chunks=2", "chimera", "zbv", "seq1f1b:slices=4", "2bw"};
  kit_tally tally = {.passed = 0};
  size_t n_run = 0;
  kit_bench b;
  if (kit_subject_path(&kit_subjects[subject]) == NULL)
    return;
  OPI_ASSERT_OK_FATAL(kit_bench_open(&b, &kit_subjects[subject], &kit_computes[0], ROWS), &b.k.err);
  for (size_t s = 0; s < kit_n_schedules; ++s) {
    for (size_t i = 0; i < OPI_COUNT(some); ++i) {
      if (strcmp(kit_schedules[s].name, some[i]) != 0 || kit_schedules[s].traits == KIT_BOUNDED ||
          !opi_test_covers(subject + i, twice_as_rare(3)))
        continue;
      kit_case_run(&b, &kit_schedules[s], 4, 4, i % 2, &tally);
      ++n_run;
    }
  }
  kit_bench_close(&b);
  kit_tally_print(kit_subjects[subject].name, &tally);
  OPI_ASSERT(tally.failed == 0 && n_run >= OPI_COUNT(some) / twice_as_rare(3));
  OPI_ASSERT_INT(tally.passed + tally.refused, n_run);
}

static void test_gpt2(void) {
  check_modern(2);
}
static void test_llama(void) {
  check_modern(3);
}
static void test_bert(void) {
  check_modern(4);
}
static void test_t5(void) {
  check_modern(5);
}

OPI_TEST_MAIN("training schedules", OPI_TEST(test_every_schedule), OPI_TEST(test_uneven_rows),
              OPI_TEST(test_pieces_together), OPI_TEST(test_half_types), OPI_TEST(test_llama),
              OPI_TEST(test_gpt2), OPI_TEST(test_bert), OPI_TEST(test_t5))
