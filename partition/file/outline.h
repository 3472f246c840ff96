/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan's file says of its graph, for those who read it without its model. */
#ifndef OPI_JSON_OUTLINE_H
#define OPI_JSON_OUTLINE_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

/* 32 hexadecimal digits. Errors: INVALID. */
opipe_status opi_json_read_print(const char *text, uint64_t out_print[2], opipe_error *err);
/* node_keys and stage_of_node from the "stages", stage after stage: texts were checked. */
opipe_status opi_json_list_nodes(const json_t *stages, opi_plan *plan, opipe_error *err);
/* Stashes of stages, tensors of the cut, times of all, flops, and the playlist: what making the
 * plan finds out with its model. Errors: INVALID names the member; as opi_json_read_playlist. */
opipe_status opi_json_read_outline(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_OUTLINE_H */
