/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of parameters that are no single piece of the file: a rank that reads one holds a dense
 * copy of it, beside the layouts that its programs want. Counted by the planner, made by sessions.
 */
#ifndef OPI_PACKED_H
#define OPI_PACKED_H

#include "partition/program/model.h"

/* Whether the part is several pieces of the whole tensor. */
bool opi_part_is_packed(const opi_param_part *part);
/* Copies the part from the whole tensor, whose data must be there: out [bytes of its row]. */
void opi_part_pack(const opi_param_part *part, void *out);
/* Marks the rows that are packed for the rank's programs, rows [n_params of the parameter table].
 * Returns their bytes, each part aligned; 0: there are none. */
uint64_t opi_packed_find(const opi_cut_model *model, uint32_t rank, uint32_t alignment,
                         bool *out_rows);

#endif /* OPI_PACKED_H */
