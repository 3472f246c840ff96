/* SPDX-License-Identifier: Apache-2.0 */
/* Offloaded stashes under every schedule of the matrix, with 2 and 4 ranks, all recomputations,
 * both optimizers and both kinds of memory in turn. ctest: timeout=1500 label=full */
#include "tests/runtime/train/offload.h"

enum { ROWS = 16, TOKENS = 8, MICROBATCHES = 8 };

static void try_model(const char *path, uint32_t turn) {
  offload_count count = {.passed = 0};
  kit k;
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source(path), ROWS, TOKENS), &k.err);
  for (uint32_t i = 0; i < kit_n_schedules * 2; ++i) {
    const kit_schedule *schedule = &kit_schedules[i / 2];
    const uint32_t n_ranks = (schedule->traits & KIT_FOUR) != 0 || i % 2 == 1 ? 4 : 2;
    const kit_place *at = &offload_places[(i + turn) % OFFLOAD_PLACES];
    char name[1200];
    if ((schedule->traits & KIT_BOUNDED) != 0)
      continue; /* a cap of its own */
    kit_schedule_name(schedule, n_ranks, MICROBATCHES, name, sizeof name);
    kit_case c = kit_case_of(name, n_ranks, MICROBATCHES, i / 2 % 2 == 0);
    c.device = at->device;
    c.device_index = at->device_index;
    c.device_options = at->device_options;
    c.transport = at->transport;
    c.offload = "*";
    c.spec.recompute = (i / 2 + turn) % 4;
    offload_check(&k, schedule, &c, &count);
    opi_arena_release(&k.arena);
    opi_arena_init(&k.arena, opi_allocator_system(), 0);
  }
  kit_close(&k);
  OPI_ASSERT(count.failed == 0 && count.passed > 0 && count.refused > 0 && count.n_moves > 0);
}

static void test_gpt(void) {
  for (uint32_t turn = 0; turn < 4; ++turn)
    try_model("tests/data/gpt_8block/model.onnx", turn);
}

static void test_llama(void) {
  try_model("tests/data/llama_8block/model.onnx", 1);
}

OPI_TEST_MAIN("offloaded stashes, all schedules", OPI_TEST(test_gpt), OPI_TEST(test_llama))
