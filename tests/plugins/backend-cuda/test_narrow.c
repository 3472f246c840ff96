/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that read scores of a half type: no scores of fp32 where the loss alone wants them. */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { ROWS = 3, CLASSES = 40, CELLS = ROWS * CLASSES };
static const int64_t labels[ROWS] = {7, 0, 39};

/* Differences from Cast, Reshape, loss; or from Cast, loss' gradient, Reshape, Cast. */
enum { PLAIN, READ_TWICE, KEPT, LOG_PROB, CASES };

typedef struct case_data {
  uint16_t x[CELLS], dx[CELLS]; /* bf16 */
  float wide[CELLS], loss, dl;
} case_data;

static float wide_of(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static void make_data(case_data *d) {
  memset(d, 0, sizeof *d);
  d->dl = 0.5f;
  for (int i = 0; i < CELLS; ++i)
    d->x[i] = (uint16_t)(0x3f00 + (i * 37) % 0x90 + (i % 3 == 0 ? 0x8000 : 0));
}

static uint32_t widen(bt_graph *g, int which, case_data *d) {
  const uint32_t x =
      bt_value(g, OPIPE_VALUE_INPUT, OPIPE_BFLOAT16, d->x, BT_SHAPE(1, ROWS, CLASSES));
  const uint32_t to = which == KEPT ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP;
  const uint32_t wide =
      bt_value(g, to, OPIPE_FLOAT, which == KEPT ? d->wide : NULL, BT_SHAPE(1, ROWS, CLASSES));
  static const int64_t flat[2] = {ROWS, CLASSES};
  const uint32_t shape = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, flat, BT_SHAPE(2));
  const uint32_t rows = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(ROWS, CLASSES));
  bt_int(g, bt_node(g, "Cast", BT_IN(x), BT_OUT(wide)), "to", OPIPE_FLOAT);
  (void)bt_node(g, "Reshape", BT_IN(wide, shape), BT_OUT(rows));
  if (which == READ_TWICE) {
    const uint32_t y =
        bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, d->wide, BT_SHAPE(1, ROWS, CLASSES));
    (void)bt_node(g, "Relu", BT_IN(wide), BT_OUT(y));
  }
  return rows;
}

static void make_loss(bt_graph *g, int which, case_data *d) {
  const uint32_t rows = widen(g, which, d);
  const uint32_t to = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, labels, BT_SHAPE(ROWS));
  const uint32_t loss = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, &d->loss, 0, NULL);
  const uint32_t log_prob = which != LOG_PROB ? OPIPE_NONE
                                              : bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT,
                                                         d->wide, BT_SHAPE(ROWS, CLASSES));
  opipe_node *node = bt_node(g, "SoftmaxCrossEntropyLoss", BT_IN(rows, to), BT_OUT(loss, log_prob));
  node->n_out = which == LOG_PROB ? 2 : 1;
  bt_text(g, node, "reduction", "sum");
}

static void make_gradient(bt_graph *g, int which, case_data *d) {
  static const int64_t whole[3] = {1, ROWS, CLASSES};
  const uint32_t rows = widen(g, which, d);
  const uint32_t to = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, labels, BT_SHAPE(ROWS));
  const uint32_t dl = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, &d->dl, 0, NULL);
  const uint32_t dx = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(ROWS, CLASSES));
  const uint32_t shape = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, whole, BT_SHAPE(3));
  const uint32_t same =
      bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(1, ROWS, CLASSES));
  const uint32_t half =
      bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_BFLOAT16, d->dx, BT_SHAPE(1, ROWS, CLASSES));
  opipe_node *node = bt_node(g, "SoftmaxCrossEntropyLossGrad", BT_IN(dl, rows, to), BT_OUT(dx));
  node->domain = "opipe";
  bt_text(g, node, "reduction", "sum");
  (void)bt_node(g, "Reshape", BT_IN(dx, shape), BT_OUT(same));
  bt_int(g, bt_node(g, "Cast", BT_IN(same), BT_OUT(half)), "to", OPIPE_BFLOAT16);
}

