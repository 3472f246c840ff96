/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to integers of 8 bits: a plain loop's, on every instruction set, one thread and two; what
 * is no number, ties, what is out of range.
 */
#include "kernel_test.h"

static float special(int64_t i, float value) {
  static const float numbers[] = {NAN,   INFINITY, -INFINITY, 0.0f,  -0.0f,  0.5f,  1.5f,
                                  -2.5f, 3e9f,     -3e9f,     1e38f, 127.5f, 1e-45f};
  const int64_t n = (int64_t)(sizeof numbers / sizeof numbers[0]);
  return i % 7 == 3 ? numbers[i / 7 % n] : value;
}

static uint8_t quantized(float x, float scale, float zero, float low, float high) {
  const float y = nearbyintf(x / scale) + zero;
  return (uint8_t)(int32_t)(y >= low ? (y <= high ? y : high) : low);
}

static void check_quantize(const kernel_exec *e, int64_t n, bool is_signed, float scale,
                           float zero) {
  float *x = kernel_floats(n);
  uint8_t *y = kernel_memory((size_t)n);
  const float low = is_signed ? -128.0f : 0.0f, high = is_signed ? 127.0f : 255.0f;
  kernel_fill(x, n, 11);
  for (int64_t i = 0; i < n; ++i)
    x[i] = special(i, x[i] * 200 * scale);
  cpu_quantize(&e->x, &(cpu_quantize_args){x, n, scale, zero, low, high, y});
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t wanted = quantized(x[i], scale, zero, low, high);
    wrong += y[i] != wanted;
    if (y[i] != wanted && wrong == 1)
      OPI_FAIL("%s, %g / %g + %g: %u, not %u", e->name, x[i], scale, zero, y[i], wanted);
  }
  OPI_ASSERT_INT(wrong, 0);
  free(x);
  free(y);
}

static void test_quantize(void) {
  static const int64_t sizes[] = {1, 15, 16, 17, 300, 20011};
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  for (int i = 0; i < n; ++i) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
      check_quantize(&execs[i], sizes[s], true, 1.0f, -3.0f);
      check_quantize(&execs[i], sizes[s], true, 0.037f, 0.0f);
      check_quantize(&execs[i], sizes[s], false, 0.25f, 128.0f);
      check_quantize(&execs[i], sizes[s], false, 3.7e-3f, 255.0f);
    }
  }
}

static void check_range(const kernel_exec *e, int64_t n, float shift, bool all) {
  float *x = kernel_floats(n), least = 9, greatest = 9, wanted[2] = {0, 0};
  kernel_fill(x, n, 5);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = all ? special(i, x[i] + shift) : x[i] + shift;
    wanted[0] = x[i] < wanted[0] ? x[i] : wanted[0];
    wanted[1] = x[i] > wanted[1] ? x[i] : wanted[1];
  }
  cpu_range_f32(&e->x, x, n, &least, &greatest);
  OPI_ASSERT(least == wanted[0] && greatest == wanted[1]);
  free(x);
}

static void test_range(void) {
  static const int64_t sizes[] = {0, 1, 3, 16, 17, 63, 1000, 20011};
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  for (int i = 0; i < n; ++i) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
      check_range(&execs[i], sizes[s], 0, false);
      check_range(&execs[i], sizes[s], 5, false); /* all above 0 */
      check_range(&execs[i], sizes[s], -5, false);
      check_range(&execs[i], sizes[s], 0, true);
    }
  }
}

OPI_TEST_MAIN("kernel_quantize", OPI_TEST(test_quantize), OPI_TEST(test_range))
