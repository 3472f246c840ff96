/* SPDX-License-Identifier: Apache-2.0 */
/* The training part of a plan's JSON, and actions of every pass as text. */
#ifndef OPI_JSON_TRAIN_H
#define OPI_JSON_TRAIN_H

#include "partition/json/json.h"
#include "partition/plan.h"

/* "2F0"; replica "@1", slice ".1", part "/1", version "~1", flags "!2" follow where they are not 0.
 */
void opi_json_action(opi_text *text, const opipe_action *action);
/* Reads one; *out_used characters were taken. False: it is none. */
bool opi_json_read_action(const char *text, opipe_action *out_action, int *out_used);

/* Nothing for forward plans. decisions: without times. */
void opi_json_write_train(opi_text *text, const opi_plan *plan, bool decisions);
/* The spec (nothing when there is none); what the schedule laid out, once the stages are there. */
opipe_status opi_json_read_train(const json_t *root, opi_plan *plan, opipe_error *err);
opipe_status opi_json_read_layout(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_TRAIN_H */
