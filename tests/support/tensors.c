/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing tensors: elements become doubles (exact for every type here but 64-bit integers, which
 * are compared as they are where bits are asked for), and a failure says where, what and how far.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "opipe/types.h"
#include "tests/support/support.h"

size_t opi_test_dtype_bytes(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return row->elements == OPIPE_ELEM_COMPLEX || row->bits % 8 != 0 ? 0 : row->bits / 8;
}

static double from_half(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  double fraction = bits & 1023;
  double value;
  if (exponent == 31)
    value = fraction != 0 ? (double)NAN : (double)INFINITY;
  else if (exponent == 0)
    value = ldexp(fraction, -24);
  else
    value = ldexp(fraction + 1024, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

static double from_bfloat(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return (double)value;
}

#define ELEMENT(type)                                                    \
  do {                                                                   \
    type value;                                                          \
    memcpy(&value, (const char *)data + i * sizeof value, sizeof value); \
    return (double)value;                                                \
  } while (0)

double opi_test_element(const void *data, size_t i, uint32_t dtype) {
  uint16_t half = 0;
  switch (dtype) {
    case OPIPE_FLOAT:
      ELEMENT(float);
    case OPIPE_DOUBLE:
      ELEMENT(double);
    case OPIPE_BOOL:
    case OPIPE_UINT8:
      ELEMENT(uint8_t);
    case OPIPE_INT8:
      ELEMENT(int8_t);
    case OPIPE_UINT16:
      ELEMENT(uint16_t);
    case OPIPE_INT16:
      ELEMENT(int16_t);
    case OPIPE_UINT32:
      ELEMENT(uint32_t);
    case OPIPE_INT32:
      ELEMENT(int32_t);
    case OPIPE_UINT64:
      ELEMENT(uint64_t);
    case OPIPE_INT64:
      ELEMENT(int64_t);
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      memcpy(&half, (const char *)data + i * sizeof half, sizeof half);
      return dtype == OPIPE_FLOAT16 ? from_half(half) : from_bfloat(half);
    default:
      return (double)NAN;
  }
}

/* Distance in units of the last place of floats and doubles; -1 for other types and for unlike
 * signs. */
static int64_t ulps(const void *found, const void *wanted, size_t i, uint32_t dtype) {
  if (dtype == OPIPE_FLOAT) {
    int32_t a;
    int32_t b;
    memcpy(&a, (const char *)found + i * sizeof a, sizeof a);
    memcpy(&b, (const char *)wanted + i * sizeof b, sizeof b);
    return (a < 0) == (b < 0) ? llabs((int64_t)a - b) : -1;
  }
  if (dtype == OPIPE_DOUBLE) {
    int64_t a;
    int64_t b;
    memcpy(&a, (const char *)found + i * sizeof a, sizeof a);
    memcpy(&b, (const char *)wanted + i * sizeof b, sizeof b);
    return (a < 0) == (b < 0) ? llabs(a - b) : -1;
  }
  return -1;
}

/* How far apart, with the rules of NaN and infinity; infinite where they never agree. */
static double distance(double a, double b) {
  if (isnan(a) && isnan(b))
    return 0;
  if (a == b)
    return 0;
  double apart = fabs(a - b);
  return isfinite(apart) ? apart : (double)INFINITY;
}

bool opi_test_near(const void *found, const void *wanted, size_t n, uint32_t dtype, double atol,
                   double rtol, const char *text, const char *file, int line) {
  size_t n_wrong = 0;
  size_t worst = 0;
  double worst_excess = 0;
  if (opi_test_dtype_bytes(dtype) == 0)
    return opi_test_check(false, file, line, false, "%s: no comparison for type %u", text, dtype);
  for (size_t i = 0; i < n; ++i) {
    double a = opi_test_element(found, i, dtype);
    double b = opi_test_element(wanted, i, dtype);
    double allowed = isfinite(b) ? atol + rtol * fabs(b) : 0;
    double excess = distance(a, b) - allowed;
    if (!(excess <= 0)) {
      ++n_wrong;
      if (excess > worst_excess || n_wrong == 1) {
        worst_excess = excess;
        worst = i;
      }
    }
  }
  if (n_wrong == 0)
    return opi_test_check(true, file, line, false, "%s", text);
  return opi_test_check(
      false, file, line, false,
      "%s[%zu] is %.9g, wanted %.9g (%" PRId64 " ulp), atol %g rtol %g; %zu of %zu elements differ",
      text, worst, opi_test_element(found, worst, dtype), opi_test_element(wanted, worst, dtype),
      ulps(found, wanted, worst, dtype), atol, rtol, n_wrong, n);
}

bool opi_test_close(const void *found, const void *wanted, size_t n, uint32_t dtype, double tol,
                    const char *text, const char *file, int line) {
  double largest = 0;
  double apart = 0;
  size_t worst = 0;
  if (opi_test_dtype_bytes(dtype) == 0)
    return opi_test_check(false, file, line, false, "%s: no comparison for type %u", text, dtype);
  for (size_t i = 0; i < n; ++i) {
    double a = opi_test_element(found, i, dtype);
    double b = opi_test_element(wanted, i, dtype);
    double here = distance(a, b);
    if (isfinite(b) && fabs(b) > largest)
      largest = fabs(b);
    if (here > apart) {
      apart = here;
      worst = i;
    }
  }
  if (apart <= tol * largest)
    return opi_test_check(true, file, line, false, "%s", text);
  return opi_test_check(false, file, line, false,
                        "%s[%zu] is %.9g, wanted %.9g: off by %.3g, allowed %.3g (= %g of the "
                        "largest, %.6g)",
                        text, worst, opi_test_element(found, worst, dtype),
                        opi_test_element(wanted, worst, dtype), apart, tol * largest, tol, largest);
}

bool opi_test_bits(const void *found, const void *wanted, size_t n, uint32_t dtype,
                   const char *text, const char *file, int line) {
  size_t size = opi_test_dtype_bytes(dtype);
  if (size == 0)
    return opi_test_check(false, file, line, false, "%s: no comparison for type %u", text, dtype);
  for (size_t i = 0; i < n; ++i) {
    if (memcmp((const char *)found + i * size, (const char *)wanted + i * size, size) != 0) {
      return opi_test_check(false, file, line, false,
                            "%s[%zu of %zu] is %.17g, wanted exactly %.17g (%" PRId64 " ulp)", text,
                            i, n, opi_test_element(found, i, dtype),
                            opi_test_element(wanted, i, dtype), ulps(found, wanted, i, dtype));
    }
  }
  return opi_test_check(true, file, line, false, "%s", text);
}

uint64_t opi_test_next(opi_test_random *random) {
  uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

double opi_test_uniform(opi_test_random *random, double low, double high) {
  double unit = (double)(opi_test_next(random) >> 11) * 0x1p-53;
  return low + (high - low) * unit;
}

void opi_test_fill_f32(opi_test_random *random, float *data, size_t n, double low, double high) {
  for (size_t i = 0; i < n; ++i)
    data[i] = (float)opi_test_uniform(random, low, high);
}
