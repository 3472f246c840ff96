/* SPDX-License-Identifier: Apache-2.0 */
/* Plan files: tensors that wait in the host's memory between forwards and backwards. Plans without
 * any have no such member. */
#ifndef OPI_FILE_OFFLOAD_H
#define OPI_FILE_OFFLOAD_H

#include "partition/file/read.h"

void opi_json_write_offload(opi_text *text, const opi_decision *plan, bool decisions);
/* Once devices and `training` are read. */
opipe_status opi_json_read_offload(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_FILE_OFFLOAD_H */