/* Runs the program once: its steps. */
static uint32_t run_once(const opipe_backend *t, opipe_device *device, bt_graph *g,
                         uint32_t flags) {
  bt_run run;
  opipe_event *event = NULL;
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, g, flags, &run, &err), &err);
  const uint32_t n = run.info.n_kernels;
  OPI_ASSERT_OK(bt_step(t, g, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->event_record(run.queue, event, &err), &err);
  OPI_ASSERT_OK(t->event_sync(event, UINT64_C(30000000000), &err), &err);
  t->event_destroy(event);
  bt_release(t, &run);
  return n;
}

static uint32_t run_loss(const opipe_backend *t, opipe_device *device, int which, uint32_t flags) {
  case_data d;
  bt_graph g;
  double want = 0;
  make_data(&d);
  bt_init(&g);
  make_loss(&g, which, &d);
  const uint32_t n = run_once(t, device, &g, flags);
  for (int i = 0; i < ROWS; ++i) {
    double sum = 0;
    for (int k = 0; k < CLASSES; ++k)
      sum += exp(wide_of(d.x[i * CLASSES + k]));
    want += log(sum) - wide_of(d.x[i * CLASSES + (int)labels[i]]);
  }
  OPI_ASSERT(fabs(d.loss - want) <= 1e-5 * want);
  for (int i = 0; which == KEPT && i < CELLS; ++i)
    OPI_ASSERT(d.wide[i] == wide_of(d.x[i]));
  return n;
}

static uint32_t run_gradient(const opipe_backend *t, opipe_device *device, int which,
                             uint32_t flags) {
  case_data d;
  bt_graph g;
  make_data(&d);
  bt_init(&g);
  make_gradient(&g, which, &d);
  const uint32_t n = run_once(t, device, &g, flags);
  for (int i = 0; i < ROWS; ++i) {
    double sum = 0;
    for (int k = 0; k < CLASSES; ++k)
      sum += exp(wide_of(d.x[i * CLASSES + k]));
    for (int k = 0; k < CLASSES; ++k) {
      const double want =
          0.5 * (exp(wide_of(d.x[i * CLASSES + k])) / sum - (k == labels[i] ? 1 : 0));
      OPI_ASSERT(fabs(wide_of(d.dx[i * CLASSES + k]) - want) <= 0.005 * fabs(want));
      OPI_ASSERT(which != KEPT || d.wide[i * CLASSES + k] == wide_of(d.x[i * CLASSES + k]));
    }
  }
  return n;
}

static void test_scores_are_widened_along(void) {
  /* rows and their sum; with Cast; with Cast and Relu. A kept value is widened, and not read. */
  static const uint32_t losses[CASES] = {2, 4, 3, 3}, gradients[CASES] = {1, 4, 2, 1};
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  for (int which = 0; which < CASES; ++which) {
    OPI_ASSERT_INT(run_loss(t, device, which, 0), losses[which]);
    OPI_ASSERT_INT(run_gradient(t, device, which, 0), gradients[which]);
  }
  OPI_ASSERT_INT(run_loss(t, device, PLAIN, OPIPE_COMPILE_NO_FUSE), 3);
  OPI_ASSERT_INT(run_gradient(t, device, PLAIN, OPIPE_COMPILE_NO_FUSE), 3);
  /* values that are written are checked: the loss; the gradient of the half type */
  OPI_ASSERT_INT(run_loss(t, device, PLAIN, OPIPE_COMPILE_CHECK_FINITE), 3);
  OPI_ASSERT_INT(run_gradient(t, device, PLAIN, OPIPE_COMPILE_CHECK_FINITE), 2);
  t->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda narrow", OPI_TEST(test_scores_are_widened_along))
