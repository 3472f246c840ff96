/* SPDX-License-Identifier: Apache-2.0 */
/* Operators against plain loops, where the standard's own tests do not reach: more rows than a
 * kernel's block, values at the ends of types, masks that must repeat.
 */
#include <float.h>
#include <math.h>

#include "backend_test.h"

static bt_backend backend;
static opipe_device *device;

static void open_device(const char *options) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, options, 2, 0, &device, &err), &err);
}

static void close_device(void) {
  backend.table->device_close(device);
  bt_close(&backend);
}

enum { TOKENS = 150, CLASSES = 37 };

static double naive_loss(const float *scores, const int64_t *labels, const float *weights) {
  double sum = 0;
  double total = 0;
  for (int t = 0; t < TOKENS; ++t) {
    double z = 0;
    if (labels[t] == -100)
      continue;
    for (int c = 0; c < CLASSES; ++c)
      z += exp((double)scores[t * CLASSES + c]);
    sum += weights[labels[t]] * (log(z) - (double)scores[t * CLASSES + labels[t]]);
    total += weights[labels[t]];
  }
  return sum / total;
}

static void test_loss_over_many_rows(void) {
  static float scores[TOKENS * CLASSES], weights[CLASSES], logs[TOKENS * CLASSES];
  static int64_t labels[TOKENS];
  opi_test_random random = {5};
  opi_test_fill_f32(&random, scores, TOKENS * CLASSES, -3, 3);
  opi_test_fill_f32(&random, weights, CLASSES, 0.5, 2);
  for (int i = 0; i < 4; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    bt_graph g;
    float loss = 0;
    open_device(i % 2 == 0 ? NULL : "kernels=reference");
    for (int t = 0; t < TOKENS; ++t)
      labels[t] = t % 11 == 3 ? -100 : (t * 7) % CLASSES;
    bt_init(&g);
    const uint32_t s =
        bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, scores, BT_SHAPE(TOKENS, CLASSES));
    const uint32_t l = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, labels, BT_SHAPE(TOKENS));
    const uint32_t w = bt_value(&g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, weights, BT_SHAPE(CLASSES));
    const uint32_t o = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, &loss, 0, NULL);
    const uint32_t k =
        bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, logs, BT_SHAPE(TOKENS, CLASSES));
    opipe_node *node =
        bt_node(&g, "SoftmaxCrossEntropyLoss", BT_IN(s, l, w), BT_OUT(o, i < 2 ? k : OPIPE_NONE));
    bt_text(&g, node, "reduction", "mean");
    bt_int(&g, node, "ignore_index", -100);
    OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
    const float wanted = (float)naive_loss(scores, labels, weights);
    OPI_ASSERT_NEAR(&loss, &wanted, 1, OPIPE_FLOAT, 0, 1e-6);
    labels[77] = CLASSES;
    OPI_ASSERT_ERROR(bt_run_once(backend.table, device, &g, 0, &err), OPIPE_E_INVALID, &err,
                     "label 37");
    close_device();
  }
}

typedef struct pool_case {
  int64_t planes, in[2], kernel[2], stride[2], dilation[2], pad[4]; /* top, left, bottom, right */
} pool_case;

static int64_t pooled_size(const pool_case *c, int a) {
  const int64_t span = c->in[a] + c->pad[a] + c->pad[a + 2] - c->dilation[a] * (c->kernel[a] - 1);
  return (span - 1) / c->stride[a] + 1;
}

static float number_of(uint32_t dtype, const void *data, int64_t at) {
  return dtype == OPIPE_FLOAT  ? ((const float *)data)[at]
         : dtype == OPIPE_INT8 ? (float)((const int8_t *)data)[at]
                               : (float)((const uint8_t *)data)[at];
}

/* Where the largest of a window is, in plain loops: the first of equal ones (zeros of both signs),
 * the last NaN. */
static int64_t largest_at(const pool_case *c, uint32_t dtype, const void *data, int64_t plane,
                          int64_t y, int64_t x) {
  float most = -INFINITY;
  int64_t found = -1;
  for (int64_t t = 0; t < c->kernel[0] * c->kernel[1]; ++t) {
    const int64_t i = y * c->stride[0] - c->pad[0] + t / c->kernel[1] * c->dilation[0];
    const int64_t k = x * c->stride[1] - c->pad[1] + t % c->kernel[1] * c->dilation[1];
    if (i < 0 || i >= c->in[0] || k < 0 || k >= c->in[1])
      continue;
    const int64_t at = (plane * c->in[0] + i) * c->in[1] + k;
    const float v = number_of(dtype, data, at);
    if (v > most || isnan(v) || found < 0) {
      most = v;
      found = at;
    }
  }
  return found;
}

