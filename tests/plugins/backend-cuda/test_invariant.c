/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* invariant=1: products have one algorithm for all numbers of rows, so that the bits of a row do
 * not depend on the others; without it the number of rows decides. On the double of the library. */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

/* y [rows, 64] = x [rows, 256] w [256, 64], and a row added behind. */
enum { MOST = 70, DEEP = 256, WIDE = 64 };
static float x[MOST * DEEP], w[DEEP * WIDE], row[WIDE], y[MOST * WIDE];

typedef struct answer {
  char choice[128];
  float y[MOST * WIDE];
} answer;
static answer all, few;

static void make_graph(bt_graph *g, int64_t rows, bool has_row) {
  bt_init(g);
  const uint32_t in = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x, BT_SHAPE(rows, DEEP)),
                 by = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, w, BT_SHAPE(DEEP, WIDE)),
                 out = bt_value(g, has_row ? OPIPE_VALUE_TEMP : OPIPE_VALUE_OUTPUT, OPIPE_FLOAT,
                                has_row ? NULL : y, BT_SHAPE(rows, WIDE));
  (void)bt_node(g, "MatMul", BT_IN(in, by), BT_OUT(out));
  if (has_row) {
    const uint32_t added = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, row, BT_SHAPE(WIDE)),
                   end = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(rows, WIDE));
    (void)bt_node(g, "Add", BT_IN(out, added), BT_OUT(end));
  }
}

static opipe_status open_with(const ct_backend *b, const char *options, opipe_device **out) {
  const opipe_device_params open = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .threads = 1,
      .options = options};
  return b->base.table->device_open(b->base.self, &open, out, &err);
}

/* Its algorithm (empty: no product of the library) and its results. */
static void run_rows(const opipe_backend *t, opipe_device *device, int64_t rows, bool has_row,
                     answer *out) {
  bt_graph g;
  bt_run run;
  opipe_kernel kernel = {.struct_size = sizeof kernel};
  uint32_t n = 1;
  make_graph(&g, rows, has_row);
  ct_run(t, device, &g, 0, 1, &run);
  OPI_ASSERT_OK_FATAL(t->program_kernels(run.program, &kernel, &n, &err), &err);
  (void)snprintf(out->choice, sizeof out->choice, "%s", n > 0 ? kernel.choice : "");
  memcpy(out->y, y, sizeof y);
  bt_release(t, &run);
}

static void fill(void) {
  OPI_ASSERT(setenv("OPIPE_CUDA_DOUBLE_PRODUCTS_BY_ROWS", "1", 1) == 0);
  ct_draw(x, MOST * DEEP, 1);
  ct_draw(w, DEEP * WIDE, 2);
  ct_draw(row, WIDE, 3);
}

static void test_one_algorithm_for_all_rows(void) {
  static const int64_t counts[] = {1, 2, 8, 63, 64};
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  fill();
  OPI_ASSERT_OK_FATAL(open_with(&b, "invariant=1", &device), &err);
  for (int has_row = 0; has_row < 2; ++has_row) {
    run_rows(b.base.table, device, MOST, has_row != 0, &all);
    OPI_ASSERT(all.choice[0] != '\0' && strstr(all.choice, "split=1") != NULL);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
      run_rows(b.base.table, device, counts[i], has_row != 0, &few);
      OPI_ASSERT(strcmp(few.choice, all.choice) == 0);
      OPI_ASSERT(memcmp(few.y, all.y, (size_t)counts[i] * WIDE * sizeof(float)) == 0);
    }
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

/* Without the option a single row takes our kernel, and the library chooses by rows. */
static void test_rows_decide_without_it(void) {
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  fill();
  OPI_ASSERT_OK_FATAL(open_with(&b, "", &device), &err);
  run_rows(b.base.table, device, MOST, false, &all);
  run_rows(b.base.table, device, 1, false, &few);
  OPI_ASSERT(all.choice[0] != '\0' && few.choice[0] == '\0');
  run_rows(b.base.table, device, 2, false, &few);
  OPI_ASSERT(strcmp(all.choice, few.choice) != 0);
  b.base.table->device_close(device);
  bt_close(&b.base);
}

static void test_what_does_not_go_with_it(void) {
  static const char *const options[][2] = {
      {"invariant=1,few_rows=4", "few_rows=4 beside invariant=1"},
      {"pad=20,invariant=1", "pad=20 beside invariant=1"},
      {"invariant=1,few_attention=1", "few_attention=1 beside"},
      {"cudnn=1,invariant=1", "cudnn=1 beside"},
      {"invariant=2", "invariant=2 (0 or 1)"}};
  ct_backend b;
  opipe_device *device = NULL;
  opipe_kernel kernel = {.struct_size = sizeof kernel};
  CT_OPEN(&b);
  for (size_t i = 0; i < sizeof options / sizeof options[0]; ++i)
    OPI_ASSERT_ERROR(open_with(&b, options[i][0], &device), OPIPE_E_INVALID, &err, options[i][1]);
  OPI_ASSERT_OK_FATAL(open_with(&b, "invariant=1,few_rows=0,pad=0,cudnn=0", &device), &err);
  OPI_ASSERT_ERROR(b.base.table->kernels_use(device, &kernel, 1, &err), OPIPE_E_STATE, &err,
                   "invariant=1");
  b.base.table->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda invariant", OPI_TEST(test_one_algorithm_for_all_rows),
              OPI_TEST(test_rows_decide_without_it), OPI_TEST(test_what_does_not_go_with_it))
