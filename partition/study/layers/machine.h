/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this process as a cluster file. */
#ifndef OPI_LAYERS_MACHINE_H
#define OPI_LAYERS_MACHINE_H

#include "partition/plan/env.h"

/* All borrowed. */
typedef struct opi_this_machine {
  const opi_plan_env *env; /* allocator, plugins, clock */
  const opi_device_spec
      *devices; /* [n_devices] kind, options, index, threads, memory_bytes (0: an equal share) */
  uint32_t n_devices;
  const char *transport; /* "id" or "id:key=value,..." */
  bool rates;            /* time products of several sizes; otherwise take the backend's rates */
  const char *tier;      /* name of the tier: "threads", "processes" */
  double latency_ns, bytes_per_ns; /* measured, of a message; 0: as the transport declares */
} opi_this_machine;

/* Appends the file's text: one node with all devices, one tier. A device gets the share of its
 * threads in the backend's device. Errors: NOTFOUND, a backend or transport; those of opening and
 * running. */
opipe_status opi_this_machine_write(const opi_this_machine *machine, opi_text *text,
                                    opipe_error *err);

#endif /* OPI_LAYERS_MACHINE_H */
