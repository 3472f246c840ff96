/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in the numbers of a constant: masks, waves, slopes, coordinates. */
#include "loader/gradient/values.h"

#include <math.h>
#include <stdlib.h>

#include "loader/ops/kit.h"

enum { ROWS = 64, COLUMNS = 64, DISTINCT = 1024 };

static uint64_t count(const opi_value *value) {
  uint64_t n = 0;
  return value->data != NULL && opi_shape_elems(value->shape, (uint32_t)value->rank, &n) ? n : 0;
}

static double at(const opi_value *value, uint64_t i) {
  return opi_known_element(value, i);
}

/* How far a number may be from what it should be, against the largest. */
static double tolerance(const opi_value *value) {
  return value->dtype == OPIPE_BFLOAT16 || (value->flags & OPI_VALUE_WAS_BFLOAT) != 0 ? 3e-2
         : value->dtype == OPIPE_FLOAT16 || (value->flags & OPI_VALUE_WAS_HALF) != 0  ? 4e-3
                                                                                      : 1e-3;
}

bool opi_values_mask(const opi_value *value) {
  const uint64_t n = count(value);
  bool any = false;
  for (uint64_t i = 0; i < n; ++i) {
    const double x = at(value, i);
    if (!(x == 0 || x <= -100))
      return false;
    any = any || x != 0;
  }
  return any;
}

bool opi_values_masked(const opi_value *value) {
  const uint64_t n = count(value);
  for (uint64_t i = 0; i < n; ++i) {
    if (at(value, i) <= -100)
      return true;
  }
  return false;
}

bool opi_values_equal(const opi_value *value) {
  const uint64_t n = count(value);
  for (uint64_t i = 1; i < n; ++i) {
    if (at(value, i) != at(value, 0))
      return false;
  }
  return n > 1;
}

bool opi_values_neutral(const opi_value *value) {
  const uint64_t n = count(value);
  return n > 0 && (n == 1 || opi_values_equal(value)) && (at(value, 0) == 0 || at(value, 0) == 1);
}

bool opi_values_follow(const opi_value *value, const opi_value *other) {
  static const double ways[][2] = {{1, -1}, {1, 1}, {0, -1}}; /* shift, factor */
  const uint64_t n = count(value);
  const double slack = tolerance(value) * 1e-3;
  if (n < 2 || n != count(other) || opi_values_equal(other))
    return false;
  for (size_t w = 0; w < OPI_COUNT(ways); ++w) {
    uint64_t i = 0;
    while (i < n && fabs(ways[w][0] + ways[w][1] * at(other, i) - at(value, i)) <=
                        slack * (1 + fabs(at(other, i))))
      ++i;
    if (i == n)
      return true;
  }
  return false;
}

bool opi_values_two(const opi_value *value) {
  const uint64_t n = count(value);
  const double first = n > 0 ? at(value, 0) : 0;
  double second = first;
  for (uint64_t i = 1; i < n; ++i) {
    const double x = at(value, i);
    if (x == first || x == second)
      continue;
    if (second != first)
      return false;
    second = x;
  }
  return second != first;
}

/* A tensor as columns along one axis: element (row, column) of axis length `rows`. */
typedef struct columns {
  const opi_value *value;
  uint64_t rows, n, inner; /* n columns; elements between two rows */
} columns;

static columns along(const opi_value *value, int32_t axis) {
  columns c = {.value = value, .rows = (uint64_t)value->shape[axis], .inner = 1};
  for (int32_t d = axis + 1; d < value->rank; ++d)
    c.inner *= (uint64_t)value->shape[d];
  c.n = c.rows == 0 ? 0 : count(value) / c.rows;
  return c;
}

static double cell(const columns *c, uint64_t row, uint64_t column) {
  return at(c->value, column / c->inner * c->inner * c->rows + row * c->inner + column % c->inner);
}

/* ---- pairs ---- */

/* The partner of feature i of n where halves of blocks of 2 * half belong together. */
static bool pairs_by(const columns *c, uint64_t half) {
  const double slack = tolerance(c->value);
  const uint64_t step = c->n > ROWS ? c->n / ROWS : 1;
  double wanted = 0, low = INFINITY, high = -INFINITY;
  uint64_t full = 0;
  for (uint64_t p = 0; p < c->n; p += step) { /* positions are this axis' columns */
    double most = 0;
    for (uint64_t i = 0; i < c->rows; ++i)
      most = fmax(most, fabs(cell(c, i, p)));
    if (most == 0)
      continue;
    for (uint64_t i = 0; i < c->rows; ++i) {
      if (i / half % 2 != 0)
        continue;
      const double x = cell(c, i, p), y = cell(c, i + half, p), sum = x * x + y * y;
      if (full == 0 && i == 0)
        wanted = sum;
      if (!(fabs(sum - wanted) <= 4 * slack * wanted) || wanted == 0)
        return false;
    }
    ++full;
    low = fmin(low, cell(c, 0, p));
    high = fmax(high, cell(c, 0, p));
  }
  return full >= 2 && high - low > 0.01 * sqrt(wanted);
}

