/* SPDX-License-Identifier: Apache-2.0 */
/* DFT against the plain sum, over lengths with every kind of factor: powers of two, small primes,
 * primes that take the convolution; each line alone gives the bits that it gives among others.
 */
#include <math.h>

#include "backend_test.h"

enum { LINES = 3, LONGEST = 1024 };

static bt_backend backend;
static opipe_device *device;

/* sum over j < n of x[j] exp(sign 2 pi i j k / n) */
static void plain_sum(const double *x, int64_t n, int64_t k, double sign, double *out) {
  const double pi = 3.14159265358979323846;
  out[0] = out[1] = 0;
  for (int64_t j = 0; j < n; ++j) {
    const double angle = sign * 2 * pi * (double)(j * k % n) / (double)n;
    out[0] += x[2 * j] * cos(angle) - x[2 * j + 1] * sin(angle);
    out[1] += x[2 * j] * sin(angle) + x[2 * j + 1] * cos(angle);
  }
}

/* Lines [begin, begin + count) of x [LINES, n, 2] as a tensor [count, n, 2]. */
static void transform(const double *x, int64_t begin, int64_t count, int64_t n, bool inverse,
                      double *y) {
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t axis = 1;
  bt_graph g;
  bt_init(&g);
  const uint32_t a =
      bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_DOUBLE, x + begin * n * 2, BT_SHAPE(count, n, 2));
  const uint32_t length = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, &n, 0, NULL);
  const uint32_t at = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, &axis, 0, NULL);
  const uint32_t b = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_DOUBLE, y, BT_SHAPE(count, n, 2));
  opipe_node *node = bt_node(&g, "DFT", BT_IN(a, length, at), BT_OUT(b));
  bt_int(&g, node, "inverse", inverse);
  bt_int(&g, node, "onesided", 0);
  OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
}

static void try_length(int64_t n, bool inverse) {
  static double x[LINES * LONGEST * 2], y[LINES * LONGEST * 2], alone[LONGEST * 2];
  opi_test_random random = {(uint64_t)n};
  double worst = 0;
  for (int64_t i = 0; i < LINES * n * 2; ++i)
    x[i] = opi_test_uniform(&random, -1, 1);
  transform(x, 0, LINES, n, inverse, y);
  for (int64_t i = 0; i < LINES; ++i) {
    transform(x, i, 1, n, inverse, alone);
    OPI_ASSERT_BITS(alone, y + i * n * 2, (size_t)n * 2, OPIPE_DOUBLE);
    for (int64_t k = 0; k < n; ++k) {
      double wanted[2];
      const double *found = y + (i * n + k) * 2;
      const double by = inverse ? 1 / (double)n : 1;
      plain_sum(x + i * n * 2, n, k, inverse ? 1 : -1, wanted);
      worst = fmax(worst, fabs(found[0] - wanted[0] * by) / (sqrt((double)n) * by));
      worst = fmax(worst, fabs(found[1] - wanted[1] * by) / (sqrt((double)n) * by));
    }
  }
  OPI_ASSERT(worst < 1e-13);
}

static void test_every_kind_of_length(void) {
  static const int64_t lengths[] = {1,  2,  3,  4,  5,  6,  7,   8,   9,   12,  16,  30,  31,
                                    32, 37, 41, 64, 77, 97, 120, 128, 199, 256, 400, 631, 1024};
  opipe_error err = OPIPE_ERROR_INIT;
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, NULL, 2, 0, &device, &err), &err);
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; ++i) {
    try_length(lengths[i], false);
    try_length(lengths[i], true);
  }
  backend.table->device_close(device);
  bt_close(&backend);
}

OPI_TEST_MAIN("dft", OPI_TEST(test_every_kind_of_length))
