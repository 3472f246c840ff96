/* SPDX-License-Identifier: Apache-2.0 */
/* "ways" and "staging_bytes" of a plan's file: how messages travel between devices, and the pinned
 * host memory that they go through. */
#ifndef OPI_FILE_WAYS_H
#define OPI_FILE_WAYS_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

/* Ways within the host's memory are left out; without any other nothing is written. */
void opi_json_write_ways(opi_text *text, const opi_plan *plan);
/* After "memory". Errors: INVALID. */
opipe_status opi_json_read_ways(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_FILE_WAYS_H */