bool opi_values_pairs(const opi_value *value) {
  static const uint64_t parts[] = {2, 4, 6, 8};
  if (count(value) < 8)
    return false;
  for (int32_t d = 0; d < value->rank; ++d) {
    const columns c = along(value, d);
    if (c.rows < 4 || c.rows % 2 != 0 || c.rows > 65536)
      continue;
    if (pairs_by(&c, 1))
      return true;
    for (size_t p = 0; p < OPI_COUNT(parts); ++p) {
      if (c.rows % parts[p] == 0 && c.rows / parts[p] > 1 && pairs_by(&c, c.rows / parts[p]))
        return true;
    }
  }
  return false;
}

/* ---- waves ---- */

typedef struct wave {
  bool fits, varies, bent;
} wave;

/* x[r + 1] + x[r - 1] = k * x[r] with one k of at most 2 holds of sines, cosines and what is affine
 * (k = 2). */
static wave fit_wave(const columns *c, uint64_t column, uint64_t rows) {
  const double slack = tolerance(c->value);
  double over = 0, under = 0, most = 0, low = INFINITY, high = -INFINITY;
  for (uint64_t r = 0; r < rows; ++r) {
    const double x = cell(c, r, column);
    most = fmax(most, fabs(x));
    low = fmin(low, x);
    high = fmax(high, x);
    if (r == 0 || r + 1 == rows)
      continue;
    over += x * (cell(c, r + 1, column) + cell(c, r - 1, column));
    under += x * x;
  }
  wave w = {.varies = high - low > 4 * slack * most};
  if (!isfinite(most))
    return w;
  const double k = under > 0 ? over / under : 2;
  double off = 0;
  w.fits = fabs(k) <= 2 + slack;
  for (uint64_t r = 1; r + 1 < rows && w.fits; ++r) {
    const double next = cell(c, r + 1, column), before = cell(c, r - 1, column);
    w.fits = fabs(next + before - k * cell(c, r, column)) <= 4 * slack * most;
    off = fmax(off, fabs(next + before - 2 * cell(c, r, column)));
  }
  w.bent = off > 4 * slack * fmax(high - low, 1e-30);
  return w;
}

/* Columns that are all waves, at least half of them no constants. */
static bool all_waves(const columns *c, bool affine) {
  const uint64_t rows = c->rows < ROWS ? c->rows : ROWS;
  const uint64_t step = c->n > COLUMNS ? c->n / COLUMNS : 1;
  uint64_t n = 0, varying = 0, bent = 0;
  for (uint64_t column = 0; column < c->n; column += step) {
    const wave w = fit_wave(c, column, rows);
    if (!w.fits || (affine && w.varies && w.bent))
      return false;
    ++n;
    varying += w.varies;
    bent += w.varies && w.bent;
  }
  return (rows - 3) * n >= 4 && varying * 2 >= n && (affine || bent > 0);
}

static bool waves(const opi_value *value, bool affine) {
  if (count(value) < 4)
    return false;
  for (int32_t d = 0; d < value->rank; ++d) {
    const columns c = along(value, d);
    if (c.rows >= 4 && all_waves(&c, affine))
      return true;
  }
  return false;
}

bool opi_values_wave(const opi_value *value) {
  return waves(value, false);
}

bool opi_values_affine(const opi_value *value) {
  return waves(value, true);
}

/* ---- single numbers ---- */

bool opi_values_slopes(const opi_value *value) {
  const uint64_t n = count(value);
  if (n < 2 || n > 1024 || opi_values_equal(value))
    return false;
  for (uint64_t i = 0; i < n; ++i) {
    const double x = at(value, i), steps = x > 0 ? log2(x) * 64 : 0.5;
    if (!(fabs(steps - round(steps)) < 2e-3))
      return false;
  }
  return true;
}

static int by_number(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

bool opi_values_repeat(const opi_value *value) {
  const uint64_t n = count(value), step = n > DISTINCT ? n / DISTINCT : 1;
  double seen[DISTINCT];
  uint64_t taken = 0, distinct = 1;
  if (n < 16)
    return false;
  for (uint64_t i = 0; i < n && taken < DISTINCT; i += step)
    seen[taken++] = at(value, i);
  qsort(seen, taken, sizeof seen[0], by_number);
  for (uint64_t i = 1; i < taken; ++i)
    distinct += seen[i] != seen[i - 1];
  return distinct > 1 && distinct * 4 <= taken;
}
