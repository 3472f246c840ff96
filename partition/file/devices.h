/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and links in plan files. */
#ifndef OPI_JSON_DEVICES_H
#define OPI_JSON_DEVICES_H

#include "loader/base/json.h"
#include "partition/plan/flags.h"
#include "partition/plan/plan.h"

/* Writes a device of a plan. decisions: without threads, cap and the option `kernels`. */
void opi_json_write_device(opi_text *text, const opi_device_spec *device, bool decisions);
/* Reads io_devices[rank]; earlier ranks must have been read. Strings are copied into `arena`.
 */
opipe_status opi_json_read_device(const json_t *object, const char *what, opi_arena *arena,
                                  uint32_t rank, opi_device_spec *io_devices, opipe_error *err);
/* Reads the optional member "cluster_devices", after the ranks. */
opipe_status opi_json_read_places(const json_t *root, opi_plan *plan, opipe_error *err);
/* The link of a plan. decisions: without times. */
void opi_json_write_link(opi_text *text, const opi_link *link, bool decisions);
opipe_status opi_json_read_link(const json_t *object, const char *what, opi_link *out_link,
                                opipe_error *err);

#endif /* OPI_JSON_DEVICES_H */
