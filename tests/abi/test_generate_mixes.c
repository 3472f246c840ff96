/* SPDX-License-Identifier: Apache-2.0 */
/* Every form of a decoder's file: sequences in a mix have the logits that they have alone. Each
 * form occurs, and every pair of levels of stages, passes in flight, rows, drivers, transports (of
 * two processes, too), pages, copies and widths; test_generate_mixes_full has every triple, with
 * the forms. ctest: timeout=120 */
#include "tests/abi/mixes.h"

static void test_logits_are_those_alone(void) {
  static uint8_t seen[MIX_NAMES * MIX_NAMES];
  mix_cover cover = {.n_forms = MIX_SHORT,
                     .may = mix_may,
                     .ctx = mix_forms,
                     .random = {150},
                     /* makes few, and small ones */ .seen = seen};
  mix_counts counts = {.runs = 0};
  uint32_t n_idle = 0; /* forms in a row that had nothing new */
  for (uint32_t i = 0; i < MIX_SHORT || n_idle < MIX_SHORT; ++i) {
    mix_way way = {.at = {[MIX_ROWS] = 1, [MIX_FORM] = i % MIX_SHORT}};
    const bool is_new = mix_next(&cover, i % MIX_SHORT, &way);
    n_idle = is_new ? 0 : n_idle + 1;
    if (is_new || i < MIX_SHORT)
      mix_try(mix_forms, &way, 3, &counts);
  }
  mix_check(&counts);
}

OPI_TEST_MAIN("generate/mixes", OPI_TEST(test_logits_are_those_alone))
