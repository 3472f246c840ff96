/* SPDX-License-Identifier: Apache-2.0 */
/* Flags, alignments and rules by name, as in the JSON of plan files and cluster files. */
#ifndef OPI_FLAGS_H
#define OPI_FLAGS_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

/* Selects OPIPE_DEVICE_* or OPIPE_TRANSPORT_*. */
enum { OPI_FLAGS_DEVICE = 0, OPI_FLAGS_LINK = 1 };

/* Writes an array such as ["host-memory", "synchronous"]. */
void opi_json_write_flags(opi_text *text, uint32_t which, uint32_t flags);
/* Reads member "flags". Errors: INVALID names the unknown flag and lists the known ones. */
opipe_status opi_json_get_flags(const json_t *object, const char *what, uint32_t which,
                                uint32_t *out_flags, opipe_error *err);
/* Reads member "alignment": bytes, a power of two. */
opipe_status opi_json_get_alignment(const json_t *object, const char *what, uint32_t *out_bytes,
                                    opipe_error *err);
/* Reads member "rule" (OPIPE_RULE_*) by name. */
opipe_status opi_json_get_rule(const json_t *object, const char *what, uint32_t *out_rule,
                               opipe_error *err);

#endif /* OPI_FLAGS_H */
