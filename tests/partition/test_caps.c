/* SPDX-License-Identifier: Apache-2.0 */
/* Caps that some cut between blocks fits are met by the planner within 2 %, and what it calls the
 * smallest cap in a refusal is accepted: a cover of test_caps_full, and two cases on the devices of
 * this machine against all cuts.
 * ctest: timeout=120 label=twice
 */
#include "tests/partition/caps.h"

enum { COVER = 5 };

static void test_recorded(void) {
  for (size_t i = 0; i < COVER; ++i) {
    if (!opi_test_covers(i, opi_test_sparse(2)))
      continue;
    const uint64_t smallest = caps_recorded(&caps_cases[i]);
    OPI_ASSERT_FATAL(smallest != 0);
    caps_check(&caps_cases[i], smallest);
  }
}

/* The file says what there is: its shortest case made anew. */
static void test_the_file_is_true(void) {
  if (opi_test_is_sanitized())
    OPI_SKIP("the optimized build tries all cuts");
  for (size_t i = 0; i < caps_n_cases; ++i) {
    const caps_case *c = &caps_cases[i];
    if (strcmp(c->model->name, "encoder") == 0 && c->n_ranks == 3)
      OPI_ASSERT_INT((int64_t)caps_smallest(c), (int64_t)caps_recorded(c));
  }
}

static void test_here(void) {
  for (size_t i = 0; i < 2; ++i) {
    caps_case c = caps_cases[i];
    if (!opi_test_covers(i, opi_test_sparse(2)))
      continue;
    c.here = true;
    /* half as many cuts a stage, where that leaves one for each */
    c.positions &= opi_test_is_sanitized() && c.n_stages <= 4 ? 0x5555u : 0x5ff5u;
    const uint64_t smallest = caps_smallest(&c);
    OPI_ASSERT_FATAL(smallest != 0);
    caps_check(&c, smallest);
  }
}

OPI_TEST_MAIN("caps", OPI_TEST(test_recorded), OPI_TEST(test_the_file_is_true), OPI_TEST(test_here))