/* Bytes of all values; floats of few, some of them NaN and zeros of both signs. */
static void fill_pool(uint32_t dtype, void *data, int64_t n) {
  static const float few[] = {-0.0f, 0.0f, -1.0f, -0.0f, 0.5f, -2.0f, 0.0f, -0.0f};
  opi_test_random random = {11};
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t next = (uint32_t)opi_test_next(&random);
    if (dtype != OPIPE_FLOAT)
      ((uint8_t *)data)[i] = (uint8_t)next;
    else
      ((float *)data)[i] = next % 61 == 0 ? NAN : few[next / 64 % 8];
  }
}

static void check_pool(const pool_case *c, uint32_t dtype) {
  enum { MOST = 8192 };
  static float in[MOST], out[MOST]; /* or bytes */
  const int64_t h = pooled_size(c, 0), w = pooled_size(c, 1);
  const size_t size = dtype == OPIPE_FLOAT ? sizeof(float) : 1;
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  OPI_ASSERT(c->planes * c->in[0] * c->in[1] <= MOST && c->planes * h * w <= MOST);
  fill_pool(dtype, in, MOST);
  bt_init(&g);
  const uint32_t x =
      bt_value(&g, OPIPE_VALUE_INPUT, dtype, in, BT_SHAPE(1, c->planes, c->in[0], c->in[1]));
  const uint32_t y = bt_value(&g, OPIPE_VALUE_OUTPUT, dtype, out, BT_SHAPE(1, c->planes, h, w));
  opipe_node *node = bt_node(&g, "MaxPool", BT_IN(x), BT_OUT(y));
  bt_ints(&g, node, "kernel_shape", 2, c->kernel);
  bt_ints(&g, node, "strides", 2, c->stride);
  bt_ints(&g, node, "dilations", 2, c->dilation);
  bt_ints(&g, node, "pads", 4, c->pad);
  OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
  for (int64_t i = 0; i < c->planes * h * w; ++i) {
    const int64_t at = largest_at(c, dtype, in, i / (h * w), i / w % h, i % w);
    const char *wanted = (const char *)in + (size_t)at * size;
    OPI_ASSERT(at >= 0 && memcmp((const char *)out + (size_t)i * size, wanted, size) == 0);
  }
}

