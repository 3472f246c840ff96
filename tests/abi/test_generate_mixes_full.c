/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in a mix have the logits that they have alone: every form of a decoder's file in every
 * combination of stages, passes in flight, rows, drivers, transports and pages; families of models,
 * every pair of these.
 * ctest: timeout=7200 label=full */
#include "tests/abi/mixes.h"

/* One stage sends nothing. */
static bool is_repeated(const mix_way *w) {
  return w->at[MIX_STAGES] == 0 && w->at[MIX_TRANSPORT] != 0;
}

static void test_every_combination(void) {
  mix_counts counts = {.runs = 0};
  for (uint32_t f = 0; f < MIX_FORMS; ++f) {
    mix_way w = {.form = &mix_forms[f]};
    for (uint32_t at = 0; at < MIX_FACTORS;) {
      if (!is_repeated(&w))
        mix_try(&w, 1, &counts);
      for (at = 0; at < MIX_FACTORS && ++w.at[at] == mix_levels[at]; ++at)
        w.at[at] = 0;
    }
  }
  mix_check(&counts);
}

static void test_families(void) {
  opi_test_random random = {13};
  mix_counts counts = {.runs = 0};
  mix_way w = {.form = NULL};
  if (opi_test_shared("models/modern") == NULL)
    return;
  for (uint32_t f = 0; f < MIX_FAMILIES; ++f) {
    uint8_t seen[MIX_SEEN] = {0};
    while (mix_next(&mix_families[f], seen, &random, &w) != 0)
      mix_try(&w, 1, &counts);
  }
  printf("%lu runs, %lu logits\n", counts.runs, counts.compared);
  OPI_ASSERT(counts.compared > 80 * counts.runs);
}

OPI_TEST_MAIN("generate/mixes, all", OPI_TEST(test_families), OPI_TEST(test_every_combination))
