/* SPDX-License-Identifier: Apache-2.0 */
/* The member "kernels" of a plan file: the table of measured kernels, if the plan has one. It is no
 * part of the decision, and the plan's hash does not cover it. */
#ifndef OPI_JSON_KERNELS_H
#define OPI_JSON_KERNELS_H

#include "loader/base/json.h"
#include "partition/plan/kernels.h"

/* Begins with the comma after the previous member. */
void opi_json_write_kernels(opi_text *t, const opi_plan *plan);
opipe_status opi_json_read_kernels(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_KERNELS_H */
