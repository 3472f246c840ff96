/* SPDX-License-Identifier: Apache-2.0 */
/* What profiles and strategies share. */
#ifndef OPI_API_PLANNING_H
#define OPI_API_PLANNING_H

#include "partition/cluster/cluster.h"

typedef struct opi_cluster_text {
  const void *data;
  uint64_t n_bytes;
  const char *name; /* in messages; NULL: "the cluster" */
} opi_cluster_text;

/* Reads it into `arena`. Errors: INVALID, there is none; those of opi_cluster_read. */
opipe_status opi_api_take_cluster(const char *call, const opi_cluster_text *text, opi_arena *arena,
                                  opi_cluster *out, opipe_error *err);

#endif /* OPI_API_PLANNING_H */
