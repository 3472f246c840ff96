/* SPDX-License-Identifier: Apache-2.0 */
/* The table of measured kernels in a plan file; a plan without has no member of its own. It is no
 * decision: the plan's hash is made without it. */
#ifndef OPI_JSON_KERNELS_H
#define OPI_JSON_KERNELS_H

#include "loader/base/json.h"
#include "partition/plan/kernels.h"

/* Begins with the comma behind the member before. */
void opi_json_write_kernels(opi_text *t, const opi_plan *plan);
opipe_status opi_json_read_kernels(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_KERNELS_H */
