/* SPDX-License-Identifier: Apache-2.0 */
/* What profiles and strategies share. */
#ifndef OPI_API_PLANNING_H
#define OPI_API_PLANNING_H

#include "abi/api/api.h"
#include "partition/study/cluster/cluster.h"

typedef struct opi_cluster_text {
  const void *data;
  uint64_t n_bytes;
  const char *name; /* in messages; NULL: "the cluster" */
} opi_cluster_text;

/* Reads it into `arena`. Errors: INVALID, there is none; those of opi_cluster_read. */
opipe_status opi_api_take_cluster(const char *call, const opi_cluster_text *text, opi_arena *arena,
                                  opi_cluster *out, opipe_error *err);

/* ---- profile.c ---- */

/* The profile as each class of the cluster's devices takes it: (*out_layers) [n_classes] in
 * `arena`, to be freed; NULL where all devices are of one class, and for profiles that were
 * measured or read. Errors: as profile_of_model and profile_of_arch. */
opipe_status opi_profile_by_class(const opi_profile_object *profile, const opi_cluster *cluster,
                                  opi_arena *arena, opi_layers ***out_layers, opipe_error *err);
void opi_profile_free_classes(opi_layers **layers, uint32_t n_classes); /* accepts NULL */
/* Device bytes per byte of parameters: by the optimizer that it was made with, else Adam's. */
double opi_profile_state_bytes(const opi_profile_object *profile, bool forward);

/* ---- search.c ---- */

/* What strategies of a profile are asked and played with: layers, mode and type of products, the
 * context's allocator, plugins and clock. */
opi_auto opi_profile_question(const opi_profile_object *profile, const opi_cluster *cluster,
                              bool forward);
/* Planner auto: `p` checked, its state_bytes filled in. Errors: as opi_auto_search. */
opipe_status opi_profile_search(const opi_profile_object *profile, const opipe_strategy_params *p,
                                const opi_cluster *cluster, bool forward, opi_arena *arena,
                                opi_auto_answer **out_answer, opipe_error *err);

#endif /* OPI_API_PLANNING_H */
