/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy of logits whose classes two members share, joined again: that of all classes,
 * computed plainly, also where every score of one member is masked (-infinity). */
#include <math.h>

#include "backend_test.h"

enum { ROWS = 5, CLASSES = 7, FIRST = 3 /* classes of member 0 */, COLUMNS = 3 };

static bt_backend backend;
static opipe_device *device;
static float scores[ROWS][CLASSES];
static const int64_t labels[ROWS] = {0, 3, 6, 5, 2};

/* Three values a row of a member's classes. */
static void one_part(int64_t first, int64_t own, float *out) {
  static float part[ROWS * CLASSES];
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  bt_init(&g);
  for (int64_t i = 0; i < ROWS; ++i) {
    for (int64_t c = 0; c < own; ++c)
      part[i * own + c] = scores[i][first + c];
  }
  const uint32_t x = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, part, BT_SHAPE(ROWS, own)),
                 l = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, labels, BT_SHAPE(ROWS)),
                 y = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, out, BT_SHAPE(1, ROWS, COLUMNS));
  opipe_node *node = bt_node(&g, "CrossEntropyPart", BT_IN(x, l), BT_OUT(y));
  node->domain = "opipe";
  bt_int(&g, node, "first", first);
  bt_int(&g, node, "whole", CLASSES);
  OPI_ASSERT_OK_FATAL(bt_run_once(backend.table, device, &g, 0, &err), &err);
}

/* The loss of each row, from both members' values. */
static void merge(const float *parts, float *out) {
  static float unused[ROWS * FIRST];
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  bt_init(&g);
  const uint32_t x = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, unused, BT_SHAPE(ROWS, FIRST)),
                 l = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, labels, BT_SHAPE(ROWS)),
                 p = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, parts,
                              BT_SHAPE(2, ROWS, COLUMNS)),
                 y = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, out, BT_SHAPE(ROWS));
  opipe_node *node = bt_node(&g, "CrossEntropyMerge", BT_IN(x, l, OPIPE_NONE, p), BT_OUT(y));
  node->domain = "opipe";
  bt_int(&g, node, "first", 0);
  bt_int(&g, node, "whole", CLASSES);
  bt_text(&g, node, "reduction", "none");
  OPI_ASSERT_OK_FATAL(bt_run_once(backend.table, device, &g, 0, &err), &err);
}

static double plain_loss(int64_t i) {
  double sum = 0;
  for (int64_t c = 0; c < CLASSES; ++c)
    sum += exp((double)scores[i][c]);
  return log(sum) - (double)scores[i][labels[i]];
}

static void test_members_make_the_whole(void) {
  static float parts[2 * ROWS * COLUMNS], losses[ROWS];
  opi_test_random random = {7};
  opipe_error err = OPIPE_ERROR_INIT;
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, NULL, 1, 0, &device, &err), &err);
  opi_test_fill_f32(&random, &scores[0][0], (size_t)ROWS * CLASSES, -4, 4);
  for (int64_t c = 0; c < CLASSES; ++c) { /* of row 1 only member 1 has scores, of row 4 member 0 */
    scores[1][c] = c < FIRST ? -INFINITY : scores[1][c];
    scores[4][c] = c < FIRST ? scores[4][c] : -INFINITY;
  }
  one_part(0, FIRST, parts);
  one_part(FIRST, CLASSES - FIRST, parts + (size_t)ROWS * COLUMNS);
  merge(parts, losses);
  for (int64_t i = 0; i < ROWS; ++i) {
    if (!(fabs((double)losses[i] - plain_loss(i)) < 1e-5))
      OPI_FAIL("row %d: %g, %g is right", (int)i, (double)losses[i], plain_loss(i));
  }
  backend.table->device_close(device);
  bt_close(&backend);
}

OPI_TEST_MAIN("parts of logits", OPI_TEST(test_members_make_the_whole))
