/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads on one device: queues that run at once, and sets that are prepared meanwhile. The
 * team takes one job at a time; whoever finds it busy computes alone, with the same bits.
 */
#include <pthread.h>

#include "backend_test.h"

enum { RUNS = 60, ROWS = 40, WIDE = 96 };

typedef struct lane {
  const opipe_backend *table;
  opipe_device *device;
  bt_graph graph;
  float x[ROWS * WIDE], y[ROWS * WIDE], wanted[ROWS * WIDE];
  const float *weights;
  opipe_status status;
  opipe_error err;
  bool differs;
} lane;

static void build(lane *l) {
  bt_graph *g = &l->graph;
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, l->x, BT_SHAPE(ROWS, WIDE));
  const uint32_t w =
      bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, l->weights, BT_SHAPE(WIDE, WIDE));
  const uint32_t p = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(ROWS, WIDE));
  const uint32_t y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, l->y, BT_SHAPE(ROWS, WIDE));
  bt_node(g, "MatMul", BT_IN(x, w), BT_OUT(p));
  bt_node(g, "Softmax", BT_IN(p), BT_OUT(y));
}

/* Compiles, packs, binds, runs and frees, again and again. */
static void *drive(void *argument) {
  lane *l = argument;
  for (int i = 0; l->status >= 0 && i < RUNS; ++i) {
    l->status = bt_run_once(l->table, l->device, &l->graph, 0, &l->err);
    l->differs = l->differs || memcmp(l->y, l->wanted, sizeof l->y) != 0;
  }
  return NULL;
}

static void test_queues_may_run_at_once(void) {
  static lane lanes[3];
  static float weights[WIDE * WIDE];
  bt_backend b;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  opi_test_random random = {3};
  pthread_t threads[3];
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  bt_open(&b);
  OPI_ASSERT_OK_FATAL(bt_device(&b, NULL, 2, 0, &device, &err), &err);
  opi_test_fill_f32(&random, weights, WIDE * WIDE, -1, 1);
  for (int i = 0; i < 3; ++i) {
    lanes[i] = (lane){.table = b.table, .device = device, .weights = weights};
    lanes[i].err.struct_size = (uint32_t)sizeof(opipe_error);
    opi_test_fill_f32(&random, lanes[i].x, ROWS * WIDE, -1, 1);
    build(&lanes[i]);
    OPI_ASSERT_OK(bt_run_once(b.table, device, &lanes[i].graph, 0, &err), &err);
    memcpy(lanes[i].wanted, lanes[i].y, sizeof lanes[i].y);
  }
  for (int i = 0; i < 3; ++i)
    OPI_ASSERT_INT(pthread_create(&threads[i], NULL, drive, &lanes[i]), 0);
  for (int i = 0; i < 3; ++i) {
    OPI_ASSERT_INT(pthread_join(threads[i], NULL), 0);
    OPI_ASSERT_OK(lanes[i].status, &lanes[i].err);
    OPI_ASSERT(!lanes[i].differs);
  }
  OPI_ASSERT_OK(b.table->device_usage(device, &usage, &err), &err);
  OPI_ASSERT_INT(usage.live_bytes[OPIPE_BUFFER_ARENA] + usage.live_bytes[OPIPE_BUFFER_BOUNDARY] +
                     usage.live_bytes[OPIPE_BUFFER_PARAMS],
                 0);
  b.table->device_close(device);
  bt_close(&b);
}

OPI_TEST_MAIN("backend-cpu threads", OPI_TEST(test_queues_may_run_at_once))
