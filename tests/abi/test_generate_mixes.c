/* SPDX-License-Identifier: Apache-2.0 */
/* Every form of a decoder's file: sequences in a mix have the logits that they have alone. Each
 * form occurs, and every pair of levels of stages, passes in flight, rows, drivers, transports and
 * pages; test_generate_mixes_full has all combinations. ctest: timeout=120 */
#include "tests/abi/mixes.h"

static void test_logits_are_those_alone(void) {
  static uint8_t seen[MIX_SEEN];
  opi_test_random random = {11};
  mix_counts counts = {.runs = 0};
  mix_way way;
  /* forms in turn, until every one and every pair has been there */
  for (uint32_t i = 0;; ++i) {
    const mix_form *form = &mix_forms[i % MIX_SHORT];
    if (mix_next(form, seen, &random, &way) == 0) {
      if (i >= MIX_SHORT)
        break;
      way.form = form;
    }
    mix_try(&way, 2, &counts);
  }
  mix_check(&counts);
}

OPI_TEST_MAIN("generate/mixes", OPI_TEST(test_logits_are_those_alone))
