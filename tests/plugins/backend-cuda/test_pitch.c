/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=240 */
/* Scores and their gradients that lie in rows longer than their own, where only products and losses
 * touch them: no copies, and the results of rows side by side. */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { ROWS = 136, ODD = 257, DEEP = 256, LINE = 320 };
enum { SCORES = ROWS * ODD, STATES = ROWS * DEEP, WEIGHTS = ODD * DEEP };

typedef struct case_data {
  uint16_t x[STATES], w[WEIGHTS], scores[SCORES];
  int64_t labels[ROWS];
  float dl;
  /* results */
  uint16_t dx[STATES], dw[WEIGHTS], more[SCORES];
  float loss;
  float sums[WEIGHTS], row_sums[ODD]; /* of gradients of w and of the row */
  uint32_t steps;
  uint64_t temp;
} case_data;

/* Differences from the loss' gradient in rows, a view, the gradients of x and of w. */
enum { PLAIN, ACCUMULATES, READ_ELSEWHERE, OUTPUT, VIEW_OF_OTHER_ROWS, EVEN, CASES };

static uint32_t half(bt_graph *g, uint32_t role, void *data, int64_t rows, int64_t columns) {
  return bt_value(g, role, OPIPE_BFLOAT16, data, BT_SHAPE(rows, columns));
}

static void draw(uint16_t *out, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out[i] = (uint16_t)(0x3e80 + (seed >> 24 & 0x7f) + (seed >> 31 != 0 ? 0x8000 : 0));
  }
}

static void make_data(case_data *d) {
  memset(d, 0, sizeof *d);
  draw(d->x, STATES, 1);
  draw(d->w, WEIGHTS, 2);
  draw(d->scores, SCORES, 3);
  for (int i = 0; i < ROWS; ++i)
    d->labels[i] = i * 7 % 250;
  d->dl = 0.5f;
}

static uint32_t view(bt_graph *g, uint32_t of, const int64_t *shape, uint32_t rank,
                     uint32_t dtype) {
  const uint32_t to = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, shape, BT_SHAPE(rank));
  const uint32_t made = bt_value(g, OPIPE_VALUE_TEMP, dtype, NULL, rank, shape);
  (void)bt_node(g, "Reshape", BT_IN(of, to), BT_OUT(made));
  return made;
}

/* Scores of a half type, widened, as rows: what a loss reads. */
static uint32_t widen(bt_graph *g, uint32_t scores, int64_t n) {
  const uint32_t wide = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(ROWS, n));
  bt_int(g, bt_node(g, "Cast", BT_IN(scores), BT_OUT(wide)), "to", OPIPE_FLOAT);
  return wide;
}

static uint32_t gradient(bt_graph *g, uint32_t wide, uint32_t labels, uint32_t dl, int64_t n,
                         uint32_t role, void *to) {
  static int64_t whole[3] = {1, ROWS, 0};
  const uint32_t made = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(ROWS, n));
  whole[2] = n;
  opipe_node *node =
      bt_node(g, "SoftmaxCrossEntropyLossGrad", BT_IN(dl, wide, labels), BT_OUT(made));
  node->domain = "opipe";
  bt_text(g, node, "reduction", "sum");
  const uint32_t same = view(g, made, whole, 3, OPIPE_FLOAT);
  const uint32_t narrow = bt_value(g, role, OPIPE_BFLOAT16, to, BT_SHAPE(1, ROWS, n));
  bt_int(g, bt_node(g, "Cast", BT_IN(same), BT_OUT(narrow)), "to", OPIPE_BFLOAT16);
  return narrow;
}

static void multiply(bt_graph *g, uint32_t a, uint32_t b, bool turned, uint32_t to) {
  opipe_node *node = bt_node(g, "FusedMatMul", BT_IN(a, b), BT_OUT(to));
  node->domain = "com.microsoft";
  bt_int(g, node, "transA", turned);
}

/* The gradient of a row that was added to the scores. */
static void add_bias(bt_graph *g, uint32_t dy, int64_t n, case_data *d) {
  static const int64_t first[1] = {0};
  const uint32_t temp = OPIPE_VALUE_TEMP;
  const uint32_t bias = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_BFLOAT16, d->w, BT_SHAPE(n));
  const uint32_t axes = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, first, BT_SHAPE(1));
  const uint32_t row = bt_value(g, temp, OPIPE_BFLOAT16, NULL, BT_SHAPE(n));
  const uint32_t wide = bt_value(g, temp, OPIPE_FLOAT, NULL, BT_SHAPE(n));
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, BT_SHAPE(n));
  g->values[sum].slot = g->values[bias].slot;
  bt_int(g, bt_node(g, "ReduceSum", BT_IN(dy, axes), BT_OUT(row)), "keepdims", 0);
  bt_int(g, bt_node(g, "Cast", BT_IN(row), BT_OUT(wide)), "to", OPIPE_FLOAT);
  bt_node(g, "Accumulate", BT_IN(wide), BT_OUT(sum))->domain = "opipe";
}

