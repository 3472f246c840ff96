/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster file: the devices that a plan is made for, and the link between them. */
#ifndef OPI_JSON_CLUSTER_H
#define OPI_JSON_CLUSTER_H

#include <opipe/host.h>

#include "partition/plan.h"

#define OPI_CLUSTER_FORMAT "onnx-pipe cluster 1"

/* All of it lies in the arena that it was read into. */
typedef struct opi_cluster {
  opipe_device_choice *devices;           /* [n_devices] `count` of an entry are so many */
  opipe_device_description *descriptions; /* [n_devices] */
  opipe_link_description link;
  const char *transport; /* of the link; NULL: the file has none */
  uint32_t n_devices;
} opi_cluster;

/* name: of the text, in messages. Errors: INVALID and LIMIT name entry, field and both values;
 * UNSUPPORTED, another version. */
opipe_status opi_cluster_read(const char *name, const void *json, uint64_t n_bytes,
                              opi_arena *arena, opi_cluster *out_cluster, opipe_error *err);

#endif /* OPI_JSON_CLUSTER_H */
