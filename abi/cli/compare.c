/* SPDX-License-Identifier: Apache-2.0 */
/* How two tensors differ. */
#include <math.h>
#include <string.h>

#include "cli.h"

static bool same_form(const cli_tensor *a, const cli_tensor *b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof(int64_t)) == 0);
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
    const double x = cli_tensor_get(a, i), y = cli_tensor_get(b, i);
    const bool same = x == y || (isnan(x) && isnan(y));
    const double difference = same ? 0 : fabs(x - y);
    if (!isfinite(x))
      out->finite = false;
    if (isfinite(y) && fabs(y) > out->scale)
      out->scale = fabs(y);
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
    const double x = cli_tensor_get(a, i), y = cli_tensor_get(b, i);
    if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= atol + rtol * fabs(y))
      continue;
    if (misses++ == 0)
      *out_first = i;
  }
  return misses;
}
