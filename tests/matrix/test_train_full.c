/* SPDX-License-Identifier: Apache-2.0 */
/* Training, all of it: every schedule on six models, 2 and 4 ranks (with two stages on each where
 * the schedule has such), whole and uneven micro-batches, fewer of them than ranks, SGD and AdamW;
 * in bf16 and fp16 ranks and optimizers in turn. ctest: timeout=2400 label=full
 */
#include <stdio.h>

#include "tests/runtime/train/cases.h"

/* Rows, micro-batches: rows of one; uneven and below four ranks; uneven; fewer than two ranks; more
 * than rows. */
static const struct {
  int64_t rows;
  uint32_t microbatches[3];
} BATCHES[] = {{8, {8, 3, 9}}, {11, {4, 1, 0}}};

static void run_model(const kit_subject *subject, size_t batch, kit_tally *tally) {
  kit_bench b;
  const opipe_status status = kit_bench_open(&b, subject, &kit_computes[0], BATCHES[batch].rows);
  OPI_ASSERT_OK(status, &b.k.err);
  OPI_ASSERT(kit_uncut_loose(&b) < 0.02);
  for (size_t s = 0; s < kit_n_schedules && status == OPIPE_OK; ++s) {
    for (uint32_t i = 0; i < 3 && BATCHES[batch].microbatches[i] != 0; ++i) {
      for (uint32_t c = 0; c < 4; ++c) {
        kit_case_run(&b, &kit_schedules[s], 2 + c / 2 * 2, BATCHES[batch].microbatches[i], c % 2,
                     tally);
      }
    }
  }
  for (uint32_t c = 0; c < 8 && status == OPIPE_OK; ++c) {
    kit_case_run(&b, &kit_pieces[c % 2], 2 + c / 4 * 2, BATCHES[batch].microbatches[c / 2 % 2],
                 c % 2, tally);
  }
  kit_bench_close(&b);
}

static void run_half(const kit_subject *subject, const kit_compute *compute, kit_tally *tally) {
  kit_bench b;
  const opipe_status status = kit_bench_open(&b, subject, compute, BATCHES[1].rows);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t s = 0; s < kit_n_schedules && status == OPIPE_OK; ++s) {
    for (uint32_t c = 0; c < 2; ++c) {
      kit_case_run(&b, &kit_schedules[s], 2 + c * 2, BATCHES[1].microbatches[0],
                   (uint32_t)(s + c) % 2, tally);
    }
  }
  kit_bench_close(&b);
}

static void run_subject(size_t i) {
  kit_tally tally = {.passed = 0};
  if (kit_subject_path(&kit_subjects[i]) == NULL)
    return;
  for (size_t batch = 0; batch < OPI_COUNT(BATCHES); ++batch)
    run_model(&kit_subjects[i], batch, &tally);
  for (size_t c = 1; c < OPI_COUNT(kit_computes); ++c)
    run_half(&kit_subjects[i], &kit_computes[c], &tally);
  kit_tally_print(kit_subjects[i].name, &tally);
  OPI_ASSERT(tally.failed == 0);
}

static void test_gpt_8block(void) {
  run_subject(0);
}
static void test_llama_8block(void) {
  run_subject(1);
}
static void test_gpt2(void) {
  run_subject(2);
}
static void test_llama(void) {
  run_subject(3);
}
static void test_bert(void) {
  run_subject(4);
}
static void test_t5(void) {
  run_subject(5);
}

OPI_TEST_MAIN("training matrix, full", OPI_TEST(test_gpt_8block), OPI_TEST(test_llama_8block),
              OPI_TEST(test_gpt2), OPI_TEST(test_llama), OPI_TEST(test_bert), OPI_TEST(test_t5))