static void make_backward(bt_graph *g, int which, case_data *d) {
  static int64_t rows[2] = {ROWS, 0};
  const int64_t n = which == EVEN ? DEEP : ODD;
  const uint32_t in = OPIPE_VALUE_INPUT, out = OPIPE_VALUE_OUTPUT, temp = OPIPE_VALUE_TEMP;
  bt_init(g);
  const uint32_t x = half(g, in, d->x, ROWS, DEEP), scores = half(g, in, d->scores, ROWS, n);
  const uint32_t w = half(g, OPIPE_VALUE_PARAMETER, d->w, n, DEEP);
  const uint32_t labels = bt_value(g, in, OPIPE_INT64, d->labels, BT_SHAPE(ROWS));
  const uint32_t dl = bt_value(g, in, OPIPE_FLOAT, &d->dl, 0, NULL);
  const uint32_t role = which == OUTPUT ? out : temp;
  const uint32_t made = gradient(g, widen(g, scores, n), labels, dl, n, role, d->more);
  rows[1] = n;
  const uint32_t dy = view(g, made, rows, 2, OPIPE_BFLOAT16);
  multiply(g, dy, w, false, half(g, out, d->dx, ROWS, DEEP));
  const uint32_t dw =
      half(g, which == ACCUMULATES ? temp : out, which == ACCUMULATES ? NULL : d->dw, n, DEEP);
  multiply(g, dy, x, true, dw);
  if (which == ACCUMULATES) {
    const uint32_t wide = bt_value(g, temp, OPIPE_FLOAT, NULL, BT_SHAPE(n, DEEP));
    const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, BT_SHAPE(n, DEEP));
    g->values[sum].slot = g->values[w].slot;
    bt_int(g, bt_node(g, "Cast", BT_IN(dw), BT_OUT(wide)), "to", OPIPE_FLOAT);
    bt_node(g, "Accumulate", BT_IN(wide), BT_OUT(sum))->domain = "opipe";
    add_bias(g, dy, n, d);
  }
  if (which == READ_ELSEWHERE)
    (void)bt_node(g, "Relu", BT_IN(dy), BT_OUT(half(g, out, d->more, ROWS, n)));
  if (which == VIEW_OF_OTHER_ROWS) {
    static const int64_t flat[2] = {1, SCORES};
    const uint32_t other = view(g, dy, flat, 2, OPIPE_BFLOAT16);
    (void)bt_node(g, "Relu", BT_IN(other), BT_OUT(half(g, out, d->more, 1, SCORES)));
  }
}

/* x w^T as scores that losses alone read. */
static void make_scores(bt_graph *g, bool with_gradient, case_data *d) {
  const uint32_t in = OPIPE_VALUE_INPUT, out = OPIPE_VALUE_OUTPUT, temp = OPIPE_VALUE_TEMP;
  static const int64_t rows[2] = {ROWS, ODD};
  bt_init(g);
  const uint32_t x = half(g, in, d->x, ROWS, DEEP),
                 w = half(g, OPIPE_VALUE_PARAMETER, d->w, ODD, DEEP);
  const uint32_t labels = bt_value(g, in, OPIPE_INT64, d->labels, BT_SHAPE(ROWS));
  const uint32_t scores = half(g, temp, NULL, ROWS, ODD);
  opipe_node *node = bt_node(g, "FusedMatMul", BT_IN(x, w), BT_OUT(scores));
  node->domain = "com.microsoft";
  bt_int(g, node, "transB", 1);
  const uint32_t loss = bt_value(g, out, OPIPE_FLOAT, &d->loss, 0, NULL);
  node = bt_node(g, "SoftmaxCrossEntropyLoss", BT_IN(widen(g, scores, ODD), labels), BT_OUT(loss));
  bt_text(g, node, "reduction", "sum");
  if (!with_gradient)
    return;
  const uint32_t dl = bt_value(g, in, OPIPE_FLOAT, &d->dl, 0, NULL);
  const uint32_t made = gradient(g, widen(g, scores, ODD), labels, dl, ODD, temp, NULL);
  multiply(g, view(g, made, rows, 2, OPIPE_BFLOAT16), w, false, half(g, out, d->dx, ROWS, DEEP));
}

static void run_graph(const opipe_backend *t, opipe_device *device, const bt_graph *g,
                      uint32_t flags, case_data *d) {
  bt_run run;
  ct_run(t, device, g, flags, 1, &run);
  d->steps = run.info.n_kernels;
  d->temp = run.info.temp_bytes;
  if ((flags & OPIPE_COMPILE_OWNED) != 0) {
    OPI_ASSERT_OK(t->params_read(run.gradients, 0, d->sums, sizeof d->sums, &err), &err);
    OPI_ASSERT_OK(t->params_read(run.gradients, 1, d->row_sums, sizeof d->row_sums, &err), &err);
  }
  bt_release(t, &run);
}