static void test_largest_of_windows(void) {
  static const pool_case cases[] = {
      {3, {24, 24}, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
      {2, {9, 50}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {1, {7, 41}, {2, 5}, {3, 3}, {2, 3}, {1, 4, 0, 2}},
      {4, {5, 6}, {5, 6}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {1, {1, 70}, {1, 4}, {1, 2}, {1, 5}, {0, 3, 0, 3}},
  };
  for (int reference = 0; reference < 2; ++reference) {
    open_device(reference == 0 ? NULL : "kernels=reference");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
      check_pool(&cases[i], OPIPE_UINT8);
      check_pool(&cases[i], OPIPE_INT8);
      check_pool(&cases[i], OPIPE_FLOAT);
    }
    close_device();
  }
}

/* One node from one input to one output of other types. */
static opipe_status convert(uint32_t from, const void *in, uint32_t to, void *out, int64_t n) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  bt_init(&g);
  const uint32_t a = bt_value(&g, OPIPE_VALUE_INPUT, from, in, 1, &n);
  const uint32_t b = bt_value(&g, OPIPE_VALUE_OUTPUT, to, out, 1, &n);
  bt_int(&g, bt_node(&g, "Cast", BT_IN(a), BT_OUT(b)), "to", to);
  const opipe_status status = bt_run_once(backend.table, device, &g, 0, &err);
  OPI_ASSERT_OK(status, &err);
  return status;
}

static void test_casts_at_the_ends_of_types(void) {
  const double doubles[7] = {1e300, -1e300, NAN, 0.1, -2.5, 65504.0 + 16.0, 1.0 + 0x1p-11};
  const int64_t wide[3] = {INT64_MIN, 300, -1};
  const float small[3] = {1.9f, -1.9f, 0.0f};
  float floats[7];
  uint16_t halves[7];
  int64_t integers[7];
  uint8_t bytes[3];
  int8_t signed_bytes[3];
  open_device(NULL);
  convert(OPIPE_DOUBLE, doubles, OPIPE_FLOAT, floats, 7);
  OPI_ASSERT(isinf(floats[0]) && floats[0] > 0 && isinf(floats[1]) && isnan(floats[2]));
  OPI_ASSERT(floats[3] == 0.1f);
  convert(OPIPE_DOUBLE, doubles, OPIPE_FLOAT16, halves, 7);
  OPI_ASSERT_INT(halves[0], 0x7c00);
  OPI_ASSERT_INT(halves[1], 0xfc00);
  OPI_ASSERT_INT(halves[5], 0x7c00); /* half way to 65536 rounds up, to infinity */
  OPI_ASSERT_INT(halves[6], 0x3c00); /* half way between 1 and the next: to even */
  convert(OPIPE_DOUBLE, doubles, OPIPE_INT64, integers, 7);
  OPI_ASSERT(integers[0] == INT64_MIN && integers[2] == INT64_MIN);
  OPI_ASSERT(integers[3] == 0 && integers[4] == -2);
  convert(OPIPE_INT64, wide, OPIPE_UINT8, bytes, 3);
  OPI_ASSERT(bytes[0] == 0 && bytes[1] == 44 && bytes[2] == 255);
  convert(OPIPE_FLOAT, small, OPIPE_INT8, signed_bytes, 3);
  OPI_ASSERT(signed_bytes[0] == 1 && signed_bytes[1] == -1 && signed_bytes[2] == 0);
  convert(OPIPE_FLOAT, small, OPIPE_BOOL, bytes, 3);
  OPI_ASSERT(bytes[0] == 1 && bytes[1] == 1 && bytes[2] == 0);
  close_device();
}

static void test_integer_arithmetic_never_traps(void) {
  static const char *const names[] = {"Div", "Mod", "Add", "Mul"};
  static const int64_t wanted[4][4] = {
      {7, INT64_MIN, -3, 3}, {0, 0, -1, -1}, {7, INT64_MAX, -5, 5}, {0, INT64_MIN, -14, 14}};
  const int64_t a[4] = {7, INT64_MIN, 7, -7};
  const int64_t b[4] = {0, -1, -2, -2};
  const int64_t c[4] = {0, -1, -12, 12};
  int64_t d[4] = {1, -1, -2, -2}; /* divisors */
  open_device(NULL);
  for (int i = 0; i < 4; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    bt_graph g;
    int64_t y[4];
    bt_init(&g);
    const uint32_t x = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, a, BT_SHAPE(4));
    const int64_t *other = i == 2 ? c : i == 3 ? b : d;
    const uint32_t w = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, other, BT_SHAPE(4));
    const uint32_t o = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_INT64, y, BT_SHAPE(4));
    bt_node(&g, names[i], BT_IN(x, w), BT_OUT(o));
    OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, 0, &err), &err);
    for (int k = 0; k < 4; ++k)
      OPI_ASSERT_INT(y[k], wanted[i][k]);
    d[2] = 0;
    if (i < 2) {
      OPI_ASSERT_ERROR(bt_run_once(backend.table, device, &g, 0, &err), OPIPE_E_INVALID, &err,
                       "division by zero: element 2 of the divisor");
    }
    d[2] = -2;
  }
  close_device();
}

/* A mask depends on seed and name alone, keeps about 1 - ratio, and scales what it keeps. */
static void test_dropout_repeats_its_mask(void) {
  enum { N = 20000 };
  static float x[N], y[2][N];
  static uint8_t mask[2][N];
  static const float ratio = 0.25f;
  static const uint8_t yes = 1;
  for (int i = 0; i < N; ++i)
    x[i] = 1.0f;
  for (int i = 0; i < 2; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    bt_graph g;
    open_device(i == 0 ? NULL : "kernels=reference");
    bt_init(&g);
    const uint32_t a = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x, BT_SHAPE(N));
    const uint32_t r = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, &ratio, 0, NULL);
    const uint32_t t = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_BOOL, &yes, 0, NULL);
    const uint32_t o = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y[i], BT_SHAPE(N));
    const uint32_t m = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_BOOL, mask[i], BT_SHAPE(N));
    bt_int(&g, bt_node(&g, "Dropout", BT_IN(a, r, t), BT_OUT(o, m)), "seed", 11);
    OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, 0, &err), &err);
    close_device();
  }
  int kept = 0;
  for (int i = 0; i < N; ++i) {
    kept += mask[0][i];
    OPI_ASSERT(mask[0][i] == mask[1][i] && y[0][i] == (mask[0][i] ? 1.0f / 0.75f : 0.0f));
  }
  OPI_ASSERT(kept > 0.73 * N && kept < 0.77 * N);
}

