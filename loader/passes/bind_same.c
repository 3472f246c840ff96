/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two sets of options bind a model to the same graph. */
#include <string.h>

#include "loader/passes/passes.h"

static bool same_dims(const opi_bind_options *a, const opi_bind_options *b) {
  if (a->n_dims != b->n_dims)
    return false;
  for (uint32_t i = 0; i < a->n_dims; ++i) {
    if (a->dims[i].value != b->dims[i].value || strcmp(a->dims[i].name, b->dims[i].name) != 0)
      return false;
  }
  return true;
}

static bool same_pin(const opi_pin *a, const opi_pin *b) {
  uint64_t n_bytes = 0;
  return strcmp(a->input, b->input) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
         memcmp(a->shape, b->shape, a->rank * sizeof(int64_t)) == 0 &&
         opi_tensor_bytes(a->dtype, a->shape, a->rank, &n_bytes) &&
         memcmp(a->data, b->data, (size_t)n_bytes) == 0;
}

static bool same_pins(const opi_bind_options *a, const opi_bind_options *b) {
  if (a->n_pins != b->n_pins)
    return false;
  for (uint32_t i = 0; i < a->n_pins; ++i) {
    if (!same_pin(&a->pins[i], &b->pins[i]))
      return false;
  }
  return true;
}

static bool same_names(const char *const *a, uint32_t n_a, const char *const *b, uint32_t n_b) {
  if (n_a != n_b)
    return false;
  for (uint32_t i = 0; i < n_a; ++i) {
    if (strcmp(a[i], b[i]) != 0)
      return false;
  }
  return true;
}

bool opi_bind_same(const opi_bind_options *a, const opi_bind_options *b) {
  const bool open = a->n_shapes != 0 || b->n_shapes != 0 || (a->flags & OPI_BIND_DEFAULTS) != 0;
  if (open || a->flags != b->flags || a->evaluator != b->evaluator || a->dropout != b->dropout ||
      memcmp(&a->dropout_ratio, &b->dropout_ratio, sizeof a->dropout_ratio) != 0)
    return false;
  if ((a->flags & OPI_BIND_KEEP_PARAMETERS) != 0 &&
      !same_names(a->keep, a->n_keep, b->keep, b->n_keep))
    return false;
  return same_dims(a, b) && same_pins(a, b) &&
         same_names(a->barriers, a->n_barriers, b->barriers, b->n_barriers);
}
