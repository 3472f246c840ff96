/* SPDX-License-Identifier: Apache-2.0 */
/* Training gives its earlier results. ctest: timeout=2400 label=nosan */
#include "tests/digests/digests.h"

static void test_gpt_8block(void) {
  dg_training(0);
}
static void test_llama_8block(void) {
  dg_training(1);
}
static void test_gpt2(void) {
  dg_training(2);
}
static void test_llama(void) {
  dg_training(3);
}
static void test_bert(void) {
  dg_training(4);
}
static void test_t5(void) {
  dg_training(5);
}

OPI_TEST_MAIN("digests of training", OPI_TEST(test_gpt_8block), OPI_TEST(test_llama_8block),
              OPI_TEST(test_gpt2), OPI_TEST(test_llama), OPI_TEST(test_bert), OPI_TEST(test_t5))
