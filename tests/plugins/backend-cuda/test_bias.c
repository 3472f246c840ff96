/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that products add: MatMul and Add as one step where that is the same, and two where not. */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { ROWS = 3, DEEP = 2, WIDE = 4, CELLS = ROWS * WIDE };
static const float some_x[ROWS * DEEP] = {1, 2, -1, 0.5f, 3, -2},
                                 some_w[DEEP * WIDE] = {1, 0, 2, -1, 3, 1, 0.5f, 2},
                                 some_row[WIDE] = {10, 20, 30, 40};

/* Differences from product, then Add(product, row of the last axis). */
enum { PLAIN, ROW_FIRST, ROW_OF_RANK_2, ROW_COMES, COLUMN, READ_TWICE, KEPT, CASES };

static void make_graph(bt_graph *g, int which, float *y, float *more) {
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, some_x, BT_SHAPE(ROWS, DEEP));
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, some_w, BT_SHAPE(DEEP, WIDE));
  const uint32_t role = which == ROW_COMES ? OPIPE_VALUE_INPUT : OPIPE_VALUE_PARAMETER;
  const uint32_t row = which == COLUMN ? bt_value(g, role, OPIPE_FLOAT, some_row, BT_SHAPE(ROWS, 1))
                       : which == ROW_OF_RANK_2
                           ? bt_value(g, role, OPIPE_FLOAT, some_row, BT_SHAPE(1, WIDE))
                           : bt_value(g, role, OPIPE_FLOAT, some_row, BT_SHAPE(WIDE));
  const uint32_t p = bt_value(g, which == KEPT ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP, OPIPE_FLOAT,
                              which == KEPT ? more : NULL, BT_SHAPE(ROWS, WIDE));
  const uint32_t to = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(ROWS, WIDE));
  (void)bt_node(g, "MatMul", BT_IN(x, w), BT_OUT(p));
  (void)bt_node(g, "Add", which == ROW_FIRST ? BT_IN(row, p) : BT_IN(p, row), BT_OUT(to));
  if (which == READ_TWICE) {
    const uint32_t z = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, more, BT_SHAPE(ROWS, WIDE));
    (void)bt_node(g, "Relu", BT_IN(p), BT_OUT(z));
  }
}

static float wanted(int which, int i) {
  float sum = 0;
  for (int k = 0; k < DEEP; ++k)
    sum += some_x[i / WIDE * DEEP + k] * some_w[k * WIDE + i % WIDE];
  return sum + some_row[which == COLUMN ? i / WIDE : i % WIDE];
}

/* Steps of the program; its results are what they should be. */
static uint32_t run_case(const opipe_backend *t, opipe_device *device, int which, uint32_t flags) {
  bt_graph g;
  bt_run run;
  float y[CELLS], more[CELLS];
  make_graph(&g, which, y, more);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, flags, &run, &err), &err);
  const uint32_t n = run.info.n_kernels;
  OPI_ASSERT_OK(bt_step(t, &g, &run, &err), &err);
  opipe_event *event = NULL;
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->event_record(run.queue, event, &err), &err);
  OPI_ASSERT_OK(t->event_sync(event, UINT64_C(30000000000), &err), &err);
  for (int i = 0; i < CELLS; ++i)
    OPI_ASSERT(y[i] == wanted(which, i)); /* all of it is exact */
  t->event_destroy(event);
  bt_release(t, &run);
  return n;
}

static void test_a_row_is_added_along(void) {
  static const uint32_t steps[CASES] = {1, 1, 1, 1, 2, 3, 2};
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  for (int which = 0; which < CASES; ++which)
    OPI_ASSERT_INT(run_case(t, device, which, 0), steps[which]);
  OPI_ASSERT_INT(run_case(t, device, PLAIN, OPIPE_COMPILE_NO_FUSE), 2);
  OPI_ASSERT_INT(run_case(t, device, PLAIN, OPIPE_COMPILE_CHECK_FINITE), 2);
  t->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda bias", OPI_TEST(test_a_row_is_added_along))
