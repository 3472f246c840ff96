/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in a mix have the logits that they have alone: every triple of forms of a decoder's
 * file, stages, passes in flight, rows, drivers, transports, pages, copies and widths; families of
 * models, every pair of these. All combinations would be 94,208 runs of a second each, of which
 * nearly all repeat what others have shown: what goes wrong needs two or three circumstances.
 * ctest: timeout=7200 label=full */
#include "tests/abi/mixes.h"

static void test_every_triple(void) {
  static uint8_t seen[MIX_NAMES * MIX_NAMES * MIX_NAMES];
  mix_cover cover = {.threes = true,
                     .n_forms = MIX_FORMS,
                     .may = mix_may,
                     .ctx = mix_forms,
                     .random = {12},
                     .seen = seen};
  mix_counts counts = {.runs = 0};
  mix_way way;
  while (mix_next(&cover, 0, &way))
    mix_try(mix_forms, &way, 1, &counts);
  mix_check(&counts);
}

static void test_families(void) {
  mix_counts counts = {.runs = 0};
  mix_way way;
  if (opi_test_shared("models/modern") == NULL)
    return;
  for (uint32_t f = 0; f < MIX_FAMILIES; ++f) {
    static uint8_t seen[MIX_NAMES * MIX_NAMES];
    mix_cover cover = {.n_forms = MIX_FAMILIES,
                       .may = mix_may,
                       .ctx = mix_families,
                       .random = {13 + f},
                       .seen = seen};
    memset(seen, 0, sizeof seen);
    while (mix_next(&cover, f, &way))
      mix_try(mix_families, &way, 1, &counts);
  }
  printf("%lu runs, %lu logits\n", counts.runs, counts.compared);
  OPI_ASSERT(counts.compared > 80 * counts.runs);
}

OPI_TEST_MAIN("generate/mixes, all", OPI_TEST(test_families), OPI_TEST(test_every_triple))
