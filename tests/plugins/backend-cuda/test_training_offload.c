/* SPDX-License-Identifier: Apache-2.0 */
/* Offloaded stashes on the doubles, whose streams work late and in orders that a seed draws: losses
 * and weights have the bits of the plan's reference and of the plan without offloads, and bytes are
 * as predicted. ctest: timeout=180 */
#include "tests/plugins/backend-cuda/training.h"
#include "tests/runtime/train/offload.h"

enum { ROWS = 6, TOKENS = 8 };

static void test_bits(void) {
  static const char *const schedules[] = {"gpipe", "looped-bfs:chunks=2", "2bw"};
  offload_count count = {.passed = 0};
  kit k;
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source(ct_subjects[0].path), ROWS, TOKENS), &k.err);
  for (uint32_t i = 0; i < OPI_COUNT(schedules); ++i) {
    const kit_schedule schedule = {schedules[i], 0};
    const uint32_t n_ranks = i == 2 ? 4 : 2; /* two keep too few micro-batches */
    kit_case c = kit_case_of(schedules[i], n_ranks, ROWS, i % 2 == 0);
    if (!opi_test_covers(i, opi_test_sparse(3)))
      continue;
    c.device = ct_places[i % 2].device;
    c.device_options = ct_places[i % 2].device_options;
    c.offload = "*";
    offload_check(&k, &schedule, &c, &count);
  }
  kit_close(&k);
  OPI_ASSERT(count.failed == 0 && count.passed > 0 && count.n_moves > 0);
}

OPI_TEST_MAIN("offloaded stashes on doubles of CUDA", OPI_TEST(test_bits))
