/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory of a plan's ranks is judged by. */
#ifndef OPI_CAPS_H
#define OPI_CAPS_H

#include "partition/plan.h"

/* Devices of a plan while it is made: one opening per rank. */
typedef struct opi_rank_device {
  const opi_backend_ref *backend; /* NULL, and no device: it is described */
  opipe_device *device;
  const opi_program_visitor *visitor; /* of its programs; NULL: none */
  uint32_t alignment;
} opi_rank_device;

/* Errors: LIMIT names the first rank that needs more than its cap, with all numbers. */
opipe_status opi_plan_check_caps(const opi_plan *plan, opipe_error *err);

#endif /* OPI_CAPS_H */
