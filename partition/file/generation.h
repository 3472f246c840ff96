/* SPDX-License-Identifier: Apache-2.0 */
/* The members "generation" and "passes" of a plan file. Other plans lack them. */
#ifndef OPI_JSON_GENERATION_H
#define OPI_JSON_GENERATION_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

void opi_json_write_generation(opi_text *t, const opi_plan *plan, bool decisions);
/* Errors: INVALID names the member. */
opipe_status opi_json_read_generation(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_GENERATION_H */
