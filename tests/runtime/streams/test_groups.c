/* SPDX-License-Identifier: Apache-2.0 */
/* Streams in tensor groups of 2, 3 and 4: six decoders, of a cover three of them in each width;
 * what is judged is in groups.h. ctest: timeout=120 */
#include "tests/runtime/streams/groups.h"

static void test_widths(void) {
  for (uint32_t i = 0; i < GROUP_MODELS; ++i) {
    run_uncut(&GROUPS[i]);
    for (uint32_t width = 2; width <= 4; ++width) {
      if (!opi_test_covers(i + width, 2))
        continue;
      plan_case c = group_case(&GROUPS[i], width, 1 + i % 2);
      c.sequence = (i / 2 + width) % 2 == 0;
      check_group(&c, OPIPE_SESSION_POISON);
    }
  }
}

static void test_reference(void) {
  const group_model *m = &GROUPS[3];
  run_uncut(m);
  const plan_case c = group_case(m, 4, 2);
  check_group(&c, OPIPE_SESSION_REFERENCE);
}

static void test_copies(void) {
  for (uint32_t i = 0; i < GROUP_MODELS; i += 3) { /* whole and shared heads */
    plan_case c = group_case(&GROUPS[i], 3, 1);
    check_copies(&c);
    c.replicas = 2;
    check_copies(&c);
  }
}

static void test_emulated_devices(void) {
  const group_model *m = &GROUPS[3];
  run_uncut(m);
  plan_case c = group_case(m, 3, 2);
  c.kind = "emulated";
  c.options = "async=1";
  check_group(&c, 0);
  c.replicas = 2;
  check_copies(&c);
}

OPI_TEST_MAIN("streams in tensor groups", OPI_TEST(test_widths), OPI_TEST(test_reference),
              OPI_TEST(test_copies), OPI_TEST(test_emulated_devices))
