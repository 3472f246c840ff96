/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and links as plan files and cluster files have them: flags and rules by name. */
#ifndef OPI_JSON_DEVICES_H
#define OPI_JSON_DEVICES_H

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

/* A device of a plan. decisions: without threads, cap, and the option `kernels`. */
void opi_json_write_device(opi_text *text, const opi_device_spec *device, bool decisions);
/* Fills io_devices[rank]; those of the ranks before have been read. Texts are copied into `arena`.
 */
opipe_status opi_json_read_device(const json_t *object, const char *what, opi_arena *arena,
                                  uint32_t rank, opi_device_spec *io_devices, opipe_error *err);
/* Member "cluster_devices", which may be left out: ranks have been read. */
opipe_status opi_json_read_places(const json_t *root, opi_plan *plan, opipe_error *err);
/* The link of a plan. decisions: without times. */
void opi_json_write_link(opi_text *text, const opi_link *link, bool decisions);
opipe_status opi_json_read_link(const json_t *object, const char *what, opi_link *out_link,
                                opipe_error *err);

#endif /* OPI_JSON_DEVICES_H */
