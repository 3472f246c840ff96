/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Rows from one distance to another, at every place within 16 bytes, by elements: nothing between
 * the rows is written, and nothing behind the last one read. */
#include "kit.h"

static void relay_one(uint32_t dtype, int64_t rows, int64_t n, int64_t from_distance,
                      int64_t to_distance) {
  const int64_t n_from = (rows - 1) * from_distance + n, n_to = (rows - 1) * to_distance + n;
  const kit_tensor x = kit_random(dtype, n_from, 5, -100, 100), y = kit_new(dtype, n_to),
                   want = kit_new(dtype, n_to);
  const cuda_relay_args args = {.to = y.data,
                                .from = x.data,
                                .rows = rows,
                                .n = n,
                                .to_distance = to_distance,
                                .from_distance = from_distance,
                                .size = x.bytes};
  cuda_launch launch;
  for (int64_t i = 0; i < rows; ++i) {
    memcpy((char *)want.data + i * to_distance * x.bytes,
           (const char *)x.data + i * from_distance * x.bytes, (size_t)n * x.bytes);
  }
  OPI_ASSERT_FATAL(cuda_plan_relay(&args, &launch));
  KIT_RUN(&launch, 1, &y);
  OPI_ASSERT(kit_same(&y, 0, &want, 0, n_to));
  kit_end();
}

static void test_rows_at_every_place(void) {
  static const uint32_t types[] = {OPIPE_BFLOAT16, OPIPE_FLOAT16, OPIPE_FLOAT};
  static const int64_t lengths[] = {1, 7, 8, 9, 63, 257, 2049, 4101};
  size_t i = 0;
  for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; ++l, ++i) {
      const int64_t n = lengths[l], line = (n + 63) / 64 * 64;
      if (!kit_covers(i, 3))
        continue;
      relay_one(types[t], 17, n, n, line);     /* into rows of whole lines */
      relay_one(types[t], 17, n, line, n);     /* and back, side by side */
      relay_one(types[t], 9, n, n + 5, n + 2); /* neither begins with 16 bytes */
      relay_one(types[t], 9, n, n, n);
      relay_one(types[t], 1, n, line, line);
    }
  }
}

static void test_what_has_no_launch(void) {
  cuda_launch launch;
  const cuda_relay_args bytes = {.rows = 1, .n = 1, .size = 1},
                        none = {.rows = 0, .n = 1, .size = 2};
  OPI_ASSERT(!cuda_plan_relay(&bytes, &launch));
  OPI_ASSERT(!cuda_plan_relay(&none, &launch));
}

OPI_TEST_MAIN("cuda kernels: rows at other distances", OPI_TEST(test_rows_at_every_place),
              OPI_TEST(test_what_has_no_launch))
