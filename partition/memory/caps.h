/* SPDX-License-Identifier: Apache-2.0 */
/* Limits on the memory of a plan's ranks. */
#ifndef OPI_CAPS_H
#define OPI_CAPS_H

#include "partition/plan/plan.h"

/* Devices of a plan in the making: one opening per rank. */
typedef struct opi_rank_device {
  const opi_backend_ref *backend; /* NULL, and no device: the device is only described */
  opipe_device *device;
  const opi_program_visitor *visitor; /* of its programs; NULL: none */
  uint64_t memory_bytes;              /* as the device reports; 0: unknown */
  uint32_t alignment;
} opi_rank_device;

/* Bytes that the *out_n ranks which share rank `rank`'s cap need together; UINT64_MAX: more. */
uint64_t opi_caps_sum(const opi_plan *plan, uint32_t rank, uint32_t *out_n);
/* A shared cap holds for the sum of its ranks. If a rank has no cap, all ranks on its device must
 * fit the device's memory. Errors: LIMIT, the first ranks that need more, with the sum and all
 * numbers. */
opipe_status opi_plan_check_caps(const opi_plan *plan, opipe_error *err);

#endif /* OPI_CAPS_H */
