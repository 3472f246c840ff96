/* SPDX-License-Identifier: Apache-2.0 */
/* The outline of a plan's graph as its file records it, for readers without the model. */
#ifndef OPI_JSON_OUTLINE_H
#define OPI_JSON_OUTLINE_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

/* Parses 32 hexadecimal digits. Errors: INVALID. */
opipe_status opi_json_read_print(const char *text, uint64_t out_print[2], opipe_error *err);
/* Fills node_keys and stage_of_node from "stages", stage by stage. The strings have been checked.
 */
opipe_status opi_json_list_nodes(const json_t *stages, opi_plan *plan, opipe_error *err);
/* Reads stashes of stages, crossing tensors, times, flops and the playlist: everything that making
 * a plan derives from its model. Errors: INVALID names the member; as opi_json_read_playlist. */
opipe_status opi_json_read_outline(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_OUTLINE_H */
