/* SPDX-License-Identifier: Apache-2.0 */
/* Streams in tensor groups: six decoders x widths 2, 3, 4 x stages 1, 2, 4 x replicas 1, 2 x both
 * forms; what is judged is in groups.h. ctest: timeout=1800 label=full */
#include "tests/runtime/streams/groups.h"

static void check_width(const group_model *m, uint32_t width) {
  for (uint32_t i = 0; i < 12; ++i) {
    plan_case c = group_case(m, width, 1u << i % 3);
    c.replicas = 1 + i / 3 % 2;
    c.sequence = i >= 6;
    check_group(&c, i % 2 == 0 ? OPIPE_SESSION_POISON : 0u);
    check_copies(&c);
  }
}

static void check(uint32_t model) {
  run_uncut(&GROUPS[model]);
  for (uint32_t width = 2; width <= 4; ++width)
    check_width(&GROUPS[model], width);
}

static void test_gpt(void) {
  check(0);
}
static void test_six(void) {
  check(1);
}
static void test_three(void) {
  check(2);
}
static void test_two(void) {
  check(3);
}
static void test_attention(void) {
  check(4);
}
static void test_group_query(void) {
  check(5);
}

OPI_TEST_MAIN("streams in tensor groups, all", OPI_TEST(test_gpt), OPI_TEST(test_six),
              OPI_TEST(test_three), OPI_TEST(test_two), OPI_TEST(test_attention),
              OPI_TEST(test_group_query))
