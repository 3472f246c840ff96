/* SPDX-License-Identifier: Apache-2.0 */
/* Flags, alignments and rules by name, as the JSON of plan files and cluster files has them. */
#ifndef OPI_FLAGS_H
#define OPI_FLAGS_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

/* Which flags are meant: OPIPE_DEVICE_* or OPIPE_TRANSPORT_*. */
enum { OPI_FLAGS_DEVICE = 0, OPI_FLAGS_LINK = 1 };

/* ["host-memory", "synchronous"] */
void opi_json_write_flags(opi_text *text, uint32_t which, uint32_t flags);
/* Member "flags". Errors: INVALID names what is no flag, and those that are. */
opipe_status opi_json_get_flags(const json_t *object, const char *what, uint32_t which,
                                uint32_t *out_flags, opipe_error *err);
/* Member "alignment": bytes, a power of two. */
opipe_status opi_json_get_alignment(const json_t *object, const char *what, uint32_t *out_bytes,
                                    opipe_error *err);
/* Member "rule" (OPIPE_RULE_*) by name. */
opipe_status opi_json_get_rule(const json_t *object, const char *what, uint32_t *out_rule,
                               opipe_error *err);

#endif /* OPI_FLAGS_H */
