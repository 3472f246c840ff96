/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory of a plan's ranks is judged by. */
#ifndef OPI_CAPS_H
#define OPI_CAPS_H

#include "partition/plan/plan.h"

/* Devices of a plan while it is made: one opening per rank. */
typedef struct opi_rank_device {
  const opi_backend_ref *backend; /* NULL, and no device: it is described */
  opipe_device *device;
  const opi_program_visitor *visitor; /* of its programs; NULL: none */
  uint32_t alignment;
} opi_rank_device;

/* Bytes that the *out_n ranks with the same cap as rank `rank` need together; UINT64_MAX: more. */
uint64_t opi_caps_sum(const opi_plan *plan, uint32_t rank, uint32_t *out_n);
/* Caps hold for all ranks that have them together. Where a rank has none, all ranks on its device
 * must fit what that has. Errors: LIMIT names the first ranks that need more, the sum, and all
 * numbers. */
opipe_status opi_plan_check_caps(const opi_plan *plan, opipe_error *err);

#endif /* OPI_CAPS_H */
