/* SPDX-License-Identifier: Apache-2.0 */
/* State of reading a cluster file, shared by the readers of this folder. */
#ifndef OPI_CLUSTER_READ_H
#define OPI_CLUSTER_READ_H

#include "loader/base/json.h"
#include "partition/study/cluster/cluster.h"

enum { OPI_CLUSTER_WHAT_ROOM = 200 };

typedef struct opi_cluster_reader {
  const char *name;
  opi_arena *arena;
  opi_cluster *out;
  char what[OPI_CLUSTER_WHAT_ROOM]; /* prefix of messages, such as "FILE: devices[3]" */
  uint32_t room[4];                 /* of the growing arrays: by device; then the classes */
  opipe_error *err;
} opi_cluster_reader;

/* Optional members; a missing one gives `preset`, 0 or NULL. Errors: INVALID names member and
 * value. */
opipe_status opi_cluster_get_count(const opi_cluster_reader *r, const json_t *object,
                                   const char *name, uint64_t max, uint64_t preset, uint64_t *out);
opipe_status opi_cluster_get_number(const opi_cluster_reader *r, const json_t *object,
                                    const char *name, double least, double most, double preset,
                                    double *out);
opipe_status opi_cluster_get_text(const opi_cluster_reader *r, const json_t *object,
                                  const char *name, const char **out);
/* Checks that every member is one of `fields` (ended by NULL). */
opipe_status opi_cluster_check_fields(const opi_cluster_reader *r, json_t *object,
                                      const char *const *fields);
/* Reads member "rates" of a device into its class. rates.c */
opipe_status opi_cluster_read_rates(const opi_cluster_reader *r, const json_t *device,
                                    opi_device_class *out_class);
/* Reads member "tiers" once all devices are known; without it the link is the only tier. tiers.c */
opipe_status opi_cluster_read_tiers(opi_cluster_reader *r, const json_t *root);

#endif /* OPI_CLUSTER_READ_H */
