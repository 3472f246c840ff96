/* SPDX-License-Identifier: Apache-2.0 */
/* Two plans or strategies side by side, from their files alone. */
#ifndef OPI_LAYERS_COMPARE_H
#define OPI_LAYERS_COMPARE_H

#include "loader/base/base.h"

typedef struct opi_plan_text {
  const void *json;
  uint64_t n_bytes;
  const char *name;
} opi_plan_text;

/* Writes the decisions that differ, and times and bytes of both, as lines or JSON. Errors: INVALID
 * and UNSUPPORTED name file and member. */
opipe_status opi_plans_compare(const opi_plan_text texts[2], bool json,
                               const opipe_allocator *allocator, opi_text *text, opipe_error *err);

#endif /* OPI_LAYERS_COMPARE_H */
