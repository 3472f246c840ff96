/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of training: every schedule x recomputation x optimizer on five models; what is judged is
 * in memory.h. ctest: timeout=1800 label=full */
#include <stdio.h>

#include "tests/runtime/train/memory.h"

static void check(const char *path, bool causal) {
  memory_count count = {0, 0, 0};
  memory_check_model(path, 8, causal, true, &count);
  if (path == NULL)
    return;
  (void)printf("\n%u cases hold, %u are refused, %u fail", count.passed, count.refused,
               count.failed);
  OPI_ASSERT_INT(count.passed, 8 * (MEMORY_ROWS - (causal ? 0 : MEMORY_SLICED)));
  OPI_ASSERT_INT(count.failed, 0);
}

static void test_gpt(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), true);
}
static void test_llama(void) {
  check(opi_test_source("tests/data/llama_8block/model.onnx"), true);
}
static void test_gpt2(void) {
  check(opi_test_shared("models/modern/gpt2/train/model.onnx"), true);
}
static void test_bert(void) {
  check(opi_test_shared("models/modern/bert/train/model.onnx"), false);
}
static void test_t5(void) {
  check(opi_test_shared("models/modern/t5/train/model.onnx"), false);
}

static void check_groups(const char *path, bool causal) {
  memory_count count = {0, 0, 0};
  uint32_t n_copied = 0;
  if (path == NULL)
    return;
  for (uint32_t i = 0; i < MEMORY_ROWS; ++i)
    n_copied += memory_rows[i].replicas[0] != 0;
  memory_check_groups(path, 8, causal, &count);
  (void)printf("\n%u cases of groups hold, %u are refused, %u fail", count.passed, count.refused,
               count.failed);
  OPI_ASSERT_INT(count.passed, 2 * (MEMORY_ROWS - n_copied - (causal ? 0 : MEMORY_SLICED)));
  OPI_ASSERT_INT(count.failed, 0);
}

static void test_tensor_groups(void) {
  check_groups(opi_test_source("tests/data/gpt_8block/model.onnx"), true);
  check_groups(opi_test_source("tests/data/llama_8block/model.onnx"), true);
  check_groups(opi_test_shared("models/modern/gpt2/train/model.onnx"), true);
  check_groups(opi_test_shared("models/modern/t5/train/model.onnx"), false);
}

OPI_TEST_MAIN("training memory, all", OPI_TEST(test_gpt), OPI_TEST(test_llama), OPI_TEST(test_gpt2),
              OPI_TEST(test_bert), OPI_TEST(test_t5), OPI_TEST(test_tensor_groups))
