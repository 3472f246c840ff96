/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of every type that is added, which tell ways to add apart. */
#ifndef CONFORMANCE_SUM_NUMBERS_H
#define CONFORMANCE_SUM_NUMBERS_H

#include <opipe/types.h>
#include <string.h>

#if OPIPE_ABI_MINOR >= 5
#include <opipe/halves.h>

static uint64_t size_of_value(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->bits / 8;
}

static void put_number(void *at, uint32_t dtype, double value) {
  const float narrow = (float)value;
  const int64_t whole = (int64_t)value;
  const uint16_t half = dtype == OPIPE_FLOAT16    ? opipe_f32_to_f16(narrow)
                        : dtype == OPIPE_BFLOAT16 ? opipe_f32_to_bf16(narrow)
                                                  : 0;
  if (dtype == OPIPE_DOUBLE)
    memcpy(at, &value, sizeof value);
  else if (dtype == OPIPE_INT64)
    memcpy(at, &whole, sizeof whole);
  else if (dtype == OPIPE_FLOAT)
    memcpy(at, &narrow, sizeof narrow);
  else
    memcpy(at, &half, sizeof half);
}

/* Member m's value i. Large ones that cancel hide a small one unless they are added first, and a
 * value with two small ones beside it shows sums that are wider, or rounded before they end. */
static double number_of(uint32_t dtype, uint32_t m, uint64_t round, uint64_t i) {
  static const int kinds[5][3] = {{2, -2, 1}, {2, 1, -2}, {1, 2, -2}, {-2, 2, 1}, {3, 4, 4}};
  const double edge = dtype == OPIPE_DOUBLE     ? 0x1p53
                      : dtype == OPIPE_FLOAT    ? 0x1p24
                      : dtype == OPIPE_BFLOAT16 ? 0x1p8
                                                : 0x1p11;
  const double scale = (double)(1u << ((i + 3 * round) % 3));
  const double small = dtype == OPIPE_FLOAT16 ? 0x1p-14 : 1;
  const double large = dtype == OPIPE_DOUBLE ? 0x1p57 : small * 0x1p27;
  const int kind = kinds[(i + round) % 5][m % 3];
  if (dtype == OPIPE_INT64)
    return (double)(1000 * m + i);
  return scale * (kind == 1 ? small : kind == 3 ? edge : kind == 4 ? 1 : kind > 0 ? large : -large);
}

/* In rising order, before it is rounded to a half type. */
static double number_sum(uint32_t dtype, uint32_t n, uint64_t round, uint64_t i) {
  volatile float narrow = (float)number_of(dtype, 0, round, i);
  volatile double wide = number_of(dtype, 0, round, i);
  for (uint32_t m = 1; m < n; ++m) {
    narrow += (float)number_of(dtype, m, round, i);
    wide += number_of(dtype, m, round, i);
  }
  return dtype == OPIPE_DOUBLE ? wide : (double)narrow;
}

#endif
#endif /* CONFORMANCE_SUM_NUMBERS_H */
