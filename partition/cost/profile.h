/* SPDX-License-Identifier: Apache-2.0 */
/* What each node costs on a device: time, and what it asks of memory. The basis of every cut. */
#ifndef OPI_PROFILE_H
#define OPI_PROFILE_H

#include "partition/program/cut.h"

/* One parameter layout that a node wants. */
typedef struct opi_node_param {
  uint32_t param; /* in the table of opi_profile.single */
  uint32_t reserved;
  uint64_t key;
  uint64_t n_bytes; /* device memory */
} opi_node_param;

typedef struct opi_profile {
  opi_arena arena;
  opi_cut *single;           /* every node a stage of its own */
  double *node_ns;           /* [n_nodes] one run */
  uint64_t *workspace_bytes; /* [n_nodes] */
  uint64_t *output_bytes;    /* [n_nodes] of all its outputs */
  opi_node_param *params; /* of node n: params[param_first[n]] .. params[param_first[n + 1] - 1] */
  uint32_t *param_first;  /* [n_nodes + 1] */
  const opipe_support *support; /* [n_nodes] what the device answered; NULL: it takes all */
  uint32_t n_nodes;
  double transfer_bytes_per_ns; /* of a boundary tensor */
  double transfer_ns;           /* fixed cost of one boundary tensor */
} opi_profile;

/* Where nodes are profiled. All borrowed. */
typedef struct opi_profile_place {
  const opi_backend_ref *backend; /* NULL, and no device: it is described */
  opipe_device *device;           /* open */
  const opi_device_facts *facts;
  uint32_t threads; /* of the plan's spec */
  bool may_refuse;  /* nodes that it does not take may go elsewhere: they cost OPI_REFUSED_NS */
} opi_profile_place;

/* More than any node that is taken, and little enough for sums over all of them. */
#define OPI_REFUSED_NS 1e12

/* Errors: UNSUPPORTED, one report of the nodes that the backend refuses. wanted [n_nodes]: those
 * that count; NULL: all. */
opipe_status opi_profile_support(const opi_graph *graph, const bool *wanted,
                                 const opi_backend_ref *backend, opipe_device *device,
                                 const opipe_allocator *allocator, opipe_error *err);

/* Does the device take the node? One that is described takes all. */
static inline bool opi_profile_takes(const opi_profile *profile, uint32_t node) {
  return profile->support == NULL || profile->support[node].status == OPIPE_OK;
}
/* The same report of what is known. kind: the backend's. OK: it takes all that are wanted. */
opipe_status opi_profile_refusal(const opi_profile *profile, const opi_graph *graph,
                                 const bool *wanted, const char *kind, opipe_error *err);

/* Profiles `graph` on a device: asks for support first (one report of all nodes that it refuses),
 * compiles each node by itself; one that is described is believed to run all, in dense parameters
 * and without workspace. kind  OPI_COST_RATES: max(flops / peak, bytes / bandwidth) + launch, with
 * the share of `threads` in the device's threads; OPI_COST_MEASURED: best of 3 runs on zeros (not
 * of a described device: UNSUPPORTED) */
opipe_status opi_profile_make(const opi_graph *graph, const opi_profile_place *place, uint32_t kind,
                              const opipe_allocator *allocator, uint64_t (*now_ns)(void),
                              opi_profile **out_profile, opipe_error *err);
void opi_profile_free(opi_profile *profile); /* accepts NULL */

#endif /* OPI_PROFILE_H */
