/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas and the training part of a plan's JSON. */
#ifndef OPI_JSON_TRAIN_H
#define OPI_JSON_TRAIN_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

/* Nothing for forward plans. decisions: without times. */
void opi_json_write_train(opi_text *text, const opi_plan *plan, bool decisions);
/* The spec (nothing when there is none); what the schedule laid out, once the stages are there. */
opipe_status opi_json_read_train(const json_t *root, opi_plan *plan, opipe_error *err);
opipe_status opi_json_read_layout(const json_t *root, opi_plan *plan, opipe_error *err);
/* Tensor groups, if there are any; reading needs the devices. */
void opi_json_write_tensor(opi_text *text, const opi_decision *plan);
opipe_status opi_json_read_tensor(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_TRAIN_H */