static float wide_of(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

static bool is_near(const uint16_t *a, const uint16_t *b, size_t n) {
  double off = 0, all = 0;
  for (size_t i = 0; i < n; ++i) {
    off += (wide_of(a[i]) - wide_of(b[i])) * (wide_of(a[i]) - wide_of(b[i]));
    all += wide_of(b[i]) * wide_of(b[i]);
  }
  return off <= 1e-6 * all;
}

static case_data with, without, looked;

/* The results of a device that does so and of one that does not; and of runs that look at results
 * and at what lies around them. */
static void compare(const opipe_backend *t, opipe_device *device, opipe_device *plain, int which,
                    void (*make)(bt_graph *g, int which, case_data *d)) {
  const uint32_t flags = which == ACCUMULATES ? (uint32_t)OPIPE_COMPILE_OWNED : 0u;
  const uint32_t looks = OPIPE_COMPILE_CHECK_FINITE | OPIPE_COMPILE_POISON;
  bt_graph g;
  make_data(&with);
  make_data(&without);
  make_data(&looked);
  make(&g, which, &with);
  run_graph(t, device, &g, flags, &with);
  make(&g, which, &without);
  run_graph(t, plain, &g, flags, &without);
  make(&g, which, &looked);
  run_graph(t, device, &g, flags | looks, &looked);
  OPI_ASSERT(is_near(with.dx, without.dx, STATES));
  OPI_ASSERT(is_near(with.dw, without.dw, WEIGHTS));
  OPI_ASSERT(memcmp(with.more, without.more, sizeof with.more) == 0);
  OPI_ASSERT(memcmp(with.dx, looked.dx, sizeof with.dx) == 0);
  OPI_ASSERT(memcmp(with.dw, looked.dw, sizeof with.dw) == 0);
  OPI_ASSERT(memcmp(with.sums, looked.sums, sizeof with.sums) == 0);
  OPI_ASSERT(memcmp(&with.loss, &looked.loss, sizeof with.loss) == 0);
  OPI_ASSERT(memcmp(&with.loss, &without.loss, sizeof with.loss) == 0);
  OPI_ASSERT(memcmp(with.row_sums, looked.row_sums, sizeof with.row_sums) == 0);
  OPI_ASSERT(memcmp(with.row_sums, without.row_sums, sizeof with.row_sums) == 0);
  for (int i = 0; i < WEIGHTS; ++i)
    OPI_ASSERT(fabs((double)with.sums[i] - (double)without.sums[i]) <= 1e-5);
}

static uint64_t aligned(uint64_t n) {
  return (n + 255) / 256 * 256;
}

static void test_gradients_of_scores(void) {
  /* the gradient, two products, which have what is left of an extent beside them, sums of columns;
   * where it lies side by side, a copy for each of these */
  static const uint32_t steps[CASES] = {5, 7, 8, 7, 8, 3},
                        steps_without[CASES] = {3, 5, 4, 3, 4, 3};
  ct_backend b;
  opipe_device *device = NULL, *plain = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(
      bt_device(&b.base, "fallback=none,bias_gradients=0,pad=20", 1, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "bias_gradients=0,pad=0", 1, 0, &plain, &err), &err);
  for (int which = 0; which < CASES; ++which) {
    if (!opi_test_covers((size_t)which, 3))
      continue;
    compare(t, device, plain, which, make_backward);
    OPI_ASSERT_INT(with.steps, steps[which]);
    OPI_ASSERT_INT(without.steps, steps_without[which]);
    if (which <= ACCUMULATES) {
      OPI_ASSERT_INT(with.temp, aligned(ROWS * LINE * 2));
      OPI_ASSERT_INT(without.temp, aligned(SCORES * 2));
    }
  }
  t->device_close(plain);
  t->device_close(device);
  /* parts of a product make no sums along */
  OPI_ASSERT_OK_FATAL(
      bt_device(&b.base, "fallback=none,bias_gradients=1,pad=20", 1, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "bias_gradients=1,pad=0", 1, 0, &plain, &err), &err);
  compare(t, device, plain, ACCUMULATES, make_backward);
  OPI_ASSERT_INT(with.steps, 7);
  OPI_ASSERT_INT(without.steps, 4);
  OPI_ASSERT_INT(with.temp, aligned(ROWS * LINE * 2));
  t->device_close(plain);
  t->device_close(device);
  bt_close(&b.base);
}

static void make_loss(bt_graph *g, int which, case_data *d) {
  make_scores(g, which != 0, d);
}

static void test_scores_that_losses_read(void) {
  ct_backend b;
  opipe_device *device = NULL, *plain = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(
      bt_device(&b.base, "fallback=none,bias_gradients=0,pad=20", 1, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "bias_gradients=0,pad=0", 1, 0, &plain, &err), &err);
  for (int which = 0; which < 2; ++which) { /* the gradient takes the place of the scores */
    compare(t, device, plain, which == 0 ? 0 : VIEW_OF_OTHER_ROWS, make_loss);
    OPI_ASSERT_INT(with.steps, which == 0 ? 4 : 7);
    OPI_ASSERT_INT(with.temp, aligned(ROWS * LINE * 2));
    OPI_ASSERT_INT(without.steps, which == 0 ? 3 : 5);
  }
  t->device_close(plain);
  t->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda pitch", OPI_TEST(test_gradients_of_scores),
              OPI_TEST(test_scores_that_losses_read))
