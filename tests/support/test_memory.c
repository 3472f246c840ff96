/* SPDX-License-Identifier: Apache-2.0 */
/* The failing allocator: contents survive growth, the nth call fails, misuse and leaks are
 * reported, and the loop over every allocation ends after the last one.
 */
#include "tests/support/support.h"

static void *grow(opi_test_memory *memory, void *ptr, size_t old_size, size_t new_size) {
  return memory->allocator.realloc(memory->allocator.ctx, ptr, old_size, new_size, 64);
}

static void test_growth_keeps_content(void) {
  opi_test_memory memory;
  opi_test_memory_init(&memory);
  char *text = grow(&memory, NULL, 0, 6);
  OPI_ASSERT_FATAL(text != NULL);
  OPI_ASSERT_INT((uintptr_t)text % 64, 0);
  memcpy(text, "stage", 6);
  text = grow(&memory, text, 6, 6000);
  OPI_ASSERT_FATAL(text != NULL);
  OPI_ASSERT_STR(text, "stage");
  OPI_ASSERT_INT(memory.live_bytes, 6000);
  OPI_ASSERT(grow(&memory, text, 6000, 0) == NULL);
  OPI_ASSERT_INT(memory.peak_bytes, 6006);
  OPI_ASSERT(opi_test_memory_end(&memory));
}

static void test_chosen_allocation_fails(void) {
  opi_test_memory memory;
  opi_test_memory_init(&memory);
  memory.fail_at = 2;
  void *first = grow(&memory, NULL, 0, 16);
  OPI_ASSERT(first != NULL);
  OPI_ASSERT(grow(&memory, first, 16, 32) == NULL);
  OPI_ASSERT_INT(memory.n_failed, 1);
  void *third = grow(&memory, NULL, 0, 16);
  OPI_ASSERT(third != NULL);
  grow(&memory, first, 16, 0);
  grow(&memory, third, 16, 0);
  OPI_ASSERT(opi_test_memory_end(&memory));
}

static void test_misuse_is_counted(void) {
  opi_test_memory memory;
  opi_test_memory_init(&memory);
  void *block = grow(&memory, NULL, 0, 16);
  void *leaked = grow(&memory, NULL, 0, 8);
  grow(&memory, block, 15, 0);
  OPI_ASSERT_INT(memory.n_misused, 1);
  OPI_ASSERT_INT(memory.live_blocks, 1);
  grow(&memory, leaked, 8, 0);
  OPI_ASSERT(!opi_test_memory_end(&memory));
}

static opipe_status three_blocks(opi_test_memory *memory, void *arg) {
  void *blocks[3] = {NULL, NULL, NULL};
  opipe_status status = OPIPE_OK;
  (void)arg;
  for (size_t i = 0; i < 3 && status == OPIPE_OK; ++i) {
    blocks[i] = grow(memory, NULL, 0, 10 + i);
    status = blocks[i] ? OPIPE_OK : OPIPE_E_NOMEM;
  }
  for (size_t i = 0; i < 3; ++i)
    grow(memory, blocks[i], blocks[i] ? 10 + i : 0, 0);
  return status;
}

static void test_every_allocation_is_tried(void) {
  OPI_ASSERT_INT(opi_test_every_allocation(three_blocks, NULL, 100), 4);
}

OPI_TEST_MAIN("memory", OPI_TEST(test_growth_keeps_content), OPI_TEST(test_chosen_allocation_fails),
              OPI_TEST(test_misuse_is_counted), OPI_TEST(test_every_allocation_is_tried))
