/* SPDX-License-Identifier: Apache-2.0 */
/* The member "states" of a plan file: pairs of outputs and inputs. Plans without states lack it. */
#ifndef OPI_JSON_STATES_H
#define OPI_JSON_STATES_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

void opi_json_write_states(opi_text *t, const opi_plan *plan, bool decisions);
opipe_status opi_json_read_states(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_STATES_H */