static void test_squares_are_exact(void) {
  static const float two = 2.0f;
  const char *options[] = {NULL, "kernels=reference"};
  for (int i = 0; i < 2; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    bt_graph g;
    float x[5] = {-3, 0, 0.1f, 1e20f, FLT_MIN}, y[5];
    open_device(options[i]);
    bt_init(&g);
    const uint32_t a = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x, BT_SHAPE(5));
    const uint32_t e = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, &two, 0, NULL);
    const uint32_t o = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(5));
    bt_node(&g, "Pow", BT_IN(a, e), BT_OUT(o));
    OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
    for (int k = 0; k < 5; ++k)
      OPI_ASSERT(y[k] == x[k] * x[k]);
    close_device();
  }
}

/* Appends two rows to caches of six: the past is an input (copied), or nobody else's (written in
 * place); the cache keeps its size, or grows by a row. */
static opipe_status append(bool in_place, int64_t rows, const float *past, const float *fresh,
                           const int64_t *before, float *y, opipe_error *err) {
  bt_graph g;
  bt_init(&g);
  uint32_t p = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, past, BT_SHAPE(2, 3, 6, 4));
  const uint32_t f = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, fresh, BT_SHAPE(2, 3, 2, 4));
  const uint32_t n = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, before, BT_SHAPE(2));
  const uint32_t out = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(2, 3, rows, 4));
  if (in_place) {
    const uint32_t own = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(2, 3, 6, 4));
    bt_node(&g, "Neg", BT_IN(p), BT_OUT(own));
    p = own;
  }
  opipe_node *node = bt_node(&g, "Append", BT_IN(p, f, n), BT_OUT(out));
  node->domain = "opipe";
  bt_int(&g, node, "axis", 2);
  bt_int(&g, node, "rows", rows);
  return bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, err);
}

static void test_append(void) {
  static float past[2 * 3 * 6 * 4], fresh[2 * 3 * 2 * 4], y[2 * 3 * 7 * 4];
  static const int64_t before[2] = {1, 4}, wrong[3][2] = {{0, 5}, {-1, 0}, {6, 0}};
  opi_test_random random = {5};
  opi_test_fill_f32(&random, past, sizeof past / sizeof *past, -3, 3);
  opi_test_fill_f32(&random, fresh, sizeof fresh / sizeof *fresh, -3, 3);
  open_device(NULL);
  for (int form = 0; form < 4; ++form) {
    const int64_t rows = form / 2 == 0 ? 6 : 7;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK(append(form % 2 != 0, rows, past, fresh, before, y, &err), &err);
    for (int64_t i = 0; i < 2 * 3 * rows * 4; ++i) {
      const int64_t head = i / (rows * 4), t = i / 4 % rows, first = before[head / 3];
      const float old = t < 6 ? past[(head * 6 + t) * 4 + i % 4] : 0;
      const bool is_new = t >= first && t < first + 2, kept = t < first || rows == 6;
      const float wanted = is_new ? fresh[(head * 2 + t - first) * 4 + i % 4]
                           : kept ? (form % 2 != 0 ? -old : old)
                                  : 0;
      OPI_ASSERT(memcmp(&y[i], &wanted, sizeof wanted) == 0);
    }
    OPI_ASSERT_ERROR(append(form % 2 != 0, 6, past, fresh, wrong[form % 3], y, &err),
                     OPIPE_E_INVALID, &err, "rows before the new ones, 0 to 4 are possible");
  }
  close_device();
}

OPI_TEST_MAIN("backend-cpu operators", OPI_TEST(test_append), OPI_TEST(test_loss_over_many_rows),
              OPI_TEST(test_largest_of_windows), OPI_TEST(test_casts_at_the_ends_of_types),
              OPI_TEST(test_integer_arithmetic_never_traps),
              OPI_TEST(test_dropout_repeats_its_mask), OPI_TEST(test_squares_are_exact))
