/* SPDX-License-Identifier: Apache-2.0 */
/* Differences of two tensors. */
#include <math.h>
#include <string.h>

#include "cli.h"

static bool same_form(const cli_tensor *a, const cli_tensor *b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof(int64_t)) == 0);
}

static bool same_number(double x, double y) {
  return x == y || (isnan(x) && isnan(y));
}

double cli_distance(const cli_tensor *a, const cli_tensor *b, size_t i) {
  const double x = cli_tensor_get(a, i), y = cli_tensor_get(b, i);
  const double xi = cli_tensor_imaginary(a, i), yi = cli_tensor_imaginary(b, i);
  const double real = same_number(x, y) ? 0 : fabs(x - y);
  return same_number(xi, yi) ? real : hypot(real, xi - yi);
}

static double size_of(const cli_tensor *t, size_t i) {
  const double real = cli_tensor_get(t, i), imaginary = cli_tensor_imaginary(t, i);
  return imaginary == 0 ? fabs(real) : hypot(real, imaginary);
}

void cli_compare(const cli_tensor *a, const cli_tensor *b, cli_difference *out) {
  *out = (cli_difference){.finite = true};
  if (!same_form(a, b)) {
    out->shapes_differ = true;
    out->largest = INFINITY;
    return;
  }
  out->bit_equal = a->n_bytes == 0 || memcmp(a->data, b->data, a->n_bytes) == 0;
  const size_t n = cli_elems(a);
  for (size_t i = 0; i < n; ++i) {
    const double difference = cli_distance(a, b, i), size = size_of(b, i);
    if (!isfinite(size_of(a, i)))
      out->finite = false;
    if (isfinite(size) && size > out->scale)
      out->scale = size;
    if (difference > out->largest || (isnan(difference) && !isinf(out->largest))) {
      out->largest = isnan(difference) ? INFINITY : difference;
      out->at = i;
    }
  }
}

size_t cli_compare_elements(const cli_tensor *a, const cli_tensor *b, double rtol, double atol,
                            size_t *out_first) {
  size_t misses = 0;
  if (!same_form(a, b)) {
    *out_first = 0;
    return SIZE_MAX;
  }
  const size_t n = cli_elems(a);
  for (size_t i = 0; i < n; ++i) {
    const double difference = cli_distance(a, b, i);
    if (difference == 0 || difference <= atol + rtol * size_of(b, i))
      continue;
    if (misses++ == 0)
      *out_first = i;
  }
  return misses;
}
